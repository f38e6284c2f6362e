"""Hostile answers of servers: each is read, or tried again, or refused in one line, within its bounds."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Hanging
from pathlib import Path
from unittest.mock import patch

import numpy as np

from gagpo.agents.api.client import ApiClient, ApiError
from gagpo.agents.api.settings import ApiSettings
from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.remote.client import HIGHEST, Client, ReplicaError, RequestRefused, Terms
from gagpo.base.errors import GagpoError
from tests.agents.raw_server import RawServer, answering, reply
from tests.hard.mutate import mutated
from tests.hard.outcome import FAULT, FINE, REFUSED, Outcome, Tally

CHAT = {
    "id": "1",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "left"}}],
    "usage": {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 1},
    },
}
TERMS, SAMPLING = Terms((7,), 20, "1"), Sampling(1.0, max_tokens=4)
TOKENS = {
    "choices": [
        {
            "token_ids": [3, 5, 7],
            "logprobs": {"content": [{"token_id": one, "logprob": -0.5} for one in (3, 5, 7)]},
            "finish_reason": "stop",
            "weight_versions": [{"start": 0, "end": 3, "version": "1"}],
        }
    ]
}
HEADERS = (
    *("content-encoding: gzip", "content-type: text/html", "set-cookie: a=b; domain=.example", "retry-after: NaN"),
    *("retry-after: 1e999", "location: http://[::1", "location: \x80\xff", "transfer-encoding: chunked", "x: \x00"),
    *("content-length: 5", "content-length: -1", "connection: upgrade\r\nupgrade: x", ": none", "x: " + "y" * 200_000),
)
STATUSES = (
    *("200 OK",) * 3,
    *("200", "204 No Content", "206 Partial", "301 Moved", "400 Bad", "401 No", "413 Large", "429 Slow", "500 Broken"),
    *("503 Later", "600 Odd", "99 Odd", "1000 Odd", "OK OK", "103 Early Hints", "101 Switching Protocols"),
)
DEADLINE = 1.0
HANGS = 60.0  # seconds after which something hangs, on however busy a machine
MOST_SENT = 100e6  # bytes that a client takes in of a body without end, its sockets' buffers included

Case = Callable[[RawServer], str]
"""Asks the server once and gives what is wrong with what came, '' for nothing; what it refuses, it raises."""


def answers(folder: Path, count: int, seed: int, only: int | None = None) -> list[Tally]:
    """Ask a chat server and a vLLM server ``count`` questions each, whose answers are hostile."""
    del folder
    tallies = []
    for name, sound, ask in (("a chat server", CHAT, _ask_for_text), ("a vLLM server", TOKENS, _ask_for_tokens)):
        tally = Tally(f"hostile answers of {name}")
        begin = time.monotonic()
        body = json.dumps(sound).encode()
        for case in range(count) if only is None else [only]:
            rng = random.Random(f"{seed}/{case}/{name}")
            steps, how = hostile(body, rng)
            tally.add(f"answers --seed {seed} --only {case} ({how})", _tried(steps, reply(body), ask))
        tally.seconds = time.monotonic() - begin
        tallies.append(tally)
    return tallies


def _tried(steps: list[bytes | float], sound: bytes, ask: Case) -> Outcome:
    """The hostile answer first, then the sound one for whoever asks again."""
    with answering(lambda number: steps if number == 0 else [sound]) as server, ThreadPoolExecutor(1) as thread:
        asked = thread.submit(ask, server)
        try:
            wrong = asked.result(HANGS)
        except Hanging:
            server.free.set()
            return Outcome(FAULT, f"hangs for more than {HANGS:g} s")
        except GagpoError as error:
            words = str(error)
            return Outcome(FAULT if "\n" in words or len(words) > 1000 else REFUSED, words)
        except BaseException:
            return Outcome(FAULT, " | ".join(traceback.format_exc().splitlines()[-3:]))
        if server.sent > MOST_SENT:
            wrong = f"{server.sent} bytes were taken in"
        return Outcome(FAULT if wrong else FINE, wrong)


def _ask_for_text(server: RawServer) -> str:
    settings = ApiSettings("m", f"{server.url}/v1", timeout=DEADLINE, attempts=3, input_price=1.0)
    client = ApiClient(settings)
    with patch("openai._base_client.INITIAL_RETRY_DELAY", 0.0):
        return _asked_for_text(client, server)


def _asked_for_text(client: ApiClient, server: RawServer) -> str:
    try:
        answer = client.ask([{"role": "user", "content": "Left or right?"}], 0.0, 5)
        answer.text.encode()
        answer.reasoning.encode()
        if answer.usage != client.spent:
            return f"{answer.usage} was used, and {client.spent} is said"
    except ApiError:
        pass
    finally:
        client.close()
    odd = [name for name, value in vars(client.spent).items() if not 0 <= value < math.inf]
    return f"spent is {client.spent}" if odd or client.spent.requests < server.requests else ""


def _ask_for_tokens(server: RawServer) -> str:
    async def ask() -> str:
        client = Client(server.url, DEADLINE)
        try:
            got = await client.generate(Request(0, np.arange(3, dtype=np.int32), 1), SAMPLING, TERMS)
        except RequestRefused as error:  # of another class than ReplicaError, and one line too
            raise ReplicaError(str(error)) from None
        finally:
            await client.close()
        sound = len(got.ids) == len(got.logprobs) <= SAMPLING.max_tokens and bool((got.ids < TERMS.vocabulary).all())
        sound &= bool(np.isfinite(got.logprobs).all()) and bool((got.logprobs <= HIGHEST).all())
        return "" if sound else f"taken for an answer: {got}"

    return asyncio.run(ask())


# Answers --------------------------------------------------------------------------------------------------------------


def hostile(sound: bytes, rng: random.Random) -> tuple[list[bytes | float], str]:
    """What a server sends in place of an answer with the body ``sound``, and how that came about."""
    way = rng.choices(list(WAYS), WAYS.values())[0]
    steps, how = way(sound, rng)
    return steps, how or way.__name__.strip("_").replace("_", " ")


Steps = tuple[list[bytes | float], str]


def _another_body(sound: bytes, rng: random.Random) -> Steps:
    body, how = mutated(sound, rng, values=True)
    return [reply(body)], how


def _another_head(sound: bytes, rng: random.Random) -> Steps:
    """A status or headers that do not fit."""
    status = rng.choice(STATUSES)
    more = rng.sample(HEADERS, rng.choice((0, 1, 1, 2)))
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(sound)}", *more, "", ""]
    return ["\r\n".join(lines).encode("latin-1") + sound], f"{status}, {[one[:30] for one in more]}"


def _other_bytes(sound: bytes, rng: random.Random) -> Steps:
    """The head damaged with the body."""
    data, how = mutated(reply(sound), rng, values=False)
    return [data], f"{how} in all of it"


def _chunks(sound: bytes, rng: random.Random) -> Steps:
    """The body in chunks, whose frames are damaged too."""
    size = rng.randint(1, len(sound))
    parts = [sound[start : start + size] for start in range(0, len(sound), size)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    damaged, how = mutated(framed, rng, values=False)
    return [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", damaged], f"chunks: {how}"


def _a_lost_end(sound: bytes, rng: random.Random) -> Steps:
    whole = reply(sound)
    return [whole[: rng.randrange(len(whole))]], ""


def _a_slow_end(sound: bytes, rng: random.Random) -> Steps:
    """Begun in order, and then a byte now and then for longer than anybody waits."""
    whole = reply(sound).replace(b"content-length: ", b"content-length: 9")
    begun = rng.randrange(len(whole))
    return [whole[:begun], *_dribble(rng)], f"a byte now and then after {begun}"


def _dribble(rng: random.Random) -> Iterator[bytes | float]:
    for _ in range(100):
        yield rng.choice((b" ", b"x", b"\r\n", b"1\r\n \r\n"))
        yield 0.1


def _no_end(sound: bytes, rng: random.Random) -> Steps:
    block = rng.choice((b" ", b"[", b"9", b'{"a":', b"\x00")) * 20_000
    head = rng.choice((b"", b"content-length: 99999999999\r\n"))
    return [b"HTTP/1.1 200 OK\r\n" + head + b"\r\n", *[block] * 4000], "a body without end"


WAYS: dict[Callable[[bytes, random.Random], Steps], float] = {
    _another_body: 60,
    _another_head: 15,
    _other_bytes: 10,
    _chunks: 8,
    _a_lost_end: 5,
    _a_slow_end: 1,
    _no_end: 1,
}
