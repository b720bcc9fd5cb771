"""Training data: prompts, conversations that the target writes, the draft vocabulary, the split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from support.training import train_arguments

torch = pytest.importorskip("torch")
from eagle31rt import LLM  # noqa: E402
from eagle31rt.cli import main  # noqa: E402
from eagle31rt.errors import CheckpointError, InvalidArgumentError  # noqa: E402
from eagle31rt.tokenizer import Tokenizer  # noqa: E402
from eagle31rt.training.batches import BatchPlan, Dataset  # noqa: E402
from eagle31rt.training.conversations import ASSISTANT, GIVEN, Conversation, ConversationStore  # noqa: E402
from eagle31rt.training.documents import read_documents  # noqa: E402
from eagle31rt.training.generation import Generator, TurnTokens, cut_loop  # noqa: E402
from eagle31rt.training.prompts import Messages, PromptWriter, read_prompt_file  # noqa: E402
from eagle31rt.training.settings import DataSettings  # noqa: E402
from eagle31rt.training.vocabulary import choose_vocabulary, count_tokens, coverage  # noqa: E402

pytestmark = pytest.mark.dev


def conversation(*token_ids: int, roles: list[int] | None = None) -> Conversation:
    roles = roles or [ASSISTANT] * len(token_ids)
    return Conversation(np.array(token_ids, np.int32), np.array(roles, np.uint8))


def same(left: list[Conversation], right: list[Conversation]) -> bool:
    pairs = zip(left, right, strict=True)
    return all(np.array_equal(a.token_ids, b.token_ids) and np.array_equal(a.roles, b.roles) for a, b in pairs)


def test_store_gives_back_what_it_was_given(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "data")
    assert len(store) == 0
    first, second = [conversation(1, 2, 3), conversation(9)], [conversation(4, 5, roles=[GIVEN, ASSISTANT])]
    store.write(0, first)
    store.write(1, second)
    store.write(3, first)
    assert len(store) == 2, "group 2 is missing"
    assert same(store.read(0), first) and same(store.read(1), second)
    assert sorted(path.name for path in store.folder.iterdir())[0] == "tokens-00000.npz"


def saved(folder: Path, **arrays: Any) -> bytes:
    whole = {"token_ids": np.array([1, 2, 3], np.int32), "roles": np.zeros(3, np.uint8), "lengths": np.array([1, 2])}
    np.savez_compressed(folder / "saved.npz", **{**whole, **arrays})
    return (folder / "saved.npz").read_bytes()


def zeroed(content: bytes, place: int) -> bytes:
    return content[:place] + b"\0" * 40 + content[place + 40 :]


@pytest.mark.parametrize(
    "damaged",
    [
        lambda folder: b"",
        lambda folder: saved(folder)[:60],
        lambda folder: zeroed(saved(folder, token_ids=np.arange(900, dtype=np.int32) % 96), 60),  # zlib's stream
        lambda folder: saved(folder, token_ids=np.array([1, 2, 96])),
        lambda folder: saved(folder, token_ids=np.array([1, 2, -1])),
        lambda folder: saved(folder, token_ids=np.array([1.0, 2.0, 3.0])),
        lambda folder: saved(folder, roles=np.array([0, 0, 3])),
        lambda folder: saved(folder, roles=np.array([0, 0])),
        lambda folder: saved(folder, lengths=np.array([1, 1])),
        lambda folder: saved(folder, lengths=np.array([4, -1])),
        lambda folder: saved(folder, lengths=np.array([3, 0])),
    ],
)
def test_damaged_conversations_are_refused(tmp_path: Path, damaged: Callable[[Path], bytes]) -> None:
    store = ConversationStore(tmp_path, vocab_size=96)
    store.path(0).write_bytes(saved(tmp_path))
    assert [c.token_ids.tolist() for c in store.read(0)] == [[1], [2, 3]]
    store.path(0).write_bytes(damaged(tmp_path))
    with pytest.raises(CheckpointError, match=r"tokens-00000\.npz is damaged \(.*remove it; --resume"):
        store.read(0)


def test_a_group_that_is_not_full_grows(training_target: Path, tmp_path: Path) -> None:
    """Conversations added in several runs are those of one run."""
    llm = LLM(training_target, max_num_seqs=16, num_threads=1)

    def generate(store: ConversationStore, total: int, prompts: list[Messages] | None) -> None:
        settings = DataSettings(self_generate=total, max_tokens=80, max_new_tokens=8, max_turns=1)
        Generator(llm, settings, prompts and prompts[:total]).run(store, lambda done, of: None)

    written = [[{"role": "user", "content": "abc"[: 1 + n % 3]}] for n in range(70)]
    for prompts in (None, written):
        whole, grown = (ConversationStore(tmp_path / f"{name}{prompts is None}") for name in ("whole", "grown"))
        generate(whole, 70, prompts)
        for total, sizes in ((10, [10]), (12, [12]), (70, [64, 6]), (3, [64, 6])):
            generate(grown, total, prompts)
            assert [len(grown.read(group)) for group in range(len(grown))] == sizes
        assert all(same(grown.read(group), whole.read(group)) for group in (0, 1))
        grown.path(0).unlink()
        generate(grown, 70, prompts)
        assert same(grown.read(0), whole.read(0)) and same(grown.read(1), whole.read(1))


def test_vocabulary_is_what_answers_use() -> None:
    roles = [GIVEN] * 3 + [ASSISTANT] * 6
    counts = count_tokens([conversation(7, 7, 7, 5, 5, 3, 3, 3, 9, roles=roles)], 12)
    assert counts[[3, 5, 7, 9]].tolist() == pytest.approx([3, 2, 0.3, 1])
    assert choose_vocabulary(counts, 3).tolist() == [3, 5, 9]
    assert choose_vocabulary(counts, 6).tolist() == [0, 1, 3, 5, 7, 9], "unseen tokens: the lower ids"
    assert choose_vocabulary(counts, 2, always=[11]).tolist() == [3, 11]
    assert coverage(counts, np.array([3, 5])) == pytest.approx(5 / 6.3)


def test_loops_are_cut() -> None:
    text = np.random.default_rng(0).integers(0, 90, 70).tolist()
    assert cut_loop(text * 2) == text * 2, "a period of 70 is no loop"
    looping = text + [1, 2, 3, 4, 5] * 40
    kept = cut_loop(looping)
    assert kept == looping[: len(kept)] and len(text) + 64 <= len(kept) <= len(text) + 64 + 24 + 16


def test_turn_tokens_are_those_of_the_template(training_target: Path) -> None:
    tokenizer = Tokenizer(training_target)
    turns = TurnTokens.of(tokenizer, [2])
    chat = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}, {"role": "user", "content": "e"}]
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
    pieces = turns.opening + encode("ab") + turns.to_assistant + encode("cd") + [turns.end_of_turn]
    pieces += turns.to_user + encode("e") + turns.to_assistant
    assert pieces == encode(tokenizer.render_chat(chat))


def test_conversations_repeat_and_say_who_wrote_what(training_target: Path) -> None:
    """The same group by the same settings, whatever runs beside it; answers are the target's own greedy text."""
    settings = DataSettings(self_generate=12, max_tokens=120, max_new_tokens=24, seed=5)
    wide, narrow = (LLM(training_target, max_num_seqs=n, num_threads=1) for n in (16, 3))
    group = Generator(wide, settings, None).group(0, [])
    assert same(group, Generator(narrow, settings, None).group(0, []))
    assert len(group) == 12 and all(30 < len(c) <= settings.max_tokens for c in group)
    assert sum(int((c.roles == ASSISTANT).sum()) for c in group) > 100
    other = Generator(wide, DataSettings(self_generate=12, max_tokens=120, max_new_tokens=24, seed=6), None)
    assert not same(group, other.group(0, []))


def test_prompt_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    path.write_text(
        '\ufeff"one"\n\n{"prompt": "two"}\n{"messages": [{"role": "system", "content": "s"}, '
        + '{"role": "user", "content": "u"}]}\n'
    )
    one, two = ([{"role": "user", "content": text}] for text in ("one", "two"))
    assert read_prompt_file(path) == [one, two, messages]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no prompts"),
        (b"\n \n", "holds no prompts"),
        (b'"a"\n{"prompt"\n', "line 2: not valid JSON"),
        (b'{"text": "a"}\n', "line 1: must be a string"),
        (b'""\n', "line 1: the prompt is empty"),
        (b'{"messages": [{"role": "assistant", "content": "a"}]}\n', "the last message must be the user's"),
        (b'"a"\n"b\\ud800"\n', "line 2: holds half of a surrogate pair"),
        (b'"a"\n"' + b"b" * 5_000_000 + b'"\n', "line 2: has 5000002 bytes; give at most 4000000"),
        (b'"a"\n\xff\xfe\n', "line 2: is not valid UTF-8"),
    ],
)
def test_bad_prompt_files(
    training_target: Path, tmp_path: Path, content: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=message):
        read_prompt_file(path)
    assert main(train_arguments(training_target, tmp_path / "draft", self_generate=None, prompts=path)) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_prompt_that_the_template_refuses_is_named(training_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(self: Tokenizer, messages: Messages, **options: Any) -> str:
        if messages[0]["content"] == "b":
            raise InvalidArgumentError("chat template: no b")
        return str(messages[0]["content"])

    monkeypatch.setattr(Tokenizer, "render_chat", refusing)
    prompts = [[{"role": "user", "content": text}] for text in ("a", "b")]
    settings = DataSettings(max_tokens=80, max_new_tokens=8, max_turns=1)
    with pytest.raises(InvalidArgumentError, match="--prompts, prompt 2: chat template: no b"):
        Generator(LLM(training_target, num_threads=1), settings, prompts).group(0, [])


def test_written_prompts_are_filled(tmp_path: Path) -> None:
    writer, random = PromptWriter(), Random(0)
    prompts = [writer.prompt(random, ["a passage of text"]) for _ in range(400)]
    assert len(set(prompts)) > 300
    assert not any("{" in prompt for prompt in prompts if "```" not in prompt and "def " not in prompt)


def test_documents_become_passages(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    long = " ".join(f"word{i}" for i in range(600))
    (tmp_path / "deep" / "b.md").write_text(f"short\n\n{'x' * 150}\n \n{'y' * 150}\n\n{long}\n\ntail", encoding="utf-8")
    (tmp_path / "a.txt").write_text("too short to be a passage", encoding="utf-8")
    (tmp_path / "c.bin").write_bytes(b"\xff" * 500)
    first, *rest = read_documents(tmp_path)
    assert first == f"short\n\n{'x' * 150}\n\n{'y' * 150}"
    assert all(200 <= len(passage) <= 2400 for passage in rest)
    assert " ".join(rest).replace("\n\n", " ") == f"{long} tail", "nothing is lost, no word is cut"
    assert read_documents(tmp_path / "deep" / "b.md") == [first, *rest]


def test_prompts_quote_documents() -> None:
    random, documents = Random(0), ["first document", "second document"]
    prompts = [PromptWriter(documents).prompt(random, []) for _ in range(400)]
    quoted = [sum(document in prompt for prompt in prompts) for document in documents]
    assert all(70 < count < 130 for count in quoted), "half of the prompts, each document alike"


@pytest.mark.parametrize(
    ("content", "message"), [(b"\xff" * 500, "a.txt is not valid UTF-8"), (b"short", "holds no passages")]
)
def test_bad_documents(
    training_target: Path, tmp_path: Path, content: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    assert main(train_arguments(training_target, tmp_path / "draft", documents=tmp_path)) == 2
    assert message in capsys.readouterr().err
    assert main(train_arguments(training_target, tmp_path / "draft", documents=tmp_path / "absent")) == 2
    assert "--documents: there is no file or folder" in capsys.readouterr().err
    assert not list(tmp_path.glob("draft*")), "judged before any work"
    prompts = ("--prompts", str(tmp_path / "a.txt"))
    assert (
        main(train_arguments(training_target, tmp_path / "draft", *prompts, self_generate=None, documents=tmp_path))
        == 2
    )
    assert "give that, too" in capsys.readouterr().err


class ZeroFeatures:
    """Stands for a FeatureCache: states of width 2, one captured layer."""

    def get(self, group: int) -> ZeroFeatures:
        return self

    def rows(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((last - first, 2), np.float32), np.zeros((last - first, 2), np.float32)


def test_given_tokens_count_unless_answers_only(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path)
    given = conversation(*range(10), roles=[GIVEN] * 10)
    answered = conversation(*range(10), roles=[GIVEN] * 6 + [ASSISTANT] * 4)
    store.write(0, [given] * 50 + [answered] * 50)
    kept = torch.tensor([1, 2, 7, 8])

    def dataset(train_on_prompts: bool) -> Dataset:
        return Dataset(store, ZeroFeatures(), kept, 10, "cpu", train_on_prompts)  # type: ignore[arg-type]

    everything, answers = dataset(True), dataset(False)
    assert len(everything.training[0]) == 99 and len(answers.training[0]) == 49
    assert everything.validation == answers.validation == [BatchPlan(0, (75,))], "only answers can be judged"
    plan = BatchPlan(0, (0, 50))
    both = [torch.nonzero(batch.counted).squeeze(-1).tolist() for batch in (everything.load(plan), answers.load(plan))]
    assert both == [[1, 2, 7, 8, 11, 12, 17, 18], [17, 18]]
    assert torch.equal(everything.load(plan, answers_only=True).counted, answers.load(plan).counted)
