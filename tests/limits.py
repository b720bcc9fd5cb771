"""Writes docs/limits.md from the checks themselves: each refusal is called, and its message is what the table shows.

python tests/limits.py           # writes docs/limits.md
python tests/limits.py --check   # fails if it would change
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.generated_document import write_or_check
from support.successor import write_successor_target
from support.tiny_tokenizer import write_tiny_tokenizer

from eagle31rt import LLM, SamplingParams, grammars, sampling_checks, structured_outputs
from eagle31rt.config import CHOICES, UNSUPPORTED_KEYS, SpeculativeConfig
from eagle31rt.errors import UnsupportedError
from eagle31rt.inputs import UNSUPPORTED_PROMPT_KEYS
from eagle31rt.sampling_params import MAX_CHAIN_TOKENS, MAX_SAMPLES, MAX_SPECULATIVE_TOKENS, NEUTRAL_VALUES
from eagle31rt.server.errors import ApiError
from eagle31rt.server.protocol import UNSUPPORTED_FIELDS, CompletionRequest, parse_request
from eagle31rt.structured_outputs import StructuredOutputsParams
from eagle31rt.vllm_arguments import CALL_ARGUMENTS, ENGINE_ARGUMENTS, SERVER_ARGUMENTS, refuse_other_arguments

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "limits.md"

# What each asks for in the table, where `True` or 2 would not say much.
_EXAMPLES: dict[str, Any] = {
    "quantization": "fp8",
    "load_format": "gguf",
    "config_format": "mistral",
    "hf_overrides": {"rope_theta": 1e6},
    "tokenizer_mode": "mistral",
    "model_impl": "transformers",
    "distributed_executor_backend": "ray",
    "limit_mm_per_prompt": {"image": 1},
    "task": "embed",
    "runner": "pooling",
    "convert": "embed",
    "reasoning_parser": "deepseek_r1",
    "tool_call_parser": "hermes",
    "guided_decoding_backend": "xgrammar",
    "logprobs_mode": "processed_logprobs",
    "scheduling_policy": "lifo",
    "preemption_mode": "swap",
    "compilation_config": 3,
    "generation_config": "DIR",
    "attention_backend": "FLASHINFER",
    "best_of": 2,
    "guided_decoding": {"regex": "a"},
    "logprob_token_ids": [1],
    "prompt_logprob_token_ids": [1],
    "trace_decode_token_ids": [1],
    "prompt_logprob_start": 1,
    "stream_interval": 2,
    "thinking_token_budget": 100,
    "repetition_detection": {"min_count": 3},
    "extra_args": {"a": 1},
    "chat_template_content_format": "openai",
    "multi_modal_data": {"image": "..."},
}


@dataclass(frozen=True)
class Refusal:
    """`what` as a user writes it; `call` must raise UnsupportedError."""

    what: str
    call: Callable[[], object]
    place: str = ""  # of this machine, which the message names

    def message(self) -> str:
        try:
            self.call()
        except UnsupportedError as error:
            return " ".join(str(error).replace(self.place, "").split())
        raise AssertionError(f"{self.what} is not refused")


_SWITCHES = ("continue_", "enable_", "disable_", "use_", "calculate_", "skip_", "flat_", "async_")


def _example(name: str, neutral: tuple[object, ...]) -> Any:
    """A value that asks for something."""
    if name in _EXAMPLES:
        return _EXAMPLES[name]
    if True in neutral and 1 not in [value for value in neutral if value is not True]:
        return False
    if any(type(value) is int for value in neutral):
        return 2
    return True if name.startswith(_SWITCHES) else "..."


def _engine_arguments(directory: Path) -> Iterator[Refusal]:
    for name in ("fp8", "fp8_e5m2"):
        yield Refusal(f"kv_cache_dtype={name!r}", lambda name=name: LLM(directory, kv_cache_dtype=name))
    for name, (neutral, _) in ENGINE_ARGUMENTS.items():
        if {True, False} <= {value for value in neutral if isinstance(value, bool)}:
            continue  # every value is taken: there is nothing to refuse
        value = _example(name, neutral)
        yield Refusal(f"{name}={value!r}", lambda name=name, value=value: LLM(directory, **{name: value}))


def _request_fields() -> Iterator[Refusal]:
    for name, neutral in NEUTRAL_VALUES.items():
        value = _example(name, neutral)
        yield Refusal(f"{name}={value!r}", lambda name=name, value=value: SamplingParams(**{name: value}))
    for name, other in (("disable_additional_properties", True), ("disable_fallback", True), ("structural_tag", "{}")):
        yield Refusal(
            f"structured_outputs: {name}={other!r}",
            lambda name=name, other=other: (
                StructuredOutputsParams(**{"json": {}, name: other})
                if name != "structural_tag"
                else StructuredOutputsParams(structural_tag="{}")
            ),
        )


def _speculation() -> Iterator[Refusal]:
    base = {"method": "eagle3", "model": "DIR", "num_speculative_tokens": 3}
    for key in sorted(UNSUPPORTED_KEYS):
        yield Refusal(f"{key}", lambda key=key: SpeculativeConfig.parse({**base, key: 1}))
    for key, (_, later) in CHOICES.items():
        for value in later:
            yield Refusal(
                f"{key}={value!r}", lambda key=key, value=value: SpeculativeConfig.parse({**base, key: value})
            )


def _grammars(llm: LLM) -> Iterator[Refusal]:
    for operator, rule in (("&", "A: /a/ & /b/"), ("~", "A: ~/a/"), ("%json", "A: %json {}")):
        params = SamplingParams(structured_outputs={"grammar": f"start: A\n{rule}"})
        yield Refusal(f"structured_outputs: grammar with {operator}", lambda params=params: llm.generate("a", params))


def _calls(llm: LLM) -> Iterator[Refusal]:
    user = [{"role": "user", "content": "a"}]
    for name, (neutral, _) in CALL_ARGUMENTS.items():
        value = _example(name, neutral)
        yield Refusal(
            f"{name}={value!r} in generate", lambda name=name, value=value: llm.generate("a", **{name: value})
        )
        yield Refusal(f"{name}={value!r} in chat", lambda name=name, value=value: llm.chat(user, **{name: value}))
    yield Refusal("beam_search(...)", lambda: llm.beam_search("a"))
    for key in UNSUPPORTED_PROMPT_KEYS:
        value = _example(key, (None,))
        yield Refusal(
            f'prompt {{"{key}": ...}}', lambda key=key, value=value: llm.generate({"prompt": "a", key: value})
        )
    for kind in ("image_url", "input_audio", "video_url"):
        content = [{"role": "user", "content": [{"type": kind}]}]
        yield Refusal(f'message content of type "{kind}"', lambda content=content: llm.chat(content))


def _http_fields() -> Iterator[Refusal]:
    def refused(field: str, value: Any) -> None:
        try:
            parse_request(CompletionRequest, {field: value})
        except ApiError as error:
            raise UnsupportedError(error.message) from error

    for name, neutral in UNSUPPORTED_FIELDS.items():
        if {True, False} <= {value for value in neutral if isinstance(value, bool)}:
            continue  # every value is taken
        value = _example(name, neutral)
        yield Refusal(f"{name}={json.dumps(value)}", lambda name=name, value=value: refused(name, value))


def _serve_options() -> Iterator[Refusal]:
    for name, (neutral, _) in SERVER_ARGUMENTS.items():
        if {True, False} <= {value for value in neutral if isinstance(value, bool)}:
            continue  # every value is taken
        value = _example(name, neutral)
        yield Refusal(
            f"--{name.replace('_', '-')} {value}",
            lambda name=name, value=value: refuse_other_arguments({name: value}, SERVER_ARGUMENTS),
        )


def _models(folder: Path, target: Path) -> Iterator[Refusal]:
    """Configs that are read and refused; the weights do not matter."""
    config = json.loads((target / "config.json").read_text())
    experts = {"head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    for title, change in (
        ("mixture of experts in some layers only", {"model_type": "qwen3_moe", "decoder_sparse_step": 2, **experts}),
        ("another architecture", {"model_type": "mamba", "architectures": ["MambaForCausalLM"]}),
        ("AWQ weights", {"quantization_config": {"quant_method": "awq", "bits": 4}}),
        ("GPTQ weights", {"quantization_config": {"quant_method": "gptq", "bits": 4}}),
        ("bitsandbytes weights", {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}),
        ("NVFP4 weights", {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}),
        ("FP8 with one scale a tensor", {"quantization_config": {"quant_method": "fp8"}}),
    ):
        directory = folder / title.split()[0]
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text(json.dumps({**config, **change}))
        yield Refusal(title, lambda directory=directory: LLM(directory, skip_tokenizer_init=True), f"{folder}/")


@contextmanager
def sections() -> Iterator[dict[str, list[Refusal]]]:
    """All refusals, by the document's headings."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target = write_successor_target(folder / "target").directory
        write_tiny_tokenizer(target)
        llm = LLM(target, num_threads=1, kv_cache_memory_bytes=1 << 20)
        yield {
            "Models": list(_models(folder, target)),
            "Arguments of LLM and AsyncLLM": list(_engine_arguments(target)),
            "Options of eagle31rt serve, beside those": list(_serve_options()),
            "Keys of speculative_config": list(_speculation()),
            "Fields of SamplingParams": [*_request_fields(), *_grammars(llm)],
            "Calls and prompts": list(_calls(llm)),
            "Fields of HTTP requests": list(_http_fields()),
        }


def _numbers() -> list[tuple[str, str]]:
    checks, structured = sampling_checks, structured_outputs
    return [
        ("num_speculative_tokens", f"{MAX_CHAIN_TOKENS}; of draft trees {MAX_SPECULATIVE_TOKENS}"),
        ("n", f"{MAX_SAMPLES}"),
        ("logprobs, prompt_logprobs", f"the engine's max_logprobs: 20 unless given, at most {checks.MAX_LOGPROBS}"),
        ("stop", f"{checks.MAX_STOP_STRINGS} strings of {checks.MAX_TEXT_BYTES} bytes"),
        ("stop_token_ids", "1024"),
        ("bad_words", f"{checks.MAX_BAD_WORDS} words of {checks.MAX_TEXT_BYTES} bytes and 64 tokens"),
        ("logit_bias", f"-{checks.MAX_BIAS:g} to {checks.MAX_BIAS:g}"),
        (
            "structured_outputs.json",
            f"{structured.MAX_JSON_BYTES} bytes, each pattern {structured.MAX_REGEX_BYTES}; with allOf "
            f"{structured.MAX_INTERSECTED_PATTERNS} patterns",
        ),
        ("structured_outputs.regex", f"{structured.MAX_REGEX_BYTES} bytes"),
        ("structured_outputs.grammar", f"{structured.MAX_GRAMMAR_BYTES} bytes"),
        ("structured_outputs.choice", f"{structured.MAX_CHOICES} texts, {structured.MAX_CHOICE_BYTES} bytes together"),
        ("compiling structured outputs", f"{grammars.COMPILE_SECONDS:g} s"),
    ]


def _table(header: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    lines = [header, ("---", "---"), *rows]
    return "\n".join(f"| {left} | {right} |" for left, right in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def render() -> str:
    """The whole document."""
    parts = [
        "# What is refused",
        "",
        "Generated by `python tests/limits.py` from the checks themselves. Everything here raises "
        "`eagle31rt.errors.UnsupportedError` (the server: status 400) with the message shown, before anything runs. "
        "vLLM's arguments at values that ask for nothing are accepted.",
        "",
    ]
    with sections() as all_sections:
        for title, refusals in all_sections.items():
            rows = [(f"`{_cell(one.what)}`", _cell(one.message())) for one in refusals]
            parts += [f"## {title}", "", _table(("asked for", "answer"), rows), ""]
    parts += ["## Numbers", "", "More than this raises `InvalidArgumentError` naming the field.", ""]
    parts += [_table(("field", "at most"), _numbers())]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    write_or_check(DOCUMENT, render(), Path(__file__).name, __doc__)
