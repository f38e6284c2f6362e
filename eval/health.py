"""Health of a run: whether it learns, and if not, why, in sentences from the metrics of its iterations.

A rule whose metrics were not logged gives no finding.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gagpo.runs.headline import REWARD_MEAN, headline_of_rows
from gagpo.runs.register import environments_of, of_environment

Row = Mapping[str, float]
Level = Literal["good", "watch", "bad"]
Rule = Callable[[Sequence[Row]], "HealthFinding | None"]
RECENT = 5  # iterations that a finding is about


@dataclass(frozen=True)
class HealthFinding:
    """One sentence about a run; level ``bad`` needs action, ``watch`` a look."""

    level: Level
    sentence: str

    @property
    def word(self) -> str:
        """The level as a word, which a page shows in the level's colour."""
        return {"bad": "Act", "watch": "Look", "good": "Good"}[self.level]

    def __str__(self) -> str:
        return self.sentence if self.level == "good" else f"{self.word}: {self.sentence}"


def health(rows: Sequence[Row]) -> list[HealthFinding]:
    """Findings about the last iterations, overall and for each of several environments, worst first."""
    if not rows:
        return []
    findings = [finding for rule in RULES if (finding := rule(rows))]
    for env in environments_of(rows[-1]):
        end = of_environment("", env)
        env_rows = [
            {name.removesuffix(end): value for name, value in row.items() if name.endswith(end)} for row in rows
        ]
        of_env = [finding for rule in RULES if (finding := rule(env_rows))]
        findings += [replace(finding, sentence=f"{env}: {finding.sentence}") for finding in of_env]
    order = {"bad": 0, "watch": 1, "good": 2}
    return sorted(findings, key=lambda finding: order[finding.level])


def health_line(rows: Sequence[Row]) -> str:
    """The two worst findings in one line; empty if all are good."""
    return "; ".join(finding.sentence for finding in health(rows)[:2] if finding.level != "good")


def sentences(rows: Sequence[Row]) -> list[str]:
    """Every finding as a sentence, marked by its level."""
    return [str(finding) for finding in health(rows)]


def recent(rows: Sequence[Row], key: str, count: int = RECENT) -> float:
    """Mean of the last ``count`` rows that have a finite ``key``; NaN without any."""
    values = [float(row[key]) for row in rows[-count:] if key in row and math.isfinite(row[key])]
    return sum(values) / len(values) if values else math.nan


def answer_task_information(pairs: Sequence[tuple[str, str]]) -> float:
    """Mutual information between task and answer in nats, at least 0, from one (task, answer) pair per turn.

    The plug-in estimate minus Miller and Madow's correction for small samples (Miller 1955), so that answers that do
    not depend on the task give about 0. A single task gives 0.

    >>> answer_task_information([("a", "x")] * 50 + [("b", "y")] * 50)  # doctest: +ELLIPSIS
    0.68...
    """
    joint = Counter(pairs)
    tasks = Counter(task for task, _ in pairs)
    answers = Counter(answer for _, answer in pairs)
    if not pairs:
        return 0.0
    total = len(pairs)
    plain = sum(
        n / total * math.log(n * total / (tasks[task] * answers[answer])) for (task, answer), n in joint.items()
    )
    surplus = (len(joint) - len(tasks) - len(answers) + 1) / (2 * total)
    return max(0.0, plain - surplus)


# The rules ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limit:
    """A rule about the recent mean of one metric.

    text: the sentence, with the mean in it.
    advice: added if the mean is bad.
    bad, watch: the limits. Low values are bad if ``watch`` is above ``bad``.
    """

    metric: str
    text: str
    advice: str
    bad: float
    watch: float

    def __call__(self, rows: Sequence[Row]) -> HealthFinding | None:
        value = recent(rows, self.metric)
        if math.isnan(value):
            return None
        direction = 1 if self.bad > self.watch else -1
        bad = direction * value > direction * self.bad
        level: Level = "good"
        if bad:
            level = "bad"
        elif direction * value > direction * self.watch:
            level = "watch"
        sentence = self.text.format(value=value, percent=f"{100 * value:.0f} %")
        return HealthFinding(level, f"{sentence}: {self.advice}" if bad else sentence)


ZERO_GROUPS = Limit(
    "zero_advantage_groups",
    "{percent} of the groups have no advantage (all their episodes end alike)",
    "change the difficulty of the tasks, start from a better model, or sample more episodes per task",
    bad=0.7,
    watch=0.4,
)
LIMITS = (
    Limit(
        "repeated_states",
        "{percent} of the turns are in a state that occurs again in the group",
        "use a coarser state key or more episodes per task",
        bad=0.2,
        watch=0.5,
    ),
    Limit(
        "aliasing",
        "{percent} of the actions repeated in one state led to different states or rewards",
        "the key does not identify the state; set algorithm.credit.state_key=auto, or use a credit without states",
        bad=0.2,
        watch=0.05,
    ),
    Limit(
        "clip_fraction",
        "{percent} of the ratios are clipped",
        "the learning rate is too high, or the sampler differs from the trainer",
        bad=0.3,
        watch=0.1,
    ),
    Limit(
        "truncated_responses",
        "{percent} of the responses are cut at the token limit",
        "raise rollout.max_tokens, or check that the vocabulary spells actions in few tokens",
        bad=0.3,
        watch=0.05,
    ),
)


MISMATCH = Limit(
    "mismatch_kl",
    "sampler and trainer differ by a KL of {value:.1e}",
    "they are not the same policy (weights, precision or template)",
    bad=0.02,
    watch=0.002,
)


def mismatch(rows: Sequence[Row]) -> HealthFinding | None:
    """Sampler and trainer are one policy, unless ``rollout.ahead`` samples with weights that are older by design.

    Then their KL contains what the updates in between have moved the policy. Updates in one direction add distances,
    and the KL of small steps grows with the square of the distance; twice that allows for the noise of ``approx_kl``.
    Only the rest is judged.
    """
    age = recent(rows, "staleness_mean")
    if math.isnan(age) or age <= 0:
        return MISMATCH(rows)
    value = recent(rows, "mismatch_kl")
    if math.isnan(value):
        return None
    update = abs(recent(rows, "approx_kl"))
    explained = min(value, 2 * math.ceil(age) ** 2 * update if math.isfinite(update) else 0.0)
    finding = MISMATCH([{"mismatch_kl": value - explained}])
    assert finding is not None
    if finding.level == "good":
        text = f"sampler and trainer differ by a KL of {value:.1e}, as weights do that are {age:.1f} updates older"
        return HealthFinding("good", text)
    return finding


def entropy(rows: Sequence[Row]) -> HealthFinding | None:
    """A policy without entropy repeats itself; rising entropy means that it forgets."""
    first, last = recent(rows[:RECENT], "entropy"), recent(rows, "entropy")
    if math.isnan(last):
        return None
    sentence = f"entropy is {last:.3f} per token"
    if last < 0.1 * first or last < 1e-3:
        return HealthFinding("bad", f"{sentence}, from {first:.3f}: all episodes become the same")
    if len(rows) > RECENT and last > 2 * first:
        return HealthFinding("watch", f"{sentence}, from {first:.3f}: responses become more random")
    return HealthFinding("good", sentence)


INVALID = {
    "invalid_unparsed": ("without an action in the response", "the prompt reads another format than the model writes"),
    "invalid_cut": (
        "cut off at the token limit",
        "raise rollout.max_tokens or check that the vocabulary spells actions",
    ),
    "invalid_refused": ("refused by the environment", "the model does not use its commands"),
}
"""Causes of invalid actions and what they mean for a model that never succeeds, by metric."""


def invalid(rows: Sequence[Row]) -> HealthFinding | None:
    """Turns without an action that the environment accepts, and their main cause."""
    share = recent(rows, "invalid_rate")
    if math.isnan(share):
        return None
    sentence = f"{_percent(share)} of the actions are invalid"
    if share <= 0.2:
        return HealthFinding("good", sentence)
    leading = max(INVALID, key=lambda name: -1.0 if math.isnan(kind := recent(rows, name)) else kind)
    cause, meaning = INVALID[leading]
    earns = recent(rows, "success_rate") > 0 or (
        REWARD_MEAN in headline_of_rows(rows) and recent(rows, REWARD_MEAN) > 0
    )
    if leading != "invalid_cut" and earns:  # a model that succeeds speaks the language
        return HealthFinding("watch", f"{sentence}, most {cause}: they cost turns")
    return HealthFinding("bad" if share > 0.5 else "watch", f"{sentence}, most {cause}: {meaning}")


def collapse(rows: Sequence[Row]) -> HealthFinding | None:
    """Answers that do not depend on the task: ``answer_task_information`` near 0, even while the reward rises."""
    first, last = recent(rows[:RECENT], "answer_task_information"), recent(rows, "answer_task_information")
    if math.isnan(last):
        return None
    sentence = f"responses carry {last:.2f} nats about their task"
    if last < 0.05 or (len(rows) > RECENT and last < 0.2 * first):
        return HealthFinding("bad", f"{sentence}, from {first:.2f}: they no longer depend on it")
    return HealthFinding("good", sentence)


def progress(rows: Sequence[Row]) -> HealthFinding | None:
    """Recent success, or mean reward, compared with the first iterations.

    The limits of rewards are relative to their range so far, because rewards have any unit.
    """
    if len(rows) < 2 * RECENT:
        return None
    metric, *_ = headline_of_rows(rows)
    first, last = recent(rows[:RECENT], metric), recent(rows, metric)
    if math.isnan(first) or math.isnan(last):
        return None
    if metric == REWARD_MEAN:
        rewards = [row[metric] for row in rows if math.isfinite(row.get(metric, math.nan))]
        worse, better = 0.5 * (max(rewards) - min(rewards)), 0.25 * (max(rewards) - min(rewards))
        sentence = f"mean reward in training went from {first:.3g} to {last:.3g}"
    else:
        worse, better = 0.1, 0.02
        sentence = f"success in training went from {_percent(first)} to {_percent(last)}"
    if last < first - worse:
        return HealthFinding("bad", f"{sentence}: it is getting worse")
    return HealthFinding("good" if last > first + better else "watch", sentence)


def failures(rows: Sequence[Row]) -> HealthFinding | None:
    """Episodes that failed in their environment; where groups have no advantage, these may be the cause."""
    count = recent(rows, "failed_episodes") * min(RECENT, len(rows))
    if not count > 0:
        return None
    sentence = f"{count:.0f} episodes failed in their environment in the last iterations"
    if recent(rows, "zero_advantage_groups") > ZERO_GROUPS.watch:
        return HealthFinding("bad", f"{sentence}: run `gagpo check` on it before anything else")
    return HealthFinding("watch", sentence)


def groups(rows: Sequence[Row]) -> HealthFinding | None:
    """Groups without an advantage. Failed episodes leave groups that end alike, which other tasks would not change."""
    finding = ZERO_GROUPS(rows)
    if finding is not None and finding.level == "bad" and recent(rows, "failed_episodes") > 0:
        return HealthFinding("watch", finding.sentence.partition(": ")[0])
    return finding


def counted(metric: str, event: str) -> Rule:
    """A rule about an event that should never happen, with its recent count."""

    def rule(rows: Sequence[Row]) -> HealthFinding | None:
        count = recent(rows, metric) * min(RECENT, len(rows))
        return HealthFinding("watch", f"{count:.0f} {event}") if count > 0 else None

    return rule


RULES: tuple[Rule, ...] = (
    groups,
    *LIMITS,
    mismatch,
    entropy,
    invalid,
    collapse,
    progress,
    failures,
    counted("skipped_steps", "steps were skipped in the last iterations: their loss was not finite"),
)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
