"""Finds the turns of an episode in the messages of its requests, so that their tokens are used again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from gagpo.envs.program.messages import ChatRequest, Completion, Json, Message, digest


@dataclass
class Asked:
    """A request that was shown. place: identifies the tools and the messages up to it.

    messages: those that are new.
    extends: the turn whose conversation they follow, None for a new conversation.
    said: digest of the answer.
    rewrites: whether its messages contain an answer of the last turns, altered.
    """

    place: bytes
    messages: list[Message]
    extends: int | None
    rewrites: bool = False
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
        conversation, digests = request.conversation, request.digests
        places = [hashlib.sha256(json.dumps(request.functions, sort_keys=True).encode()).digest()]
        for mark in digests:
            places.append(hashlib.sha256(places[-1] + mark).digest())
        answered = {(turn.place, turn.said): number for number, turn in enumerate(self.turns)}
        shown = {turn.place for turn in self.turns}
        answers = [i for i, message in enumerate(conversation) if message["role"] == "assistant"]
        candidates = [i for i in reversed(answers) if places[i] in shown]
        begin, extends = next(
            ((i + 1, answered[key]) for i in candidates if (key := (places[i], digests[i])) in answered), (0, None)
        )
        rewrites = bool(candidates) and begin <= candidates[0]
        self.rewritten += rewrites
        messages = self._named(conversation, digests)[begin:]
        self.turns.append(Asked(places[-1], messages, extends, rewrites))
        limits = {
            "max_tokens": request.max_completion_tokens or request.max_tokens,
            "stop": request.stop,
            "logprobs": request.logprobs,
        }
        about = {"number": len(self.turns) - 1, "extends": extends}
        return {**about, "messages": messages, "tools": request.functions, **limits}

    def _named(self, conversation: Sequence[Message], digests: Sequence[bytes]) -> list[Message]:
        """The messages, in which answers name their turn, and results of tools have the ids that the model wrote.

        Some programs give calls ids of their own, in the call and in its result; digests leave ids out, so such an
        answer is found as well.
        """
        turns = {turn.said: number for number, turn in enumerate(self.turns)}
        ids: dict[str, str] = {}
        messages = []
        for message, mark in zip(conversation, digests, strict=True):
            if message["role"] == "assistant" and mark in turns:
                answer = self.turns[turns[mark]].answer or {}
                pairs = zip(message.get("tool_calls", ()), answer.get("tool_calls", ()), strict=False)
                ids.update((sent["id"], sampled["id"]) for sent, sampled in pairs)
                message = {**message, "turn": turns[mark]}
            elif "tool_call_id" in message:
                message = {**message, "tool_call_id": ids.get(message["tool_call_id"], message["tool_call_id"])}
            messages.append(message)
        return messages

    def withdraw(self) -> None:
        """Forget the last request, which cannot be shown to the model."""
        self.rewritten -= self.turns.pop().rewrites

    def said(self, completion: Completion) -> None:
        """The answer to the last request."""
        turn = self.turns[-1]
        turn.answer, turn.said = completion.message, digest(completion.message)

    @property
    def transcript(self) -> list[Json]:
        """What a reward function gets: for every turn the new ``messages``, the turn they follow, and the answer."""
        answered = [turn for turn in self.turns if turn.answer is not None]
        return [{"extends": turn.extends, "messages": turn.messages, "answer": turn.answer} for turn in answered]
