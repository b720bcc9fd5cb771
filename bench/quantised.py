"""What keeping weights quantised saves on this CPU, against bfloat16 weights of the same values, in one run.

    python bench/quantised.py [--threads N] [--repeats 7] [--output NAME.json]

For each form: bytes in memory, and the time of one pass of linear over weights larger than any cache, for one row
(decoding), 8 (verification) and 64 (prefill); nanoseconds of one row for 32 weights that lie in the cache, which says
at what bandwidth a core gains (that of 64 bytes of bfloat16 in this time); and tokens per second of processor time of
a random llama model on one thread, whose ids must be equal. Figures are medians of measurements that take turns;
ratios are those of bfloat16 over the quantised form, so above 1 is a gain.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from common import make_engine, make_params, provenance, run_request, write_result

from eagle31rt import _testing
from eagle31rt.safetensors_writer import RawTensor, bfloat16_tensor, save_safetensors

SHAPES = [(6144, 2048, 6), (2048, 2048, 6), (11264, 2048, 6), (2048, 5632, 6)]  # a layer of a model of 1.5e9 elements
FORMS = {
    "bfloat16": (),
    "fp8": ("fp8", "float32", 128),
    "int4": ("int4", "bfloat16", 32),
    "mxfp4": ("fp4", "e8m0", 32),
}
ROWS = [1, 8, 64]
HIDDEN, INTERMEDIATE, LAYERS, HEADS, VOCAB = 2048, 5632, 4, 16, 4096
PROMPT = [100, 101, 102, 103]
NUM_TOKENS = 48


def measure_streams(threads: int, repeats: int) -> dict[str, Any]:
    isa = _testing.instruction_sets()[0]
    streams = {name: _testing.WeightStream(SHAPES, "bfloat16", isa, threads, *form) for name, form in FORMS.items()}
    seconds: dict[tuple[str, int], list[float]] = {(name, rows): [] for name in FORMS for rows in ROWS}
    for stream in streams.values():
        stream.multiply(max(ROWS))
    for _ in range(repeats):
        for (name, rows), times in seconds.items():
            times.append(streams[name].multiply(rows))
    medians = {key: median(times) for key, times in seconds.items()}
    return {
        name: {
            "bytes_of_bfloat16": stream.num_bytes / streams["bfloat16"].num_bytes,
            **{f"speed_up_{rows}_rows": medians["bfloat16", rows] / medians[name, rows] for rows in ROWS},
        }
        for name, stream in streams.items()
        if name != "bfloat16"
    }


def measure_cached(isa: str) -> dict[str, float]:
    """The best of many passes over 512 x 512 weights, per 32 of them."""
    seconds = {}
    for name, form in FORMS.items():
        stream = _testing.WeightStream([(512, 512, 1)], "bfloat16", isa, 1, *form)
        seconds[name] = min(stream.multiply(1) for _ in range(500))
    return {name: round(best / (512 * 512 / 32) * 1e9, 2) for name, best in seconds.items()}


def quantise(form: str, name: str, shape: tuple[int, int], seed: int) -> tuple[dict[str, RawTensor], RawTensor]:
    """Random codes and scales as a checkpoint stores them, and their values in bfloat16."""
    rng = np.random.default_rng(seed)
    rows, columns = shape
    if form == "fp8":
        codes = rng.integers(0, 256, shape).astype(np.uint8)
        codes[(codes & 0x7F) == 0x7F] = 0
        scales = rng.uniform(0.5e-4, 1e-4, (-(-rows // 128), -(-columns // 128))).astype(np.float32)
        exponents, mantissas = (codes >> 3 & 15).astype(np.int32), (codes & 7).astype(np.float32)
        magnitudes = np.where(exponents == 0, mantissas * 2.0**-9, np.ldexp(8 + mantissas, exponents - 10))
        values = np.where(codes & 0x80, -magnitudes, magnitudes).astype(np.float32)
        values *= np.repeat(np.repeat(scales, 128, axis=0), 128, axis=1)[:rows, :columns]
        tensors = {
            name: RawTensor("F8_E4M3", shape, codes.tobytes()),
            f"{name}_scale_inv": RawTensor("F32", scales.shape, scales.tobytes()),
        }
        return tensors, bfloat16_tensor(values)
    codes = rng.integers(0, 16, shape).astype(np.uint32)
    stored = bfloat16_tensor(rng.uniform(2e-3, 4e-3, (rows, columns // 32)).astype(np.float32))
    scales = (np.frombuffer(stored.data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(rows, -1)
    words = (codes.reshape(rows, -1, 8) << (4 * np.arange(8, dtype=np.uint32))).sum(axis=2, dtype=np.uint32)
    values = (codes.astype(np.float32) - 8) * np.repeat(scales, 32, axis=1)
    tensors = {
        f"{name}_packed": RawTensor("I32", words.shape, words.tobytes()),
        f"{name}_scale": stored,
        f"{name}_shape": RawTensor("I64", (2,), np.array(shape, "<i8").tobytes()),
    }
    return tensors, bfloat16_tensor(values)


QUANTISATION = {
    "fp8": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "int4": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": True},
            }
        },
    },
}


def write_models(directory: Path, form: str) -> tuple[str, str]:
    """A quantised llama and its bfloat16 twin."""
    shapes = {f"self_attn.{name}_proj": (HIDDEN, HIDDEN) for name in "qkvo"}
    shapes |= {"mlp.gate_proj": (INTERMEDIATE, HIDDEN), "mlp.up_proj": (INTERMEDIATE, HIDDEN)}
    shapes["mlp.down_proj"] = (HIDDEN, INTERMEDIATE)
    rng = np.random.default_rng(0)
    ones = bfloat16_tensor(np.ones(HIDDEN, np.float32))
    both = {
        "model.embed_tokens.weight": bfloat16_tensor(rng.standard_normal((VOCAB, HIDDEN)).astype(np.float32)),
        "lm_head.weight": bfloat16_tensor(rng.standard_normal((VOCAB, HIDDEN)).astype(np.float32) * 0.02),
        "model.norm.weight": ones,
    }
    quantised, plain = dict(both), dict(both)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name in ("input_layernorm.weight", "post_attention_layernorm.weight"):
            quantised[prefix + name] = plain[prefix + name] = ones
        for index, (matrix, shape) in enumerate(shapes.items()):
            name = f"{prefix}{matrix}.weight"
            tensors, plain[name] = quantise(form, name, shape, 100 * layer + index)
            quantised |= tensors
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
    for name, tensors, extra in [
        ("plain", plain, {}),
        ("quantised", quantised, {"quantization_config": QUANTISATION[form]}),
    ]:
        (directory / name).mkdir()
        (directory / name / "config.json").write_text(json.dumps({**config, **extra}))
        save_safetensors(directory / name / "model.safetensors", tensors)
    return str(directory / "plain"), str(directory / "quantised")


def measure_model(form: str, threads: int, repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        paths = write_models(Path(directory), form)
        engines = [make_engine(path, num_threads=threads, max_model_len=256) for path in paths]
    seconds: list[list[float]] = [[], []]
    for _ in range(repeats):
        ids = []
        for engine, times in zip(engines, seconds, strict=True):
            start = time.process_time()
            ids.append(run_request(engine, PROMPT, make_params(NUM_TOKENS))[0])
            times.append(time.process_time() - start)
        if ids[0] != ids[1]:
            raise SystemExit(f"{form}: ids differ")
    plain, quantised = (median(times) for times in seconds)
    return {"tokens_per_cpu_second": NUM_TOKENS / quantised, "speed_up": plain / quantised, "equal_ids": True}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=0, help="0 = physical cores")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", help="a name in bench/results")
    args = parser.parse_args()
    result = {
        "provenance": provenance(),
        "threads": args.threads,
        "linear": measure_streams(args.threads, args.repeats),
        "nanoseconds_of_32_cached_weights": measure_cached(_testing.instruction_sets()[0]),
        "decode": {form: measure_model(form, args.threads, args.repeats) for form in QUANTISATION},
    }
    print(json.dumps(result, indent=1))
    if args.output:
        write_result(args.output, result)


if __name__ == "__main__":
    main()
