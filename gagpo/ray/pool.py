"""Hosts of environments on many nodes, as one pool with the contract of :class:`gagpo.envs.pool.Pool`.

Every reset and every step is answered by exactly one event, also when a host dies: it is replaced, and its episodes
start over with ``restarted``, as those of a worker that died do.
"""

from __future__ import annotations

import itertools
import marshal
import math
import time
from collections.abc import Sequence
from typing import Any, Protocol

from gagpo.envs.errors import GagpoError, InvalidArgument
from gagpo.envs.pool import Counters, EnvironmentBroken, Event

LOOK_SECONDS = 1.0  # how long the hosts are waited for at most before deadlines are looked at
_OF_HOSTS = ("crashes", "hangs", "errors")  # counters that only hosts know; the others are counted here


class HostLost(GagpoError, RuntimeError):
    """A host died or does not answer."""


class HostsLost(GagpoError, RuntimeError):
    """Hosts died more often than they may be replaced."""


class Line(Protocol):
    """The connection to one host."""

    def ask(self, batch: bytes) -> Any:
        """Begin an exchange; gives what :meth:`Switchboard.ready` knows it by."""
        ...

    def answer(self, call: Any) -> bytes:
        """What came of a call that is ready; :class:`HostLost` where the host died."""
        ...

    def replace(self) -> None:
        """End the host, if it still lives, and start another in its place."""
        ...

    def close(self) -> None: ...


class Switchboard(Protocol):
    """Waits for calls of any line."""

    def __call__(self, calls: Sequence[Any], timeout: float) -> list[Any]:
        """Those of ``calls`` that are ready, as soon as there is one, within ``timeout`` seconds."""
        ...


class _Home:
    """What is known of one host."""

    def __init__(self, line: Line):
        self.line = line
        self.outbox: list[tuple[Any, ...]] = []
        self.episodes: dict[int, _Episode] = {}  # by the number that the host knows them by
        self.call: Any = None
        self.since = 0.0
        self.counters: dict[str, int] = {}

    @property
    def waited_for(self) -> bool:
        return any(episode.pending for episode in self.episodes.values())


class _Episode:
    """A slot's present episode. A reset makes a new one with a new number: late answers to the old one are unknown."""

    def __init__(self, number: int, slot: int, task: str, seed: int | None, home: _Home):
        self.number, self.slot, self.task, self.seed, self.home = number, slot, task, seed, home
        self.pending = ""  # the unanswered operation
        self.live = False
        self.trouble = ""  # why it starts over


class ClusterPool:
    """Steps environments at several hosts. For one thread only.

    deadline: seconds after which a host that does not answer an exchange is given up; an exchange never waits for its
    environments. restarts: how many hosts may be replaced.
    """

    def __init__(self, lines: Sequence[Line], ready: Switchboard, *, deadline: float = 120.0, restarts: int = 10):
        if not lines:
            raise InvalidArgument("a pool over a cluster needs at least one host")
        self._homes = [_Home(line) for line in lines]
        self._wait_for, self._deadline, self._restarts = ready, deadline, restarts
        self._numbers = itertools.count()
        self._episodes: dict[int, _Episode] = {}
        self._ready: list[Event] = []
        self._own = Counters()
        self._gone = dict.fromkeys(_OF_HOSTS, 0)  # what hosts had counted that are no more
        self._closed = False

    @property
    def counters(self) -> Counters:
        """As of a pool; a host that died counts among the crashes."""
        of_hosts = {
            name: self._gone[name] + sum(home.counters.get(name, 0) for home in self._homes) for name in _OF_HOSTS
        }
        return Counters(**{**self._own.as_dict(), **of_hosts})

    def reset(self, slot: int, task: str, seed: int | None = None) -> None:
        """Start ``task`` in ``slot`` (any non-negative int), ending whatever runs there; answered by one event."""
        self._require_open()
        if slot < 0:
            raise InvalidArgument(f"a slot is a non-negative number, got {slot}")
        self.release(slot)
        home = min(self._homes, key=lambda home: len(home.episodes))
        episode = _Episode(next(self._numbers), slot, task, seed, home)
        self._episodes[slot] = home.episodes[episode.number] = episode
        self._request_reset(episode)

    def step(self, slot: int, action: str) -> None:
        """Carry out ``action`` in ``slot``; answered by one event. InvalidArgument when no episode waits there."""
        self._require_open()
        episode = self._episodes.get(slot)
        if episode is None or not episode.live:
            raise InvalidArgument(f"slot {slot} holds no episode that waits for an action")
        if type(action) is not str:
            raise TypeError(f"an action is a string, got {type(action).__name__}")
        episode.live = False
        if episode.trouble:
            self._request_reset(episode)
            return
        episode.pending = "step"
        episode.home.outbox.append(("step", episode.number, action))

    def release(self, slot: int) -> None:
        """Give up ``slot`` and whatever runs there; a free slot stays free."""
        episode = self._episodes.pop(slot, None)
        if episode is not None:
            del episode.home.episodes[episode.number]
            episode.home.outbox.append(("release", episode.number))

    def flush(self) -> None:
        """Hand all requests to the hosts that are free to take them."""
        for home in self._homes:
            if home.call is None and (home.outbox or home.waited_for):
                home.call, home.since = home.line.ask(marshal.dumps(home.outbox)), time.monotonic()
                home.outbox = []

    def wait(self, timeout: float | None = None, at_least: int = 1) -> list[Event]:
        """The events that have come, as soon as there are ``at_least``; see :meth:`gagpo.envs.pool.Pool.wait`."""
        self._require_open()
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            self.flush()
            calls = [home.call for home in self._homes if home.call is not None]
            enough = len(self._ready) >= at_least or not any(home.waited_for for home in self._homes)
            left = max(0.0, min(LOOK_SECONDS, end - time.monotonic()))
            done = self._wait_for(calls, 0.0 if enough else left) if calls else []
            for home in self._homes:
                if home.call is not None and home.call in done:
                    self._receive(home)
                elif home.call is not None and time.monotonic() - home.since > self._deadline:
                    self._replace(home, f"a host of environments did not answer within {self._deadline:g} s")
            waited_for = any(home.waited_for for home in self._homes)
            if len(self._ready) >= at_least or not waited_for or time.monotonic() >= end:
                self.flush()
                events, self._ready = self._ready, []
                return events

    @property
    def processes(self) -> list[int]:
        """None on this machine."""
        return []

    def close(self) -> None:
        """End all hosts; idempotent."""
        self._closed = True
        for home in self._homes:
            home.line.close()

    def __enter__(self) -> ClusterPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise InvalidArgument("the pool is closed")

    def _request_reset(self, episode: _Episode) -> None:
        episode.pending = "reset"
        episode.home.outbox.append(("reset", episode.number, episode.task, episode.seed))

    def _receive(self, home: _Home) -> None:
        """Take the answer of a call."""
        call, home.call = home.call, None
        try:
            answer = home.line.answer(call)
        except HostLost as error:
            self._replace(home, str(error))
            return
        found = marshal.loads(answer)
        if isinstance(found, str):
            self.close()
            raise EnvironmentBroken(found)
        events, home.counters = found
        for number, *rest in events:
            if (episode := home.episodes.get(number)) is not None:
                self._answer(episode, Event(episode.slot, *rest))

    def _answer(self, episode: _Episode, event: Event) -> None:
        if episode.trouble and event.kind == "reset":
            event = event._replace(kind="restarted", error=episode.trouble)
        episode.pending, episode.trouble = "", ""
        episode.live = event.kind in ("reset", "restarted") or not (event.terminated or event.truncated)
        self._own.steps += event.kind == "step"
        self._own.resets += event.kind in ("reset", "restarted")
        self._own.restarts += event.kind == "restarted"
        if event.kind == "failed":
            self._own.failures += 1
            episode.live = False
        self._ready.append(event)

    def _replace(self, home: _Home, trouble: str) -> None:
        """Start another host in place of one that is lost; what it held starts over there."""
        home.call = None
        for name in _OF_HOSTS:
            self._gone[name] += home.counters.get(name, 0)
        home.counters = {}
        self._gone["crashes"] += 1
        if self._restarts <= 0:
            self.close()
            raise HostsLost(f"hosts of environments were lost too often (cluster.restarts); the last: {trouble}")
        self._restarts -= 1
        home.line.replace()
        home.outbox = []
        for episode in home.episodes.values():
            if episode.pending == "reset":
                self._request_reset(episode)  # not begun, or starting over already
            elif episode.pending == "step":
                episode.trouble = trouble
                self._request_reset(episode)
            elif episode.live:
                episode.trouble = trouble
