"""Panels of the starters, played by any model.

    python -m benchmarks.starters.panels play starter:alfworld --environment alfworld --out data/panels
    python -m benchmarks.starters.panels table data/panels/alfworld-*.json

``play`` writes one file a panel, as ``gagpo eval --out`` does, and skips those that exist; ``random`` and ``expert``
can play as well. ``table`` prints the success rate with its 95 % interval, turns, invalid turns and the task types.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gagpo.eval.models import evaluate as measure
from gagpo.eval.results import EvalResult
from gagpo.eval.units import PERCENT, percent, plain


@dataclass(frozen=True)
class PanelPlan:
    """What is played: an environment, a split and a temperature."""

    environment: str
    kwargs: dict[str, Any]
    split: str
    temperature: float = 0.4
    max_tokens: int = 12
    prompt: str = "plain"
    tasks: int | None = None


def _house(
    size: str, verb: str, temperature: float, split: str = "valid_unseen", seed: int = 0, **more: Any
) -> PanelPlan:
    counts = {"train": 0, "valid_seen": 0, "valid_unseen": 138}
    if split == "valid_seen":
        counts = {"train": 138, "valid_seen": 138, "valid_unseen": 0}
    kwargs = {"size": size, "verb": verb, "seed": seed, "max_turns": 50, "counts": counts, **more}
    return PanelPlan("gagpo/ALFWorld-v0", kwargs, split, temperature)


def _shop(split: str, temperature: float, tasks: int | None = None, **more: Any) -> PanelPlan:
    """The generated shop as it is by default: ten results a page, fifteen turns."""
    return PanelPlan("gagpo/WebShop-v0", {"products": 1000, **more}, split, temperature, max_tokens=32, tasks=tasks)


def _problems(split: str, temperature: float, **more: Any) -> PanelPlan:
    """All families and levels of generated maths, with the calculator unless said."""
    kwargs = {"levels": [1, 2, 3, 4], "size": 40000, "test_size": 480, **more}
    return PanelPlan("gagpo/Math-v0", kwargs, split, temperature, max_tokens=128 if more else 64)


PANELS: dict[str, dict[str, PanelPlan]] = {
    "alfworld": {
        f"{size}-{verb}-{temperature}": _house(size, verb, temperature)
        for size in ("full", "small")
        for verb in ("move", "put")
        for temperature in (0.4, 0.0)
    },
    "alfworld-wider": {  # rooms that lack things, objects in odd places, tasks in other words
        "varied-both-0.4": _house("varied", "both", 0.4),
        "varied-human-0.4": _house("varied", "both", 0.4, texts="human"),
        "full-human-0.4": _house("full", "both", 0.4, texts="human"),
        "alfred-both-0.4": _house("alfred", "both", 0.4),
        "alfred-human-0.4": _house("alfred", "both", 0.4, texts="human"),
        "alfred-released-0.4": _house("alfred", "released", 0.4),
    },
    "alfworld-choice": {  # what a model is chosen on
        f"{name}seen-both-0.4": _house(size, "both", 0.4, "valid_seen", 4, texts=texts)
        for name, size, texts in (
            ("", "full", "template"),
            ("small-", "small", "template"),
            ("varied-", "varied", "both"),
            ("alfred-", "alfred", "both"),
        )
    },
    "alfworld-household": {  # rooms like the released ones and with wider furniture, and the released training games
        "alfred2-0.4": _house("alfred2", "released", 0.4, texts="both", seed=73),
        "alfred3-0.4": _house("alfred3", "released", 0.4, texts="both", seed=171),
        "training-0.4": PanelPlan("gagpo/ALFWorld-v0", {"games": "official", "max_turns": 50}, "train", 0.4),
    },
    "webshop": {f"test-{temperature}": _shop("test", temperature) for temperature in (0.4, 0.0)}
    | {"other-shop-0.4": _shop("test", 0.4, catalogue_seed=99)},  # products that no starter was trained on
    "webshop-choice": {"validation-0.4": _shop("validation", 0.4, tasks=200)},
    "maths": {f"test-{temperature}": _problems("test", temperature) for temperature in (0.4, 0.0)},
    "maths-choice": {"validation-0.4": _problems("validation", 0.4)},
    "maths-single": {
        f"test-{temperature}": _problems("test", temperature, attempts=1, tools=False) for temperature in (0.4, 0.0)
    },
}


def play(model: str, environment: str, out: Path, only: list[str]) -> None:
    """Every panel of ``environment`` whose file is not there yet."""
    out.mkdir(parents=True, exist_ok=True)
    label = model.removeprefix("starter:").replace("/", "_")
    for name, plan in PANELS[environment].items():
        path = out / f"{label}-{name}.json"
        if path.exists() or (only and name not in only):
            continue
        result = measure(
            model,
            environment=plan.environment,
            split=plan.split,
            kwargs=plan.kwargs,
            tasks=plan.tasks,
            temperature=plan.temperature,
            max_tokens=plan.max_tokens,
            context={"prompt": plan.prompt},
            workers=0,
            quiet=True,
        )
        result.save(path)
        print(line(path.stem, result), flush=True)


def line(name: str, result: EvalResult) -> str:
    """One row of the table."""
    types = " | ".join(f"{percent(rate.value)}" for rate in result.by_type.values())
    return (
        f"| {name} | {PERCENT.interval(result.success)} | {plain(result.mean_turns)} | {percent(result.invalid_rate)} "
        f"| {types} |"
    )


def table(paths: list[Path]) -> None:
    """A Markdown table of stored results."""
    results = [(path.stem, EvalResult.from_json(path.read_text(encoding="utf-8"), str(path))) for path in paths]
    kinds = list(results[0][1].by_type)
    print("| panel | success [95 %] | turns | invalid % | " + " | ".join(kinds) + " |")
    print("|---" * (4 + len(kinds)) + "|")
    for name, result in results:
        print(line(name, result))


def main() -> None:
    parser = argparse.ArgumentParser(description="Panels of the starter models.")
    commands = parser.add_subparsers(dest="command", required=True)
    playing = commands.add_parser("play")
    playing.add_argument("model")
    playing.add_argument("--environment", choices=PANELS, default="alfworld")
    playing.add_argument("--out", type=Path, default=Path("data/panels"))
    playing.add_argument("--only", nargs="*", default=[])
    tables = commands.add_parser("table")
    tables.add_argument("results", type=Path, nargs="+")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == "play":
        play(arguments.model, arguments.environment, arguments.out, arguments.only)
    else:
        table(arguments.results)


if __name__ == "__main__":
    main()
