"""Measure the shop: text steps, catalogue sizes, and memory per worker.

    python -m benchmarks.webshop steps                 # text steps/s on one core, 1,000 products
    python -m benchmarks.webshop sizes                 # build, open, memory at 100,000 products

Each prints one JSON object. ``--out FILE`` also writes it there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def steps(products: int = 1_000, seconds: float = 5.0, observation: str = "text") -> dict[str, Any]:
    """Text steps/s of an agent that follows the expert but strays one time in three, over all training tasks."""
    from gagpo.envs.webshop.env import WebShopEnv
    from gagpo.envs.webshop.store import open_store

    env = WebShopEnv(products=products, expert=True, observation=observation)
    rng = random.Random(0)
    tasks = env.tasks("train").ids
    words = sorted({env.store.product(n).query for n in range(len(env.store))})
    # What to do is worked out first: only reset and step are timed.
    plans = []
    for task in rng.sample(tasks, min(len(tasks), 2_000)):
        _, info = env.reset(options={"task": task})
        plan, over = [], False
        while not over:
            action = info["expert_action"]
            if action is None or rng.random() < 1 / 3:
                strays = info["admissible_actions"] or [""]
                action = rng.choice([*strays, f"search[{rng.choice(words)} {rng.choice(words)} {rng.randrange(99)}]"])
            plan.append(action)
            *_, terminated, truncated, info = env.step(action)
            over = terminated or truncated
        plans.append((task, plan))
    kinds = {kind: sum(action.startswith(kind) for _, plan in plans for action in plan) for kind in ("search", "click")}
    bought = sum(plan[-1] == "click[buy now]" for _, plan in plans)
    done, passes, taken, worked = 0, 0, 0.0, 0.0
    while taken < seconds:
        # A store opened anew has no product, page or query in mind.
        open_store.cache_clear()
        env = WebShopEnv(products=products, observation=observation)
        started, busy = time.perf_counter(), time.process_time()
        for task, plan in plans:
            env.reset(options={"task": task})
            for action in plan:
                env.step(action)
        taken += time.perf_counter() - started
        worked += time.process_time() - busy
        done += sum(len(plan) for _, plan in plans)
        passes += 1
    return {
        "products": products,
        "observation": observation,
        "steps_per_second": round(done / taken),
        # What the wall clock would show were this process alone on its core.
        "steps_per_cpu_second": round(done / worked),
        "steps": done,
        "passes_from_cold": passes,
        "mix": {**kinds, "purchases": bought, "episodes": len(plans)},
    }


_WORKER = """
import json, sys, time
import psutil
import gymnasium
import gagpo.envs
import gagpo.envs.webshop.env
me = psutil.Process()
before = me.memory_full_info()
started = time.perf_counter()
env = gymnasium.make("gagpo/WebShop-v0", products=int(sys.argv[1]), expert=True).unwrapped
_, info = env.reset(seed=0)
opened = time.perf_counter() - started
for seed in range(300):
    _, info = env.reset(seed=seed)
    over = False
    while not over and info["expert_action"]:
        *_, terminated, truncated, info = env.step(info["expert_action"])
        over = terminated or truncated
after = me.memory_full_info()
print(json.dumps({"open_seconds": opened, "own_mb": (after.uss - before.uss) / 2**20, "rss_mb": after.rss / 2**20}))
sys.stdout.flush()
sys.stdin.readline()
"""


def sizes(products: int = 100_000, workers: int = 2) -> dict[str, Any]:
    """Seconds to generate and to build a catalogue; for each of several workers at once, seconds to open it and the
    memory that is its own (USS, libraries left out) after 300 expert episodes."""
    from gagpo.envs.webshop.catalogue import find_sources
    from gagpo.envs.webshop.env import webshop_folder
    from gagpo.envs.webshop.generate import generated_folder
    from gagpo.envs.webshop.store import store_for

    with tempfile.TemporaryDirectory() as root:
        os.environ["GAGPO_DATA"] = root
        started = time.perf_counter()
        folder = generated_folder(webshop_folder(), products)
        generated = time.perf_counter()
        store = store_for(find_sources(folder), webshop_folder())
        built = time.perf_counter()
        size = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
        command = [sys.executable, "-c", _WORKER, str(products)]
        running = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
            for _ in range(workers)
        ]
        told = [json.loads(process.stdout.readline()) for process in running if process.stdout]
        for process in running:
            process.communicate("\n", timeout=60)
    return {
        "products": products,
        "generate_seconds": round(generated - started, 1),
        "build_seconds": round(built - generated, 1),
        "store_mb": round(size / 2**20),
        "workers": [{key: round(value, 2) for key, value in worker.items()} for worker in told],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["steps", "sizes"])
    parser.add_argument("--products", type=int, help="size of the generated catalogue")
    parser.add_argument("--seconds", type=int, help="how long to measure (steps)")
    parser.add_argument("--out", type=Path, help="file for the result")
    given = parser.parse_args()
    options = {"products": given.products, "seconds": given.seconds}
    allowed = {"steps": ("products", "seconds"), "sizes": ("products",)}
    chosen = {name: options[name] for name in allowed[given.what] if options[name] is not None}
    measures = {"steps": steps, "sizes": sizes}
    result = json.dumps({given.what: measures[given.what](**chosen)}, indent=1)
    print(result)
    if given.out:
        given.out.write_text(result + "\n")


if __name__ == "__main__":
    main()
