"""What every family of targets costs on this CPU, as ratios taken in one run (medians of alternating measurements).

    python bench/families.py [--threads N] [--repeats N] [--family NAME ...] [--output NAME.json]

Checkpoints are random, made on the fly from a seed: 8 layers of 512 channels, the attention and the experts of the
family, 30 to 80 million parameters in bfloat16, more than fits a cache. Times are processor time per thread, and what
the machine can do is the best of several tries: both bear what else runs, above all with one thread. Figures:

- read_fraction: bytes that a plain decode step reads per second (weights without the embedding, of experts the chosen
  ones, the cache), over those of a plain read loop
- decode_4, decode_8: a step of 4 or 8 requests over a step of one
- verify_4, verify_8: target time of a step that verifies 3 or 7 drafts over a plain step
- prefill_fraction: useful multiply-adds of a 512-token prefill per second, over the peak of this processor
- latent_bytes_plain, latent_bytes_of_8_rows: of the latent cache, read by a plain step and by one of 8 rows;
  latent_read_by_8_rows: over the size of its entries
- experts_bytes_plain, experts_bytes_of_8_rows: of weights of experts; experts_read_by_8_rows: over those of all experts
- identical: the ids with speculation are those without
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from common import alternate, make_engine, make_params, provenance, write_result

from eagle31rt import _core, _testing

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support.checkpoints import DraftSpec, TinyCheckpoint, write_draft
from support.families import FAMILIES, write_family

CONTEXT = 256
NUM_TOKENS = 16
PREFILL = 512
MAX_DRAFTS = 7
ELEMENT = 2  # bytes
COMMON: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 8192,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 4, "moe_intermediate_size": 256}
# Beside COMMON.
SIZES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 128},
    "qwen3_moe": {**EXPERTS, "num_experts": 16},
    "gpt_oss": {"num_experts_per_tok": 4, "intermediate_size": 256, "num_local_experts": 16, "sliding_window": 128}
    | {"layer_types": ["sliding_attention", "full_attention"] * 4},
    "deepseek_v3": {**EXPERTS, "n_routed_experts": 16, "num_attention_heads": 16, "num_key_value_heads": 16}
    | {"head_dim": None, "q_lora_rank": 256, "kv_lora_rank": 512}
    | {"qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 64},
    "gemma3_text": {
        "query_pre_attn_scalar": 64,
        "sliding_window": 128,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"] + ["sliding_attention"] * 2,
    },
}


def write_pair(folder: Path, name: str) -> tuple[TinyCheckpoint, str]:
    family = FAMILIES[name]
    sized = replace(family, config={**family.config, **COMMON, **SIZES.get(name, {})}, shapes=({},))
    target = write_family(folder / "target", sized, seed=1)
    return target, str(write_draft(folder / "draft", target, DraftSpec(intermediate_size=512), seed=2).directory)


def prompt_of(length: int, seed: int) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(3, COMMON["vocab_size"], length).tolist()
    return ids


def run_batch(engine: _core.Engine, batch: int, drafts: int) -> tuple[list[list[int]], list[dict[str, int]]]:
    """Ids of each request, and the profiles of the steps in which all of them decode at full width."""
    params = make_params(NUM_TOKENS, num_speculative_tokens=drafts)
    for request in range(batch):
        engine.add_request(request, prompt_of(CONTEXT, request), params)
    ids: list[list[int]] = [[] for _ in range(batch)]
    steps: list[dict[str, int]] = []
    engine.profile()
    while engine.has_unfinished_requests():
        full = bool(ids[-1]) and all(len(i) < NUM_TOKENS - drafts for i in ids)
        start = time.process_time_ns()
        outputs = engine.step()
        cpu = time.process_time_ns() - start
        for output in outputs:
            ids[output.request_id] += output.new_token_ids
        profile = engine.profile()
        if full:
            steps.append({**profile, "cpu": cpu})
    return ids, steps


def layer_tensors(target: TinyCheckpoint) -> dict[str, int]:
    """Elements of every matrix of the layers, by name."""
    return {name: w.size for name, w in target.weights.items() if name.startswith("layers.") and w.ndim > 1}


def expert_elements(target: TinyCheckpoint) -> int:
    experts = (n for n in layer_tensors(target) if ".experts." in n and not n.endswith("bias"))
    return sum(target.weights[name].size for name in experts)


def chosen_share(config: dict[str, Any]) -> float:
    """Of all experts those that one row chooses."""
    keys = ("num_experts", "num_local_experts", "n_routed_experts")
    count = next((config[key] for key in keys if key in config), 0)
    return float(config["num_experts_per_tok"] / count) if count else 0.0


def layer_widths(config: dict[str, Any]) -> list[int]:
    """Positions that a row of each layer sees at most."""
    kinds = config.get("layer_types") or ["sliding_attention"] * config["num_hidden_layers"]
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    everything = int(config["max_position_embeddings"])
    return [window or everything if kind == "sliding_attention" else everything for kind in kinds]


def prefill_multiply_adds(target: TinyCheckpoint) -> float:
    config, heads = target.config, target.config["num_attention_heads"]
    experts = expert_elements(target)
    active = sum(layer_tensors(target).values()) - experts + experts * chosen_share(config)
    if rank := config.get("kv_lora_rank"):  # absorbed
        width = heads * (2 * rank + config["qk_rope_head_dim"])
    else:
        width = 2 * heads * config["head_dim"]
    head = config["vocab_size"] * config["hidden_size"]
    seen = sum(min(row + 1, most) for most in layer_widths(config) for row in range(PREFILL))
    return float(PREFILL * active + width * seen + head)


def cache_bytes(config: dict[str, Any], entries: int) -> int:
    """Of the entries that a row at the end of so many sees."""
    if rank := config.get("kv_lora_rank"):
        width = rank + config["qk_rope_head_dim"]
    else:
        width = 2 * config["num_key_value_heads"] * config["head_dim"]
    return int(ELEMENT * width * sum(min(entries, most) for most in layer_widths(config)))


def measure(name: str, threads: int, repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        target, draft = write_pair(Path(folder), name)
        options = {"max_model_len": 1024, "max_num_seqs": 8, "num_threads": threads, "profile": True}
        engine = make_engine(
            target.path, draft, num_speculative_tokens=MAX_DRAFTS, kv_cache_memory_bytes=1 << 28, **options
        )
        chunks = [CONTEXT, 1, 1 + MAX_DRAFTS]
        _, plain_bytes, verify_bytes = _testing.bytes_of_chunks(
            target.path, prompt_of(sum(chunks), 0), chunks, num_threads=threads
        )
        prefills = iter(range(1000, 9999))

        def step_time(batch: int, drafts: int) -> float:
            steps = run_batch(engine, batch, drafts)[1]
            return median(step["cpu"] * (1 - step["draft"] / step["step"]) for step in steps) * 1e-9 / threads

        def prefill_time() -> float:
            engine.add_request(0, prompt_of(PREFILL, next(prefills)), make_params(1))
            start = time.process_time_ns()
            engine.step()
            return (time.process_time_ns() - start) * 1e-9 / threads

        weight_bytes = int(engine.info["weight_bytes"])  # type: ignore[call-overload]
        identical = all(run_batch(engine, n, 0)[0] == run_batch(engine, n, MAX_DRAFTS)[0] for n in (1, 4))
        medians = alternate(
            repeats,
            {
                "bandwidth": lambda: max(_testing.read_bandwidth(weight_bytes, threads) for _ in range(3)),
                "peak": lambda: max(_testing.fma_peak(threads, runs=1) for _ in range(9)),
                "plain": lambda: step_time(1, 0),
                "decode_4": lambda: step_time(4, 0),
                "decode_8": lambda: step_time(8, 0),
                "verify_4": lambda: step_time(1, 3),
                "verify_8": lambda: step_time(1, MAX_DRAFTS),
                "prefill": prefill_time,
            },
        )
    return figures_of(target, medians, weight_bytes, plain_bytes, verify_bytes) | {"identical": identical}


def figures_of(
    target: TinyCheckpoint,
    medians: dict[str, float],
    weight_bytes: int,
    plain_bytes: dict[str, int],
    verify_bytes: dict[str, int],
) -> dict[str, Any]:
    config = target.config
    all_experts = ELEMENT * expert_elements(target)
    embedding = ELEMENT * config["vocab_size"] * config["hidden_size"]
    read = weight_bytes - embedding - all_experts + plain_bytes["experts"] + cache_bytes(config, CONTEXT)
    figures: dict[str, Any] = {
        "parameters": sum(int(w.size) for w in target.weights.values()),
        "read_fraction": read / medians["plain"] / medians["bandwidth"],
        **{name: medians[name] / medians["plain"] for name in ("decode_4", "decode_8", "verify_4", "verify_8")},
        "prefill_fraction": prefill_multiply_adds(target) / medians["prefill"] / medians["peak"],
    }
    for kind, whole in (("latent", cache_bytes(config, CONTEXT + 2 + MAX_DRAFTS)), ("experts", all_experts)):
        if plain_bytes[kind]:
            figures |= {f"{kind}_bytes_plain": plain_bytes[kind], f"{kind}_bytes_of_8_rows": verify_bytes[kind]}
            figures[f"{kind}_read_by_8_rows"] = verify_bytes[kind] / whole
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", default="families.json")
    options = parser.parse_args()
    families = {}
    for name in options.family:
        families[name] = {**measure(name, options.threads, options.repeats), "load_average": os.getloadavg()[0]}
        print(name, json.dumps(families[name], indent=1), flush=True)
    result = {"provenance": provenance(), "threads": options.threads, "families": families}
    print("written:", write_result(options.output, result))


if __name__ == "__main__":
    main()
