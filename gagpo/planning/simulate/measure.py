"""Rates and lengths of a run that was made: its metrics, and the episodes that it kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gagpo.agents.episodes import read_episodes
from gagpo.base.errors import InvalidArgument
from gagpo.planning.simulate.rates import Rates
from gagpo.planning.simulate.update import passes
from gagpo.planning.simulate.workload import TurnLengths, Workload
from gagpo.runs.metrics import metric_rows
from gagpo.settings import RunSettings, SettingsError, load

Record = dict[str, Any]  # of a run's files: JSON
READ_AT_MOST = 200  # newly read tokens that an episode's record lists; see gagpo.agents.episodes


@dataclass(frozen=True)
class MeasuredRun:
    """What a run says of itself."""

    settings: RunSettings
    rates: Rates
    workload: Workload
    seconds: float  # of an iteration, in the mean of those that were used


def measure(folder: Path) -> MeasuredRun:
    """Rates and distributions of a run with ``lockstep`` and without ``ahead``, whose passes can be counted.

    The first iteration is left out: it holds what is done once. SettingsError says what is missing.
    """
    if not (folder / "config.yaml").is_file():
        raise SettingsError(f"{folder} is not a run: it holds no config.yaml")
    settings = load(folder / "config.yaml")
    if not settings.rollout.lockstep or settings.rollout.ahead:
        raise SettingsError(f"{folder}: passes are counted in runs with rollout.lockstep=true and rollout.ahead=0 only")
    rows = _iterations(folder)
    windowed = settings.context.history != "full"
    episodes: list[list[TurnLengths]] = []
    counted: list[dict[str, float]] = []
    for row, records in rows:
        played = [_turns(record, folder) for record in records]
        episodes += played
        counted.append(_count(played, row, settings, windowed))
    workload = Workload(episodes, windowed, f"{len(episodes)} episodes of {folder}")
    sums = {name: np.array([one[name] for one in counted]) for name in counted[0]}
    fixed, each = _line(sums["passes"], sums["tokens"], sums["generate"])
    step = float(sums["environment"].sum() / max(1.0, sums["waits"].sum()))
    # Rows and credit take time by the token too: all of an update is laid to its tokens.
    train = float(sums["train"].sum() / max(1.0, sums["trained"].sum()))
    rates = Rates(
        pass_seconds=fixed,
        sequence_seconds=each,
        read_seconds=each,
        train_seconds=train / passes(settings, Rates()),
        environment_seconds=step,
        environment_spread=_spread(sums["environment"] / np.maximum(1.0, sums["waits"])),
        reset_seconds=step,
        source=f"measured: {len(rows)} iterations of {folder}",
    )
    return MeasuredRun(settings, rates, workload, float(np.mean(sums["seconds"])))


def _iterations(folder: Path) -> list[tuple[Record, list[Record]]]:
    """Metrics and episodes of every iteration that has both, but for the run's first."""
    found = []
    for row in metric_rows(folder / "metrics.jsonl")[0]:
        path = folder / "episodes" / f"train-{int(row['iteration']):04d}.jsonl"
        if path.is_file() and row["iteration"] > 1:
            found.append((row, list(read_episodes(path))))
    if not found:
        raise SettingsError(
            f"{folder} kept the episodes of no iteration after the first: make it with training.keep_episodes=1"
        )
    return found


def _turns(record: Record, folder: Path) -> list[TurnLengths]:
    """Lengths of an episode's turns; what was read anew follows from the prompt before."""
    turns, held = [], 0
    try:
        # The record lists newly read tokens up to a limit: where it agrees with the growth, the rest was cached.
        for row in record["turns"]:
            context, response = int(row["tokens"]["prompt"]), len(row["tokens"]["text"])
            shown = len(row["tokens"]["read"])
            grown = context - held
            read = grown if 0 < held < context and shown == min(grown, READ_AT_MOST) else context
            turns.append(TurnLengths(read, context, response))
            held = context + response
    except (KeyError, TypeError, ValueError):
        raise InvalidArgument(f"{folder}: its episodes do not say how many tokens their turns had") from None
    return turns


def _count(
    played: Sequence[Sequence[TurnLengths]], row: Record, settings: RunSettings, windowed: bool
) -> dict[str, float]:
    """What an iteration did, and how long it took. waits: steps that followed each other in the busiest worker."""
    workers = settings.rollout.lanes
    most = max((len(turns) for turns in played), default=0)
    count = tokens = 0
    waits = float(-(-len(played) // workers))
    # In lockstep a pass continues the longest response of the turn, and workers take equal shares of the steps.
    for number in range(most):
        now = [turns[number] for turns in played if len(turns) > number]
        count += max(turn.response for turn in now)
        tokens += sum(turn.read + turn.response for turn in now)
        waits += -(-len(now) // workers)
    made = Workload([turns for turns in played if turns], windowed, "")
    sampled = sum(turn.response for turns in played for turn in turns)
    return {
        "passes": float(count),
        "tokens": float(tokens),
        "waits": waits,
        "trained": float(sum(tokens for turns in made.episodes for tokens in made.rows(turns))),
        "generate": float(row["seconds_generate"]),
        "environment": float(row["seconds_env"]),
        "train": float(row["seconds_train"]),
        "seconds": sampled / float(row["tokens_per_second"]) if row["tokens_per_second"] else 0.0,
    }


def _line(passes_I: np.ndarray, tokens_I: np.ndarray, seconds_I: np.ndarray) -> tuple[float, float]:
    """Seconds of a pass and of a token that explain the iterations best, neither below 0 (least squares)."""
    if len(seconds_I) > 1:
        both, *_ = np.linalg.lstsq(np.stack([passes_I, tokens_I], 1), seconds_I, rcond=None)
        if (both >= 0).all():
            return float(both[0]), float(both[1])
    only = [float((x * seconds_I).sum() / max(1e-12, (x * x).sum())) for x in (passes_I, tokens_I)]
    errors = [float(((seconds_I - rate * x) ** 2).sum()) for rate, x in zip(only, (passes_I, tokens_I), strict=True)]
    return (only[0], 0.0) if errors[0] <= errors[1] else (0.0, only[1])


def _spread(seconds_I: np.ndarray) -> float:
    """Deviation of the logarithm over the iterations' means; 0 for fewer than three of them."""
    known = seconds_I[seconds_I > 0]
    return float(np.std(np.log(known))) if len(known) > 2 else 0.0
