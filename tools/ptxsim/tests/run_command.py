#!/usr/bin/env python3
"""Tests of the command `ptxsim`: run_command.py BUILD_DIRECTORY."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from simulated import compile_program

PROGRAM = r"""
#include <cstdio>
#include <cstring>
__global__ void twice(int* values) { values[threadIdx.x] *= 2; }
__global__ void far(int* values) { values[4096] = 1; }
int main(int count, char** arguments) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) return std::puts("no device"), 3;
  int* values;
  cudaMallocManaged(&values, 128);
  for (int i = 0; i < 32; ++i) values[i] = i;
  twice<<<1, 32>>>(values);
  if (count > 1 && std::strcmp(arguments[1], "--far") == 0) far<<<1, 1>>>(values);
  std::printf("before: %d\n", values[31]);
  const cudaError_t error = cudaDeviceSynchronize();
  std::printf("%s: %d, %s\n", properties.name, values[31], cudaGetErrorString(error));
  return error == cudaSuccess ? 0 : 4;
}
"""

UNKNOWN_OPCODE = """
.version 9.0
.target sm_80
.address_size 64
.visible .entry peculiar()
{
  .reg .b32 %r<3>;
  .reg .b64 %rd<2>;
  mov.u32 %r1, 7;
  mov.b64 %rd1, {%r1, %r1};
  { frobnicate.b32 %r2, %r1; }
  ret;
}
"""


class Command:
    def __init__(self, build: Path) -> None:
        self.path = build / "ptxsim"
        self.failures = 0

    def expect(self, status: int, texts: list[str], *arguments: str | Path) -> None:
        result = subprocess.run([self.path, *arguments], capture_output=True, text=True, timeout=60, check=False)
        output = result.stdout + result.stderr
        missing = [text for text in texts if text not in output]
        if result.returncode != status or missing:
            self.failures += 1
            print(f"ptxsim {' '.join(map(str, arguments))}: status {result.returncode}, not {status}")
            print(f"missing {missing} in:\n{output}")


def main() -> int:
    command = Command(Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.cu").write_text(PROGRAM)
        (folder / "unknown.ptx").write_text(UNKNOWN_OPCODE)
        program = folder / "program"
        compile_program(command.path.parent, program, [folder / "program.cu"])

        command.expect(0, ["before: 31", "A100-SXM4-80GB: 62, no error"], "run", program)
        command.expect(0, ["before: 62"], "run", "--eager", "--", program)
        command.expect(0, ["H100 80GB HBM3: 62"], "run", "--device", "h100", "--seed", "3", "--race", program)
        command.expect(3, ["no device"], "run", "--device", "none", program)
        command.expect(3, ["PTXSIM_DEVICE=gtx is not one of"], "run", "--device", "gtx", program)
        report = ["ptxsim: out-of-bounds: ", "far(int*)", "program.cu:5", "an illegal memory access was encountered"]
        command.expect(4, report, "run", program, "--far")
        command.expect(86, report[:3], "run", "--abort", program, "--far")
        counters = folder / "counters.json"
        command.expect(0, [], "run", "--counters", counters, program)
        found = json.loads(counters.read_text())["twice(int*)"]
        if found["launches"] != 1 or found["global_load_bytes"] != 128:
            command.failures += 1
            print(f"counters: {found}")

        command.expect(
            0, ["     1 ld.global.u32\n", "     2 ld.param.u64\n", "opcodes in 2 kernels"], "opcodes", program
        )
        lacking = ["     1 frobnicate.b32\n", "4 opcodes in 1 kernels", "LACKING in peculiar: unknown-opcode"]
        command.expect(1, lacking, "opcodes", folder / "unknown.ptx")
        command.expect(2, ["holds no PTX"], "opcodes", command.path)
        command.expect(2, ["cannot read"], "opcodes", folder / "absent")
        command.expect(2, ["cannot start"], "run", folder / "absent")
        command.expect(2, ["no program given"], "run", "--eager")
        command.expect(2, ["unknown option --fast"], "run", "--fast", program)
        command.expect(2, ["usage:"])
    print(f"{command.failures} failed")
    return 1 if command.failures else 0


if __name__ == "__main__":
    sys.exit(main())
