"""`eagle31rt demo`: three prompts plain and speculative, with the text streaming, and a table of the difference."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from rich.console import Console
from rich.table import Table
from rich.text import Text

from eagle31rt.demo_model import DemoPair
from eagle31rt.llm import LLM
from eagle31rt.outputs import RequestMetrics, StreamPiece
from eagle31rt.sampling_params import SamplingParams

PROMPTS = (
    "Write a Python function that returns the n-th Fibonacci number.",
    "A farmer has 12 cows and buys 3 more every week. How many cows does he have after 5 weeks?",
    "What is photosynthesis? Answer in a few sentences.",
)
_MAX_MODEL_LEN = 4096
_WARM_UP_TOKENS = 8


@dataclass
class DemoResult:
    """What `demo --json` prints; the field names are its keys. Rates count decoding only, not the prompt."""

    identical: bool
    speed_up: float
    acceptance_length: float
    acceptance_per_position: list[float]
    plain_tokens_per_second: float
    speculative_tokens_per_second: float
    num_speculative_tokens: int

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass
class _Measured:
    """Totals of one mode over the prompts."""

    token_ids: list[list[int]] = field(default_factory=list)
    metrics: list[RequestMetrics] = field(default_factory=list)
    num_tokens: int = 0  # decoded in `seconds`: those of the first piece came from the prompt's pass
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds if self.seconds > 0 else 0.0


def run_demo(
    pair: DemoPair, console: Console, *, num_speculative_tokens: int, max_tokens: int, num_threads: int | None
) -> DemoResult:
    """Streams to `console`, prints the table there and returns its figures."""
    plain = LLM(pair.target, max_model_len=_MAX_MODEL_LEN, max_num_seqs=1, num_threads=num_threads)
    speculation = {"method": "eagle3", "model": str(pair.draft), "num_speculative_tokens": num_speculative_tokens}
    speculative = LLM(
        pair.target,
        speculative_config={**speculation, "policy": "fixed"},
        max_model_len=_MAX_MODEL_LEN,
        max_num_seqs=1,
        num_threads=num_threads,
    )
    # First touches of weights and caches are not decoding speed.
    for llm in (plain, speculative):
        llm.chat(_conversation(PROMPTS[0]), SamplingParams(temperature=0.0, max_tokens=_WARM_UP_TOKENS), use_tqdm=False)
    measured = (_Measured(), _Measured())
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    for prompt in PROMPTS:  # the modes take turns, so that a slow spell of the machine hits both
        console.print(Text(f"\n> {prompt}", style="bold"))
        for label, llm, total in zip(("plain", "speculative"), (plain, speculative), measured, strict=True):
            console.print(Text(f"[{label}]", style="cyan"))
            _stream(llm.stream_chat(_conversation(prompt), params), console, total)
    result = _result(*measured, num_speculative_tokens)
    console.print()
    console.print(_table(result))
    return result


def _conversation(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def _stream(pieces: Iterator[StreamPiece], console: Console, total: _Measured) -> None:
    first = True
    started = time.perf_counter()
    for piece in pieces:
        if not first:
            total.seconds += time.perf_counter() - started
            total.num_tokens += len(piece.token_ids)
        first = False
        console.print(Text(piece.text), end="", soft_wrap=True)
        if piece.output is not None:
            total.token_ids.append(piece.output.outputs[0].token_ids)
            total.metrics.append(piece.output.metrics)
        started = time.perf_counter()  # printing is not decoding
    console.print()


def _result(plain: _Measured, speculative: _Measured, num_speculative_tokens: int) -> DemoResult:
    metrics = RequestMetrics.total(speculative.metrics)
    base = plain.tokens_per_second
    return DemoResult(
        identical=plain.token_ids == speculative.token_ids,
        speed_up=speculative.tokens_per_second / base if base > 0 else 0.0,
        acceptance_length=metrics.acceptance_length,
        acceptance_per_position=metrics.acceptance_per_position,
        plain_tokens_per_second=base,
        speculative_tokens_per_second=speculative.tokens_per_second,
        num_speculative_tokens=num_speculative_tokens,
    )


def _table(result: DemoResult) -> Table:
    table = Table(show_header=False)
    table.add_row("token ids identical", "yes" if result.identical else "NO")
    table.add_row("plain", f"{result.plain_tokens_per_second:.1f} tokens/s")
    table.add_row(
        f"speculative ({result.num_speculative_tokens} drafts)", f"{result.speculative_tokens_per_second:.1f} tokens/s"
    )
    table.add_row("speed-up", f"{result.speed_up:.2f}x")
    table.add_row("mean acceptance length", f"{result.acceptance_length:.2f}")
    rates = " ".join(f"{rate:.2f}" for rate in result.acceptance_per_position)
    table.add_row("acceptance per position", rates or "-")
    return table
