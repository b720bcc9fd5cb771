"""The EAGLE-3 / EAGLE-3.1 draft against the float64 oracle: switches, shapes, spellings, and the accepted counts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import DraftSpec, TargetSpec, write_draft, write_target
from support.deepseek import DeepseekSizes
from support.engine import Request, make_engine, run_draft, serve
from support.logits_error import assert_as_good_as_float32
from support.oracle import Arithmetic, Target
from support.oracle_draft import Draft, Switches, draft_once, speculate
from support.successor import EOS, write_successor_draft, write_successor_target

TARGET = TargetSpec(num_layers=7)
NUM_STEPS = 5
NUM_TOKENS = 70  # more than one attention split of 64

# Kimi K2's but for the sizes: beta_fast and beta_slow are equal, so that frequencies are cut at one place.
_YARN = {
    "type": "yarn",
    "factor": 64.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 1.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_WINDOW = {"sliding_window": 9, "use_sliding_window": True}
_SWITCHES = {"fc_norm": True, "norm_output": True}


@dataclass(frozen=True)
class Case:
    draft: DraftSpec = field(default_factory=DraftSpec)
    target: TargetSpec = TARGET


CASES = {
    "eagle3": Case(),
    "eagle3.1": Case(DraftSpec(**_SWITCHES)),
    "fc_norm": Case(DraftSpec(fc_norm=True)),
    "norm_output": Case(DraftSpec(norm_output=True)),
    "norm_before_fc": Case(DraftSpec(norm_before_fc=True)),
    "norm_before_residual": Case(DraftSpec(norm_before_residual=True)),
    "speculators-3.1": Case(DraftSpec(norm_before_fc=True, norm_output=True, form="speculators")),
    "all-but-fc_norm": Case(DraftSpec(norm_before_fc=True, norm_output=True, norm_before_residual=True)),
    "one-state": Case(DraftSpec(num_captured=1, **_SWITCHES)),
    "four-states": Case(DraftSpec(num_captured=4, **_SWITCHES)),
    "embedding-captured": Case(DraftSpec(num_captured=4, capture_layers=(0, 1, 5, 7))),
    "wide": Case(DraftSpec(hidden_size=48, num_heads=6, num_kv_heads=3, **_SWITCHES)),
    "narrow": Case(DraftSpec(hidden_size=24, num_heads=3, num_kv_heads=1, draft_vocab_size=50)),
    "head-dim": Case(DraftSpec(head_dim=24, num_heads=3, num_kv_heads=3)),
    "small-vocabulary": Case(DraftSpec(draft_vocab_size=41, **_SWITCHES)),
    "own-embedding": Case(DraftSpec(own_embedding=True)),
    "own-head": Case(DraftSpec(own_head=True)),
    "tied-target": Case(target=replace(TARGET, tie_word_embeddings=True)),
    "biases": Case(DraftSpec(attention_bias=True, mlp_bias=True, fc_bias=True)),
    "epsilon-theta": Case(DraftSpec(rms_norm_eps=0.05, rope_theta=90.0, **_SWITCHES)),
    "rope": Case(DraftSpec(rope_scaling={"rope_type": "linear", "factor": 3.0})),
    "ids-of-outputs": Case(DraftSpec(id_convention="layer_output", id_places=("eagle_config",))),
    "ids-default": Case(DraftSpec(id_convention="none")),
    "layers-spelling": Case(DraftSpec(spelling="layers")),
    "model-spelling": Case(DraftSpec(spelling="model", draft_vocab_size=60)),
    "bfloat16": Case(DraftSpec(**_SWITCHES), replace(TARGET, dtype="bfloat16")),
    "float16": Case(DraftSpec(), replace(TARGET, dtype="float16")),
    "qwen3": Case(DraftSpec(graph="qwen3")),
    "qwen3-3.1": Case(DraftSpec(graph="qwen3", head_dim=16, attention_bias=True, rms_norm_eps=0.02, **_SWITCHES)),
    "qwen3-speculators": Case(DraftSpec(graph="qwen3", form="speculators", norm_before_residual=True)),
    "two-layers": Case(DraftSpec(num_layers=2)),
    "four-layers": Case(DraftSpec(num_layers=4, spelling="layers", norm_before_residual=True, **_SWITCHES)),
    "two-layers-qwen3": Case(DraftSpec(graph="qwen3", num_layers=2, mlp_bias=True, norm_output=True)),
    "window": Case(DraftSpec(config={**_WINDOW, "layer_types": ["sliding_attention"]})),
    "window-of-one-layer": Case(
        DraftSpec(
            graph="qwen3", num_layers=2, config={**_WINDOW, "layer_types": ["full_attention", "sliding_attention"]}
        )
    ),
    "mla": Case(DraftSpec(graph="deepseek")),
    "mla-3.1": Case(DraftSpec(graph="deepseek", rope_scaling=_YARN, rms_norm_eps=0.02, **_SWITCHES)),
    "mla-plain-query": Case(
        DraftSpec(graph="deepseek", latent=DeepseekSizes(None, 24, 8, 16, 32), norm_before_fc=True)
    ),
    "mla-two-layers": Case(DraftSpec(graph="deepseek", num_layers=2, spelling="model", norm_before_residual=True)),
    "mla-one-state": Case(DraftSpec(graph="deepseek", num_captured=1, **_SWITCHES)),
    "mla-four-states": Case(DraftSpec(graph="deepseek", num_captured=4, **_SWITCHES)),
    "mla-wide": Case(DraftSpec(graph="deepseek", hidden_size=40, num_heads=3, draft_vocab_size=50, **_SWITCHES)),
    "mla-bfloat16": Case(DraftSpec(graph="deepseek", **_SWITCHES), replace(TARGET, dtype="bfloat16")),
}


def _tokens(count: int = NUM_TOKENS, vocab_size: int = TARGET.vocab_size) -> list[int]:
    return np.random.default_rng(21).integers(0, vocab_size, count).tolist()


def _write(tmp_path: Path, case: Case, seed: int = 30) -> tuple[Path, Path]:
    target = write_target(tmp_path / "target", case.target, seed)
    return target.directory, write_draft(tmp_path / "draft", target, case.draft, seed + 1).directory


def _oracle(target: Path, draft: Path, tokens: list[int], arithmetic: Arithmetic, switches: Switches) -> np.ndarray:
    model = Target(target, arithmetic)
    return draft_once(model, Draft(draft, model, switches=switches), tokens, NUM_STEPS)[0]


@pytest.mark.parametrize("name", CASES)
def test_draft_logits(tmp_path: Path, name: str) -> None:
    target, draft = _write(tmp_path, CASES[name])
    tokens = _tokens()
    logits, ids = run_draft(target, draft, tokens, NUM_STEPS)
    assert_as_good_as_float32(logits, lambda a: _oracle(target, draft, tokens, a, Switches()), Arithmetic(), name)
    model = Target(target)
    assert ids == draft_once(model, Draft(draft, model), tokens, NUM_STEPS)[1]


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["eagle3.1", "mla-3.1", "two-layers"])
def test_draft_attends_to_the_rounded_cache(tmp_path: Path, kv_dtype: str, name: str) -> None:
    target, draft = _write(tmp_path, CASES[name])
    tokens = _tokens()
    logits, _ = run_draft(target, draft, tokens, NUM_STEPS, kv_cache_dtype=kv_dtype)
    run = lambda a: _oracle(target, draft, tokens, a, Switches())  # noqa: E731
    assert_as_good_as_float32(logits, run, Arithmetic(kv_dtype=kv_dtype), kv_dtype)


# What each mistake would look like, and the first draft step that it changes.
WRONG = {
    "feedback of the unnormed state": ("eagle3.1", Switches(norm_output=False), 1),
    "feedback of the normed state": ("eagle3", Switches(norm_output=True), 1),
    "no norm of the captured states": ("fc_norm", Switches(fc_norm=False), 0),
    "norm of captured states that ask for none": ("eagle3", Switches(fc_norm=True), 0),
    "no norm of the concat": ("norm_before_fc", Switches(norm_before_fc=False), 0),
    "normed residual": ("eagle3", Switches(norm_before_residual=True), 0),
    "unnormed residual": ("norm_before_residual", Switches(norm_before_residual=False), 0),
    "tokens not shifted": ("eagle3.1", Switches(shift=0), 0),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_would_show(tmp_path: Path, mistake: str) -> None:
    """The same comparison as above must fail by far for an oracle with the mistake built in."""
    name, switches, first_step = WRONG[mistake]
    target, draft = _write(tmp_path, CASES[name])
    tokens = _tokens()
    logits, _ = run_draft(target, draft, tokens, NUM_STEPS)
    run = lambda a: _oracle(target, draft, tokens, a, Switches())  # noqa: E731
    tolerance = assert_as_good_as_float32(logits, run, Arithmetic(), name)
    wrong = np.abs(_oracle(target, draft, tokens, Arithmetic(), switches) - logits).max(axis=1)
    assert (wrong[first_step:] > 1000 * tolerance).all(), (mistake, wrong, tolerance)
    assert (wrong[:first_step] <= tolerance).all(), "the mistake shows before it can"


GRAPHS = ["window", "qwen3-3.1", "four-layers", "mla-3.1", "mla-two-layers"]


@pytest.mark.parametrize("name", ["eagle3", "eagle3.1", "four-states", "bfloat16", "narrow", *GRAPHS, "mla-bfloat16"])
def test_chunked_prefill_drafts_the_same_bits(tmp_path: Path, name: str) -> None:
    """The last slot of a chunk takes the next known token, not a predicted one."""
    target, draft = _write(tmp_path, CASES[name])
    tokens = _tokens()
    whole, whole_ids = run_draft(target, draft, tokens, NUM_STEPS)
    for chunks in ([1] * (NUM_TOKENS - 1), [5, 1, 58, 5], [64, 5], [16, 16, 16, 16, 5]):
        logits, ids = run_draft(target, draft, tokens, NUM_STEPS, chunks=chunks)
        assert logits.tobytes() == whole.tobytes() and ids == whole_ids, chunks


@pytest.mark.parametrize("name", ["eagle3", "eagle3.1", "norm_before_residual", "float16", *GRAPHS])
def test_refeed_overwrites_what_drafting_wrote(tmp_path: Path, name: str) -> None:
    """Entries of drafted states must not survive into the next round (they cost 8-15 % acceptance)."""
    target, draft = _write(tmp_path, CASES[name])
    tokens = _tokens()
    whole, whole_ids = run_draft(target, draft, tokens, NUM_STEPS)
    for chunks in ([20, 1, 2, 3, 4, 5, 6, 28], [60, 1, 1, 1, 1, 1, 1, 1, 1, 1]):
        logits, ids = run_draft(target, draft, tokens, NUM_STEPS, chunks=chunks, draft_between_chunks=True)
        assert logits.tobytes() == whole.tobytes() and ids == whole_ids, chunks


@pytest.mark.parametrize(
    ("name", "feedback", "same_as"), [("eagle3", "post", "norm_output"), ("eagle3.1", "pre", "fc_norm")]
)
def test_feedback_override(tmp_path: Path, name: str, feedback: str, same_as: str) -> None:
    target, draft = _write(tmp_path, CASES[name])
    tokens = _tokens()
    logits, _ = run_draft(target, draft, tokens, NUM_STEPS, feedback=feedback)
    switches = Switches(norm_output=CASES[same_as].draft.norm_output)
    run = lambda a: _oracle(target, draft, tokens, a, switches)  # noqa: E731
    assert_as_good_as_float32(logits, run, Arithmetic(), feedback)


def test_first_draft_after_a_single_token(tmp_path: Path) -> None:
    """A prompt of one token has exactly one pair: its feature and the first sampled token."""
    target, draft = _write(tmp_path, CASES["eagle3.1"])
    tokens = _tokens(2)
    logits, _ = run_draft(target, draft, tokens, NUM_STEPS)
    run = lambda a: _oracle(target, draft, tokens, a, Switches())  # noqa: E731
    assert_as_good_as_float32(logits, run, Arithmetic(), "one pair")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("successor")
    target = write_successor_target(directory / "target")
    return target.directory, write_successor_draft(directory / "draft", target).directory


def _prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 96, length).tolist()


@pytest.mark.parametrize("num_drafts", [1, 2, 4, 7, 16])
def test_accepted_counts_are_those_of_the_oracle(pair: tuple[Path, Path], num_drafts: int) -> None:
    """Round by round, so that a draft state that is only a little wrong shows: it would accept less."""
    model = Target(pair[0])
    draft = Draft(pair[1], model)
    engine = make_engine(*pair, dtype="float32", num_speculative_tokens=num_drafts)
    seeds = range(6)
    requests = [Request(_prompt(s, 1 + 9 * s), {"max_tokens": 40, "stop_token_ids": [EOS]}) for s in seeds]
    results = serve(engine, requests)
    total = 0
    for request, result in zip(requests, results, strict=True):
        trace = speculate(model, draft, request.prompt, 40, num_drafts, (EOS,))
        assert trace.margin > 1e-3, "choose another seed: a tie could go either way in float32"
        assert result.token_ids == trace.token_ids
        assert (result.num_drafts, result.num_draft_tokens) == (len(trace.drafted), sum(trace.drafted))
        assert result.num_accepted_tokens == sum(trace.accepted)
        per_position = [sum(a > i for a in trace.accepted) for i in range(num_drafts)]
        assert result.num_accepted_tokens_per_position[:num_drafts] == per_position
        total += sum(trace.accepted)
    assert total > 40, "the pair agrees too rarely to test anything"


def test_refeed_equals_prefill_from_scratch(pair: tuple[Path, Path]) -> None:
    """After each round the draft must stand where a fresh request with the same tokens stands."""
    prompt, params = _prompt(50, 13), {"max_tokens": 48, "ignore_eos": True, "temperature": 0.6, "seed": 9}
    engine = make_engine(*pair, dtype="bfloat16", num_speculative_tokens=6)
    whole = serve(engine, [Request(prompt, params)])[0]
    assert len(whole.runs) > 8 and max(whole.runs) > 3
    emitted = 0
    for index, run in enumerate(whole.runs[:-1]):
        emitted += run
        tokens = prompt + whole.token_ids[: emitted - 1]
        rest = serve(engine, [Request(tokens, {**params, "max_tokens": 48 - emitted + 1})])[0]
        assert rest.token_ids == whole.token_ids[emitted - 1 :]
        assert rest.runs[1:] == whole.runs[index + 1 :], f"other drafts after {emitted} tokens"
