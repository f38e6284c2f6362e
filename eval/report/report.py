"""A run as one HTML page: what was run, what it achieved with what certainty, how it went, what it looks like."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from gagpo.envs import durable
from gagpo.eval.compare import Comparison, DifferentPanels, compare_results
from gagpo.eval.curves import is_share, plot_curves
from gagpo.eval.metrics.meanings import meaning
from gagpo.eval.reading import BadResult, read_record, read_text
from gagpo.eval.report.charts import Series, line_chart, number
from gagpo.eval.report.dialogues import dialogue, sample_episodes
from gagpo.eval.report.page import render
from gagpo.eval.results import EvalResult
from gagpo.eval.runs import Evaluation, Run, load_run
from gagpo.eval.statistics import Interval
from gagpo.eval.tables import p_value, percent

# Metrics worth a picture, in reading order, with what they say.
DIAGNOSTICS = {
    "mean_turns": "turns per episode",
    "invalid_rate": "invalid actions, share of turns",
    "reward_mean": "reward per episode",
    "coverage": "turns whose state is shared in their group",
    "zero_groups": "groups without any advantage",
    "advantage_std": "spread of the advantages",
    "clip_fraction": "clipped, share of ratios",
    "kl": "divergence from the reference",
    "entropy": "entropy of the policy",
    "grad_norm": "gradient norm",
    "loss": "loss",
    "tokens_per_second": "tokens per second",
}
SECONDS = {"seconds_env": "environments", "seconds_generate": "generation", "seconds_train": "training"}
PRIVATE = re.compile(r"(?im)^(\s*(?:- )?[\w.\-\"']*(?:api_?key|secret|password|access_token)[\w\"']*\s*:)[^\n]+")


def write_report(run_folder: str | Path) -> Path:
    """Write ``report.html`` and ``curves.png`` into a run folder and return the page's path.

    The page needs no other file and no network; all that came from a model or a file is escaped. Parts for which the
    folder holds nothing are left out. Raises :class:`BadResult` for a folder that is no run or a broken evaluation.
    """
    folder = Path(run_folder)
    run = load_run(folder)
    try:
        plot_curves([folder], folder / "curves.png")
    except ValueError:  # a run of a single evaluation has no curve
        (folder / "curves.png").unlink(missing_ok=True)
    page = render(
        "report.html",
        title=f"{run.name}: report",
        name=run.name,
        headline=_headline(run),
        results=_results(run),
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
    """The evaluations a table of ``split`` sets side by side: before and after, or whichever there is."""
    of_split = [one for one in run.evaluations if one.split == split]
    ends = [one for one in of_split if one.stage in ("before", "after")]
    return ends or of_split[-1:]


# The result -----------------------------------------------------------------------------------------------------------


def _headline(run: Run) -> dict[str, str] | None:
    for split in run.splits():
        pair = before_and_after(run, split)
        if len(pair) == 2:
            before, after = (one.result.success.value for one in pair)
            compared = _compare(pair)
            certainty = ""
            if isinstance(compared, Comparison):
                rise = compared.differences[0].rise
                certainty = f" points [{percent(rise.low, True)}, {percent(rise.high, True)}]"
            return {
                "split": split,
                "before": percent(before),
                "after": percent(after),
                "rise": percent(after - before, True),
                "certainty": certainty,
            }
    return None


def _compare(pair: list[Evaluation]) -> Comparison | str:
    try:
        return compare_results({one.label: one.result for one in pair})
    except DifferentPanels as error:
        return str(error)


def _results(run: Run) -> list[dict[str, Any]]:
    return [_result(split, before_and_after(run, split)) for split in _all_splits(run)]


def _result(split: str, shown: list[Evaluation]) -> dict[str, Any]:
    """One table of a split: a column for each evaluation, and how they compare."""
    results = [one.result for one in shown]
    rows: list[list[Any]] = [
        ["success", *(_rate(result.success) for result in results)],
        ["mean reward", *(_mean(result.mean_reward) for result in results)],
        ["mean turns", *(_plain(result.mean_turns) for result in results)],
        ["invalid actions, of turns", *(_percent(result.invalid_rate) for result in results)],
        ["solved", *(f"{result.successes} of {result.episodes}" for result in results)],
        ["stopped at the limit", *(str(result.truncated) for result in results)],
        ["failed (count as no success)", *(_alarm(result.failed) for result in results)],
        ["restarted", *(_alarm(result.restarts) for result in results)],
    ]
    for k in results[-1].pass_at_k:
        rows.append([f"pass@{k}", *(_percent(result.pass_at_k.get(k, math.nan)) for result in results)])
    for k in results[-1].majority_at_k:
        rows.append([f"majority@{k}", *(_percent(result.majority_at_k.get(k, math.nan)) for result in results)])
    compared = _compare(shown) if len(shown) == 2 else None
    return {
        "split": split,
        "header": ["", *(one.stage or one.label for one in shown)],
        "rows": rows,
        "panel": _panel(results[-1]),
        "complaint": compared if isinstance(compared, str) else "",
        "rise": _rise(compared) if isinstance(compared, Comparison) else None,
    }


def _rise(compared: Comparison) -> dict[str, Any]:
    one = compared.differences[0]
    p = p_value(one.p)
    return {
        "value": percent(one.rise.value, True),
        "low": percent(one.rise.low, True),
        "high": percent(one.rise.high, True),
        "gained": one.gained,
        "lost": one.lost,
        "p": p.replace("<", "p < ") if p.startswith("<") else f"p = {p}",
        "test": one.test,
    }


def _panel(result: EvalResult) -> str:
    panel = result.panel
    tries = "once" if panel.tries == 1 else f"{panel.tries} times"
    kwargs = "".join(f", {key}={value!r}" for key, value in sorted(panel.kwargs.items()))
    temperature = "" if result.temperature is None else f"temperature {result.temperature:g}; "
    return (
        f"{panel.environment}{kwargs}; {panel.tasks} tasks, each {tries}; split hash {panel.split_hash}; "
        f"{temperature}{100 * result.level:g} % intervals"
    )


def _task_types(run: Run) -> list[dict[str, Any]]:
    found = []
    for split in _all_splits(run):
        shown = before_and_after(run, split)
        kinds = sorted({kind for one in shown for kind in one.result.by_type})
        if not any(kinds):
            continue
        rows: list[list[Any]] = []
        for kind in kinds:
            cells = [one.result.by_type.get(kind) for one in shown]
            count = max(one.result.tasks_of_type(kind) for one in shown)
            rows.append([kind or "(none)", str(count), *(_rate(cell) if cell else "-" for cell in cells)])
        found.append(
            {"split": split, "header": ["task type", "tasks", *(one.stage or one.label for one in shown)], "rows": rows}
        )
    return found


# How it went ----------------------------------------------------------------------------------------------------------


def _curves(run: Run) -> Markup:
    series = [Series("training", *run.series("success_rate"))] if run.metrics else []
    for split in run.splits():
        points = {one.iteration: one.result.success for one in run.evaluations if one.split == split and one.stage}
        known = sorted((at, rate) for at, rate in points.items() if at is not None)
        if known:
            ranges = [(rate.low, rate.high) for _, rate in known]
            series.append(Series(split, [at for at, _ in known], [rate.value for _, rate in known], ranges))
    return line_chart("success over iterations", series, share=True, large=True)


def _charts(run: Run) -> list[Markup]:
    if not run.metrics:
        return []
    return [
        line_chart(told if told == key else f"{told} ({key})", [Series("", *run.series(key))], share=is_share(key))
        for key, told in DIAGNOSTICS.items()
    ]


def _numbers(run: Run) -> list[list[str]]:
    rows = []
    for key in sorted({key for row in run.metrics for key in row} - {"iteration"}):
        values = run.series(key)[1]
        shown = (values[0], values[-1], math.fsum(values) / len(values), min(values), max(values))
        rows.append([key, *(number(value, is_share(key)) for value in shown), meaning(key)])
    return rows


def _seconds(run: Run) -> dict[str, Any] | None:
    totals = {name: math.fsum(run.series(key)[1]) for key, name in SECONDS.items()}
    whole = math.fsum(totals.values())
    if whole <= 0 or min(totals.values()) < 0:
        return None
    parts = [
        {"width": f"{100 * spent / whole:.2f}", "told": f"{name} {spent:,.0f} s ({100 * spent / whole:.0f} %)"}
        for name, spent in totals.items()
    ]
    return {"iterations": len(run.metrics), "whole": f"{whole:,.0f}", "parts": parts}


def _samples(run: Run) -> list[dict[str, Any]]:
    found = []
    for path in _episode_files(run):
        records, complaint = sample_episodes(path)
        found.append({"name": path.stem, "dialogues": list(map(dialogue, records)), "complaint": complaint})
    return found


def _episode_files(run: Run) -> list[Path]:
    """The episodes behind the first table of results, or the first two files where no evaluation tells which."""
    folder = run.folder / "episodes"
    labels = [one.label for split in _all_splits(run)[:1] for one in before_and_after(run, split)]
    named = [folder / f"{label}.jsonl" for label in labels]
    return [path for path in named if path.exists()] or sorted(folder.glob("*.jsonl"))[:2]


# What was run ---------------------------------------------------------------------------------------------------------


def _what(run: Run) -> dict[str, Any]:
    panels = {one.result.panel.split: one.result.panel for one in run.evaluations}
    complaints = []
    versions: list[list[str]] = []
    settings = ""
    try:
        flat = _flat(read_record(run.folder / "versions.json"))
        versions = [[key, value] for key, value in sorted(flat.items())]
    except BadResult as error:
        complaints.append(str(error))
    try:
        if (run.folder / "config.yaml").exists():
            settings = PRIVATE.sub(r"\1 (not shown)", read_text(run.folder / "config.yaml"))
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


def _flat(record: Mapping[str, Any], above: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in record.items():
        name = f"{above}{key}"
        if isinstance(value, dict):
            flat |= _flat(value, f"{name}.")
        else:
            flat[name] = value if isinstance(value, str) else json.dumps(value)
    return flat


# Cells ----------------------------------------------------------------------------------------------------------------


def _all_splits(run: Run) -> list[str]:
    return list(dict.fromkeys([*run.splits(), *(one.split for one in run.evaluations)]))


def _rate(interval: Interval) -> dict[str, str]:
    return {"text": _percent(interval.value), "range": f"{percent(interval.low)} to {percent(interval.high)}"}


def _mean(interval: Interval) -> dict[str, str]:
    return {"text": _plain(interval.value), "range": f"{_plain(interval.low)} to {_plain(interval.high)}"}


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{percent(value)} %"


def _plain(value: float) -> str:
    return "-" if math.isnan(value) else number(value)


def _alarm(count: int) -> str | dict[str, Any]:
    return {"text": str(count), "alarm": True} if count else "0"
