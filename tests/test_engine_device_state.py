"""The step that keeps requests' state on the device gives what the step with state on the host gives.

Once on the CPU itself, and once on the fake device (csrc/bindings/testing_fake_device.h): memory that the host cannot
touch, work that is done only when it is waited for, and graphs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from support.checkpoints import DraftSpec, TargetSpec, write_draft, write_target
from support.engine import Request, endless, make_config, make_engine, plain_outcome, sampling, serve
from support.successor import write_overflowing_target
from support.traffic import DETERMINISTIC, MAX_DRAFTS, Models, Traffic, traffic

from eagle31rt import _core, _testing
from eagle31rt.errors import InvalidArgumentError


def on_fake_device(config: _core.EngineConfig) -> _core.Engine:
    return _testing.engine_on_fake_device(config, _testing.FakeDevice())


@pytest.fixture(scope="module", params=["cpu", "fake"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    make = on_fake_device if request.param == "fake" else _core.Engine
    return Models(tmp_path_factory.mktemp("device"), "bfloat16", make, decode_state="device")


@settings(DETERMINISTIC, max_examples=250)
@given(traffic=traffic())
def test_ids_are_those_of_plain_decoding(models: Models, traffic: Traffic) -> None:
    models.serve(traffic)


def test_the_traffic_accepted_and_refused(models: Models) -> None:
    """Runs after the test above."""
    if models.drafted == 0:
        pytest.skip("the traffic test did not run")
    assert models.drafted > 1000
    assert 0.2 * models.drafted < models.accepted < 0.8 * models.drafted


METHODS = [
    {"rejection_sample_method": "equality"},
    {"rejection_sample_method": "standard"},
    {"rejection_sample_method": "block"},
    {"rejection_sample_method": "standard", "draft_sample_method": "probabilistic"},
    {"rejection_sample_method": "block", "draft_sample_method": "probabilistic"},
    {"rejection_sample_method": "synthetic"},
]


@pytest.mark.parametrize("num_drafts", [1, 2, 5, 16])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: "-".join(method.values()))
def test_every_method_gives_the_results_of_the_host_loop(
    models: Models, method: dict[str, Any], num_drafts: int
) -> None:
    """Ids, runs, reasons and every metric, with requests of different draft lengths (also none) side by side."""
    config: dict[str, Any] = {**method, "num_speculative_tokens": num_drafts, "max_num_batched_tokens": 20}
    if method["rejection_sample_method"] == "synthetic":
        config["synthetic_acceptance_rates"] = [0.8 * 0.9**i for i in range(num_drafts)]
    requests = [
        Request(
            np.random.default_rng(seed).integers(0, 96, 1 + 5 * (seed % 5)).tolist(),
            {
                "temperature": [0.0, 0.6, 1.0][seed % 3],
                "seed": seed,
                "max_tokens": 2 + 4 * seed,
                "min_tokens": min(10, 2 + 4 * seed) if seed % 4 == 1 else 0,
                "num_speculative_tokens": [-1, 0, num_drafts // 2, -1][seed % 4],
            },
            arrival=seed % 4,
        )
        for seed in range(9)
    ]
    host = make_engine(*models.pair, **models.common, **config)
    device = models.engine(sequences=9, page_size=16, max_num_seqs=8, **config)
    expected = serve(host, requests)
    for request, one, other in zip(requests, serve(device, requests), expected, strict=True):
        assert one == other, request
    assert sum(result.num_accepted_tokens for result in expected) > 0


def test_a_draft_on_the_device_may_have_any_form(models: Models, tmp_path: Path) -> None:
    """EAGLE-3 feedback, norm_before_residual, own embedding, no d2t, biases: metrics of the host loop."""
    target = write_target(tmp_path / "target", TargetSpec(attention_bias=True, mlp_bias=True, unigram_strength=3.0))
    spec = DraftSpec(norm_before_residual=True, own_embedding=True, fc_bias=True, attention_bias=True)
    draft = write_draft(tmp_path / "draft", target, spec)
    requests = [Request([seed + 3, 7], endless(20, temperature=0.5, seed=seed)) for seed in range(3)]
    host, device = (
        serve(make(make_config(target.directory, draft.directory, num_speculative_tokens=3, **state)), requests)
        for make, state in ((_core.Engine, {}), (models.make, {"decode_state": "device"}))
    )
    assert device == host
    assert sum(result.num_accepted_tokens for result in host) > 0


def test_logits_that_are_not_finite_end_their_request_only(models: Models, tmp_path: Path) -> None:
    target = write_overflowing_target(tmp_path)
    engine = models.make(make_config(target, max_model_len=64, decode_state="device"))
    requests = [Request([token, 5]) for token in range(3, 19)]
    expected = serve(make_engine(target, max_model_len=64), requests)
    assert {result.finish_reason for result in expected} >= {"error", "length"}
    assert serve(engine, requests) == expected


def test_step_simple_and_step_mix_as_on_the_host(models: Models) -> None:
    """A request that the oracle began goes on in step(), without drafts; the other way round is refused."""
    engine = models.engine(sequences=2, page_size=16)
    engine.add_request(0, [5, 6, 7], sampling(**endless(12)))
    ids = [token for _ in range(3) for output in engine.step_simple() for token in output.new_token_ids]
    while engine.has_unfinished_requests():
        ids += [token for output in engine.step() for token in output.new_token_ids]
    assert ids == plain_outcome(models.plain, Request([5, 6, 7], endless(12))).token_ids
    engine.add_request(1, [5], sampling(**endless(12)))
    engine.step()
    with pytest.raises(InvalidArgumentError, match="was begun by step"):
        engine.step_simple()
    engine.cancel(1)


@pytest.mark.parametrize("bad", [{"device": "tpu"}, {"device": "cuda:x"}, {"device": "cuda:-1"}, {"device": "cuda:"}])
def test_unknown_devices_are_refused(models: Models, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=f'device is "{bad["device"]}"; give cpu, cuda or cuda:N'):
        make_engine(models.pair[0], **bad)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decode_state": "gpu"}, "give auto, host or device"),
        ({"decode_state": "host", "device": "cuda"}, "decode_state host needs device cpu"),
        ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization is 0"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization is 1.5"),
    ],
)
def test_device_settings_are_checked(models: Models, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make_engine(models.pair[0], **changes)


def test_draft_length_of_the_engine_bounds_the_memory(models: Models) -> None:
    """A batch as large as the engine allows, all with the longest drafts: every buffer is as large as it must be."""
    engine = models.engine(sequences=8, page_size=1, max_num_seqs=8, max_num_batched_tokens=8)
    requests = [Request([seed + 3], endless(90, seed=seed, temperature=0.2 * seed)) for seed in range(8)]
    results = serve(engine, [replace(request, arrival=0) for request in requests])
    for request, result in zip(requests, results, strict=True):
        models.compare(request, result)
        assert result.num_draft_tokens > MAX_DRAFTS
