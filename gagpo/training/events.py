"""Events that a trainer reports; each prints as one line."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gagpo.base.tables import WIDTH, duration, text_width
from gagpo.eval.measures import REWARD, SUCCESS
from gagpo.eval.results import EvalResult, shown_measures
from gagpo.eval.units import REWARDS, reward_number
from gagpo.runs.headline import REWARD_MEAN, SUCCESS_RATE, Headline
from gagpo.runs.metrics import Metrics
from gagpo.runs.register import environments_of, of_environment

_OF_UPDATE = {
    "zero_advantage_groups": "zero groups {:4.0%}",
    "repeated_states": "repeated states {:4.0%}",
    "advantage_std": "adv {:.2f}",
    "clip_fraction": "clip {:5.1%}",
    "approx_kl": "kl {:+.4f}",
    "entropy": "entropy {:.3f}",
    "grad_norm": "grad {:.2f}",
    "learning_rate": "lr {:.1e}",
}
"""Parts of the line for metrics that an update may have."""


MAX_WIDTH = 240
"""Columns of a line outside a terminal."""


def fitted(parts: Sequence[str], width: int) -> str:
    """As many of the first parts as fit on a line, at least one.

    >>> fitted(["success 50.0 %", "turns 4.0", "kl 0.1"], 28)
    'success 50.0 %  turns 4.0'
    """
    line = parts[0]
    for column in parts[1:]:
        if len(line) + 2 + len(column) > width:
            break
        line = f"{line}  {column}"
    return line


@dataclass(frozen=True)
class FormatsChosen:
    """The machine has chosen the run's number formats. formats: which, and why."""

    formats: str

    def __str__(self) -> str:
        return f"number format: {self.formats}"


@dataclass(frozen=True)
class IterationFinished:
    """An iteration has been collected, trained on and logged.

    seconds_left: to the end of the run, estimated.
    headlines: which numbers come first, of the run (``""``) and of each of several environments.
    """

    metrics: Metrics
    seconds_left: float = 0.0
    headlines: Mapping[str, Headline] = field(default_factory=dict)

    def __str__(self) -> str:
        m = self.metrics
        first, *more = self._first_numbers()
        columns = [
            f"{m['iteration']:>4}  {first}",
            *more,
            f"turns {m['mean_turns']:4.1f}",
            f"invalid {100 * m['invalid_rate']:4.1f} %",
        ]
        if self.seconds_left:
            columns.append(f"{duration(self.seconds_left)} left")
        if m.get("updates") == 0:
            columns.append("nothing to learn from")
        columns += [text.format(m[name]).replace("%", " %") for name, text in _OF_UPDATE.items() if name in m]
        columns += [
            f"{m['tokens_per_second']:.0f} tok/s",
            f"env {m['seconds_env']:.1f} s",
            f"gen {m['seconds_generate']:.1f} s",
            f"train {m['seconds_train']:.1f} s",
        ]
        line = fitted(columns, text_width(most=MAX_WIDTH))
        envs = [self._of_environment(env) for env in environments_of(m)]
        indent = " " * 6
        return "\n".join(
            [line, *textwrap.wrap(", ".join(envs), WIDTH, initial_indent=indent, subsequent_indent=indent)]
        )

    def _first_numbers(self) -> list[str]:
        """Mean reward, success rate, or both."""
        texts: dict[str, Callable[[float], str]] = {
            REWARD_MEAN: lambda reward: f"reward {reward_number(reward):>7}",
            SUCCESS_RATE: lambda rate: f"success {100 * rate:5.1f} %",
        }
        return [texts[metric](self.metrics[metric]) for metric in self.headlines.get("", (SUCCESS_RATE,))]

    def _of_environment(self, env: str) -> str:
        """An environment with its success rate, or with its mean reward."""
        metric, *_ = self.headlines.get(env, (SUCCESS_RATE,))
        value = self.metrics[of_environment(metric, env)]
        return f"{env} {reward_number(value)}" if metric == REWARD_MEAN else f"{env} {100 * value:.1f} %"


@dataclass(frozen=True)
class WarningIssued:
    """A step was skipped because its loss or gradient was not finite, or the run looks as if it cannot learn."""

    line: str

    def __str__(self) -> str:
        return f"      {self.line}"


@dataclass(frozen=True)
class EvaluationFinished:
    """A panel has been evaluated.

    label: stage and split, the name of its file in ``evals/``.
    failure: the error of the first episode that failed in its environment; empty if none did.
    """

    label: str
    result: EvalResult
    failure: str = ""

    def __str__(self) -> str:
        rate = self.result.success
        texts = {
            REWARD: f"reward {REWARDS.interval(self.result.mean_reward)}",
            SUCCESS: f"success {100 * rate.value:.1f} % [{100 * rate.low:.1f}, {100 * rate.high:.1f}]",
        }
        numbers = [texts[measure] for measure in shown_measures([self.result])]
        line = f"{self.label}: {', '.join(numbers)}"
        if self.failure:
            line += f"\n      {self.result.failed} of {self.result.episodes} episodes failed, the first: {self.failure}"
        return line


Event = FormatsChosen | IterationFinished | WarningIssued | EvaluationFinished
Report = Callable[[Event], None]
