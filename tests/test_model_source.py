"""Models given as a directory, a GGUF file or a hub id: what is fetched and converted, and the refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import write_target
from support.draft_formats import TARGET, SourceDraft, write_gguf
from support.hub import GATED, fake_hub
from support.successor import write_successor_draft, write_successor_target
from support.tiny_gguf import write_tiny_gguf
from support.tiny_tokenizer import write_tiny_tokenizer

from eagle31rt import LLM, SamplingParams
from eagle31rt.draft_source import draft_directory
from eagle31rt.errors import CheckpointError, InvalidArgumentError, ResourceError, UnsupportedError
from eagle31rt.gguf_conversion import convert_gguf
from eagle31rt.model_source import model_directory

GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("EAGLE31RT_CACHE", str(folder))
    return folder


def token_ids(llm: LLM) -> list[int]:
    return llm.generate("ab ba", GREEDY, use_tqdm=False)[0].outputs[0].token_ids


def test_a_gguf_file_is_converted_once(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_tiny_gguf(file)
    (tmp_path / "by-hand").mkdir()
    convert_gguf(file, tmp_path / "by-hand", lambda done, total: None)
    assert token_ids(LLM(file)) == token_ids(LLM(tmp_path / "by-hand"))
    (made,) = cache.iterdir()
    weights = made / "model.safetensors"
    first = weights.stat().st_mtime_ns
    assert model_directory(str(file), "model") == made and weights.stat().st_mtime_ns == first
    os.utime(file, ns=(1, 1))  # another file under the old name
    assert model_directory(file, "model") != made


def test_damaged_gguf_files_are_refused(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_tiny_gguf(file)
    whole = file.read_bytes()
    for length in [*range(4, 400, 36), len(whole) // 2, len(whole) - 1]:
        file.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"tiny\.gguf"):
            LLM(file)
    write_tiny_gguf(file, architecture="gemma2")
    with pytest.raises(CheckpointError, match="only llama models"):
        LLM(file)
    file.write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(CheckpointError, match=r"is a file but no GGUF file; give the directory"):
        LLM(file)
    assert list(cache.iterdir()) == []


def test_rope_of_gguf_models(tmp_path: Path) -> None:
    """Scaled frequencies are never dropped: they come from the keys or from the table, or the file is refused."""

    def rope(**options: Any) -> tuple[float, dict[str, Any] | None]:
        write_tiny_gguf(tmp_path / "tiny.gguf", **options)
        convert_gguf(tmp_path / "tiny.gguf", tmp_path, lambda done, total: None)
        config = json.loads((tmp_path / "config.json").read_text())
        return config["rope_theta"], config["rope_scaling"]

    assert rope() == (5000.0, None)
    assert rope(rope_scaling="linear") == (5000.0, {"rope_type": "linear", "factor": 4.0})
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}
    # Wave lengths 2 pi 5000^(i / 4): 6.3 and 52.8 below 1024 / 4, 444.3 between, 3736 above 1024.
    smooth = (1024 / (2 * np.pi * 5000.0**0.5) - 1) / 3
    table = np.array([1.0, 1.0, 1 / ((1 - smooth) / 8 + smooth), 8.0])
    assert rope(rope_frequencies=table) == (5000.0, {"rope_type": "llama3", **scaling})
    with pytest.raises(UnsupportedError, match=r"tiny\.gguf: llama\.rope\.scaling\.type is 'longrope'"):
        rope(rope_scaling="longrope")
    with pytest.raises(UnsupportedError, match=r"tiny\.gguf: tensor 'rope_freqs.weight' is no llama3 rope"):
        rope(rope_frequencies=np.array([1.0, 2.0, 3.0, 4.0]))


@pytest.mark.parametrize("word", ["../x/y", "a/b/c", "./nowhere", "no where/x", "a/-b", "-a/b", "x" * 300 + "/y"])
def test_what_is_no_hub_id_is_a_path(word: str) -> None:
    with pytest.raises(CheckpointError, match=r"model: there is no directory|cannot be read"):
        model_directory(word, "model")


def test_names_that_the_hub_refuses() -> None:
    with pytest.raises(CheckpointError, match=r"model: 'owner/name\.git' is neither on disk nor a hub id"):
        model_directory("owner/name.git", "model")
    with pytest.raises(CheckpointError, match="cannot be read"):
        model_directory("dr\udcff", "model")  # bytes that are no UTF-8


def test_one_gguf_file_of_a_folder(tmp_path: Path, cache: Path) -> None:
    for name in ("a", "b"):
        write_tiny_gguf(tmp_path / f"{name}.gguf")
    with pytest.raises(CheckpointError, match=r"draft: .* several GGUF files; give one of them: a\.gguf, b\.gguf"):
        draft_directory(tmp_path, "draft")
    (tmp_path / "b.gguf").unlink()
    assert draft_directory(tmp_path, "draft").parent == cache


def test_revisions_are_of_hub_ids(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"model: a revision is for hub ids, and .* is on disk"):
        LLM(tmp_path, revision="main")
    for wrong in ("", "../main", 3, "a b"):
        with pytest.raises(InvalidArgumentError, match=r"revision must be a branch, a tag or a commit"):
            model_directory("owner/name", "model", wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"speculative_config\['revision'\] must be a branch"):
        LLM(tmp_path, speculative_config={"model": "a/b", "revision": 3, "num_speculative_tokens": 2})


SCRIPT = """
import json, sys
from eagle31rt import LLM, SamplingParams
for arguments in json.loads(sys.argv[1]):
    try:
        llm = LLM(**arguments)
        sampling = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
        print(json.dumps(llm.generate("ab ba", sampling, use_tqdm=False)[0].outputs[0].token_ids))
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


def python_with_hub(home: Path, endpoint: str, script: str, argument: str, offline: bool = False) -> str:
    """What the script prints in a fresh process, whose hub is `endpoint`."""
    environment = {**os.environ, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": str(int(offline))}
    environment |= {"NO_PROXY": "127.0.0.1", "HF_HUB_DOWNLOAD_TIMEOUT": "20", "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, argument],
        env=environment, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout


def run_with_hub(home: Path, endpoint: str, runs: list[dict[str, Any]], offline: bool = False) -> list[list[Any]]:
    """What each LLM(**arguments) gave."""
    printed = python_with_hub(home, endpoint, SCRIPT, json.dumps(runs), offline)
    return [json.loads(line) for line in printed.splitlines()]


def test_hub_ids(tmp_path: Path) -> None:
    target = write_successor_target(tmp_path / "target")
    draft = write_successor_draft(tmp_path / "draft", target)
    write_tiny_tokenizer(target.directory)
    (target.directory / "original").mkdir()
    (target.directory / "original" / "other.safetensors").write_bytes(b"another format of the model")
    (target.directory / "README.md").write_text("not needed")
    speculation = {"model": "owner/draft", "num_speculative_tokens": 2}
    plain: dict[str, Any] = {"model": "owner/target"}
    with fake_hub({"owner/target": target.directory, "owner/draft": draft.directory}) as hub:
        first, second, gated, absent, unknown = run_with_hub(
            tmp_path / "home",
            hub.endpoint,
            [
                plain,
                {**plain, "revision": "main", "speculative_config": {**speculation, "revision": "main"}},
                {"model": GATED},
                {"model": "owner/absent"},
                {**plain, "revision": "v9"},
            ],
        )
        endpoint = hub.endpoint
    expected = token_ids(LLM(target.directory))
    assert first == expected and second == expected
    assert gated[0] == "CheckpointError" and "owner/gated is gated: accept its terms" in gated[1]
    assert absent[0] == "CheckpointError" and "no hub model 'owner/absent'" in absent[1]
    assert unknown[0] == "CheckpointError" and "owner/target has no revision 'v9'" in unknown[1]
    assert sorted(hub.fetched) == sorted({*hub.fetched}) and "owner/target/model.safetensors" in hub.fetched
    assert not [name for name in hub.fetched if name.endswith(("README.md", "other.safetensors"))]
    # Without the hub: what was fetched stays usable, the rest is refused.
    offline = [{**plain, "speculative_config": speculation}, {"model": "owner/other"}]
    for is_offline in (False, True):
        again, other = run_with_hub(tmp_path / "home", endpoint, offline, is_offline)
        assert again == expected
        assert other[0] == "ResourceError" and "is not in the local cache and the hub cannot be reached" in other[1]


CONVERTED = """
import sys
from eagle31rt.draft_source import draft_directory
print(*sorted(path.name for path in draft_directory(sys.argv[1], "draft").iterdir()))
"""


def test_a_draft_of_the_hub_may_be_a_gguf_file(tmp_path: Path, cache: Path) -> None:
    source = SourceDraft(write_target(tmp_path / "target", TARGET, seed=1))
    write_gguf(tmp_path / "gguf", source, absolute=True)
    with fake_hub({"owner/gguf": tmp_path / "gguf"}) as hub:
        run = partial(python_with_hub, tmp_path / "home", hub.endpoint, CONVERTED, "owner/gguf")
        assert run() == "config.json conversion.json model.safetensors\n" == run(offline=True)
        assert [name for name in hub.fetched if name.endswith(".gguf")] == ["owner/gguf/draft.gguf"]


def test_offline_suite_refuses_unknown_ids() -> None:
    with pytest.raises(ResourceError, match=r"HF_HUB_OFFLINE is set"):
        model_directory("owner/never-seen", "model")
