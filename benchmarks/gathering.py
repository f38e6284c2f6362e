"""What it costs that every rank holds the whole batch: bytes, seconds of a core, main memory, share of an iteration.

    python -m benchmarks.gathering [--turns 10000] [--tokens 2000] [--response 128] [--ranks 8] [--exchange]

Turns with windowed prompts, of which nothing is shared: the most that can travel. One rank's part is packed, and the
parts of all are unpacked and made into rows, as in training. Seconds are of the processor: other work on the machine
does not count. --exchange: so many real ranks (gloo, loopback) also send it to one another.

The share is that of an update alone, of Qwen2.5-1.5B on as many H100s by the stated rates (docs/scale.md): sampling
would make it smaller. Of a network or loopback, a GB a second is taken.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np

from gagpo.base.child import free_port
from gagpo.base.interpreter import module_command
from gagpo.base.rank import REQUIRED, Rank
from gagpo.collecting.packing import packed, unpacked
from gagpo.data import Episode, Turn, build_rows
from gagpo.distributed.ranks import joined

TURNS = 25  # of an episode
PARAMETERS, FLOPS = 1.54e9, 0.4 * 989e12
LINK = 1e9
CHARACTERS = 1000  # of an observation


def episodes(turns: int, tokens: int, response: int, first: int = 0) -> list[Episode]:
    """So many turns, in episodes of 25, each of ``tokens`` tokens that no other turn has."""
    rng, words = np.random.default_rng(first), random.Random(first)
    made = []
    for number in range(-(-turns // TURNS)):
        own = []
        for _ in range(min(TURNS, turns - number * TURNS)):
            text = "".join(words.choices("abcdefghij klmnop", k=CHARACTERS))
            own.append(
                Turn(
                    text,
                    text[: 4 * response],
                    "go",
                    state=text[:64],
                    prompt_ids=rng.integers(0, 150_000, tokens - response).astype(np.int32),
                    response_ids=rng.integers(0, 150_000, response).astype(np.int32),
                    logprobs=-rng.random(response).astype(np.float32),
                )
            )
        made.append(Episode(f"task-{number}", group=first + number, turns=own))
    return made


def resident() -> float:
    """Bytes of this process in main memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return float(file.read().split()[1]) * resource.getpagesize()


def measured(turns: int, tokens: int, response: int, ranks: int) -> dict[str, float]:
    """Bytes and seconds of one rank's part packed, of all parts unpacked, and what all of it takes of memory."""
    own = episodes(turns // ranks, tokens, response)
    begun = time.process_time()
    message = packed(own, {})
    packing = time.process_time() - begun
    before = resident()
    begun = time.process_time()
    held = [unpacked(message)[0] for _ in range(ranks)]
    unpacking = time.process_time() - begun
    memory = resident() - before
    assert sum(len(episode.turns) for part in held for episode in part) == turns // ranks * ranks
    whole = float(len(message) * ranks)
    begun = time.process_time()
    rows = build_rows([episode for part in held for episode in part])
    building = time.process_time() - begun
    assert len(rows) == turns // ranks * ranks
    update = 6 * PARAMETERS / FLOPS * turns * tokens / ranks
    seconds = packing + unpacking + building * (ranks - 1) / ranks + whole / LINK
    return {
        "message_mb": len(message) / 1e6,
        "received_mb": whole / 1e6,
        "memory_mb": memory / 1e6,
        "packing_s": packing,
        "sending_s": whole / LINK,
        "unpacking_s": unpacking,
        "rows_s": building,
        "update_s": update,
        "share_of_update": seconds / update,
    }


def exchange(turns: int, tokens: int, response: int, ranks: int) -> dict[str, float]:
    """As a rank: seconds, of the wall and of the processor, and peak memory of one exchange of the whole batch."""
    with joined(120) as mine:
        message = packed(episodes(turns // ranks, tokens, response, 1000 * mine.rank), {})
        mine.barrier()
        before, begun, used = resident(), time.perf_counter(), time.process_time()
        mine.gathered_bytes(message)
        wall, used = time.perf_counter() - begun, time.process_time() - used
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        return {"exchange_wall_s": wall, "exchange_processor_s": used, "exchange_peak_mb": peak / 1e6}


def exchanged(arguments: Sequence[str], ranks: int) -> dict[str, float]:
    """What the first of so many real ranks measured."""
    port, started = free_port(), []
    for rank in range(ranks):
        variables = Rank(rank, ranks, rank, ranks).variables("127.0.0.1", port)
        command = module_command("benchmarks.gathering", *arguments)
        started.append(subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate(timeout=1800)[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit("a rank failed")
    found: dict[str, float] = json.loads(outputs[0].splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in {"turns": 10_000, "tokens": 2000, "response": 128, "ranks": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--exchange", action="store_true")
    chosen = parser.parse_args()
    sizes = (chosen.turns, chosen.tokens, chosen.response, chosen.ranks)
    if all(name in os.environ for name in REQUIRED):
        print(json.dumps(exchange(*sizes)))
        return
    found = measured(*sizes)
    if chosen.exchange:
        found |= exchanged([word for word in sys.argv[1:] if word != "--exchange"], chosen.ranks)
    for name, value in found.items():
        print(f"{name:22s} {value:10.3f}")


if __name__ == "__main__":
    main()
