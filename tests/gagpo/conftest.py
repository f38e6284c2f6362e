"""A corridor to walk, and a model that has seen an expert walk it a little: enough to learn from in seconds."""

import pytest
import yaml

from gagpo.settings import load
from gagpo.sft.run import sft

CORRIDOR = {
    "name": "corridor",
    "model": "to be set",
    "threads": 1,
    "environment": {"id": "gagpo.envs.testing:gagpo-test/Corridor-v0", "kwargs": {"max_turns": 16}},
    "context": {"history": 0},
    "rollout": {"tasks": 4, "group_size": 6, "max_tokens": 3, "workers": 0},
    "algorithm": {"preset": "gagpo", "kl": {"coefficient": 0.0}},
    "optimizer": {"learning_rate": 5e-3},
    "training": {"iterations": 2, "minibatches": 2, "save_every": 1, "save_episodes_every": 1},
    "evaluation": {"splits": ["test"], "temperature": 1.0},
    "sft": {
        "episodes": 40,
        "noise": 0.5,
        "mistake_rate": 0.0,
        "steps": 20,
        "batch": 32,
        "learning_rate": 1e-2,
        "model": {"num_layers": 1, "hidden_size": 32, "vocab_size": 300},
    },
}


@pytest.fixture(scope="session")
def warm_model(tmp_path_factory):
    """A folder with a model that now and then says ``left``, and much else."""
    folder = tmp_path_factory.mktemp("model") / "warm"
    config = folder.with_name("warm.yaml")
    config.write_text(yaml.safe_dump({**CORRIDOR, "model": str(folder)}))
    return str(sft(load(config), quiet=True))


@pytest.fixture
def corridor(tmp_path, warm_model):
    """Write a config of the corridor with some sections changed; gives its path."""

    def write(**changes):
        values = {**CORRIDOR, "model": warm_model}
        for section, value in changes.items():
            values[section] = {**values.get(section, {}), **value} if isinstance(value, dict) else value
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(values))
        return path

    return write
