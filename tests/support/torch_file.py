"""pytorch_model.bin without torch: the zip and the pickle opcodes that torch.save writes."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping
from itertools import accumulate
from operator import mul
from pathlib import Path

from eagle31rt.safetensors_writer import RawTensor

_STORAGES = {
    "F32": "FloatStorage",
    "F16": "HalfStorage",
    "BF16": "BFloat16Storage",
    "I64": "LongStorage",
    "BOOL": "BoolStorage",
}


def text(value: str) -> bytes:
    """Opcodes of a string."""
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def numbers(*values: int) -> bytes:
    """Opcodes of a tuple of integers."""
    return b"(" + b"".join(b"J" + struct.pack("<i", value) for value in values) + b"t"


def tensor(storage: str, key: str, size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> bytes:
    """Opcodes of a view of the storage in entry data/`key`."""
    persistent = b"(" + text("storage") + f"ctorch\n{storage}\n".encode() + text(key) + text("cpu") + b"K\x06tQ"
    arguments = persistent + b"J" + struct.pack("<i", offset) + numbers(*size) + numbers(*stride)
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"\x89ccollections\nOrderedDict\n)RtR"


def write_archive(
    path: Path, values: Mapping[str, bytes], storages: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED
) -> Path:
    """A dictionary of name -> opcodes, and the storages that they name."""
    items = b"".join(text(name) + value for name, value in values.items())
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}(" + items + b"u.")
        archive.writestr("archive/byteorder", "little")
        for key, data in storages.items():
            archive.writestr(f"archive/data/{key}", data)
    return path


def write_torch_file(path: Path, tensors: Mapping[str, RawTensor]) -> Path:
    """What torch.save makes of a state dict of contiguous tensors."""
    values: dict[str, bytes] = {}
    storages: dict[str, bytes] = {}
    for index, (name, raw) in enumerate(tensors.items()):
        stride = tuple(accumulate((1, *reversed(raw.shape[1:])), mul))[::-1]
        values[name] = tensor(_STORAGES[raw.dtype], str(index), raw.shape, stride)
        storages[str(index)] = raw.data
    return write_archive(path, values, storages)
