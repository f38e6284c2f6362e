"""From text to tokens, once: the prompt of every turn, as token ids, for a full conversation or a window of turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gagpo.agents.episodes import Turn
from gagpo.agents.prompts import PromptStyle, admissible_line, message, window
from gagpo.envs.errors import InvalidArgument

_MARK = "\u241e"  # stands for an assistant's words while the chat template is probed; no template alters it


class Context:
    """Builds prompts with the tokenizer's chat template.

    history: ``"full"`` for the whole conversation, or the number of earlier turns a window shows. A full conversation
        grows by appending: earlier prompts and responses are the very ids the engine read and wrote, never re-encoded.
        A window is a fresh single message each turn.
    admissible: whether the prompt lists the admissible actions, where the environment knows them.
    """

    def __init__(
        self,
        tokenizer: Any,
        style: PromptStyle,
        instructions: str = "",
        history: int | str = "full",
        admissible: bool = False,
    ):
        if history != "full" and not (isinstance(history, int) and history >= 0):
            raise InvalidArgument(f"history is 'full' or a number of turns >= 0, got {history!r}")
        self.tokenizer = tokenizer
        self.style = style
        self.instructions = instructions
        self.history = history
        self.admissible = admissible
        self._end_token: str = tokenizer.eos_token
        self._encoded: dict[str, np.ndarray] = {}

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
        last = turns[-1]
        ended = len(last.response_ids) > 0 and self.tokenizer.decode([int(last.response_ids[-1])])
        return np.concatenate([last.prompt_ids, last.response_ids, self._encode(self._continuation(text, ended))])

    def response(self, text: str) -> np.ndarray:
        """``text`` as a response that an engine could have sampled: its tokens and the end token."""
        return np.append(self._encode(text), np.int32(self.tokenizer.eos_token_id))

    def _continuation(self, text: str, last_token: str | bool) -> str:
        """What the template puts between the end of a response and the next one, the user's ``text`` included."""
        rendered = self._render([("user", "?"), ("assistant", _MARK), ("user", text)])
        rest = rendered.split(_MARK, 1)[1]
        # A response that stopped by itself has written its end token already; one cut at its limit has not.
        return rest.removeprefix(last_token) if isinstance(last_token, str) and last_token.strip() else rest

    def _render(self, messages: Sequence[tuple[str, str]]) -> str:
        head = [("system", self.style.system)] if self.style.system else []
        chat = [{"role": role, "content": content} for role, content in [*head, *messages]]
        return self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)

    def _encode(self, text: str) -> np.ndarray:
        """Encode, remembering short texts: environments repeat themselves ("Nothing happens.")."""
        ids = self._encoded.get(text)
        if ids is None:
            ids = np.asarray(self.tokenizer.encode(text, add_special_tokens=False), np.int32)
            if len(self._encoded) < 50_000 and len(text) < 2000:
                self._encoded[text] = ids
        return ids
