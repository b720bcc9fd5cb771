"""What the benches share: the engine driven step by step, medians, and a description of where a figure comes from."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from eagle31rt import __version__, _core

RESULTS = Path(__file__).parent / "results"


def processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def without_folders(word: str) -> str:
    """An argument as a reader would give it: absolute folders become the name of what they hold."""
    name, equals, value = word.rpartition("=")
    return name + equals + (Path(value).name if value.startswith("/") else value)


def provenance() -> dict[str, Any]:
    """Machine, version and command, so that a figure can be judged and taken again."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    info = _core.cpu_info()
    return {
        "command": " ".join(["python", *(without_folders(word) for word in sys.argv)]),
        "eagle31rt": __version__,
        "commit": commit.stdout.strip() or "unknown",
        "processor": processor_name(),
        "physical_cores": info["num_physical_cores"],
        "instruction_set": info["instruction_set"],
        "python": platform.python_version(),
    }


def write_result(name: str, result: dict[str, Any]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / name
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def make_engine(model: str, draft: str = "", **fields: Any) -> _core.Engine:
    config = _core.EngineConfig()
    config.model, config.draft = model, draft
    for name, value in fields.items():
        setattr(config, name, value)
    return _core.Engine(config)


def make_params(max_tokens: int, **fields: Any) -> _core.SamplingParams:
    params = _core.SamplingParams()
    params.temperature, params.max_tokens, params.ignore_eos = 0.0, max_tokens, True
    for name, value in fields.items():
        setattr(params, name, value)
    return params


def run_request(
    engine: _core.Engine, prompt: Sequence[int], params: _core.SamplingParams
) -> tuple[list[int], list[dict[str, int]], _core.SpeculationMetrics]:
    """Runs one request alone: its ids, the profile of every step (step 0 is the prefill) and its totals."""
    engine.profile()
    engine.add_request(0, prompt, params)
    ids: list[int] = []
    steps: list[dict[str, int]] = []
    while engine.has_unfinished_requests():
        outputs = engine.step()
        steps.append(engine.profile())
        for output in outputs:
            ids += output.new_token_ids
    return ids, steps, outputs[-1].metrics


def alternate(repeats: int, measurements: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Medians of measurements taken in turn, so that a noisy minute hits all of them alike."""
    samples: dict[str, list[float]] = {name: [] for name in measurements}
    for _ in range(repeats):
        for name, measure in measurements.items():
            samples[name].append(measure())
    return {name: median(values) for name, values in samples.items()}
