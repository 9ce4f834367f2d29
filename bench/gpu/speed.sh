#!/usr/bin/env bash
# How fast it serves on this GPU, and what everything around the engine costs.
#
#   bench/gpu/speed.sh matrix,lanes,threads,open,lone,hops,sweep,starts,peers,chinese,gpus BINARIES MODELS OUT
#
# BINARIES holds `reactrt`, `reactrt-bench` and `replay`; MODELS/embedding what make_models.py wrote. W1 is 32 tokens a text, W2
# 256, W3 log-normal (median 30 words, sigma 0.9, 4 to 254). Every answer is checked in full. Records go to OUT; `table.py OUT`
# prints them. SPIN, LANES, BUCKETS, WORKERS change the server, ENGINES keeps its engines. Traffic stays on 127.0.0.1.
set -u
parts=$1
. "$(dirname "$0")/lib.sh" "${@:2}"

declare -A words=([w1]=fixed:30 [w2]=fixed:254 [w3]=lognormal:30,0.9,4,254)
# The generator keeps to the upper half of the cores, the server's threads begin at the lowest.
cores=$(nproc)
generators=$(seq -s, $((cores / 2)) $((cores - 1)))
one=$((cores - 1))
entry="embedding_models:
  embedding: {model_path: $models/embedding}"
# A thousand clients with 32 texts each are more than the default bounds take in.
wide="batching: {queue_tokens_max: 16777216}
limits: {memory_bytes_max: 6 GB}"

quiet() { "$@" > "$work/last" 2>&1 || { echo "exit code $? of $*"; tail -5 "$work/last"; }; }

# name, workload, clients, texts a request, seconds, further flags
cell() {
  local name=$1 kind=$2 clients=$3 texts=$4 seconds=$5
  shift 5
  quiet load --model embedding --words "${words[$kind]}" --concurrency "$clients" --texts-per-request "$texts" \
    --pin "$([ "$clients" -gt 4 ] && echo "$generators" || echo $one)" --warmup 0.7s --duration "${seconds}s" --timeout 60s \
    --json "$out/$name-$kind-$clients-$texts.json" "$@"
}

matrix() {
  config "$wide
$entry"
  start || return
  curl -s "http://127.0.0.1:$port/metrics" > "$out/metrics-before.txt"
  for kind in w1 w2 w3; do
    for texts in 1 32; do
      for clients in 1 16 64 256 1024; do
        local seconds=2.5
        # As long as its latency several times over.
        [ $texts = 1 ] || [ $clients -lt 256 ] || seconds=6
        [ $kind-$texts-$clients != w2-32-1024 ] || seconds=30
        cell json $kind $clients $texts $seconds
      done
    done
  done
  curl -s "http://127.0.0.1:$port/metrics" > "$out/metrics-json.txt"
  for kind in w1 w3; do
    for pair in "1 1" "64 1" "1024 1" "64 32"; do
      cell base64 $kind $pair 3 --api openai --encoding-format base64
    done
  done
  stop
}

# How many lanes pay.
lanes() {
  local number
  for number in ${LANES_TRIED:-1 2 3 4}; do
    LANES=$number config "$wide
$entry"
    start || return
    for clients in 1 4 16 64 256 1024; do
      cell lanes$number w3 $clients 1 3
    done
    stop
  done
}

# Where threads spend their time at saturation.
busy() {
  for task in /proc/$server/task/*; do
    echo "$(cat "$task/comm") $(awk '{ print $14 + $15 }' "$task/stat")"
  done | sort
}

# Each thread's share of one core, over $2 seconds from $1 seconds on.
shares() {
  sleep "$1"
  busy > "$work/before"
  sleep "$2"
  busy > "$work/after"
  paste "$work/before" "$work/after" | awk -v s="$2" '{ printf "%s %.2f\n", $1, ($4 - $2) / s / 100 }' | sort -k2 -rn | head -7
}

threads() {
  config "$wide
$entry"
  start || return
  for kind in w1 w3; do
    load --model embedding --words "${words[$kind]}" --concurrency 1024 --pin "$generators" --warmup 1s --duration 5s > "$work/last" &
    local load=$!
    echo "== $kind, 1,024 clients"
    shares 2 3
    wait $load
  done
  stop
}

open() {
  config "$entry"
  start || return
  local top
  cell saturation w3 1024 1 5
  top=$(python3 -c "import json; print(json.load(open('$out/saturation-w3-1024-1.json'))['runs'][0]['rates']['requests'])")
  echo "saturation: $top requests/s"
  for share in 50 70 85; do
    quiet load --model embedding --words "${words[w3]}" --rate "$(python3 -c "print(round($top * $share / 100))")" --connections 2048 \
      --pin "$generators" --warmup 1s --duration 10s --json "$out/open-$share.json"
  done
  curl -s "http://127.0.0.1:$port/metrics" > "$out/metrics-open.txt"
  stop
}

# A lone client, alone and beside 4 clients of 2,048 texts a request.
lone() {
  config "$entry"
  start || return
  quiet load --model embedding --words fixed:30 --rate 50 --pin $one --warmup 1s --duration 8s --json "$out/lone-alone.json"
  load --model embedding --words "${words[w3]}" --concurrency 4 --texts-per-request 2048 --pin "$generators" --warmup 0s --duration 14s \
    --timeout 60s --json "$out/lone-bulk.json" > "$work/bulk" &
  local bulk=$!
  sleep 3
  quiet load --model embedding --words fixed:30 --rate 50 --pin $one --warmup 1s --duration 8s --json "$out/lone-beside.json"
  wait $bulk
  stop
}

hops() {
  for spin in ${SPINS:-0 100 5000}; do
    SPIN=$spin config "$entry"
    start || return
    quiet load --model embedding --words fixed:30 --concurrency 1 --pin $one --spin --warmup 1s --duration 4s --json "$out/hops-spin$spin.json"
    quiet load --model embedding --words fixed:30 --concurrency 1 --pin $one --spin --api openai --encoding-format base64 --warmup 1s --duration 3s --json "$out/hops-base64-spin$spin.json"
    [ $spin != 0 ] || quiet load --model embedding --words fixed:30 --concurrency 1 --pin $one --warmup 1s --duration 4s --json "$out/hops-sleeping.json"
    [ $spin != 5000 ] || cell spinning w3 64 1 3
    stop
  done
  local engine
  engine=$(ls "${ENGINES:-$work/engines}"/*.engine | head -1)
  "$bin/replay" "$engine" --lanes 1,2 --seconds 0.5 --json "$out/replay.jsonl"
}

sweep() {
  config "$entry"
  start || return
  quiet "$bin/reactrt-bench" sweep --url "http://127.0.0.1:$port" --model embedding=embedding --words fixed:30 --pin $one \
    --json "$out/sweep.json" --html "$out/sweep.html"
  stop
  timeout 100 python3 "$here/torch_reference.py" "$models/embedding" sweep | tee "$out/torch-sweep.txt"
}

peers() {
  timeout 150 python3 "$here/torch_reference.py" "$models/embedding" bulk | tee "$out/torch-bulk.txt"
  python3 "$here/../peers/old_design.py" --torch "$models/embedding" --name embedding --port $port > "$work/log" 2>&1 &
  server=$!
  until curl -sf "http://127.0.0.1:$port/health" > /dev/null; do
    kill -0 $server 2>/dev/null || { echo "the old design ended:"; tail -5 "$work/log"; server=; return 1; }
    sleep 0.3
  done
  for kind in w1 w2 w3; do
    for clients in 1 64; do
      cell old $kind $clients 1 4
    done
  done
  cell old w3 8 32 4
  kill "$server"
  wait "$server" 2>/dev/null
  server=
}

# Where ENGINES has the engine already, the first start is not among them.
starts() {
  local keep=${ENGINES:-$work/starts}
  ENGINES=$keep config "$entry"
  if [ ! -d "$keep" ]; then
    echo "== first start"
    start && stop
    grep built "$work/log"
  fi
  for _ in 1; do
    echo "== second start, kernels kept"
    start && stop
  done
  rm -f "$keep"/*.kernels
  echo "== kernels compiled anew"
  start && stop
}

# The tokenizer's share with a real vocabulary and long Chinese texts: TOKENIZER names XLM-RoBERTa's tokenizer.json.
chinese() {
  config "embedding_models:
  embedding: {model_path: $models/embedding, tokenizer_path: $TOKENIZER}"
  python3 "$here/chinese.py" "$TOKENIZER" "$work/chinese.txt"
  start || return
  load --model embedding --texts "$work/chinese.txt" --concurrency 256 --pin "$generators" --warmup 1s --duration 5s \
    --json "$out/chinese.json" > "$work/last" &
  local load=$!
  shares 2 3
  wait $load
  stop
}

# One GPU against all of the machine's.
gpus() {
  for devices in auto "[cuda:0]"; do
    DEVICES=$devices config "$wide
$entry"
    start || return
    for kind in w1 w3; do
      for clients in 1024 2048; do
        cell "gpus-${devices//[^a-z0-9]/}" $kind $clients 1 4
      done
      cell "gpus-${devices//[^a-z0-9]/}" $kind 128 32 4
    done
    curl -s "http://127.0.0.1:$port/metrics" > "$out/metrics-gpus-${devices//[^a-z0-9]/}.txt"
    stop
  done
}

for part in ${parts//,/ }; do
  echo "#### $part"
  began=$SECONDS
  $part
  echo "#### $part took $((SECONDS - began)) s"
done
