"""Fixtures and skips of all tests."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from eagle31rt.demo_model import DemoPair

_DEV_PACKAGES = ("torch", "transformers")


# First: the mark expression of the command line (-m "not real_model") must see what is added here.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [name for name in _DEV_PACKAGES if find_spec(name) is None]
    for item in items:
        if "demo_pair" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real_model)
        if missing and item.get_closest_marker("dev") is not None:
            reason = f"needs {' and '.join(missing)}: pip install '.[dev]'"
            item.add_marker(pytest.mark.skip(reason=reason))


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
