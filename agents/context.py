"""From text to tokens, once: the prompt of every turn, as token ids, for a full conversation or a window of turns."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jinja2 import TemplateError

from gagpo.agents.engines.base import stop_tokens
from gagpo.agents.episodes import Turn
from gagpo.agents.prompts import STYLES, PromptStyle, admissible_line, message, window
from gagpo.envs.errors import InvalidArgument

_MARK = "\u241e"  # stands for an assistant's words while the chat template is probed; no template alters it


class Context:
    """Builds prompts with the tokenizer's chat template.

    history: ``"full"`` for the whole conversation, or the number of earlier turns a window shows. A full conversation
        grows by appending: earlier prompts and responses are the very ids the engine read and wrote, never re-encoded,
        but for an end token that the template writes otherwise. A window is a fresh single message each turn.
    admissible: whether the prompt lists the admissible actions, where the environment knows them.
    template: variables of the chat template (``enable_thinking: false``). ``date`` is what templates that print today's
        date get instead of it, as ``YYYY-MM-DD``: a panel must not change overnight.
    """

    def __init__(
        self,
        tokenizer: Any,
        style: PromptStyle,
        instructions: str = "",
        history: int | str = "full",
        admissible: bool = False,
        template: Mapping[str, Any] | None = None,
    ):
        if history != "full" and not (isinstance(history, int) and history >= 0):
            raise InvalidArgument(f"history is 'full' or a number of turns >= 0, got {history!r}")
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

    @property
    def conditions(self) -> dict[str, Any]:
        """What decides the prompts beside the environment, as plain values."""
        style = next((name for name, known in STYLES.items() if known == self.style), "own")
        return {
            "style": style,
            "history": self.history,
            "admissible": self.admissible,
            "template": {"date": DATE, **self.template},
        }

    def prompt(self, turns: Sequence[Turn], observation: str, actions: Sequence[str] | None = None) -> np.ndarray:
        """Token ids, int32, of the prompt that follows ``turns`` and shows ``observation``."""
        admissible = admissible_line(actions) if self.admissible else ""
        if self.history != "full":
            width = int(self.history)
            text = window(self.style, self.instructions, turns, observation, admissible, width)
            return self._encode(self._render([("user", text)]))
        text = message(self.style, self.instructions, observation, admissible, first=not turns)
        if not turns:
            return self._encode(self._render([("user", text)]))
        said_ids, text = self._joined(turns[-1].response_ids, self._continuation(text))
        return np.concatenate([turns[-1].prompt_ids, said_ids, self._encode(text)])

    def response(self, text: str) -> np.ndarray:
        """``text`` as a response that an engine could have sampled: its tokens and the end token."""
        return np.append(self._encode(text), np.int32(self.tokenizer.eos_token_id))

    def with_hint(self, prompt_ids: np.ndarray, hint: str) -> np.ndarray:
        """A prompt of :meth:`prompt` with ``hint`` as the last line of the last user's message, int32.

        The rest keeps its tokens. InvalidArgument where the chat template's words after that message are none of the
        prompt's last tokens, so that there is no place to put it.
        """
        end_ids = self._encode(self._template([("user", _MARK)]).split(_MARK, 1)[1])
        begin = len(prompt_ids) - len(end_ids)
        if begin < 0 or not np.array_equal(prompt_ids[begin:], end_ids):
            raise InvalidArgument(
                "a hint has no place in these prompts: the tokenizer joins the end of a message with what the chat "
                "template puts behind it"
            )
        return np.concatenate([prompt_ids[:begin], self._encode("\n" + hint), end_ids])

    def _continuation(self, text: str) -> str:
        """What the template puts between the words of a response and the next one, the user's ``text`` included.

        The system's words are left out: some templates put them before the last user's, where they would be said in
        every turn.
        """
        rendered = self._template([("user", "?"), ("assistant", _MARK), ("user", text)])
        return rendered.split(_MARK, 1)[1]

    def _joined(self, said_ids: np.ndarray, after: str) -> tuple[np.ndarray, str]:
        """A response and what the template puts after it, so that it ends once, and as the template ends it.

        An end token that the template writes too stays the one that was sampled. Another gives way to the template's:
        what ends an answer (``<|return|>``) need not be what ends one in a history (``<|end|>``).
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

    def _render(self, messages: Sequence[tuple[str, str]]) -> str:
        if not self.style.system:
            return self._template(messages)
        try:
            return self._template([("system", self.style.system), *messages])
        except TemplateError:  # some families know no such role
            role, content = messages[0]
            return self._template([(role, f"{self.style.system}\n\n{content}"), *messages[1:]])

    def _template(self, messages: Sequence[tuple[str, str]]) -> str:
        chat = [{"role": role, "content": content} for role, content in messages]
        options = {"tokenize": False, "add_generation_prompt": True, **self._variables}
        return str(self.tokenizer.apply_chat_template(chat, **options))

    def _encode(self, text: str) -> np.ndarray:
        """Encode, remembering short texts: environments repeat themselves ("Nothing happens.")."""
        ids = self._encoded.get(text)
        if ids is None:
            ids = np.asarray(self.tokenizer.encode(text, add_special_tokens=False), np.int32)
            if len(self._encoded) < 50_000 and len(text) < 2000:
                self._encoded[text] = ids
        return ids


DATE = "2026-01-01"


def template_variables(options: Mapping[str, Any]) -> dict[str, Any]:
    """Variables for a chat template; the date is pinned under the names that public templates know it by."""
    given = dict(options)
    text = str(given.pop("date", DATE))
    try:
        date = datetime.date.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(f"context.template.date is written YYYY-MM-DD, got {text!r}") from None
    return {"date_string": date.strftime("%d %b %Y"), "strftime_now": date.strftime, **given}
