"""Making a starter of a trained model: the folder that ``starter:NAME`` names.

    python -m gagpo.warm_start.ship data/starters/alfworld-1 alfworld --recipe configs/starters/alfworld.yaml \\
        --result data/panels/alfworld-small-move-0.4.json --command "gagpo warm-start configs/starters/alfworld.yaml"
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from gagpo.agents import starters
from gagpo.agents.model import load_model, load_tokenizer, save
from gagpo.agents.setup import make_world
from gagpo.agents.starters import FORMAT, MANIFEST, SETTINGS
from gagpo.base import durable
from gagpo.base.errors import GagpoError
from gagpo.eval.results import EvalResult
from gagpo.settings import RunSettings, load
from gagpo.settings.derived import RECIPE
from gagpo.warm_start.demonstrations import variants
from gagpo.warm_start.fit import fit
from gagpo.warm_start.run import prepare

MOST_BYTES = 12 * 2**20


class TooLarge(GagpoError, ValueError):
    """A model that is too large to be shipped; the message gives its size."""


def ship(
    model: str,
    name: str,
    recipe: Path,
    results: Sequence[Path] = (),
    commands: Sequence[str] = (),
    losses: Mapping[str, object] | None = None,
    root: Path | None = None,
    earlier: Sequence[Path] = (),
) -> Path:
    """Write the starter ``name`` from the folder ``model``, in half precision; returns its folder.

    recipe: settings of the run that made it, with its own environment. results: files of ``gagpo eval --out``.
    losses: of the recipes that led to it, by file name: ``overrides`` and the ``losses`` they give.
    earlier: recipes of the stages before, whose tasks it has seen as well. Raises :class:`TooLarge`.
    """
    settings = load(recipe)
    root = root or starters.root()
    target = root / name
    with durable.replacing_folder(target) as fresh:
        network, tokenizer = load_model(model), load_tokenizer(model)
        parameters = sum(parameter.numel() for parameter in network.parameters())
        save(network.to(torch.float16), tokenizer, fresh)
        shutil.copy(recipe, fresh / SETTINGS)
        (fresh / RECIPE).unlink(missing_ok=True)
        files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(fresh.iterdir())}
        manifest = {
            "format": FORMAT,
            "name": name,
            "environment": settings.only_world.environment.id,
            "parameters": parameters,
            "files": files,
            "data": {
                name: digest for run in (*map(load, earlier), settings) for name, digest in data_hashes(run).items()
            },
            "results": {path.stem: _short(path) for path in results},
            "commands": list(commands),
            "first_losses": losses or {},
        }
        (fresh / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        size = sum(path.stat().st_size for path in fresh.iterdir())
        if size > MOST_BYTES:
            raise TooLarge(f"{model} would take {size / 2**20:.1f} MiB; a starter may have {MOST_BYTES / 2**20:.0f}")
    return target


def first_losses(recipe: Path, overrides: Sequence[str], model: Path) -> list[float]:
    """The losses of a recipe's warm start with these overrides; ``model`` is the folder to work in."""
    settings = load(recipe, [*overrides, f"model={model}"])
    torch.set_num_threads(1)
    network, _, rows = prepare(settings, model, {}, quiet=True)
    return fit(network, rows, settings, quiet=True)


def data_hashes(settings: RunSettings) -> dict[str, str]:
    """The hash of the training tasks of every variant of the environments that the settings name."""
    hashes = {}
    for world in settings.worlds:
        chosen = world.environment
        for kwargs in [chosen.kwargs] if settings.environments else variants(settings):
            env = make_world(chosen.id, kwargs)
            hashes[json.dumps(env.material(kwargs), sort_keys=True)] = env.tasks(chosen.split).hash
            env.close()
    return hashes


def _short(path: Path) -> dict[str, object]:
    """What of a result is worth shipping: the panel and the rates."""
    result = EvalResult.from_json(path.read_text(encoding="utf-8"), str(path))
    summary = result.summary()
    kept = ("success", "successes", "episodes", "mean_turns", "invalid_rate", "task_types")
    return {
        "split": result.panel.split,
        "split_hash": result.panel.split_hash,
        "kwargs": result.panel.kwargs,
        "temperature": result.temperature,
        **{name: summary[name] for name in kept},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a starter of a trained model.")
    parser.add_argument("model", help="model folder")
    parser.add_argument("name")
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("--result", type=Path, action="append", default=[])
    parser.add_argument("--command", action="append", default=[])
    parser.add_argument("--earlier", type=Path, action="append", default=[], help="recipe of a stage before")
    parser.add_argument("--losses", type=Path, help="JSON: file name of a recipe -> {overrides, losses}")
    given = parser.parse_args()
    losses = json.loads(given.losses.read_text(encoding="utf-8")) if given.losses else None
    print(ship(given.model, given.name, given.recipe, given.result, given.command, losses, earlier=given.earlier))


if __name__ == "__main__":
    main()
