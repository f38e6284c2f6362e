"""Is this run learning, and if not, why: the numbers of its iterations in plain sentences.

Pure functions of the rows that training logs; nothing here reads a file or knows a model. A rule whose numbers were not
logged says nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gagpo.runs.register import of_world, worlds_of

Row = Mapping[str, float]
Level = Literal["good", "watch", "bad"]
RECENT = 5  # iterations that a sentence is about


@dataclass(frozen=True)
class HealthFinding:
    """One sentence. level: ``bad`` needs action, ``watch`` a look, ``good`` is as it should be."""

    level: Level
    name: str
    sentence: str


def health(rows: Sequence[Row]) -> list[HealthFinding]:
    """What the last iterations say, worst first, of the whole and of each world of several; empty without rows."""
    if not rows:
        return []
    found = [finding for rule in RULES for finding in [rule(rows)] if finding is not None]
    for world in worlds_of(rows[-1]):
        own = [_of_world(row, world) for row in rows]
        told = [finding for rule in RULES for finding in [rule(own)] if finding is not None]
        found += [replace(one, name=f"{world}: {one.name}", sentence=f"{world}: {one.sentence}") for one in told]
    order = {"bad": 0, "watch": 1, "good": 2}
    return sorted(found, key=lambda one: order[one.level])


def _of_world(row: Row, world: str) -> dict[str, float]:
    """What was logged of one world by itself, by the metrics' own names."""
    end = of_world("", world)
    return {name.removesuffix(end): value for name, value in row.items() if name.endswith(end)}


def health_line(rows: Sequence[Row]) -> str:
    """The worst finding in one line, for the trainer to print; empty when nothing is amiss."""
    amiss = [one for one in health(rows) if one.level != "good"]
    return "; ".join(one.sentence for one in amiss[:2])


def sentences(rows: Sequence[Row]) -> list[str]:
    """Every finding as a sentence, those that need action marked."""
    marks = {"bad": "Act: ", "watch": "Look: ", "good": ""}
    return [marks[one.level] + one.sentence for one in health(rows)]


def recent(rows: Sequence[Row], key: str, count: int = RECENT) -> float:
    """Mean of the last ``count`` rows that have a finite ``key``; NaN without any."""
    values = [float(row[key]) for row in rows[-count:] if key in row and math.isfinite(row[key])]
    return sum(values) / len(values) if values else math.nan


def answer_task_information(pairs: Sequence[tuple[str, str]]) -> float:
    """Mutual information between task and answer in nats, at least 0, from one (task, answer) pair per turn.

    The plug-in estimate less Miller and Madow's correction for small samples (Miller 1955), so that answers drawn from
    one pool for all tasks give about 0. One task alone has no information to carry: NaN would not be a number to log,
    so it is 0 then too.

    >>> answer_task_information([("a", "x")] * 50 + [("b", "y")] * 50)  # doctest: +ELLIPSIS
    0.68...
    """
    joint, tasks, answers = Counter(pairs), Counter(task for task, _ in pairs), Counter(answer for _, answer in pairs)
    if not pairs:
        return 0.0
    total = len(pairs)
    plain = sum(
        n / total * math.log(n * total / (tasks[task] * answers[answer])) for (task, answer), n in joint.items()
    )
    surplus = (len(joint) - len(tasks) - len(answers) + 1) / (2 * total)
    return max(0.0, plain - surplus)


# The rules ------------------------------------------------------------------------------------------------------------


def contrast(rows: Sequence[Row]) -> HealthFinding | None:
    """Groups whose tries all came out alike teach nothing to a method that compares them."""
    share = recent(rows, "zero_groups")
    if math.isnan(share):
        return None
    remedy = "harder tasks" if recent(rows, "success_rate") > 0.5 else "easier tasks, a better start or more tries"
    seen = f"{_percent(share)} of the groups teach nothing (their tries come out alike)"
    return _judged("contrast", seen, f"give it {remedy}", share > 0.7, share > 0.4)


def coverage(rows: Sequence[Row]) -> HealthFinding | None:
    """State groups of one turn have no value but their own: GAGPO, GiGPO and HGPO then fall back to the episode."""
    share = recent(rows, "coverage")
    if math.isnan(share):
        return None
    seen = f"{_percent(share)} of the turns meet a state that another try met too"
    return _judged("coverage", seen, "a coarser state key or more tries per task would help", share < 0.2, share < 0.5)


def aliasing(rows: Sequence[Row]) -> HealthFinding | None:
    """What counts as one state is several where the same action leads from it to different ones."""
    share = recent(rows, "aliasing")
    if math.isnan(share):
        return None
    seen = f"{_percent(share)} of the actions that were repeated in one state led elsewhere"
    advice = "the key is no state; set algorithm.credit.key=auto, or use a credit that follows no states"
    return _judged("aliasing", seen, advice, share > 0.2, share > 0.05)


def clipping(rows: Sequence[Row]) -> HealthFinding | None:
    """Far more than a few clipped ratios mean that the steps are too large, or the sampler is another policy."""
    share = recent(rows, "clip_fraction")
    if math.isnan(share):
        return None
    advice = "the learning rate is too high or the sampler strays"
    return _judged("clipping", f"{_percent(share)} of the ratios are clipped", advice, share > 0.3, share > 0.1)


def sampler_gap(rows: Sequence[Row]) -> HealthFinding | None:
    """The KL between the sampler's and the trainer's probabilities of one policy; healthy is below 2e-3."""
    gap = recent(rows, "mismatch_kl")
    if math.isnan(gap):
        return None
    advice = "they are not the same policy (weights, precision or template)"
    return _judged("sampler gap", f"sampler and trainer differ by a KL of {gap:.1e}", advice, gap > 0.02, gap > 0.002)


def entropy(rows: Sequence[Row]) -> HealthFinding | None:
    """A policy without entropy samples the same try again and again, and one whose entropy rises forgets."""
    first, last = recent(rows[:RECENT], "entropy"), recent(rows, "entropy")
    if math.isnan(last):
        return None
    seen = f"entropy is {last:.3f} per token"
    if last < 0.1 * first or last < 1e-3:
        return HealthFinding("bad", "entropy", f"{seen}, from {first:.3f}: all tries become the same one")
    if len(rows) > RECENT and last > 2 * first:
        return HealthFinding("watch", "entropy", f"{seen}, from {first:.3f}: answers become more random")
    return HealthFinding("good", "entropy", seen)


INVALID = {
    "invalid_unparsed": "without an action in the response: the prompt's style is not the format that the model writes",
    "invalid_cut": "cut off at the token limit: raise rollout.max_tokens or check that the vocabulary spells actions",
    "invalid_refused": "refused by the world: the model does not speak its language",
}
"""What leads to invalid actions, and what to do about it, by metric."""


def invalid(rows: Sequence[Row]) -> HealthFinding | None:
    """Turns without an action that the world accepts, and what most of them lack."""
    share = recent(rows, "invalid_rate")
    if math.isnan(share):
        return None
    sentence = f"{_percent(share)} of the actions are invalid"
    if share <= 0.2:
        return HealthFinding("good", "invalid actions", sentence)
    kinds = {name: found for name in INVALID if not math.isnan(found := recent(rows, name))}
    leading = max(kinds, key=lambda name: kinds[name], default=None)  # rows of older versions do not say
    why = ": the model does not speak the world's language" if leading is None else f", most {INVALID[leading]}"
    if leading == "invalid_refused" and recent(rows, "success_rate") > 0.5:  # who wins speaks it
        why = ", most refused by the world, and it wins all the same: they cost it turns"
        return HealthFinding("watch", "invalid actions", sentence + why)
    return HealthFinding("bad" if share > 0.5 else "watch", "invalid actions", sentence + why)


def truncated(rows: Sequence[Row]) -> HealthFinding | None:
    """Answers cut at the token limit, whether an action was found in them or not: it may be cut too."""
    share = recent(rows, "truncated_responses")
    if math.isnan(share):
        return None
    seen = f"{_percent(share)} of the answers are cut at the token limit"
    advice = "raise rollout.max_tokens, or check that the vocabulary spells actions in few tokens"
    return _judged("cut answers", seen, advice, share > 0.3, share > 0.05)


def collapse(rows: Sequence[Row]) -> HealthFinding | None:
    """Answers that no longer depend on the task: ``answer_task_information``, in nats, near nothing.

    A policy may earn more than before with one fixed routine; then what it says carries no information about the task
    it was given.
    """
    first, last = recent(rows[:RECENT], "answer_task_information"), recent(rows, "answer_task_information")
    if math.isnan(last):
        return None
    seen = f"answers carry {last:.2f} nats about their task"
    if last < 0.05 or (len(rows) > RECENT and last < 0.2 * first):
        return HealthFinding("bad", "answers", f"{seen}, from {first:.2f}: they no longer depend on it")
    return HealthFinding("good", "answers", seen)


def gradient(rows: Sequence[Row]) -> HealthFinding | None:
    """A gradient that jumps to ten times what nine iterations in ten had announces a step that breaks the model.

    Their median would not do: where most groups teach nothing it is next to 0, and every lesson a jump.
    """
    values = sorted(row["grad_norm"] for row in rows[:-1] if math.isfinite(row.get("grad_norm", math.nan)))
    last = rows[-1].get("grad_norm", math.nan)
    if len(values) + 1 < RECENT or not math.isfinite(last):
        return None
    usual = values[9 * len(values) // 10]
    if usual > 0 and last > 10 * usual:
        return HealthFinding("watch", "gradient", f"the gradient is {last / usual:.0f} times its usual size")
    return None


def progress(rows: Sequence[Row]) -> HealthFinding | None:
    """Success now against success at the start."""
    if len(rows) < 2 * RECENT:
        return None
    first, last = recent(rows[:RECENT], "success_rate"), recent(rows, "success_rate")
    if math.isnan(first) or math.isnan(last):
        return None
    seen = f"success in training went from {_percent(first)} to {_percent(last)}"
    if last < first - 0.1:
        return HealthFinding("bad", "progress", f"{seen}: it is getting worse")
    return HealthFinding("good" if last > first + 0.02 else "watch", "progress", seen)


def failures(rows: Sequence[Row]) -> HealthFinding | None:
    """Episodes whose environment broke for good."""
    return _counted("environments", rows, "failed_episodes", "episodes failed in their environment lately")


def skipped(rows: Sequence[Row]) -> HealthFinding | None:
    """Steps that were left out because loss or gradient was not finite."""
    return _counted("skipped", rows, "skipped_steps", "steps were skipped lately: their loss was not finite")


RULES: tuple[Callable[[Sequence[Row]], HealthFinding | None], ...] = (
    contrast,
    coverage,
    aliasing,
    clipping,
    sampler_gap,
    entropy,
    invalid,
    truncated,
    collapse,
    gradient,
    progress,
    failures,
    skipped,
)


def _judged(name: str, seen: str, advice: str, bad: bool, watch: bool) -> HealthFinding:
    """What was seen, with the advice where it is bad."""
    level: Level = "bad" if bad else "watch" if watch else "good"
    return HealthFinding(level, name, f"{seen}: {advice}" if bad else seen)


def _counted(name: str, rows: Sequence[Row], metric: str, seen: str) -> HealthFinding | None:
    """How often something happened that should never happen."""
    count = recent(rows, metric) * min(RECENT, len(rows))
    return None if math.isnan(count) or count == 0 else HealthFinding("watch", name, f"{count:.0f} {seen}")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
