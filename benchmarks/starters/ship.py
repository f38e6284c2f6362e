"""Package a trained model as a starter: the folder that ``starter:NAME`` names.

    python -m benchmarks.starters.ship data/starters/alfworld-1 alfworld --recipe benchmarks/starters/alfworld.yaml \\
        --result data/panels/alfworld-small-move-0.4.json
    python -m benchmarks.starters.ship runs/starter-alfworld-household/checkpoints/iteration-000040/model \\
        alfworld-household --bits 7 --recipe benchmarks/starters/alfworld-household.yaml
    python -m benchmarks.starters.ship data/models/smollm2-household-2 smollm2-household --adapter \\
        --recipe benchmarks/starters/smollm2-household-2.yaml --earlier benchmarks/starters/smollm2-household-1.yaml
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.starters.adapter import BITS, write_adapter
from benchmarks.starters.recipe import load_recipe
from benchmarks.starters.rounding import round_rows
from gagpo.agents.setup import make_env
from gagpo.base import durable
from gagpo.base.core_schema import read_mapping, write_yaml
from gagpo.base.errors import GagpoError
from gagpo.eval.results import EvalResult
from gagpo.model import adapters, starters
from gagpo.model.loading import load_model, load_tokenizer, save
from gagpo.model.starters import FORMAT, MANIFEST, SETTINGS
from gagpo.settings import load
from gagpo.settings.derived import RECIPE

MOST_BYTES = 8 * 10**6
ADAPTER_BYTES = 6 * 10**6
LARGE = ("model.safetensors", adapters.WEIGHTS, "tokenizer.json")
PACKING = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 0, "lp": 1, "pb": 1}]  # for numbers of two bytes


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
    bits: int | None = None,
    adapter: bool = False,
) -> Path:
    """Write the starter ``name`` from the folder ``model``, in half precision, packed.

    recipe: file of its last stage.
    results: files of ``gagpo eval --out``.
    commands: that made it.
    losses: by file name of a recipe, its ``overrides`` and the ``losses`` that they give.
    root: folder of all starters; absent for that of the package.
    earlier: files of the stages before, whose tasks it has seen as well.
    bits: of a weight; see :func:`round_rows`. Absent for all of half precision, and for :data:`BITS` of an adapter.
    adapter: pack only what was trained with ``sft.lora`` or ``lora.rank`` on a pretrained model.

    Returns: the starter's folder.

    Raises:
        TooLarge: the model takes too many bytes.
    """
    settings = load(recipe)
    root = root or starters.root()
    target = root / name
    limit = ADAPTER_BYTES if adapter else MOST_BYTES
    with durable.replacing_folder(target) as fresh:
        facts = write_adapter(model, fresh, bits, settings) if adapter else write_model(model, fresh, bits)
        (fresh / SETTINGS).write_text(_settings(recipe), encoding="utf-8")
        (fresh / RECIPE).unlink(missing_ok=True)
        pack(fresh)
        files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(fresh.iterdir())}
        manifest = {
            "format": FORMAT,
            "name": name,
            "environment": settings.all_environments[0].environment.id,
            **facts,
            "files": files,
            "data": {name: digest for path in (*earlier, recipe) for name, digest in data_hashes(path).items()},
            "results": {path.stem: _short(path) for path in results},
            "commands": list(commands),
            "first_losses": losses or {},
        }
        (fresh / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        size = sum(path.stat().st_size for path in fresh.iterdir())
        if size > limit:
            raise TooLarge(
                f"would take {size / 1000000.0:.1f} MB; a starter may have {limit / 1000000.0:.0f}", where=model
            )
    return target


def write_model(model: str, folder: Path, bits: int | None) -> dict[str, object]:
    """Write the model to ``folder`` in half precision; what the manifest says of it."""
    network, tokenizer = load_model(model), load_tokenizer(model)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    if bits is not None:
        for weights in network.parameters():
            if weights.dim() > 1:
                weights.data = round_rows(weights.data, bits)
    save(network.to(torch.float16), tokenizer, folder)
    return {"parameters": parameters}


def pack(folder: Path) -> None:
    """Replace the large files of ``folder`` by packed ones, which unpack to the same bytes."""
    for name in LARGE:
        if not (folder / name).exists():
            continue
        packed = lzma.compress((folder / name).read_bytes(), filters=PACKING)
        (folder / f"{name}{starters.PACKED}").write_bytes(packed)
        (folder / name).unlink()


def data_hashes(recipe: Path) -> dict[str, str]:
    """The hash of the training tasks of every variant of the environment that a stage plays."""
    settings, hashes = load(recipe), {}
    if settings.sft is None:
        played = [(env.environment, env.environment.kwargs) for env in settings.all_environments]
    else:
        played = [(settings.only_environment.environment, variant.kwargs) for variant in load_recipe(recipe).variants]
    for chosen, kwargs in played:
        env = make_env(chosen.id, kwargs)
        hashes[json.dumps(env.material(kwargs), sort_keys=True)] = env.tasks(chosen.split).hash
        env.close()
    return hashes


def _settings(recipe: Path) -> str:
    """The settings of a recipe, of several environments the first, without SFT, which only this folder can follow."""
    values = read_mapping(recipe)
    for key in ("sft", "device"):  # a starter is evaluated where its user is, on the CPU unless asked for another
        values.pop(key, None)
    if "environments" in values:
        first, *_ = values.pop("environments")
        values["environment"] = {key: value for key, value in first.items() if key not in ("name", "weight")}
    return write_yaml(values)


def _short(path: Path) -> dict[str, object]:
    """What of a result is worth shipping: the panel and the rates."""
    result = EvalResult.from_json(path.read_text(encoding="utf-8"), str(path))
    summary = result.summary()
    kept = ("success", "successes", "episodes", "mean_turns", "invalid_rate", "task_types")
    return {
        "split": result.task_set.split,
        "split_hash": result.task_set.split_hash,
        "kwargs": result.task_set.kwargs,
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
    parser.add_argument("--bits", type=int, help=f"of a weight; absent: 16, of an adapter {BITS}")
    parser.add_argument("--adapter", action="store_true", help="only the adapter, on a pretrained model")
    given = parser.parse_args()
    losses = json.loads(given.losses.read_text(encoding="utf-8")) if given.losses else None
    explained = (given.recipe, given.result, given.command, losses)
    target = ship(given.model, given.name, *explained, earlier=given.earlier, bits=given.bits, adapter=given.adapter)
    print(f"{target}: {starters.read(target).size / 1e6:.2f} MB")
    if given.adapter:
        for name, value in starters.read(target).manifest["adapter"].items():
            print(f"{name}: {value}")


if __name__ == "__main__":
    main()
