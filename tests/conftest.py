"""Fixtures and skips of all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.device import Simulator, load_simulator, simulator_modes

if TYPE_CHECKING:
    from eagle31rt.demo_model import DemoPair

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is first imported; the suite needs no network
_DEV_PACKAGES = ("torch", "transformers")
_SIMULATOR = pytest.StashKey[Simulator | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=("cpu", "cuda"), default="cpu", help="where the operator tests run")
    parser.addoption("--ptxsim", metavar="PATH", help="libcudart.so.13 of tools/ptxsim, instead of a GPU")
    parser.addoption("--every", type=int, default=1, metavar="N", help="run each N-th of the selected tests only")


def pytest_configure(config: pytest.Config) -> None:
    on_cuda = config.getoption("--device") == "cuda"
    config.stash[_SIMULATOR] = load_simulator(config.getoption("--ptxsim")) if on_cuda else None


def pytest_report_header(config: pytest.Config) -> str:
    if config.getoption("--device") == "cpu":
        return "device: cpu"
    return f"device: cuda, {'a GPU' if config.stash[_SIMULATOR] is None else 'ptxsim: ' + simulator_modes()}"


def runs_on(item: pytest.Item, device: str) -> bool:
    """On CUDA: tests that take the fixture `device`, and those marked `cuda`; on the CPU all but the latter."""
    if device == "cuda":
        return "device" in getattr(item, "fixturenames", ()) or item.get_closest_marker("cuda") is not None
    return item.get_closest_marker("cuda") is None


def select_for_device(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = [item for item in items if runs_on(item, config.getoption("--device"))][:: config.getoption("--every")]
    kept = set(map(id, wanted))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = wanted


# First: the mark expression of the command line (-m "not real_model") must see what is added here.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    select_for_device(config, items)
    missing = [name for name in _DEV_PACKAGES if find_spec(name) is None]
    for item in items:
        if "demo_pair" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real_model)
        if missing and item.get_closest_marker("dev") is not None:
            reason = f"needs {' and '.join(missing)}: pip install '.[dev]'"
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    """cpu or cuda, as the command line says."""
    return str(request.config.getoption("--device"))


@pytest.fixture
def on_simulator(request: pytest.FixtureRequest) -> bool:
    """Whether device cuda is tools/ptxsim."""
    return request.config.stash[_SIMULATOR] is not None


@pytest.fixture
def simulator(request: pytest.FixtureRequest) -> Simulator:
    """The CUDA simulator; skips where the tests run on a GPU or on the CPU."""
    simulator = request.config.stash[_SIMULATOR]
    if simulator is None:
        pytest.skip("needs the CUDA simulator")
    return simulator


@pytest.fixture(scope="session")
def training_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target that a head can learn, see support/training.py."""
    from support.training import write_training_target

    return write_training_target(tmp_path_factory.mktemp("training") / "target")


@pytest.fixture(scope="session")
def finished_run(training_target: Path) -> Path:
    """The output of a run of STEPS steps in one piece, its work folder beside it; tests leave both as they are."""
    from support.training import STEPS, train_arguments

    from eagle31rt.cli import main

    output = training_target.parent / "finished"
    assert main(train_arguments(training_target, output, steps=STEPS)) == 0
    return output


@pytest.fixture(scope="session")
def demo_pair() -> DemoPair:
    """The demo target and draft, prepared once in the user's cache folder (network on the very first use)."""
    from eagle31rt.demo_model import prepare_demo_pair

    return prepare_demo_pair()


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of its own, not yet created."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("EAGLE31RT_CACHE", str(folder))
    yield folder
