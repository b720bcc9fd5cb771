"""The engine on device cuda, end to end: speculative ids are those of plain decoding, with and without graphs.

Plain decoding is step_simple() on the same device: one request, one token a call, no graphs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import TargetSpec
from support.device import DEFAULT_SIMULATOR, Simulator
from support.engine import Request, Result, endless, make_engine, sampling, serve
from support.processors import CASES
from support.successor import write_successor_draft, write_successor_target

from eagle31rt import LLM, SamplingParams, _core
from eagle31rt.errors import DeviceError, ResourceError

pytestmark = pytest.mark.cuda
TARGET = TargetSpec(num_layers=2, hidden_size=64, intermediate_size=64, num_heads=4, num_kv_heads=2, vocab_size=96)
MAX_TOKENS = 12
REQUESTS = [
    Request([5 * seed + 3] * (1 + 3 * seed), endless(MAX_TOKENS, temperature=[0.0, 0.8][seed % 2], seed=seed))
    for seed in range(8)
]


class Pair:
    def __init__(self, folder: Path, dtype: str) -> None:
        target = write_successor_target(folder / "target", TARGET)
        draft = write_successor_draft(folder / "draft", target)
        self.paths = (target.directory, draft.directory)
        self.common = {"device": "cuda", "dtype": dtype, "max_model_len": 64, "max_num_seqs": 8}
        plain = make_engine(target.directory, **self.common)
        self.plain = [serve(plain, [request], simple=True)[0] for request in REQUESTS]

    def engine(self, **changes: Any) -> _core.Engine:
        return make_engine(*self.paths, **{**self.common, **changes})


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("cuda"), request.param)


@pytest.fixture(scope="module")
def bfloat16(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("cuda"), "bfloat16")


def check(pair: Pair, results: list[Result], num_drafts: int) -> None:
    for result, expected in zip(results, pair.plain[: len(results)], strict=True):
        assert result.outcome == expected.outcome
    if num_drafts > 0:
        drafted, accepted = (sum(getattr(r, n) for r in results) for n in ("num_draft_tokens", "num_accepted_tokens"))
        assert 0.1 * drafted < accepted < drafted


@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("num_drafts", [0, 1, 3, 5])
def test_speculative_ids_are_plain_ids(pair: Pair, num_drafts: int, eager: bool) -> None:
    engine = pair.engine(num_speculative_tokens=num_drafts, enforce_eager=eager)
    for batch in (8, 1, 3):  # the later ones meet graphs, buffers and slots of the first
        check(pair, serve(engine, REQUESTS[:batch]), num_drafts)


def test_prompts_in_chunks_beside_decoding_requests(bfloat16: Pair) -> None:
    engine = bfloat16.engine(num_speculative_tokens=2, max_num_batched_tokens=5, page_size=4, max_num_seqs=3)
    requests = [Request(request.prompt, request.params, arrival=index // 2) for index, request in enumerate(REQUESTS)]
    check(bfloat16, serve(engine, requests), 2)


def test_min_tokens_and_stops(bfloat16: Pair) -> None:
    """Masked rows, per request, beside others; against the oracle on the same device."""
    stop = bfloat16.plain[0].token_ids[1]
    requests = [
        Request(REQUESTS[0].prompt, {"max_tokens": 8, "min_tokens": 5, "stop_token_ids": [stop]}),
        Request(REQUESTS[0].prompt, {"max_tokens": 8, "stop_token_ids": [stop]}),
        Request(
            REQUESTS[1].prompt, {"max_tokens": 8, "min_tokens": 8, "temperature": 1.0, "num_speculative_tokens": 0}
        ),
    ]
    plain = bfloat16.engine()
    expected = [serve(plain, [request], simple=True)[0] for request in requests]
    assert expected[1].token_ids == [*bfloat16.plain[0].token_ids[:1], stop]
    assert stop not in expected[0].token_ids[:5]
    results = serve(bfloat16.engine(num_speculative_tokens=3), requests)
    assert [result.outcome for result in results] == [result.outcome for result in expected]


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_processors_and_logprobs(bfloat16: Pair, num_drafts: int) -> None:
    """Steps that the host looks into, between recorded ones, against the oracle on the same device."""
    requests = [
        Request(request.prompt, {**request.params, **CASES[name]})
        for name, request in zip(["all", "bad_words", "logits_processors", "frequency_penalty"], REQUESTS, strict=False)
    ]
    plain = bfloat16.engine()
    expected = [serve(plain, [request], simple=True)[0] for request in requests]
    engine = bfloat16.engine(num_speculative_tokens=num_drafts)
    for _ in range(2):
        check(bfloat16, serve(engine, REQUESTS), num_drafts)
        for result, other in zip(serve(engine, requests), expected, strict=True):
            assert (result.outcome, result.error) == (other.outcome, other.error)
            assert result.logprobs == other.logprobs and result.prompt_logprobs == other.prompt_logprobs
    assert len(expected[0].logprobs) == len(expected[0].token_ids) > 0


@pytest.mark.parametrize("method", ["standard", "block"])
def test_drawn_drafts_do_not_depend_on_company(bfloat16: Pair, method: str) -> None:
    options = {"rejection_sample_method": method, "draft_sample_method": "probabilistic", "num_speculative_tokens": 3}
    engine = bfloat16.engine(**options)
    together = serve(engine, REQUESTS[:4])
    assert together == [serve(engine, [request])[0] for request in REQUESTS[:4]]
    assert sum(result.num_accepted_tokens for result in together) > 0


def test_llm_on_cuda(bfloat16: Pair) -> None:
    speculation = {"method": "eagle3", "model": str(bfloat16.paths[1]), "num_speculative_tokens": 3}
    llm = LLM(
        bfloat16.paths[0],
        device="cuda",
        speculative_config=speculation,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=64,
        max_num_seqs=4,
        gpu_memory_utilization=0.5,
    )
    assert str(llm.info["device"]).startswith("cuda:0 (") and llm.info["instruction_set"] == "cuda"
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
    output = llm.generate({"prompt_token_ids": REQUESTS[0].prompt}, params)[0]
    assert output.outputs[0].token_ids == bfloat16.plain[0].token_ids


@pytest.fixture
def faults(simulator: Simulator) -> Iterator[Simulator]:
    yield simulator
    simulator.reset_error()


@pytest.mark.parametrize("kernel", ["embedding_kernel", "walk_kernel", "commit_rows_kernel"])
def test_a_kernel_that_fails_ends_the_engine_by_name(bfloat16: Pair, faults: Simulator, kernel: str) -> None:
    """A failure inside a kernel loses CUDA's context: all requests end, and every later call says so."""
    engine = bfloat16.engine(num_speculative_tokens=2, enforce_eager=True)
    for index in range(3):
        engine.add_request(index, REQUESTS[index].prompt, sampling(**endless(MAX_TOKENS)))
    engine.step()
    faults.fail_launch(kernel, 1)
    outputs = engine.step()
    assert [output.finish_reason for output in outputs] == ["error"] * 3
    assert all("the GPU failed" in output.error and "cudaErrorLaunchFailure" in output.error for output in outputs)
    assert not engine.has_unfinished_requests()
    engine.check()
    with pytest.raises(DeviceError, match="must be restarted"):
        engine.step()
    with pytest.raises(DeviceError, match="must be restarted"):
        engine.add_request(9, [5], sampling())


def test_a_share_of_memory_that_is_in_use_already_is_refused(bfloat16: Pair) -> None:
    with pytest.raises(
        ResourceError, match=r"no memory is left for the KV cache: .*gpu_memory_utilization is 1e-06; raise"
    ):
        bfloat16.engine(gpu_memory_utilization=1e-6, kv_cache_memory_bytes=0)


def test_there_is_no_such_gpu(bfloat16: Pair) -> None:
    with pytest.raises(DeviceError, match="there is no GPU number 63; this machine shows"):
        bfloat16.engine(device="cuda:63")


OPEN_ENGINE = """
import sys
from support.device import load_simulator
from support.engine import make_engine
load_simulator(sys.argv[2])
try:
    make_engine(sys.argv[1], device="cuda", max_num_batched_tokens=int(sys.argv[3]))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("machine", "prompt_rows", "message"),
    [
        (
            {"PTXSIM_DEVICE": "none"},
            64,
            r'DeviceError device "cuda" needs an NVIDIA driver for CUDA 13 .*install the driver',
        ),
        ({"PTXSIM_DEVICE": "nogpu"}, 64, r"DeviceError device .* and a GPU: cudaErrorNoDevice"),
        ({"PTXSIM_DEVICE": "t4"}, 64, r"DeviceError GPU number 0 has compute capability 7.5; 8.0 .* is needed"),
        (
            {"PTXSIM_MEMORY_BYTES": str(50 << 20)},
            1 << 16,
            r"ResourceError the GPU has no \d+ bytes left \(\d+ of 52428800 free\); lower max_num_seqs, max_model_len",
        ),
    ],
    ids=["no-driver", "no-gpu", "too-old", "out-of-memory"],
)
def test_machines_that_cannot_run_it(
    bfloat16: Pair,
    simulator: Simulator,
    pytestconfig: pytest.Config,
    machine: dict[str, str],
    prompt_rows: int,
    message: str,
) -> None:
    library = pytestconfig.getoption("--ptxsim") or str(DEFAULT_SIMULATOR)
    arguments = [sys.executable, "-c", OPEN_ENGINE, str(bfloat16.paths[0]), library, str(prompt_rows)]
    places = [str(Path(__file__).parent), *sys.path]
    environment = {**os.environ, **machine, "PYTHONPATH": os.pathsep.join(places)}
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
    assert re.match(message, done.stdout), done.stdout
