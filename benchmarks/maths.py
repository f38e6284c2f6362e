"""Rates of the maths environment: ``python -m benchmarks.maths [--seconds 2] [--workers 2] [--json FILE]``.

Verifications per second by kind of answer, side by side with the bare math-verify library in this same process;
environment steps; and how long a formula takes while a hostile answer is being compared.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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


def rate(run: Callable[[], Any], seconds: float) -> float:
    """Calls of ``run`` per second of wall time."""
    run()
    count, begin = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds:
        run()
        count += 1
    return count / elapsed


def verification_rates(seconds: float, pool: VerifyPool) -> dict[str, dict[str, float]]:
    """Per kind: our verifier and the bare library, verifications per second, and how often they agree."""
    import logging

    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    rates = {}
    for kind in KINDS:
        verifier, ours, theirs = Verifier(pool=pool), pairs(kind), pairs(kind)

        def library(source: Iterator[tuple[str, str]] = theirs) -> bool:
            gold, response = next(source)
            return verify(parse(f"${gold}$"), parse(response))

        rates[kind] = {
            "verifier": rate(lambda v=verifier, source=ours: v.verify(*next(source)), seconds),  # type: ignore[misc]
            "math-verify": rate(library, seconds),
        }
    return rates


def environment_rates(seconds: float) -> dict[str, float]:
    """Steps per second of whole episodes played by the expert (resets included), and calculator calls."""
    rates = {"calculator (3 * (4 + 5) / 7)": rate(lambda: calculate("3 * (4 + 5) / 7"), seconds)}
    for name, settings in {
        "step, with calculator": {},
        "step, single turn": {"attempts": 1, "tools": False},
    }.items():
        env = MathEnv(expert=True, **settings)  # type: ignore[arg-type]
        env.reset(seed=0)
        steps, begin = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - begin) < seconds:
            _, info = env.reset()
            over = False
            while not over:
                _, _, terminated, truncated, info = env.step(info["expert_action"])
                over = terminated or truncated
                steps += 1
        rates[name] = steps / elapsed
    return rates


def hostile_delays(workers: int, count: int = 40) -> dict[str, dict[str, float]]:
    """Seconds of wall time for ``count`` formulas alone, and with a hostile answer asked first, on the same pool."""
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
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each rate is measured")
    parser.add_argument("--workers", type=int, default=2, help="verifier processes for the hostile answers")
    parser.add_argument("--json", type=Path, help="write the results to this file too")
    arguments = parser.parse_args()
    with VerifyPool() as pool:
        pool.compare("x + 1", "1 + x")
        results: dict[str, Any] = {"verifications": verification_rates(arguments.seconds, pool)}
    results["environment"] = environment_rates(arguments.seconds)
    results["hostile"] = {f"{n} workers": hostile_delays(n) for n in sorted({1, arguments.workers})}
    print("verifications per second          verifier   math-verify")
    for kind, row in results["verifications"].items():
        print(f"  {kind:<28}{row['verifier']:>12,.0f}{row['math-verify']:>14,.0f}")
    print("per second")
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
