"""A run in simulated time: the trainer's own rollout buffer, over replicas, worlds and ranks that take time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import simpy

from gagpo.agents.episodes import Episode, Turn
from gagpo.collecting.rollout_buffer import RolloutBuffer, RolloutRequest
from gagpo.planning.simulate.engine import Device, Process, SimulatedReplica
from gagpo.planning.simulate.rates import Rates
from gagpo.planning.simulate.update import update_seconds
from gagpo.planning.simulate.workload import TurnLengths, Workload
from gagpo.settings import RunSettings

REPLICAS = ("reading prompts", "decoding, few at a time", "decoding, many at a time")
RANKS = ("computing updates", "exchange between ranks", "rest of updates")
TRANSFER = "transfer of weights"
WAITING = "waiting for worlds and the longest episodes"


@dataclass(frozen=True)
class SimulatedPlacement:
    """Processors by role. shared: the same ones do both, in turn or, with ``ahead``, at half speed while both work."""

    replicas: int
    ranks: int
    shared: bool

    @property
    def processors(self) -> int:
        return max(self.replicas, self.ranks) if self.shared else self.replicas + self.ranks

    def describe(self) -> str:
        if self.shared:
            return f"{self.processors} for both"
        return f"{self.replicas} sample, {self.ranks} train"


@dataclass(frozen=True)
class SimulationResult:
    """What an iteration took once the run was under way: means over the iterations after the first ones.

    sampling, training: share of their processors' time that replicas and ranks were at work. worlds: share of the time
    that workers were. tokens_per_second: response tokens. staleness: mean updates between a turn and its training.
    parts: seconds of an iteration by what was done, of one replica and of one rank.
    """

    seconds: float
    tokens_per_second: float
    sampling: float
    training: float
    worlds: float
    staleness: float
    stale_episodes: float
    tokens: float
    parts: dict[str, float]

    @property
    def bottleneck(self) -> str:
        """The longest part of the busier role; waiting counts as the replicas', which have nobody else to wait for."""
        own = {name: self.parts[name] for name in (RANKS if self.training >= self.sampling else REPLICAS)}
        if self.training < 0.5 and self.sampling < 0.5:
            own = self.parts
        return max(own, key=lambda name: own[name])


class Simulation:
    """Plays ``iterations`` of a run; ``outcome`` leaves the first ``ahead + 1`` of them out, and the last."""

    def __init__(
        self,
        settings: RunSettings,
        workload: Workload,
        rates: Rates,
        placement: SimulatedPlacement,
        iterations: int = 4,
    ):
        self.warm = settings.rollout.ahead + 1
        whole = -(-iterations // self.warm) * self.warm  # batches that are open together may end together
        self.iterations = self.warm + whole
        # Beyond the last iteration nothing is begun, which would look like a run that has no wait.
        training = settings.training.model_copy(update={"iterations": self.iterations + settings.rollout.ahead + 1})
        self.settings = settings.model_copy(update={"training": training})
        self.workload, self.rates, self.placement = workload, rates, placement
        self.clock = simpy.Environment()
        worlds = self.settings.worlds
        self.buffer = RolloutBuffer(self.settings, lambda place: worlds[place % len(worlds)].task(str(place)))
        self.device = Device(placement.shared)
        self.actors = [Actor(self) for _ in range(placement.replicas)]
        self.lengths: dict[str, Sequence[TurnLengths]] = {}  # turns of every finished episode, by its seed
        self.delivered = self.clock.event()
        self.marks: list[dict[str, float]] = []
        self.staleness: list[float] = []
        self.dropped = 0
        self.trained_turns = 0
        self.trained_tokens = 0
        self.parts = dict.fromkeys(RANKS, 0.0)

    def run(self) -> SimulationResult:
        """The whole of it."""
        self.clock.run(until=self.clock.process(self._train()))
        first, last = self.marks[self.warm], self.marks[-1]
        count = len(self.marks) - 1 - self.warm
        spent = last["now"] - first["now"]
        seconds = max(spent, 1e-12)
        workers = self.settings.rollout.lanes * self.placement.replicas

        def grown(name: str) -> float:
            return last[name] - first[name]

        return SimulationResult(
            seconds=spent / count,
            tokens_per_second=grown("tokens") / seconds,
            sampling=sum(grown(name) for name in REPLICAS) / seconds,
            training=sum(grown(name) for name in RANKS) / seconds,
            worlds=min(1.0, grown("worlds") / seconds / workers),  # a step counts as soon as it is asked for
            staleness=float(np.mean(self.staleness[self.warm :])),
            stale_episodes=grown("dropped") / count,
            tokens=grown("tokens") / count,
            parts=self._parts({name: grown(name) / count for name in (*REPLICAS, *RANKS)}, spent / count),
        )

    def _parts(self, parts: dict[str, float], seconds: float) -> dict[str, float]:
        """With what is left of an iteration: nobody works then, or, with ``ahead``, the replicas do not."""
        parts = {**parts, TRANSFER: self.rates.transfer_seconds}
        ahead = self.settings.rollout.ahead > 0
        known = sum(parts[name] for name in ((*REPLICAS, TRANSFER) if ahead else parts))
        return {**parts, WAITING: max(0.0, seconds - known)}

    def feed(self) -> None:
        """Begin whatever may be begun, each group where most room is."""
        while True:
            actor = min(self.actors, key=lambda actor: actor.live)
            if actor.live >= self.settings.rollout.concurrency:
                return
            request = self.buffer.next()
            if request is None:
                return
            actor.begin(request)

    def deliver(self, request: RolloutRequest, turns: Sequence[TurnLengths], version: int) -> None:
        """An episode has ended; ``version``: of the weights at its first turn."""
        self.lengths[str(request.job.seed)] = turns
        self.buffer.deliver(
            request,
            Episode(
                request.job.task,
                seed=request.job.seed,
                outcome="terminated",
                turns=[Turn("", "", "", version=version)] if turns else [],
            ),
        )
        if not self.delivered.triggered:
            self.delivered.succeed()
        self.feed()

    def draw(self, request: RolloutRequest) -> tuple[Sequence[TurnLengths], np.ndarray]:
        """Turns of an episode and seconds of its reset and steps: the same whatever the placement."""
        rng = np.random.default_rng([self.settings.seed, request.place, request.sample, request.attempt])
        turns, rates = self.workload.draw(rng), self.rates
        spread = rates.environment_spread
        seconds = np.full(len(turns) + 1, rates.environment_seconds)
        if spread:  # of the stated mean
            seconds *= np.exp(spread * rng.standard_normal(len(seconds)) - spread**2 / 2)
        seconds[0] = rates.reset_seconds
        return turns, seconds

    def _train(self) -> Process:
        wanted = self.settings.rollout.tasks
        self.feed()
        self._mark()
        for iteration in range(self.iterations):
            # Groups come as they end; those that have grown too old meanwhile are begun anew.
            batch: list[Episode] = []
            for _ in range(wanted):
                while True:
                    self.dropped += len(self.buffer.drop_stale())
                    self.feed()
                    group = self.buffer.take()
                    if group is not None:
                        break
                    self.delivered = self.clock.event()
                    yield self.delivered
                batch += group.played()
            yield from self._update(batch, iteration)
            if not self.settings.rollout.ahead:
                yield self.clock.timeout(self.rates.transfer_seconds)
            self.buffer.trained(iteration + 1)
            for actor in self.actors:
                actor.replica.publish(iteration + 1)
            self._mark()
            self.feed()

    def _update(self, batch: Sequence[Episode], iteration: int) -> Process:
        played = [self.lengths.pop(str(episode.seed)) for episode in batch]
        rows = [tokens for turns in played for tokens in self.workload.rows(turns)]
        self.trained_tokens += sum(turn.response for turns in played for turn in turns)
        ages = [iteration - turn.version for episode in batch for turn in episode.turns if turn.version is not None]
        self.staleness.append(float(np.mean(ages)) if ages else 0.0)
        spent = update_seconds(self.settings, self.rates, rows, self.placement.ranks)
        for name, part in zip(RANKS, (spent.computing, spent.exchange, spent.rest), strict=True):
            self.parts[name] += part
        left = spent.total
        self.device.training = True
        self._poke()
        slices = max(1, self.settings.training.minibatches) * 4 if self.placement.shared else 1
        for _ in range(slices):
            yield self.clock.timeout(left / slices * self.device.slow_training())
        self.device.training = False
        self._poke()

    def _poke(self) -> None:
        if self.device.shared:
            for actor in self.actors:
                actor.replica.poke()

    def _mark(self) -> None:
        self.marks.append(
            {
                "now": float(self.clock.now),
                "tokens": float(self.trained_tokens),
                **self.parts,
                **dict(zip(REPLICAS, self._sampled(), strict=True)),
                "worlds": sum(actor.worlds_busy for actor in self.actors),
                "dropped": float(self.dropped),
            }
        )

    def _sampled(self) -> tuple[float, float, float]:
        """Seconds of a replica so far, of the kinds of ``REPLICAS``."""
        replicas, count = [actor.replica for actor in self.actors], len(self.actors)
        passing = sum(replica.passing for replica in replicas) / count
        decoding = sum(replica.decoding for replica in replicas) / count
        return sum(replica.reading for replica in replicas) / count, passing, decoding - passing


class Actor:
    """A replica with the worlds it plays in, ``rollout.workers`` processes of them, as one process of a run has."""

    def __init__(self, simulation: Simulation):
        self.simulation, self.clock = simulation, simulation.clock
        rollout = simulation.settings.rollout
        loading = simulation.rates.transfer_seconds if rollout.ahead else 0.0  # without, the trainer waits for it
        self.replica = SimulatedReplica(self.clock, simulation.rates, simulation.device, loading)
        self.workers = [0.0] * rollout.lanes  # when each will be free
        self.held = [0] * len(self.workers)  # episodes of each
        self.worlds_busy = 0.0
        self.live = 0
        self._waiting: list[RolloutRequest] = []
        self._come = self.clock.event()
        self._lockstep = rollout.lockstep
        if rollout.lockstep:
            self.clock.process(self._play_together())

    def begin(self, request: RolloutRequest) -> None:
        """Play an episode."""
        self.live += 1
        if not self._lockstep:
            self.clock.process(self._play(request))
            return
        self._waiting.append(request)
        if not self._come.triggered:
            self._come.succeed()

    def _step(self, worker: int, seconds: float) -> simpy.Event:
        """A worker steps its worlds one after the other."""
        begun = max(float(self.clock.now), self.workers[worker])
        self.workers[worker] = begun + seconds
        self.worlds_busy += seconds
        return self.clock.timeout(self.workers[worker] - self.clock.now)

    def _episode(self, request: RolloutRequest) -> SimulatedEpisode:
        """An episode stays with the worker that had the fewest when it began."""
        worker = int(np.argmin(self.held))
        self.held[worker] += 1
        return SimulatedEpisode(self.simulation, request, worker)

    def _end(self, episode: SimulatedEpisode) -> None:
        self.live -= 1
        self.held[episode.worker] -= 1
        self.simulation.deliver(episode.request, episode.turns, episode.first)

    def _play(self, request: RolloutRequest) -> Process:
        episode = self._episode(request)
        yield self._step(episode.worker, episode.seconds[0])
        for number in range(len(episode.turns)):
            yield self._ask(episode, number)
            episode.note(number, self.replica.version)
            yield self._step(episode.worker, episode.seconds[number + 1])
        self._end(episode)

    def _ask(self, episode: SimulatedEpisode, number: int) -> simpy.Event:
        """New weights have emptied the cache: then all of the context is new."""
        turn = episode.turns[number]
        kept = number > 0 and episode.last == self.replica.version == self.replica.newest
        return self.replica.request(turn.read if kept else turn.context, turn.response, turn.context)

    def _play_together(self) -> Process:
        """All live episodes are gathered before any is answered, and all are answered before any goes on."""
        episodes: list[SimulatedEpisode] = []
        while True:
            # New episodes are reset while the others take their step: one wait for both.
            new, self._waiting = [self._episode(request) for request in self._waiting], []
            if not episodes and not new:
                self._come = self.clock.event()
                yield self._come
                continue
            steps = [self._step(episode.worker, episode.seconds[episode.number]) for episode in (*episodes, *new)]
            yield self.clock.all_of(steps)
            episodes += new
            for over in [one for one in episodes if one.number == len(one.turns)]:
                episodes.remove(over)
                self._end(over)
            if episodes:
                yield self.clock.all_of([self._ask(episode, episode.number) for episode in episodes])
            for episode in episodes:
                episode.note(episode.number, self.replica.version)
                episode.number += 1


class SimulatedEpisode:
    """An episode under way. number: of its turn; first, last: versions of the weights at its first and latest turn."""

    def __init__(self, simulation: Simulation, request: RolloutRequest, worker: int):
        self.request, self.worker = request, worker
        self.turns, self.seconds = simulation.draw(request)
        self.number = 0
        self.first = self.last = 0

    def note(self, number: int, version: int) -> None:
        if number == 0:
            self.first = version
        self.last = version
