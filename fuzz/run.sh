#!/usr/bin/env bash
# Builds the fuzz targets on the stable toolchain and runs them, with neither nightly nor cargo-fuzz:
#
#     fuzz/run.sh [CPU seconds for each target, 900] [targets, all]     appends a row for each to fuzz/RUNS.md
#     fuzz/run.sh smoke [seconds for each target, 5]                    from the committed corpus, leaves nothing behind
#     fuzz/run.sh merge [targets, all]                                  copies the best that runs found to the committed corpus
#
# Targets whose code lies on `unsafe` of ours or of a parser's run under AddressSanitizer; SANITIZER=none or SANITIZER=address
# decides for all. Inputs that runs make are kept in fuzz/target/corpus, what fails in fuzz/artifacts; a failing input is
# replayed by giving it to the target's binary, fuzz/target/…/release/TARGET FILE.
set -euo pipefail
cd "$(dirname "$0")"

triple=$(rustc -vV | sed -n 's/^host: //p')
all=(request connection body plan config onnx manifest weights truncation)

sanitizer_of() {
  case $1 in
    body | weights | truncation) echo "${SANITIZER:-address}" ;;
    *) echo "${SANITIZER:-none}" ;;
  esac
}

binary_of() {
  case $(sanitizer_of "$1") in
    address) echo "target/address/$triple/release/$1" ;;
    *) echo "target/$triple/release/$1" ;;
  esac
}

# The flags of `cargo fuzz build`. A target is given by name so that build scripts and macros are built without them.
build() {
  local sanitizer=$1 flags name bins=() folder=target
  shift
  for name in "$@"; do bins+=(--bin "$name"); done
  flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
  flags+=" -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
  flags+=" -Cllvm-args=-simplifycfg-branch-fold-threshold=0 -Cllvm-args=-sanitizer-coverage-stack-depth"
  flags+=" -Ccodegen-units=1 --cfg fuzzing"
  if [[ $sanitizer == address ]]; then
    # The one flag that stable does not take; its runtime comes with the stable toolchain all the same.
    flags+=" -Zsanitizer=address"
    folder=target/address
    export RUSTC_BOOTSTRAP=1
  fi
  RUSTFLAGS=$flags cargo build --locked --release --target "$triple" --target-dir "$folder" "${bins[@]}"
  unset RUSTC_BOOTSTRAP
}

build_all() {
  local sanitizer name wanted
  for sanitizer in none address; do
    wanted=()
    for name in "$@"; do
      if [[ $(sanitizer_of "$name") == "$sanitizer" ]]; then wanted+=("$name"); fi
    done
    if ((${#wanted[@]})); then build "$sanitizer" "${wanted[@]}"; fi
  done
}

options_of() {
  echo "-rss_limit_mb=2048 -timeout=10 -print_final_stats=1"
  case $1 in
    config | manifest | weights) echo "-max_len=8192" ;;
    truncation) echo "-max_len=1024" ;;
    *) echo "-max_len=4096" ;;
  esac
  if [[ -f $1.dict ]]; then echo "-dict=$1.dict"; fi
}

# Runs a target until it has used so many seconds of processor time or twice as many by the clock, or fails.
run() {
  local name=$1 seconds=$2 used=0 executions=0 log status=0 slice user system coverage begun
  local found=target/corpus/$name artifacts=artifacts/$name commit
  commit=$(git describe --always --exclude='*' --dirty=+)
  mkdir -p "$found" "$artifacts" target/log "corpus/$name"
  log=target/log/$name.log
  : >"$log"
  TIMEFORMAT='%U %S'
  begun=$SECONDS
  while ((used < seconds && SECONDS - begun < 2 * seconds && status == 0)); do
    slice=$((seconds - used < 10 ? 10 : seconds - used))
    # shellcheck disable=SC2046
    { time nice -n 19 "$(binary_of "$name")" $(options_of "$name") "-max_total_time=$slice" \
      "-artifact_prefix=$artifacts/" "$found" "corpus/$name" >>"$log" 2>&1; } 2>target/log/$name.time || status=$?
    read -r user system < <(tail -n 1 target/log/$name.time)
    used=$((used + ${user%.*} + ${system%.*} + 1))
  done
  # Ended by hand: what it got is what it got.
  if ((status == 72)); then status=0; fi
  executions=$(awk '/^stat::number_of_executed_units/ { sum += $2 } END { printf "%.0f", sum }' "$log")
  local finding=none
  if ((status)); then
    finding="stopped: $(grep -a -m1 -o 'SUMMARY.*\|panicked at [^:]*:[0-9]*' "$log" || echo "exit $status")"
    finding=${finding/"$(dirname "$PWD")/"/}
  fi
  coverage=$(grep -a -o 'cov: [0-9]* ft: [0-9]*' "$log" | tail -n 1 | sed 's/cov: //; s/ ft: / \/ /')
  printf '| %s | %s | %s | %s | %s | %s | %s | %s |\n' "$(date -u +%F)" "$commit" "$name" \
    "$(sanitizer_of "$name")" "$used" "$executions" "$coverage" \
    "$finding" >>RUNS.md
  tail -n 1 RUNS.md
  return "$status"
}

smoke() {
  local seconds=${1:-5} name scratch
  SANITIZER=none # the runtimes and the second build would cost CI more than they find in seconds
  build_all "${all[@]}"
  scratch=$(mktemp -d)
  for name in "${all[@]}"; do
    mkdir "$scratch/$name"
    # shellcheck disable=SC2046
    if ! "$(binary_of "$name")" $(options_of "$name") "-max_total_time=$seconds" "-artifact_prefix=$scratch/" \
      "$scratch/$name" "corpus/$name" >"$scratch/log" 2>&1; then
      tail -n 60 "$scratch/log"
      echo "fuzz target $name failed; the input is in $scratch" >&2
      return 1
    fi
    printf '%-12s %s\n' "$name" "$(grep -o 'cov: .*' "$scratch/log" | tail -n 1)"
  done
  rm -r "$scratch"
}

# The inputs that add most to what the committed corpus reaches, the best first, at most 20 and small ones.
merge() {
  local name scratch file
  scratch=$(mktemp -d)
  for name in "$@"; do
    cp -r "corpus/$name" "$scratch/"
    touch "$scratch/begun"
    "$(binary_of "$name")" -set_cover_merge=1 -use_counters=0 -max_len=700 "$scratch/$name" "target/corpus/$name" \
      >"$scratch/log" 2>&1 || { tail -n 20 "$scratch/log"; return 1; }
    find "$scratch/$name" -newer "$scratch/begun" -type f -printf '%T@ %p\n' | sort -n | awk 'NR <= 20 { print $2 }' |
      while read -r file; do cp "$file" "corpus/$name/"; done
    tail -n 1 "$scratch/log"
  done
  rm -r "$scratch"
}

case ${1:-} in
  smoke) smoke "${2:-5}" ;;
  merge) shift && merge "${@:-${all[@]}}" ;;
  *)
    seconds=${1:-900}
    shift || true
    if (($#)); then targets=("$@"); else targets=("${all[@]}"); fi
    build_all "${targets[@]}"
    failed=0
    for name in "${targets[@]}"; do run "$name" "$seconds" || failed=1; done
    exit "$failed"
    ;;
esac
