"""Finds the turns of an episode in the messages of its requests, so that their tokens are used again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from gagpo.envs.gateway.messages import ChatRequest, Completion, Json, Message, digest


@dataclass
class ConversationTurn:
    """A request that was shown to the model, and the answer.

    prefix_digest: identifies the tools and all messages of the request.
    messages: those that are new, after the conversation of the turn that it ``extends``.
    extends: the number of that turn, None for a new conversation.
    rewrites: whether its messages contain an altered answer of an earlier turn.
    answer_digest: of the answer's message; empty before the answer.
    answer_ids: of the sampled tokens, if a reward function asks for them.
    """

    prefix_digest: bytes
    messages: list[Message]
    extends: int | None
    rewrites: bool = False
    answer_digest: bytes = b""
    answer: Message | None = None
    answer_ids: Sequence[int] = ()


@dataclass
class Conversations:
    """The conversations of one episode; most programs have a single one.

    rewritten: answers that a program sent back altered. From there on its prompt is a new row for the trainer.
    token_ids: whether answers come with the ids of their tokens.
    """

    turns: list[ConversationTurn] = field(default_factory=list)
    rewritten: int = 0
    token_ids: bool = False

    def add_request(
        self, request: ChatRequest, conversation: Sequence[Message] | None = None, tools: Sequence[Json] | None = None
    ) -> Json:
        """The next turn's request as plain data for the agent.

        conversation: the messages to show, in place of the request's.
        tools: the tools to show, in place of the request's.

        In the result ``messages`` are those after the turn that it ``extends``. Answers of this episode among them name
        their ``turn``.
        """
        digests = request.digests if conversation is None else list(map(digest, conversation))
        conversation = request.conversation if conversation is None else conversation
        functions = request.functions if tools is None else list(tools)
        # prefixes[i] identifies the tools and the messages before message i, so one look-up per message finds the turn
        # that asked for it. Comparing the messages themselves would take quadratic time over a long conversation.
        prefixes = [hashlib.sha256(json.dumps(functions, sort_keys=True).encode()).digest()]
        for message_digest in digests:
            prefixes.append(hashlib.sha256(prefixes[-1] + message_digest).digest())
        turn_of_answer = {(turn.prefix_digest, turn.answer_digest): number for number, turn in enumerate(self.turns)}
        known_prefixes = {turn.prefix_digest for turn in self.turns}
        answers = [i for i, message in enumerate(conversation) if message["role"] == "assistant"]
        candidates = [i for i in reversed(answers) if prefixes[i] in known_prefixes]
        start = 0
        extends = None
        for i in candidates:  # the latest answer that came back as it was given
            extends = turn_of_answer.get((prefixes[i], digests[i]))
            if extends is not None:
                start = i + 1
                break
        # A later answer to a known prompt came back altered.
        rewrites = bool(candidates) and start <= candidates[0]
        self.rewritten += rewrites
        messages = self._named(conversation, digests)[start:]
        self.turns.append(ConversationTurn(prefixes[-1], messages, extends, rewrites))
        limits = {
            "max_tokens": request.max_completion_tokens or request.max_tokens,
            "stop": request.stop,
            "logprobs": request.logprobs,
        }
        position = {"number": len(self.turns) - 1, "extends": extends}
        if self.token_ids:
            limits["ids"] = True
        return {**position, "messages": messages, "tools": functions, **limits}

    def _named(self, conversation: Sequence[Message], digests: Sequence[bytes]) -> list[Message]:
        """The messages, in which answers name their turn, and results of tools have the ids that the model wrote.

        Some programs replace the ids of calls, in the call and in its result. Digests leave ids out, so such an answer
        is recognised as well.
        """
        turn_of_answer = {turn.answer_digest: number for number, turn in enumerate(self.turns)}
        ids: dict[str, str] = {}
        messages = []
        for message, message_digest in zip(conversation, digests, strict=True):
            if message["role"] == "assistant" and message_digest in turn_of_answer:
                answer = self.turns[turn_of_answer[message_digest]].answer or {}
                pairs = zip(message.get("tool_calls", ()), answer.get("tool_calls", ()), strict=False)
                ids.update((call["id"], sampled_call["id"]) for call, sampled_call in pairs)
                message = {**message, "turn": turn_of_answer[message_digest]}
            elif "tool_call_id" in message:
                message = {**message, "tool_call_id": ids.get(message["tool_call_id"], message["tool_call_id"])}
            messages.append(message)
        return messages

    def withdraw_request(self) -> None:
        """Forget the last request, which cannot be shown to the model."""
        self.rewritten -= self.turns.pop().rewrites

    def add_answer(self, completion: Completion, number: int = -1) -> None:
        """Store the answer to the last request, or to that of turn ``number``."""
        turn = self.turns[number]
        turn.answer = completion.message
        turn.answer_digest = digest(completion.message)
        turn.answer_ids = completion.ids

    @property
    def transcript(self) -> list[Json]:
        """What a reward function gets: for every turn the new ``messages``, the turn they follow, and the answer."""
        return [
            {"extends": turn.extends, "messages": turn.messages, "answer": turn.answer}
            | ({"ids": list(turn.answer_ids)} if self.token_ids else {})
            for turn in self.turns
            if turn.answer is not None
        ]
