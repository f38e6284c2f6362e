"""The engine of a rank that does not sample: with ``rollout.ahead`` the first rank samples for all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gagpo.agents.engines.base import Finished, ModelEngine, NamedTensor, Request, Sampling
from gagpo.base.errors import InvalidArgument


class IdleEngine(ModelEngine):
    """Has the limits of the run's engine and refuses requests.

    It reads weights as they pass, since ranks gather sharded ones together.
    """

    @property
    def under_way(self) -> int:
        return 0

    def submit(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Raise InvalidArgument for any request."""
        if requests:
            raise InvalidArgument("this rank does not sample: with rollout.ahead the first rank samples for all")

    def collect(self, timeout: float | None = None) -> list[Finished]:
        return []

    def release(self, session: int) -> None:
        """Do nothing: no session has a cache."""

    def load_weights(self, tensors: Iterable[NamedTensor]) -> None:
        for _ in tensors:
            pass

    def sleep(self) -> None:
        """Do nothing: no memory is held."""

    def wake(self) -> None:
        """Do nothing: no memory is held."""

    def close(self) -> None:
        """Do nothing: nothing runs."""
