"""Reads pytorch_model.bin (the zip form of torch.save) without running what is in it, and writes safetensors.

A pickle may call any function that it names. Here it can name three: the one that makes a tensor, the one that wraps
it as a parameter, and OrderedDict; and the storages of known dtypes. Anything else ends the reading.
"""

from __future__ import annotations

import json
import math
import pickle
import shutil
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from eagle31rt.errors import CheckpointError, InvalidArgumentError, UnsupportedError
from eagle31rt.safetensors_writer import RawTensor, save_safetensors

_SINGLE = "pytorch_model.bin"
_INDEX = "pytorch_model.bin.index.json"
_OUTPUT = "model.safetensors"
_MAX_PICKLE_BYTES = 64 << 20  # names, shapes and strides only: 100,000 tensors need about 20 MB
_MAX_DIMENSIONS = 8


class _Storage(NamedTuple):
    dtype: str  # as safetensors spells it
    element: str  # numpy's type of the same width; bfloat16 has none, its bits are copied


_STORAGES = {
    "FloatStorage": _Storage("F32", "<f4"),
    "HalfStorage": _Storage("F16", "<f2"),
    "BFloat16Storage": _Storage("BF16", "<u2"),
    "DoubleStorage": _Storage("F64", "<f8"),
    "LongStorage": _Storage("I64", "<i8"),
    "IntStorage": _Storage("I32", "<i4"),
    "ByteStorage": _Storage("U8", "|u1"),
    "CharStorage": _Storage("I8", "|i1"),
    "BoolStorage": _Storage("BOOL", "|u1"),
}


class _StoredElements(NamedTuple):
    storage: _Storage
    elements: npt.NDArray[Any]


class _RebuildTensor:
    """torch._utils._rebuild_tensor_v2. Without attributes, so that a pickle cannot change it."""

    __slots__ = ()

    def __call__(self, stored: object, offset: object, size: object, stride: object, *_: object) -> RawTensor:
        if not isinstance(stored, _StoredElements) or not isinstance(size, tuple) or not isinstance(stride, tuple):
            raise ValueError("a tensor without storage, size or stride")
        if len(size) != len(stride) or len(size) > _MAX_DIMENSIONS:
            raise ValueError(f"a tensor of size {size} with strides {stride}")
        if not all(type(value) is int and value >= 0 for value in (offset, *size, *stride)):
            raise ValueError(f"a tensor of size {size}, strides {stride} and offset {offset}")
        assert isinstance(offset, int)
        storage, elements = stored
        if math.prod(size) == 0:
            return RawTensor(storage.dtype, size, b"")
        last = offset + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
        # Strides of 0 would make a tensor of any size out of one element.
        if last >= len(elements) or math.prod(size) > len(elements):
            raise ValueError(f"a tensor of size {size} and strides {stride} that leaves its storage")
        steps = [step * elements.itemsize for step in stride]
        view = np.lib.stride_tricks.as_strided(elements[offset:], size, steps)
        return RawTensor(storage.dtype, size, view.tobytes())


class _RebuildParameter:
    """torch._utils._rebuild_parameter: a parameter is its tensor."""

    __slots__ = ()

    def __call__(self, tensor: object, *_: object) -> object:
        return tensor


_ALLOWED: dict[tuple[str, str], object] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _RebuildTensor(),
    ("torch._utils", "_rebuild_parameter"): _RebuildParameter(),
    **{("torch", name): storage for name, storage in _STORAGES.items()},
}


class _TensorUnpickler(pickle.Unpickler):
    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(archive.open(f"{folder}/data.pkl"))
        self._archive, self._folder = archive, folder

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise UnsupportedError(f"it names {f'{module}.{name}'[:200]!r}, and only tensors are read")
        return _ALLOWED[module, name]

    def persistent_load(self, key: Any) -> _StoredElements:
        kind, storage, name, _, _ = key
        if kind != "storage" or not isinstance(storage, _Storage) or not isinstance(name, str):
            raise ValueError(f"a storage of an unknown kind: {str(key)[:200]}")
        data = self._archive.read(f"{self._folder}/data/{name}")
        return _StoredElements(storage, np.frombuffer(data, storage.element))


def read_torch_checkpoint(path: Path) -> dict[str, RawTensor]:
    """The tensors of one file of torch.save, by name.

    Raises CheckpointError if the file is broken and UnsupportedError if it holds anything but tensors of known
    dtypes, or is in the form that torch wrote before version 1.6.
    """
    if not zipfile.is_zipfile(path):
        raise UnsupportedError(
            f"{path} is no zip file (torch wrote another form before version 1.6); load it where you trust it and "
            "save it again as model.safetensors"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            state = _TensorUnpickler(archive, _checked_folder(archive)).load()
    except UnsupportedError as error:
        raise UnsupportedError(f"{path} is not read: {error}") from None
    except Exception as error:  # a hostile pickle raises whatever it likes
        raise CheckpointError(f"{path} is broken: {type(error).__name__}: {str(error)[:300]}") from error
    if not isinstance(state, dict):
        raise UnsupportedError(f"{path} holds {type(state).__name__}, not a dictionary of tensors")
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, RawTensor):
            raise UnsupportedError(f"{path}: {str(name)[:200]!r} is {type(tensor).__name__}, not a tensor")
    return dict(state)


def _checked_folder(archive: zipfile.ZipFile) -> str:
    """The folder of data.pkl. torch never compresses; a compressed entry could grow without bound when read."""
    folders = [name.removesuffix("/data.pkl") for name in archive.namelist() if name.endswith("/data.pkl")]
    if len(folders) != 1:
        raise ValueError(f"{len(folders)} entries data.pkl instead of one")
    for entry in archive.infolist():
        if entry.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"entry {entry.filename!r} is compressed")
    if archive.getinfo(f"{folders[0]}/data.pkl").file_size > _MAX_PICKLE_BYTES:
        raise ValueError(f"data.pkl is larger than {_MAX_PICKLE_BYTES} bytes")
    if f"{folders[0]}/byteorder" in archive.namelist() and archive.read(f"{folders[0]}/byteorder") != b"little":
        raise ValueError("its numbers are not little-endian")
    return folders[0]


def convert_torch_checkpoint(source: Path, output: Path) -> int:
    """Writes the pytorch_model.bin of `source` (or its shards) as `output`/model.safetensors; returns the tensor count.

    Other JSON files, config.json among them, are copied. Raises InvalidArgumentError if `output` holds a model already
    or `source` holds none; else what read_torch_checkpoint raises.
    """
    if (output / _OUTPUT).exists():
        raise InvalidArgumentError(f"--output {output} holds {_OUTPUT} already; give another folder")
    tensors: dict[str, RawTensor] = {}
    for file in _weight_files(source):
        for name, tensor in read_torch_checkpoint(file).items():
            if name in tensors:
                raise CheckpointError(f"{source}: two files hold tensor {name!r}")
            tensors[name] = tensor
    output.mkdir(parents=True, exist_ok=True)
    if output.resolve() != source.resolve():
        for file in source.glob("*.json"):
            if file.name != _INDEX:
                shutil.copyfile(file, output / file.name)
    save_safetensors(output / _OUTPUT, tensors)
    return len(tensors)


def _weight_files(source: Path) -> list[Path]:
    if (source / _SINGLE).is_file():
        return [source / _SINGLE]
    if not (source / _INDEX).is_file():
        raise InvalidArgumentError(f"--input {source} holds neither {_SINGLE} nor {_INDEX}")
    try:
        names = sorted(set(json.loads((source / _INDEX).read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{source / _INDEX} has no readable weight_map") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not (source / name).is_file():
            raise CheckpointError(f"{source / _INDEX} lists {str(name)[:200]!r}, which is no file beside it")
    return [source / name for name in names]
