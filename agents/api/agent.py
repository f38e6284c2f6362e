"""An agent whose model runs behind a server: messages in, text out. It has no tokens, so it cannot be trained."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from gagpo.agents.agent import EpisodeState
from gagpo.agents.api.answer import Answer
from gagpo.agents.api.client import ApiClient, ContextFull
from gagpo.agents.calls.formats import FORMATS, spelled
from gagpo.agents.calls.toolbox import Message, Toolbox, answers
from gagpo.agents.episodes import Turn
from gagpo.agents.parsing import parse
from gagpo.agents.prompts import STYLES, PromptStyle, admissible_line, message, window
from gagpo.envs.tools import Tool

_THOUGHT = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)


@dataclass(frozen=True)
class ChatSettings:
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
    """Plays by asking ``client`` about ``concurrency`` episodes at a time, each in a thread.

    The first error ends everything: no further request is made, and it is raised once every thread has stopped and what
    was answered meanwhile has been handed over. An episode's ``info`` counts its ``requests``, ``prompt_tokens``,
    ``cached_tokens``, ``completion_tokens``, ``reasoning_tokens`` and ``cost`` (dollars).

    tools: with the style ``tools``, what the world declares; the server is told of them, and its calls are answered.
    """

    def __init__(self, client: ApiClient, chat: ChatSettings, concurrency: int = 16, tools: Sequence[Tool] = ()):
        self.client = client
        # A server that does not take calls out of the text leaves them there as most models write them.
        self.toolbox = Toolbox(tools, FORMATS["hermes"]) if chat.style.calls else None
        self.chat = chat
        self.concurrency = concurrency
        self._conversations: dict[int, list[Message]] = {}
        self._asked: dict[int, EpisodeState] = {}  # by slot: who waits for an answer
        self._questions: queue.SimpleQueue[EpisodeState | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[EpisodeState, Turn | BaseException | None]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []  # daemons: an answer that never comes must not hold up the end
        self._error: BaseException | None = None

    @property
    def conditions(self) -> dict[str, JsonValue]:
        """How the model is prompted and sampled from, as plain values; results compare only under equal ones."""
        chat, extra = self.chat, dict(self.client.settings.extra)
        return {
            "style": next((name for name, known in STYLES.items() if known == chat.style), "own"),
            "history": chat.history,
            "admissible": chat.admissible,
            "reasoning": chat.reasoning,
            "max_tokens": chat.max_tokens,
            "temperature": "server" if chat.temperature is None else chat.temperature,
            **({"extra": extra} if extra else {}),
        }

    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        self.submit(states)
        found: dict[int, Turn | None] = {}
        while len(found) < len(states):
            found.update(self.collect(None))
        return [found[state.slot] for state in states]

    def submit(self, states: Sequence[EpisodeState]) -> list[int]:
        """Ask about each state; whether its context is full is known when the server answers."""
        if self._error is not None:
            raise self._error
        self._asked |= {state.slot: state for state in states}
        while len(self._threads) < min(self.concurrency, len(self._asked)):  # as many as have something to ask
            self._threads.append(threading.Thread(target=self._work, daemon=True))
            self._threads[-1].start()
        for state in states:
            self._questions.put(state)
        return []

    def collect(self, timeout: float | None) -> list[tuple[int, Turn | None]]:
        found: list[tuple[int, Turn | None]] = []
        with suppress(queue.Empty):
            while self._asked:  # take every answer there is, waiting for the first alone; the first error ends the rest
                state, answer = self._answers.get(not found and self._error is None, timeout)
                if self._asked.get(state.slot) is not state:
                    continue  # forgotten meanwhile
                del self._asked[state.slot]
                if not isinstance(answer, BaseException):
                    found.append((state.slot, answer))
                elif self._error is None:
                    self._error = answer
                    self.close()
                    for thread in self._threads:
                        thread.join()
        if self._error is not None and not found:
            raise self._error
        return found

    def forget(self, slot: int) -> None:
        """The conversation, and the question if nobody has begun to ask it."""
        self._conversations.pop(slot, None)
        self._asked.pop(slot, None)

    def close(self) -> None:
        """Ask nothing more; whoever waits for a turn is refused."""
        self.client.close()
        for _ in self._threads:
            self._questions.put(None)

    def _work(self) -> None:
        while (state := self._questions.get()) is not None:
            if self._asked.get(state.slot) is not state:
                continue  # forgotten meanwhile
            try:
                self._answers.put((state, self._ask(state)))
            except BaseException as error:
                self._answers.put((state, error))  # before those that the closed client raises elsewhere
                self.client.close()

    def _ask(self, state: EpisodeState) -> Turn | None:
        """The turn that follows ``state``; None where the server says that the conversation is too long."""
        conversation = self._extended(state)
        try:
            specs = self.toolbox.specs if self.toolbox else ()
            answer = self.client.ask(conversation, self.chat.temperature, self.chat.max_tokens, specs)
        except ContextFull:
            return None
        _count(state, answer)
        if state.episode.temperature is None:
            state.episode.temperature = self.chat.temperature
        conversation.append({"role": "assistant", "content": self._remembered(answer)})
        self._conversations[state.slot] = conversation
        if self.toolbox is None:
            action = parse(without_thoughts(answer.text), self.chat.style.parser)
            return Turn.of(_whole(answer), action, answer.cut)
        if not answer.calls:
            return Turn.calling(_whole(answer), self.toolbox.read(answer.text), answer.cut)
        texts = [spelled(call.function.name, call.function.arguments, call.id) for call in answer.calls]
        calls = self.toolbox.judged(texts)
        given = [call.model_dump() | {"type": "function"} for call in answer.calls]
        conversation[-1]["tool_calls"] = given[: len(calls)]  # those that will be answered
        whole = "\n".join([_whole(answer), *(f"<tool_call>\n{text}\n</tool_call>" for text in texts)]).strip()
        return Turn.calling(whole, calls, answer.cut)

    def _extended(self, state: EpisodeState) -> list[Message]:
        """The conversation up to the present observation; what was sent before is its very beginning."""
        chat, turns = self.chat, state.episode.turns
        admissible = admissible_line(state.info.get("admissible_actions")) if chat.admissible else ""
        if chat.history == "full":
            before = list(self._conversations.get(state.slot, [])) if turns else []
            if before and (asked := before[-1].get("tool_calls")):
                shown = answers(turns[-1].calls, state.observation, admissible)
                return [*before, *(one | {"tool_call_id": call["id"]} for one, call in zip(shown, asked, strict=True))]
            text = message(chat.style, chat.instructions, state.observation, admissible, first=not turns)
        else:
            before = []
            width = int(chat.history)
            text = window(chat.style, chat.instructions, turns, state.observation, admissible, width)
        if not before and chat.style.system:
            before = [{"role": "system", "content": chat.style.system}]
        return [*before, {"role": "user", "content": text}]

    def _remembered(self, answer: Answer) -> str:
        return _whole(answer) if self.chat.reasoning == "keep" else without_thoughts(answer.text)


def without_thoughts(text: str) -> str:
    """What is said, without the ``<think>`` element that it may begin with."""
    return _THOUGHT.sub("", text)


def _whole(answer: Answer) -> str:
    """Everything the model produced, its reasoning first."""
    return f"<think>{answer.reasoning}</think>{answer.text}" if answer.reasoning else answer.text


def _count(state: EpisodeState, answer: Answer) -> None:
    usage, info = answer.usage, state.episode.info
    tokens = {f"{name}_tokens": getattr(usage, name) for name in ("prompt", "cached", "completion", "reasoning")}
    for name, value in {"requests": usage.requests, **tokens, "cost": usage.cost}.items():
        info[name] = info.get(name, 0) + value
