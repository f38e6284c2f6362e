"""Collecting with ``rollout.ahead`` and several ranks: the first rank samples for all::

      rank 0                                rank 1, 2, ...
      ------                                --------------
      collect from the sampling thread      wait in a gathering
      send the collection           ---->   receive it
      credit and update                     credit and update          together
      gather the weights                    gather the weights         together
      publish a copy to the thread          wait in a gathering

The thread of the first rank makes no collective calls, so it samples while all ranks update. Its staleness, correction
and checkpoints are those of a run with one process. Which task groups a batch has depends on nothing but the buffer of
the first rank, so a run can be resumed on any number of ranks.

Who waits for whom: the other ranks wait for the first one in the gatherings of ``collect``, ``sampled``, ``paused`` and
``updating``; the watch ends them if it is gone. The first rank raises the errors of its thread there, on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeVar

import torch

from gagpo.agents.agent import Agent
from gagpo.agents.engines.base import Engine
from gagpo.agents.rollout import Clock
from gagpo.collecting.ahead import AheadCollector
from gagpo.collecting.collector import Collection, OnEpisode, ignore
from gagpo.collecting.packing import packed, unpacked
from gagpo.distributed.interrupt import Interruptions
from gagpo.distributed.ranks import Ranks
from gagpo.envs.pool import Pool
from gagpo.model.dtypes import dtype_of
from gagpo.model.weights import NamedTensor, named_tensors

T = TypeVar("T")


class FirstRankCollector:
    """A :class:`gagpo.collecting.collector.Collector` that sends all ranks what ``ahead`` collects on the first one."""

    def __init__(self, ahead: AheadCollector, ranks: Ranks, interruptions: Interruptions):
        self.ahead = ahead
        self.buffer = ahead.buffer
        self.ranks = ranks
        self.interruptions = interruptions

    def collect(self, agent: Agent, pool: Pool, iteration: int, on_episode: OnEpisode = ignore) -> Collection:
        if not self.ranks.first:
            self.ahead.controllers.begin()
        collection = self._on_first(lambda: self.ahead.collect(agent, pool, iteration, on_episode))
        data = self.ranks.gathered_bytes(b"" if collection is None else collection_bytes(collection))[0]
        return collection or collection_of(data)

    @contextmanager
    def updating(self, engine: Engine, model: torch.nn.Module, iteration: int) -> Iterator[None]:
        """Publish the new weights at the end, in the engine's format, in host memory."""
        yield
        dtype = dtype_of(engine.dtype)
        copies: list[NamedTensor] = []
        for name, tensor in named_tensors(model, dtype=dtype):  # gathered by all ranks
            if self.ranks.first:
                # A copy on the host: the next update changes the tensor while the thread still reads it.
                copies.append((name, tensor.detach().to("cpu", dtype, copy=True)))
        self.ranks.of_first(lambda: self.ahead.publish(copies, iteration))

    @contextmanager
    def _all_paused(self) -> Iterator[None]:
        with ExitStack() as stack:
            self._on_first(lambda: stack.enter_context(self.ahead.paused()))
            yield

    def paused(self) -> AbstractContextManager[None]:
        return self._all_paused()

    def close(self) -> None:
        self.ahead.close()

    def sampled(self, seconds: float | None) -> bytes | None:
        return self._on_first(lambda: self.ahead.sampled(seconds))

    def load_sampled(self, data: bytes) -> None:
        self.ahead.load_sampled(data)

    def _on_first(self, call: Callable[[], T]) -> T | None:
        """The result of ``call`` on the first rank, None on the others. An error or interruption ends all ranks."""
        result: T | None = None
        error: BaseException | None = None
        try:
            if self.ranks.first:
                with self.interruptions.immediate():
                    result = call()
        except BaseException as caught:
            error = caught
        self.ranks.raise_together(error, self.ranks.gathered(error and type(error).__name__))
        return result


def collection_bytes(collection: Collection) -> bytes:
    """A collection without probes, each episode once."""
    numbers = {id(episode): number for number, episode in enumerate(collection.sampled_episodes)}
    header: dict[str, Any] = {
        "sampled": len(collection.sampled_episodes),
        "trained_on": [numbers[id(episode)] for episode in collection.episodes],
        "rounds": collection.rounds,
        "clock": vars(collection.clock),
        "stats": collection.stats,
    }
    return packed([*collection.sampled_episodes, *collection.stale_episodes], header)


def collection_of(data: bytes) -> Collection:
    """The collection of :func:`collection_bytes`."""
    episodes, header = unpacked(data)
    sampled = episodes[: header["sampled"]]
    return Collection(
        episodes=[sampled[number] for number in header["trained_on"]],
        sampled_episodes=sampled,
        stale_episodes=episodes[header["sampled"] :],
        rounds=header["rounds"],
        clock=Clock(**header["clock"]),
        stats=header["stats"],
    )
