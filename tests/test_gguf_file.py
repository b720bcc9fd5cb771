"""GGUF files whose counts or values are wrong: refused at once, with the key."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from support.checkpoints import write_target
from support.draft_formats import STATES, TARGET, SourceDraft, gguf_layer, write_gguf
from support.draft_gguf import write_draft_gguf
from support.tiny_gguf import write_tiny_gguf

from eagle31rt.errors import CheckpointError, Eagle31rtError
from eagle31rt.gguf_draft import convert_gguf_draft, convert_gguf_file
from eagle31rt.gguf_file import gguf_architecture

_KEY = b"eagle3.extract_layers"
_UINT8, _INT32, _STRING, _ARRAY = 0, 5, 8, 9


@pytest.fixture
def image(tmp_path: Path) -> bytes:
    source = SourceDraft(write_target(tmp_path / "target", TARGET, seed=1))
    return write_gguf(tmp_path / "gguf", source, absolute=True).read_bytes()


def _with(image: bytes, offset: int, form: str, value: int) -> bytes:
    return image[:offset] + struct.pack(form, value) + image[offset + struct.calcsize(form) :]


def _array(image: bytes, kind: int, count: int) -> bytes:
    place = image.index(_KEY) + len(_KEY) + 4  # behind the type of the value
    return _with(_with(image, place, "<I", kind), place + 4, "<Q", count)


def test_architecture(tmp_path: Path, image: bytes) -> None:
    assert gguf_architecture(tmp_path / "gguf" / "draft.gguf") == "eagle3"
    write_tiny_gguf(tmp_path / "t.gguf")
    assert gguf_architecture(tmp_path / "t.gguf") == "llama"


# The gguf library takes 15 GB and minutes for the first two: behind the end of the file every element is empty.
@pytest.mark.parametrize(
    ("kind", "count", "message"),
    [
        (_ARRAY, 3, "has values of type 9"),
        (_UINT8, 2**60, "it ends within 'key eagle3.extract_layers'"),
        (_INT32, 2**60, "it ends within"),
        (_STRING, 2**60, "it ends within"),
        (77, 3, "has values of type 77"),
    ],
)
def test_arrays_end_within_the_file(kind: int, count: int, message: str, tmp_path: Path, image: bytes) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(_array(image, kind, count))
    for convert in (lambda: gguf_architecture(file), lambda: convert_gguf_draft(file, tmp_path)):
        with pytest.raises(CheckpointError, match=rf"x\.gguf.*{message}"):
            convert()


@pytest.mark.parametrize(
    ("offset", "form", "value", "message"),
    [
        (0, "<I", 0x04034B50, "is no GGUF file"),
        (4, "<I", 99, "is GGUF version 99"),
        (4, ">I", 3, "or not little-endian"),
        (8, "<Q", 2**63, "is damaged"),  # tensors
        (16, "<Q", 2**63, "it ends within"),  # keys
        (24, "<Q", 2**62, "it ends within 'key 0'"),  # the first key
    ],
)
def test_counts(offset: int, form: str, value: int, message: str, tmp_path: Path, image: bytes) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(_with(image, offset, form, value))
    with pytest.raises(CheckpointError, match=rf"x\.gguf.*{message}"):
        convert_gguf_file(file, tmp_path, lambda done, total: None)


def test_empty_and_cut_files(tmp_path: Path, image: bytes) -> None:
    file = tmp_path / "x.gguf"
    for length in (0, 3, 4, 8, 20, 30, 60, image.index(_KEY) + 10, len(image) // 2, len(image) - 1):
        file.write_bytes(image[:length])
        with pytest.raises(CheckpointError, match=r"x\.gguf"):
            convert_gguf_file(file, tmp_path, lambda done, total: None)


@pytest.mark.parametrize(
    ("keys", "extract_layers", "message"),
    [
        ({"attention.layer_norm_rms_epsilon": float("nan")}, STATES, r"layer_norm_rms_epsilon is nan"),
        ({"rope.freq_base": float("inf")}, STATES, r"key eagle3\.rope\.freq_base is inf"),
        ({"fc_norm": "yes"}, STATES, r"key eagle3\.fc_norm is 'yes', not true or false"),
        ({}, [2.5, 4.0, 5.0], r"extract_layers is \[2\.5, 4\.0, 5\.0\], no list of integers"),
    ],
)
def test_values(keys: dict[str, float | str], extract_layers: list[int], message: str, tmp_path: Path) -> None:
    source = SourceDraft(write_target(tmp_path / "target", TARGET, seed=1))
    file = tmp_path / "x.gguf"
    write_draft_gguf(file, gguf_layer(source), source.weights, extract_layers, {}, keys=keys)
    with pytest.raises(Eagle31rtError, match=message):
        convert_gguf_draft(file, tmp_path)
