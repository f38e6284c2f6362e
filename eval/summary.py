"""Results as text: facts and tables of measures, and the lines of a whole result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gagpo.base.tables import WIDTH, Table, facts
from gagpo.envs.arguments import default_arguments
from gagpo.eval.measures import REWARD, SUCCESS, Measure
from gagpo.eval.results import EvalResult, measures_of_k, shown_measures, whole
from gagpo.eval.units import PERCENT, REWARDS, percent, plain

MISSING = object()
"""The default of an argument without one."""


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
    first = next(iter(task_sets.values()))
    columns = [stage for stage in first if all(stage in results for results in task_sets.values())]
    tables = []
    for measure in shown_measures(result for results in task_sets.values() for result in results.values()):
        rows = []
        for task_set, results in task_sets.items():
            cells = [measure.unit.interval(results[stage].estimate(measure)) for stage in columns]
            rows.append([task_set, str(results[columns[0]].task_set.tasks), *cells])
        tasks = str(sum(int(row[1]) for row in rows))
        overall = [whole((results[stage] for results in task_sets.values()), measure) for stage in columns]
        rows.append(["the whole", tasks, *map(measure.unit.interval, overall)])
        tables.append(Table([measure.title, "tasks", *columns], rows))
    return tables


def types_tables(results: Mapping[str, EvalResult]) -> list[Table]:
    """Mean reward, success or both by task type, one column per result; empty if the tasks have no types."""
    task_types = sorted({task.task_type for result in results.values() for task in result.tasks})
    if not any(task_types):
        return []
    measures = shown_measures(results.values())
    tables = []
    for measure in measures:
        columns = [result.estimates_by_type(measure) for result in results.values()]
        rows = []
        for task_type in task_types:
            cells = [measure.unit.interval(of[task_type]) if task_type in of else "-" for of in columns]
            tasks = max(result.tasks_of_type(task_type) for result in results.values())
            rows.append([task_type or "(none)", str(tasks), *cells])
        name = "task type" if measures == [SUCCESS] else f"task type, {measure.title}"
        tables.append(Table([name, "tasks", *results], rows))
    return tables


def results_table(results: Mapping[str, EvalResult]) -> Table:
    """Mean reward, success or both, turns and failed episodes of several results."""
    measures = shown_measures(results.values())
    rows = []
    for label, result in results.items():
        cells = [measure.unit.interval(result.estimate(measure)) for measure in measures]
        rows.append([label, *cells, plain(result.mean_turns), str(result.failed)])
    return Table(["result", *(measure.title for measure in measures), "turns", "failed"], rows)


def at_k_table(results: Mapping[str, EvalResult], measures: Sequence[Measure]) -> Table | None:
    """Measures of k episodes, one row per result and k; None without any."""
    if not measures:
        return None
    header = list(dict.fromkeys(measure.title for measure in measures))
    rows = []
    for label, result in results.items():
        for k in dict.fromkeys(measure.k for measure in measures):
            of_k = [measure for measure in measures if measure.k == k]
            rows.append([label, str(k), *(measure.unit.interval(result.estimate(measure)) for measure in of_k)])
    return Table(["result", "k", *header], rows)


def measured_facts(result: EvalResult, measures: Sequence[Measure] | None = None) -> list[tuple[str, str]]:
    """Success, reward, turns, invalid actions and failures.

    measures: which come first; by default those of the result.
    """
    measures = shown_measures([result]) if measures is None else measures
    reward = result.mean_reward
    texts = {
        REWARD: f"{REWARDS.interval(reward)} ({result.episodes} episodes, 95 %)",
        SUCCESS: f"{PERCENT.interval(result.success)} ({result.successes} of {result.episodes}, 95 %)",
    }
    first = [(measure.title, texts[measure]) for measure in measures]
    if REWARD not in measures:
        first.append((REWARD.title, f"{plain(reward.value, 3)} [{plain(reward.low, 3)}, {plain(reward.high, 3)}]"))
    return [
        *first,
        ("mean turns", plain(result.mean_turns)),
        ("invalid %", f"{percent(result.invalid_rate)} of turns{_cut(result)}{_withheld(result)}"),
        ("not ended", f"{result.truncated} truncated, {result.failed} failed, {result.restarts} restarts"),
    ]


def result_lines(result: EvalResult, width: int = WIDTH) -> list[str]:
    """The whole result: task set, what was measured, pass@k with several tries, task types."""
    lines = facts([*task_set_facts(result), *measured_facts(result)], width)
    several = at_k_table({"": result}, measures_of_k({"": result}))
    name = "success %" if shown_measures([result]) == [SUCCESS] else "interval"
    tables = [*(several.without("result").split(width) if several else []), *types_tables({name: result})]
    return [*lines, *(line for table in tables for line in ("", *table.lines(width)))]
