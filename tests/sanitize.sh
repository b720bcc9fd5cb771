#!/usr/bin/env bash
# Builds both modules with AddressSanitizer and UndefinedBehaviorSanitizer in a temporary folder and runs the tests that
# touch memory hardest under them.  usage: tests/sanitize.sh PYTHON   (a Python that has the [test] extra)
set -euo pipefail
python=$1
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m pip -q install --target "$work/build-tools" pybind11 nlohmann-json ninja
export PYTHONPATH="$work/build-tools"
# The preset compiles at -O1: the sanitizers see every access, and it takes a third of the time of -O3.
interpreter=$("$python" -c 'import sys; print(sys.executable)')
cmake --preset asan -B "$work/build" -DPython_EXECUTABLE="$interpreter" -DPython3_EXECUTABLE="$interpreter" \
  -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" > /dev/null
cmake --build "$work/build" -j "$(nproc)" --target package > "$work/build.log" 2>&1 || { tail -50 "$work/build.log"; exit 1; }
# Leaks of the interpreter itself would drown ours; allocation failures must become errors, as in production.
export PYTHONPATH="$work/build/package" ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so)"
"$python" -m pytest -q -p no:cacheprovider -m "not real_model and not dev" \
  tests/test_checkpoint.py tests/test_config.py tests/test_draft_config.py tests/test_weights.py tests/test_draft_weights.py tests/test_op_*.py \
  tests/test_ops_reference.py tests/test_engine_edges.py "${@:2}"
