#!/usr/bin/env bash
# The load generator itself: how fast it is beside wrk, and how punctual. nginx on core 0 returns a fixed answer of an
# embedding's size; generators run on core 1 with the same 64 connections and take turns, round by round.
#
#   bench/generator.sh [ROUNDS [SECONDS]]    needs nginx and wrk (Debian: nginx-light, wrk), Python 3 and
#                                            `cargo build --release -p reactrt-bench`
#
# Goals: with --check status at least wrk's rate, with --check full 0.7 of it; p50 and p90 of a single connection within 5 % of
# wrk's; in an open loop at 20,000 requests per second 99 % of them sent within 100 µs of their moment.
#
# Latencies are held against wrk's on one connection, where nothing queues. In a closed loop of 64 the time of all requests is
# shared out, not measured: rate × mean latency / connections is the part of the time that a connection waits for its answer,
# and cannot be more than 1. wrk's is, since it adds invented latencies to its histogram (for those above twice the mean); both
# are shown.
# All traffic stays on 127.0.0.1; everything started here is ended here.
set -euo pipefail
shopt -s inherit_errexit # a generator that fails ends the script, instead of leaving the last one's numbers
cd "$(dirname "$0")/.."
rounds=${1:-5} seconds=${2:-4} connections=64 rate=20000
bench=target/release/reactrt-bench
work=$(mktemp -d)
trap 'nginx -c "$work/nginx.conf" -s stop 2>/dev/null || true; rm -rf "$work"' EXIT

# 384 values as a server writes them, about 4.6 KB.
python3 - "$work/answer.json" <<'PY'
import random, sys
random.seed(7)
values = ",".join("%.9g" % random.gauss(0, 0.05) for _ in range(384))
open(sys.argv[1], "w").write('{"embeddings":[[%s]],"elapsed_ms":4.4}' % values)
PY
# nginx takes words of up to 4 KiB in its configuration.
half=$(($(wc -c < "$work/answer.json") / 2))
cat > "$work/nginx.conf" <<CONF
worker_processes 1;
worker_cpu_affinity 01;
error_log $work/error.log;
pid $work/nginx.pid;
events { worker_connections 4096; }
http {
  access_log off; keepalive_requests 1000000000;
  server {
    listen 127.0.0.1:18910 backlog=4096;
    location / {
      default_type application/json;
      set \$first '$(head -c "$half" "$work/answer.json")';
      set \$second '$(tail -c "+$((half + 1))" "$work/answer.json")';
      return 200 \$first\$second;
    }
  }
}
CONF
nginx -c "$work/nginx.conf"
url=http://127.0.0.1:18910
bytes=$(curl -sf "$url/infer/m" | wc -c)
echo "answers of $bytes bytes, $connections connections, $rounds rounds of $seconds s"

cat > "$work/post.lua" <<'LUA'
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.body = '{"documents":["the of and to in is was for on that with as by at from it his an were are which this be had has first one their its new"]}'
LUA
# One line: rate, then p50, p90 and mean in µs.
run_wrk() { # CONNECTIONS
  taskset -c 1 wrk -t1 "-c$1" "-d${seconds}s" --latency -s "$work/post.lua" "$url/infer/m" | tee -a "$work/wrk.log" |
    python3 -c '
import re, sys
text = sys.stdin.read()
us = lambda word: float(re.match(r"[\d.]+", word)[0]) * {"us": 1, "ms": 1e3, "s": 1e6}[re.search(r"[a-z]+$", word)[0]]
at = {int(share): us(word) for share, word in re.findall(r"^\s+(\d+)%\s+(\S+)", text, re.M)}
print(re.search(r"Requests/sec:\s+(\S+)", text)[1], at[50], at[90], us(re.search(r"Latency\s+(\S+)", text)[1]))'
}
run_bench() {
  rm -f "$work/record.json"
  "$bench" load --url "$url" --model m --pin 1 --warmup 200ms --duration "${seconds}s" --json "$work/record.json" "$@" > /dev/null
  python3 -c '
import json, sys
run = json.load(open(sys.argv[1]))["runs"][0]
latency = run["latency"]
corrected = latency["corrected"]
print(run["rates"]["requests"], corrected["p50"], corrected["p90"], corrected["mean"], latency["lateness"]["p99"])' "$work/record.json"
}
printf '%-5s %7s %8s %6s %7s %6s | %8s %8s | %8s %8s %6s | %12s\n' round wrk/s status/s ratio full/s ratio '1: p50' '1: p90' \
  '64: p50' 'wrk held' 'held' 'p99 late, µs'
for round in $(seq "$rounds"); do
  wrk=$(run_wrk "$connections")
  # On a core of its own the generator need not sleep: the server then pays for no wake-up.
  status=$(run_bench --spin --concurrency "$connections" --check status)
  full=$(run_bench --spin --concurrency "$connections" --check full)
  one_wrk=$(run_wrk 1)
  one=$(run_bench --concurrency 1 --check status)
  open=$(run_bench --rate "$rate" --connections "$connections" --check full)
  echo "$round $wrk $status $full $one_wrk $one $open" | awk -v c="$connections" '{
    printf "%-5s %7.0f %8.0f %6.3f %7.0f %6.3f | %8.3f %8.3f | %8.3f %8.3f %6.3f | %12.1f\n", $1, $2, $6, $6 / $2, $11, $11 / $2,
      $21 / $17, $22 / $18, $7 / $3, $2 * $5 / c / 1e6, $6 * $9 / c / 1e6, $29 }'
done | tee "$work/table"
median() { awk -v c="$1" '{ print $c }' "$work/table" | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
echo "median rate, status only / wrk:                 $(median 4)"
echo "median rate, full check / wrk:                  $(median 6)"
echo "median p50 and p90 on one connection, ours / wrk: $(median 8) $(median 9)"
echo "median p99 of lateness at $rate/s:             $(median 15) µs"
# Not one answer other than 200, and no broken connection.
! grep -E 'Non-2xx|Socket errors' "$work/wrk.log"
