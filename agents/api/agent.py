"""An agent whose model runs behind a chat server. It sees no tokens, so it cannot be trained."""

from __future__ import annotations

import json
import queue
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace

from pydantic import JsonValue

from gagpo.agents.agent import EpisodeState
from gagpo.agents.api.answer import Answer
from gagpo.agents.api.client import ApiClient, ContextFull
from gagpo.agents.call_formats import FORMATS, call_text
from gagpo.agents.prompts import Message, Prompt
from gagpo.agents.toolbox import Toolbox, answer_messages
from gagpo.base.defaults import MAX_TOKENS
from gagpo.base.thoughts import without_thoughts
from gagpo.data import Turn
from gagpo.envs.tools import Tool


@dataclass(frozen=True)
class ChatSettings:
    """How a model behind a server is prompted and sampled from.

    prompt: the wording of messages, and how actions are read.
    instructions: of the environment.
    history: ``full`` for a conversation that grows by appending, which suits the server's prompt cache, or the number
        of earlier turns that a window shows.
    multiline: whether an action of the environment may have several lines.
    """

    prompt: Prompt
    instructions: str = ""
    history: int | str = "full"
    admissible: bool = False
    temperature: float = 0.4
    max_tokens: int = MAX_TOKENS
    multiline: bool = False


class ApiAgent:
    """Plays many episodes at once through ``client``.

    Episodes include the model's reasoning, conversations do not. After the first error no request is sent; it is
    raised when all requests under way are answered and their turns have been collected. An episode's ``info`` counts
    its ``requests``, ``prompt_tokens``, ``cached_tokens``, ``completion_tokens`` and ``cost`` (dollars).

    concurrency: maximum requests under way.
    tools: of the environment, for prompts with tool calls.
    """

    def __init__(self, client: ApiClient, chat: ChatSettings, concurrency: int = 16, tools: Sequence[Tool] = ()):
        self.client = client
        # Servers that do not parse calls leave them in the text, which is in this format for most models.
        self.toolbox = Toolbox(tools, FORMATS["hermes"]) if chat.prompt.calls else None
        self.chat = chat
        self.concurrency = concurrency
        self._conversations: dict[int, list[Message]] = {}
        self._unanswered: dict[int, EpisodeState] = {}  # by slot
        self._waiting: deque[EpisodeState] = deque()  # the unanswered states that are not sent yet
        self._sent: dict[Future[Answer], tuple[EpisodeState, list[Message]]] = {}
        self._answered: queue.SimpleQueue[Future[Answer]] = queue.SimpleQueue()
        self._error: BaseException | None = None

    @property
    def conditions(self) -> dict[str, JsonValue]:
        """How the model is prompted and sampled from; results are comparable only under equal conditions."""
        chat = self.chat
        return {
            "prompt": chat.prompt.label,
            "history": chat.history,
            "admissible": chat.admissible,
            "max_tokens": chat.max_tokens,
            "temperature": chat.temperature,
        }

    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        self.submit(states)
        turns: dict[int, Turn | None] = {}
        while len(turns) < len(states):
            turns.update(self.collect(None))
        return [turns[state.slot] for state in states]

    def submit(self, states: Sequence[EpisodeState]) -> list[int]:
        """Queue the states; a full context is only known from the server's answer."""
        if self._error is not None:
            raise self._error
        self._unanswered |= {state.slot: state for state in states}
        self._waiting.extend(states)
        self._send()
        return []

    def collect(self, timeout: float | None) -> list[tuple[int, Turn | None]]:
        """Turns of answered states by slot, None for a full context. Wait for the first answer only.

        The client's thread puts finished requests into the queue; this thread reads them and sends the next ones.
        """
        collected: list[tuple[int, Turn | None]] = []
        with suppress(queue.Empty):
            while self._unanswered:
                future = self._answered.get(block=not collected and self._error is None, timeout=timeout)
                state, conversation = self._sent.pop(future)
                if self._unanswered.get(state.slot) is state:
                    del self._unanswered[state.slot]
                    sent = self._sent_text(state, conversation)
                    try:
                        turn = self._turn(state, conversation, future.result())
                        collected.append((state.slot, replace(turn, sent=sent)))
                    except ContextFull:
                        collected.append((state.slot, None))
                    except Exception as error:
                        self._fail(error)
                if self._error is None:
                    self._send()
        if self._error is not None and not collected:
            raise self._error
        return collected

    def forget(self, slot: int) -> None:
        """Drop the conversation, and the request if it is not sent."""
        self._conversations.pop(slot, None)
        state = self._unanswered.pop(slot, None)
        if state is not None and state in self._waiting:
            self._waiting.remove(state)

    def close(self) -> None:
        """Send no more requests."""
        self.client.close()

    def _fail(self, error: Exception) -> None:
        """Keep the first error, close the client and wait for the requests under way."""
        if self._error is None:
            self._error = error
            self.client.close()
            wait(self._sent)

    def _send(self) -> None:
        """Send waiting requests up to ``concurrency``."""
        specs = self.toolbox.specs if self.toolbox else ()
        while self._waiting and len(self._sent) < self.concurrency:
            state = self._waiting.popleft()
            conversation = self._extended(state)
            future = self.client.submit(
                conversation, self.chat.temperature, self.chat.max_tokens, specs, self.chat.prompt.stop
            )
            self._sent[future] = state, conversation
            future.add_done_callback(self._answered.put)

    def _sent_text(self, state: EpisodeState, conversation: list[Message]) -> str:
        """The messages of a request as text, without those of the episode's earlier requests; first the tools."""
        first = self.chat.history != "full" or not state.episode.turns
        already_sent = 0 if first else len(self._conversations.get(state.slot, ()))
        texts = [f"[{message['role']}]\n{message['content']}" for message in conversation[already_sent:]]
        if first and self.toolbox and self.toolbox.specs:
            specs = [json.dumps(spec, ensure_ascii=False) for spec in self.toolbox.specs]
            texts.insert(0, "\n".join(["[tools]", *specs]))
        return "\n\n".join(texts)

    def _turn(self, state: EpisodeState, conversation: list[Message], answer: Answer) -> Turn:
        """The turn of an answer; adds the answer to the conversation."""
        _count(state, answer)
        if state.episode.temperature is None:
            state.episode.temperature = self.chat.temperature
        conversation.append({"role": "assistant", "content": without_thoughts(answer.text).strip()})
        self._conversations[state.slot] = conversation
        if answer.withheld:
            return Turn("", _whole(answer), "", invalid="withheld")
        if self.toolbox is None:
            return Turn.of(_whole(answer), self._action(answer), answer.cut)
        if not answer.calls:
            return Turn.of_calls(_whole(answer), self.toolbox.read(answer.text), answer.cut)
        texts = [call_text(call.function.name, call.function.arguments, call.id) for call in answer.calls]
        calls = self.toolbox.read_calls(texts)
        tool_calls = [call.model_dump() | {"type": "function"} for call in answer.calls]
        conversation[-1]["tool_calls"] = tool_calls[: len(calls)]  # those that get an answer
        content = "\n".join([_whole(answer), *(f"<tool_call>\n{text}\n</tool_call>" for text in texts)]).strip()
        return Turn.of_calls(content, calls, answer.cut)

    def _action(self, answer: Answer) -> str | None:
        """The action of an answer; servers leave out the stop string that ended it, which may close a tag."""
        prompt = self.chat.prompt
        endings = [""] if answer.cut else ["", *prompt.stop]
        for ending in endings:
            action = prompt.read(answer.text + ending, self.chat.multiline)
            if action is not None:
                return action
        return None

    def _extended(self, state: EpisodeState) -> list[Message]:
        """The conversation so far with the current observation."""
        chat = self.chat
        prompt = chat.prompt
        instructions = chat.instructions
        turns = state.episode.turns
        observation = state.observation
        actions = (state.info.get("admissible_actions") or ()) if chat.admissible else ()
        if chat.history == "full":
            before = list(self._conversations.get(state.slot, [])) if turns else []
            calls = before[-1].get("tool_calls") if before else None
            if calls:
                results = answer_messages(turns[-1].calls, observation)
                results[-1]["content"] = prompt.turn_text(instructions, turns, results[-1]["content"], actions)
                pairs = zip(results, calls, strict=True)
                return [*before, *(result | {"tool_call_id": call["id"]} for result, call in pairs)]
            if turns:
                text = prompt.turn_text(instructions, turns, observation, actions)
            else:
                text = prompt.first_text(instructions, observation, actions)
        else:
            before = []
            text = prompt.window_text(instructions, turns, observation, actions, int(chat.history))
        return [*(before or prompt.opening(instructions)), {"role": "user", "content": text}]


def _whole(answer: Answer) -> str:
    """The model's reasoning and text."""
    return f"<think>{answer.reasoning}</think>{answer.text}" if answer.reasoning else answer.text


def _count(state: EpisodeState, answer: Answer) -> None:
    usage, info = answer.usage, state.episode.info
    tokens = {f"{name}_tokens": getattr(usage, name) for name in ("prompt", "cached", "completion")}
    for name, value in {"requests": usage.requests, **tokens, "cost": usage.cost}.items():
        info[name] = info.get(name, 0) + value
