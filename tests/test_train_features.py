"""States of the training data: what the engine extracts, and the cache of it on disk."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import TargetSpec, write_target
from support.engine import run_decoder
from support.training import CAPTURE_LAYERS

pytest.importorskip("torch")
from eagle31rt import _core
from eagle31rt.errors import InvalidArgumentError, ResourceError
from eagle31rt.training import features as features_module
from eagle31rt.training.conversations import ASSISTANT, Conversation, ConversationStore
from eagle31rt.training.features import FeatureCache, FeatureSettings
from eagle31rt.training.files import safetensors_header

pytestmark = pytest.mark.dev


def conversation(*token_ids: int) -> Conversation:
    return Conversation(np.array(token_ids, np.int32), np.full(len(token_ids), ASSISTANT, np.uint8))


def feature_cache(
    training_target: Path, folder: Path, store: ConversationStore, limit: int, exact: bool
) -> FeatureCache:
    settings = FeatureSettings(training_target, CAPTURE_LAYERS, 4, 64, 64, threads=1, limit_bytes=limit, exact=exact)
    return FeatureCache(folder, store, settings)


def test_states_are_the_engines_and_the_cache_is_bounded(training_target: Path, tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "data")
    random = np.random.default_rng(1)
    groups = [[conversation(*random.integers(3, 96, n)) for n in (20, 7)] for _ in range(4)]
    for index, group in enumerate(groups):
        store.write(index, group)
    folder = tmp_path / "features"
    size = 27 * 3 * 64 * 4  # 27 tokens, R_1, R_2 and R_4, float32
    cache = feature_cache(training_target, folder, store, limit=2 * size + 3000, exact=True)
    for index in (0, 1, 2, 3, 0):
        captured, last = cache.get(index).rows(20, 27)
        ids = groups[index][1].token_ids.tolist()
        _, expected = run_decoder(training_target, ids, capture_layers=[1, 2, 4], kv_cache_dtype="auto")
        assert captured.tobytes() == expected.tobytes()
        assert last.tobytes() == np.ascontiguousarray(expected[:, -64:]).tobytes()
        assert sum(path.stat().st_size for path in folder.glob("features-*")) <= 2 * size + 3000
    kept = sorted(path.name for path in folder.glob("features-*"))
    assert kept == ["features-00000.safetensors", "features-00003.safetensors"], "the last two used"
    with pytest.raises(InvalidArgumentError, match="--cache-gib"):
        feature_cache(training_target, tmp_path / "small", store, limit=size // 2, exact=True).get(0)
    halves, _ = feature_cache(training_target, folder, store, limit=10 * size, exact=False).get(0).rows(0, 20)
    exact, _ = feature_cache(training_target, tmp_path / "exact", store, limit=10 * size, exact=True).get(0).rows(0, 20)
    assert 0 < np.abs(halves - exact).max() <= np.abs(exact).max() * 2**-11


@pytest.fixture
def cached(training_target: Path, tmp_path: Path) -> tuple[FeatureCache, ConversationStore, Path]:
    """A cache that knows the states of one group of 27 tokens."""
    store = ConversationStore(tmp_path / "data")
    store.write(0, [conversation(*range(3, 23)), conversation(*range(40, 47))])
    cache = feature_cache(training_target, tmp_path / "features", store, 10**6, exact=False)
    cache.get(0)
    return cache, store, tmp_path / "features" / "features-00000.safetensors"


def test_damaged_states_are_made_again(
    training_target: Path, cached: tuple[FeatureCache, ConversationStore, Path], tmp_path: Path
) -> None:
    """A byte of the header, of the states, or of the scale; the end cut off; the states of other conversations."""
    _, store, path = cached
    whole = path.read_bytes()
    for place in (3, 700, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 64]) + whole[place + 1 :])
        feature_cache(training_target, path.parent, store, 10**6, exact=False).get(0)
        assert path.read_bytes() == whole, place
    path.write_bytes(whole[:-5])
    feature_cache(training_target, path.parent, store, 10**6, exact=False).get(0)
    assert path.read_bytes() == whole
    store.write(0, [conversation(*range(3, 23)), conversation(*range(47, 40, -1))])
    feature_cache(training_target, path.parent, store, 10**6, exact=False).get(0)
    assert path.read_bytes() != whole


def test_states_of_an_earlier_version_are_taken_over(
    training_target: Path, cached: tuple[FeatureCache, ConversationStore, Path]
) -> None:
    """They have no checksum, and their identity goes by the times of the weights' files."""
    _, store, path = cached
    header, start = safetensors_header(path)
    content = path.read_bytes()[start:]
    text = json.dumps(header).encode()
    old = len(text).to_bytes(8, "little") + text + content
    files = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in training_target.glob("*.safetensors")]
    identity = {
        "config": (training_target / "config.json").read_text(),
        "weights": files,
        "layers": [1, 2, 4],
        "exact": False,
    }
    for exact, kept in ((False, True), (True, False)):
        path.write_bytes(old)
        (path.parent / "identity.json").write_text(json.dumps({**identity, "exact": exact}))
        feature_cache(training_target, path.parent, store, 10**6, exact=False).get(0)
        assert (path.read_bytes() == old) == kept


def test_a_full_disk_of_states_is_named(
    cached: tuple[FeatureCache, ConversationStore, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, _, path = cached

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(features_module, "save_safetensors", full)
    path.unlink()
    with pytest.raises(ResourceError, match=f"no space left for {path}: make room"):
        cache.get(0)


def test_extractor_goes_over_long_sequences_in_passes(tmp_path: Path) -> None:
    training_target = write_target(tmp_path / "target", TargetSpec(max_position_embeddings=1100)).directory
    token_ids = np.random.default_rng(3).integers(0, 96, 1050).tolist()
    extractor = _core.FeatureExtractor(str(training_target), [1, 4], max_tokens=1050)
    expected = run_decoder(training_target, token_ids, capture_layers=[1, 4], kv_cache_dtype="auto")[1]
    assert extractor.extract(token_ids, [1050]).tobytes() == expected.tobytes()


def test_extractor_takes_any_mixture_of_sequences(training_target: Path) -> None:
    """The same bits alone and together; wrong input is refused by name."""
    random = np.random.default_rng(2)
    lengths = [3, 512, 1, 505, 40]
    sequences = [random.integers(3, 96, n).tolist() for n in lengths]
    extractor = _core.FeatureExtractor(str(training_target), [0, 2, 4], max_tokens=512, num_threads=2)
    together = extractor.extract([i for ids in sequences for i in ids], lengths)
    alone = np.concatenate([extractor.extract(ids, [len(ids)]) for ids in reversed(sequences)][::-1])
    assert together.tobytes() == alone.tobytes()
    expected = run_decoder(training_target, sequences[3], capture_layers=[0, 2, 4], kv_cache_dtype="auto")[1]
    assert together[516:1021].tobytes() == expected.tobytes()
    for arguments, message in (
        (([1, 2], [1]), "lengths add up to 1 for 2 token ids"),
        (([1], [0]), "a sequence has 0 tokens"),
        (([1] * 513, [513]), "a sequence has 513 tokens; give 1 to max_tokens"),
        (([96], [1]), "token id 96 is outside the vocabulary"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            extractor.extract(*arguments)
    for layers in ([], [2, 1], [-1], [5]):
        with pytest.raises(InvalidArgumentError, match="capture_layers must ascend within 0 to 4"):
            _core.FeatureExtractor(str(training_target), layers, max_tokens=64)
    with pytest.raises(InvalidArgumentError, match="max_tokens is 513; give 1 to 512"):
        _core.FeatureExtractor(str(training_target), [1], max_tokens=513)
