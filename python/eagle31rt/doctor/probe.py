"""`eagle31rt check --probe`: how many drafts stand, position by position, and what is likely wrong if few do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from eagle31rt.llm import LLM, PromptInput
from eagle31rt.outputs import RequestMetrics, RequestOutput
from eagle31rt.sampling_params import SamplingParams

PROMPTS: tuple[str, ...] = (
    "Write a Python function that returns the n-th Fibonacci number.",
    "A farmer has 12 cows and buys 3 more every week. How many cows does he have after 5 weeks?",
    "What is photosynthesis? Answer in a few sentences.",
    "Translate into French: The library opens at nine o'clock on Mondays.",
    "Summarise the plot of Romeo and Juliet in three sentences.",
    "List five countries in Africa and their capitals.",
    "Explain the difference between TCP and UDP to a beginner.",
    "Write a short poem about the sea.",
)

# Of a draft that gets to the position. Position 0 of a trained head: about 0.45 for a hard pair, 0.10 with its layers
# off by one (vLLM issue 43671), 0.01 with other layers (vLLM issue 50170). Published mean acceptance lengths of 2.0 to
# 3.2 with three drafts (vLLM, SGLang and SpecBundle tables) are 0.55 to 0.85 at every position.
EXPECTED = (0.40, 0.85)
BROKEN = 0.25  # below at position 0 something is wrong; from here to 0.40 a head may just be weak
_STEEP = 0.6  # a trained head loses some hundredths from one position to the next, never two fifths
_NEAR_CHANCE = 2.0  # times the chance level
_MIN_DRAFTS = 30  # below, a rate says nothing: its standard error is above 0.09
_MAX_BATCH = 32  # prompts at a time: more would only take memory
_BETTER = 1.15  # an alternative must lengthen the mean by so much to be named


@dataclass(frozen=True)
class Settings:
    """How the engine reads the draft."""

    capture_layers: tuple[int, ...]
    feedback: str  # pre | post

    def keys(self) -> dict[str, Any]:
        return {"capture_layers": list(self.capture_layers), "feedback": self.feedback}


@dataclass(frozen=True)
class Fault:
    """A likely cause. `kind`: layer-ids, feedback, embedding, switches, weak (head or prompts) or probe (too short)."""

    kind: str
    message: str


@dataclass(frozen=True)
class Alternative:
    """Another reading of the draft and what it measured."""

    capture_layers: list[int]
    feedback: str
    acceptance_length: float
    conditional_per_position: list[float | None]


@dataclass
class ProbeResult:
    """`acceptance_per_position` counts as vLLM does, of all drafts; `conditional_per_position` of those that got there
    (None: none did). `chance`: how often a draft is right that always says the commonest token of the answers."""

    num_prompts: int
    num_output_tokens: int
    num_speculative_tokens: int
    num_drafts: int
    acceptance_length: float
    acceptance_per_position: list[float]
    conditional_per_position: list[float | None]
    chance: float
    expected: list[float] = field(default_factory=lambda: list(EXPECTED))
    faults: list[Fault] = field(default_factory=list)
    alternatives: list[Alternative] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def conditional_rates(metrics: RequestMetrics) -> list[float | None]:
    """Accepted at a position over accepted at the one before."""
    reached = [metrics.num_drafts, *metrics.num_accepted_tokens_per_position]
    return [accepted / before if before > 0 else None for before, accepted in pairwise(reached)]


def chance_level(outputs: Sequence[Sequence[int]]) -> float:
    counts = Counter(token for output in outputs for token in output)
    return max(counts.values()) / counts.total() if counts else 0.0


def find_faults(result: ProbeResult, feedback: str) -> list[Fault]:
    """Likely causes of low acceptance, the likeliest first; none for a healthy draft. `feedback`: the one in use."""
    first, *others = result.conditional_per_position or [None]
    if first is None or result.num_drafts < _MIN_DRAFTS:
        message = f"only {result.num_drafts} drafts were verified: give more prompts or longer answers"
        return [Fault("probe", message)]
    faults = _faults_of_the_first(first, result.chance)
    reached = result.num_drafts * first
    second = next(iter(others), None)
    if second is not None and reached >= _MIN_DRAFTS and second < _STEEP * first:
        other = "post" if feedback == "pre" else "pre"
        message = (
            f"acceptance falls from {first:.2f} at position 0 to {second:.2f} at position 1: the state fed back is "
            f"likely not that of training; try feedback={other}"
        )
        faults.append(Fault("feedback", message))
    return faults


def _faults_of_the_first(first: float, chance: float) -> list[Fault]:
    if first >= EXPECTED[0]:
        return []
    if first >= BROKEN:
        weak = "a small head, little training, or prompts unlike its data (chat template, language) will do that"
        return [Fault("weak", f"position 0 is at {first:.2f}, below the usual {EXPECTED[0]:.2f}: {weak}")]
    layers = "the captured layers are likely not those of training: other ids, or the other numbering (one off)"
    if first > _NEAR_CHANCE * chance:
        other = "a norm switch (fc_norm, norm_before_fc, norm_before_residual) or rope is likely not that of training"
        return [Fault("layer-ids", layers), Fault("switches", other)]
    other = "embedding, head or d2t likely belong to another model: position 0 is no better than chance"
    return [Fault("layer-ids", layers), Fault("embedding", other)]


def alternatives(settings: Settings, faults: Sequence[Fault], num_layers: int) -> list[Settings]:
    """Other readings that would explain the faults: layers one off, the other feedback."""
    kinds = {fault.kind for fault in faults}
    result = []
    if "layer-ids" in kinds:
        for shift in (1, -1):
            layers = tuple(layer + shift for layer in settings.capture_layers)
            if layers and layers[0] >= 0 and layers[-1] <= num_layers:
                result.append(Settings(layers, settings.feedback))
    if "feedback" in kinds:
        result.append(Settings(settings.capture_layers, "post" if settings.feedback == "pre" else "pre"))
    return result


def run_probe(
    target: Path,
    draft: Path,
    settings: Settings,
    num_layers: int,
    prompts: Sequence[PromptInput] = PROMPTS,
    *,
    num_speculative_tokens: int = 3,
    max_tokens: int = 64,
    on_start: Callable[[Settings], None] = lambda settings: None,
    **engine: Any,
) -> ProbeResult:
    """Answers the prompts greedily; if few drafts stand, again with the readings that would explain it.

    `engine`: further arguments of LLM. `on_start` is called before each load. Raises what LLM and its calls raise.
    """

    def measure(one: Settings) -> ProbeResult:
        on_start(one)
        length = {"num_speculative_tokens": num_speculative_tokens}
        speculation = {"method": "eagle3", "model": str(draft), **length, **one.keys()}
        llm = LLM(target, speculative_config=speculation, max_num_seqs=min(len(prompts), _MAX_BATCH), **engine)
        return _result(_answer(llm, prompts, max_tokens), num_speculative_tokens)

    result = measure(settings)
    result.faults = find_faults(result, settings.feedback)
    for other in alternatives(settings, result.faults, num_layers):
        measured = measure(other)
        rates = measured.conditional_per_position
        reading = list(other.capture_layers), other.feedback
        result.alternatives.append(Alternative(*reading, measured.acceptance_length, rates))
    result.faults = judge(result, settings)
    return result


def judge(result: ProbeResult, settings: Settings) -> list[Fault]:
    """The faults, after the alternatives were measured: what helps comes first, what does not is no likely fault."""
    length = result.acceptance_length
    tried = {
        "layer-ids": [one for one in result.alternatives if one.capture_layers != list(settings.capture_layers)],
        "feedback": [one for one in result.alternatives if one.feedback != settings.feedback],
    }
    confirmed = []
    for kind, measured in tried.items():
        if not measured:
            continue
        best = max(measured, key=lambda one: one.acceptance_length)
        option = f"capture_layers={best.capture_layers}" if kind == "layer-ids" else f"feedback={best.feedback}"
        figures = f"the mean acceptance length is {best.acceptance_length:.2f} instead of {length:.2f}"
        if best.acceptance_length > _BETTER * length:
            confirmed.append(Fault(kind, f"measured: with {option} {figures}; pass {option}"))
    return confirmed + [fault for fault in result.faults if not tried.get(fault.kind)]


def _answer(llm: LLM, prompts: Sequence[PromptInput], max_tokens: int) -> list[RequestOutput]:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    # Drafts are trained on conversations.
    if len(texts) == len(prompts) and llm.get_tokenizer().has_chat_template:
        return llm.chat([[{"role": "user", "content": text}] for text in texts], params, use_tqdm=False)
    return llm.generate(list(prompts), params, use_tqdm=False)


def _result(outputs: Sequence[RequestOutput], num_speculative_tokens: int) -> ProbeResult:
    metrics = RequestMetrics.total(output.metrics for output in outputs)
    ids = [output.outputs[0].token_ids for output in outputs]
    return ProbeResult(
        num_prompts=len(outputs),
        num_output_tokens=sum(map(len, ids)),
        num_speculative_tokens=num_speculative_tokens,
        num_drafts=metrics.num_drafts,
        acceptance_length=metrics.acceptance_length,
        acceptance_per_position=metrics.acceptance_per_position,
        conditional_per_position=conditional_rates(metrics),
        chance=chance_level(ids),
    )
