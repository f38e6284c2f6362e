"""A run as one HTML page: settings, results with intervals, curves, diagnostics and sample episodes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from gagpo.agents.episodes import read_episodes
from gagpo.base import durable
from gagpo.base.core_schema import write_yaml
from gagpo.eval.compare import Comparison, DifferentPanels, compare_results
from gagpo.eval.curves import plot_curves
from gagpo.eval.report.charts import Series, line_chart
from gagpo.eval.report.page import render
from gagpo.eval.results import EvalResult, whole
from gagpo.eval.runs import Evaluation, Run, load_run, shown_settings
from gagpo.eval.statistics import Interval
from gagpo.eval.summary import number, p_value, percent, with_interval
from gagpo.runs.reading import BadResult, read_record
from gagpo.runs.register import Display, find, of_environment, shown_in

STAGES = ("before", "after", "average")
"""The columns of a table: before training, after it, and averaged weights."""

Cell = str | dict[str, str]  # text, or text with a range or an alarm


def write_report(run_folder: str | Path) -> Path:
    """Write ``report.html`` and ``curves.png`` into a run folder; return the path of the page.

    The page needs no other file and no network, and escapes all text from models and files.

    Raises:
        BadResult: the folder is not a run, or an evaluation in it is broken.
    """
    folder = Path(run_folder)
    run = load_run(folder)
    try:
        plot_curves({run.label: [run]}, folder / "curves.png")
    except ValueError:  # there is no curve with a single evaluation
        (folder / "curves.png").unlink(missing_ok=True)
    page = render(
        "report.html",
        title=f"{run.name}: report",
        name=run.name,
        headline=_headline(run),
        results=[_result(split, before_and_after(run, split)) for split in _all_splits(run)],
        whole=_whole(run),
        curve=_curves(run),
        types=_task_types(run),
        broken_lines=run.broken_lines,
        seconds=_seconds(run),
        diagnostics=_charts(run),
        numbers=_numbers(run),
        samples=_samples(run),
        **_what(run),
    )
    target = folder / "report.html"
    durable.write_text(target, page)
    return target


def before_and_after(run: Run, split: str) -> list[Evaluation]:
    """The evaluations in the table of ``split``: before, after and average, else the last."""
    of_split = [one for one in run.evaluations if one.split == split]
    ends = [one for one in of_split if one.stage in STAGES]
    return ends or of_split[-1:]


# The result -----------------------------------------------------------------------------------------------------------


def _whole(run: Run) -> dict[str, object] | None:
    """The success before and after training on each of several panels and overall."""
    found = {split: {one.stage: one.result for one in before_and_after(run, split)} for split in _all_splits(run)}
    panels = {split: results for split, results in found.items() if {"before", "after"} <= results.keys()}
    if not run.envs or len(panels) < 2:
        return None
    stages = [stage for stage in STAGES if all(stage in results for results in panels.values())]
    rows: list[list[Cell]] = [
        [split, *(_rate(results[stage].success) for stage in stages)] for split, results in panels.items()
    ]
    together = [whole([results[stage] for results in panels.values()]) for stage in stages]
    return {"header": ["success", *stages], "rows": [*rows, ["the whole", *map(_rate, together)]]}


def _headline(run: Run) -> dict[str, str] | None:
    """Numbers of the first split that was evaluated before and after training."""
    for split in run.splits():
        found = {one.stage: one for one in before_and_after(run, split)}
        if {"before", "after"} <= found.keys():
            break
    else:
        return None
    before, after = found["before"].result.success.value, found["after"].result.success.value
    compared = _compare([found["before"], found["after"]])
    rise = _points(compared.differences[0].rise) if isinstance(compared, Comparison) else percent(after - before, True)
    return {
        "split": split,
        "before": percent(before),
        "after": percent(after),
        "rise": rise,
        "average": with_interval(found["average"].result.success) if "average" in found else "",
    }


def _points(rise: Interval) -> str:
    """``+38.3 points [+20.4, +53.0]``."""
    return f"{percent(rise.value, True)} points [{percent(rise.low, True)}, {percent(rise.high, True)}]"


def _compare(pair: Sequence[Evaluation]) -> Comparison | str:
    try:
        return compare_results({one.stage or one.label: one.result for one in pair})
    except DifferentPanels as error:
        return str(error)


def _result(split: str, shown: list[Evaluation]) -> dict[str, object]:
    """The table of a split, one column per evaluation, and the comparison."""
    results = [one.result for one in shown]
    rows: list[list[Cell]] = [
        ["success", *(_rate(result.success) for result in results)],
        ["mean reward", *(_mean(result.mean_reward) for result in results)],
        ["mean turns", *(_plain(result.mean_turns) for result in results)],
        ["invalid actions, of turns", *(_percent(result.invalid_rate) for result in results)],
        ["solved", *(f"{result.successes} of {result.episodes}" for result in results)],
        ["stopped at the limit", *(str(result.truncated) for result in results)],
        ["failed (count as no success)", *(_alarm(result.failed) for result in results)],
        ["restarted", *(_alarm(result.restarts) for result in results)],
    ]
    for name in ("pass_at_k", "majority_at_k"):
        columns: list[dict[int, float]] = [getattr(result, name) for result in results]
        title = name.replace("_at_k", "@")
        rows += [[f"{title}{k}", *(_percent(column.get(k, math.nan)) for column in columns)] for k in columns[-1]]
    compared = _compare(shown) if len(shown) > 1 else None
    return {
        "split": split,
        "header": ["", *(one.stage or one.label for one in shown)],
        "rows": rows,
        "panel": _panel(results[-1]),
        "complaint": compared if isinstance(compared, str) else "",
        "rises": _rises(compared) if isinstance(compared, Comparison) else [],
        "baseline": shown[0].stage or shown[0].label,
    }


def _rises(compared: Comparison) -> list[dict[str, str]]:
    """Label and comparison of each result but the first."""
    corrected = ", Holm's correction" if len(compared.differences) > 1 else ""
    texts = [
        f"{_points(one.rise)}; {one.gained} tasks better, {one.lost} worse; "
        f"p = {p_value(one.p_holm)} ({one.test}{corrected}, paired by task)".replace("= <", "<")
        for one in compared.differences
    ]
    return [{"label": one.label, "text": text} for one, text in zip(compared.differences, texts, strict=True)]


def _panel(result: EvalResult) -> str:
    panel = result.panel
    tries = "once" if panel.tries == 1 else f"{panel.tries} times"
    kwargs = "".join(f", {key}={value!r}" for key, value in sorted(panel.kwargs.items()))
    temperature = "" if result.temperature is None else f"temperature {result.temperature:g}; "
    return (
        f"{panel.environment}{kwargs}; {panel.tasks} tasks, each {tries}; split hash {panel.split_hash}; "
        f"{temperature}{100 * result.level:g} % intervals"
    )


def _task_types(run: Run) -> list[dict[str, object]]:
    """One table per split whose tasks have types."""
    tables = (_types_of(split, before_and_after(run, split)) for split in _all_splits(run))
    return [table for table in tables if table]


def _types_of(split: str, shown: list[Evaluation]) -> dict[str, object] | None:
    columns = [one.result.by_type for one in shown]
    kinds = sorted({kind for column in columns for kind in column})
    rows = [
        [
            kind or "(none)",
            str(max(one.result.tasks_of_type(kind) for one in shown)),
            *(_rate(column[kind]) if kind in column else "-" for column in columns),
        ]
        for kind in kinds
    ]
    header = ["task type", "tasks", *(one.stage or one.label for one in shown)]
    return {"split": split, "header": header, "rows": rows} if any(kinds) else None


# How it went ----------------------------------------------------------------------------------------------------------


def _curves(run: Run) -> Markup:
    series = [Series("training", *run.series("success_rate"))] if run.metrics else []
    for split in run.splits():
        # The last evaluation of an iteration counts.
        points = {one.iteration: one.result.success for one in run.trained(split)}
        known = sorted((at, rate) for at, rate in points.items() if at is not None)
        if known:
            ranges = [(rate.low, rate.high) for _, rate in known]
            series.append(Series(split, [at for at, _ in known], [rate.value for _, rate in known], ranges))
    chart = line_chart("success over iterations", series, share=True, large=True)
    envs = [Series(env, *run.series(of_environment("success_rate", env))) for env in run.envs]
    return chart + line_chart("success in training, by environment", envs, share=True, large=True) if envs else chart


def _charts(run: Run) -> list[Markup]:
    if not run.metrics:
        return []
    return [
        line_chart(
            metric.caption if metric.caption == metric.name else f"{metric.caption} ({metric.name})",
            [
                Series("the whole" if run.envs else "", *run.series(metric.name)),
                *(
                    Series(env, *run.series(of_environment(metric.name, env)))
                    for env in run.envs
                    if run.series(of_environment(metric.name, env))[0]
                ),
            ],
            share=metric.share,
        )
        for metric in shown_in(Display.REPORT)
    ]


def _numbers(run: Run) -> list[list[str]]:
    rows = []
    for key in sorted({key for row in run.metrics for key in row} - {"iteration"}):
        metric, values = find(key), run.series(key)[1]
        shown = (values[0], values[-1], math.fsum(values) / len(values), min(values), max(values))
        rows.append([key, *(number(value, metric.share) for value in shown), metric.hint])
    return rows


def _seconds(run: Run) -> dict[str, object] | None:
    totals = {part.caption: math.fsum(run.series(part.name)[1]) for part in shown_in(Display.TIME)}
    whole = math.fsum(totals.values())
    if whole <= 0 or min(totals.values()) < 0:
        return None
    parts = [
        {"width": f"{100 * spent / whole:.2f}", "text": f"{name} {spent:,.0f} s ({100 * spent / whole:.0f} %)"}
        for name, spent in totals.items()
    ]
    return {"iterations": len(run.metrics), "whole": f"{whole:,.0f}", "parts": parts}


def _samples(run: Run) -> list[dict[str, object]]:
    samples = [(path.stem, *sample_episodes(path)) for path in _episode_files(run)]
    return [
        {"name": name, "dialogues": list(map(dialogue, records)), "complaint": complaint}
        for name, records, complaint in samples
    ]


def _episode_files(run: Run) -> list[Path]:
    """The episodes of the first table of results, else the first two files."""
    folder = run.folder / "episodes"
    labels = [one.label for split in _all_splits(run)[:1] for one in before_and_after(run, split)]
    named = [folder / f"{label}.jsonl" for label in labels]
    return [path for path in named if path.exists()] or sorted(folder.glob("*.jsonl"))[:2]


# What was run ---------------------------------------------------------------------------------------------------------


def _what(run: Run) -> dict[str, object]:
    """Splits, versions and settings, and an error for each that cannot be read."""
    panels = {one.split: one.result.panel for one in run.evaluations}
    complaints: list[str] = []
    versions: list[list[str]] = []
    settings = ""
    try:
        versions = [[key, value] for key, value in sorted(_flat(read_record(run.folder / "versions.json")).items())]
    except BadResult as error:
        complaints.append(str(error))
    try:
        if (run.folder / "config.yaml").exists():
            settings = write_yaml(shown_settings(run.folder / "config.yaml"))
    except BadResult as error:
        complaints.append(str(error))
    return {
        "splits": [
            [split, panel.split_hash, str(panel.tasks), panel.environment] for split, panel in sorted(panels.items())
        ],
        "complaints": complaints,
        "versions": versions,
        "settings": settings,
    }


def _flat(record: Mapping[str, object], above: str = "") -> dict[str, str]:
    """Nested objects as one with dotted keys."""
    flat: dict[str, str] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{above}{key}.")
        else:
            flat[above + key] = value if isinstance(value, str) else json.dumps(value)
    return flat


# Cells ----------------------------------------------------------------------------------------------------------------


def _all_splits(run: Run) -> list[str]:
    return list(dict.fromkeys([*run.splits(), *(one.split for one in run.evaluations)]))


def _rate(interval: Interval) -> Cell:
    return {"text": _percent(interval.value), "range": f"{percent(interval.low)} to {percent(interval.high)}"}


def _mean(interval: Interval) -> Cell:
    return {"text": _plain(interval.value), "range": f"{_plain(interval.low)} to {_plain(interval.high)}"}


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{percent(value)} %"


def _plain(value: float) -> str:
    return "-" if math.isnan(value) else number(value)


def _alarm(count: int) -> Cell:
    return {"text": str(count), "alarm": "alarm"} if count else "0"


MOST_TURNS = 100  # turns shown of one episode


def sample_episodes(path: Path, each: int = 2) -> tuple[list[dict[str, Any]], str]:
    """The first ``each`` successes and failures of an episodes file, and an error if a line is broken."""
    wins: list[dict[str, Any]] = []
    losses: list[dict[str, Any]] = []
    try:
        for record in read_episodes(path):
            if not isinstance(record, dict):
                return wins + losses, f"{path.name}: a line holds no JSON object"
            group = wins if record.get("success") is True and record.get("outcome") != "failed" else losses
            if len(group) < each:
                group.append(record)
            if len(wins) == len(losses) == each:
                break
    except (ValueError, RecursionError) as error:
        return wins + losses, f"{path.name} is broken: {str(error)[:200]}"
    except OSError as error:
        return [], f"{path.name} cannot be read: {error.strerror}"
    return wins + losses, ""


def dialogue(record: Mapping[str, Any]) -> Markup:
    """One episode record as HTML. A missing or wrongly typed part is never an error."""
    listed = record.get("turns")
    turns = [turn for turn in listed if isinstance(turn, dict)] if isinstance(listed, list) else []
    won = record.get("success") is True and record.get("outcome") != "failed"
    outcome = record.get("outcome")
    return render(
        "dialogue.html",
        won=won,
        ended="" if won or outcome == "terminated" else str(outcome),
        count=len(turns),
        task=record.get("task", "unnamed task"),
        kind=record.get("task_type") or "",
        turns=turns[:MOST_TURNS],
        more=max(0, len(turns) - MOST_TURNS),
    )
