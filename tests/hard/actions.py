"""Hostile actions: whatever an agent says is answered, and nothing breaks."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

from gagpo.envs.check.promises import GARBAGE
from gagpo.envs.pool import Event, WorkerPool
from tests.hard.outcome import FAULT, Outcome, Tally

ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "gagpo/ALFWorld-v0": {"counts": {"train": 6, "valid_seen": 0, "valid_unseen": 0}},
    "gagpo/WebShop-v0": {"products": 100},
    "gagpo/Math-v0": {},
}
SLOTS = 32
_DEADLINE = 20.0  # seconds for one answer
_PIECES = (
    *(
        "go to",
        "take",
        "open",
        "search[",
        "click[",
        "]",
        "calculate",
        "answer",
        "\\boxed{",
        "}",
        "(",
        "[",
        "**",
        "9" * 30,
    ),
    *(
        "{0.__class__}",
        "%n%s",
        "$(reboot)",
        "`ls`",
        "../../etc/passwd",
        "file:///etc/passwd",
        "<script>",
        "&lt;",
        "'; --",
    ),
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
    *("__import__('os').abort()", "lambda: 0", "NaN", "-inf", "1e999", "0x10", "1_000", "None", "true"),
)


def actions(folder: Path, count: int, seed: int, only: int | None = None, environments: Any = None) -> list[Tally]:
    """Send ``count`` hostile actions to each environment, in many episodes at once, in a supervised process."""
    del folder, only
    tallies = []
    for environment, kwargs in (environments or ENVIRONMENTS).items():
        tally = Tally(f"hostile actions in {environment}")
        begin = time.monotonic()
        _flood(tally, environment, kwargs, count, random.Random(f"{seed}/{environment}"))
        tally.seconds = time.monotonic() - begin
        tallies.append(tally)
    return tallies


def _flood(tally: Tally, environment: str, kwargs: dict[str, Any], count: int, rng: random.Random) -> None:
    from gagpo.agents.setup import make_world  # what training uses to learn the tasks

    tasks = next(ids for split in ("train", "test") if (ids := make_world(environment, kwargs).tasks(split).ids))
    said: dict[int, str] = {}
    with WorkerPool(
        environment, kwargs, workers=1, step_deadline=_DEADLINE, max_restarts=0, memory_limit_mb=2048
    ) as pool:
        for slot in range(SLOTS):
            pool.reset(slot, rng.choice(tasks), seed=slot)
        sent = answered = 0
        while answered < count:
            for event in pool.wait():
                if event.kind == "step":
                    answered += 1
                    tally.counts["fine"] += 1
                if event.kind == "failed":
                    case = f"{environment}: {said.get(event.slot, '(the reset)')[:200]!a}"
                    tally.add(case, Outcome(FAULT, event.error))
                    answered += 1
                if event.kind == "failed" or event.terminated or event.truncated:
                    said.pop(event.slot, None)
                    pool.reset(event.slot, rng.choice(tasks), seed=sent)
                else:
                    said[event.slot] = action = hostile(event, rng)
                    pool.step(event.slot, action)
                    sent += 1
        broken = pool.counters.errors + pool.counters.crashes + pool.counters.hangs
        if broken != len(tally.faults):
            tally.add(environment, Outcome(FAULT, f"{broken} faults were counted: {pool.counters.as_dict()}"))


def hostile(event: Event, rng: random.Random) -> str:
    """An action that no agent should send: known garbage, pieces of everything, or a good action that was damaged."""
    kind = rng.random()
    if kind < 0.02:
        return rng.choice(list(GARBAGE.values()))
    if kind < 0.4:
        return rng.choice(("", " ")).join(rng.choice(_PIECES) for _ in range(rng.randint(1, 12)))
    if kind < 0.5:
        return "".join(chr(rng.randrange(sys.maxunicode)) for _ in range(rng.randint(1, 40)))
    if kind < 0.55:
        return rng.choice(_PIECES) * rng.randint(1, 2000)
    known = event.info.get("admissible_actions") or ["search[red mug]", "click[buy now]", "answer 12", "calculate 1+1"]
    text = list(rng.choice(known))
    for _ in range(rng.randint(0, 3)):  # none: an honest action between, so that the world moves on
        place = rng.randrange(len(text) + 1)
        text[place : place + rng.randint(0, 2)] = rng.choice(_PIECES)
    return "".join(text)
