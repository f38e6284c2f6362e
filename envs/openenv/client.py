"""OpenEnv's client, which reports incomplete answers and lost sessions. Needs the package openenv."""

from __future__ import annotations

from typing import Any

from openenv import GenericEnvClient
from openenv.core.client_types import StepResult
from websockets.protocol import State

MAX_SHOWN = 80  # characters of an answer in an error


class CheckedClient(GenericEnvClient):
    """The package's client with two additional checks.

    An answer must contain an observation: the package takes an answer without ``data`` for an empty observation of an
    episode that continues, so a broken server would be stepped to the turn limit. A step must use the connection of its
    reset: the package would send it over a new connection, where no episode runs.
    """

    def _parse_result(self, payload: Any) -> StepResult[dict[str, Any]]:
        if not isinstance(payload, dict) or payload.get("observation") is None:
            raise ValueError(f"data must be an object with an observation (got {payload!a:.{MAX_SHOWN}})")
        return super()._parse_result(payload)

    async def _send(self, message: dict[str, Any]) -> None:
        if message.get("type") == "step" and (self._ws is None or self._ws.state is not State.OPEN):
            raise ConnectionError("the connection was lost")
        await super()._send(message)
