#!/usr/bin/env bash
# What each bucket costs on this GPU: the grid that the default ladder is chosen from.
#
#   bench/gpu/ladder.sh BINARIES MODELS OUT
#
# BINARIES holds `reactrt` and `replay` (the benchmark bench/replay.rs), MODELS/embedding a model folder. One engine for each row
# of the grid is built, several at once; times are taken one engine at a time.
set -u
bin=$(realpath "$1") models=$(realpath "$2") out=$3
mkdir -p "$out"
out=$(realpath "$out")
work=${WORK:-$(mktemp -d)}
mkdir -p "$work"

declare -A grid=(
  [short]="1x512 1x32 2x32 4x32 8x32 1x64 2x64 4x64 16x32"
  [middle]="1x512 1x128 2x128 4x128 8x128 16x128 32x128 64x128"
  [long]="1x512 1x256 2x256 4x256 8x256 16x256 24x256 32x256 64x256"
  [longest]="1x512 2x512 4x512 6x512 8x512 12x512 16x512 32x512"
  [padded]="1x32 8x32 1x128 8x128 32x128 1x256 8x256 32x256 1x512 8x512"
)

names=${NAMES:-short middle long longest padded}
began=$SECONDS
pids=()
for name in $names; do
  layout=packed
  [ "$name" != padded ] || layout=padded
  buckets=$(echo "${grid[$name]}" | tr ' ' ',')
  "$bin/reactrt" build --model "$models/embedding" --task embedding --layout $layout --buckets "$buckets" --output "$work/$name.engine" > "$out/build-$name.txt" 2>&1 &
  pids+=($!)
done
wait "${pids[@]}"
echo "built after $((SECONDS - began)) s"
tail -n 2 "$out"/build-*.txt
# Once all together, so that kernels are compiled on all cores.
began=$SECONDS pids=()
for name in $names; do
  timeout 280 "$bin/replay" "$work/$name.engine" --lanes 1 --seconds 0.01 > "$out/compile-$name.txt" 2>&1 &
  pids+=($!)
done
wait "${pids[@]}"
echo "compiled after $((SECONDS - began)) s"
for name in $names; do
  timeout 120 "$bin/replay" "$work/$name.engine" --lanes 1,2,3,4 --seconds "${LONG:-0.25}" --json "$out/$name.jsonl"
done
tar -C "$out" -czf "$out/ladder.tgz" --exclude=ladder.tgz .
