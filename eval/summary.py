"""Results as text: rates, intervals, p-values, and the lines of a whole result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gagpo.base.tables import WIDTH, Table, facts
from gagpo.eval.at_k import Measure, measures_of, shown_ks
from gagpo.eval.results import EvalResult, whole
from gagpo.eval.statistics import Interval


def percent(value: float, signed: bool = False) -> str:
    """A share in per cent with one decimal, or ``-`` for NaN.

    >>> percent(0.305), percent(0.04, signed=True), percent(float("nan"))
    ('30.5', '+4.0', '-')
    """
    if math.isnan(value):
        return "-"
    rounded = round(100 * value, 1) + 0.0  # the sum turns -0.0 into 0.0
    return f"{rounded:+.1f}" if signed else f"{rounded:.1f}"


def plain(value: float, digits: int = 1) -> str:
    """A number with ``digits`` decimals, or ``-`` for NaN."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def with_interval(interval: Interval, signed: bool = False) -> str:
    """``30.5 [21.6, 41.2]``, in per cent."""
    low, high = percent(interval.low, signed), percent(interval.high, signed)
    return f"{percent(interval.value, signed)} [{low}, {high}]"


def p_value(value: float) -> str:
    """Three decimals, or ``<.001``.

    >>> p_value(0.0312), p_value(1e-9)
    ('0.031', '<.001')
    """
    return "<.001" if value < 0.0005 else f"{value:.3f}"


def number(value: float, share: bool = False) -> str:
    """A number with three digits, in per cent if it is a share.

    >>> number(0.3051, share=True), number(12345.6), number(0.000312), number(2.0)
    ('30.5 %', '12,346', '0.000312', '2')
    """
    if share:
        return f"{100 * value:.1f} %"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def task_set_facts(result: EvalResult) -> list[tuple[str, str]]:
    """Environment, split and model of a result."""
    task_set = result.task_set
    kwargs = ", ".join(f"{key}={value!r}" for key, value in sorted(task_set.kwargs.items()))
    tries = "once each" if task_set.tries == 1 else f"{task_set.tries} times each"
    at = "" if result.temperature is None else f" at temperature {result.temperature:g}"
    return [
        ("environment", task_set.environment + (f" ({kwargs})" if kwargs else "")),
        ("split", f"{task_set.split}, {task_set.tasks} tasks {tries}, hash {task_set.split_hash}"),
        ("model", f"{result.model}{at}"),
    ]


def _cut(result: EvalResult) -> str:
    """The share of responses cut at the token limit; empty without any."""
    if not any(attempt.cut for attempt in result.every_try):
        return ""
    most = result.task_set.conditions.get("max_tokens")
    return f", {percent(result.cut_rate)} % of the answers cut at {most} tokens (raise max_tokens)"


def _withheld(result: EvalResult) -> str:
    """The number of turns without an answer of the model; empty without any."""
    return f"; not counted: {result.withheld} refused or filtered by the server" if result.withheld else ""


def whole_table(task_sets: Mapping[str, Mapping[str, EvalResult]]) -> Table:
    """The success on each of several task sets and overall, one column for each result that all of them have."""
    columns = [
        name for name in next(iter(task_sets.values())) if all(name in results for results in task_sets.values())
    ]
    rows = []
    for name, results in task_sets.items():
        row_results = [results[name] for name in columns]
        rows.append(
            [name, str(row_results[0].task_set.tasks), *(with_interval(result.success) for result in row_results)]
        )
    tasks = str(sum(int(row[1]) for row in rows))
    overall = (whole(results[name] for results in task_sets.values()) for name in columns)
    return Table(["success %", "tasks", *columns], [*rows, ["the whole", tasks, *map(with_interval, overall)]])


def types_table(results: Mapping[str, EvalResult]) -> Table | None:
    """The success by task type, one column per result; None if the tasks have no types."""
    columns = [result.by_type for result in results.values()]
    kinds = sorted({kind for column in columns for kind in column})
    rows = [
        [
            kind or "(none)",
            str(max(result.tasks_of_type(kind) for result in results.values())),
            *(with_interval(column[kind]) if kind in column else "-" for column in columns),
        ]
        for kind in kinds
    ]
    return Table(["task type", "tasks", *results], rows) if any(kinds) else None


def measured(interval: Interval, measure: Measure, signed: bool = False) -> str:
    """A measure of k episodes with its interval: in per cent, or a count with two decimals."""
    if measure.share:
        return with_interval(interval, signed)
    sign = "+" if signed else ""
    numbers = (interval.value, interval.low, interval.high)
    value, low, high = [f"{round(number, 2) + 0.0:{sign}.2f}" for number in numbers]  # the sum turns -0.0 into 0.0
    return f"{value} [{low}, {high}]"


def unit_name(measure: Measure) -> str:
    """The measure as the name of a column: ``pass@k %``."""
    return f"{measure.name} %" if measure.share else measure.name


def at_k_table(results: Mapping[str, EvalResult], ks: Sequence[int]) -> Table | None:
    """pass@k and the other measures of k episodes, one row per result and k; None without any k."""
    if not ks:
        return None
    measures = measures_of(results.values())
    rows = []
    for label, result in results.items():
        columns = [(measure, measure.intervals(result, ks)) for measure in measures]
        rows += [[label, str(k), *(measured(column[k], measure) for measure, column in columns)] for k in ks]
    return Table(["result", "k", *map(unit_name, measures)], rows)


def measured_facts(result: EvalResult) -> list[tuple[str, str]]:
    """Success, reward, turns, invalid actions and failures."""
    reward = result.mean_reward
    solved = f"({result.successes} of {result.episodes}, 95 %)"
    return [
        ("success %", f"{with_interval(result.success)} {solved}"),
        ("mean reward", f"{plain(reward.value, 3)} [{plain(reward.low, 3)}, {plain(reward.high, 3)}]"),
        ("mean turns", plain(result.mean_turns)),
        ("invalid %", f"{percent(result.invalid_rate)} of turns{_cut(result)}{_withheld(result)}"),
        ("not ended", f"{result.truncated} truncated, {result.failed} failed, {result.restarts} restarts"),
    ]


def result_lines(result: EvalResult, width: int = WIDTH) -> list[str]:
    """The whole result: task set, what was measured, pass@k with several tries, task types."""
    lines = facts([*task_set_facts(result), *measured_facts(result)], width)
    several = at_k_table({"": result}, shown_ks({"": result}))
    types = types_table({"success %": result})
    parts = [*(several.without("result").split(width) if several else []), *([types] if types else [])]
    return [*lines, *(line for part in parts for line in ("", *part.lines(width)))]
