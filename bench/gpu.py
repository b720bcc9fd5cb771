"""Each CUDA kernel against its roofline, on a GPU.

    python gpu.py --output results/gpu.json

Shapes are those of Llama-3.1-8B with an EAGLE-3.1 head. The roofline time of a call is the larger of bytes / bandwidth
and flops / peak, with the data-sheet figures of the GPU. Inputs larger than the L2 cache take turns, so that weights
come from memory. Times are medians over batches of queued calls: a launch costs what it costs in a decode loop without
graphs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle31rt import _testing

HIDDEN, INTERMEDIATE, VOCABULARY = 4096, 14336, 128256
HEADS = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
L2_BYTES = 128 * 2**20  # more than any of the GPUs below has


@dataclass(frozen=True)
class Peak:
    """Data-sheet figures: memory bandwidth in bytes per second, dense bfloat16 in flops per second."""

    bandwidth: float
    flops: float


PEAKS = {
    "A100": Peak(2.039e12, 312e12),
    "H100": Peak(3.35e12, 989e12),
    "H200": Peak(4.8e12, 989e12),
    "B200": Peak(8.0e12, 2250e12),
}


def problems(scale: int) -> list[tuple[str, dict[str, int]]]:
    """(operator, shape); `scale` divides the sizes, for a dry run on the simulator."""
    hidden, intermediate, vocabulary = HIDDEN // scale, INTERMEDIATE // scale, VOCABULARY // scale
    listed: list[tuple[str, dict[str, int]]] = []
    projections = [(6144 // scale, hidden), (hidden, hidden), (2 * intermediate, hidden), (hidden, intermediate)]
    for rows in (1, 5, 8, 40) if scale > 1 else (1, 5, 8, 40, 64, 512, 2048):
        for out_features, in_features in projections:
            listed.append(("linear", {"num_rows": rows, "out_features": out_features, "in_features": in_features}))
    for rows in (1, 5, 40):
        listed.append(("linear", {"num_rows": rows, "out_features": vocabulary, "in_features": hidden}))
        listed.append(("fc_norm", {"num_rows": rows, "hidden_size": hidden, "chunk_size": hidden, "num_chunks": 3}))
        listed.append(("rms_norm", {"num_rows": rows, "hidden_size": hidden}))
        listed.append(("silu_mul", {"num_rows": rows, "intermediate_size": intermediate}))
        for drawn in (1, 2, 3):  # greedy, temperature, temperature and top_p
            listed.append(("sample", {"num_rows": rows, "vocab_size": vocabulary, "drawn": drawn}))
    for requests, rows, context in ((1, 1, 8192), (1, 5, 8192), (8, 5, 8192), (64, 1, 2048), (1, 512, 4096)):
        shape = {"num_requests": requests, "rows_per_request": rows, "context": context // scale, **HEADS}
        listed.append(("paged_attention", shape))
    return listed


def measure(op: str, shape: dict[str, int], peak: Peak | None, repeats: int, calls: int) -> dict[str, Any]:
    single = _testing.GpuProblem(op, shape)
    copies = max(1, min(16, -(-3 * L2_BYTES // int(single.bytes)))) if peak is not None else 1
    problem = single if copies == 1 else _testing.GpuProblem(op, shape, copies)
    times = problem.time(repeats, calls)
    row: dict[str, Any] = {
        "op": op,
        "shape": shape,
        "bytes": problem.bytes,
        "flops": problem.flops,
        "microseconds": statistics.median(times) / 1e3,
        "spread": (max(times) - min(times)) / statistics.median(times),
    }
    if peak is not None:
        roofline = max(problem.bytes / peak.bandwidth, problem.flops / peak.flops)
        row["roofline_microseconds"] = roofline * 1e6
        row["of_roofline"] = roofline * 1e9 / statistics.median(times)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--dry-run", action="store_true", help="small shapes once, no roofline: for the simulator")
    args = parser.parse_args()
    device = _testing.cuda_device_info()
    peak = None if args.dry_run else next((p for name, p in PEAKS.items() if name in device["name"]), None)
    if peak is None and not args.dry_run:
        print(f"no data-sheet figures for {device['name']}; add them to PEAKS", file=sys.stderr)
        return 1
    rows = []
    for op, shape in problems(32 if args.dry_run else 1):
        row = measure(op, shape, peak, *((1, 1) if args.dry_run else (args.repeats, args.calls)))
        rows.append(row)
        share = f"{row['of_roofline']:6.1%} of roofline" if peak is not None else "ran"
        print(f"{op:16} {' '.join(f'{k}={v}' for k, v in shape.items()):80} {row['microseconds']:10.1f} us  {share}")
    if args.output is not None:
        command = " ".join(["python", Path(sys.argv[0]).name, *sys.argv[1:]])
        args.output.write_text(json.dumps({"command": command, "device": device, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
