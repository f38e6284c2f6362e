"""Text as tokens: only the chat template's own text may become control tokens of the model.

What an environment, a prompt or an action says is data. Where it spells a control token, :meth:`TextEncoder.protect`
puts a secret mark in its place before the template is rendered, and :meth:`TextEncoder.encode` reads the mark as the
text that it stands for.

Such text is neither removed nor refused: the model must see what the environment shows, and a page that spells a
control token must not end an episode.
"""

from __future__ import annotations

import json
import re
import secrets
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gagpo.agents.call_formats import MARKS
from gagpo.base.thoughts import CLOSED, OPENED

Ids = np.ndarray  # int32[...], token ids
THOUGHT = (OPENED, CLOSED)
_MAX_CACHED = 50_000  # encoded texts


class TextEncoder:
    """Encodes text with a tokenizer.

    Control tokens are its special tokens, those like ``<|this|>``, and those in brackets that the chat template writes.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.control = _control_tokens(tokenizer)
        self._spelled = re.compile("|".join(map(re.escape, self.control)) or r"(?!)")
        self._any_case = re.compile(self._spelled.pattern, re.IGNORECASE)
        self._secret = secrets.token_hex(16)  # drawn anew in each process: no text can have been written to contain it
        self._mark = re.compile(f"{self._secret}([0-9]+)x")
        self._renamed: _Renamed | None = None
        self._encoded: dict[str, Ids] = {}

    def protect(self, text: str, keep: Iterable[str] = (), contents: Iterable[str] = ()) -> str:
        """``text`` with a mark for every control token that it spells, except those that contain one of ``keep``.

        contents: texts of a stranger that fill the fields of ``text``. If one of them spells one of ``keep``, nothing
            is kept, because both look alike in the filled text.
        """
        names = tuple(keep)
        if any(name in content for name in names for content in contents):
            names = ()

        def marked(match: re.Match[str]) -> str:
            name = match.group()
            if any(kept_name in name for kept_name in names):
                return name
            return f"{self._secret}{self.control.index(name)}x"

        protected = self._spelled.sub(marked, text)
        if protected == text and not text.isascii() and self._any_case.search(unicodedata.normalize("NFKC", text)):
            # The tokenizer may normalise the text to a control token: an empty mark has it encoded as data.
            offset = next(i for i, character in enumerate(text) if not character.isascii())
            return f"{text[:offset]}{self._secret}{len(self.control)}x{text[offset:]}"
        return protected

    def protect_all(self, value: Any) -> Any:
        """Plain JSON with all its texts protected."""
        if isinstance(value, str):
            return self.protect(value)
        if isinstance(value, dict):
            return {name: self.protect_all(entry) for name, entry in value.items()}
        return [self.protect_all(entry) for entry in value] if isinstance(value, list | tuple) else value

    def encode(self, text: str) -> Ids:
        """The tokens of ``text``; what is not marked in it may become control tokens."""
        if self._secret in text:
            return np.asarray(self._encode_marked(text), np.int32)
        ids = self._encoded.get(text)
        if ids is None:
            ids = np.asarray(self.tokenizer.encode(text, add_special_tokens=False), np.int32)
            if len(text) < 2000:  # environments often repeat short texts
                if len(self._encoded) >= _MAX_CACHED:
                    self._encoded.clear()  # a run that sees new texts for hours keeps the recent ones
                self._encoded[text] = ids
        return ids

    def _encode_marked(self, text: str) -> list[int]:
        segments = self._mark.split(text)  # text, number, text, ...
        texts = ["" if i == len(self.control) else self.control[i] for i in map(int, segments[1::2])]
        if self._renamed is None:
            self._renamed = _Renamed.of(self.tokenizer, self.control)
        if self._renamed is not None:
            ids = self._renamed.encode(self._spelled, segments[::2], texts)
            if ids is not None:
                return ids
        tokens: list[int] = []
        for segment, spelled in zip(segments[::2], [*texts, ""], strict=True):
            tokens += self.tokenizer.encode(segment, add_special_tokens=False)
            for character in spelled:  # no control token is a single character
                tokens += self.tokenizer.encode(character, add_special_tokens=False)
        return tokens


def _control_tokens(tokenizer: Any) -> list[str]:
    """The texts of the tokenizer's control tokens, longest first."""
    special = set(tokenizer.all_special_tokens)
    special |= {str(token) for token in tokenizer.added_tokens_decoder.values() if getattr(token, "special", False)}
    template = str(getattr(tokenizer, "chat_template", "") or "")
    names = {
        name
        for name in tokenizer.get_added_vocab()
        if name in special
        or name.startswith("<|")
        or name in (*THOUGHT, *MARKS)
        or (name[:1] in ("<", "[") and name in template)
    }
    return sorted(filter(str.strip, names), key=lambda name: (-len(name), name))


@dataclass(frozen=True)
class _Renamed:
    """A copy of a fast tokenizer in which every control token is spelled in another, secret way.

    It splits and merges text as the original does, so template text next to a message becomes the same tokens.
    """

    core: Any
    secret: dict[str, str]  # by control token
    original: dict[int, int]  # the tokenizer's own ids, by those of the copy
    control: set[int]

    @classmethod
    def of(cls, tokenizer: Any, control: list[str]) -> _Renamed | None:
        """None for a tokenizer without a fast core, or one that cannot be changed this way."""
        from tokenizers import Tokenizer

        core = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(core, Tokenizer):
            return None
        secret = {name: f"\ue000{secrets.token_hex(8)}\ue001" for name in control}
        description = json.loads(core.to_str())
        for token in description["added_tokens"]:
            token["content"] = secret.get(token["content"], token["content"])
        _rename(description["model"], secret)
        description["post_processor"] = None  # adds special tokens, which are not asked for
        try:
            renamed = Tokenizer.from_str(json.dumps(description))
        except Exception:  # the library raises plain exceptions
            return None
        original: dict[int, int] = {}
        for token in description["added_tokens"]:
            number = renamed.token_to_id(token["content"])
            if number is not None:
                original[number] = token["id"]
        secrets_in_use = set(secret.values())
        control_ids = {token["id"] for token in description["added_tokens"] if token["content"] in secrets_in_use}
        return cls(renamed, secret, original, control_ids - {tokenizer.unk_token_id})

    def encode(self, spelled: re.Pattern[str], segments: list[str], texts: list[str]) -> list[int] | None:
        """The tokens of ``segments`` of the template with data between them; None if data became a control token."""
        written = [spelled.sub(lambda match: self.secret[match.group()], segment) for segment in segments]
        expected = sum(len(spelled.findall(segment)) for segment in segments)
        text = "".join(segment for pair in zip(written, [*texts, ""], strict=True) for segment in pair)
        encoded = self.core.encode(text, add_special_tokens=False).ids
        tokens = [self.original.get(token, token) for token in encoded]
        return tokens if sum(token in self.control for token in tokens) == expected else None


def _rename(model: dict[str, Any], secret: dict[str, str]) -> None:
    """Rename the control tokens in a tokenizer's model, so that text cannot become one of them."""
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = {secret.get(name, name): number for name, number in vocabulary.items()}
    elif isinstance(vocabulary, list):
        model["vocab"] = [[secret.get(name, name), score] for name, score in vocabulary]
    if model.get("unk_token") in secret:
        model["unk_token"] = secret[model["unk_token"]]


def encoding_defect(value: object) -> str:
    """Why no tokenizer can encode the texts of a value: a lone surrogate or too many levels; '' if it can."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        around = error.object[max(0, error.start - 20) : error.end].encode("ascii", "backslashreplace").decode()
        return f"half a character (a lone surrogate) after {around!r}"
    except (ValueError, RecursionError):
        return "nested too deeply"
    return ""
