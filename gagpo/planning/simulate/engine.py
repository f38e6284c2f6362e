"""One replica of an engine in simulated time: prompts are read as they come, responses are continued together."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass

import simpy

from gagpo.planning.simulate.rates import Rates

Process = Generator[simpy.Event, object, None]
"""What simpy runs: it yields the events that it waits for."""

TINY = 1e-6  # of a token


class Device:
    """A processor that sampling and training may share: each has half of it while both work."""

    def __init__(self, shared: bool):
        self.shared, self.training = shared, False
        self.sampling = 0  # replicas at work

    def slow_sampling(self) -> float:
        return 2.0 if self.shared and self.training else 1.0

    def slow_training(self) -> float:
        return 2.0 if self.shared and self.sampling else 1.0


@dataclass
class SimulatedResponse:
    """A response under way. left: tokens; held: of the cache, at its end; done: the event of that."""

    left: float
    held: float
    done: simpy.Event


class SimulatedReplica:
    """Serves requests for responses. Between two changes of the batch time passes in one step.

    version: of the weights; newest: of those that are there to be taken, which happens when no response is under way.
    Requests wait meanwhile. loading: seconds that it takes.
    """

    def __init__(self, clock: simpy.Environment, rates: Rates, device: Device, loading: float = 0.0):
        self.clock, self.rates, self.device, self.loading = clock, rates, device, loading
        self.version = 0
        self.reading = self.decoding = 0.0  # seconds at work
        self.passing = 0.0  # of decoding: seconds that a pass takes however few responses it continues
        self.sampled = 0.0  # tokens
        self.newest = 0
        self._new: list[tuple[int, float, float, simpy.Event]] = []
        self._active: list[SimulatedResponse] = []
        self._change = clock.event()
        clock.process(self._work())

    def request(self, read: int, tokens: int, context: int = 0) -> simpy.Event:
        """The event of a finished response of ``tokens`` tokens to a prompt of ``context``, ``read`` of them new."""
        done = self.clock.event()
        self._new.append((read, float(tokens), float(context + tokens), done))
        self.poke()
        return done

    def publish(self, version: int) -> None:
        """There are new weights."""
        self.newest = version
        self.poke()

    def poke(self) -> None:
        """Something has changed: look again."""
        if not self._change.triggered:
            self._change.succeed()

    def _work(self) -> Process:
        # New weights are taken between responses, prompts are read before responses go on.
        while True:
            if self.newest != self.version and not self._active:
                yield self.clock.timeout(self.loading)
                self.version = self.newest
            elif self.newest == self.version and (new := self._admitted()):
                yield from self._read(new)
            elif self._active:
                yield from self._decode()
            else:
                self._change = self.clock.event()
                yield self._change

    def _admitted(self) -> list[tuple[int, float, float, simpy.Event]]:
        """The requests that the cache has room for, in their order; one at least where nothing is under way."""
        room = self.rates.cache_tokens - sum(response.held for response in self._active)
        count = 0
        for _, _, held, _ in self._new:
            if held > room and (count or self._active):
                break
            room -= held
            count += 1
        new, self._new = self._new[:count], self._new[count:]
        return new

    def _read(self, new: list[tuple[int, float, float, simpy.Event]]) -> Process:
        """Read prompts, which gives the first token of each response.

        Mixed passes continue the others by a token each meanwhile; else those wait.
        """
        tokens = sum(read for read, *_ in new)
        rates, others = self.rates, self._active if self.rates.mixed else []
        passes = max(1, -(-tokens // rates.chunk)) if rates.mixed else 1
        passes = min([passes, *(max(1, int(response.left)) for response in others)]) if others else passes
        seconds = passes * (rates.pass_seconds + rates.sequence_seconds * len(others)) + rates.read_seconds * tokens
        self.reading += yield from self._spend(seconds * self.device.slow_sampling(), interruptible=False)
        for response in others:
            response.left -= passes
        for _, count, held, done in new:
            self.sampled += count
            self._active.append(SimulatedResponse(count - 1, held, done))
        self._hand_over()

    def _decode(self) -> Process:
        """Until the shortest response ends, or the batch changes; a pass that has begun is gone through with.

        So requests that come while it goes on are read together after it.
        """
        step = self.rates.decode_seconds(len(self._active)) * self.device.slow_sampling()
        least = min(response.left for response in self._active)
        spent = yield from self._spend(least * step, interruptible=True)
        done = least
        if step and spent < least * step:
            done = min(least, float(math.ceil(spent / step - TINY)))
            spent += yield from self._spend(max(0.0, done * step - spent), interruptible=False)
        self.decoding += spent
        self.passing += self.rates.pass_seconds * done
        for response in self._active:
            response.left -= done
        self._hand_over()

    def _spend(self, seconds: float, interruptible: bool) -> Generator[simpy.Event, object, float]:
        begun = self.clock.now
        self.device.sampling += 1
        self._change = self.clock.event()
        end = self.clock.timeout(seconds)
        yield end | self._change if interruptible else end
        self.device.sampling -= 1
        return seconds if end.processed else float(self.clock.now) - begun

    def _hand_over(self) -> None:
        for response in self._active:
            if response.left <= TINY:
                response.done.succeed()
        self._active = [response for response in self._active if response.left > TINY]
