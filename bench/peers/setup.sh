#!/usr/bin/env bash
# Makes ready what run.sh compares: this server in release, an .onnx of the model, and one virtual environment for each peer
# in target/peers. Downloads about 3 GB and fills 6 GB, nearly all of it torch.
#
#   bench/peers/setup.sh                         needs Python 3.11 (PYTHON=/path/to/it if it goes by another name)
#   MODEL=folder bench/peers/setup.sh            for another embedding model; run.sh then takes the same
set -euo pipefail
cd "$(dirname "$0")/../.."
model=${MODEL:-engines/demo/all-MiniLM-L6-v2}
python=${PYTHON:-python3.11}
work=target/peers

[ -f "$model/tokenizer.json" ] \
  || { echo "$model/tokenizer.json is missing: \`cargo run --release -- demo\` fetches the default model" >&2; exit 1; }
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2> /dev/null \
  || { echo "$python is not Python 3.11, which the pinned packages are for: name one in PYTHON" >&2; exit 1; }

mkdir -p "$work"
environment() { # NAME
  [ -x "$work/$1/bin/pip" ] || "$python" -m venv "$work/$1"
}
environment old-design
"$work/old-design/bin/pip" install --quiet --requirement bench/peers/requirements-old-design.txt
environment infinity
# Without dependencies: both files name all that is needed, and pip would add libraries that only a GPU can use.
"$work/infinity/bin/pip" install --quiet --no-deps --requirement bench/peers/requirements-infinity.txt
"$work/infinity/bin/pip" install --quiet --no-deps --requirement bench/peers/requirements-torch.txt

cargo build --release --workspace --bins
target/release/reactrt convert --model "$model" --output "$work/model.onnx" --layout padded --dtype fp32
echo "ready: bench/peers/run.sh"
