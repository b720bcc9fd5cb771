"""Speed of linear against what the machine can do, all measured in one run.

    python bench/kernels.py [--dtype bfloat16] [--isa avx512] [--threads N] [--repeats 9] [--json FILE]

Weights are those of SmolLM2-135M (270 MB in bfloat16), every layer's own, so that each pass comes from memory and not
from a cache. Bandwidth is divided by a plain read loop over the same memory, multiply-adds by the measured peak.
Figures are medians; passes of different kinds take turns, so that a noisy neighbour disturbs all of them alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from eagle31rt import _testing

# out_features, in_features, how many: qkv, attention output, gate and up, down, head.
SHAPES = [(960, 576, 30), (576, 576, 30), (3072, 576, 30), (576, 1536, 30), (49152, 576, 1)]
FEW_ROWS = [1, 2, 4, 8, 16]
MANY_ROWS = [64, 512]


def measure_stream(dtype: str, isa: str, threads: int, repeats: int) -> dict[str, object]:
    """Few rows over all weights: bytes per second and cost relative to one row."""
    stream = _testing.WeightStream(SHAPES, dtype, isa, threads)
    read: list[float] = []
    rows: dict[int, list[float]] = {num_rows: [] for num_rows in FEW_ROWS}
    stream.read()
    stream.multiply(max(FEW_ROWS))
    for _ in range(repeats):
        read.append(stream.read())
        for num_rows in FEW_ROWS:
            rows[num_rows].append(stream.multiply(num_rows))
    one_row = statistics.median(rows[1])
    return {
        "num_bytes": stream.num_bytes,
        "read_bytes_per_second": stream.num_bytes / statistics.median(read),
        "one_row_bytes_per_second": stream.num_bytes / one_row,
        "one_row_share_of_read": statistics.median(read) / one_row,
        "cost_of_rows": {n: statistics.median(seconds) / one_row for n, seconds in rows.items()},
    }


def measure_shape(shape: tuple[int, int], dtype: str, isa: str, threads: int, repeats: int) -> dict[str, object]:
    """Many rows times one weight: multiply-adds per second as a share of the peak, which is measured in between."""
    stream = _testing.WeightStream([(*shape, 1)], dtype, isa, threads)
    result: dict[str, object] = {"out_features": shape[0], "in_features": shape[1]}
    for num_rows in MANY_ROWS:
        work = shape[0] * shape[1] * num_rows
        stream.multiply(num_rows)
        peaks, speeds = [], []
        for _ in range(repeats):
            peaks.append(_testing.fma_peak(threads, runs=1))
            speeds.append(work / stream.multiply(num_rows))
        result[f"share_of_peak_{num_rows}_rows"] = statistics.median(speeds) / statistics.median(peaks)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--isa", default=_testing.instruction_sets()[0], choices=_testing.instruction_sets())
    parser.add_argument("--threads", type=int, default=0, help="0 = physical cores")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    stream = measure_stream(args.dtype, args.isa, args.threads, args.repeats)
    shapes = [measure_shape(shape[:2], args.dtype, args.isa, args.threads, args.repeats) for shape in SHAPES]
    result = {
        "dtype": args.dtype,
        "isa": args.isa,
        "threads": args.threads,
        "read_bandwidth": _testing.read_bandwidth(1 << 28, args.threads),
        "fma_peak": _testing.fma_peak(args.threads),
        "stream": stream,
        "shapes": shapes,
    }
    print(json.dumps(result, indent=2))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
