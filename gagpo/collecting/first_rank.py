"""Sampling ahead with several ranks: the first one samples for all, on engines of its own, while all of them train.

Its thread is that of a process alone, and so are its books: which tasks are open, how old an episode may become, what a
checkpoint holds. Each batch is sent to the other ranks, and new weights are gathered for its engine from all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from gagpo.agents.agent import Agent
from gagpo.agents.engines.base import Engine
from gagpo.agents.engines.weights import named_tensors
from gagpo.agents.precision import dtype_of
from gagpo.agents.rollout import Clock
from gagpo.collecting.ahead import AheadCollector
from gagpo.collecting.collector import Collection, Collector
from gagpo.collecting.distributed_rollout import Rollout, packed, unpacked
from gagpo.collecting.schedule import Schedule
from gagpo.controllers import Controllers
from gagpo.distributed.interrupt import Interruptions
from gagpo.distributed.ranks import Ranks
from gagpo.envs.pool import Pool
from gagpo.settings import RunSettings


def collector_for(
    settings: RunSettings,
    schedule: Schedule,
    controllers: Controllers,
    rollout: Rollout,
    ranks: Ranks,
    interruptions: Interruptions,
) -> Collector:
    """The collector that ``rollout.ahead`` asks for, and the number of ranks."""
    if not settings.rollout.ahead:
        return Collector(settings, schedule, controllers, rollout)
    ahead = AheadCollector(settings, schedule, controllers)
    return ahead if ranks.alone else FirstRankCollector(ahead, ranks, interruptions)


class FirstRankCollector(Collector):
    """What ``ahead`` collects on the first rank, on every rank. It does the books there; the others' stay as loaded."""

    def __init__(self, ahead: AheadCollector, ranks: Ranks, interruptions: Interruptions):
        super().__init__(ahead.settings, ahead.schedule, ahead.controllers)
        self.ahead, self.ranks, self.interruptions = ahead, ranks, interruptions

    def state_dict(self) -> dict[str, Any]:
        return self.ahead.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.ahead.load_state_dict(state)

    def sampled(self, seconds: float | None) -> bytes | None:
        """What the first rank's checkpoint holds; nothing on the others, which wait for it."""
        found, error = None, None
        try:
            if self.ranks.first:
                with self.interruptions.heeded():
                    found = self.ahead.sampled(seconds)
        except BaseException as caught:
            error = caught
        self.ranks.raise_together(error, self.ranks.gathered(error and type(error).__name__))
        return found

    def load_sampled(self, data: bytes) -> None:
        self.ahead.load_sampled(data)

    def collect(self, agent: Agent, pool: Pool, iteration: int) -> Collection:
        found, error = Collection(), None
        try:
            if self.ranks.first:
                with self.interruptions.heeded():
                    found = self.ahead.collect(agent, pool, iteration)
        except BaseException as caught:
            error = caught
        self.ranks.raise_together(error, self.ranks.gathered(error and type(error).__name__))
        data = self.ranks.gathered_bytes(_bytes_of(found) if self.ranks.first else b"")[0]
        return found if self.ranks.first else _collection_of(data)

    @contextmanager
    def updating(self, engine: Engine, model: torch.nn.Module, iteration: int) -> Iterator[None]:
        """The first rank's engine goes on sampling; new weights are laid out for it, in its format, beside its card."""
        yield
        laid_out = []
        for name, tensor in named_tensors(model, dtype=dtype_of(engine.dtype)):  # each is gathered by all ranks
            if self.ranks.first:
                laid_out.append((name, tensor.detach().to("cpu", dtype_of(engine.dtype), copy=True)))
        self.ranks.of_first(lambda: self.ahead.publish(laid_out, iteration))

    @contextmanager
    def paused(self, engine: Engine) -> Iterator[None]:
        """A context in which the first rank's engine and pool are the caller's, on all ranks at once."""
        with ExitStack() as resting:
            rest = self.ahead.paused(engine)
            self.ranks.together(lambda: resting.enter_context(rest))
            yield

    def close(self) -> None:
        self.ahead.close()


def _bytes_of(found: Collection) -> bytes:
    """A collection, but for probes: each episode once, and which of them are trained on."""
    place = {id(episode): number for number, episode in enumerate(found.played)}
    about: dict[str, Any] = {"played": len(found.played), "kept": [place[id(episode)] for episode in found.episodes]}
    about |= {"rounds": found.rounds, "clock": vars(found.clock), "stats": found.stats}
    return packed([*found.played, *found.stale], about)


def _collection_of(data: bytes) -> Collection:
    episodes, about = unpacked(data)
    played, stale = episodes[: about["played"]], episodes[about["played"] :]
    kept = [played[place] for place in about["kept"]]
    clock = Clock(**about["clock"])
    return Collection(kept, played, stale=stale, rounds=about["rounds"], clock=clock, stats=about["stats"])
