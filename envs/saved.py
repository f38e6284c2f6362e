"""The state of a running episode as bytes, for :meth:`gagpo.envs.base.TextEnv.save` and ``restore``.

The bytes are JSON, so reading an untrusted token executes no code.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from gagpo.base.errors import GagpoError


class CannotRestore(GagpoError, RuntimeError):
    """The environment does not support ``restore``, or the token is invalid."""


@dataclass(frozen=True)
class SavedEpisode:
    """The state of a running episode.

    environment: the class that saved it.
    digest: of the task's content.
    random: state of the environment's random generator.
    snapshot: what :meth:`gagpo.envs.base.TextEnv.resume` needs besides the task; plain JSON.
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
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, token: bytes) -> SavedEpisode:
        """Read a token; raises :class:`CannotRestore` for an invalid one."""
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
