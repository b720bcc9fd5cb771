"""pytorch_model.bin is read as tensors only: what a pickle could run or claim is refused."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.torch_file import tensor, text, write_archive

from eagle31rt.cli import main
from eagle31rt.errors import CheckpointError, UnsupportedError
from eagle31rt.torch_checkpoint import convert_torch_checkpoint, read_torch_checkpoint

STORAGES = {"0": np.arange(6, dtype="<f4").tobytes(), "1": np.arange(6, dtype="<i8").tobytes()}


def write(path: Path, values: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    return write_archive(path, values, STORAGES, compression)


def test_tensors_with_strides_and_offsets(tmp_path: Path) -> None:
    values = {
        "plain": tensor("FloatStorage", "0", (2, 3), (3, 1)),
        "transposed": tensor("FloatStorage", "0", (3, 2), (1, 3)),
        "tail": tensor("LongStorage", "1", (2,), (1,), offset=4),
    }
    tensors = read_torch_checkpoint(write(tmp_path / "w.bin", values))
    assert [(name, found.dtype, found.shape) for name, found in tensors.items()] == [
        ("plain", "F32", (2, 3)), ("transposed", "F32", (3, 2)), ("tail", "I64", (2,))]  # fmt: skip
    assert np.frombuffer(tensors["transposed"].data, "<f4").tolist() == [0, 3, 1, 4, 2, 5]
    assert np.frombuffer(tensors["tail"].data, "<i8").tolist() == [4, 5]


def test_nothing_in_the_file_is_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    call = b"cos\nsystem\n(" + text(f"touch {marker}") + b"tR"
    with pytest.raises(UnsupportedError, match=r"names 'os\.system', and only tensors are read"):
        read_torch_checkpoint(write(tmp_path / "w.bin", {"w": call}))
    assert not marker.exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (tensor("FloatStorage", "0", (2, 4), (3, 1)), "leaves its storage"),
        (tensor("FloatStorage", "0", (7,), (0,)), "leaves its storage"),
        (tensor("FloatStorage", "0", (6,), (1,), offset=1), "leaves its storage"),
        (tensor("FloatStorage", "0", (2,), (-1,), offset=1), "strides"),
        (tensor("FloatStorage", "0", (2, 3), (3,)), "strides"),
        (tensor("FloatStorage", "9", (1,), (1,)), "data/9"),
        # State for the function that makes tensors: it has no attribute to change.
        (b"ctorch._utils\n_rebuild_tensor_v2\n}" + text("__doc__") + b"K\x01sb", "is broken"),
    ],
)
def test_broken_tensors_are_refused(tmp_path: Path, value: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_torch_checkpoint(write(tmp_path / "w.bin", {"w": value}))


def test_other_contents_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="QuantizedStorage"):
        read_torch_checkpoint(write(tmp_path / "a.bin", {"w": tensor("QuantizedStorage", "0", (1,), (1,))}))
    with pytest.raises(UnsupportedError, match="'epoch' is int"):
        read_torch_checkpoint(write(tmp_path / "b.bin", {"epoch": b"K\x05"}))
    with pytest.raises(CheckpointError, match="is compressed"):
        read_torch_checkpoint(write(tmp_path / "c.bin", {}, compression=zipfile.ZIP_DEFLATED))
    (tmp_path / "d.bin").write_bytes(b"\x80\x02}.")
    with pytest.raises(UnsupportedError, match="no zip file"):
        read_torch_checkpoint(tmp_path / "d.bin")


def _pickle(path: Path, opcodes: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + opcodes)
    return path


def test_small_files_take_little(tmp_path: Path) -> None:
    """pickle.Unpickler would allocate 4 GB for the first, hash without end for the second and read the third."""
    far_place = _pickle(tmp_path / "a.bin", b"}r\xff\xff\xff\x1f.")
    assert read_torch_checkpoint(far_place) == {}
    nested = b")q\x00" + b"".join(b"h%c" % i + b"h%c" % i + b"\x86q%c" % (i + 1) for i in range(60))
    with pytest.raises(CheckpointError, match="keys are no names"):
        read_torch_checkpoint(_pickle(tmp_path / "b.bin", nested + b"}h\x3cK\x01s."))
    whole = tensor("FloatStorage", "0", (25_000,), (1,))
    many = write_archive(tmp_path / "c.bin", {f"w{i}": whole for i in range(10)}, {"0": bytes(100_000)})
    with pytest.raises(CheckpointError, match="more than 4 times its size"):
        read_torch_checkpoint(many)


@pytest.mark.parametrize(
    ("opcodes", "message"),
    [
        (b"].", "it uses EMPTY_LIST"),
        (b"s.", "takes more than it has"),
        (b"h\x05.", "is broken"),
        (b"}", "is broken"),
        (b"}K\x01K\x02s.", "keys are no names"),
        (b"ccollections\nOrderedDict\n}\x85R.", "an OrderedDict with contents"),
        (b"K\x01)R.", "a call of what is no function"),
        (b"K\x01Q.", "is broken"),
    ],
)
def test_other_pickles_are_refused(opcodes: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises((CheckpointError, UnsupportedError), match=message):
        read_torch_checkpoint(_pickle(tmp_path / "w.bin", opcodes))


def test_an_index_that_nests_without_end_or_a_file_without_tensors(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin.index.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="no readable weight_map"):
        convert_torch_checkpoint(tmp_path, tmp_path / "out")
    _pickle(tmp_path / "pytorch_model.bin", b"}.")
    with pytest.raises(CheckpointError, match="holds no tensors"):
        convert_torch_checkpoint(tmp_path, tmp_path / "out")


def test_command_converts_shards_and_keeps_the_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    write(source / "a.bin", {"fc.weight": tensor("BFloat16Storage", "0", (12,), (1,))})
    write(source / "b.bin", {"d2t": tensor("LongStorage", "1", (6,), (1,))})
    (source / "config.json").write_text("{}")
    index = source / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"fc.weight": "a.bin", "d2t": "b.bin"}}))
    arguments = ["convert", "--input", str(source), "--output", str(output)]
    assert main(arguments) == 0 and "2 tensors" in capsys.readouterr().out
    assert sorted(file.name for file in output.iterdir()) == ["config.json", "model.safetensors"]
    image = (output / "model.safetensors").read_bytes()
    header_bytes = int.from_bytes(image[:8], "little")
    header = json.loads(image[8 : 8 + header_bytes])
    assert header["fc.weight"]["dtype"] == "BF16" and header["d2t"]["shape"] == [6]
    begin, end = header["fc.weight"]["data_offsets"]
    assert image[8 + header_bytes :][begin:end] == np.arange(6, dtype="<f4").tobytes()
    assert main(arguments) == 2 and "holds files already" in capsys.readouterr().err
    index.write_text(json.dumps({"weight_map": {"w": "../a.bin"}}))
    assert main([*arguments[:-1], str(tmp_path / "other")]) == 2 and "no file beside it" in capsys.readouterr().err


@pytest.mark.dev
def test_files_that_torch_writes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    state = {"a": torch.nn.Parameter(weight.t()), "b": weight[1:].bfloat16(), "c": torch.tensor([True, False]),
             "d": torch.tensor(3), "e": torch.zeros(0, 4)}  # fmt: skip
    torch.save(state, tmp_path / "w.bin")
    tensors = read_torch_checkpoint(tmp_path / "w.bin")
    for name, value in state.items():
        assert tensors[name].shape == tuple(value.shape)
        raw = value.detach().contiguous().view(-1).view(torch.uint8) if value.dim() else value.view(1).view(torch.uint8)
        assert tensors[name].data == raw.numpy().tobytes()
