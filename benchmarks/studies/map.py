"""Where turn-level credit pays: gain over GRPO by length of episodes, recognised states and noise of the reward.

    python -m benchmarks.studies.map sweep      every method at every learning rate in one cell, seeds of its own
    python -m benchmarks.studies.map run        every method in every cell, each at its best rate, seed by seed
    python -m benchmarks.studies.map table      gains over GRPO with paired intervals and Holm's correction
    python -m benchmarks.studies.map picture    the same as a picture, lab/studies/map.png

With ``--rate RATE`` methods run at this rate instead of their own; such rows go to ``map-equal-rates.jsonl``, and the
table shows the methods that have rows at this rate.

A cell is an environment with a limit of turns, the share of visits whose state key is readable, and the share of
episodes whose final reward is inverted. Success is always the true one. Rows go to ``lab/studies/map-sweep.jsonl`` and
``map.jsonl``; a run whose row exists is skipped, so that a study may be interrupted at any time.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.learning import darkened
from benchmarks.studies.environments import ENVIRONMENTS_TRIED, StudyEnv, altered, play, start, success_rate
from benchmarks.studies.learner import train
from benchmarks.studies.rows import FOLDER, append_row, has_row, read_rows
from gagpo.base.tables import Table
from gagpo.data import Episode, Turn
from gagpo.eval.curves import COLOURS, GREY, INK, empty_figure, plain_axes, write_figure
from gagpo.eval.statistics import area_under_curve, detectable_difference, holm, mean_over_seeds, paired_t

BASE = "grpo"
METHODS = ("gagpo-state", "graph", "gigpo-state", "gagpo_macro", "graph_macro", "graph_episode")
NAMES = {
    "grpo": "GRPO",
    "gigpo-state": "GiGPO",
    "gagpo-state": "GAGPO",
    "graph": "graph value",
    "graph_episode": "graph value + GRPO",
    "gagpo_macro": "GAGPO, macro-actions",
    "graph_macro": "graph value, macro-actions",
}
LIMITS, RECOGNISED = (10, 20, 40), (1.0, 0.5, 0.0)
NOISE = (0.0, 0.2)
RATES, SWEEP_SEEDS, SEEDS = (0.01, 0.03, 0.1), (901, 902), (1, 2, 3, 4, 5)
EQUAL_RATES = "map-equal-rates.jsonl"
NEW_SEEDS = tuple(range(6, 16))
"""On which macro-actions, chosen on the first five, were measured again."""

SUCCESS = 0.25
"""Where every run begins, on training tasks."""

ACROSS = 3
"""Panels of the picture side by side."""

PANEL_TASKS, PANEL_TRIES = 48, 1
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Cell:
    """One setting of the three knobs.

    limit: turns after which an episode is truncated.
    recognised: share of visits whose state key is readable, 0 to 1; the first state of an episode always is.
    noise: share of episodes whose final reward and success are inverted, 0 to 1.
    """

    world: str
    limit: int
    recognised: float
    noise: float

    @property
    def env(self) -> StudyEnv:
        return replace(altered(ENVIRONMENTS_TRIED[self.world], max_turns=self.limit), turns=TURNS[self.world])


TURNS = {"small": 16_000, "shop": 10_000}
"""Environment turns of a run."""

SWEPT = {"small": Cell("small", 20, 0.5, 0.1), "shop": Cell("shop", 15, 0.5, 0.1)}
"""The cell in which learning rates are chosen."""


def cells(world: str) -> list[Cell]:
    """The cells of a world; the shop has one limit of turns."""
    limits = LIMITS if world == "small" else (15,)
    return [Cell(world, limit, share, noise) for noise, limit, share in itertools.product(NOISE, limits, RECOGNISED)]


# What the credit sees -------------------------------------------------------------------------------------------------


def degraded(episodes: Sequence[Episode], cell: Cell, seed: int) -> list[Episode]:
    """Episodes with hidden state keys and inverted rewards; the draws depend on the seed and on each episode alone."""
    return [_inverted(_hidden(episode, cell.recognised, seed), cell.noise, seed) for episode in episodes]


def _hidden(episode: Episode, recognised: float, seed: int) -> Episode:
    """The episode with a key of their own for the states that are not recognised.

    The first state stays: all episodes of a group begin in it, whatever an environment reports.
    """
    rng = random.Random(f"recognised {seed} {episode.seed}")
    turns = [
        turn if rng.random() < recognised or not index else replace(turn, state=f"{turn.state} {episode.seed} {index}")
        for index, turn in enumerate(episode.turns)
    ]
    return replace(episode, turns=turns)


def _inverted(episode: Episode, noise: float, seed: int) -> Episode:
    """The episode, or the one with the opposite outcome: a reward r of 0 to 1 becomes 1 - r."""
    if random.Random(f"noise {seed} {episode.seed}").random() >= noise:
        return episode
    last: Turn = episode.turns[-1]
    opposite = replace(last, reward=last.reward + 1.0 - 2.0 * episode.reward)
    return replace(episode, turns=[*episode.turns[:-1], opposite], success=not episode.success)


# Runs -----------------------------------------------------------------------------------------------------------------


def sweep(options: argparse.Namespace) -> None:
    rows = options.rows / "map-sweep.jsonl"
    for seed, rate, method in itertools.product(SWEEP_SEEDS, RATES, options.methods):
        train_once(rows, SWEPT[options.world], method, rate, seed, panel=False)


def run(options: argparse.Namespace) -> None:
    """Seed by seed, so that an interrupted study has all cells and methods alike."""
    if options.rate is None:
        swept = list(read_rows(options.rows / "map-sweep.jsonl"))
        rates = {method: best_rate(swept, options.world, method) for method in options.methods}
        output = options.rows / "map.jsonl"
    else:
        rates = dict.fromkeys(options.methods, options.rate)
        output = options.rows / EQUAL_RATES
    for seed, cell in itertools.product(options.seeds, cells(options.world)):
        if cell.noise not in options.noise:
            continue
        for method in options.methods:
            if method == BASE and cell.recognised != RECOGNISED[0]:
                continue  # GRPO compares no states: one run serves all shares
            train_once(output, cell, method, rates[method], seed, panel=True)


def best_rate(swept: Sequence[dict[str, Any]], world: str, method: str) -> float:
    """The rate with the largest mean area in the swept cell."""
    areas = {
        rate: [row["area"] for row in swept if (row["world"], row["method"], row["rate"]) == (world, method, rate)]
        for rate in RATES
    }
    if not all(areas.values()):
        raise SystemExit(f"{method} was not swept: run `python -m benchmarks.studies.map sweep --world {world}` first")
    return max(RATES, key=lambda rate: float(np.mean(areas[rate])))


def train_once(rows: Path, cell: Cell, method: str, rate: float, seed: int, panel: bool) -> None:
    """One run, unless its row exists."""
    settings: dict[str, Any] = {**asdict(cell), "method": method, "rate": rate, "seed": seed}
    if has_row(rows, **settings):
        return
    starts = Path(os.environ.get("GAGPO_DATA") or "data") / "studies"
    policy = start(f"{cell.world}-{cell.limit}-turns", SUCCESS, starts, cell.env)
    progress = list(train(policy, cell.env, method, rate, seed, lambda episodes: degraded(episodes, cell, seed)))
    turns, success = [each.turns for each in progress], [each.success for each in progress]
    row = {
        **settings,
        "area": area_under_curve(turns, success),
        "turns": turns,
        "success": [round(value, 4) for value in success],
        "stats": {name: float(np.mean([each.stats[name] for each in progress])) for name in progress[0].stats},
    }
    if panel:
        episodes = play(policy, cell.env, cell.env.panel, PANEL_TASKS, PANEL_TRIES, "panel", seed)
        row["panel"] = success_rate(episodes)
        row["episode_turns"] = float(np.mean([len(episode.turns) for episode in episodes]))
    append_row(rows, row)
    print(f"{cell} {method} rate {rate} seed {seed}: area {row['area']:.3f}", flush=True)


# Table and picture ----------------------------------------------------------------------------------------------------


class Map:
    """The rows of one world and of some seeds.

    measure: ``area`` under success in training over turns, or success on the ``panel`` of unseen tasks.
    """

    def __init__(self, rows: Sequence[dict[str, Any]], world: str, measure: str = "area", seeds: Sequence[int] = SEEDS):
        self.rows = [row for row in rows if row["world"] == world and row["seed"] in seeds]
        self.world = world
        self._values = {
            (row["method"], row["limit"], row["recognised"], row["noise"], row["seed"]): row[measure]
            for row in self.rows
        }
        self.seeds = sorted({row["seed"] for row in self.rows})
        self.limits = sorted({row["limit"] for row in self.rows})
        self.methods = [method for method in METHODS if any(row["method"] == method for row in self.rows)]

    def values(self, method: str, limit: int, recognised: float, noise: float = 0.0) -> dict[int, float]:
        """The measure of each seed."""
        share = RECOGNISED[0] if method == BASE else recognised
        keys = {seed: (method, limit, share, noise, seed) for seed in self.seeds}
        return {seed: self._values[key] for seed, key in keys.items() if key in self._values}

    def gains(self, method: str, limit: int, recognised: float, noise: float = 0.0, base: str = BASE) -> list[float]:
        """Gain over GRPO, or over another method, of each seed that has both."""
        base_values = self.values(base, limit, recognised, noise)
        return [
            value - base_values[seed]
            for seed, value in self.values(method, limit, recognised, noise).items()
            if seed in base_values
        ]

    def corrected(self, method: str, noise: float = 0.0) -> dict[tuple[int, float], float]:
        """p of each limit and share, a paired t test over seeds with Holm's correction over these cells."""
        cells = list(itertools.product(self.limits, RECOGNISED))
        gains = [self.gains(method, *cell, noise) for cell in cells]
        tested = [cell for cell, values in zip(cells, gains, strict=True) if len(values) > 1]
        p_values = holm([paired_t(values) for values in gains if len(values) > 1])
        return dict(zip(tested, p_values, strict=True))

    def detectable(self, limit: int, noise: float = 0.0) -> float:
        """The difference that as many seeds show with a power of 80 %, by the spread of GRPO's seeds."""
        return detectable_difference(list(self.values(BASE, limit, RECOGNISED[0], noise).values()))


def rows_at(folder: Path, rate: float | None = None) -> list[dict[str, Any]]:
    """Rows of the map, each method at its best rate; or those of every method at one rate."""
    rows = list(read_rows(folder / "map.jsonl"))
    if rate is None:
        return rows
    return [row for row in [*rows, *read_rows(folder / EQUAL_RATES)] if row["rate"] == rate]


def table(rows: Sequence[dict[str, Any]], world: str, measure: str = "area", seeds: Sequence[int] = SEEDS) -> list[str]:
    """Gains over GRPO in every cell, at each level of noise."""
    shown = Map(rows, world, measure, seeds)
    lines = [f"\n{world}, {measure}: GRPO, and gains over it in points; * p < 0.05 (Holm over the cells of a table)"]
    for noise in NOISE:
        lines += [f"\n{100 * noise:.0f} % of the final rewards inverted\n", *_table_of(shown, noise)]
    return lines


def _table_of(shown: Map, noise: float) -> list[str]:
    methods = shown.methods
    corrected = {method: shown.corrected(method, noise) for method in methods}
    lines = []
    for limit, recognised in itertools.product(shown.limits, RECOGNISED):
        base = list(shown.values(BASE, limit, recognised, noise).values())
        if len(base) < 2:
            continue
        gains = [
            gain_text(shown.gains(method, limit, recognised, noise), corrected[method].get((limit, recognised)))
            for method in methods
        ]
        show = f"{100 * shown.detectable(limit, noise):.1f}"
        lines.append([str(limit), f"{100 * recognised:.0f}", str(len(base)), _with_spread(base), *gains, show])
    head = ["turns", "recognised %", "seeds", "GRPO %", *(NAMES[method] for method in methods), "seeds show"]
    return Table(head, lines).markdown()


def _with_spread(values: Sequence[float], sign: str = "") -> str:
    interval = mean_over_seeds(values)
    return f"{100 * interval.value:{sign}.1f} ± {50 * (interval.high - interval.low):.1f}"


def gain_text(gains: Sequence[float], p: float | None) -> str:
    """A gain in points with half its interval; a star if it is significant. Empty for fewer than two seeds."""
    if len(gains) < 2:
        return ""
    star = "*" if p is not None and p < SIGNIFICANT else ""
    return f"{_with_spread(gains, '+')}{star}"


def picture(rows: Sequence[dict[str, Any]], world: str, output: Path) -> list[Path]:
    """Gain over GRPO by limit of turns, a panel for each method and a line for each share of recognised states."""
    shown = Map(rows, world)
    methods = shown.methods
    columns = min(ACROSS, len(methods))
    lines = -(-len(methods) // columns)
    figure = empty_figure(2.3 * columns, 1.9 * lines + 0.3)
    axes = list(figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).flat)
    for method, axis in zip(methods, axes, strict=False):
        for recognised, colour in zip(RECOGNISED, COLOURS, strict=False):
            gains = [mean_over_seeds(shown.gains(method, limit, recognised)) for limit in shown.limits]
            middle = [100 * gain.value for gain in gains]
            axis.plot(shown.limits, middle, "o-", color=colour, markersize=3, label=f"{100 * recognised:.0f} %")
            low, high = [100 * gain.low for gain in gains], [100 * gain.high for gain in gains]
            axis.fill_between(shown.limits, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.axhline(0, color=GREY, linewidth=0.8)
        axis.set_title(NAMES[method], loc="left", fontsize=9, color=INK)
        axis.set_xticks(shown.limits)
        plain_axes(axis)
    for axis in axes[len(methods) :]:
        axis.set_visible(False)
    figure.supylabel("points over GRPO", fontsize=8, color=GREY)
    axes[len(methods) - 1].legend(title="recognised", fontsize=7, title_fontsize=7, frameon=False, loc="lower left")
    figure.supxlabel("limit of turns; band: 95 % interval over seeds", fontsize=8, color=GREY)
    light = write_figure(figure, output)
    return [light, darkened(light)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("sweep", "run", "table", "picture"))
    parser.add_argument("--world", choices=list(SWEPT), default="small", help="rooms, or the shop")
    parser.add_argument("--methods", nargs="+", choices=(BASE, *METHODS), default=[BASE, *METHODS])
    parser.add_argument("--measure", choices=("area", "panel"), default="area", help="of the table")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="to run, or of the table")
    parser.add_argument("--noise", type=float, nargs="+", choices=NOISE, default=NOISE, help="to run")
    parser.add_argument("--rate", type=float, help="of every method")
    parser.add_argument("--rows", type=Path, default=FOLDER)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.command == "sweep":
        sweep(options)
    elif options.command == "run":
        run(options)
    elif options.command == "table":
        rows = rows_at(options.rows, options.rate)
        print("\n".join(table(rows, options.world, options.measure, options.seeds)))
    else:
        print(*picture(rows_at(options.rows, options.rate), options.world, options.rows / "map.png"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
