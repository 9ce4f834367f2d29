#!/usr/bin/env bash
# This server beside infinity-emb and the old design, on the CPU, with one model: first whether all three give the same
# vectors, then the same load on each, in turns. Saturation at 1, 16 and 64 connections; then an open loop at half of what
# the slowest can do, which is where latencies can be compared.
#
#   bench/peers/run.sh [ROUNDS]                  after bench/peers/setup.sh; 3 rounds if none are given
#   bench/peers/run.sh --check                   only starts them and compares their vectors
#
# Records and reports are left in target/peers. All traffic stays on 127.0.0.1, on the ports FIRST_PORT (18911) and the two
# after it; everything started here is ended here.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-3}
model=$(realpath "${MODEL:-engines/demo/all-MiniLM-L6-v2}")
first=${FIRST_PORT:-18911}
work=target/peers
our_port=$first infinity_port=$((first + 1)) old_port=$((first + 2))
scenario=$work/peers.yaml

for needed in target/release/reactrt target/release/reactrt-bench "$work/model.onnx" "$work/infinity/bin/infinity_emb" \
  "$work/old-design/bin/python"; do
  [ -e "$needed" ] || { echo "$needed is missing: run bench/peers/setup.sh first" >&2; exit 1; }
done

# Ends what was started here: politely, and after ten seconds not.
started=()
finish() {
  [ ${#started[@]} -gt 0 ] || return 0
  kill "${started[@]}" 2> /dev/null || true
  for _ in $(seq 100); do
    kill -0 "${started[@]}" 2> /dev/null || break
    sleep 0.1
  done
  kill -9 "${started[@]}" 2> /dev/null || true
  wait 2> /dev/null || true
}
trap finish EXIT
trap 'exit 130' INT TERM

start() { # NAME COMMAND…
  local name=$1
  shift
  "$@" > "$work/$name.log" 2>&1 &
  started+=($!)
}
ready() { # NAME PORT PID
  for _ in $(seq 240); do
    kill -0 "$3" 2> /dev/null || { echo "$1 has ended; the end of $work/$1.log:" >&2; tail -n 5 "$work/$1.log" >&2; exit 1; }
    if curl -sf -m 2 "http://127.0.0.1:$2/health" > /dev/null; then return; fi
    sleep 0.5
  done
  echo "$1 is not ready after two minutes: see $work/$1.log" >&2
  exit 1
}

for port in $our_port $infinity_port $old_port; do
  ! (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null || { echo "port $port is taken: set FIRST_PORT" >&2; exit 1; }
done
cat > "$work/config.yaml" <<CONF
server: {port: $our_port}
devices: [cpu]
embedding_models:
  model: {model_name: model, model_path: $model}
CONF
start reactrt target/release/reactrt serve --config "$work/config.yaml"
# Nothing is asked of a hub, and nobody is told.
start infinity env DO_NOT_TRACK=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 "$work/infinity/bin/infinity_emb" v2 \
  --model-id "$model" --served-model-name model --engine torch --device cpu --dtype float32 --no-bettertransformer \
  --url-prefix /v1 --host 127.0.0.1 --port "$infinity_port" --log-level warning
start old-design "$work/old-design/bin/python" bench/peers/old_design.py \
  --model "$work/model.onnx" --tokenizer "$model/tokenizer.json" --name model --port "$old_port"
ready reactrt "$our_port" "${started[0]}"
# Its health is at the root, whatever the prefix.
ready infinity "$infinity_port" "${started[1]}"
ready old-design "$old_port" "${started[2]}"

"$work/old-design/bin/python" bench/peers/agree.py "http://127.0.0.1:$our_port/infer/model" \
  "http://127.0.0.1:$infinity_port/v1/embeddings" "http://127.0.0.1:$old_port/infer/model"
[ "$rounds" != --check ] || exit 0

sed "s/:18911/:$our_port/; s/:18912/:$infinity_port/; s/:18913/:$old_port/" bench/scenarios/peers.yaml > "$scenario"
target/release/reactrt-bench load --scenario "$scenario" --sweep 1,16,64 --rounds "$rounds" \
  --json "$work/saturation.json" --html "$work/saturation.html"
rate=$("$work/old-design/bin/python" bench/peers/half_rate.py "$work/saturation.json")
target/release/reactrt-bench load --scenario "$scenario" --rate "$rate" --duration 20s --rounds "$rounds" \
  --json "$work/latency.json" --html "$work/latency.html"
for record in saturation latency; do
  printf '\n%s\n' "$record"
  target/release/reactrt-bench compare "$work/$record.json"
done
echo "reports: $work/saturation.html, $work/latency.html"
