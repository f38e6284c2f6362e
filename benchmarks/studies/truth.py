"""Credit against the truth: the advantages that each credit gives to a batch, compared with what turns were worth.

    python -m benchmarks.studies.truth run                      the settings of the page, one row each
    python -m benchmarks.studies.truth run --environment small --horizon 20 --group 8 --success 0.25
    python -m benchmarks.studies.truth table                    every credit of every row
    python -m benchmarks.studies.truth visits                   the same by how often a turn's state was visited
    python -m benchmarks.studies.truth compare graph@state gagpo@state      difference in cosine, batch by batch

A turn is worth the expected return after it minus the expected return before it, estimated from ``--tries``
continuations after the same actions; undiscounted (an ALFWorld success earns 1). A credit is judged by the policy
gradient that it gives (cosine with the true one, signal over noise), and by its sign for turns that mattered. The value
of a state that one episode visited is that episode's own return, so the judgement is repeated for turns by the number
of visits to their state. Rows go to ``lab/studies/truth.jsonl``; a setting that has a row is not measured again.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.studies.continuations import true_advantages, true_values
from benchmarks.studies.environments import ENVIRONMENTS_TRIED, ScriptedAgent, StudyEnv, altered, start
from benchmarks.studies.policy import WIDTH, SmallAgent, SmallPolicy, code
from benchmarks.studies.rows import FOLDER, append_row, has_row, read_rows
from gagpo.agents.agent import Agent
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.base.tables import Table
from gagpo.credit import CREDITS, CreditSettings, advantages, turns_for
from gagpo.credit.assign import VISITS
from gagpo.data import Episode, Turns
from gagpo.eval.statistics import mean_over_seeds, paired_t

KEYS = ("observation", "state", "history")
MATTERS = 0.1
"""Turns that change what is to be earned by more than this, and by more than two standard errors, have a sign."""

VARIANTS: dict[str, dict[str, Any]] = {
    "gagpo lam=0": {"name": "gagpo", "lam": 0.0},
    "gagpo lam=.5": {"name": "gagpo", "lam": 0.5},
    "gagpo lam=1": {"name": "gagpo", "lam": 1.0},
    "graph": {"name": "gagpo", "proxy": "graph", "lam": 0.0},
    "graph lam=.5": {"name": "gagpo", "proxy": "graph", "lam": 0.5},
    "gagpo macro": {"name": "gagpo", "macro_actions": True},
    "graph macro": {"name": "gagpo", "proxy": "graph", "lam": 0.0, "macro_actions": True},
}
"""Credits beside the defaults of the table."""

SETTINGS: list[dict[str, Any]] = [
    {"environment": "small", "horizon": 20, "group": 8, "success": 0.25},
    {"environment": "shop", "horizon": 15, "group": 8, "success": 0.25},
    {"environment": "small", "horizon": 40, "group": 8, "success": 0.25},
    {"environment": "small", "horizon": 20, "group": 2, "success": 0.25},
    {"environment": "small", "horizon": 20, "group": 16, "success": 0.25},
    {"environment": "small", "horizon": 20, "group": 8, "success": 0.05},
    {"environment": "small", "horizon": 20, "group": 8, "success": 0.6},
    {"environment": "full", "horizon": 40, "group": 8, "success": 0.25},
    {"environment": "small", "horizon": 20, "group": 8, "slips": 0.8},
]
"""What the page reports: one thing changed at a time, as far as it goes."""


@dataclass
class Batch:
    """One batch of groups, what its turns were worth, and the direction that advantages for them move the policy in."""

    episodes: list[Episode]
    true_N: np.ndarray
    error_N: np.ndarray
    policy: SmallPolicy | None

    def turns_for(self, credit: CreditSettings) -> Turns:
        """The columns that the credit needs, with the policy's measures where there is a policy."""
        columns = turns_for(self.episodes, credit)
        if self.policy is None:
            return columns
        entropy_N, energy_K = self.policy.measures([turn for episode in self.episodes for turn in episode.turns])
        return replace(columns, entropy_N=entropy_N, energy_K=energy_K)

    def visits(self, credit: CreditSettings) -> np.ndarray:
        """Visits to the state of each turn in its task group, by the credit's key or the true state, int64[N]."""
        keyed = credit if hasattr(credit, "state_key") else CREDITS.make({"name": "gagpo", "state_key": "state"})
        state_N = turns_for(self.episodes, keyed).states()
        return np.asarray(np.bincount(state_N)[state_N])

    def gradient(self, advantage_N: np.ndarray) -> np.ndarray:
        """Mean over turns of advantage times the gradient of the log-probability, float64[weights].

        A script has no weights: each pair of state and action is a direction of its own.
        """
        turns = [turn for episode in self.episodes for turn in episode.turns]
        if self.policy is None:
            tasks = [episode.task for episode in self.episodes for _ in episode.turns]
            pair_N = [code(task, str(t.state), t.action) % WIDTH for task, t in zip(tasks, turns, strict=True)]
            return np.bincount(pair_N, advantage_N, WIDTH) / len(turns)
        logprob_N, _ = self.policy.logprobs(turns)
        mean = (torch.as_tensor(advantage_N, dtype=torch.float32) * logprob_N).mean()
        (gradient,) = torch.autograd.grad(mean, [self.policy.weight])
        return np.asarray(gradient.numpy(), np.float64)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    torch.set_num_threads(1)
    rows = options.rows / "truth.jsonl"
    if options.command != "run":
        for row in read_rows(rows):
            print("\n".join(shown(row, options)))
        return 0
    starts = Path(os.environ.get("GAGPO_DATA") or "data") / "studies"
    asked = {name: getattr(options, name) for name in ("environment", "horizon", "group", "success", "slips")}
    asked = {name: value for name, value in asked.items() if value is not None}
    for setting in [{**SETTINGS[0], **asked}] if asked else SETTINGS:
        if "slips" in setting:  # a script succeeds as often as it does
            setting = {name: value for name, value in setting.items() if name != "success"}
        how = {"tries": options.tries, "tasks": options.tasks, "batches": options.batches}
        if not has_row(rows, **setting, **how):
            row = {**setting, **how, **measure(setting, options, starts)}
            append_row(rows, row)
            print("\n".join(table(row)), flush=True)
    return 0


def measure(setting: Mapping[str, Any], options: argparse.Namespace, starts: Path) -> dict[str, Any]:
    """Every credit on the same batches."""
    env = altered(ENVIRONMENTS_TRIED[setting["environment"]], max_turns=setting["horizon"])
    policy = None if "slips" in setting else start(setting["environment"], setting["success"], starts)
    agent = SmallAgent(policy) if policy else ScriptedAgent(setting["slips"])
    batches = [
        Batch(*sample(agent, env, setting["group"], number, options), policy) for number in range(options.batches)
    ]
    judged: dict[str, Any] = {"exact": judge(batches, [batch.true_N for batch in batches])}
    for label, credit in credits_of(options.credit).items():
        if policy is None and credit.measure:
            continue  # a script has no probabilities
        results = [advantages(batch.turns_for(credit), credit) for batch in batches]
        advantage = [result.advantage_N for result in results]
        judged[label] = judge(batches, advantage)
        judged[label]["visits"] = judge_by_visits(batches, advantage, [batch.visits(credit) for batch in batches])
        for name in ("aliasing", "repeated_states"):
            values = [result.stats[name] for result in results if name in result.stats]
            judged[label] |= {name: float(np.mean(values))} if values else {}
    true_N = np.concatenate([batch.true_N for batch in batches])
    error_N = np.concatenate([batch.error_N for batch in batches])
    return {
        "measured_success": float(np.mean([e.success for batch in batches for e in batch.episodes])),
        "turns": len(true_N),
        "error": float(error_N.mean()),
        "judged_turns": int(_matters(true_N, error_N).sum()),
        "credits": judged,
    }


def sample(
    agent: Agent, env: StudyEnv, group: int, number: int, options: argparse.Namespace
) -> tuple[list[Episode], np.ndarray, np.ndarray]:
    """Episodes of the same tasks each time, the worth of their turns and its standard error."""
    tasks = env.tasks("train")[: options.tasks]
    with env.pool(**({"expert": True} if isinstance(agent, ScriptedAgent) else {})) as pool:
        jobs = group_jobs(tasks, group, number, "truth")
        episodes, _ = rollout(agent, pool, jobs)
        value_N, variance_N = true_values(agent, pool, episodes, jobs, options.tries)
    return episodes, *true_advantages(episodes, value_N, variance_N)


def judge(
    batches: Sequence[Batch], credit: Sequence[np.ndarray], chosen: Sequence[np.ndarray] | None = None
) -> dict[str, Any]:
    """Cosine with the true gradient of the other batches, signal over noise, and wrong signs (a zero is half of one).

    Signal over noise: squared length of the mean gradient over the mean squared distance from it, both unbiased.

    credit: advantages of each batch's turns.
    chosen: the turns of each batch that count, bool[N]; by default all.
    """
    chosen = [np.ones(len(batch.true_N), np.bool_) for batch in batches] if chosen is None else chosen
    pairs = list(zip(batches, credit, chosen, strict=True))
    exact = np.stack([batch.gradient(np.where(chosen_N, batch.true_N, 0.0)) for batch, _, chosen_N in pairs])
    gradients = np.stack([batch.gradient(np.where(chosen_N, credit_N, 0.0)) for batch, credit_N, chosen_N in pairs])
    cosines = []
    for place in range(len(batches)):
        rest = np.delete(exact, place, 0).mean(0)
        size = np.linalg.norm(rest) * np.linalg.norm(gradients[place])
        cosines.append(float(rest @ gradients[place] / size) if size else 0.0)
    mean = gradients.mean(0)
    noise = float(((gradients - mean) ** 2).sum() / (len(gradients) - 1))
    signal = float(mean @ mean) - noise / len(gradients)
    together = exact.mean(0)
    bias = float(mean @ together / (np.linalg.norm(mean) * np.linalg.norm(together) + 1e-300))
    wrong = []
    for batch, credit_N, chosen_N in pairs:
        judged_N = _matters(batch.true_N, batch.error_N) & chosen_N
        agreement = np.sign(batch.true_N[judged_N]) * np.sign(credit_N[judged_N])
        wrong.append((agreement < 0) + 0.5 * (agreement == 0))
    wrong_signs = np.concatenate(wrong)
    return {
        "cosines": cosines,
        "signal_to_noise": max(signal, 0.0) / noise if noise else 0.0,
        "cosine_of_mean": bias,
        "wrong_signs": float(wrong_signs.mean()) if len(wrong_signs) else None,
    }


def judge_by_visits(
    batches: Sequence[Batch], credit: Sequence[np.ndarray], visits: Sequence[np.ndarray]
) -> dict[str, dict[str, Any]]:
    """:func:`judge` on the turns of each number of visits, with their fraction of all turns and those with a sign."""
    by_visits = {}
    turns = sum(len(visits_N) for visits_N in visits)
    for name, (low, high) in VISITS.items():
        chosen = [(visits_N >= low) & (visits_N <= high) for visits_N in visits]
        count = sum(int(chosen_N.sum()) for chosen_N in chosen)
        signed = [_matters(batch.true_N, batch.error_N) & of for batch, of in zip(batches, chosen, strict=True)]
        row = {"fraction": count / turns, "judged_turns": sum(int(signed_N.sum()) for signed_N in signed)}
        by_visits[name] = row | (judge(batches, credit, chosen) if count else {})
    return by_visits


def _matters(true_N: np.ndarray, error_N: np.ndarray) -> np.ndarray:
    return (np.abs(true_N) > MATTERS) & (np.abs(true_N) > 2 * error_N)


def credits_of(more: Sequence[str]) -> dict[str, CreditSettings]:
    """Every credit of the table without a critic, the variants, and those named; each with every key that it takes."""
    cells = {name: {"name": name} for name in CREDITS.places() if not CREDITS.find(name).critic} | VARIANTS
    cells |= {name: {"name": name} for name in more}
    found: dict[str, CreditSettings] = {}
    for label, cell in cells.items():
        keys = KEYS if "state_key" in CREDITS.find(cell["name"]).model_fields else (None,)
        for key in keys:
            found[f"{label}@{key}" if key else label] = CREDITS.make({**cell, **({"state_key": key} if key else {})})
    return found


def shown(row: Mapping[str, Any], options: argparse.Namespace) -> list[str]:
    """What a command prints of one row."""
    if options.command == "compare":
        return compared(row, *options.credits)
    return table(row) if options.command == "table" else visits_table(row)


def visits_table(row: Mapping[str, Any]) -> list[str]:
    """Cosine and wrong signs of every credit by the number of visits; nothing for rows without that judgement."""
    lines = []
    for label, judged in row["credits"].items():
        cells = [label]
        for name in VISITS:
            part = judged.get("visits", {}).get(name, {})
            if not part.get("cosines"):
                cells.append("")
                continue
            wrong = "" if part["wrong_signs"] is None else f", {part['wrong_signs']:.2f}"
            cells.append(f"{np.mean(part['cosines']):.2f}{wrong} ({part['fraction']:.0%})")
        if any(cells[1:]):
            lines.append(cells)
    if not lines:
        return []
    head = ["credit@key", *(f"{name.replace('_', '-').replace('-up', '+')} visits" for name in VISITS)]
    legend = "cosine, wrong signs (fraction of turns)"
    return [f"\n{title(row)}\n{legend}\n", *Table(head, lines).markdown()]


def table(row: Mapping[str, Any]) -> list[str]:
    """One setting's credits, best first."""
    lines = []
    for label, judged in sorted(row["credits"].items(), key=lambda item: -float(np.mean(item[1]["cosines"]))):
        cosine = mean_over_seeds(judged["cosines"])  # with half an interval over the batches
        lines.append(
            [
                label,
                f"{cosine.value:.2f} ± {(cosine.high - cosine.low) / 2:.2f}",
                f"{judged['signal_to_noise']:.2f}",
                f"{judged['cosine_of_mean']:.2f}",
                "" if judged["wrong_signs"] is None else f"{judged['wrong_signs']:.2f}",
                f"{judged['aliasing']:.2f}" if "aliasing" in judged else "",
            ]
        )
    head = ["credit@key", "cosine", "signal/noise", "cosine of the mean", "wrong signs", "aliasing"]
    return [f"\n{title(row)}\n", *Table(head, lines).markdown()]


def title(row: Mapping[str, Any]) -> str:
    who = f"{row['environment']}, a script" if "slips" in row else row["environment"]
    return (
        f"{who}, {row['horizon']} turns, groups of {row['group']}, {row['measured_success']:.0%} success; "
        f"{row['batches']} batches of {row['tasks']} tasks, {row['turns']} turns, {row['tries']} continuations of each "
        f"(error of an advantage {row['error']:.3f}), signs over {row['judged_turns']} turns"
    )


def compared(row: Mapping[str, Any], ours: str, theirs: str) -> list[str]:
    """Difference in cosine between two credits on the same batches, with its interval and paired t test."""
    gaps = [a - b for a, b in zip(*(row["credits"][label]["cosines"] for label in (ours, theirs)), strict=True)]
    found = mean_over_seeds(gaps)
    half = (found.high - found.low) / 2
    return [f"{ours} less {theirs}: {found.value:+.2f} ± {half:.2f}, p = {paired_t(gaps):.3f} ({title(row)})"]


def _options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Credit against the truth.")
    parser.add_argument("command", choices=("run", "table", "visits", "compare"))
    parser.add_argument("credits", nargs="*", help="the two that are compared, as the table names them")
    parser.add_argument("--environment", choices=list(ENVIRONMENTS_TRIED))
    parser.add_argument("--horizon", type=int)
    parser.add_argument("--group", type=int)
    parser.add_argument("--success", type=float, help="of the small policy, by which its weights are scaled")
    parser.add_argument("--slips", type=float, help="judge a script in its place: the expert, drawing so many actions")
    parser.add_argument("--credit", nargs="*", default=[], help="more credits, by name or module:Class")
    parser.add_argument("--tries", type=int, default=12)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--rows", type=Path, default=FOLDER)
    options = parser.parse_args(arguments)
    if (options.command == "compare") != (len(options.credits) == 2):
        parser.error("compare takes two credits, and nothing else does")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
