# What the scripts of this folder share: folders, and a server started and ended. Sourced with BINARIES MODELS OUT.
bin=$(realpath "$1") models=$(realpath "$2") out=$3
mkdir -p "$out"
out=$(realpath "$out")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
port=${PORT:-18930}
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT

# Writes a configuration. $1: further lines.
config() {
  cat > "$work/config.yaml" <<CONF
server: {port: $port}
devices: ${DEVICES:-[cuda:0]}
engines: ${ENGINES:-$work/engines}
gpu: {lanes: ${LANES:-2}, buckets: ${BUCKETS:-auto}}
threads: {spin_us: ${SPIN:-0}, workers: ${WORKERS:-auto}, pin: ${PINNED:-auto}}
$1
CONF
}

start() {
  "$bin/reactrt" serve --config "$work/config.yaml" > "$work/log" 2>&1 &
  server=$!
  local begin
  begin=$(date +%s.%N)
  until curl -sf "http://127.0.0.1:$port/health/ready" > /dev/null; do
    kill -0 $server 2>/dev/null || { echo "the server ended:"; cat "$work/log"; server=; return 1; }
    sleep 0.02
  done
  echo "ready after $(echo "$(date +%s.%N) $begin" | awk '{ printf "%.2f", $1 - $2 }') s"
}

stop() {
  kill -TERM "$server"
  wait "$server"
  echo "the server ended with $?"
  server=
}

load() {
  "$bin/reactrt-bench" load --url "http://127.0.0.1:$port" "$@"
}
