"""What the compiler made of each kernel, read from the machine code inside libeagle31rt_cuda.so.

The library holds one ELF image ("cubin") per source file and architecture. Their .nv.info sections say, per kernel, how
many registers a thread takes, how large its stack frame is (spills and local arrays) and how large a block may be.
"""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ELF = re.compile(rb"\x7fELF\x02\x01")
_MACHINE_CUDA = 190
_REGISTERS, _FRAME_SIZE, _MAX_THREADS = 0x2F, 0x11, 0x05  # attributes of .nv.info
_FORMAT_SIZED = 4  # the attribute's value follows; other formats keep it in the header


@dataclass(frozen=True)
class CompiledKernel:
    name: str  # demangled, without parameters
    architecture: int  # 80, 90, 100
    registers: int  # per thread
    stack_bytes: int  # per thread: spilled registers and local arrays
    static_shared_bytes: int
    max_threads: int  # of __launch_bounds__; 0 if the source does not say


@dataclass(frozen=True)
class _Section:
    name: str
    data: bytes
    size: int


def _string(table: bytes, start: int) -> str:
    return table[start : table.index(b"\0", start)].decode()


def _sections(image: bytes, header: tuple[int, ...]) -> list[_Section]:
    offset, entry_size, count, names_index = header[5], header[10], header[11], header[12]
    entries = [struct.unpack_from("<IIQQQQIIQQ", image, offset + i * entry_size) for i in range(count)]
    names = image[entries[names_index][4] :]
    no_bits = 8  # a section that takes no room in the file
    return [
        _Section(_string(names, e[0]), b"" if e[1] == no_bits else image[e[4] : e[4] + e[5]], e[5]) for e in entries
    ]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, place)
        place += 4
        value = b""
        if form == _FORMAT_SIZED:
            value = data[place : place + size]
            place += size
        yield attribute, value


def short_name(demangled: str) -> str:
    """`void a::k<T>(P)` -> `k<T>`: without what is the same everywhere, and without the parameters."""
    head = re.sub(r"eagle31rt::|cuda::|\(anonymous namespace\)::|^void ", "", demangled)
    depth = 0
    for i, character in enumerate(head):
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0:
            return head[:i]
    return head


def _demangle(names: list[str]) -> dict[str, str]:
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return {name: short_name(demangled) for name, demangled in zip(names, done.stdout.splitlines(), strict=True)}


def _kernels_of(image: bytes, header: tuple[int, ...]) -> list[tuple[str, dict[str, int]]]:
    sections = {section.name: section for section in _sections(image, header)}
    symbols, names = sections[".symtab"].data, sections[".strtab"].data
    symbol_names = [_string(names, struct.unpack_from("<I", symbols, i)[0]) for i in range(0, len(symbols), 24)]
    found: dict[str, dict[str, int]] = {}
    for attribute, value in _attributes(sections[".nv.info"].data):
        if attribute in (_REGISTERS, _FRAME_SIZE):
            index, number = struct.unpack("<II", value)
            key = "registers" if attribute == _REGISTERS else "stack_bytes"
            found.setdefault(symbol_names[index], {})[key] = number
    result = []
    for name, values in found.items():
        info = sections.get(f".nv.info.{name}")
        if info is None:  # a device function that was not inlined
            continue
        limits = [v for a, v in _attributes(info.data) if a == _MAX_THREADS]
        x, y, z = struct.unpack("<III", limits[0]) if limits else (0, 0, 0)
        shared = sections.get(f".nv.shared.{name}")
        values["static_shared_bytes"] = shared.size if shared is not None else 0
        values["max_threads"] = x * y * z
        result.append((name, values))
    return result


def read_kernels(library: Path) -> list[CompiledKernel]:
    """Every kernel of every architecture in the library, by architecture and name."""
    data = library.read_bytes()
    starts = [match.start() for match in _ELF.finditer(data)]
    found = []
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        image = data[start:end]
        header = struct.unpack_from("<HHIQQQIHHHHHH", image, 16)
        if header[1] == _MACHINE_CUDA:
            architecture = header[6] >> 8 & 0xFF
            found += [(architecture, name, values) for name, values in _kernels_of(image, header)]
    names = _demangle(sorted({name for _, name, _ in found}))
    return sorted(
        (CompiledKernel(name=names[name], architecture=architecture, **values) for architecture, name, values in found),
        key=lambda kernel: (kernel.architecture, kernel.name),
    )
