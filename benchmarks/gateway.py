"""Tokens per second of episodes through the gateway, compared with the same episodes in gagpo's own loop.

    python -m benchmarks.gateway [--episodes 64] [--turns 4] [--tokens 64] [--layers 8] [--width 384] [--json FILE]

An untrained model answers ``turns`` observations with ``tokens`` tokens each. An agent of a few lines sends the whole
conversation, with the openai client. Of the wall time the median of three rounds counts. Processor seconds are those of
all rounds, in this process and in the programs.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
from pathlib import Path

import gymnasium

from benchmarks.requirements import require_package
from gagpo.agents.engines.base import Sampling
from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.agents.setup import language_agent, make_env
from gagpo.base.tables import Table
from gagpo.envs import Outcome, Task, TaskSet, TextEnv
from gagpo.envs.pool.opening import open_pool
from gagpo.sft.small_model import ModelShape, build

ROUNDS = 3
AGENT = """
import json

async def play(task, client):
    messages = []
    for turn in range(task["turns"]):
        messages.append({"role": "user", "content": f"Observation {turn} of {task['id']}."})
        said = await client.chat.completions.create(model="any", messages=messages)
        messages.append({"role": "assistant", "content": said.choices[0].message.content})
    return 1.0
"""


class Echo(TextEnv):
    """Shows as many observations as ``max_turns``."""

    def __init__(self, count: int = 64, **kwargs: object):
        super().__init__(**kwargs)  # type: ignore[arg-type]
        self.count = count

    def tasks(self, split: str) -> TaskSet:
        return TaskSet(split, [Task(f"task-{i:04d}", split) for i in range(self.count)])

    def begin(self, task: Task) -> Outcome:
        return Outcome(f"Observation 0 of {task.id}.")

    def act(self, action: str) -> Outcome:
        assert self.task is not None
        return Outcome(f"Observation {self.turn} of {self.task.id}.", reward=1.0)


if "gagpo-bench/Echo-v0" not in gymnasium.registry:  # this module is also imported by the name of its environment
    gymnasium.register("gagpo-bench/Echo-v0", "benchmarks.gateway:Echo", disable_env_checker=True, order_enforce=False)


def seconds() -> float:
    """Processor seconds of this process and of those that it has waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"episodes": 64, "turns": 4, "tokens": 64, "layers": 8, "width": 384}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    for module in ("starlette", "uvicorn", "openai"):
        require_package(module, "gateway")
    shape = ModelShape(
        layers=options.layers,
        width=options.width,
        heads=6,
        key_value_heads=2,
        feed_forward=4 * options.width,
        context=2048,
    )
    model, tokenizer = build(shape, ["Observation 0 of task-0000.", "go to the shelf"] * 3, seed=0)
    engine, rates = (
        TransformersEngine(model.eval(), tokenizer),
        {"own loop": list[float](), "gateway": []},
    )
    processor: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        sys.path.append(folder)
        Path(folder, "bench_agent.py").write_text(AGENT, encoding="utf-8")
        ids = [f"task-{i:04d}" for i in range(options.episodes)]
        rows = [json.dumps({"id": one, "turns": options.turns, "split": "train"}) for one in ids]
        tasks = Path(folder, "tasks.jsonl")
        tasks.write_text("\n".join(rows), encoding="utf-8")
        environments = {
            "own loop": (
                "benchmarks.gateway:gagpo-bench/Echo-v0",
                {"count": options.episodes, "max_turns": options.turns},
            ),
            "gateway": ("gagpo/Program-v0", {"agent": "bench_agent:play", "tasks": str(tasks)}),
        }
        for name, (env_id, kwargs) in environments.items():
            agent = language_agent(engine, make_env(env_id, kwargs), Sampling(1.0, options.tokens))
            used, total = seconds(), 0
            with open_pool(env_id, kwargs, workers=1) as pool:
                for number in range(ROUNDS):
                    jobs = group_jobs(ids, 1, seed=number)
                    episodes, clock = rollout(agent, pool, jobs, concurrency=options.episodes)
                    tokens = sum(len(turn.response_ids) for episode in episodes for turn in episode.turns)
                    rates[name].append(tokens / clock.total)
                    total += tokens
            processor[name] = total / (seconds() - used)  # of this process, and of those that it has waited for
    found = {name: (statistics.median(listed), processor[name]) for name, listed in rates.items()}
    rows = [[name, *(f"{value:,.0f}" for value in values)] for name, values in found.items()]
    share = [f"{100 * a / b:.0f} %" for a, b in zip(found["gateway"], found["own loop"], strict=True)]
    print("\n".join(Table(["", "tokens/s", "tokens/CPU s"], [*rows, ["gateway / own", *share]]).lines()))
    if options.json:
        options.json.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
