"""Sampling ahead with several ranks: the first rank samples for all, on its own engines, while all of them train."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch

from gagpo.agents.agent import Agent
from gagpo.agents.engines.base import Engine
from gagpo.agents.engines.weights import named_tensors
from gagpo.agents.precision import dtype_of
from gagpo.agents.rollout import Clock
from gagpo.collecting.ahead import AheadCollector
from gagpo.collecting.collector import Collection, Collector
from gagpo.collecting.distributed_rollout import packed, unpacked
from gagpo.distributed.interrupt import Interruptions
from gagpo.distributed.ranks import Ranks
from gagpo.envs.pool import Pool

T = TypeVar("T")


class FirstRankCollector(Collector):
    """Gives every rank what ``ahead`` collects on the first one.

    The first rank alone keeps the buffer; on the others ``ahead`` stays as it was loaded. Each batch is sent to the
    other ranks, and new weights are gathered for the first rank's engine from all of them.
    """

    def __init__(self, ahead: AheadCollector, ranks: Ranks, interruptions: Interruptions):
        super().__init__(ahead.settings, ahead.schedule, ahead.controllers)
        self.ahead, self.ranks, self.interruptions = ahead, ranks, interruptions

    def _on_first(self, call: Callable[[], T]) -> T | None:
        """What ``call`` returns on the first rank, None on the others; its error or interruption ends all ranks."""
        found, error = None, None
        try:
            if self.ranks.first:
                with self.interruptions.immediate():
                    found = call()
        except BaseException as caught:
            error = caught
        self.ranks.raise_together(error, self.ranks.gathered(error and type(error).__name__))
        return found

    def state_dict(self) -> dict[str, Any]:
        return self.ahead.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.ahead.load_state_dict(state)

    def sampled(self, seconds: float | None) -> bytes | None:
        return self._on_first(lambda: self.ahead.sampled(seconds))

    def load_sampled(self, data: bytes) -> None:
        self.ahead.load_sampled(data)

    def collect(self, agent: Agent, pool: Pool, iteration: int) -> Collection:
        found = self._on_first(lambda: self.ahead.collect(agent, pool, iteration))
        data = self.ranks.gathered_bytes(b"" if found is None else collection_bytes(found))[0]
        return found or collection_of(data)

    @contextmanager
    def updating(self, engine: Engine, model: torch.nn.Module, iteration: int) -> Iterator[None]:
        """Publish the new weights at the end, in the engine's format and in host memory."""
        yield
        published = []
        for name, tensor in named_tensors(model, dtype=dtype_of(engine.dtype)):  # all ranks gather each of them
            if self.ranks.first:
                published.append((name, tensor.detach().to("cpu", dtype_of(engine.dtype), copy=True)))
        self.ranks.of_first(lambda: self.ahead.publish(published, iteration))

    @contextmanager
    def paused(self, engine: Engine) -> Iterator[None]:
        with ExitStack() as resting:
            rest = self.ahead.paused(engine)
            self.ranks.together(lambda: resting.enter_context(rest))
            yield

    def close(self) -> None:
        self.ahead.close()


def collection_bytes(found: Collection) -> bytes:
    """A collection without probes, each episode once."""
    place = {id(episode): number for number, episode in enumerate(found.played)}
    about: dict[str, Any] = {"played": len(found.played), "kept": [place[id(episode)] for episode in found.episodes]}
    about |= {"rounds": found.rounds, "clock": vars(found.clock), "stats": found.stats}
    return packed([*found.played, *found.stale], about)


def collection_of(data: bytes) -> Collection:
    """The collection of :func:`collection_bytes`."""
    episodes, about = unpacked(data)
    played, stale = episodes[: about["played"]], episodes[about["played"] :]
    kept = [played[place] for place in about["kept"]]
    clock = Clock(**about["clock"])
    return Collection(kept, played, stale=stale, rounds=about["rounds"], clock=clock, stats=about["stats"])
