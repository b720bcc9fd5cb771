"""Reads pytorch_model.bin (the zip form of torch.save) without running what is in it, and writes safetensors.

A pickle may call any function that it names. Here it can name three: the one that makes a tensor, the one that wraps
it as a parameter, and OrderedDict; and the storages of known dtypes. Anything else ends the reading.
"""

from __future__ import annotations

import json
import math
import pickletools
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
            raise ValueError("a tensor with another number of strides than of sizes, or too many")
        if not all(type(value) is int and value >= 0 for value in (offset, *size, *stride)):
            raise ValueError("a tensor whose size, strides or offset are no whole numbers")
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


_FUNCTIONS: tuple[object, ...] = (OrderedDict, _RebuildTensor(), _RebuildParameter())
_ALLOWED: dict[tuple[str, str], object] = {
    ("collections", "OrderedDict"): _FUNCTIONS[0],
    ("torch._utils", "_rebuild_tensor_v2"): _FUNCTIONS[1],
    ("torch._utils", "_rebuild_parameter"): _FUNCTIONS[2],
    **{("torch", name): storage for name, storage in _STORAGES.items()},
}


_CONSTANTS: dict[str, object] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_VALUES = frozenset(("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "BINFLOAT"))
_MAX_COPIES = 4  # of the file's bytes: tied weights are tensors over one storage


class _TensorPickle:
    """Runs the opcodes that a dictionary of tensors needs.

    Not pickle.Unpickler: even with nothing to call, 14 bytes make it allocate 4 GB (an index of its memo), and a
    dictionary's key of nested tuples hashes without end.
    """

    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        self._archive, self._folder = archive, folder
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._storages: dict[str, bytes] = {}
        self._bytes_left = _MAX_COPIES * sum(entry.file_size for entry in archive.infolist())

    def load(self) -> object:
        for opcode, argument, _ in pickletools.genops(self._archive.read(f"{self._folder}/data.pkl")):
            name = opcode.name
            if name == "STOP":
                return self._stack.pop()
            if name in _CONSTANTS:
                self._stack.append(_CONSTANTS[name])
            elif name in _VALUES:
                self._stack.append(argument)
            elif name not in ("PROTO", "FRAME"):
                self._run(name, argument)
        raise ValueError("a pickle without an end")

    def _run(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name == "MARK":
            self._marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if argument is None else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
            stack.append(tuple(self._pop(int(name[-1])) if name != "TUPLE" else self._pop_mark()))
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name in ("SETITEM", "SETITEMS"):
            self._set_items(self._pop(2) if name == "SETITEM" else self._pop_mark())
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            stack.append(self._allowed(*(argument.split(" ", 1) if name == "GLOBAL" else self._pop(2))))
        elif name == "BINPERSID":
            stack.append(self._stored(stack.pop()))
        elif name == "REDUCE":
            stack.append(self._call(*self._pop(2)))
        elif name == "BUILD":
            self._pop(1)  # what torch notes about modules, in an attribute of the OrderedDict
            if not isinstance(stack[-1], dict):
                raise ValueError("a state of what is no dictionary")
        else:
            raise UnsupportedError(f"it uses {name}, and only tensors are read")

    def _pop(self, count: int) -> list[Any]:
        return self._pop_from(len(self._stack) - count)

    def _pop_mark(self) -> list[Any]:
        return self._pop_from(self._marks.pop())

    def _pop_from(self, start: int) -> list[Any]:
        if start < 0:
            raise ValueError("a pickle that takes more than it has")
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict) or not all(isinstance(key, str) for key in items[::2]):
            raise ValueError("a dictionary whose keys are no names")
        target.update(zip(items[::2], items[1::2], strict=True))

    def _allowed(self, module: object, name: object) -> object:
        found = _ALLOWED.get((module, name)) if isinstance(module, str) and isinstance(name, str) else None
        if found is None:
            raise UnsupportedError(f"it names {f'{module}.{name}'[:200]!r}, and only tensors are read")
        return found

    def _call(self, function: object, arguments: object) -> object:
        if not any(function is known for known in _FUNCTIONS) or not isinstance(arguments, tuple):
            raise ValueError("a call of what is no function")
        if function is OrderedDict and arguments:
            raise ValueError("an OrderedDict with contents")
        result: object = function(*arguments)  # type: ignore[operator]
        if isinstance(result, RawTensor):
            self._bytes_left -= len(result.data)
            if self._bytes_left < 0:
                raise ValueError(f"its tensors take more than {_MAX_COPIES} times its size")
        return result

    def _stored(self, key: Any) -> _StoredElements:
        kind, storage, name, _, _ = key
        if kind != "storage" or not isinstance(storage, _Storage) or not isinstance(name, str):
            raise ValueError("a storage of an unknown kind")
        if name not in self._storages:
            self._storages[name] = self._archive.read(f"{self._folder}/data/{name}")
        return _StoredElements(storage, np.frombuffer(self._storages[name], storage.element))


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
            state = _TensorPickle(archive, _checked_folder(archive)).load()
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

    Other JSON files, config.json among them, are copied to `output`, another folder. Raises InvalidArgumentError if
    `source` holds no pickle and CheckpointError if it holds no tensors; else what read_torch_checkpoint raises.
    """
    tensors: dict[str, RawTensor] = {}
    for file in _weight_files(source):
        for name, tensor in read_torch_checkpoint(file).items():
            if name in tensors:
                raise CheckpointError(f"{source}: two files hold tensor {name!r}")
            tensors[name] = tensor
    if not tensors:
        raise CheckpointError(f"{source} holds no tensors")
    output.mkdir(parents=True, exist_ok=True)
    for file in source.glob("*.json"):
        if file.name != _INDEX:
            shutil.copyfile(file, output / file.name)
    save_safetensors(output / _OUTPUT, tensors)
    return len(tensors)


def _weight_files(source: Path) -> list[Path]:
    if (source / _SINGLE).is_file():
        return [source / _SINGLE]
    if not (source / _INDEX).is_file():
        shards = sorted(path.name for path in source.glob("pytorch_model*.bin"))
        found = f"; it holds {shards[0]}: download the index of the shards, too" if shards else ""
        raise InvalidArgumentError(f"{source} holds neither {_SINGLE} nor {_INDEX}{found}")
    try:
        names = sorted(set(json.loads((source / _INDEX).read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{source / _INDEX} has no readable weight_map") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not (source / name).is_file():
            raise CheckpointError(f"{source / _INDEX} lists {str(name)[:200]!r}, which is no file beside it")
    return [source / name for name in names]
