"""The engine of a rank that does not sample (``rollout.ahead`` with several ranks).

It takes part in gathering sharded weights, which all ranks must do together, and drops each tensor at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gagpo.agents.engines.base import Finished, ModelEngine, Request, Sampling
from gagpo.base.errors import InvalidArgument
from gagpo.model.weights import NamedTensor


class IdleEngine(ModelEngine):
    """Rejects requests, and reads the weights that ranks gather together."""

    under_way = 0

    def submit(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Raise InvalidArgument for any request."""
        if requests:
            raise InvalidArgument(
                "this rank does not sample: with rollout.ahead the first rank samples for all", key="rollout.ahead"
            )

    def collect(self, timeout: float | None = None) -> list[Finished]:
        return []

    def load_weights(self, tensors: Iterable[NamedTensor]) -> None:
        for _ in tensors:
            pass

    def release(self, session: int) -> None:
        """Do nothing: no session has a cache."""

    def sleep(self) -> None:
        """Do nothing: no memory is held."""

    def wake(self) -> None:
        """Do nothing: no memory was freed."""

    def close(self) -> None:
        """Do nothing: nothing runs."""
