"""How many questions of gagpo/SQL-v0 pay a wrong query: ``python -m benchmarks.sql_luck [--split test] [--tasks 200]``.

To every question each of the usual wrong queries (:mod:`gagpo.envs.sql.mutate`) is given as the answer, through nothing
but the actions of the environment. So the questions of another version are judged by the same mutants with
``PYTHONPATH=OTHER/TREE python -m benchmarks.sql_luck``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import gymnasium

import gagpo.envs

MUTATE = Path(__file__).resolve().parents[1] / "envs" / "sql" / "mutate.py"
MOST_ROWS = 1_000


def this_mutate() -> Any:
    """The mutants of the tree that this file is from, whichever environment is judged."""
    spec = importlib.util.spec_from_file_location("mutate", MUTATE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Player:
    """Asks an environment what a query shows, and how an answer is judged."""

    def __init__(self, kwargs: dict[str, Any]):
        self.env = gymnasium.make("gagpo/SQL-v0", expert=True, max_turns=1_000, rows=MOST_ROWS, **kwargs)

    def start(self, task: str) -> None:
        self.task = task
        _, self.info = self.env.reset(seed=0, options={"task": task})

    def say(self, action: str) -> str:
        observation, *_, self.info = self.env.step(action)
        return observation

    def gold(self) -> str:
        """What the expert answers."""
        self.start(self.task)
        while not str(self.info["expert_action"]).startswith("answer: "):
            self.say(str(self.info["expert_action"]))
        return str(self.info["expert_action"]).removeprefix("answer: ")

    def schema(self) -> dict[str, list[str]]:
        tables = self.say("tables").removeprefix("Tables: ").split(", ")
        shown = (self.say(f"columns {table}").partition(": ")[2] for table in tables)
        return {
            table: [column.split()[0] for column in columns.split(", ")]
            for table, columns in zip(tables, shown, strict=True)
        }

    def look(self, sql: str) -> list[tuple[Any, ...]]:
        lines = self.say(f"query: {sql}").splitlines()[1:]
        return [tuple(value(text) for text in line.split(" | ")) for line in lines if line != "(no rows)"]

    def verdict(self, sql: str) -> str:
        self.start(self.task)
        self.say(f"answer: {sql}")
        return str(self.info["verdict"])


def value(text: str) -> int | float | str | None:
    for read in (int, float):
        with contextlib.suppress(ValueError):
            return read(text)
    return None if text == "NULL" else text


def measure(split: str, count: int, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Per kind of wrong query: how many questions have one, have one that is right in the database that the agent sees,
    and have one that pays."""
    mutate, player = this_mutate(), Player(kwargs)
    ids = player.env.unwrapped.tasks(split).require().ids  # type: ignore[attr-defined]
    tasks = ids[:: max(1, len(ids) // count)][:count]
    asked, seen, paid = defaultdict(set), defaultdict(set), defaultdict(set)
    for task in tasks:
        player.start(task)
        gold = player.gold()
        if player.verdict(gold) != "right":
            raise SystemExit(f"the gold query of {task} is not paid: {gold}")
        player.start(task)
        for kind, sql in list(mutate.mutants(gold, player.schema(), player.look)):
            verdict = player.verdict(sql)
            for name in (kind, "any"):
                asked[name].add(task)
                if verdict in ("right", "wrong elsewhere"):
                    seen[name].add(task)
                if verdict == "right":
                    paid[name].add(task)
    player.env.close()
    return {
        "package": str(Path(gagpo.envs.__file__).resolve().parents[1]),
        "split": split,
        "tasks": len(tasks),
        "kinds": {
            kind: {"tasks": len(asked[kind]), "right where seen": len(seen[kind]), "paid": len(paid[kind])}
            for kind in sorted(asked)
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--split", default="train")
    parser.add_argument("--tasks", type=int, default=1_000)
    parser.add_argument("--json", type=Path, help="write the results to this file too")
    arguments = parser.parse_args()
    result = measure(arguments.split, arguments.tasks, {})
    print(f"{result['tasks']} questions of {arguments.split}, {result['package']}")
    print(f"{'a wrong query':<30}{'questions':>10}{'right where seen':>18}{'paid':>8}{'paid, %':>9}")
    for kind, row in result["kinds"].items():
        share = 100 * row["paid"] / row["tasks"]
        print(f"{kind:<30}{row['tasks']:>10}{row['right where seen']:>18}{row['paid']:>8}{share:>9.1f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
