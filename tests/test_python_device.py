"""Choosing a device from Python: what is refused, what is missing is named, and where CUDA's runtime comes from."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.successor import write_successor_target
from support.tiny_tokenizer import write_tiny_tokenizer

from eagle31rt import LLM, cuda_runtime
from eagle31rt.cli import main
from eagle31rt.errors import DeviceError, InvalidArgumentError


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_successor_target(tmp_path_factory.mktemp("target")).directory
    write_tiny_tokenizer(directory)
    return directory


@pytest.fixture
def no_backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    path = str(tmp_path / "libeagle31rt_cuda.so")
    monkeypatch.setenv("EAGLE31RT_CUDA_LIBRARY", path)
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, 'device is "tpu"; give cpu, cuda or cuda:N'),
        ({"device": 1}, "device must be 'cpu', 'cuda' or 'cuda:N', got 1"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization is 1.5"),
        ({"gpu_memory_utilization": "0.5"}, "gpu_memory_utilization must be a number, got '0.5'"),
        ({"enforce_eager": 1}, "enforce_eager must be True or False, got 1"),
    ],
)
def test_bad_settings_are_refused(target: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        LLM(target, skip_tokenizer_init=True, **options)


def test_the_cpu_is_what_is_used_unless_told_otherwise(target: Path) -> None:
    llm = LLM(target, skip_tokenizer_init=True, enforce_eager=True, gpu_memory_utilization=0.5, max_num_seqs=1)
    assert llm.info["device"] == "cpu"


def test_a_missing_backend_is_an_error_and_not_the_cpu(
    target: Path, no_backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DeviceError, match=f"no CUDA backend .*{no_backend}.*EAGLE31RT_CUDA=ON") as caught:
        LLM(target, skip_tokenizer_init=True, device="cuda")
    assert isinstance(caught.value, RuntimeError)
    status = main(["generate", "--model", str(target), "--device", "cuda:1", "--prompt", "a"])
    assert status == 2
    assert "no CUDA backend" in capsys.readouterr().err


def test_env_says_what_is_missing(no_backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--json"]) == 0
    cuda = json.loads(capsys.readouterr().out)["cuda"]
    assert (cuda["runtime"], cuda["driver"], cuda["devices"]) == (None, None, [])
    assert "no CUDA backend" in cuda["problem"]
    assert main(["env"]) == 0
    assert "cuda: not usable: this installation has no CUDA backend" in capsys.readouterr().out


def test_env_lists_devices(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from eagle31rt import _core

    device = {"name": "NVIDIA H100", "compute_capability": 90, "num_multiprocessors": 132, "total_memory": 80 << 30}
    facts = {"runtime_version": 13000, "driver_version": 13010, "devices": [device], "problem": ""}
    monkeypatch.setattr(_core, "cuda_info", lambda: facts)
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    assert "cuda: runtime 13.0, driver for CUDA 13.1\n" in out
    assert "  cuda:0 NVIDIA H100, 80 GiB, compute capability 9.0\n" in out


@pytest.mark.parametrize("folder", ["cu13/lib", "cuda_runtime/lib"])
def test_the_runtime_of_the_wheel_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str) -> None:
    library = tmp_path / "nvidia" / folder / "libcudart.so.13"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    tried: list[str] = []
    monkeypatch.setattr(cuda_runtime, "_load", lambda name, mode=0: tried.append(name) is None and len(tried) == 2)
    cuda_runtime.load_cuda_runtime()
    assert tried == ["libcudart.so.13", str(library)]  # what is loaded already comes first, the system's not at all


def test_the_runtime_that_is_loaded_already_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[str, int]] = []
    monkeypatch.setattr(cuda_runtime, "_load", lambda name, mode=0: tried.append((name, mode)) is None)
    cuda_runtime.load_cuda_runtime()
    assert tried == [("libcudart.so.13", cuda_runtime.os.RTLD_NOLOAD)]
