"""Hostile actions, SQL queries and answers of model servers: each is handled or refused, within its limits."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import random
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Hanging
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from gagpo.agents.api.client import ApiClient, ApiError
from gagpo.agents.api.settings import ApiSettings
from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.remote.client import MAX_LOGPROB, Client, ServedModel
from gagpo.agents.setup import make_env
from gagpo.base.errors import GagpoError
from gagpo.envs.check.promises import GARBAGE
from gagpo.envs.pool import Event, WorkerPool
from gagpo.envs.sql.database import Bounds, QueryFailed, Source
from gagpo.envs.sql.process import QueryProcess
from tests.agents.raw_server import RawServer, answering, reply
from tests.hard.mutate import mutated
from tests.hard.outcome import FAULT, FINE, REFUSED, Outcome, Tally

PIECES = (
    *("go to", "take", "search[", "click[", "]", "calculate", "answer", "\\boxed{", "}", "(", "**", "9" * 30, "NaN"),
    *("{0.__class__}", "%n%s", "$(reboot)", "`ls`", "../../etc/passwd", "<script>", "&lt;", "'; --", "1e999", "true"),
    *(
        "\x00",
        "\r\n",
        "\u202e",
        "\ufeff",
        "\ud800",
        "e\u0301",
        "👩‍👩‍👧",
        "١٢٣",
        "ﬁ",
        "İ",
        "ß",
        "\\frac{1}{0}",
        "9^9^9^9",
    ),
    *("__import__('os').abort()", "lambda: 0", "-inf", "0x10", "1_000", "None"),
)
ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "gagpo/ALFWorld-v0": {"counts": {"train": 6, "valid_seen": 0, "valid_unseen": 0}},
    "gagpo/WebShop-v0": {"products": 100},
    "gagpo/Math-v0": {},
}


def _cases(count: int, only: int | None) -> range | list[int]:
    return range(count) if only is None else [only]


# Actions --------------------------------------------------------------------------------------------------------------


def actions(folder: Path, count: int, seed: int, only: int | None = None) -> list[Tally]:
    """Send ``count`` hostile actions to each environment, in many episodes at once."""
    return [_flood(env, kwargs, count, random.Random(f"{seed}/{env}")) for env, kwargs in ENVIRONMENTS.items()]


def _flood(env: str, kwargs: dict[str, Any], count: int, rng: random.Random) -> Tally:
    tally, begin = Tally(f"actions in {env}"), time.monotonic()
    tasks = next(ids for split in ("train", "test") if (ids := make_env(env, kwargs).tasks(split).ids))
    sent: dict[int, str] = {}
    with WorkerPool(env, kwargs, workers=1, step_timeout=20.0, max_restarts=0, memory_limit_mb=2048) as pool:
        for slot in range(32):
            pool.reset(slot, rng.choice(tasks), seed=slot)
        while sum(tally.counts.values()) < count:
            for event in pool.wait():
                if event.kind == "step":
                    tally.counts[FINE] += 1
                if event.kind == "failed":
                    tally.add(f"{env}: {sent.get(event.slot, '(the reset)')[:200]!a}", Outcome(FAULT, event.error))
                if event.kind == "failed" or event.terminated or event.truncated:
                    sent.pop(event.slot, None)
                    pool.reset(event.slot, rng.choice(tasks), seed=sum(tally.counts.values()))
                else:
                    sent[event.slot] = _action(event, rng)
                    pool.step(event.slot, sent[event.slot])
        if pool.counters.errors + pool.counters.crashes + pool.counters.hangs != len(tally.faults):
            tally.add(env, Outcome(FAULT, f"other faults: {pool.counters}"))
    tally.seconds = time.monotonic() - begin
    return tally


def _action(event: Event, rng: random.Random) -> str:
    """Known garbage, random pieces or characters, or a valid action, sometimes damaged."""
    type_name = rng.random()
    if type_name < 0.02:
        return rng.choice(list(GARBAGE.values()))
    if type_name < 0.4:
        return rng.choice(("", " ")).join(rng.choice(PIECES) for _ in range(rng.randint(1, 12)))
    if type_name < 0.5:
        return "".join(chr(rng.randrange(sys.maxunicode)) for _ in range(rng.randint(1, 40)))
    if type_name < 0.55:
        return rng.choice(PIECES) * rng.randint(1, 2000)
    recorded = event.info.get("admissible_actions") or [
        "search[red mug]",
        "click[buy now]",
        "answer 12",
        "calculate 1+1",
    ]
    text = list(rng.choice(recorded))
    for _ in range(rng.randint(0, 3)):
        randrange = rng.randrange(len(text) + 1)
        text[randrange : randrange + rng.randint(0, 2)] = rng.choice(PIECES)
    return "".join(text)


# SQL ------------------------------------------------------------------------------------------------------------------

PEOPLE = (("people", (("id", "INTEGER PRIMARY KEY"), ("name", "TEXT NOT NULL")), ((1, "Ann"), (2, "Bo"))),)
BOUNDS = Bounds(seconds=0.5)
SLACK = 1.5  # CPU seconds to restart the process and to pack a reply
_COUNT = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t{limit}) SELECT {what} FROM t"
_BOMBS = (
    "SELECT instr(replace(hex(zeroblob({n})), '0', '{text}'), '{text}b')",
    "SELECT printf('%.*c', {n}, 'x'), printf('%{n}d', 1)",
    "SELECT group_concat(hex(zeroblob({n}))) FROM people, people, people",
    "SELECT '{text}' LIKE '%{text}%{text}%{text}_%b', '{text}' GLOB '*{text}*{text}*b'",
    "SELECT " + "(" * 500 + "1" + ")" * 500,
    "ATTACH 'out.sqlite' AS out",
    "CREATE TABLE out AS SELECT * FROM people",
    "VACUUM INTO 'out.sqlite'",
    "SELECT load_extension('libc.so.6')",
    "SELECT writefile('out', name), readfile('/etc/passwd'), edit(name) FROM people",
    "SELECT * FROM sqlite_master, pragma_table_info('people'), pragma_database_list",
    "SELECT 1; DROP TABLE people",
    "DELETE FROM people RETURNING *",
    "WITH x0 AS (SELECT 1 AS a){doubling} SELECT 1 FROM x{depth} LIMIT 0",
    _COUNT.format(limit="", what="COUNT(*)"),
    _COUNT.format(limit=" LIMIT {n}", what="group_concat(n)"),
    _COUNT.format(limit=" LIMIT {n}", what="max(printf('%.*c', n, 'x'))"),
    _COUNT.format(limit=" LIMIT {n}", what="sum(n) OVER (ORDER BY n)"),
    "SELECT replace(replace(replace('{text}', 'a', '{text}'), 'a', '{text}'), 'a', '{text}')",
)


def queries(folder: Path, count: int, seed: int, only: int | None = None) -> Tally:
    """Send ``count`` hostile queries to a generated database and to one in a file."""
    tally, begin = Tally("SQL queries"), time.monotonic()
    location = folder / "people.sqlite"
    with contextlib.closing(sqlite3.connect(location)) as database, database:
        database.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT NOT NULL)")
        database.executemany("INSERT INTO people VALUES (?, ?)", [(1, "Ann"), (2, "Bo")])
    sources: tuple[Source, ...] = (PEOPLE, str(location))
    process, before = QueryProcess(), _files(folder)
    for case in _cases(count, only):
        rng = random.Random(f"{seed}/{case}/queries")
        sql = _query(rng)
        outcome = _run_query(process, rng.choice(sources), sql)
        if _files(folder) != before:
            outcome, before = Outcome(FAULT, "a file was written"), _files(folder)
        tally.add(f"queries --seed {seed} --only {case} ({sql[:80]!a})", outcome)
    process.close()
    tally.seconds = time.monotonic() - begin
    return tally


def _query(rng: random.Random) -> str:
    depth = rng.randint(2, 60)
    doubling = "".join(f", x{i} AS (SELECT p.a FROM x{i - 1} p, x{i - 1} q)" for i in range(1, depth + 1))
    values = {"n": int(10 ** rng.uniform(0, 12)), "text": "a" * rng.choice((1, 50, 900)), "depth": depth}
    sql = rng.choice(_BOMBS)
    for name, value in {**values, "doubling": doubling}.items():
        sql = sql.replace(f"{{{name}}}", str(value))
    if rng.random() < 0.2:
        sql = f"SELECT * FROM ({sql}) WHERE 1 IN (SELECT id FROM people)"
    if rng.random() < 0.2:
        randrange = rng.randrange(len(sql))
        sql = sql[:randrange] + rng.choice(("'", "(", ";", "--", "\x00", "\ud800", "%", " " * 9000)) + sql[randrange:]
    return sql


def _run_query(process: QueryProcess, source: Source, sql: str) -> Outcome:
    """Judge one query: its CPU time is bounded, and the next query is answered."""
    pid, before = process.process, _cpu_seconds(process)
    try:
        names, rows = process.run(source, sql, BOUNDS, 50)
        outcome = Outcome(FINE, f"{len(names)} columns, {len(rows)} rows")
    except QueryFailed as error:
        outcome = Outcome(REFUSED, str(error))
    except Exception as error:
        return Outcome(FAULT, f"{type(error).__name__}: {error}")
    used = _cpu_seconds(process) - before if process.process == pid else 0.0
    if used > BOUNDS.seconds + SLACK:
        return Outcome(FAULT, f"{used:.1f} CPU seconds, of {BOUNDS.seconds} allowed")
    if process.run(source, "SELECT COUNT(*) FROM people", BOUNDS, 2)[1] != [(2,)]:
        return Outcome(FAULT, "the next query has a wrong answer")
    return outcome


def _cpu_seconds(process: QueryProcess) -> float:
    if process.process is None:
        return 0.0
    times = psutil.Process(process.process).cpu_times()
    return float(times.user + times.system)


def _files(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()] + list(Path.cwd().glob("out*"))
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


# Answers of model servers ---------------------------------------------------------------------------------------------

CHAT = {
    "id": "1",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "left"}}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
}
TERMS, SAMPLING = ServedModel((7,), 20, "1"), Sampling(1.0, max_tokens=4)
_TOKENS = {
    "token_ids": [3, 5, 7],
    "logprobs": {"content": [{"token_id": one, "logprob": -0.5} for one in (3, 5, 7)]},
    "finish_reason": "stop",
    "weight_versions": [{"start": 0, "end": 3, "version": "1"}],
}
HEADERS = (
    *("content-encoding: gzip", "content-type: text/html", "retry-after: NaN", "retry-after: 1e999", ": none"),
    *("location: http://[::1", "location: \x80\xff", "transfer-encoding: chunked", "x: \x00", "x: " + "y" * 200_000),
    *("content-length: 5", "content-length: -1", "connection: upgrade\r\nupgrade: x"),
)
STATUSES = (
    *("200 OK", "200 OK", "200", "204 No Content", "206 Partial", "301 Moved", "400 Bad", "401 No", "413 Large"),
    *("429 Slow", "500 Broken", "503 Later", "600 Odd", "99 Odd", "OK OK", "103 Early Hints", "101 Switching"),
)
DEADLINE, HANGS = 1.0, 60.0  # seconds for an answer; seconds that count as a hang on a busy machine
MOST_SENT = 100e6  # bytes of an endless body that a client may read, with its buffers


def answers(folder: Path, count: int, seed: int, only: int | None = None) -> list[Tally]:
    """Ask a chat server and a vLLM server ``count`` questions each, with hostile answers."""
    tallies = []
    for name, sound, ask in (("chat server", CHAT, _ask_chat), ("vLLM server", {"choices": [_TOKENS]}, _ask_vllm)):
        tally, begin = Tally(f"answers of a {name}"), time.monotonic()
        body = json.dumps(sound).encode()
        for case in _cases(count, only):
            steps, how = _answer(body, random.Random(f"{seed}/{case}/{name}"))
            tally.add(f"answers --seed {seed} --only {case} ({how})", _ask(steps, reply(body), ask))
        tally.seconds = time.monotonic() - begin
        tallies.append(tally)
    return tallies


def _ask(steps: list[bytes | float], sound: bytes, ask: Callable[[RawServer], str]) -> Outcome:
    """Give the hostile answer to the first request, and the valid one to a retry."""
    with answering(lambda number: steps if number == 0 else [sound]) as server, ThreadPoolExecutor(1) as thread:
        future = thread.submit(ask, server)
        try:
            wrong = future.result(HANGS)
        except Hanging:
            server.free.set()
            return Outcome(FAULT, f"hangs for more than {HANGS:g} s")
        except GagpoError as error:
            tokens = str(error)
            return Outcome(FAULT if "\n" in tokens or len(tokens) > 1000 else REFUSED, tokens)
        except BaseException:
            return Outcome(FAULT, " | ".join(traceback.format_exc().splitlines()[-3:]))
        if server.sent > MOST_SENT:
            wrong = f"{server.sent} bytes were read"
        return Outcome(FAULT if wrong else FINE, wrong)


def _ask_chat(server: RawServer) -> str:
    client = ApiClient(ApiSettings("m", f"{server.url}/v1", timeout=DEADLINE, attempts=3, input_price=1.0))
    try:
        answer = client.submit([{"role": "user", "content": "Left or right?"}], 0.0, 5).result()
        answer.text.encode()
        answer.reasoning.encode()
    except ApiError:
        pass
    finally:
        client.close()
    odd = [name for name, value in vars(client.spent).items() if not 0 <= value < math.inf]
    return f"spent is {client.spent}" if odd or client.spent.requests < server.requests else ""


def _ask_vllm(server: RawServer) -> str:
    async def ask() -> str:
        client = Client(server.url, DEADLINE)
        try:
            got = await client.generate(Request(0, np.arange(3, dtype=np.int32), 1), SAMPLING, TERMS)
        finally:
            await client.close()
        valid = len(got.ids) == len(got.logprobs) <= SAMPLING.max_tokens and bool((got.ids < TERMS.vocab_size).all())
        valid &= bool(np.isfinite(got.logprobs).all()) and bool((got.logprobs <= MAX_LOGPROB).all())
        return "" if valid else f"accepted: {got}"

    return asyncio.run(ask())


def _answer(sound: bytes, rng: random.Random) -> tuple[list[bytes | float], str]:
    """A damaged answer: what the server sends (seconds are pauses), and how it was damaged."""
    full, type_name = reply(sound), rng.random()
    if type_name < 0.6:
        body, how = mutated(sound, rng, values=True)
        return [reply(body)], how
    if type_name < 0.75:
        status, more = rng.choice(STATUSES), rng.sample(HEADERS, rng.choice((0, 1, 1, 2)))
        lines = [f"HTTP/1.1 {status}", f"content-length: {len(sound)}", *more, "", ""]
        return ["\r\n".join(lines).encode("latin-1") + sound], f"{status}, {[item[:30] for item in more]}"
    if type_name < 0.85:
        data, how = mutated(full, rng, values=False)
        return [data], f"{how} in head or body"
    if type_name < 0.93:
        size = rng.randint(1, len(sound))
        segments = [sound[start : start + size] for start in range(0, len(sound), size)]
        framed = b"".join(b"%x\r\n%s\r\n" % (len(segment), segment) for segment in segments) + b"0\r\n\r\n"
        damaged, how = mutated(framed, rng, values=False)
        return [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", damaged], f"chunks: {how}"
    if type_name < 0.98:
        return [full[: rng.randrange(len(full))]], "cut off"
    if type_name < 0.99:
        return [full[: rng.randrange(len(full))].replace(b"length: ", b"length: 9"), *[b" ", 0.1] * 100], "trickles"
    return [b"HTTP/1.1 200 OK\r\n\r\n", *[rng.choice((b" ", b"[", b"9", b"\x00")) * 20_000] * 4000], "endless body"
