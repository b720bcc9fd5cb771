#!/usr/bin/env bash
# Builds the engine and a driver with ThreadSanitizer in a temporary folder and runs many threads on it; fails on the
# first report.  usage: tests/tsan.sh PYTHON   (a Python that has numpy)
set -euo pipefail
python=$1
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m pip -q install --target "$work/build-tools" nlohmann-json
PYTHONPATH=python:tests "$python" - "$work" <<'PYTHON'
import sys
from pathlib import Path
from support.successor import write_successor_draft, write_successor_target

folder = Path(sys.argv[1])
write_successor_draft(folder / "draft", write_successor_target(folder / "target"))
PYTHON
PYTHONPATH="$work/build-tools" cmake --preset tsan -B "$work/build" -DPython3_EXECUTABLE="$("$python" -c 'import sys; print(sys.executable)')" > /dev/null
cmake --build "$work/build" -j "$(nproc)" --target tsan_async_engine > "$work/build.log" 2>&1 || { tail -50 "$work/build.log"; exit 1; }
TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 "$work/build/tests/tsan/tsan_async_engine" "$work/target" "$work/draft"
