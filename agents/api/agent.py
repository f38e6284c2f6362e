"""An agent whose model runs behind a server: messages in, text out. It has no tokens, so it cannot be trained."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from gagpo.agents.agent import Decision, Live
from gagpo.agents.api.client import Answer, ApiClient, ContextFull
from gagpo.agents.parsing import parse
from gagpo.agents.prompts import PromptStyle, admissible_line, message, window

_THOUGHT = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)


@dataclass(frozen=True)
class Talk:
    """How an agent behind a server is spoken to.

    history: ``full`` (the conversation grows by appending, so that the server's prompt cache fits), or the number of
    earlier turns a window shows. admissible: list the admissible actions. reasoning: whether what the model thought
    stays in the conversation (``keep``) or not (``drop``); it is in the episode's responses either way.
    temperature: None leaves it to the server.
    """

    style: PromptStyle
    instructions: str = ""
    history: int | str = "full"
    admissible: bool = False
    reasoning: Literal["drop", "keep"] = "drop"
    temperature: float | None = 0.4
    max_tokens: int = 512


class ApiAgent:
    """Plays by asking ``client``. Different threads may decide for different slots at the same time.

    An episode's ``info`` counts its ``requests``, ``prompt_tokens``, ``cached_tokens``, ``completion_tokens``,
    ``reasoning_tokens`` and ``cost`` (dollars).
    """

    def __init__(self, client: ApiClient, talk: Talk, concurrency: int = 16):
        self.client = client
        self.talk = talk
        self.concurrency = concurrency
        self._conversations: dict[int, list[dict[str, str]]] = {}

    def decide(self, lives: Sequence[Live]) -> list[Decision | None]:
        if len(lives) == 1:
            return [self._decide(lives[0])]
        with ThreadPoolExecutor(self.concurrency) as threads:
            return list(threads.map(self._decide, lives))

    def forget(self, slot: int) -> None:
        self._conversations.pop(slot, None)

    def stop(self) -> None:
        """Ask nothing more; whoever waits for a turn is refused."""
        self.client.close()

    def _decide(self, live: Live) -> Decision | None:
        conversation = self._extended(live)
        try:
            answer = self.client.ask(conversation, self.talk.temperature, self.talk.max_tokens)
        except ContextFull:
            return None
        _count(live, answer)
        if live.episode.temperature is None:
            live.episode.temperature = self.talk.temperature
        conversation.append({"role": "assistant", "content": self._remembered(answer)})
        self._conversations[live.slot] = conversation
        action = parse(without_thoughts(answer.text), self.talk.style.parser)
        return Decision(response=_whole(answer), action=action or "", parsed=action is not None)

    def _extended(self, live: Live) -> list[dict[str, str]]:
        """The conversation up to the present observation; what was sent before is its very beginning."""
        talk, turns = self.talk, live.episode.turns
        admissible = admissible_line(live.info.get("admissible_actions")) if talk.admissible else ""
        if talk.history == "full":
            before = list(self._conversations.get(live.slot, [])) if turns else []
            text = message(talk.style, talk.instructions, live.observation, admissible, first=not turns)
        else:
            before = []
            width = int(talk.history)
            text = window(talk.style, talk.instructions, turns, live.observation, admissible, width)
        if not before and talk.style.system:
            before = [{"role": "system", "content": talk.style.system}]
        return [*before, {"role": "user", "content": text}]

    def _remembered(self, answer: Answer) -> str:
        return _whole(answer) if self.talk.reasoning == "keep" else without_thoughts(answer.text)


def without_thoughts(text: str) -> str:
    """What is said, without the ``<think>`` element that it may begin with."""
    return _THOUGHT.sub("", text)


def _whole(answer: Answer) -> str:
    """Everything the model produced, its reasoning first."""
    return f"<think>{answer.reasoning}</think>{answer.text}" if answer.reasoning else answer.text


def _count(live: Live, answer: Answer) -> None:
    usage, info = answer.usage, live.episode.info
    counted = {
        "requests": usage.requests,
        "prompt_tokens": usage.prompt,
        "cached_tokens": usage.cached,
        "completion_tokens": usage.completion,
        "reasoning_tokens": usage.reasoning,
        "cost": usage.cost,
    }
    for name, value in counted.items():
        info[name] = info.get(name, 0) + value
