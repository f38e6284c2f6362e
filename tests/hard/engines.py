"""Broken answers of a container engine: worlds come up, or one line says why not; nothing hangs, and none is left."""

from __future__ import annotations

import functools
import logging
import random
import signal
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Hanging
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gagpo.base.errors import GagpoError
from gagpo.envs.remote import container_engine
from gagpo.envs.remote import containers as module
from gagpo.envs.remote.container_engine import ContainerEngine
from gagpo.envs.remote.container_settings import ContainerSettings
from gagpo.envs.remote.containers import Containers
from tests.agents.raw_server import answering, reply
from tests.envs.remote.engine_server import IMAGE, Container, Engine, engine_server
from tests.hard.mutate import mutated
from tests.hard.outcome import FAULT, FINE, REFUSED, Outcome, Tally
from tests.hard.servers import HANGS, hostile

QUICK = {"ANSWER_SECONDS": 1.0, "PING_SECONDS": 1.0}  # so that a case which waits for an end takes no minutes
SETTINGS = ContainerSettings(containers=2, start_deadline=1.0, restarts=3)
REQUESTS = ("/_ping", "/images/", "/containers/json", "/create", "/start", "/json", "/logs", "DELETE")
STRANGER = "somebody-else"  # a container that is not ours, and stays


class _Process:
    """What a stand-in's container runs: nothing, until it is ended."""

    def __init__(self) -> None:
        self.status: int | None = None

    def poll(self) -> int | None:
        return self.status

    def send_signal(self, number: int) -> None:
        self.status = -number

    def wait(self, timeout: float) -> None:
        del timeout


class _Light(Container):  # type: ignore[misc]
    """A container without a process: all of them share one server, so that a case costs no interpreter's start."""

    def __init__(self, port: int, *words: Any):
        super().__init__(*words)
        self.port = port

    def start(self) -> None:
        self.process = _Process()


class _Spoiler:
    """Breaks the answers to one kind of request, some of them, from the moment that it is ``armed``."""

    def __init__(self, rng: random.Random):
        self.rng, self.armed = rng, False
        self.late = rng.random() < 0.4  # when all are up, and one has died
        self.kind = rng.choice(REQUESTS)
        self.left = rng.choice((1, 1, 2, 3))
        self.idle = rng.random() < 0.3 and (self.kind != "DELETE" or self.left == 1)  # an end is asked for twice
        self.how = "nothing"

    def refuse(self, method: str, path: str) -> tuple[int, bytes] | None:
        """An error, in a third of the cases: nothing is done, and what is said of it is broken."""
        if not self.idle or not self._hits(method, path):
            return None
        body, self.how = mutated(b'{"message": "no space left on device"}', self.rng, values=True)
        return self.rng.choice((400, 500, 503)), body

    def spoil(self, method: str, path: str, sound: bytes) -> list[bytes | float] | None:
        """A broken answer, in all others: what is asked for is done."""
        if self.idle or not self._hits(method, path):
            return None
        steps, self.how = hostile(sound or b"{}", self.rng)
        return steps

    def _hits(self, method: str, path: str) -> bool:
        hit = self.armed and self.left > 0 and self.kind in f"{method} {path}"
        self.left -= hit
        return hit


def engines(folder: Path, count: int, seed: int, only: int | None = None) -> list[Tally]:
    """Open containers, lose one and close them, ``count`` times, at an engine that breaks some of its answers."""
    tally = Tally("broken answers of a container engine")
    begin = time.monotonic()
    quick = patch.multiple(container_engine, **QUICK)
    with quick, patch.multiple(module, LOOK_SECONDS=0.02, FIRST_WAIT=0.02), answering(lambda _: [reply(b"{}")]) as well:
        port = int(well.url.rpartition(":")[2])
        for case in range(count) if only is None else [only]:
            spoiler = _Spoiler(random.Random(f"{seed}/{case}/engines"))
            with engine_server(folder) as engine, _said() as said:
                engine.container = functools.partial(_Light, port)
                engine.containers["0"] = engine.container(0, STRANGER, {"Labels": {}}, [])
                engine.refused, engine.spoiled = spoiler.refuse, spoiler.spoil
                outcome = _judged(engine, spoiler, said)
            Path(engine.socket).unlink()
            when = ("refused " if spoiler.idle else "") + ("late" if spoiler.late else "early")
            where = f"{spoiler.kind}, {when}: {spoiler.how}"
            tally.add(f"engines --seed {seed} --only {case} ({where})", outcome)
    tally.seconds = time.monotonic() - begin
    return [tally]


def _judged(engine: Engine, spoiler: _Spoiler, said: list[str]) -> Outcome:
    """What becomes of containers at ``engine``; a fault where any is left, or a message is no line."""
    with ThreadPoolExecutor(1) as thread:
        played = thread.submit(_played, engine, spoiler)
        try:
            outcome = Outcome(FINE, played.result(HANGS))
        except Hanging:
            engine.closing.set()
            return Outcome(FAULT, f"hangs for more than {HANGS:g} s")
        except GagpoError as error:
            outcome = Outcome(REFUSED, str(error))
        except BaseException:
            return Outcome(FAULT, " | ".join(traceback.format_exc().splitlines()[-3:]))
    odd = [words for words in (*said, outcome.words) if "\n" in words or "\x1b" in words or len(words) > 1500]
    left = [one.name for one in engine.containers.values()]
    if odd or left != [STRANGER]:
        return Outcome(FAULT, f"{odd[0][:200]!a} is no line" if odd else f"left: {left}")
    return outcome


def _played(engine: Engine, spoiler: _Spoiler) -> str:
    """Open two containers, kill one and wait for another in its place or for the word that there will be none."""
    spoiler.armed = not spoiler.late
    containers = Containers(ContainerEngine(engine.socket), IMAGE, SETTINGS)
    try:
        told: list[Exception] = []
        containers.tell(told.append)
        killed = containers.all[0].name
        spoiler.armed = True
        for one in [one for one in engine.running if one.name == killed]:
            one.end(signal.SIGKILL)
        while containers.all[0].name == killed and not told:
            time.sleep(0.01)
        if told:
            raise told[0]
    finally:
        containers.close()
    return "another took its place"


@contextmanager
def _said() -> Iterator[list[str]]:
    """What the project's log says meanwhile."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            with suppress(Exception):
                lines.append(record.getMessage())

    log, kept = logging.getLogger("gagpo"), Kept()
    log.addHandler(kept)
    try:
        yield lines
    finally:
        log.removeHandler(kept)
