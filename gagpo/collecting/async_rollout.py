"""A rollout without end, in a thread of its own: rooms that one batch leaves are filled by the next one's episodes."""

from __future__ import annotations

from collections.abc import Sequence

from gagpo.agents.agent import Decision, LanguageAgent, Live
from gagpo.agents.engines.base import Request, Response
from gagpo.agents.episodes import Episode
from gagpo.agents.rollout import Stage
from gagpo.collecting.channel import TICK, Channel, SamplingStopped
from gagpo.collecting.rollout_buffer import RolloutRequest
from gagpo.envs.pool import Pool

FIRST_SLOT = 2**20
"""Slots below it are for those who use the pool while the stream rests."""


class VersionedAgent(LanguageAgent):
    """A language agent whose decisions know the weights they were sampled with, and that can be stopped."""

    def __init__(self, agent: LanguageAgent, channel: Channel):
        super().__init__(agent.engine, agent.context, agent.sampling)
        self.channel = channel
        self.thinking = 0  # responses under way

    def decide(self, lives: Sequence[Live]) -> list[Decision | None]:
        self.submit(lives)
        found: dict[int, Decision] = {}
        while self.thinking:
            self.channel.check()
            found.update(self.collect(TICK))
        return [found.get(live.slot) for live in lives]

    def submit(self, lives: Sequence[Live]) -> list[int]:
        if not lives:
            return []
        full = super().submit(lives)
        self.thinking += len(lives) - len(full)
        return full

    def collect(self, timeout: float | None) -> list[tuple[int, Decision]]:
        found = super().collect(TICK if timeout is None else timeout)
        self.thinking -= len(found)
        return found

    def _decision(self, request: Request, out: Response) -> Decision:
        decision = super()._decision(request, out)
        decision.version = self.channel.version  # weights change only while no response is under way
        return decision


class AsyncRollout(Stage):
    """Plays what the channel asks for, as long as it asks.

    New weights enter between turns, as soon as the responses under way are finished: every turn is of one policy, an
    episode may be of several. Caches of the old weights are dropped, so that an episode's context is read again.
    """

    def __init__(self, agent: VersionedAgent, pool: Pool, channel: Channel, concurrency: int):
        super().__init__(agent, pool, [], concurrency, None)
        self.player, self.channel = agent, channel
        self.version = channel.version
        self.requests: dict[int, RolloutRequest] = {}
        self.upcoming = FIRST_SLOT

    def run(self, lockstep: bool) -> None:
        """Until the channel stops it; what ends it otherwise is raised there."""
        try:
            if lockstep:
                self.play_together(self.player, lockstep)
            else:
                self.play_apart(self.player)
        except SamplingStopped:
            self._leave()
        except BaseException as error:
            self.channel.fail(error)
            self._leave()

    def _leave(self) -> None:
        for slot in list(self.lives):
            self.agent.forget(slot)
            self.pool.release(slot)

    def _begin(self) -> bool:
        self.channel.check()
        if not self.player.thinking:
            if self.channel.pausing:
                self._rest()
            self.channel.renew(self.player.engine)
            if self.channel.version != self.version:  # the trainer may have loaded them, while we rested
                self.version = self.channel.version
                self._drop_old()
        while len(self.lives) < self.concurrency and (request := self.channel.next()):
            self.requests[self.upcoming] = request
            self._start(self.upcoming, request.job)
            self.upcoming += 1
        if not self.lives:
            self.channel.idle()
        return True

    def _rest(self) -> None:
        """Hand over engine and pool once the environments have answered: their deadlines go on meanwhile."""
        while self.waiting:
            self._hear(None)
        self.channel.sleep()

    def _drop_old(self) -> None:
        for slot, live in list(self.lives.items()):
            if self.channel.too_old(live.episode):
                del self.lives[slot]
                self.waiting.discard(slot)
                if slot in self.ready:
                    self.ready.remove(slot)
                self.agent.forget(slot)
                self.pool.release(slot)
                self.channel.drop(self.requests.pop(slot), live.episode)

    def _hear(self, timeout: float | None) -> None:
        self.channel.check()
        super()._hear(TICK if timeout is None else timeout)

    def _called(self) -> list[int]:
        return [] if self.channel.wanted else super()._called()

    def _deliver(self, slot: int, episode: Episode) -> None:
        self.channel.deliver(self.requests.pop(slot), episode)
