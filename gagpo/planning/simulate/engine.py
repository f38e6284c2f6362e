"""One replica of an engine in simulated time: prompts are read as they come, responses are continued together."""

from __future__ import annotations

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
    """A response under way. left: tokens; done: the event of its end."""

    left: float
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
        self._new: list[tuple[int, float, simpy.Event]] = []
        self._active: list[SimulatedResponse] = []
        self._change = clock.event()
        clock.process(self._work())

    def request(self, read: int, tokens: int) -> simpy.Event:
        """The event of a finished response of ``tokens`` tokens after ``read`` new ones of a prompt."""
        done = self.clock.event()
        self._new.append((read, float(tokens), done))
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
            elif self._new and self.newest == self.version:
                yield from self._read()
            elif self._active:
                yield from self._decode()
            else:
                self._change = self.clock.event()
                yield self._change

    def _read(self) -> Process:
        """One pass over the prompts that wait; it gives the first token of each response."""
        new, self._new = self._new, []
        seconds = self.rates.pass_seconds + self.rates.read_seconds * sum(read for read, _, _ in new)
        self.reading += yield from self._spend(seconds * self.device.slow_sampling(), interruptible=False)
        for _, tokens, done in new:
            self.sampled += tokens
            self._active.append(SimulatedResponse(tokens - 1, done))
        self._hand_over()

    def _decode(self) -> Process:
        """Until the shortest response ends, or the batch changes."""
        step = self.rates.decode_seconds(len(self._active)) * self.device.slow_sampling()
        least = min(response.left for response in self._active)
        spent = yield from self._spend(least * step, interruptible=True)
        done = least if step == 0 else spent / step
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
