"""The thread that samples whole batches ahead: each with the weights of one version, whenever there is time for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from gagpo.agents.agent import LanguageAgent
from gagpo.agents.engines.base import Engine, NamedTensor
from gagpo.agents.episodes import Episode
from gagpo.agents.rollout import Clock, Job, rollout
from gagpo.collecting.async_rollout import VersionedAgent
from gagpo.collecting.sampling_thread import TICK, SamplingThread
from gagpo.envs.pool import Pool


@dataclass
class Wave:
    """Task groups that are played together, with weights that ``version`` updates have made.

    jobs: their ``group`` is the number of a place in ``places``. episodes: in the order of the jobs, None until played.
    """

    version: int
    places: list[int]
    jobs: list[Job]
    episodes: list[Episode] | None = None
    clock: Clock = field(default_factory=Clock)


class BatchSampler(SamplingThread):
    """Plays waves in their order. Weights change between waves alone, so what is sampled is no question of time."""

    def __init__(self, agent: LanguageAgent, pool: Pool, concurrency: int, version: int):
        super().__init__(version, resting=True)  # whenever no wave is being played
        self.agent = VersionedAgent(agent, self)
        self.pool, self.concurrency = pool, concurrency
        self._waves: deque[Wave] = deque()  # still to be played, the one under way included
        self._weights: deque[tuple[int, list[NamedTensor]]] = deque()

    # The trainer's side -----------------------------------------------------------------------------------------------

    def play(self, waves: Sequence[Wave]) -> None:
        """Have more waves played after those that are to be played already."""
        with self._condition:
            self._waves.extend(waves)
            self._condition.notify_all()

    def publish(self, tensors: Iterable[NamedTensor], version: int) -> None:
        """Lay out a copy of new weights, for the waves of that version. The copies of versions before stay laid out."""
        copied = [(name, tensor.detach().clone()) for name, tensor in tensors]
        with self._condition:
            self._weights.append((version, copied))

    def wait_for(self, waves: Sequence[Wave], seconds: float | None = None) -> None:
        """Until they have been played, or time is up. What ended the thread is raised here."""
        left = seconds
        with self._condition:
            while any(wave.episodes is None for wave in waves) and (left is None or left > 0):
                self.require_alive()
                self._condition.wait(TICK)
                left = None if left is None else left - TICK

    @contextmanager
    def rest(self, engine: Engine) -> Iterator[None]:
        """Nothing is played meanwhile, and the engine has the newest weights: waves of older ones are played first."""
        with self._condition:
            newest = self._weights[-1][0] if self._weights else self.version
            older = [wave for wave in self._waves if wave.version < newest]
        self.wait_for(older)
        with self.paused():
            self._renew(newest)
            yield

    # The sampling thread's side ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play what there is to play, until the trainer wants no more."""
        while True:
            wave = self._next()
            self._renew(wave.version)
            episodes, wave.clock = rollout(self.agent, self.pool, wave.jobs, concurrency=self.concurrency)
            with self._condition:
                wave.episodes, self._resting = episodes, True
                self._waves.popleft()
                self._condition.notify_all()

    def _next(self) -> Wave:
        """Wait for something to play."""
        with self._condition:
            while self._pausing or not self._waves:
                self.check()
                self._condition.wait(TICK)
            self.check()
            self._resting = False
            return self._waves[0]

    def _renew(self, version: int) -> None:
        """Load the weights of ``version``, unless the engine has them; older ones are of no use any more."""
        tensors: list[NamedTensor] | None = None
        with self._condition:
            while self._weights and self._weights[0][0] <= version:
                self.version, tensors = self._weights.popleft()
        if tensors is not None:
            self.agent.engine.load_weights(tensors)
