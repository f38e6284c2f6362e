"""How often the expert wins:

python -m benchmarks.alfworld.expert --size full --split valid_unseen --noise 0.1
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from gagpo.envs.alfworld.env import ALFWorldEnv
from gagpo.envs.alfworld.games.catalogue import SIZES
from gagpo.envs.alfworld.games.generate import SPLITS


def expert_rate(
    size: str = "small",
    split: str = "train",
    noise: float = 0.0,
    games: str | Path | None = None,
    max_turns: int = 50,
    seed: int = 0,
) -> dict[str, object]:
    """Let the expert play every task of a split once, each action replaced by a random one with probability ``noise``.

    Returns ``tasks``, ``success`` (a share), ``turns`` (mean over won episodes), ``inadmissible`` (how often the expert
    asked for what was not admissible) and ``by_type`` (task type -> [won, played]).
    """
    env = ALFWorldEnv(split, max_turns, expert=True, size=size, games=games)
    rng = np.random.default_rng(seed)
    by_type: dict[str, list[int]] = {}
    turns: list[int] = []
    inadmissible = 0
    for task in env.tasks(split).require():
        # One episode each, played to its end, then counted under its type.
        _, info = env.reset(options={"task": task.id})
        over = False
        while not over:
            action = info["expert_action"] or "look"
            inadmissible += action not in info["admissible_actions"]
            if rng.random() < noise:
                action = str(rng.choice(info["admissible_actions"]))
            _, _, terminated, truncated, info = env.step(action)
            over = terminated or truncated
        score = by_type.setdefault(task.type, [0, 0])
        score[0] += info["success"]
        score[1] += 1
        if info["success"]:
            turns.append(info["turn"])
    env.close()
    played = sum(count for _, count in by_type.values())
    return {
        "tasks": played,
        "success": len(turns) / played,
        "turns": float(np.mean(turns)) if turns else float("nan"),
        "inadmissible": inadmissible,
        "by_type": by_type,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="How often the ALFWorld expert wins.")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--split", choices=SPLITS, default="train")
    parser.add_argument("--noise", type=float, default=0.0, help="share of actions replaced by random ones")
    parser.add_argument("--games", help="a folder of games, or 'official'")
    parser.add_argument("--max-turns", type=int, default=50)
    print(json.dumps(expert_rate(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
