"""The safetensors reader: what it reads, and a clear CheckpointError for every way in which a file can be broken."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle31rt import _testing
from eagle31rt.errors import CheckpointError, UnsupportedError
from eagle31rt.safetensors_writer import RawTensor, save_safetensors


def image(header: object, data: bytes = b"", *, header_bytes: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if header_bytes is None else header_bytes).to_bytes(8, "little") + text + data


def entry(dtype: object, shape: object, begin: object, end: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


VALID_HEADER = {
    "__metadata__": {"format": "pt"},
    "a": entry("F32", [2, 2], 0, 16),
    "empty": entry("F32", [0, 3], 16, 16),
    "flags": entry("BOOL", [3], 18, 21),
    "scalar": entry("BF16", [], 16, 18),
}
VALID = image(VALID_HEADER, bytes(range(21)))


def test_reads_shapes_dtypes_and_bytes() -> None:
    tensors = _testing.read_checkpoint_bytes(VALID)
    assert tensors == {
        "a": ("F32", (2, 2), bytes(range(16))),
        "empty": ("F32", (0, 3), b""),
        "scalar": ("BF16", (), bytes([16, 17])),
        "flags": ("BOOL", (3,), bytes([18, 19, 20])),
    }


def test_reads_what_the_writer_writes(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.int64)
    save_safetensors(tmp_path / "model.safetensors", {"x.y": RawTensor("I64", (2, 3), values.tobytes())})
    assert _testing.read_checkpoint(str(tmp_path)) == {"x.y": ("I64", (2, 3), values.tobytes())}


@pytest.mark.parametrize(
    ("dtype", "elements", "num_bytes"),
    [("F64", 2, 16), ("F8_E4M3", 5, 5), ("I8", 3, 3), ("C64", 1, 8), ("F4", 4, 2), ("F6_E2M3", 4, 3), ("U16", 3, 6)],
)
def test_known_dtypes_that_the_runtime_does_not_use_are_readable(dtype: str, elements: int, num_bytes: int) -> None:
    tensors = _testing.read_checkpoint_bytes(image({"x": entry(dtype, [elements], 0, num_bytes)}, bytes(num_bytes)))
    assert tensors["x"][:2] == (dtype, (elements,))


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "0 bytes, too few"),
    "seven bytes": (b"\0" * 7, "7 bytes, too few"),
    "pointer of git lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "is a Git LFS pointer .* git lfs pull"
    ),
    "tensor without a name": (image({"": entry("U8", [0], 0, 0)}), 'tensor "" has no name'),
    "header over the limit": (image(b"{}", header_bytes=100_000_001), "limit of 100000000"),
    "header length of 2^64-1": (image(b"{}", header_bytes=2**64 - 1), "18446744073709551615"),
    "header past the end": (image(b"{}", header_bytes=3), "truncated"),
    "no header": (image(b""), "does not start with {"),
    "header is a list": (image(b"[]"), "does not start with {"),
    "header is not JSON": (image(b"{nope}"), "not valid JSON"),
    "header with a tail": (image(b"{}{}"), "not valid JSON"),
    "header not UTF-8": (image(b'{"\xff\xfe":1}'), "not valid JSON"),
    "control characters in a name": (image(b'{"a\x01":1}'), "not valid JSON"),
    "NUL header": (image(b"{\0}"), "not valid JSON"),
    "deep nesting": (image(b'{"a":' + b"[" * 100_000), "deeper than 3"),
    "deep objects": (image(b'{"a":' * 50_000), "deeper than 3"),
    "duplicate tensor": (
        image(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
        'tensor "a" is there twice',
    ),
    "duplicate key in an entry": (
        image(b'{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}', b"x"),
        'the key "dtype" twice',
    ),
    "metadata not strings": (image({"__metadata__": {"n": 1}}), "__metadata__"),
    "metadata a list": (image({"__metadata__": []}), "__metadata__"),
    "entry a number": (image({"a": 3}), '"a" must have dtype, shape'),
    "entry without offsets": (image({"a": {"dtype": "U8", "shape": [1]}}, b"x"), "must have dtype, shape"),
    "entry with more": (image({"a": {**entry("U8", [1], 0, 1), "x": 1}}, b"x"), "and nothing else"),
    "unknown dtype": (image({"a": entry("F31", [1], 0, 4)}, b"1234"), 'unknown dtype "F31"'),
    "lower-case dtype": (image({"a": entry("f32", [1], 0, 4)}, b"1234"), 'unknown dtype "f32"'),
    "dtype a number": (image({"a": entry(32, [1], 0, 4)}, b"1234"), "unknown dtype 32"),
    "shape a number": (image({"a": entry("U8", 1, 0, 1)}, b"x"), "shape must be a list"),
    "shape too long": (image({"a": entry("U8", [1] * 33, 0, 1)}, b"x"), "at most 32"),
    "negative shape": (image({"a": entry("U8", [-1], 0, 1)}, b"x"), "shape holds -1"),
    "fractional shape": (image({"a": entry("U8", [1.5], 0, 1)}, b"x"), "shape holds 1.5"),
    "text in shape": (image({"a": entry("U8", ["1"], 0, 1)}, b"x"), "not a whole number"),
    "overflowing shape": (image({"a": entry("F32", [2**32, 2**32], 0, 0)}), "impossible shape"),
    "shape of 2^63": (image({"a": entry("U8", [2**63], 0, 0)}), "impossible shape"),
    "shape of 2^70": (image({"a": entry("U8", [2**70], 0, 0)}), "not a whole number"),
    "overflow before a zero": (image({"a": entry("F32", [2**40, 2**40, 0], 0, 0)}), "impossible shape"),
    "wrong product": (image({"a": entry("F32", [2], 0, 4)}, b"1234"), "needs 8 bytes"),
    "range too long": (image({"a": entry("U8", [1], 0, 2)}, b"xy"), "needs 1 bytes"),
    "half bytes": (image({"a": entry("F4", [3], 0, 2)}, b"xy"), "whole bytes"),
    "offsets swapped": (image({"a": entry("U8", [1], 1, 0)}, b"x"), r"range \[1, 0\]"),
    "offsets past the end": (image({"a": entry("U8", [2], 0, 2)}, b"x"), r"range \[0, 2\] in 1 bytes"),
    "offsets near 2^64": (image({"a": entry("U8", [1], 2**64 - 2, 2**64 - 1)}, b"x"), "byte range"),
    "negative offsets": (image({"a": entry("U8", [1], -1, 0)}, b"x"), "data_offsets holds -1"),
    "three offsets": (image({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 1]}}, b"x"), r"\[begin, end\]"),
    "overlap": (image({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, b"xyz"), 'overlaps tensor "a"'),
    "same range": (image({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 0, 2)}, b"xy"), "overlaps"),
    "hole": (image({"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 2, 3)}, b"xyz"), '"b" starts 1 bytes after'),
    "hole at the start": (image({"a": entry("U8", [1], 1, 2)}, b"xy"), "after the end of the header"),
    "bytes after the last tensor": (image({"a": entry("U8", [1], 0, 1)}, b"xy"), "1 bytes that belong to no tensor"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_file(case: str) -> None:
    data, message = BROKEN[case]
    with pytest.raises(CheckpointError, match=message):
        _testing.read_checkpoint_bytes(data)


def test_every_truncation_is_refused() -> None:
    for length in range(len(VALID)):
        with pytest.raises(CheckpointError):
            _testing.read_checkpoint_bytes(VALID[:length])


def test_too_many_values_are_refused() -> None:
    with pytest.raises(CheckpointError, match="more than 4000000 JSON values"):
        _testing.read_checkpoint_bytes(image(b'{"a":[' + b"0," * 4_000_000 + b"0]}"))


def checked(data: bytes) -> None:
    """Reads an image that may be broken: it is refused cleanly, or its tensors tile the bytes after the header."""
    try:
        tensors = _testing.read_checkpoint_bytes(data)
    except CheckpointError:
        return
    header_bytes = int.from_bytes(data[:8], "little")
    assert sum(len(content) for _, _, content in tensors.values()) == len(data) - 8 - header_bytes


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_flipped_bytes_never_crash(changes: list[tuple[int, int]]) -> None:
    data = bytearray(VALID)
    for position, value in changes:
        data[position] = value
    checked(bytes(data))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(VALID)), st.binary(max_size=40), st.integers(0, len(VALID)))
def test_spliced_bytes_never_crash(begin: int, inserted: bytes, end: int) -> None:
    checked(VALID[:begin] + inserted + VALID[end:])


# ---------------------------------------------------------------- directories


def write_shards(directory: Path, change: Callable[[dict[str, Any]], None] | None = None) -> None:
    """Two shards, "a" in the first and "b" in the second, with an index that `change` may edit."""
    for number, name in ((1, "a"), (2, "b")):
        path = directory / f"model-{number:05d}-of-00002.safetensors"
        save_safetensors(path, {name: RawTensor("U8", (1,), bytes([number]))})
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index: dict[str, Any] = {"metadata": {}, "weight_map": weight_map}
    if change is not None:
        change(index)
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def test_sharded_checkpoint(tmp_path: Path) -> None:
    write_shards(tmp_path)
    assert _testing.read_checkpoint(str(tmp_path)) == {"a": ("U8", (1,), b"\x01"), "b": ("U8", (1,), b"\x02")}


def test_symbolic_links_are_followed(tmp_path: Path) -> None:
    """The cache of the Hub links files to blobs elsewhere."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    save_safetensors(tmp_path / "blobs" / "0123", {"a": RawTensor("U8", (1,), b"z")})
    (tmp_path / "snapshot" / "model.safetensors").symlink_to("../blobs/0123")
    assert _testing.read_checkpoint(str(tmp_path / "snapshot")) == {"a": ("U8", (1,), b"z")}


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
BROKEN_INDEX: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "parent directory": (lambda i: i["weight_map"].update(b=f"../{SECOND}"), "in the same directory"),
    "absolute path": (lambda i: i["weight_map"].update(b="/etc/passwd"), "in the same directory"),
    "dot dot": (lambda i: i["weight_map"].update(b=".."), "in the same directory"),
    "NUL in a name": (lambda i: i["weight_map"].update(b="x\0y"), "in the same directory"),
    "empty name": (lambda i: i["weight_map"].update(b=""), "in the same directory"),
    "number for a name": (lambda i: i["weight_map"].update(b=2), "in the same directory"),
    "missing shard": (lambda i: i["weight_map"].update(b="gone.safetensors"), "gone.safetensors"),
    "tensor in no shard": (lambda i: i["weight_map"].update(c=SECOND), 'lacks tensor "c"'),
    "tensor in the other shard": (lambda i: i["weight_map"].update(a=SECOND, b=FIRST), "lacks tensor"),
    "no weight_map": (lambda i: i.pop("weight_map"), 'lacks "weight_map"'),
    "empty weight_map": (lambda i: i.update(weight_map={}), 'lacks "weight_map"'),
    "weight_map a list": (lambda i: i.update(weight_map=[]), 'lacks "weight_map"'),
}


@pytest.mark.parametrize("case", BROKEN_INDEX)
def test_broken_index(case: str, tmp_path: Path) -> None:
    change, message = BROKEN_INDEX[case]
    write_shards(tmp_path, change)
    with pytest.raises(CheckpointError, match=message):
        _testing.read_checkpoint(str(tmp_path))


def test_too_many_shards(tmp_path: Path) -> None:
    """Each is a map and an open file."""
    names = [f"s{n}" for n in range(4097)]
    for name in names:
        (tmp_path / name).write_bytes(image({name: entry("U8", [0], 0, 0)}))
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict(zip(names, names, strict=True))})
    )
    with pytest.raises(CheckpointError, match="names more than 4096 files"):
        _testing.read_checkpoint(str(tmp_path))


def test_tensor_that_the_index_does_not_list(tmp_path: Path) -> None:
    write_shards(tmp_path)
    save_safetensors(tmp_path / FIRST, {name: RawTensor("U8", (1,), b"x") for name in ("a", "extra")})
    with pytest.raises(CheckpointError, match="lists 2 tensors, but its files hold 3"):
        _testing.read_checkpoint(str(tmp_path))


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    write_shards(tmp_path)
    save_safetensors(tmp_path / SECOND, {name: RawTensor("U8", (1,), b"x") for name in ("a", "b")})
    with pytest.raises(CheckpointError, match='tensor "a" is there twice, or also in another shard'):
        _testing.read_checkpoint(str(tmp_path))


def test_truncated_shard_names_the_file(tmp_path: Path) -> None:
    write_shards(tmp_path)
    path = tmp_path / SECOND
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=SECOND):
        _testing.read_checkpoint(str(tmp_path))


def test_directory_without_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        _testing.read_checkpoint(str(tmp_path))
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UnsupportedError, match="convert it to safetensors: eagle31rt convert --input"):
        _testing.read_checkpoint(str(tmp_path))


def test_what_a_folder_has_instead_is_named(tmp_path: Path) -> None:
    """A link whose file was cleaned away, as in the hub's cache; weights under another name; shards without index."""

    def refused(message: str) -> None:
        with pytest.raises(CheckpointError, match=message):
            _testing.read_checkpoint(str(tmp_path))

    single = tmp_path / "model.safetensors"
    single.symlink_to("../blobs/gone")
    refused(r"/model\.safetensors is a link to a file that is not there; download it again")
    single.unlink()
    single.mkdir()
    refused(r"/model\.safetensors is not a file")
    single.rmdir()
    write_shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    refused(f'it has "{FIRST}" and 1 more: download the index of these shards, too')
    (tmp_path / SECOND).unlink()
    refused(f'it has "{FIRST}": rename it to model.safetensors if it is the whole model')


def test_shards_of_pickles_are_named(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model-00001-of-00002.bin").write_bytes(b"")
    with pytest.raises(UnsupportedError, match=r"holds pytorch_model-00001-of-00002\.bin, .*eagle31rt convert"):
        _testing.read_checkpoint(str(tmp_path))


def test_special_files_are_refused(tmp_path: Path) -> None:
    """A FIFO must not hang the loader, nor a directory be read."""
    write_shards(tmp_path)
    (tmp_path / SECOND).unlink()
    os.mkfifo(tmp_path / SECOND)
    with pytest.raises(CheckpointError, match="not a regular file"):
        _testing.read_checkpoint(str(tmp_path))
    (tmp_path / SECOND).unlink()
    (tmp_path / SECOND).mkdir()
    with pytest.raises(CheckpointError, match="not a regular file"):
        _testing.read_checkpoint(str(tmp_path))
