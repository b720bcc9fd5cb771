#!/usr/bin/env bash
# Builds the fuzz targets in a temporary folder and runs each for some seconds; fails on the first finding and keeps the
# input that shows it.  usage: tests/fuzz/run.sh SECONDS [TARGET...]
# Needs Clang (CXX, or clang++ on the path) and a python3 that can make virtual environments.
set -euo pipefail
seconds=${1:?usage: tests/fuzz/run.sh SECONDS [TARGET...]}
cd "$(dirname "$0")/../.."
targets=("${@:2}")
[ ${#targets[@]} -gt 0 ] || targets=(safetensors decoder_config draft_config weights)
compiler=${CXX:-}
for name in clang++ clang++-{22..14}; do
  case $compiler in *clang*) break ;; esac
  compiler=$(command -v "$name" || true)
done
[ -n "$compiler" ] || { echo "fuzzing needs clang++: install it or set CXX" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" -q install --disable-pip-version-check nlohmann-json numpy
cmake --preset fuzz -B "$work/build" -DCMAKE_CXX_COMPILER="$compiler" -DPython3_EXECUTABLE="$work/venv/bin/python" \
  > "$work/configure.log" 2>&1 || { cat "$work/configure.log"; exit 1; }
cmake --build "$work/build" -j "$(nproc)" --target fuzzers > "$work/build.log" 2>&1 || { tail -50 "$work/build.log"; exit 1; }
"$work/venv/bin/python" tests/fuzz/make_corpus.py "$work/corpus"

findings=$PWD/build/fuzz-findings
for target in "${targets[@]}"; do
  mkdir -p "$findings"
  echo "fuzzing $target for $seconds s"
  # The seeds must be accepted inputs that reach deep; new ones go to the temporary corpus only.
  if ! "$work/build/fuzzers/fuzz_$target" -max_total_time="$seconds" -max_len=16384 -rss_limit_mb=2048 -timeout=10 \
    -artifact_prefix="$findings/$target-" "$work/corpus/$target" > "$work/$target.log" 2>&1; then
    tail -60 "$work/$target.log"
    echo "$target: a finding; its input is in $findings" >&2
    exit 1
  fi
  tail -2 "$work/$target.log"
done
