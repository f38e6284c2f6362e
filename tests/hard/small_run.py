"""The model and the finished run that the hard tests use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.sft.run import sft
from gagpo.training.trainer import train
from tests.gagpo.conftest import CORRIDOR

SETTINGS: dict[str, Any] = {
    **CORRIDOR,
    "rollout": {"tasks": 2, "group_size": 4, "max_tokens": 3, "workers": 0},
    "algorithm": {"preset": "apmpo", "kl": {"coefficient": 0.0}},  # its controllers have a state to keep
    "optimizer": {"learning_rate": 2e-3},
    "training": {"iterations": 2, "save_every": 1, "save_episodes_every": 1},
    "evaluation": {"splits": ["test"], "temperature": 1.0, "tasks": 2},
    "sft": {**CORRIDOR["sft"], "episodes": 20, "steps": 50, "batch": 16},
}


def write_settings(path: Path, model: Path, **sections: dict[str, Any]) -> Path:
    """The settings with some ``sections`` changed, as a file."""
    values = {**SETTINGS, "model": str(model)}
    for name, section in sections.items():
        values[name] = {**values[name], **section}
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def make_model(folder: Path) -> Path:
    """A small model folder at ``folder / "model"``, made once."""
    model = folder / "model"
    if not (model / "config.json").exists():
        sft(load(write_settings(folder / "warm.yaml", model)), quiet=True)
    return model


def make_run(folder: Path, **sections: dict[str, Any]) -> Path:
    """A finished run at ``folder / "run"``, made once."""
    run = folder / "run"
    if not (run / "config.yaml").exists():
        settings = load(write_settings(folder / "run.yaml", make_model(folder), **sections))
        result = RunFolder.create(run, settings)
        train(result, quiet=True)
        if not any(row.get("grad_norm") for row in result.metrics()):
            raise RuntimeError("the run has learned nothing, so that nothing of it can be lost: another seed is needed")
    return run
