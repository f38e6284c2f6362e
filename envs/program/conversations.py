"""Finds the turns of an episode in the messages of its requests, so that their tokens are used again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

from gagpo.envs.program.messages import ChatRequest, Completion, Json, Message, digest


@dataclass
class Asked:
    """A request that was shown. place: identifies the tools and the messages up to it.

    messages: those that are new.
    extends: the turn whose conversation they follow, None for a new conversation.
    said: digest of the answer.
    """

    place: bytes
    messages: list[Message]
    extends: int | None
    said: bytes = b""
    answer: Message | None = None


@dataclass
class Conversations:
    """The conversations of one episode; most programs have a single one.

    rewritten: answers that a program sent back altered. From there on its prompt is a new row for the trainer.
    """

    turns: list[Asked] = field(default_factory=list)
    rewritten: int = 0

    def show(self, request: ChatRequest) -> Json:
        """The next turn's request as plain data for the agent.

        ``messages`` are those after the turn that it ``extends``. Answers of this episode among them name their
        ``turn``.
        """
        said = [digest(one) for one in request.conversation]
        places = [hashlib.sha256(json.dumps(request.functions, sort_keys=True).encode()).digest()]
        for one in said:
            places.append(hashlib.sha256(places[-1] + one).digest())
        answered = {(turn.place, turn.said): number for number, turn in enumerate(self.turns)}
        known = {turn.place for turn in self.turns}
        answers = [i for i, one in enumerate(request.conversation) if one["role"] == "assistant"]
        asked = [i for i in reversed(answers) if places[i] in known]
        begin, extends = next(
            ((i + 1, answered[key]) for i in asked if (key := (places[i], said[i])) in answered), (0, None)
        )
        self.rewritten += bool(asked) and begin <= asked[0]
        turns = {turn.said: number for number, turn in enumerate(self.turns)}
        pairs = zip(request.conversation[begin:], said[begin:], strict=True)
        messages = [{**one, "turn": turns[mark]} if mark in turns else one for one, mark in pairs]
        self.turns.append(Asked(places[-1], messages, extends))
        most = request.max_completion_tokens or request.max_tokens
        limits = {"max_tokens": most, "stop": request.stop, "logprobs": request.logprobs}
        about = {"number": len(self.turns) - 1, "extends": extends}
        return {**about, "messages": messages, "tools": request.functions, **limits}

    def said(self, completion: Completion) -> None:
        """The answer to the last request."""
        turn = self.turns[-1]
        turn.answer, turn.said = completion.message, digest(completion.message)

    @property
    def transcript(self) -> list[Json]:
        """What a reward function gets: for every turn the new ``messages``, the turn they follow, and the answer."""
        answered = [turn for turn in self.turns if turn.answer is not None]
        return [{"extends": one.extends, "messages": one.messages, "answer": one.answer} for one in answered]
