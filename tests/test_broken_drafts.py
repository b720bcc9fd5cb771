"""Faults in every format of a draft are refused with the file and the field at fault."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.broken_drafts import FAULTS, GGUF_FAULTS, DraftFiles
from support.checkpoints import TinyCheckpoint, write_target
from support.draft_formats import FORMATS, TARGET, SourceDraft, draft_folder, gguf_layer
from support.draft_gguf import write_draft_gguf

from eagle31rt import _testing
from eagle31rt.doctor.report import examine
from eagle31rt.errors import CheckpointError, UnsupportedError
from eagle31rt.safetensors_writer import RawTensor
from eagle31rt.torch_checkpoint import read_torch_checkpoint

# One of each; the second exports of three formats differ in names only.
FOLDERS = ("SafeAILab .bin", "SafeAILab", "SpecForge", "TorchSpec", "speculators", "NVIDIA ModelOpt", "NeMo Automodel",
           "vLLM")  # fmt: skip

# The doctor reads no weights.
SEEN_IN_VALUES = ("NaN",)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    return write_target(tmp_path_factory.mktemp("broken") / "target", TARGET, seed=1)


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("fault", FAULTS)
def test_fault(fault: str, name: str, target: TinyCheckpoint, tmp_path: Path) -> None:
    files = DraftFiles(FORMATS[name].write(tmp_path / "draft", SourceDraft(target)))
    FAULTS[fault].change(files)
    files.save()
    folder = draft_folder(files.directory, tmp_path / "converted")
    with pytest.raises(FAULTS[fault].error, match=FAULTS[fault].message) as caught:
        _testing.load_draft_weights(str(folder), target.path)
    assert str(folder) in str(caught.value)
    if fault not in SEEN_IN_VALUES:  # the doctor finds it too, in the loader's words
        refused = examine(target.directory, folder).with_status("refused")
        assert any(str(caught.value).startswith(finding.message) for finding in refused), refused


@pytest.mark.parametrize("fault", GGUF_FAULTS)
def test_gguf_fault(fault: str, target: TinyCheckpoint, tmp_path: Path) -> None:
    wrong, source = GGUF_FAULTS[fault], SourceDraft(target)
    weights = {name: values for name, values in {**source.weights, **wrong.weights}.items() if values is not None}
    layer = {**gguf_layer(source), **wrong.layer}
    path = tmp_path / "draft.gguf"
    write_draft_gguf(path, layer, weights, wrong.extract_layers, {}, **wrong.options)
    with pytest.raises(wrong.error, match=wrong.message) as caught:
        _testing.load_draft_weights(str(draft_folder(path, tmp_path / "converted")), target.path)
    assert str(path) in str(caught.value) or str(tmp_path / "converted") in str(caught.value)


def test_damaged_pickles(target: TinyCheckpoint, tmp_path: Path) -> None:
    """Cut anywhere or with any byte changed, a file is refused or gives tensors; nothing else happens."""
    path = FORMATS["SafeAILab .bin"].write(tmp_path / "draft", SourceDraft(target)) / "pytorch_model.bin"
    whole = path.read_bytes()
    generator = np.random.default_rng(5)
    cuts = [whole[:length] for length in generator.integers(0, len(whole), 20)]
    for place in generator.integers(0, 4000, 200):  # data.pkl lies first
        cuts.append(whole[:place] + bytes([whole[place] ^ int(generator.integers(1, 256))]) + whole[place + 1 :])
    refused = 0
    for data in cuts:
        path.write_bytes(data)
        try:
            tensors = read_torch_checkpoint(path)
        except (CheckpointError, UnsupportedError) as error:
            assert str(path) in str(error)
            refused += 1
        else:
            assert all(isinstance(one, RawTensor) for one in tensors.values())
    assert refused > 100


def test_damaged_gguf_files(target: TinyCheckpoint, tmp_path: Path) -> None:
    path = FORMATS["GGUF, d2t of offsets"].write(tmp_path, SourceDraft(target))
    whole = path.read_bytes()
    for count, length in enumerate([0, 3, *range(8, 1600, 97), len(whole) // 2, len(whole) - 1]):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"draft\.gguf"):
            draft_folder(path, tmp_path / str(count))
