"""OpenEnv's client, which reports incomplete answers. Imported only where the package openenv is used."""

from __future__ import annotations

from typing import Any

from openenv import GenericEnvClient
from openenv.core.client_types import StepResult

MAX_SHOWN = 80  # characters of an answer in an error


class CheckedClient(GenericEnvClient):
    """The package's client, except that an answer must contain an observation.

    The package takes an answer without ``data`` for an empty observation of an episode that continues, so a broken
    server would be stepped to the turn limit.
    """

    def _parse_result(self, payload: Any) -> StepResult[dict[str, Any]]:
        if not isinstance(payload, dict) or payload.get("observation") is None:
            raise ValueError(f"data must be an object with an observation (got {payload!a:.{MAX_SHOWN}})")
        return super()._parse_result(payload)
