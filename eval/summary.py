"""Results as text: rates, intervals, p-values, and the lines of a whole result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from gagpo.base.tables import WIDTH, Table, facts
from gagpo.envs.arguments import default_arguments
from gagpo.eval.at_k import Measure, measures_of, shown_ks
from gagpo.eval.results import EvalResult, joint_headline, whole, whole_reward
from gagpo.eval.statistics import Interval
from gagpo.runs.headline import Headline

MISSING = object()
"""The default of an argument without one."""


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


LARGEST, SMALLEST = 1e7, 1e-5
"""Rewards beyond these are written with an exponent."""


def reward_number(value: float, *interval: float, signed: bool = False) -> str:
    """A reward with three significant digits, or ``-`` for NaN. interval: other numbers that it is shown with.

    >>> reward_number(0.0125), reward_number(0.5), reward_number(-12.34), reward_number(31_500.0)
    ('0.0125', '0.500', '-12.3', '31,500')
    """
    if not math.isfinite(value):
        return "-"
    plus = "+" if signed else ""
    largest = max(abs(number) for number in (value, *interval) if math.isfinite(number))
    if largest >= LARGEST or 0 < largest < SMALLEST:
        return f"{value:{plus}.2e}"
    # Three digits of the largest number, so that all numbers of an interval have equally many decimals.
    digits = 3 if largest in (0.0, 1.0) else max(0, 2 - math.floor(math.log10(largest)))
    return f"{round(value, digits) + 0.0:{plus},.{digits}f}"  # the sum turns -0.0 into 0.0


def reward_with_interval(interval: Interval, signed: bool = False) -> str:
    """``0.0125 [0.0101, 0.0149]``."""
    numbers = (interval.value, interval.low, interval.high)
    value, low, high = [reward_number(number, *numbers, signed=signed) for number in numbers]
    return f"{value} [{low}, {high}]"


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


def _changed_arguments(environment: str, kwargs: Mapping[str, object]) -> list[str]:
    """The arguments that are not the environment's defaults, as they are typed: ``counts.train=600``."""
    defaults = default_arguments(environment)
    texts = []
    for name, value in sorted(kwargs.items()):
        default = defaults.get(name, MISSING)
        if isinstance(default, tuple):  # a result has lists
            default = list(default)
        if value == default:
            continue
        inner = value.items() if isinstance(value, dict) and value else None
        texts += [f"{name}.{key}={item}" for key, item in inner] if inner else [f"{name}={value}"]
    return texts


def task_set_facts(result: EvalResult, tries: str = "") -> list[tuple[str, str]]:
    """Environment, split and model of a result. tries: how often its tasks were run, if results differ in it."""
    task_set = result.task_set
    kwargs = ", ".join(_changed_arguments(task_set.environment, task_set.kwargs))
    if not tries:
        tries = "once each" if task_set.tries == 1 else f"{task_set.tries} times each"
    at = "" if result.temperature is None else f" at temperature {result.temperature:g}"
    clusters = f", in {result.clusters.counted} (intervals are over these)" if result.clusters else ""
    return [
        ("environment", task_set.environment + (f" ({kwargs})" if kwargs else "")),
        ("split", f"{task_set.split}, {task_set.tasks} tasks {tries}{clusters}, hash {task_set.split_hash}"),
        ("model", f"{result.model}{at}"),
    ]


MAX_CUT = 0.05
"""Share of responses cut at the token limit above which a higher limit is advised, as in a run's health."""


def _cut(result: EvalResult) -> str:
    """The share of responses cut at the token limit; empty if it rounds to 0."""
    share = percent(result.cut_rate)
    if share in ("-", "0.0"):
        return ""
    limit = result.task_set.conditions.get("max_tokens")
    advice = " (raise max_tokens)" if result.cut_rate > MAX_CUT else ""
    return f", {share} % of the answers cut at {limit} tokens{advice}"


def _withheld(result: EvalResult) -> str:
    """The number of turns without an answer of the model; empty without any."""
    return f"; not counted: {result.withheld} refused or filtered by the server" if result.withheld else ""


def whole_tables(task_sets: Mapping[str, Mapping[str, EvalResult]]) -> list[Table]:
    """Mean reward, success or both on each of several task sets and overall.

    One column for each result that all of the task sets have.
    """
    headline = joint_headline(result for results in task_sets.values() for result in results.values())
    tables = []
    if headline.reward:
        tables.append(_whole_table("mean reward", task_sets, _mean_reward_text, whole_reward, reward_with_interval))
    if headline.success:
        tables.append(_whole_table("success %", task_sets, _success_text, whole, with_interval))
    return tables


def _whole_table(
    name: str,
    task_sets: Mapping[str, Mapping[str, EvalResult]],
    cell: Callable[[EvalResult], str],
    overall: Callable[[Iterable[EvalResult]], Interval],
    text: Callable[[Interval], str],
) -> Table:
    """A number on each task set (``cell``), and ``overall`` as ``text`` in the last row."""
    columns = [
        stage for stage in next(iter(task_sets.values())) if all(stage in results for results in task_sets.values())
    ]
    rows = []
    for task_set, results in task_sets.items():
        row_results = [results[stage] for stage in columns]
        rows.append([task_set, str(row_results[0].task_set.tasks), *map(cell, row_results)])
    tasks = str(sum(int(row[1]) for row in rows))
    totals = [text(overall(results[stage] for results in task_sets.values())) for stage in columns]
    return Table([name, "tasks", *columns], [*rows, ["the whole", tasks, *totals]])


def _mean_reward_text(result: EvalResult) -> str:
    return reward_with_interval(result.mean_reward)


def _success_text(result: EvalResult) -> str:
    return with_interval(result.success)


def types_tables(results: Mapping[str, EvalResult]) -> list[Table]:
    """Mean reward, success or both by task type, one column per result; empty if the tasks have no types."""
    headline = joint_headline(results.values())
    name = "task type"
    tables = []
    if headline.reward:
        rewards = [
            {task_type: reward_with_interval(r) for task_type, r in x.reward_by_type.items()} for x in results.values()
        ]
        tables.append(_types_table(f"{name}, mean reward", results, rewards))
        name = f"{name}, success %"
    if headline.success:
        rates = [{task_type: with_interval(rate) for task_type, rate in x.by_type.items()} for x in results.values()]
        tables.append(_types_table(name, results, rates))
    return tables if any(task.task_type for result in results.values() for task in result.tasks) else []


def _types_table(name: str, results: Mapping[str, EvalResult], columns: Sequence[Mapping[str, str]]) -> Table:
    """columns: the cells of each result by task type."""
    task_types = sorted({task_type for column in columns for task_type in column})
    rows = [
        [
            task_type or "(none)",
            str(max(result.tasks_of_type(task_type) for result in results.values())),
            *(column.get(task_type, "-") for column in columns),
        ]
        for task_type in task_types
    ]
    return Table([name, "tasks", *results], rows)


def results_table(results: Mapping[str, EvalResult]) -> Table:
    """Mean reward, success or both, turns and failed episodes of several results."""
    headline = joint_headline(results.values())
    columns: dict[str, Callable[[EvalResult], str]] = {}
    if headline.reward:
        columns["mean reward"] = _mean_reward_text
    if headline.success:
        columns["success %"] = _success_text
    columns |= {"turns": lambda result: plain(result.mean_turns), "failed": lambda result: str(result.failed)}
    rows = [[label, *(text(result) for text in columns.values())] for label, result in results.items()]
    return Table(["result", *columns], rows)


def measured(interval: Interval, measure: Measure, signed: bool = False) -> str:
    """A measure of k episodes with its interval: in per cent, or a count with two decimals."""
    if measure.share:
        return with_interval(interval, signed)
    plus = "+" if signed else ""
    numbers = (interval.value, interval.low, interval.high)
    value, low, high = [f"{round(number, 2) + 0.0:{plus}.2f}" for number in numbers]  # the sum turns -0.0 into 0.0
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


def measured_facts(result: EvalResult, headline: Headline | None = None) -> list[tuple[str, str]]:
    """Success, reward, turns, invalid actions and failures.

    headline: which numbers come first; by default those of the result.
    """
    headline = headline or result.headline
    reward = result.mean_reward
    success = ("success %", f"{with_interval(result.success)} ({result.successes} of {result.episodes}, 95 %)")
    mean_reward = ("mean reward", f"{plain(reward.value, 3)} [{plain(reward.low, 3)}, {plain(reward.high, 3)}]")
    first = [success, mean_reward]
    if headline.reward:
        first = [("mean reward", f"{reward_with_interval(reward)} ({result.episodes} episodes, 95 %)")]
        first += [success] if headline.success else []
    return [
        *first,
        ("mean turns", plain(result.mean_turns)),
        ("invalid %", f"{percent(result.invalid_rate)} of turns{_cut(result)}{_withheld(result)}"),
        ("not ended", f"{result.truncated} truncated, {result.failed} failed, {result.restarts} restarts"),
    ]


def result_lines(result: EvalResult, width: int = WIDTH) -> list[str]:
    """The whole result: task set, what was measured, pass@k with several tries, task types."""
    lines = facts([*task_set_facts(result), *measured_facts(result)], width)
    several = at_k_table({"": result}, shown_ks({"": result}))
    name = "interval" if result.headline.reward else "success %"
    tables = [*(several.without("result").split(width) if several else []), *types_tables({name: result})]
    return [*lines, *(line for table in tables for line in ("", *table.lines(width)))]
