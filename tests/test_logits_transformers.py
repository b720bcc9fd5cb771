"""Logits and greedy ids against Hugging Face transformers in float32: the one judge that this project did not write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.checkpoints import TargetSpec, write_target
from support.engine import plain_ids, run_decoder
from support.oracle import Target, generate

if TYPE_CHECKING:
    from eagle31rt.demo_model import DemoPair

torch = pytest.importorskip("torch", reason="needs the [dev] extra: pip install '.[dev]'")
transformers = pytest.importorskip("transformers", reason="needs the [dev] extra: pip install '.[dev]'")

pytestmark = pytest.mark.dev

# Both round in float32: logits of size ~5 differ by units in the last place of the sums behind them. Float64 against
# transformers over the specs below: at most 3e-5. An error in the model shows as 1e-1 or more.
LOGITS_TOLERANCE = 1e-4

_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}

SPECS = {
    "llama": TargetSpec(),
    "llama-biases": TargetSpec(attention_bias=True, mlp_bias=True),
    "llama-tied": TargetSpec(tie_word_embeddings=True),
    "llama-head-dim": TargetSpec(head_dim=24, num_kv_heads=4),
    "llama-theta": TargetSpec(rope_theta=500.0),
    "llama-linear": TargetSpec(rope_scaling={"rope_type": "linear", "factor": 3.0}),
    "llama-llama3": TargetSpec(rope_scaling=_LLAMA3),
    "llama-yarn": TargetSpec(rope_scaling=_YARN),
    "llama-yarn-mscale": TargetSpec(
        rope_scaling={**_YARN, "mscale": 1.0, "mscale_all_dim": 0.5, "beta_fast": 16.0, "beta_slow": 2.0}
    ),
    "llama-yarn-attention-factor": TargetSpec(rope_scaling={**_YARN, "attention_factor": 1.3}),
    "llama-rope-parameters": TargetSpec(rope_parameters={"rope_theta": 700.0, "rope_type": "linear", "factor": 2.0}),
    "mistral": TargetSpec(model_type="mistral"),
    "qwen2": TargetSpec(model_type="qwen2"),
}


def _reference(directory: Path) -> torch.nn.Module:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    return model.eval()


def _logits(model: torch.nn.Module, token_ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([token_ids])).logits[0].numpy()


def _greedy(model: torch.nn.Module, prompt: list[int], max_tokens: int) -> list[int]:
    """Plain argmax, so that no generation default of transformers (eos, penalties) plays a part."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(int(_logits(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


@pytest.fixture(params=SPECS, ids=SPECS)
def spec(request: pytest.FixtureRequest) -> TargetSpec:
    return SPECS[request.param]


@pytest.fixture
def prompt(spec: TargetSpec) -> list[int]:
    return np.random.default_rng(5).integers(0, spec.vocab_size, 70).tolist()


def test_oracle_agrees(tmp_path: Path, spec: TargetSpec, prompt: list[int]) -> None:
    """The float64 oracle, judged itself: everything else in the suite leans on it."""
    write_target(tmp_path, spec, seed=3)
    model, oracle = _reference(tmp_path), Target(tmp_path)
    logits, residuals = oracle.forward(prompt, oracle.new_caches())
    np.testing.assert_allclose(logits, _logits(model, prompt), atol=LOGITS_TOLERANCE, rtol=0)
    with torch.no_grad():
        states = model(torch.tensor([prompt]), output_hidden_states=True).hidden_states
    for k in range(spec.num_layers):  # the last entry of transformers is normed
        np.testing.assert_allclose(residuals[k], states[k][0].numpy(), atol=LOGITS_TOLERANCE, rtol=0)
    assert generate(oracle, prompt, 12) == _greedy(model, prompt, 12)


def test_runtime_agrees(tmp_path: Path, spec: TargetSpec, prompt: list[int]) -> None:
    write_target(tmp_path, spec, seed=3)
    model = _reference(tmp_path)
    logits, _ = run_decoder(tmp_path, prompt)
    np.testing.assert_allclose(logits, _logits(model, prompt), atol=LOGITS_TOLERANCE, rtol=0)
    assert plain_ids(tmp_path, prompt, 12) == _greedy(model, prompt, 12)


def test_demo_model_agrees(demo_pair: DemoPair) -> None:
    """30 layers of real weights in float32: logits up to 33; measured difference 1.3e-4."""
    prompt = np.random.default_rng(6).integers(0, 49152, 48).tolist()
    model = _reference(demo_pair.target)
    logits, _ = run_decoder(demo_pair.target, prompt, dtype="float32", num_threads=2)
    np.testing.assert_allclose(logits, _logits(model, prompt), atol=5e-4, rtol=0)
    chat = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 2, 198, 1, 4093, 198, 19556, 2, 198]
    assert plain_ids(demo_pair.target, chat, 12, dtype="float32", kv_cache_memory_bytes=0, max_model_len=64) == _greedy(
        model, chat, 12
    )
