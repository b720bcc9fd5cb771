"""Table of registers, stack, shared memory and occupancy of every CUDA kernel, from the library as it ships.

    python kernel_resources.py libeagle31rt_cuda.so --write    # bench/results/kernel_resources.json
    python kernel_resources.py libeagle31rt_cuda.so --check    # fails on a spill, or if the stored table differs
                                                               # for the architectures that the library has

Dynamic shared memory and block size of a launch depend on shapes; give --launches a counters file of tools/ptxsim to
take the largest of each kernel from there. Occupancy is the share of an SM's warps that may be resident.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cubin import CompiledKernel, read_kernels, short_name

RESULTS = Path(__file__).resolve().parent / "results" / "kernel_resources.json"


@dataclass(frozen=True)
class Multiprocessor:
    """CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"."""

    max_warps: int = 64
    max_blocks: int = 32
    registers: int = 65536
    shared_bytes: int = 228 * 1024
    reserved_shared_bytes: int = 1024  # of each block


MULTIPROCESSORS = {80: Multiprocessor(shared_bytes=164 * 1024), 90: Multiprocessor(), 100: Multiprocessor()}
# Tiles that the choice of configuration keeps away from an architecture (csrc/ops/mla_attention/config.h): 203 KiB of
# shared memory are more than an A100 has.
NOT_LAUNCHED = {
    (f"latent_attention_kernel<LatentTraits<{element}, 576, 512, 4, 2> >", 80)
    for element in ("__nv_bfloat16", "__half")
}
_REGISTER_GRANULE = 256  # registers are given to a warp in steps of this many


def occupancy(kernel: CompiledKernel, threads: int, dynamic_shared_bytes: int) -> float:
    """Share of the SM's warps that can be resident."""
    sm = MULTIPROCESSORS[kernel.architecture]
    warps = -(-threads // 32)
    registers = -(-kernel.registers * 32 // _REGISTER_GRANULE) * _REGISTER_GRANULE * warps
    shared = kernel.static_shared_bytes + dynamic_shared_bytes + sm.reserved_shared_bytes
    blocks = min(sm.max_blocks, sm.max_warps // warps, sm.registers // registers, sm.shared_bytes // shared)
    return blocks * warps / sm.max_warps


def table(library: Path, launches: dict[str, dict[str, int]]) -> list[dict[str, Any]]:
    rows = []
    for kernel in read_kernels(library):
        launch = launches.get(kernel.name, {})
        threads = launch.get("block_threads", kernel.max_threads)
        dynamic = launch.get("dynamic_shared_bytes", 0)
        rows.append(
            {
                **asdict(kernel),
                "block_threads": threads,
                "dynamic_shared_bytes": dynamic,
                "occupancy": round(occupancy(kernel, threads, dynamic), 3) if threads else None,
            }
        )
    return rows


def read_launches(files: list[Path]) -> dict[str, dict[str, int]]:
    """Per kernel the largest block and the most dynamic shared memory in any of the counters files."""
    launches: dict[str, dict[str, int]] = {}
    for file in files:
        for name, counted in json.loads(file.read_text()).items():
            largest = launches.setdefault(short_name(name), {"block_threads": 0, "dynamic_shared_bytes": 0})
            for key in largest:
                largest[key] = max(largest[key], counted[key])
    return launches


def compile_seconds(ninja_log: Path) -> dict[str, float]:
    """Wall seconds of the last compilation of each .cu file for all architectures, from the log of a Ninja build."""
    seconds = {}
    for line in ninja_log.read_text().splitlines():
        fields = line.split("\t")
        if len(fields) >= 4 and fields[3].endswith(".cu.o"):
            source = fields[3].split(".dir/", 1)[-1].removesuffix(".o")
            seconds[source] = round((int(fields[1]) - int(fields[0])) / 1000, 1)
    return dict(sorted(seconds.items()))


def problems(rows: list[dict[str, Any]]) -> list[str]:
    """Kernels that must not ship."""
    found = []
    for row in rows:
        where = f"{row['name']} on sm_{row['architecture']}"
        if row["stack_bytes"] > 0:
            found.append(f"{where} keeps {row['stack_bytes']} bytes a thread in local memory")
        if row["max_threads"] == 0:
            found.append(f"{where} has no __launch_bounds__")
        if row["occupancy"] == 0 and (row["name"], row["architecture"]) not in NOT_LAUNCHED:
            found.append(f"{where} does not fit an SM")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument("--launches", type=Path, nargs="+", default=[], help="counters files of tools/ptxsim")
    parser.add_argument("--all-launched", action="store_true", help="fail if a kernel is in none of the --launches")
    parser.add_argument("--ninja-log", type=Path, help=".ninja_log of the build: keeps the compile time of each file")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"kernels": []}
    launches = read_launches(args.launches) if args.launches else {row["name"]: row for row in stored["kernels"]}
    rows = table(args.library, launches)
    for row in rows:
        print(
            f"sm_{row['architecture']:<4} {row['name'][:70]:<70} registers {row['registers']:>3}  "
            f"stack {row['stack_bytes']:>4}  shared {row['static_shared_bytes'] + row['dynamic_shared_bytes']:>6}  "
            f"threads {row['block_threads']:>4}  occupancy {row['occupancy']}"
        )
    found = problems(rows)
    if args.all_launched:
        found += [f"{name} was never launched" for name in sorted({row["name"] for row in rows} - set(launches))]
    if args.write:
        times = compile_seconds(args.ninja_log) if args.ninja_log else stored.get("compile_seconds", {})
        command = f"python kernel_resources.py {args.library.name} --launches COUNTERS --ninja-log LOG --write"
        text = json.dumps({"command": command, "compile_seconds": times, "kernels": rows}, indent=1)
        RESULTS.write_text(text + "\n")
    built = {row["architecture"] for row in rows}
    if args.check and rows != [row for row in stored["kernels"] if row["architecture"] in built]:
        found.append(f"{RESULTS.name} is not the table of this library; run with --write and look at the difference")
    print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
