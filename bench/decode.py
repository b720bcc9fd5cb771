"""What decoding costs on this CPU, as ratios taken in one run (medians of alternating measurements).

    python bench/decode.py --model DIR --draft DIR [--with-transformers] [--threads N] [--output NAME.json]

`eagle31rt demo --paths` prints a model and a draft directory. Figures:

- read_fraction: bytes of weights and KV that a plain decode step reads per second, over those of a plain read loop
- rows_4, rows_8: target time of a step that verifies 4 or 8 rows, over a plain step
- prefill_fraction: multiply-adds of a 512-token prefill per second, over the peak of this processor
- other_fraction: share of a plain step that is neither weights, KV nor logits
- draft_step_fraction: drafting time per draft token (observing what was accepted included), over a plain step
- speed-up over Hugging Face transformers (float32 and bfloat16), batch 1
- extra_megabytes: peak memory of the process beyond weights and KV
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from statistics import median
from typing import Any

from common import alternate, make_engine, make_params, provenance, run_request, write_result

from eagle31rt import _core, _testing

PROMPT = list(range(1000, 1032))
NUM_TOKENS = 64
PREFILL = 512
MAX_DRAFTS = 7
TARGETS = {
    "read_fraction": (">=", 0.80),
    "rows_4": ("<=", 1.4),
    "rows_8": ("<=", 2.0),
    "prefill_fraction": (">=", 0.60),
    "other_fraction": ("<=", 0.05),
    "draft_step_fraction": ("<=", 0.10),
    "extra_megabytes": ("<=", 150.0),
    "speed_up_over_transformers_float32": (">=", 1.0),
    "speed_up_over_transformers_bfloat16": (">=", 1.0),
}


def decode_steps(engine: _core.Engine, drafts: int) -> list[dict[str, int]]:
    """Profiles of the decode steps of one request; only full-width steps count."""
    params = make_params(NUM_TOKENS, num_speculative_tokens=drafts)
    _, steps, _ = run_request(engine, PROMPT, params)
    return steps[1 : max(2, len(steps) - drafts - 1)]


def kv_bytes_per_token(config: dict[str, Any], bytes_per_value: int = 2) -> int:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return int(2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_dim * bytes_per_value)


def measure_steps(engine: _core.Engine, repeats: int, threads: int) -> dict[str, Any]:
    """Plain, 4-row and 8-row steps and the read loop in turn."""
    weight_bytes = int(engine.info["weight_bytes"])  # type: ignore[call-overload]
    last: dict[str, list[dict[str, int]]] = {}

    def target_time(drafts: int) -> float:
        steps = decode_steps(engine, drafts)
        last.setdefault(str(drafts), []).extend(steps)
        return median(step["step"] - step["draft"] for step in steps) * 1e-9

    medians = alternate(
        repeats,
        {
            "bandwidth": lambda: _testing.read_bandwidth(weight_bytes, threads),
            "rows_1": lambda: target_time(0),
            "rows_2": lambda: target_time(1),
            "rows_4": lambda: target_time(3),
            "rows_8": lambda: target_time(MAX_DRAFTS),
        },
    )
    medians["steps"] = last  # type: ignore[assignment]
    return medians


def prefill_multiply_adds(config: dict[str, Any], weight_bytes: int) -> float:
    """Useful multiply-adds of a prefill: every layer weight for every row, causal attention, one row of the head."""
    head = config["vocab_size"] * config["hidden_size"]
    layers = weight_bytes / 2 - head * (1 if config.get("tie_word_embeddings") else 2)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    width = config["num_attention_heads"] * head_dim
    attention = config["num_hidden_layers"] * PREFILL * (PREFILL + 1) / 2 * 2 * width
    return PREFILL * layers + attention + head


def measure_prefill(engine: _core.Engine, config: dict[str, Any], repeats: int, threads: int) -> dict[str, float]:
    prompt = [1000 + i for i in range(PREFILL)]
    params = make_params(1, num_speculative_tokens=0)

    def prefill_seconds() -> float:
        return run_request(engine, prompt, params)[1][0]["step"] * 1e-9

    prefill_seconds()
    medians = alternate(repeats, {"peak": lambda: _testing.fma_peak(threads), "seconds": prefill_seconds})
    weight_bytes = int(engine.info["weight_bytes"])  # type: ignore[call-overload]
    rate = prefill_multiply_adds(config, weight_bytes) / medians["seconds"]
    return {"prefill_fraction": rate / medians["peak"], "prefill_tokens_per_second": PREFILL / medians["seconds"]}


def breakdown(steps: list[dict[str, int]]) -> dict[str, float]:
    total = sum(step["step"] for step in steps)
    kinds = ("linear", "attention", "logits", "draft", "other")
    return {kind: sum(step[kind] for step in steps) / total for kind in kinds}


def measure_memory(model: str) -> float:
    """Peak resident megabytes beyond weights and touched KV, in a fresh process that loads, tokenises and generates."""
    code = (
        "import json\n"
        "from eagle31rt import LLM, SamplingParams\n"
        f"llm = LLM(model={model!r})\n"
        f"llm.generate(['Hello, world. ' * 8], SamplingParams(temperature=0.0, max_tokens={NUM_TOKENS}))\n"
        # Not ru_maxrss: it keeps the size that the parent had when it forked.
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "print(json.dumps([int(status['VmHWM'].split()[0]) * 1024, llm.info['weight_bytes']]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    peak, weights = json.loads(done.stdout.splitlines()[-1])
    with open(f"{model}/config.json") as file:
        kv = kv_bytes_per_token(json.load(file)) * (NUM_TOKENS + 64)
    return float(peak - weights - kv) / 1e6


def measure_transformers(engine: _core.Engine, model: str, repeats: int, threads: int) -> dict[str, float]:
    """Seconds per token of transformers' generate() (greedy, KV cache, the same prompt) over ours, in turn."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    ids = torch.tensor([PROMPT])
    measurements = {"ours": lambda: median(s["step"] for s in decode_steps(engine, 0)) * 1e-9}
    for name in ("float32", "bfloat16"):
        peer = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, name)).eval()

        def seconds_per_token(peer: Any = peer) -> float:
            def run(count: int) -> float:
                start = time.perf_counter()
                with torch.inference_mode():
                    peer.generate(
                        ids,
                        attention_mask=torch.ones_like(ids),
                        max_new_tokens=count,
                        min_new_tokens=count,
                        do_sample=False,
                    )
                return time.perf_counter() - start

            return (run(33) - run(1)) / 32  # prefill and set-up cancel

        seconds_per_token()
        measurements[name] = seconds_per_token
    medians = alternate(repeats, measurements)
    return {f"speed_up_over_transformers_{name}": medians[name] / medians["ours"] for name in ("float32", "bfloat16")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--threads", type=int, default=int(_core.cpu_info()["num_physical_cores"]))  # type: ignore[call-overload]
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--with-transformers", action="store_true")
    parser.add_argument("--output", default="decode.json")
    options = parser.parse_args()

    with open(f"{options.model}/config.json") as file:
        config = json.load(file)
    engine = make_engine(
        options.model,
        options.draft,
        num_speculative_tokens=MAX_DRAFTS,
        max_model_len=1024,
        max_num_seqs=1,
        num_threads=options.threads,
        profile=True,
    )
    decode_steps(engine, 0)
    steps = measure_steps(engine, options.repeats, options.threads)
    kv_bytes = kv_bytes_per_token(config) * (len(PROMPT) + NUM_TOKENS // 2)
    weight_bytes = int(engine.info["weight_bytes"])  # type: ignore[call-overload]
    plain = steps["steps"]["0"]
    plain_time = median(step["step"] for step in plain)
    figures: dict[str, Any] = {
        "read_fraction": (weight_bytes + kv_bytes) / steps["rows_1"] / steps["bandwidth"],
        **{name: steps[name] / steps["rows_1"] for name in ("rows_2", "rows_4", "rows_8")},
        "other_fraction": breakdown(plain)["other"],
        "draft_step_fraction": max(
            median(step["draft"] for step in steps["steps"][str(k)]) / k / plain_time for k in (1, 3, MAX_DRAFTS)
        ),
        "draft_step_fraction_by_num_speculative_tokens": {
            k: median(step["draft"] for step in steps["steps"][str(k)]) / k / plain_time for k in (1, 3, MAX_DRAFTS)
        },
        "breakdown_of_a_plain_step": breakdown(plain),
        "plain_tokens_per_second": 1e9 / plain_time,
        "read_loop_gigabytes_per_second": steps["bandwidth"] / 1e9,
        **measure_prefill(engine, config, options.repeats, options.threads),
        "extra_megabytes": measure_memory(options.model),
    }
    if options.with_transformers:
        figures |= measure_transformers(engine, options.model, max(3, options.repeats // 2), options.threads)
    met = {
        name: bool(figures[name] >= bound if sense == ">=" else figures[name] <= bound)
        for name, (sense, bound) in TARGETS.items()
        if name in figures
    }
    result = {"provenance": provenance(), "threads": options.threads, "figures": figures, "targets_met": met}
    print(json.dumps(result, indent=1))
    print("written:", write_result(options.output, result))


if __name__ == "__main__":
    main()
