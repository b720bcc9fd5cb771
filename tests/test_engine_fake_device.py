"""What passes between host and device in a step, and what a fault of the device does: on the fake device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.engine import Request, endless, make_config, plain_outcome, sampling, serve
from support.traffic import Models, plain

from eagle31rt import _testing
from eagle31rt.errors import DeviceError


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("fake"), "float32")


class FakeEngine:
    """An engine on a fake device of its own."""

    def __init__(self, models: Models, **changes: Any) -> None:
        config = {**models.common, "max_num_seqs": 8, "num_speculative_tokens": 3, "decode_state": "device", **changes}
        self.device = _testing.FakeDevice()
        self.engine = _testing.engine_on_fake_device(make_config(*models.pair, **config), self.device)

    def serve(self, requests: list[Request]) -> list[list[int]]:
        return [result.token_ids for result in serve(self.engine, requests)]


REQUESTS = [
    Request([seed + 3, 9, 8], endless(30, temperature=0.7 * (seed % 2), seed=seed, num_speculative_tokens=-1))
    for seed in range(5)
]


@pytest.fixture(scope="module")
def expected(models: Models) -> list[list[int]]:
    return [plain_outcome(models.plain, plain(request)).token_ids for request in REQUESTS]


def test_a_step_waits_once_and_brings_back_one_small_array(models: Models, expected: list[list[int]]) -> None:
    fake = FakeEngine(models)
    for index, request in enumerate(REQUESTS):
        fake.engine.add_request(index, request.prompt, sampling(**request.params))
    steps = 0
    device = fake.device
    waits, copies, num_bytes = device.num_synchronizations, device.num_copies_to_host, device.bytes_to_host
    while fake.engine.has_unfinished_requests():
        fake.engine.step()
        steps += 1
    assert device.num_synchronizations - waits == device.num_copies_to_host - copies == steps
    assert device.bytes_to_host - num_bytes <= steps * 8 * (3 + 2) * 4  # a bucket of 8 requests: count and 4 ids each


def test_steps_of_a_known_shape_are_one_launch(models: Models, expected: list[list[int]]) -> None:
    fake = FakeEngine(models)
    assert fake.serve(REQUESTS) == expected
    graphs, launches = fake.device.num_graphs, fake.device.num_graph_launches
    assert 0 < graphs <= 8 and launches > 2 * graphs
    operators = fake.device.num_operators
    assert fake.serve(REQUESTS[:1]) == expected[:1]
    # New: the shapes of a batch of one; prompts run launch by launch.
    assert fake.serve(REQUESTS) == expected
    eager = FakeEngine(models, enforce_eager=True)
    assert eager.serve(REQUESTS) == expected
    assert eager.device.num_graphs == eager.device.num_graph_launches == 0
    assert fake.device.num_operators - operators < 2 * eager.device.num_operators


def test_graphs_are_made_anew_when_their_memory_moves(models: Models, expected: list[list[int]]) -> None:
    """A thousand ids that min_tokens holds back in four rows of each request: more than was ever uploaded."""
    fake = FakeEngine(models)
    assert fake.serve(REQUESTS) == fake.serve(REQUESTS) == expected
    params = {"max_tokens": 20, "min_tokens": 15, "stop_token_ids": [7] * 1024, "temperature": 1.0}
    large = [Request([seed + 5], {**params, "seed": seed}) for seed in range(5)]
    assert fake.serve(large) == [plain_outcome(models.plain, request).token_ids for request in large]
    graphs = fake.device.num_graphs
    assert fake.serve(REQUESTS) == expected
    assert fake.device.num_graphs > graphs


def test_graphs_are_made_anew_when_activations_move(models: Models, expected: list[list[int]]) -> None:
    """The oracle takes a prompt in one pass: longer than any step so far, so that every activation grows."""
    fake = FakeEngine(models, max_num_batched_tokens=8)
    assert fake.serve(REQUESTS) == fake.serve(REQUESTS) == expected
    graphs = fake.device.num_graphs
    fake.engine.add_request(99, [5, 6, 7] * 30, sampling(max_tokens=1))
    assert len(fake.engine.step_simple()[0].new_token_ids) == 1
    assert fake.serve(REQUESTS) == expected
    assert fake.device.num_graphs > graphs


@pytest.mark.parametrize("fault", ["launch", "run"])
@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
def test_a_fault_ends_the_requests_of_its_step_only(
    models: Models, expected: list[list[int]], fault: str, graphs: bool
) -> None:
    """The fault strikes at ever later operators; requests that were still waiting get their ids all the same."""
    fake = FakeEngine(models, enforce_eager=not graphs, max_num_seqs=4)
    names, strikes = set(), 0
    for count in np.random.default_rng(0).integers(0, 700, 40):
        fake.device.fail_after(int(count), fault)
        results = serve(fake.engine, REQUESTS)
        failed = [result for result in results if result.finish_reason == "error"]
        for result, ids in zip(results, expected, strict=True):
            assert result.token_ids == ids[: len(result.token_ids)]
            if result.finish_reason == "error":
                assert "failed" in result.error
                names.add(result.error.split()[3 if fault == "launch" else -1])
            else:
                assert result.token_ids == ids
        assert len(failed) <= 4
        strikes += len(failed) > 0
    assert names >= {"linear", "rms_norm"}
    assert strikes >= (10 if graphs else 35)  # recorded steps launch no operators
    fake.device.fail_after(1 << 40, fault)
    assert fake.serve(REQUESTS) == expected


@pytest.mark.parametrize("fault", ["launch", "run"])
def test_after_the_loss_of_the_device_every_call_says_so(models: Models, fault: str) -> None:
    fake = FakeEngine(models, max_num_seqs=2)
    for index, request in enumerate(REQUESTS):
        fake.engine.add_request(index, request.prompt, sampling(**request.params))
    fake.engine.step()
    fake.device.fail_after(5, fault, loses_device=True)
    outputs = fake.engine.step()
    # Those that run and those that wait: none of them can go on.
    assert sorted(output.request_id for output in outputs) == list(range(len(REQUESTS)))
    assert all(output.finish_reason == "error" and "failed" in output.error for output in outputs)
    fake.engine.check()
    assert not fake.engine.has_unfinished_requests()
    assert not fake.engine.cancel(0)
    with pytest.raises(DeviceError, match="lost its device: "):
        fake.engine.step()
    with pytest.raises(DeviceError, match="lost its device: "):
        fake.engine.add_request(7, [5], sampling())
