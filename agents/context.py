"""The prompt of every turn as token ids, for a full conversation or a window of turns."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jinja2 import TemplateError

from gagpo.agents.engines.base import stop_tokens
from gagpo.agents.episodes import Ids, Turn
from gagpo.agents.prompts import PromptStyle, admissible_line, message, style_name, window
from gagpo.agents.toolbox import Message, Phrasing, Toolbox, answer_messages, format_of
from gagpo.base.errors import InvalidArgument
from gagpo.envs.tools import Tool

_MARK = "\u241e"  # stands for a message while the chat template is probed; no template alters it


class Context:
    """Builds prompts with the tokenizer's chat template.

    history: ``"full"`` for the whole conversation, or the number of earlier turns that a window shows. A full
        conversation grows by appending: earlier prompts and responses are the ids that the engine read and wrote,
        except an end token that the template writes differently. A window is a new single message in each turn.
    admissible: whether the prompt lists the admissible actions, where the environment knows them.
    template: variables of the chat template (``enable_thinking: false``). ``date`` (``YYYY-MM-DD``) replaces today's
        date in templates that print it, so that prompts do not change from day to day.
    tools: the environment's tools, for the style ``tools``. All messages after the first are answers to calls, so
        templates that keep thoughts between calls keep them.
    calls: the model's call format; ``auto`` detects it from the template.
    """

    def __init__(
        self,
        tokenizer: Any,
        style: PromptStyle,
        instructions: str = "",
        history: int | str = "full",
        admissible: bool = False,
        template: Mapping[str, Any] | None = None,
        tools: Sequence[Tool] = (),
        calls: str = "auto",
    ):
        if history != "full" and not (isinstance(history, int) and history >= 0):
            raise InvalidArgument(f"history must be 'full' or a number of turns of at least 0 (got {history!r})")
        self.tokenizer = tokenizer
        self.style = style
        self.instructions = instructions
        self.history = history
        self.admissible = admissible
        self.template = dict(template or {})
        self._variables = template_variables(template or {})
        self._ends = set(stop_tokens(tokenizer))
        self._special = tuple(name for name in tokenizer.get_added_vocab() if name.strip())
        self._encoded: dict[str, np.ndarray] = {}
        self.toolbox = Toolbox(tools, format_of(self._template, calls)) if style.calls else None

    @property
    def phrasing(self) -> Phrasing:
        return Phrasing(self.style, self.toolbox)

    @property
    def conditions(self) -> dict[str, Any]:
        """Settings that determine the prompts, apart from the environment."""
        calls = {"calls": self.toolbox.form.name, "tools": self.toolbox.digest} if self.toolbox else {}
        return {
            "style": style_name(self.style),
            **calls,
            "history": self.history,
            "admissible": self.admissible,
            "template": {"date": DATE, **self.template},
        }

    def prompt(self, turns: Sequence[Turn], observation: str, actions: Sequence[str] | None = None) -> np.ndarray:
        """Token ids (int32) of the prompt that shows ``observation`` after ``turns``."""
        admissible = admissible_line(actions) if self.admissible else ""
        if self.history != "full":
            text = window(self.style, self.instructions, turns, observation, admissible, int(self.history))
            return self._encode(self._render(text))
        text = message(self.style, self.instructions, observation, admissible, first=not turns)
        if not turns:
            return self._encode(self._render(text))
        last = turns[-1]
        shown = (
            answer_messages(last.calls, observation, admissible)
            if self.toolbox
            else [{"role": "user", "content": text}]
        )
        said_ids, after = self._join(last.response_ids, self._continuation(shown))
        return np.concatenate([last.prompt_ids, said_ids, self._encode(after)])

    def turn(self, response: Ids, cut: bool = False) -> Turn:
        """The turn of a sampled response, with the action or calls found in its text.

        With tool calls, special tokens stay in the text, since the mark of a call may be one.
        """
        ended = len(response) and int(response[-1]) in self._ends
        ids = response[:-1] if ended and self.toolbox else response
        text = self.tokenizer.decode(ids, skip_special_tokens=self.toolbox is None)
        return self.phrasing.read(text, cut)

    def response(self, text: str, ended: bool = True) -> Ids:
        """The tokens of ``text`` as an engine could have sampled it, with the end token if ``ended``."""
        ids = self._encode(text)
        return np.append(ids, np.int32(self.tokenizer.eos_token_id)) if ended else ids

    def _continuation(self, shown: Sequence[Message]) -> str:
        """What the template puts between a response and the next one, including the messages ``shown``.

        System message and tools are left out: some templates would repeat them before every user message.
        """
        chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}]
        return self._template([*chat, *shown]).split(_MARK, 1)[1]

    def _join(self, said_ids: Ids, after: str) -> tuple[Ids, str]:
        """A response and the template's text after it, with a single end token.

        A sampled end token that the template does not write is replaced by the template's: some models end an answer
        with ``<|return|>`` and a message of the history with ``<|end|>``.
        """
        final = int(said_ids[-1]) if len(said_ids) else -1
        if final not in self._ends:  # cut at its limit
            return said_ids, after
        ended, rest = self.tokenizer.decode([final]), after.lstrip()
        if rest.startswith(ended):
            return said_ids, rest.removeprefix(ended)
        if any(rest.startswith(name) for name in self._special):
            return said_ids[:-1], after
        return said_ids, after

    def _render(self, text: str) -> str:
        """The conversation that begins with the user message ``text``."""
        tools = {"tools": self.toolbox.specs} if self.toolbox else {}
        if not self.style.system:
            return self._template([{"role": "user", "content": text}], **tools)
        try:
            chat = [{"role": "system", "content": self.style.system}, {"role": "user", "content": text}]
            return self._template(chat, **tools)
        except TemplateError:  # no system role
            return self._template([{"role": "user", "content": f"{self.style.system}\n\n{text}"}], **tools)

    def _template(self, chat: Sequence[Mapping[str, Any]], **options: Any) -> str:
        options = {"tokenize": False, "add_generation_prompt": True, **self._variables, **options}
        return str(self.tokenizer.apply_chat_template(list(chat), **options))

    def _encode(self, text: str) -> np.ndarray:
        """Encode, with a cache for short texts, which environments often repeat."""
        ids = self._encoded.get(text)
        if ids is None:
            ids = np.asarray(self.tokenizer.encode(text, add_special_tokens=False), np.int32)
            if len(self._encoded) < 50_000 and len(text) < 2000:
                self._encoded[text] = ids
        return ids


DATE = "2026-01-01"


def template_variables(options: Mapping[str, Any]) -> dict[str, Any]:
    """Variables for a chat template, with the date under the names that public templates use."""
    given = dict(options)
    text = str(given.pop("date", DATE))
    try:
        date = datetime.date.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(f"context.template.date must be YYYY-MM-DD, got {text!r}") from None
    return {"date_string": date.strftime("%d %b %Y"), "strftime_now": date.strftime, **given}
