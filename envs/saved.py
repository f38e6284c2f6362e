"""An episode in the middle, as bytes: what :meth:`gagpo.envs.base.TextEnv.save` gives and ``restore`` takes.

The bytes are JSON, so that reading a token from anywhere runs nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from gagpo.base.errors import GagpoError


class CannotRestore(GagpoError, RuntimeError):
    """An environment that cannot be put back into a state, or a token that leads to none."""


@dataclass(frozen=True)
class SavedEpisode:
    """Where an episode stands.

    environment: the class that saved it. digest: of the task's content. random: the state of the environment's
    generator.
    snapshot: what else the environment needs to know, beyond what the start of the task says; plain JSON.
    """

    environment: str
    task: str
    split: str
    digest: str
    turn: int
    observation: str
    valid: bool
    random: dict[str, Any]
    snapshot: Any

    def pack(self) -> bytes:
        """The token."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, token: bytes) -> SavedEpisode:
        """What a token says; :class:`CannotRestore` where it is none."""
        try:
            found = json.loads(token)
            saved = cls(**found)
        except (TypeError, ValueError, RecursionError):
            raise CannotRestore("the token was not made by save(), or is damaged") from None
        kinds = {"turn": int, "valid": bool, "random": dict, "snapshot": object}
        for field in fields(cls):
            if not isinstance(found[field.name], kinds.get(field.name, str)):
                raise CannotRestore(f"the token is damaged: {field.name} is {type(found[field.name]).__name__}")
        return saved
