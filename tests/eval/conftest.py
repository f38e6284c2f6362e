"""A run folder as a trainer leaves it, with made-up numbers from a private generator."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gagpo.data import Episode, Turn, write_episodes
from gagpo.eval.results import EvalResult, EvaluatedTaskSet

KINDS = ("pick_and_place_simple", "pick_heat_then_place_in_recep", "look_at_obj_in_light")


def write_run(
    folder: Path, seed: int = 1, rise: float = 0.5, iterations: int = 40, hostile: str = "", average=False
) -> Path:
    """Success climbs by ``rise`` from about .25; ``hostile`` is put wherever a model's or a user's text may stand."""
    rng = np.random.default_rng(seed)
    for name in ("evals", "episodes", "checkpoints"):
        (folder / name).mkdir(parents=True)
    (folder / "config.yaml").write_text(
        f"algorithm: gagpo\nseed: {seed}\nmodel: runs/warm/model {hostile}\n"
        "environment:\n  id: gagpo/ALFWorld-v0\n  kwargs: {size: small}\n"
        "rollout:\n  tasks: 16\n  group: 8\nengine:\n  api_key: very-private\n",
        encoding="utf-8",
    )
    versions = {"python": "3.11.9", "torch": "2.13.0", "commit": "39bda6b", "splits": {"train": "a" * 16}}
    (folder / "versions.json").write_text(
        json.dumps(versions | ({"note": hostile} if hostile else {})), encoding="utf-8"
    )
    rates = 0.25 + rise * (1 - np.exp(-np.arange(iterations + 1) / (0.4 * iterations)))
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as file:
        turns = tokens = 0
        for i in range(1, iterations + 1):
            turns += int(rng.integers(1100, 1500))
            tokens += int(rng.integers(11_000, 15_000))
            row = {
                "iteration": i,
                "success_rate": float(np.clip(rates[i] + rng.normal(0, 0.05), 0, 1)),
                "mean_turns": 18 - 8 * float(rates[i]) + float(rng.normal(0, 0.4)),
                "invalid_rate": 0.12 * math.exp(-i / 12) + 0.01 * float(rng.random()),
                "reward_mean": float(rates[i]) * 10,
                "zero_advantage_groups": 0.3 + 0.1 * float(rng.random()),
                "repeated_states": 0.9 - 0.1 * float(rng.random()),
                "advantage_std": 1.0 + 0.1 * float(rng.random()),
                "clip_fraction": 0.02 * float(rng.random()),
                "kl": 0.004 * i * float(rng.random()),
                "entropy": 0.9 * math.exp(-i / 60),
                "grad_norm": 0.5 + 0.2 * float(rng.random()),
                "tokens_per_second": 5200.0 + 200 * float(rng.random()),
                "seconds_env": 4 + float(rng.random()),
                "seconds_generate": 8 + float(rng.random()),
                "seconds_train": 5 + float(rng.random()),
                "turns_total": turns,
                "tokens_total": tokens,
                "learning_rate": 3e-4,
                "loss": -0.01 * float(rng.random()),
            }
            file.write(json.dumps(row) + "\n")
    stages = [("before", 0), (f"iteration-{iterations // 2:04}", iterations // 2), ("after", iterations)]
    stages += [("average", iterations)] if average else []
    for split, name in (("valid_seen", "5" * 16), ("valid_unseen", "6" * 16)):
        for stage, i in stages:
            episodes = play(rng, float(rates[i]) - 0.03, split, stage, hostile)
            panel = EvaluatedTaskSet("gagpo/ALFWorld-v0", split, name, 60, kwargs={"size": "small"})
            result = EvalResult.from_episodes(episodes, panel, f"checkpoints/{stage} {hostile}", 0.4)
            result.save(folder / "evals" / f"{stage}-{split}.json")
            write_episodes(folder / "episodes" / f"{stage}-{split}.jsonl", episodes)
    return folder


def play(rng, rate: float, split: str, stage: str, hostile: str) -> list[Episode]:
    episodes = []
    for i in range(60):
        success = bool(rng.random() < rate)
        messages = f"{hostile}I should look for the mug first.\n<action>go to countertop {i % 3 + 1}</action>"
        turns = [
            Turn(
                "You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a countertop 1, "
                f"a fridge 1, and a microwave 1.\n\nYour task is to: put a hot mug in cabinet. {hostile}",
                messages,
                f"go to countertop {i % 3 + 1}",
            ),
            Turn(f"On the countertop 1, you see a mug 1, and a plate 2. {hostile}", "hmm", "", invalid="not parsed"),
            Turn("Nothing happens.", "<action>take mug 1 from countertop 1</action>", "take mug 1 from countertop 1"),
        ]
        turns[-1] = replace(turns[-1], reward=float(success))
        outcome = "failed" if (i, stage) == (7, "before") else "terminated" if success else "truncated"
        type_name = KINDS[i % 3]
        episodes.append(
            Episode(
                f"{type_name}-Mug-{split}-{i:03} {hostile}",
                type_name,
                split,
                i,
                turns=turns,
                success=success,
                outcome=outcome,
            )
        )
    return episodes


@pytest.fixture
def make_run():
    return write_run
