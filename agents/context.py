"""The prompt of every turn as token ids, for a full conversation or a window of turns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from gagpo.agents import chat_template
from gagpo.agents.call_formats import FORMATS, MARKS, CallFormat, find_format
from gagpo.agents.chat_template import DATE, TemplateFailed
from gagpo.agents.described_tools import DescribedTools, has_tool_messages
from gagpo.agents.encoding import THOUGHT, TextEncoder
from gagpo.agents.engines.base import Response, end_of_response, stop_tokens
from gagpo.agents.prompts import Message, Prompt
from gagpo.agents.toolbox import ActionFormat, Toolbox, answer_messages, format_of, shows_tools
from gagpo.base.errors import InvalidArgument
from gagpo.data import Ids, Turn
from gagpo.envs.base import TextEnv
from gagpo.envs.tools import Tool, tools_of

_MARK = chat_template.PLACEHOLDER
_LATER = "\u241f"  # stands for the message after it


class GenerationRequest(NamedTuple):
    """What an agent asks an engine for.

    prompt_ids: int32, the prompt.
    stop: strings that end the response.
    max_tokens: most tokens of the response, below the run's own limit; None for that one.
    read: gives the turn of the response, without its observation.
    """

    prompt_ids: Ids
    stop: tuple[str, ...]
    max_tokens: int | None
    read: Callable[[Response], Turn]


class Interface(NamedTuple):
    """What an environment tells an agent about itself.

    tools: of an environment with tool calls.
    multiline: whether an action may have several lines.
    """

    instructions: str = ""
    tools: Sequence[Tool] = ()
    multiline: bool = False

    @classmethod
    def of(cls, env: TextEnv | None) -> Interface:
        """That of ``env``; without one, the default."""
        return cls(getattr(env, "instructions", ""), tools_of(env), bool(getattr(env, "multiline", False)))


class RejectedRequest(NamedTuple):
    """In place of a prompt: why a request of a program cannot become one. status: of HTTP, for the program."""

    status: int
    reason: str


class Context:
    """Builds prompts with the tokenizer's chat template.

    Only the template's own text becomes control tokens: what environments, prompts and actions say is data.

    prompt: templates of the messages, and how actions are read.
    interface: what the environment tells an agent: instructions and tools.
    history: ``"full"`` for the whole conversation, or the number of earlier turns that a window shows. A full
        conversation grows by appending: earlier prompts and responses are the ids that the engine read and wrote,
        except an end token that the template writes differently. A window is a new single message in each turn.
    admissible: whether the prompt lists the admissible actions, where the environment knows them.
    template: variables of the chat template (``enable_thinking: false``). ``date`` (``YYYY-MM-DD``) replaces today's
        date in templates that print it, so that prompts do not change from day to day.
    calls: the model's call format; ``auto`` detects it from the template, and is ``hermes`` for a template without a
        place for tools, whose messages then describe them (:mod:`gagpo.agents.described_tools`). With tool calls, all
        messages after the first are answers to calls, so templates that keep thoughts between calls keep them.

    Raises: InvalidArgument if the chat template cannot render these prompts.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt: Prompt,
        interface: Interface | None = None,
        history: int | str = "full",
        admissible: bool = False,
        template: Mapping[str, Any] | None = None,
        calls: str = "auto",
    ):
        if history != "full" and not (isinstance(history, int) and history >= 0):
            raise InvalidArgument(f"history must be 'full' or a number of turns of at least 0 (got {history!r})")
        self.tokenizer = tokenizer
        self.prompt_format = prompt
        self.interface = interface or Interface()
        self.history = history
        self.admissible = admissible
        self.template = dict(template or {})
        chat_template.require_used(tokenizer, self.template)
        self._variables = chat_template.variables(self.template)
        self._calls = calls
        self._ends = set(stop_tokens(tokenizer))
        self._end = end_of_response(tokenizer)
        self._special = tuple(name for name in tokenizer.get_added_vocab() if name.strip())
        self._encoder = TextEncoder(tokenizer)
        ids = {tokenizer.convert_tokens_to_ids(name): name for name in THOUGHT if name in self._encoder.control}
        # Marks that decoding would skip, so that a thought could not be told from the action after it.
        self._thought = {
            token: name for token, name in ids.items() if not tokenizer.decode([token], skip_special_tokens=True)
        }
        self.toolbox = Toolbox(self.interface.tools, self.call_format) if prompt.calls else None
        self._require_template()

    @property
    def action_format(self) -> ActionFormat:
        return ActionFormat(self.prompt_format, self.toolbox, self.interface.multiline)

    @property
    def stop(self) -> tuple[str, ...]:
        """The strings that end a response, besides the end tokens."""
        return tuple(self.prompt_format.stop)

    @functools.cached_property
    def described_tools(self) -> DescribedTools | None:
        """How messages describe tools to the model; None if its chat template has a place for them."""
        if shows_tools(self._render_messages):
            return None
        return DescribedTools(FORMATS["hermes"] if self._calls == "auto" else find_format(self._calls))

    @functools.cached_property
    def call_format(self) -> CallFormat:
        """How the model writes tool calls. Raises: InvalidArgument for a template with an unknown format."""
        if self.described_tools is not None:
            return self.described_tools.form
        return format_of(self._render_messages, self._calls)

    @property
    def conditions(self) -> dict[str, Any]:
        """Settings that determine the prompts, apart from the environment."""
        calls = {}
        if self.toolbox:
            described = ", described in the system message" if self.described_tools else ""
            calls = {"calls": f"{self.toolbox.form.name}{described}", "tools": self.toolbox.digest}
        return {
            "prompt": self.prompt_format.label,
            **calls,
            "history": self.history,
            "admissible": self.admissible,
            "template": {"date": DATE, **self.template},
        }

    def ask(
        self, turns: Sequence[Turn], observation: str, info: Mapping[str, Any]
    ) -> GenerationRequest | RejectedRequest:
        """What is asked after ``turns``; a rejection if nothing can be. info: of the environment."""
        prompt_ids = self.prompt(turns, observation, info.get("admissible_actions"))

        def read(response: Response) -> Turn:
            turn = self.turn(response.ids, cut=not response.stopped)
            return replace(turn, prompt_ids=prompt_ids, response_ids=response.ids, logprobs=response.logprobs)

        return GenerationRequest(prompt_ids, self.stop, None, read)

    def exceeds(self, info: Mapping[str, Any], max_length: int) -> bool:
        """Whether a prompt is certainly longer than ``max_length`` tokens, so that it need not be encoded."""
        return False

    def prompt(self, turns: Sequence[Turn], observation: str, actions: Sequence[str] | None = None) -> np.ndarray:
        """Token ids (int32) of the prompt that shows ``observation`` after ``turns``."""
        prompt_format = self.prompt_format
        instructions = self.interface.instructions
        listed_actions = (actions or ()) if self.admissible else ()
        if self.history != "full":
            text = prompt_format.window_text(instructions, turns, observation, listed_actions, int(self.history))
            observations = [turn.observation for turn in turns]
            responses = [turn.response for turn in turns if turn.response in text]
            data = [instructions, observation, *listed_actions, *observations, *responses]
            return self._encode(self._render(self._data(text, data)))
        if not turns:
            text = prompt_format.first_text(instructions, observation, listed_actions)
            return self._encode(self._render(self._data(text, [instructions, observation, *listed_actions])))
        last = turns[-1]
        if self.toolbox:
            messages = answer_messages(last.calls, observation)
            observation = messages[-1]["content"]
        else:
            messages = [{"role": "user"}]
        text = prompt_format.turn_text(instructions, turns, observation, listed_actions)
        data = [instructions, observation, turns[0].observation, *listed_actions]
        messages[-1]["content"] = self._data(text, data)
        for message in messages[:-1]:
            message["content"] = self._encoder.protect(message["content"])
        response_ids, after = self._join(last.response_ids, self._continuation(messages))
        return np.concatenate([last.prompt_ids, response_ids, self._encode(after)])

    def turn(self, response: Ids, cut: bool = False) -> Turn:
        """The turn of a sampled response, with the action or calls found in its text.

        With tool calls, special tokens stay in the text, since the mark of a call may be one.
        """
        ended = len(response) and int(response[-1]) in self._ends
        ids = response[:-1] if ended and self.toolbox else response
        return self.action_format.read(self._decode(ids), cut)

    def _decode(self, ids: Ids) -> str:
        """The text of a response, with the marks of its thoughts even if they are special tokens."""
        if self.toolbox is not None:
            return str(self.tokenizer.decode(ids, skip_special_tokens=False))
        text, begin = "", 0
        for place in np.flatnonzero(np.isin(ids, list(self._thought))):
            text += self.tokenizer.decode(ids[begin:place], skip_special_tokens=True) + self._thought[int(ids[place])]
            begin = int(place) + 1
        return text + str(self.tokenizer.decode(ids[begin:], skip_special_tokens=True))

    def response(self, text: str, ended: bool = True) -> Ids:
        """The tokens of ``text`` as an engine could have sampled it, with the end token if ``ended``.

        Only the marks of thoughts and calls become control tokens; an action that spells another one is text. A stop
        string ends the text instead of the end token.
        """
        marks = (*THOUGHT, *(MARKS if self.toolbox else ()))
        ids = self._encode(self._encoder.protect(text, marks))
        return np.append(ids, np.int32(self._end)) if ended and not text.endswith(self.stop) else ids

    def _continuation(self, messages: Sequence[Message]) -> str:
        """What the template puts between a response and the next one, including ``messages``.

        System message and tools are left out: some templates would repeat them before every user message.
        """
        chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}]
        return self._after_mark([*chat, *messages])

    def _after_mark(self, chat: Sequence[Message]) -> str:
        _, mark, after = self._template(chat).partition(_MARK)
        if not mark:
            raise TemplateFailed(chat_template.fault(self.tokenizer, "does not show every message"))
        return after

    def _require_template(self) -> None:
        """Raise TemplateFailed unless the template shows the messages of these prompts."""
        if _MARK not in self._render(_MARK):
            raise TemplateFailed(chat_template.fault(self.tokenizer, "does not show the user's message"))
        if self.history == "full" and (not self.toolbox or self.described_tools):
            after = self._continuation([{"role": "user", "content": _LATER}])
            if _LATER not in after:
                raise TemplateFailed(chat_template.fault(self.tokenizer, "does not show a second user message"))

    def _join(self, response_ids: Ids, after: str) -> tuple[Ids, str]:
        """A response and the template's text after it, with a single end token.

        A sampled end token that the template does not write is replaced by the template's: some models end an answer
        with ``<|return|>`` and a message of the history with ``<|end|>``.
        """
        last_token = int(response_ids[-1]) if len(response_ids) else -1
        if last_token not in self._ends:  # cut at its limit
            return response_ids, after
        end_text = self.tokenizer.decode([last_token])
        template_text = after.lstrip()
        if template_text.startswith(end_text):
            return response_ids, template_text.removeprefix(end_text)
        if any(template_text.startswith(name) for name in self._special):
            return response_ids[:-1], after
        return response_ids, after

    def _render(self, text: str) -> str:
        """The conversation up to the user message ``text``, after the prompt's system message and examples."""
        tools = self._encoder.protect_all(self.toolbox.specs) if self.toolbox else ()
        return self._whole([*self._opening(), {"role": "user", "content": text}], tools)

    def _whole(self, chat: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        """A conversation from its beginning, with ``tools`` as chat templates take them.

        A template without the system's role gets its text with the first user message.
        """
        options = {"tools": tools} if tools else {}
        if tools and self.described_tools:
            chat = self.described_tools.with_tools(chat, tools)
            options = {}
        try:
            return self._template(chat, **options)
        except TemplateFailed:
            if chat[0]["role"] != "system":
                raise
        return self._template(chat_template.without_system(chat), **options)

    def _opening(self) -> list[Message]:
        """The messages before the first user message; an example's thoughts stay those of the model."""
        instructions = self.interface.instructions
        opening = self.prompt_format.opening(instructions)
        for message in opening:
            message["content"] = self._data(message["content"], [instructions])
        return opening

    def _data(self, text: str, contents: Iterable[str]) -> str:
        """A message that becomes no control tokens.

        The prompt may name the marks of a thought, unless they occur in the ``contents`` that fill its fields.
        """
        has_marks = any(mark in content for mark in THOUGHT for content in contents)
        return self._encoder.protect(text, () if has_marks else THOUGHT)

    def _template(self, chat: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """The rendered messages; without a place for tools in the template, calls and answers are plain text."""
        if has_tool_messages(chat) and self.described_tools:
            chat = self.described_tools.plain(chat)
        return self._render_messages(chat, **options)

    def _render_messages(self, chat: Sequence[Mapping[str, Any]], **options: Any) -> str:
        options = {"add_generation_prompt": True, **self._variables, **options}
        return chat_template.render(self.tokenizer, chat, **options)

    def _encode(self, text: str) -> Ids:
        return self._encoder.encode(text)
