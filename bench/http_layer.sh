#!/usr/bin/env bash
# The HTTP layer alone: /health/live, answered in the reactor, against nginx returning the same bytes, one core each, under
# the same wrk on the other core; they take turns. Beside it the full path with a simulated device of zero time, where every
# hop shares the machine with the client.
#
#   bench/http_layer.sh [ROUNDS [SECONDS]]       needs nginx and wrk (Debian: nginx-light, wrk) and `cargo build --release`
#
# All traffic stays on 127.0.0.1; everything started here is ended here.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5} seconds=${2:-4}
model=${MODEL:-engines/demo/all-MiniLM-L6-v2}
work=$(mktemp -d)
trap 'kill "${server:-}" 2>/dev/null || true; nginx -c "$work/nginx.conf" -s stop 2>/dev/null || true; rm -rf "$work"' EXIT

cat > "$work/nginx.conf" <<CONF
worker_processes 1;
worker_cpu_affinity 01;
error_log $work/error.log;
pid $work/nginx.pid;
events { worker_connections 4096; }
http {
  access_log off; keepalive_requests 1000000000;
  server { listen 127.0.0.1:18900 backlog=4096; location / { default_type application/json; return 200 '{"status":"live"}'; } }
}
CONF
nginx -c "$work/nginx.conf"
cat > "$work/config.yaml" <<CONF
server: {port: 18901}
devices: [sim]
sim: {base_us: 0, us_per_1k_tokens: 0}
embedding_models:
  model: {model_name: model, model_path: $model}
CONF
target/release/reactrt --config "$work/config.yaml" > "$work/log" &
server=$!
until curl -sf http://127.0.0.1:18901/health/ready > /dev/null; do sleep 0.1; done
for task in /proc/$server/task/*; do
  [ "$(cat "$task/comm")" != reactor ] || taskset -cp 0 "${task##*/}" > /dev/null
done
[ "$(curl -s http://127.0.0.1:18900/)" = "$(curl -s http://127.0.0.1:18901/health/live)" ] || { echo "answers differ"; exit 1; }

cat > "$work/post.lua" <<'LUA'
wrk.method = "POST"
wrk.body = '{"documents":["the quick brown fox jumps over the lazy dog"]}'
LUA
rate() { "$@" | tee -a "$work/wrk.log" | awk '/^Requests\/sec/ { print $2 }'; }
printf '%-6s %12s %12s %7s %12s %7s\n' round nginx/s live/s ratio full-path/s ratio
for round in $(seq "$rounds"); do
  nginx_rate=$(rate taskset -c 1 wrk -t1 -c64 "-d${seconds}s" http://127.0.0.1:18900/health/live)
  live_rate=$(rate taskset -c 1 wrk -t1 -c64 "-d${seconds}s" http://127.0.0.1:18901/health/live)
  full_rate=$(rate wrk -t1 -c64 "-d${seconds}s" -s "$work/post.lua" http://127.0.0.1:18901/infer/model)
  awk -v r="$round" -v n="$nginx_rate" -v l="$live_rate" -v f="$full_rate" \
    'BEGIN { printf "%-6s %12.0f %12.0f %7.3f %12.0f %7.3f\n", r, n, l, l / n, f, f / l }'
done | tee "$work/table"
awk '{ print $4 }' "$work/table" | sort -n | awk '{ v[NR] = $1 } END { print "median ratio live / nginx:", v[int((NR + 1) / 2)] }'
awk '{ print $6 }' "$work/table" | sort -n | awk '{ v[NR] = $1 } END { print "median ratio full path / live:", v[int((NR + 1) / 2)] }'
# Not one answer other than 200, and no broken connection.
! grep -E 'Non-2xx|Socket errors' "$work/wrk.log"
