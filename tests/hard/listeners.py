"""Hostile requests to what listens: each is answered, none with a traceback, and no other site's page gets a word."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gagpo.eval.viewer.export import Exporter
from gagpo.eval.viewer.serve import serving
from tests.hard.mutate import mutated
from tests.hard.outcome import FAULT, FINE, REFUSED, Outcome, Tally
from tests.hard.worlds import make_run
from tests.raw_requests import exchanged

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
UNABLE = (501, 505)  # statuses that say what HTTP this server does not speak, which is no fault of it
FOREIGN = (
    *({"host": "evil.example"}, {"host": "127.0.0.1.evil.example"}, {"host": "evil.example@127.0.0.1.evil.example"}),
    *({"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1"}, {"origin": "file://"}),
    *({"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"sec-fetch-site": "odd"}),
)
ODD = (
    *(
        {"range": "bytes=9-1,-5,0-"},
        {"if-modified-since": "Mon, 99 Foo 99999 99:99:99"},
        {"accept-encoding": "x" * 5000},
    ),
    *({"expect": "100-continue"}, {"content-type": "text/\x80"}, {"cookie": "=;;=" * 1000}, {"x": "y" * 70_000}),
    *(
        {"upgrade": "websocket", "connection": "upgrade"},
        {"transfer-encoding": "chunked"},
        {"authorization": "Basic ="},
    ),
)
METHODS = ("GET", "POST") * 4 + ("HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH", "get", "G\x00T")
PATHS = (
    "/%00",
    "/%ed%a0%80",
    "/../../etc/passwd",
    "/..%2f..%2fetc%2fpasswd",
    "//evil.example/",
    "/" + "a" * 9000,
    "*",
    "",
)
BODIES: tuple[object, ...] = (
    {"seed": 1, "split": "test", "index": 1, "episode_id": "e"},
    {"action": {"action": "left", "metadata": {"a": 1}}, "timeout_s": 1.0},
    {"split": "test", "index": 1, "start": 0, "stop": 3},
    {"jsonrpc": "2.0", "method": "tools/list", "id": 1, "params": {"name": "a", "arguments": {}}},
)


@dataclass(frozen=True)
class Listener:
    """A server that listens. paths: what it answers. sound: one that it always does. ended: it reads on when a client
    has said that no more comes."""

    name: str
    opened: Callable[[Path], AbstractContextManager[str]]
    paths: tuple[str, ...]
    sound: str
    ended: bool


def requests(folder: Path, count: int, seed: int, only: int | None = None) -> list[Tally]:
    """Send ``count`` hostile requests to each server that can be started here."""
    tallies = []
    for listener in LISTENERS:
        if listener.name == "gagpo serve" and importlib.util.find_spec("openenv") is None:
            print("gagpo serve is left out: the package openenv is not installed", flush=True)
            continue
        tally = Tally(f"hostile requests to {listener.name}")
        with listener.opened(folder) as url, contextlib.redirect_stderr(io.StringIO()) as screen:
            begin = time.monotonic()
            for case in range(count) if only is None else [only]:
                rng = random.Random(f"{seed}/{case}/{listener.name}")
                data, foreign, whole = hostile(urlsplit(url).netloc, listener.paths, rng)
                outcome = _judged(url, data, foreign, whole and not listener.ended)
                tally.add(f"requests --seed {seed} --only {case} ({data[:80]!r})", outcome)
            tally.seconds = time.monotonic() - begin
            sound = f"GET {listener.sound} HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\nconnection: close\r\n\r\n"
            if b" 200 " not in exchanged(url, sound.encode(), ended=False)[:20]:
                tally.add(listener.name, Outcome(FAULT, "answers no sound request any more"))
        if "Traceback" in screen.getvalue():
            tally.add(listener.name, Outcome(FAULT, f"in the terminal: {screen.getvalue()[-300:]}"))
        tallies.append(tally)
    return tallies


def _judged(url: str, data: bytes, foreign: bool, whole: bool) -> Outcome:
    try:
        answer = exchanged(url, data, ended=not whole)
    except TimeoutError:
        return Outcome(FAULT, "no answer and no end")
    status = answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.") else ""
    shown = answer[:200].decode(errors="replace")
    if b"Traceback" in answer or (status[:1] == "5" and int(status) not in UNABLE):
        return Outcome(FAULT, shown)
    if foreign and status[:1] == "2":
        return Outcome(FAULT, f"another site is answered: {shown}")
    return Outcome(FINE if status[:1] in ("2", "3") else REFUSED, shown)


def hostile(netloc: str, paths: tuple[str, ...], rng: random.Random) -> tuple[bytes, bool, bool]:
    """A request, whether it comes from another site's page, and whether it is whole."""
    body, _ = mutated(json.dumps(rng.choice(BODIES)).encode(), rng, values=True)
    headers = {"host": netloc, "connection": "close", "content-type": "application/json"}
    foreign = rng.random() < 0.3
    headers |= rng.choice(FOREIGN) if foreign else rng.choice(ODD) if rng.random() < 0.3 else {}
    headers.setdefault("content-length", str(len(body)))
    path = rng.choice(PATHS) if rng.random() < 0.15 else rng.choice(paths)
    lines = [f"{rng.choice(METHODS)} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    data = "\r\n".join(lines).encode("latin-1") + body
    if rng.random() < 0.25:  # what a damage makes of a request may come from anywhere, and may want more
        return mutated(data, rng, values=False)[0], False, False
    return data, foreign, "upgrade" not in headers and "transfer-encoding" not in headers


# What listens ---------------------------------------------------------------------------------------------------------


@contextmanager
def _watch_web(folder: Path) -> Iterator[str]:
    run = make_run(folder)
    with serving(Exporter([run], folder / "watched", live=True)) as url:
        yield url.rstrip("/")


@contextmanager
def _serve(folder: Path) -> Iterator[str]:
    from benchmarks.serve import start, stop

    server, url = start(CORRIDOR, '{"port": 0, "workers": 0}')
    try:
        yield url
    finally:
        stop(server)


LISTENERS = (
    Listener("watch --web", _watch_web, ("/", "/data/index.js", "/core.js", "/data/", "/index.html"), "/", True),
    Listener(
        "gagpo serve",
        _serve,
        (
            *(
                "/reset",
                "/step",
                "/reset",
                "/step",
                "/state",
                "/schema",
                "/mcp",
                "/health",
                "/metadata",
                "/ws",
                "/docs",
            ),
            *("/corridor/task", "/corridor/tasks", "/corridor/task_range", "/corridor/num_tasks", "/corridor/splits"),
        ),
        "/health",
        False,
    ),
)
