#!/usr/bin/env bash
# The CUDA backend, built as it is released and executed by tools/ptxsim.
#
#   tests/cuda.sh PYTHON          what CI runs: every test once in the default order; a sample in three shuffled orders and
#                                 under the race and initialisation checks; the mutants
#   tests/cuda.sh PYTHON --full   every test in every mode, and machine code for sm_100a as well: before a release, and
#                                 whenever a kernel changed
#
# PYTHON: interpreter of an environment with the extra [test]; the package is installed into it with the backend.
# Needs nvcc 13; where there is none, it is installed from PyPI into that environment.
set -euo pipefail
python=$1
mode=${2:-}
cd "$(dirname "$0")/.."
bin=$(dirname "$python")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
step() { printf -- '--- %s (%s s)\n' "$1" "$SECONDS"; }

architectures="80;90a"
every=6
if [ "$mode" = --full ]; then
  architectures="80;90a;100a"
  every=1
fi

if ! command -v nvcc > /dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
  step "nvcc from PyPI"
  "$python" -m pip -q install "nvidia-cuda-nvcc==13.0.*" "nvidia-cuda-crt==13.0.*" "nvidia-nvvm==13.0.*" \
    "nvidia-cuda-runtime==13.0.*" "nvidia-cuda-cccl==13.0.*"
  PATH=$("$python" -c 'import nvidia, os; print(os.path.join(nvidia.__path__[0], "cu13", "bin"))'):$PATH
fi
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)

step "tools/ptxsim: build, opcode and runtime tests"
cmake -S tools/ptxsim -B "$work/ptxsim" -DCMAKE_BUILD_TYPE=Release > /dev/null
cmake --build "$work/ptxsim" -j "$(nproc)" > "$work/ptxsim.log" 2>&1 || { tail -40 "$work/ptxsim.log"; exit 1; }
(cd "$work/ptxsim" && ctest --output-on-failure -j "$(nproc)")

step "the package with the backend, for sm_${architectures//;/, sm_}"
CUDACXX=$nvcc "$python" -m pip -q install --no-deps --force-reinstall . \
  -C cmake.define.EAGLE31RT_CUDA=ON "-C" "cmake.define.EAGLE31RT_CUDA_ARCHITECTURES=$architectures" \
  -C "build.targets=_core;_testing;eagle31rt_cuda"
library=$("$python" -c 'import eagle31rt, os; print(os.path.join(os.path.dirname(eagle31rt.__file__), "libeagle31rt_cuda.so"))')

step "registers, spills and occupancy"
(cd bench && "$python" kernel_resources.py "$library" --check > "$work/resources.log") || { cat "$work/resources.log"; exit 1; }

cuda_tests() { (cd "$work" && "$bin/pytest" -q -n "$(nproc)" -c "$OLDPWD/pyproject.toml" --rootdir "$OLDPWD" "$OLDPWD/tests" \
  --device cuda --ptxsim "$work/ptxsim/libcudart.so.13" "$@"); }
step "every test, default order; no kernel of the library may stay without a launch"
cuda_tests_counted() { PTXSIM_COUNTERS_FILE="$work/counters-%p.json" PTXSIM_DEVICE=$1 cuda_tests "${@:2}"; }
cuda_tests_counted a100
cuda_tests_counted h100 -k attention
(cd bench && "$python" kernel_resources.py "$library" --all-launched --launches "$work"/counters-*.json > /dev/null)
for seed in 1 2 3; do
  step "one test in $every, warps and blocks shuffled by seed $seed"
  PTXSIM_SEED=$seed cuda_tests --every "$every"
done
step "one test in $every, race and initialisation checks"
PTXSIM_RACE=1 cuda_tests --every "$every"
