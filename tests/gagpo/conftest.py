"""A corridor to walk, and a model that has seen an expert walk it a little: enough to learn from in seconds."""

import pytest
import yaml

from gagpo.planning.doctor import machine
from gagpo.settings import load
from gagpo.sft.run import sft

CORRIDOR = {
    **machine.CORRIDOR,  # the doctor's, and smaller
    "name": "corridor",
    "model": "to be set",
    "rollout": {"tasks": 4, "samples": 6, "max_tokens": 3, "workers": 0},
    "training": {"iterations": 2, "minibatches": 2, "save_every": 1, "keep_episodes": 1},
    "evaluation": {"splits": ["test"], "temperature": 1.0},
    "sft": {**machine.CORRIDOR["sft"], "episodes": 40, "steps": 20},
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
