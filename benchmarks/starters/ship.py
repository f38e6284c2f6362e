"""Package a trained model as a starter: the folder that ``starter:NAME`` names.

    python -m benchmarks.starters.ship data/starters/alfworld-1 alfworld --recipe benchmarks/starters/alfworld.yaml \\
        --result data/panels/alfworld-small-move-0.4.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.starters.recipe import Recipe, load_recipe
from gagpo.agents import starters
from gagpo.agents.model import load_model, load_tokenizer, save
from gagpo.agents.setup import make_env
from gagpo.agents.starters import FORMAT, MANIFEST, SETTINGS
from gagpo.base import durable
from gagpo.base.core_schema import read_mapping, write_yaml
from gagpo.base.errors import GagpoError
from gagpo.eval.results import EvalResult
from gagpo.settings.derived import RECIPE

MOST_BYTES = 12 * 2**20


class TooLarge(GagpoError, ValueError):
    """A model that is too large to ship; the message gives its size."""


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
    """Write the starter ``name`` from the folder ``model``, in half precision.

    recipe: file of its last stage.
    results: files of ``gagpo eval --out``.
    commands: that made it.
    losses: by file name of a recipe, its ``overrides`` and the ``losses`` that they give.
    root: folder of all starters; absent for that of the package.
    earlier: files of the stages before, whose tasks it has seen as well.

    Returns: the starter's folder.

    Raises:
        TooLarge: the model takes too many bytes.
    """
    last = load_recipe(recipe)
    settings = last.settings
    root = root or starters.root()
    target = root / name
    with durable.replacing_folder(target) as fresh:
        network, tokenizer = load_model(model), load_tokenizer(model)
        parameters = sum(parameter.numel() for parameter in network.parameters())
        save(network.to(torch.float16), tokenizer, fresh)
        (fresh / SETTINGS).write_text(_settings(recipe), encoding="utf-8")
        (fresh / RECIPE).unlink(missing_ok=True)
        files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(fresh.iterdir())}
        manifest = {
            "format": FORMAT,
            "name": name,
            "environment": settings.only_environment.environment.id,
            "parameters": parameters,
            "files": files,
            "data": {
                name: digest
                for stage in (*map(load_recipe, earlier), last)
                for name, digest in data_hashes(stage).items()
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


def data_hashes(recipe: Recipe) -> dict[str, str]:
    """The hash of the training tasks of every variant of the environment that the recipe plays."""
    hashes, chosen = {}, recipe.settings.only_environment.environment
    for kwargs in recipe.variants:
        env = make_env(chosen.id, kwargs)
        hashes[json.dumps(env.material(kwargs), sort_keys=True)] = env.tasks(chosen.split).hash
        env.close()
    return hashes


def _settings(recipe: Path) -> str:
    """The settings of a recipe without those of SFT, which only this folder's code can follow."""
    values = read_mapping(recipe)
    values.pop("sft")
    return write_yaml(values)


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
