"""Quantised checkpoints as published, FP8 in blocks and packed int4: every value is the one of a float32 reference, the
logits are those of the checkpoint that holds these values, and what does not fit is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import DraftSpec, TargetSpec, TinyCheckpoint, target_config, target_weights, write_draft
from support.deepseek import DeepseekSizes
from support.engine import Request, endless, make_engine, plain_outcome, random_prompt, run_decoder, serve
from support.loading import assert_layer
from support.quantised import (
    FP8_VALUES,
    Quantise,
    fp8_blocks,
    fp8_config,
    int4_config,
    is_linear,
    is_routed_expert,
    packed_int4,
    quantise_weights,
)
from support.tensors import rounded, stored, write_directory
from support.transformers_logits import transformers_logits

from eagle31rt import _testing
from eagle31rt.errors import CheckpointError, UnsupportedError
from eagle31rt.safetensors_writer import RawTensor

# No size is a multiple of a block, a group, eight values or a panel.
LLAMA = TargetSpec(num_layers=2, hidden_size=40, intermediate_size=150, num_heads=5, num_kv_heads=1, vocab_size=37)
DEEPSEEK = TargetSpec(
    model_type="deepseek_v3",
    num_layers=3,
    num_heads=3,
    hidden_size=40,
    experts=(9, 3, 20),
    config={"head_dim": 16},
    deepseek=DeepseekSizes(40, 24, 8, 16, 32, num_shared_experts=2, groups=(3, 2)),
)
PROMPT = random_prompt(40)


def write_pair(
    directory: Path,
    spec: TargetSpec,
    which: Callable[[str], bool],
    quantise: Quantise,
    quantisation: dict[str, Any],
    changes: dict[str, RawTensor | None] | None = None,
) -> TinyCheckpoint:
    """`directory`/quantised, with tensors replaced or removed, and its float32 twin in `directory`/twin: returned."""
    tensors, twin = quantise_weights(target_weights(spec, seed=5), which, quantise)
    plain = {name: stored(values, "float32") for name, values in twin.items()}
    kept = {name: tensor for name, tensor in plain.items() if not which(name)}
    config = target_config(spec)
    both = {"model." + name if name != "lm_head.weight" else name: tensor for name, tensor in (kept | tensors).items()}
    both = {name: tensor for name, tensor in (both | (changes or {})).items() if tensor is not None}
    write_directory(directory / "quantised", {**config, "quantization_config": quantisation}, both)
    write_directory(directory / "twin", config, plain)
    return TinyCheckpoint(directory / "twin", config, twin, spec)


def fp8_llama(directory: Path, changes: dict[str, RawTensor | None] | None = None) -> TinyCheckpoint:
    return write_pair(directory, LLAMA, is_linear, fp8_blocks((16, 24)), fp8_config((16, 24)), changes)


def int4_llama(directory: Path, changes: dict[str, RawTensor | None] | None = None) -> TinyCheckpoint:
    return write_pair(directory, LLAMA, is_linear, packed_int4(32), int4_config(32), changes)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("write", [fp8_llama, int4_llama])
def test_every_value_is_the_reference_s(tmp_path: Path, write: Callable[[Path], TinyCheckpoint], dtype: str) -> None:
    twin = write(tmp_path)
    loaded = _testing.load_decoder_weights(str(tmp_path / "quantised"), dtype=dtype)
    expected = {
        name: values if name.endswith("norm.weight") else rounded(values, dtype)
        for name, values in twin.weights.items()
    }
    for index in range(LLAMA.num_layers):
        assert_layer(loaded["layers"][index], expected, index)


FORMS: dict[str, tuple[TargetSpec, Callable[[str], bool], Quantise, dict[str, Any]]] = {
    "fp8": (DEEPSEEK, is_linear, fp8_blocks(), fp8_config()),
    "fp8-small-blocks": (DEEPSEEK, is_linear, fp8_blocks((16, 24), "BF16"), fp8_config((16, 24))),
    # The one that transformers reads, too: all sizes are multiples of the blocks.
    "fp8-whole-blocks": (TargetSpec(model_type="deepseek_v3"), is_linear, fp8_blocks((8, 8)), fp8_config((8, 8))),
    "int4": (DEEPSEEK, is_routed_expert, packed_int4(32, "I32"), int4_config(32)),
    "int4-long-shape": (DEEPSEEK, is_routed_expert, packed_int4(16, "I64"), int4_config(16)),
    "int4-everywhere": (DEEPSEEK, is_linear, packed_int4(), int4_config()),
    "fp8-qwen3-moe": (
        TargetSpec(model_type="qwen3_moe", head_dim=8, experts=(5, 2, 20)),
        is_linear,
        fp8_blocks((16, 8)),
        fp8_config((16, 8)),
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_are_the_twin_s(tmp_path: Path, form: str, dtype: str) -> None:
    write_pair(tmp_path, *FORMS[form])
    expected, _ = run_decoder(tmp_path / "twin", PROMPT, dtype=dtype)
    found, _ = run_decoder(tmp_path / "quantised", PROMPT, dtype=dtype)
    assert found.tobytes() == expected.tobytes()
    chunked, _ = run_decoder(tmp_path / "quantised", PROMPT, [1, 7, 32], dtype=dtype)
    assert chunked.tobytes() == expected.tobytes()


WHOLE = TargetSpec(  # whole panels
    num_layers=2, hidden_size=128, intermediate_size=256, num_heads=4, num_kv_heads=4, head_dim=32, vocab_size=96
)
LAYER = 4 * 128 * 128 + 3 * 128 * 256  # elements


@pytest.mark.parametrize(
    ("quantise", "config", "layer_bytes"),
    [
        (fp8_blocks(), fp8_config(), LAYER + 4 * LAYER // 128),  # a float32 scale for 128 features of an output
        (packed_int4(32), int4_config(32), LAYER // 2 + 2 * LAYER // 32),
        (packed_int4(128), int4_config(128), LAYER // 2 + 2 * LAYER // 128),
    ],
)
def test_matrices_stay_quantised_in_memory(
    tmp_path: Path, quantise: Quantise, config: dict[str, Any], layer_bytes: int
) -> None:
    write_pair(tmp_path, WHOLE, is_linear, quantise, config)
    others = 2 * 96 * 128 * 2 + 5 * 128 * 4  # embedding and head in bfloat16, norms in float32
    engine = make_engine(tmp_path / "quantised", dtype="bfloat16")
    assert engine.info["weight_bytes"] == others + 2 * layer_bytes
    assert make_engine(tmp_path / "twin", dtype="bfloat16").info["weight_bytes"] == others + 2 * LAYER * 2


def test_experts_in_several_forms_are_dequantised(tmp_path: Path) -> None:
    """One expert of a layer is not quantised: the operator takes all of them in one form."""

    def which(name: str) -> bool:
        return is_linear(name) and ".experts.3." not in name

    write_pair(tmp_path, DEEPSEEK, which, fp8_blocks(), fp8_config())
    expected, _ = run_decoder(tmp_path / "twin", PROMPT, dtype="bfloat16")
    found, _ = run_decoder(tmp_path / "quantised", PROMPT, dtype="bfloat16")
    assert found.tobytes() == expected.tobytes()


@pytest.mark.cuda
@pytest.mark.parametrize("form", ["fp8", "fp8-small-blocks", "int4-everywhere"])
def test_outcomes_on_cuda_are_the_twin_s(tmp_path: Path, form: str) -> None:
    """Ids and log-probabilities; blocks of 24 columns have no kernel there and are dequantised."""
    write_pair(tmp_path, *FORMS[form])
    requests = [
        Request(random_prompt(4 + 9 * i, seed=i), endless(4, temperature=0.8 * i, num_logprobs=1)) for i in range(2)
    ]
    outcomes = [
        [result.outcome for result in serve(make_engine(tmp_path / name, device="cuda", dtype="bfloat16"), requests)]
        for name in ("quantised", "twin")
    ]
    assert outcomes[0] == outcomes[1]


def test_speculation_changes_no_id(tmp_path: Path) -> None:
    twin = write_pair(tmp_path, *FORMS["int4"])
    draft = write_draft(tmp_path / "draft", twin, DraftSpec(num_heads=2, num_kv_heads=1, head_dim=8), seed=2)
    requests = [Request(random_prompt(5 + 9 * i, seed=i), endless(12, temperature=0.8 * (i % 2))) for i in range(4)]
    plain = make_engine(tmp_path / "quantised")
    expected = [plain_outcome(plain, request).token_ids for request in requests]
    results = serve(make_engine(tmp_path / "quantised", draft.path, num_speculative_tokens=3), requests)
    assert [result.token_ids for result in results] == expected


def test_all_fp8_codes_are_read(tmp_path: Path) -> None:
    codes = np.arange(256, dtype=np.uint8)[~np.isnan(FP8_VALUES)]
    codes = np.resize(codes, (40, 150))
    name = "model.layers.0.mlp.down_proj.weight"
    scales = np.full((3, 7), 0.37, np.float32)
    fp8_llama(
        tmp_path,
        {
            name: RawTensor("F8_E4M3", codes.shape, codes.tobytes()),
            f"{name}_scale_inv": RawTensor("F32", scales.shape, scales.tobytes()),
        },
    )
    loaded = _testing.load_decoder_weights(str(tmp_path / "quantised"), dtype="float32")
    np.testing.assert_array_equal(loaded["layers"][0]["down"], FP8_VALUES[codes] * np.float32(0.37))


Q = "model.layers.1.self_attn.q_proj.weight"  # [40, 40]


def _zeros(dtype: str, shape: tuple[int, ...], size: int) -> RawTensor:
    return RawTensor(dtype, shape, bytes(int(np.prod(shape)) * size))


@pytest.mark.parametrize(
    ("write", "changes", "error", "message"),
    [
        (
            fp8_llama,
            {f"{Q}_scale_inv": None},
            CheckpointError,
            r"lacks the .*\"layers.1.*q_proj.weight_scale",
        ),
        (
            fp8_llama,
            {f"{Q}_scale_inv": _zeros("F32", (2, 2), 4)},
            CheckpointError,
            r"q_proj.weight_scale_inv\" has shape \[2, 2\], but config.json asks for \[3, 2\]",
        ),
        (
            fp8_llama,
            {Q: _zeros("F8_E5M2", (40, 40), 1)},
            UnsupportedError,
            r"has dtype F8_E5M2; it must be F8_E4M3",
        ),
        (fp8_llama, {Q: _zeros("F8_E4M3", (40, 48), 1)}, CheckpointError, r"has shape \[40, 48\]"),
        (
            fp8_llama,
            {Q: RawTensor("F8_E4M3", (40, 40), b"\x7f" * 1600)},
            CheckpointError,
            r"1600 values that are NaN",
        ),
        (int4_llama, {f"{Q}_packed": None}, CheckpointError, r"lacks the .*\"layers.1.*q_proj.weight_packed"),
        (int4_llama, {f"{Q}_scale": None}, CheckpointError, r"lacks the .*\"layers.1.*q_proj.weight_scale"),
        (int4_llama, {f"{Q}_shape": None}, CheckpointError, r"lacks the .*\"layers.1.*q_proj.weight_shape"),
        (int4_llama, {f"{Q}_packed": _zeros("I32", (40, 4), 4)}, CheckpointError, r"\[40, 4\], .* asks for \[40, 5\]"),
        (int4_llama, {f"{Q}_scale": _zeros("BF16", (40, 1), 2)}, CheckpointError, r"\[40, 1\], .* asks for \[40, 2\]"),
        (
            int4_llama,
            {f"{Q}_shape": RawTensor("I64", (2,), np.array([40, 39], "<i8").tobytes())},
            CheckpointError,
            r"q_proj.weight_shape\" holds \[40, 39\], but config.json asks for \[40, 40\]",
        ),
        (int4_llama, {f"{Q}_g_idx": _zeros("I32", (40,), 4)}, CheckpointError, r"does not ask for.*weight_g_idx"),
        (int4_llama, {Q: _zeros("F32", (40, 40), 4)}, CheckpointError, r"does not ask for.*q_proj.weight\""),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    tmp_path: Path, write: Any, changes: dict[str, RawTensor | None], error: type[Exception], message: str
) -> None:
    write(tmp_path, changes)
    with pytest.raises(error, match=message):
        make_engine(tmp_path / "quantised")


@pytest.mark.parametrize(
    ("quantisation", "message"),
    [
        ({"quant_method": "awq", "bits": 4}, r"quant_method\" is \"awq\"; supported is .*use the model's unquantised"),
        ({"quant_method": "gptq", "bits": 4}, r"quant_method\" is \"gptq\""),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, r"quant_method\" is \"bitsandbytes\""),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, r"quant_method\" is \"modelopt\""),
        ({}, r"quant_method\" is absent"),
        ({"quant_method": "fp8"}, r"weight_block_size\" is absent; supported is \[rows, columns\]"),
        (fp8_config(fmt="e5m2"), r"fmt\" is \"e5m2\""),
        (fp8_config(activation_scheme="static"), r"activation_scheme\" is \"static\""),
        ({**int4_config(), "format": "nvfp4-pack-quantized"}, r"format\" is \"nvfp4-pack-quantized\""),
        ({**int4_config(), "kv_cache_scheme": {"num_bits": 8}}, r"kv_cache_scheme\" is an object"),
        ({**int4_config(), "config_groups": {}}, r"config_groups\" must be an object with one group"),
        (int4_config(num_bits=8), r"group_0.weights.num_bits\" is 8; supported is 4"),
        (int4_config(symmetric=False), r"symmetric\" is false"),
        (int4_config(type="float"), r"type\" is \"float\""),
        (int4_config(strategy="channel"), r"strategy\" is \"channel\""),
    ],
)
def test_other_methods_are_refused_with_the_way_out(tmp_path: Path, quantisation: dict[str, Any], message: str) -> None:
    write_directory(tmp_path, {**target_config(LLAMA), "quantization_config": quantisation}, {})
    with pytest.raises(UnsupportedError, match=message):
        make_engine(tmp_path)


def test_quantised_tensors_without_a_config_are_refused(tmp_path: Path) -> None:
    fp8_llama(tmp_path)
    (tmp_path / "quantised" / "config.json").write_bytes((tmp_path / "twin" / "config.json").read_bytes())
    with pytest.raises(UnsupportedError, match=r"dtype F8_E4M3; .* unless config.json has a quantization_config"):
        make_engine(tmp_path / "quantised")


@pytest.mark.dev
@pytest.mark.parametrize("form", ["fp8", "fp8-whole-blocks"])
def test_logits_are_those_of_transformers(tmp_path: Path, form: str) -> None:
    """It dequantises FP8 on a machine without a GPU; packed int4 needs a package that is no dependency here."""
    transformers = pytest.importorskip("transformers")
    write_pair(tmp_path, *FORMS[form])
    dequantised = transformers.FineGrainedFP8Config(
        weight_block_size=FORMS[form][3]["weight_block_size"], dequantize=True
    )
    expected = transformers_logits(tmp_path / "quantised", PROMPT, quantization_config=dequantised)
    logits, _ = run_decoder(tmp_path / "quantised", PROMPT, dtype="float32")
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=0)  # a wrong scale: 1e-1
