"""What an agent asks of a model in each turn, and the turn that it reads from a response.

Three objects do the work, each with one subject: :mod:`gagpo.agents.history` chooses what of an episode a prompt shows,
:mod:`gagpo.agents.tool_form` shows tools to any model, and :mod:`gagpo.agents.control_tokens` joins sampled ids and the
template's text. Prompts are token ids and not text, because the trainer must read the ids that the engine read: text
encoded a second time may become other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from gagpo.agents import chat_template
from gagpo.agents.call_formats import MARKS, CallFormat
from gagpo.agents.chat_template import DATE, ChatTemplate
from gagpo.agents.control_tokens import ControlTokens
from gagpo.agents.described_tools import DescribedTools
from gagpo.agents.encoding import THOUGHT, TextEncoder
from gagpo.agents.engines.base import Response
from gagpo.agents.history import FullHistory, History, WindowHistory
from gagpo.agents.prompts import Prompt
from gagpo.agents.tool_form import ToolForm
from gagpo.agents.toolbox import ActionFormat, Toolbox
from gagpo.base.errors import InvalidArgument
from gagpo.data import Ids, Turn
from gagpo.envs.base import TextEnv
from gagpo.envs.tools import Tool, tools_of


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
    history: ``"full"`` for the whole conversation, or the number of earlier turns that a window shows; see
        :mod:`gagpo.agents.history`.
    admissible: whether the prompt lists the admissible actions, where the environment knows them.
    template: variables of the chat template (``enable_thinking: false``). ``date`` (``YYYY-MM-DD``) replaces today's
        date in templates that print it, so that prompts do not change from day to day.
    calls: the model's call format; ``auto`` detects it from the template, and is ``hermes`` for a template without a
        place for tools, whose messages then describe them (:mod:`gagpo.agents.described_tools`).

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
            raise InvalidArgument(
                f"history must be 'full' or a number of turns of at least 0 (got {history!r})", key="history"
            )
        self.tokenizer = tokenizer
        self.prompt_format = prompt
        self.interface = interface or Interface()
        self.history = history
        self.template = dict(template or {})
        chat_template.require_used(tokenizer, self.template)
        self._variables = chat_template.variables(self.template)
        self.calls = calls
        self._encoder = TextEncoder(tokenizer)
        self._control = ControlTokens(tokenizer, self._encoder)
        options = {"add_generation_prompt": True, **self._variables}
        self.tool_form = ToolForm(tokenizer, options, calls)
        self.toolbox = Toolbox(self.interface.tools, self.call_format) if prompt.calls else None
        # Without tool calls nothing asks the template about tools: a probe of a template costs two renderings.
        chat = self.tool_form if prompt.calls else ChatTemplate(tokenizer, options)
        arguments = (prompt, self.interface.instructions, admissible, chat, self._control, self.toolbox)
        self._history: History
        if history == "full":
            self._history = FullHistory(*arguments)
        else:
            self._history = WindowHistory(*arguments, width=int(history))

    @property
    def action_format(self) -> ActionFormat:
        return ActionFormat(self.prompt_format, self.toolbox, self.interface.multiline)

    @property
    def stop(self) -> tuple[str, ...]:
        """The strings that end a response, besides the end tokens."""
        return tuple(self.prompt_format.stop)

    @property
    def described_tools(self) -> DescribedTools | None:
        """How messages describe tools to the model; None if its chat template has a place for them."""
        return self.tool_form.described

    @property
    def call_format(self) -> CallFormat:
        """How the model writes tool calls. Raises: InvalidArgument for a template with an unknown format."""
        return self.tool_form.call_format

    @property
    def conditions(self) -> dict[str, Any]:
        """Settings that determine the prompts, apart from the environment."""
        calls = {}  # results are compared by the keys that both have, so prompts without tools leave these out
        if self.toolbox:  # the digest, because a server can change its tools while the arguments stay equal
            described = ", described in the system message" if self.described_tools else ""
            calls = {"calls": f"{self.toolbox.form.name}{described}", "tools": self.toolbox.digest}
        return {
            "prompt": self.prompt_format.label,
            **calls,
            "history": self.history,
            "admissible": self._history.admissible,
            "template": {"date": DATE, **self.template},  # the default too: a later version may have another
        }

    def ask(
        self, turns: Sequence[Turn], observation: str, info: Mapping[str, Any]
    ) -> GenerationRequest | RejectedRequest:
        """What is asked after ``turns``; a rejection if nothing can be. info: of the environment."""
        prompt_ids = self._history.prompt_ids(turns, observation, info.get("admissible_actions"))

        def read(response: Response) -> Turn:
            turn = self.turn(response.ids, cut=not response.stopped)
            return replace(turn, prompt_ids=prompt_ids, response_ids=response.ids, logprobs=response.logprobs)

        return GenerationRequest(prompt_ids, tuple(self.prompt_format.stop), None, read)

    def exceeds(self, info: Mapping[str, Any], max_length: int) -> bool:
        """Whether a prompt is certainly longer than ``max_length`` tokens, so that it need not be encoded."""
        return False

    def prompt(self, turns: Sequence[Turn], observation: str, actions: Sequence[str] | None = None) -> np.ndarray:
        """Token ids (int32) of the prompt that shows ``observation`` after ``turns``."""
        return self._history.prompt_ids(turns, observation, actions)

    def turn(self, response: Ids, cut: bool = False) -> Turn:
        """The turn of a sampled response, with the action or calls found in its text."""
        if self.toolbox is None:
            text = self._control.text(response)
        else:
            text = self._control.text_with_calls(response)
        return self.action_format.read(text, cut)

    def response(self, text: str, ended: bool = True) -> Ids:
        """The tokens of ``text`` as an engine could have sampled it, with the end token if ``ended``.

        Only the marks of thoughts and calls become control tokens; an action that spells another one is text. A stop
        string ends the text instead of the end token.
        """
        marks: tuple[str, ...] = THOUGHT
        if self.toolbox:
            marks = (*THOUGHT, *MARKS)
        ids = self._encoder.encode(self._encoder.protect(text, marks))
        if not ended or text.endswith(self.stop):
            return ids
        return np.append(ids, np.int32(self._control.end))
