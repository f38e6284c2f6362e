"""Rates of the maths environment: ``python -m benchmarks.maths [--seconds 2] [--workers 2] [--json FILE]``.

Verifications per CPU second by kind of answer, side by side with the bare math-verify library in this same process;
environment steps; and how long a formula takes while a hostile answer is being compared.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import random
import resource
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from gagpo.envs.math.calculator import calculate
from gagpo.envs.math.env import MathEnv
from gagpo.envs.math.verify.pool import VerifyPool
from gagpo.envs.math.verify.verifier import Verifier

HOSTILE = {
    "power tower": "9^{9^{9^{9}}}",
    "endless sum": r"\sum_{k=1}^{10^{12}} k^k",
    "huge binomial": r"\binom{10^{9}}{5 \cdot 10^{8}}",
}


def pairs(kind: str) -> Iterator[tuple[str, str]]:
    """Gold answers and boxed answers of one kind, half of them right, hardly two alike."""
    rng = random.Random(0)
    while True:
        a, b, right = rng.randint(1, 99_999), rng.randint(2, 99), rng.random() < 0.5
        c = a if right else a + 1
        gold, answer = {
            "integer": (str(a), str(c)),
            "fraction": (rf"\frac{{{a}}}{{{b}}}", f"{c}/{b}"),
            "decimal": (f"{a}.{b}", f"{c}.{b}0"),
            "mixed spelling": (f"{a:,}", rf"${c}\text{{ cm}}$"),
            "words": ("Monday", "monday" if right else "Tuesday"),
            "choice": ("B", r"\text{(B)}" if right else "(C)"),
            "list": (f"{a}, {b}", rf"\{{{b}, {c}\}}"),
            "point": (f"({a}, {b})", rf"\left({c}, {b}\right)"),
            "formula": (f"{a}x + {b}", f"{b} + {c}x"),
            "root": (rf"{a}\sqrt{{2}}", rf"\sqrt{{2}} \cdot {c}"),
        }[kind]
        yield gold, rf"So the answer is \boxed{{{answer}}}."


KINDS = ("integer", "fraction", "decimal", "mixed spelling", "words", "choice", "list", "point", "formula", "root")


def cpu_seconds() -> float:
    """CPU seconds of this process and its verifier processes, running and ended ones."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    children = ended.ru_utime + ended.ru_stime + sum(times.user + times.system for times in running)
    return time.process_time() + children


def rate(run: Callable[[], int], seconds: float) -> float:
    """What the calls of ``run`` return in total, per CPU second, over at least so many CPU seconds."""
    run()
    count = 0
    begin, used = cpu_seconds(), 0.0
    batch = 1
    while used < seconds:
        count += sum(run() for _ in range(batch))
        used = cpu_seconds() - begin
        batch *= 2  # reading the CPU time of child processes takes as long as several verifications
    return count / used


def verification_rates(seconds: float, pool: VerifyPool) -> dict[str, dict[str, float]]:
    """Per kind: our verifier and the bare library, verifications per CPU second."""
    import logging

    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    rates = {}
    for kind in KINDS:
        verifier, ours, theirs = Verifier(pool=pool), pairs(kind), pairs(kind)

        def library(source: Iterator[tuple[str, str]] = theirs) -> int:
            gold, response = next(source)
            verify(parse(f"${gold}$"), parse(response))
            return 1

        def own(verifier: Verifier = verifier, source: Iterator[tuple[str, str]] = ours) -> int:
            verifier.verify(*next(source))
            return 1

        rates[kind] = {"verifier": rate(own, seconds), "math-verify": rate(library, seconds)}
    return rates


def environment_rates(seconds: float) -> dict[str, float]:
    """Steps per CPU second of whole episodes played by the expert (resets included), and calculator calls."""

    def calculation() -> int:
        calculate("3 * (4 + 5) / 7")
        return 1

    rates = {"calculator (3 * (4 + 5) / 7)": rate(calculation, seconds)}
    for name, settings in {
        "step, with calculator": {},
        "step, single turn": {"attempts": 1, "tools": False},
    }.items():
        env = MathEnv(expert=True, **settings)  # type: ignore[arg-type]
        env.reset(seed=0)
        rates[name] = rate(functools.partial(_expert_steps, env), seconds)
    return rates


def _expert_steps(env: MathEnv) -> int:
    """Play an episode; the number of its steps."""
    _, info = env.reset()
    steps = 0
    over = False
    while not over:
        _, _, terminated, truncated, info = env.step(info["expert_action"])
        over = terminated or truncated
        steps += 1
    return steps


def hostile_delays(workers: int, count: int = 40) -> dict[str, dict[str, float]]:
    """Seconds that ``count`` formulas wait alone, and with a hostile answer asked first, on the same pool.

    A wait is measured by the clock: the CPU time of a formula does not show that another one blocks it.
    """
    delays = {}
    numbers = itertools.count(1)
    with VerifyPool(workers) as pool:
        with ThreadPoolExecutor(workers) as threads:  # starts every process
            list(threads.map(lambda n: pool.compare(f"y + {n}", f"{n} + y"), range(workers)))
        for name, prediction in HOSTILE.items():
            times = []
            for hostile in (None, prediction):
                thread = threading.Thread(target=pool.compare, args=("x + 1", hostile)) if hostile else None
                if thread is not None:
                    thread.start()
                    time.sleep(0.05)
                waits = []
                for n in itertools.islice(numbers, count):
                    begin = time.perf_counter()
                    pool.compare(f"x + {n}", f"{n} + x")
                    waits.append(time.perf_counter() - begin)
                if thread is not None:
                    thread.join()
                times.append(waits)
            alone, beside = times
            delays[name] = {
                "median alone": statistics.median(alone),
                "median beside": statistics.median(beside),
                "worst alone": max(alone),
                "worst beside": max(beside),
                "deadline": pool.deadline,
            }
    return delays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU seconds of each rate")
    parser.add_argument("--workers", type=int, default=2, help="verifier processes for the hostile answers")
    parser.add_argument("--json", type=Path, help="write the results to this file too")
    arguments = parser.parse_args()
    with VerifyPool() as pool:
        pool.compare("x + 1", "1 + x")
        results: dict[str, Any] = {"verifications": verification_rates(arguments.seconds, pool)}
    results["environment"] = environment_rates(arguments.seconds)
    results["hostile"] = {f"{n} workers": hostile_delays(n) for n in sorted({1, arguments.workers})}
    print("verifications per CPU second      verifier   math-verify")
    for kind, row in results["verifications"].items():
        print(f"  {kind:<28}{row['verifier']:>12,.0f}{row['math-verify']:>14,.0f}")
    medians = {
        name: statistics.median(1 / row[name] for row in results["verifications"].values())
        for name in ("verifier", "math-verify")
    }
    results["median"] = medians
    print(
        f"median CPU time of a verification over the kinds: {medians['verifier'] * 1e3:.3f} ms, of math-verify "
        f"{medians['math-verify'] * 1e3:.3f} ms"
    )
    print("per CPU second")
    for name, value in results["environment"].items():
        print(f"  {name:<28}{value:>12,.0f}")
    for workers, delays in results["hostile"].items():
        print(f"seconds a formula takes beside a hostile answer, {workers}")
        for name, row in delays.items():
            print(
                f"  {name:<22} median {row['median alone']:.3f} -> {row['median beside']:.3f}, "
                f"worst {row['worst alone']:.3f} -> {row['worst beside']:.3f} (deadline {row['deadline']:.0f})"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
