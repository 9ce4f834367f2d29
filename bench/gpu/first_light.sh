#!/usr/bin/env bash
# Everything that a GPU must show, on a machine that has one: right answers, serving, faults, clean memory.
#
#   bench/gpu/first_light.sh fidelity,serve,faults,several,sanitizer BINARIES MODELS OUT
#
# BINARIES holds `reactrt`, `reactrt-bench` and `gpu-test` (the test program tests/gpu.rs), MODELS what make_models.py wrote
# and `all-MiniLM-L6-v2`; results go to OUT. The library is found as the loader finds it (LD_LIBRARY_PATH). Traffic stays on
# 127.0.0.1; what is started here is ended here.
set -u
part=$1
. "$(dirname "$0")/lib.sh" "${@:2}"

step() {
  echo
  echo "#### $*"
  local start=$SECONDS
  timeout "${LIMIT:-280}" "$@" 2>&1
  echo "#### exit code $? after $((SECONDS - start)) s"
}

fidelity() {
  local small=1x32,8x128,32x256 name
  step "$bin/gpu-test" embedding="$models/all-MiniLM-L6-v2" --engines "$work" --buckets 1x32,8x128,16x256 --oracle --dump "$work/minilm" --seconds 1
  step python3 "$here/reference.py" "$models" "$work/minilm"
  for layout in packed padded; do
    step "$bin/gpu-test" embedding="$models/embedding" --engines "$work" --buckets $small,1x512 --layouts $layout --dump "$work/dump-$layout" --seconds 2
    step python3 "$here/reference.py" "$models" "$work/dump-$layout"
  done
  for name in reranking=reranker nli=nli; do
    step "$bin/gpu-test" "${name%=*}=$models/${name#*=}" --engines "$work" --buckets 1x64,8x512 --dump "$work/dump" --seconds 1
    step python3 "$here/reference.py" "$models" "$work/dump"
    rm -f "$work"/*.engine*
  done
}

config() {
  cat > "$work/config.yaml" <<CONF
server: {port: $port}
devices: [cuda:0]
engines: $work/engines
gpu: {buckets: [${BUCKETS:-1x32, 8x128, 32x256, 1x512}]}
threads: {spin_us: ${SPIN:-0}}
embedding_models:
  embedding: {model_path: $models/embedding}
  minilm: {model_path: $models/all-MiniLM-L6-v2, max_length: 256}
$1
CONF
}

heads="reranking_models:
  reranker: {model_path: $models/reranker}
nli_models:
  nli: {model_path: $models/nli}"

memory() {
  echo "t=$SECONDS s: host $(awk '/VmRSS/ { print $2 }' /proc/$server/status) kB, GPU $(nvidia-smi --query-gpu=memory.used --format=csv,noheader)"
}

serve() {
  config "$heads"
  echo "== first start: engines are built"
  start || return
  cat "$work/log"
  stop
  echo "== second start"
  start || return
  cat "$work/log"
  local long="--words lognormal:30,0.9,4,254"
  for body in '{"documents": ["w1 w2 w3"]}:embedding' '{"query": "w5 w6", "documents": ["w5", "w7 w8"]}:reranker' \
    '{"premises": ["w1"], "hypotheses": ["w2"]}:nli'; do
    curl -s -D - "http://127.0.0.1:$port/infer/${body##*:}" -d "${body%:*}" | cut -c1-300
    echo
  done
  echo "== one client"
  load --model embedding --concurrency 1 --words fixed:30 --duration 5s --warmup 1s --json "$out/one.json"
  echo "== saturation, one text a request"
  load --model embedding --concurrency 64 $long --duration 5s --warmup 1s
  load --model embedding --concurrency 512 --threads 4 $long --duration 5s --warmup 1s --json "$out/saturation.json"
  load --model embedding --concurrency 64 --threads 4 --texts-per-request 32 $long --duration 5s --warmup 1s
  load --model minilm --concurrency 512 --threads 4 $long --duration 5s --warmup 1s
  echo "== two minutes at saturation, three tasks at once"
  memory
  load --model embedding --concurrency 256 --threads 2 $long --duration 120s --warmup 1s --json "$out/long.json" > "$work/long" &
  local long_load=$!
  load --model reranker --task reranking --concurrency 8 --texts-per-request 8 $long --duration 118s > "$work/rerank" &
  local rerank_load=$!
  load --model nli --task nli --concurrency 8 --texts-per-request 4 $long --duration 118s > "$work/nli" &
  local nli_load=$!
  for _ in 1 2 3 4 5 6 7 8; do
    sleep 14
    memory
  done
  wait $long_load $rerank_load $nli_load
  cat "$work/long" "$work/rerank" "$work/nli"
  memory
  curl -s "http://127.0.0.1:$port/metrics" > "$out/metrics.txt"
  grep -E "^reactrt_(gpu|batch|bucket|device)" "$out/metrics.txt"
  stop
  grep -i warning "$work/log"
}

refused() {
  echo "-- $1"
  timeout 60 "$bin/reactrt" serve --config "$work/config.yaml" > "$work/log" 2>&1
  echo "exit code $?: $(tail -c 700 "$work/log")"
}

place() { cp "$work/good.engine" "$work/m.engine"; cp "$work/good.engine.json" "$work/m.engine.json"; cp "$work/good.engine.tokenizer.json" "$work/m.engine.tokenizer.json"; }

plain_config() {
  cat > "$work/config.yaml" <<CONF
server: {port: $port}
devices: [cuda:0]
embedding_models:
  minilm: {model_path: $work/m.engine, tokenizer_path: $models/all-MiniLM-L6-v2}
CONF
}

faults() {
  plans
  memory_too_small
}

plans() {
  plain_config
  "$bin/reactrt" build --model "$models/all-MiniLM-L6-v2" --task embedding --buckets 1x32,8x256 --output "$work/good.engine" 2>&1 | tail -3
  "$bin/reactrt" inspect "$work/good.engine"
  local size
  size=$(stat -c %s "$work/good.engine")
  echo "== as built"
  place
  start && curl -s "http://127.0.0.1:$port/infer/minilm" -d '{"documents": "hello"}' | cut -c1-100 && echo && stop
  echo "== without its manifest: any engine a user brings"
  rm -f "$work"/m.engine.*
  start && curl -s "http://127.0.0.1:$port/infer/minilm" -d '{"documents": "hello"}' | cut -c1-100 && echo && stop
  place
  printf 'XXXX' | dd of="$work/m.engine" bs=1 seek=$((size / 2)) conv=notrunc status=none
  refused "four bytes changed, with manifest"
  rm -f "$work"/m.engine.*
  for cut in 100 5000 $((size / 2)); do
    head -c "$cut" "$work/good.engine" > "$work/m.engine"
    refused "cut after $cut bytes, without manifest"
  done
  head -c 4096 "$work/good.engine" > "$work/m.engine"
  head -c $((size - 4096)) /dev/zero >> "$work/m.engine"
  refused "zeros after the head, without manifest"
  : > "$work/m.engine"
  refused "empty"
  place
  sed -i 's/"version": "1\.[0-9.]*"/"version": "1.5.0.114"/' "$work/m.engine.json"
  refused "another version's, by its manifest"
  "$bin/reactrt" build --model "$models/all-MiniLM-L6-v2" --task embedding --buckets 1x256 --target 12.0 --output "$work/other.engine" 2>&1 | tail -1
  cp "$work/other.engine" "$work/m.engine"
  rm -f "$work"/m.engine.*
  refused "another GPU's, without manifest"
  cp "$work/other.engine" "$work/m.engine"; cp "$work/other.engine.json" "$work/m.engine.json"; cp "$work/other.engine.tokenizer.json" "$work/m.engine.tokenizer.json"
  refused "another GPU's, by its manifest"
}

memory_too_small() {
  plain_config
  echo "== memory too small"
  "$bin/reactrt" build --model "$models/embedding" --task embedding --buckets 1x512 --output "$work/good.engine" 2>&1 | tail -1
  place
  python3 - "$work/full" <<'PY' &
import sys, time, torch
free, _ = torch.cuda.mem_get_info()
keep = torch.empty(free - (1400 << 20), dtype=torch.uint8, device='cuda')
open(sys.argv[1], 'w').write('full')
time.sleep(40)
PY
  local hog=$!
  until [ -f "$work/full" ] || ! kill -0 $hog 2>/dev/null; do sleep 0.2; done
  nvidia-smi --query-gpu=memory.used,memory.total --format=csv,noheader
  refused "with 1.4 GB left for 1.1 GB of weights and what CUDA needs"
  kill $hog 2>/dev/null
  wait $hog 2>/dev/null
  echo "== killed in the middle of loading, and started again"
  for delay in 0.3 0.8 1.5; do
    "$bin/reactrt" serve --config "$work/config.yaml" > "$work/log" 2>&1 &
    local victim=$!
    sleep $delay
    kill -KILL $victim 2>/dev/null
    wait $victim 2>/dev/null
  done
  start && curl -s "http://127.0.0.1:$port/infer/minilm" -d '{"documents": "hello"}' | cut -c1-100 && echo && stop
}

# All GPUs against one, the same load.
several() {
  local devices
  for devices in "[cuda:0]" auto; do
    cat > "$work/config.yaml" <<CONF
server: {port: $port}
devices: $devices
engines: $work/engines
gpu: {buckets: [1x32, 8x128, 32x256, 1x512]}
embedding_models:
  embedding: {model_path: $models/embedding}
CONF
    echo "== devices: $devices"
    start || return
    load --model embedding --concurrency 512 --threads 4 --words lognormal:30,0.9,4,254 --duration 8s --warmup 2s
    load --model embedding --concurrency 1024 --threads 4 --words lognormal:30,0.9,4,254 --duration 8s --warmup 2s
    curl -s "http://127.0.0.1:$port/metrics" | grep -E "^reactrt_(batches|batch_tokens|bucket_tokens)"
    stop
    cat "$work/log"
  done
}

sanitizer() {
  LIMIT=400 step compute-sanitizer --tool memcheck --error-exitcode 99 "$bin/gpu-test" embedding="$models/all-MiniLM-L6-v2" \
    --engines "$work" --buckets 1x32,2x256 --seconds 0.01
}

for one in ${part//,/ }; do "$one"; done
