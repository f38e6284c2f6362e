"""A rollout without end, in a thread of its own: rooms that one batch leaves are filled by the next one's episodes."""

from __future__ import annotations

from collections.abc import Sequence

from gagpo.agents.agent import EpisodeState, LanguageAgent
from gagpo.agents.engines.base import Request, Response
from gagpo.agents.episodes import Episode, Turn
from gagpo.agents.rollout import RolloutLoop
from gagpo.collecting.channel import Channel
from gagpo.collecting.rollout_buffer import RolloutRequest
from gagpo.collecting.sampling_thread import TICK, SamplingThread
from gagpo.envs.pool import Pool

FIRST_SLOT = 2**20
"""Slots below it are for those who use the pool while the stream rests."""


class VersionedAgent(LanguageAgent):
    """A language agent whose turns know the weights they were sampled with, and that can be stopped."""

    def __init__(self, agent: LanguageAgent, thread: SamplingThread):
        super().__init__(agent.engine, agent.context, agent.sampling, agent.manners)
        self.thread = thread
        self.thinking = 0  # responses under way

    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        self.submit(states)
        found: dict[int, Turn] = {}
        while self.thinking:  # the trainer may want no more meanwhile
            self.thread.check()
            found.update(self.collect(TICK))
        return [found.get(state.slot) for state in states]

    def submit(self, states: Sequence[EpisodeState]) -> list[int]:
        if not states:
            return []
        full = super().submit(states)
        self.thinking += len(states) - len(full)
        return full

    def collect(self, timeout: float | None) -> list[tuple[int, Turn]]:
        found = super().collect(TICK if timeout is None else timeout)
        self.thinking -= len(found)
        return found

    def _turn(self, request: Request, response: Response) -> Turn:
        turn = super()._turn(request, response)
        turn.version = self.thread.version  # weights change only while no response is under way
        return turn


class AsyncRollout(RolloutLoop):
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
        """Until the channel stops it; what ends it is raised, once neither engine nor pool keeps anything of it."""
        try:
            if lockstep:
                self.play_in_batches(lockstep)
            else:
                self.play_async(self.player)
        finally:
            for slot in list(self.states):
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
        while len(self.states) < self.concurrency and (request := self.channel.next()):  # a slot each
            self.requests[self.upcoming] = request
            self._start(self.upcoming, request.job)
            self.upcoming += 1
        if not self.states:
            self.channel.idle()
        return True

    def _rest(self) -> None:
        """Hand over engine and pool once the environments have answered: their deadlines go on meanwhile."""
        while self.waiting:
            self._take_events(None)
        self._leave_over()
        self.channel.sleep()

    def _drop_old(self) -> None:
        for slot, state in list(self.states.items()):
            if self.channel.too_old(state.episode):
                del self.states[slot]
                self.waiting.discard(slot)
                if slot in self.ready:
                    self.ready.remove(slot)
                self.agent.forget(slot)
                self.pool.release(slot)
                self.channel.drop(self.requests.pop(slot), state.episode)

    def _take_events(self, timeout: float | None) -> None:
        self.channel.check()
        super()._take_events(TICK if timeout is None else timeout)

    def _take_ready(self) -> list[int]:
        return [] if self.channel.wanted else super()._take_ready()

    def _deliver(self, slot: int, episode: Episode) -> None:
        self.channel.deliver(self.requests.pop(slot), episode)
