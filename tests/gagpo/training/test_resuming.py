"""Random combinations of settings, each killed at a random iteration: every one that is accepted ends bit-equal."""

import random

import pytest
import yaml

from gagpo.runs.run_folder import RunFolder
from gagpo.training.trainer import train
from tests.gagpo.training.resuming import killed_after, require_equal
from tests.gagpo.training.test_trainer import run

CHOICES = {
    "algorithm.preset": ["gagpo", "grpo", "gigpo", "dapo", "ppo_turn", "rloo"],
    "training.dtype": ["float32", "bfloat16"],
    "engine.dtype": ["float32", "bfloat16"],
    "training.minibatches": [1, 3],
    "training.epochs": [1, 2],
    "training.ema": [True, False],
    "training.gradient_checkpointing": [True, False],
    "optimizer.lr_scheduler": ["constant", "cosine"],
    "lora": [None, {"rank": 4}],
    "context.history": ["full", 1],
}
MATHS = {  # from a model that ships in half precision
    "name": "corridor",
    "model": "starter:maths",
    "environment": {"id": "gagpo/Math-v0", "kwargs": {"families": ["arithmetic"], "levels": [2]}},
    "rollout": {"tasks": 3, "group_size": 4, "max_tokens": 24},
    "algorithm": {"preset": "gagpo", "kl": {"coefficient": 0.0}},
    "optimizer": {"learning_rate": 1e-3},
    "evaluation": {"splits": [], "before": False},
}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_a_random_combination_ends_bit_equal(corridor, tmp_path, number):
    rng = random.Random(number)
    config = corridor(evaluation={"splits": [], "before": False})
    if number % 2:
        config.write_text(yaml.safe_dump(MATHS))
    chosen = {key: rng.choice(values) for key, values in CHOICES.items()}
    overrides = [
        f"{key}={yaml.safe_dump(value, default_flow_style=True).splitlines()[0]}" for key, value in chosen.items()
    ]
    overrides += ["training.iterations=4", "training.save_every=1", "training.max_checkpoints=4"]
    full = run(config, tmp_path / "whole", *overrides)
    folder = RunFolder.open(killed_after(rng.randint(1, 3), full, tmp_path))
    train(folder, quiet=True)
    require_equal(folder, full)
