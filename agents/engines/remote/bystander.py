"""The engine of a rank that does not sample: it knows what every engine of the run does, and is never asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gagpo.agents.engines.base import Finished, ModelEngine, NamedTensor, Request, Sampling
from gagpo.base.errors import InvalidArgument


class Bystander(ModelEngine):
    """Has the limits of the run's engine, and reads weights as they pass, since ranks gather them together."""

    @property
    def under_way(self) -> int:
        return 0

    def submit(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Refuse what it is asked."""
        if requests:
            raise InvalidArgument("this rank does not sample: with rollout.ahead the first rank samples for all")

    def collect(self, timeout: float | None = None) -> list[Finished]:
        return []

    def release(self, session: int) -> None:
        """Nothing is kept of any session."""

    def load_weights(self, tensors: Iterable[NamedTensor]) -> None:
        for _ in tensors:
            pass

    def sleep(self) -> None:
        """Nothing is held."""

    def wake(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing runs."""
