"""Lets the target write the training conversations, by batched plain decoding with our engine.

Conversations come in groups; a group is a function of (settings, its number, earlier groups) and is written in one
piece, so a killed run goes on with the first missing group and gets the same data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from eagle31rt.errors import InvalidArgumentError
from eagle31rt.sampling_params import SamplingParams
from eagle31rt.training.conversations import ASSISTANT, GIVEN, USER, Conversation, ConversationStore
from eagle31rt.training.prompts import Messages, PromptWriter
from eagle31rt.training.settings import DataSettings

if TYPE_CHECKING:
    from eagle31rt.llm import LLM
    from eagle31rt.tokenizer import Tokenizer

GROUP_SIZE = 64
_PASSAGE_GROUPS = 4  # earlier groups whose answers serve as passages
_GREEDY_SHARE = 0.6  # drafts are judged against greedy text more often than not
_OWN_QUESTION_SHARE = 0.35  # user turns that the target writes itself
_MAX_QUESTION = 100  # tokens
_MORE_TURNS = 0.6  # chance that a conversation with turns left goes on
_LOOP, _LOOP_PERIOD = 64, 24  # so many last tokens with a period of at most ... are a loop


@dataclass(frozen=True)
class TurnTokens:
    """What the chat template puts around turns, as token ids."""

    opening: list[int]  # up to the first user text
    to_assistant: list[int]  # from the end of a user text to the start of the answer
    to_user: list[int]  # from after an answer's end-of-turn token to the next user text
    end_of_turn: int

    @staticmethod
    def of(tokenizer: Tokenizer, eos_token_ids: Sequence[int]) -> TurnTokens:
        """Found by rendering marked conversations. Raises InvalidArgumentError for a template that hides them."""
        user, answer, second = "QxUserxQ", "QxAnswerxQ", "QxSecondxQ"
        turns = [{"role": "user", "content": user}]
        once = tokenizer.render_chat(turns)
        turns += [{"role": "assistant", "content": answer}, {"role": "user", "content": second}]
        whole = tokenizer.render_chat(turns)
        if user not in once or not all(mark in whole for mark in (user, answer, second)):
            raise InvalidArgumentError("the chat template changes message texts: give --prompts instead")

        def encode(text: str) -> list[int]:
            return tokenizer.encode(text, add_special_tokens=False)

        between = encode(whole.split(answer)[1].split(second)[0])
        ends = [index for index, token_id in enumerate(between) if token_id in eos_token_ids]
        if not ends:
            raise InvalidArgumentError("the chat template does not end an answer with an EOS token: give --prompts")
        opening, to_assistant = once.split(user)
        return TurnTokens(encode(opening), encode(to_assistant), between[ends[0] + 1 :], between[ends[0]])


@dataclass
class Draft:
    """A conversation while it is written."""

    random: Random
    temperature: float
    token_ids: list[int] = field(default_factory=list)
    roles: list[int] = field(default_factory=list)
    turns: int = 0
    finished: bool = False

    def add(self, token_ids: Sequence[int], role: int) -> None:
        self.token_ids += token_ids
        self.roles += [role] * len(token_ids)

    def conversation(self) -> Conversation:
        return Conversation(np.array(self.token_ids, np.int32), np.array(self.roles, np.uint8))


class Generator:
    """prompts None: the trainer's own (PromptWriter with the user's documents, and questions of the target itself)."""

    def __init__(
        self, llm: LLM, settings: DataSettings, prompts: list[Messages] | None, documents: Sequence[str] = ()
    ) -> None:
        self._llm, self._settings, self._prompts = llm, settings, prompts
        self._tokenizer = llm.get_tokenizer()
        eos = llm.info["eos_token_ids"]
        assert isinstance(eos, list)
        self._eos: list[int] = eos
        self._turns = TurnTokens.of(self._tokenizer, eos) if prompts is None or settings.max_turns > 1 else None
        self._writer = PromptWriter(documents)
        self._total = settings.self_generate if prompts is None else len(prompts)
        self._turn_limit = settings.max_tokens // 4  # tokens of a user turn after the first, or of the target's own
        if self._turns is not None:
            around = len(self._turns.opening) + len(self._turns.to_assistant)
            if around > settings.max_tokens // 2:
                raise InvalidArgumentError(
                    f"--max-tokens {settings.max_tokens} is too small: the chat template alone takes {around}"
                )

    @property
    def num_groups(self) -> int:
        return -(-self._total // GROUP_SIZE)

    def run(self, store: ConversationStore, progress: Callable[[int, int], None]) -> None:
        """Writes the conversations that are missing. progress(groups done, groups in all)."""
        for group in range(self.num_groups):
            progress(group, self.num_groups)
            there = store.read(group) if group in store else []
            if len(there) < min(GROUP_SIZE, self._total - group * GROUP_SIZE):
                store.write(group, there + self.group(group, self._passages(store, group), len(there)))
        progress(self.num_groups, self.num_groups)

    def group(self, group: int, passages: Sequence[str], num_there: int = 0) -> list[Conversation]:
        """The conversations of a group but the first `num_there`; each depends on its own number only."""
        first = group * GROUP_SIZE
        last = min(first + GROUP_SIZE, self._total)
        drafts = [self._start(index, passages) for index in range(first + num_there, last)]
        while open_drafts := [draft for draft in drafts if not draft.finished]:
            self._answer(open_drafts)
            self._follow_up([draft for draft in open_drafts if not draft.finished], passages)
        return [draft.conversation() for draft in drafts]

    def _start(self, index: int, passages: Sequence[str]) -> Draft:
        random = Random(f"{self._settings.seed}/{index}")
        temperature = 0.0 if random.random() < _GREEDY_SHARE else random.uniform(0.6, 1.0)
        draft = Draft(random, temperature)
        if self._prompts is None:
            text = self._writer.prompt(random, passages)
            rendered = self._tokenizer.render_chat([{"role": "user", "content": text}])
        else:
            rendered = self._rendered(index, self._prompts[index])
        token_ids = self._tokenizer.encode(rendered, add_special_tokens=False)
        limit = self._settings.max_tokens // 2
        if self._prompts is None and random.random() < _OWN_QUESTION_SHARE and self._turns is not None:
            draft.add(self._turns.opening, GIVEN)  # `_questions` writes the rest
        elif len(token_ids) <= limit:
            draft.add(token_ids, GIVEN)
        elif self._turns is not None:  # cut the user's text, keep the template's end
            draft.add(token_ids[: limit - len(self._turns.to_assistant)] + self._turns.to_assistant, GIVEN)
        else:
            draft.add(token_ids[:limit], GIVEN)
        return draft

    def _rendered(self, index: int, messages: Messages) -> str:
        try:
            return self._tokenizer.render_chat(messages)
        except InvalidArgumentError as error:  # a template may refuse roles, or their order
            raise InvalidArgumentError(f"--prompts, prompt {index + 1}: {error}") from error

    def _answer(self, drafts: list[Draft]) -> None:
        self._questions([draft for draft in drafts if self._turns and draft.token_ids == self._turns.opening])
        params = [self._params(draft, draft.temperature, self._settings.max_new_tokens) for draft in drafts]
        for draft, (token_ids, stopped) in zip(drafts, self._generate(drafts, params), strict=True):
            draft.turns += 1
            kept = cut_loop(token_ids)
            draft.add(kept, ASSISTANT)
            draft.finished = not stopped or len(kept) < len(token_ids) or self._ends_here(draft)

    def _questions(self, drafts: list[Draft]) -> None:
        """The target writes the user's text of these."""
        if not drafts or self._turns is None:
            return
        params = [self._params(draft, 1.0, min(_MAX_QUESTION, self._turn_limit)) for draft in drafts]
        for draft, (token_ids, stopped) in zip(drafts, self._generate(drafts, params), strict=True):
            draft.add(token_ids[:-1] if stopped else token_ids, USER)
            draft.add(self._turns.to_assistant, GIVEN)

    def _follow_up(self, drafts: list[Draft], passages: Sequence[str]) -> None:
        if self._turns is None:
            return
        asking: list[Draft] = []
        for draft in drafts:
            draft.add(self._turns.to_user, GIVEN)
            if draft.random.random() < _OWN_QUESTION_SHARE:
                asking.append(draft)
                continue
            fresh = draft.random.random() < 0.4
            text = self._writer.prompt(draft.random, passages) if fresh else self._writer.follow_up(draft.random)
            token_ids = self._tokenizer.encode(text, add_special_tokens=False)
            draft.add(token_ids[: self._turn_limit] + self._turns.to_assistant, GIVEN)
        self._questions(asking)

    def _ends_here(self, draft: Draft) -> bool:
        room = self._settings.max_tokens - len(draft.token_ids)
        around = len(self._turns.to_user) + len(self._turns.to_assistant) if self._turns else 0
        wanted = around + 2 * self._turn_limit  # the user's text and a fair answer
        return draft.turns >= self._settings.max_turns or room < wanted or draft.random.random() > _MORE_TURNS

    def _params(self, draft: Draft, temperature: float, max_tokens: int) -> SamplingParams:
        room = max(1, self._settings.max_tokens - len(draft.token_ids))
        return SamplingParams(
            temperature=temperature,
            min_p=0.03 if temperature > 0 else 0.0,
            max_tokens=min(max_tokens, room),
            seed=draft.random.getrandbits(63),
            num_speculative_tokens=0,
            detokenize=False,
        )

    def _generate(self, drafts: list[Draft], params: list[SamplingParams]) -> list[tuple[list[int], bool]]:
        """Token ids that follow each draft, and whether they end with an EOS."""
        outputs = self._llm.generate([draft.token_ids for draft in drafts], params, use_tqdm=False)
        results: list[tuple[list[int], bool]] = []
        for output in outputs:
            sample = output.outputs[0]
            if sample.finish_reason == "error":
                raise InvalidArgumentError(f"the target failed on a prompt: {sample.stop_reason}")
            token_ids = list(sample.token_ids)
            results.append((token_ids, bool(token_ids) and token_ids[-1] in self._eos))
        return results

    def _passages(self, store: ConversationStore, group: int) -> list[str]:
        """Answers of the groups before, as text."""
        texts: list[str] = []
        for earlier in range(max(0, group - _PASSAGE_GROUPS), group):
            for conversation in store.read(earlier):
                answer = conversation.token_ids[conversation.roles == ASSISTANT][:300]
                if len(answer) >= 60:
                    texts.append(self._tokenizer.decode(answer.tolist()).strip())
        return texts


def cut_loop(token_ids: list[int]) -> list[int]:
    """The ids up to where they start to repeat themselves, plus _LOOP of the repetition: loops teach nothing more."""
    for end in range(_LOOP + _LOOP_PERIOD, len(token_ids) + 1, 16):
        tail = token_ids[end - _LOOP - _LOOP_PERIOD : end]
        for period in range(1, _LOOP_PERIOD + 1):
            if tail[-_LOOP:] == tail[-_LOOP - period : -period]:
                return token_ids[:end]
    return token_ids
