"""A run as one HTML page: what was run, what it achieved with what certainty, how it went, what it looks like."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gagpo.eval.compare import Comparison, DifferentPanels, compare_results
from gagpo.eval.curves import is_share, plot_curves
from gagpo.eval.reading import BadResult, read_record, read_text
from gagpo.eval.report.charts import Series, line_chart, number
from gagpo.eval.report.dialogues import dialogue, sample_episodes
from gagpo.eval.report.page import page, section, table, text
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
    body = (
        f"<h1>{text(run.name, 200)}</h1>"
        + _headline(run)
        + section("Result", _results(run), "result")
        + section("Curves", _curves(run), "curves")
        + section("By task type", _task_types(run), "types")
        + section("Diagnostics", _diagnostics(run), "diagnostics")
        + section("Sample episodes", _samples(run), "episodes")
        + section("What was run", _what(run), "what")
    )
    target = folder / "report.html"
    part = folder / "report.html.part"
    part.write_text(page(f"{run.name}: report", body), encoding="utf-8")
    part.replace(target)
    return target


def before_and_after(run: Run, split: str) -> list[Evaluation]:
    """The evaluations a table of ``split`` sets side by side: before and after, or whichever there is."""
    of_split = [one for one in run.evaluations if one.split == split]
    ends = [one for one in of_split if one.stage in ("before", "after")]
    return ends or of_split[-1:]


# The result -----------------------------------------------------------------------------------------------------------


def _headline(run: Run) -> str:
    for split in run.splits():
        pair = before_and_after(run, split)
        if len(pair) == 2:
            before, after = (one.result.success.value for one in pair)
            compared = _compare(pair)
            certainty = ""
            if isinstance(compared, Comparison):
                rise = compared.differences[0].rise
                certainty = f" points [{percent(rise.low, True)}, {percent(rise.high, True)}]"
            return (
                f'<p class="headline">Success on {text(split, 80)}: {percent(before)} % before, '
                f"<b>{percent(after)} %</b> after training, {percent(after - before, True)}{certainty}.</p>"
            )
    return ""


def _compare(pair: list[Evaluation]) -> Comparison | str:
    try:
        return compare_results({one.label: one.result for one in pair})
    except DifferentPanels as error:
        return str(error)


def _results(run: Run) -> str:
    body = ""
    for split in _all_splits(run):
        shown = before_and_after(run, split)
        results = [one.result for one in shown]
        header = ["", *(text(one.stage or one.label, 60) for one in shown)]
        rows = [
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
        difference = _difference(_compare(shown)) if len(shown) == 2 else ""
        body += f"<div><h3>{text(split, 100)}</h3>{table(header, rows, _panel(results[-1]))}{difference}</div>"
    return f'<div class="splits">{body}</div>' if body else ""


def _difference(compared: Comparison | str) -> str:
    if isinstance(compared, str):
        return f'<p class="bad">Not comparable: {text(compared, 500)}.</p>'
    one = compared.differences[0]
    p = p_value(one.p)
    certain = text(p.replace("<", "p < ") if p.startswith("<") else f"p = {p}")
    return (
        f"<p>Rise: <b>{percent(one.rise.value, True)}</b> points [{percent(one.rise.low, True)}, "
        f"{percent(one.rise.high, True)}]; {one.gained} tasks better, {one.lost} worse; "
        f"{certain} ({one.test}, paired by task).</p>"
    )


def _panel(result: EvalResult) -> str:
    panel = result.panel
    tries = "once" if panel.tries == 1 else f"{panel.tries} times"
    kwargs = "".join(f", {key}={value!r}" for key, value in sorted(panel.kwargs.items()))
    return text(
        f"{panel.environment}{kwargs}; {panel.tasks} tasks, each {tries}; split hash {panel.split_hash}; "
        f"temperature {result.temperature:g}; {100 * result.level:g} % intervals"
    )


def _task_types(run: Run) -> str:
    body = ""
    for split in _all_splits(run):
        shown = before_and_after(run, split)
        kinds = sorted({kind for one in shown for kind in one.result.by_type})
        if not any(kinds):
            continue
        rows = []
        for kind in kinds:
            cells = [one.result.by_type.get(kind) for one in shown]
            rows.append(
                [
                    text(kind or "(none)", 100).replace("_", "_<wbr>"),
                    str(max(one.result.tasks_of_type(kind) for one in shown)),
                ]
                + [_rate(cell) if cell else "-" for cell in cells]
            )
        header = ["task type", "tasks", *(text(one.stage or one.label, 60) for one in shown)]
        body += f"<div><h3>{text(split, 100)}</h3>{table(header, rows)}</div>"
    return f'<div class="splits">{body}</div>' if body else ""


# How it went ----------------------------------------------------------------------------------------------------------


def _curves(run: Run) -> str:
    series = [Series("training", *run.series("success_rate"))] if run.metrics else []
    for split in run.splits():
        points = {one.iteration: one.result.success for one in run.evaluations if one.split == split and one.stage}
        known = sorted((at, rate) for at, rate in points.items() if at is not None)
        if known:
            ranges = [(rate.low, rate.high) for _, rate in known]
            series.append(Series(split, [at for at, _ in known], [rate.value for _, rate in known], ranges))
    return line_chart("success over iterations", series, share=True, large=True)


def _diagnostics(run: Run) -> str:
    if not run.metrics:
        return ""
    charts = "".join(
        line_chart(told if told == key else f"{told} ({key})", [Series("", *run.series(key))], share=is_share(key))
        for key, told in DIAGNOSTICS.items()
    )
    keys = sorted({key for row in run.metrics for key in row} - {"iteration"})
    rows = []
    for key in keys:
        values = run.series(key)[1]
        shown = (values[0], values[-1], math.fsum(values) / len(values), min(values), max(values))
        rows.append([text(key, 60), *(number(value, is_share(key)) for value in shown)])
    numbers = table(["metric", "first", "last", "mean", "lowest", "highest"], rows)
    broken = (
        f'<p class="bad">{run.broken_lines} unreadable lines of metrics.jsonl were skipped.</p>'
        if run.broken_lines
        else ""
    )
    return f'{broken}{_seconds(run)}<div class="charts">{charts}</div><h3>All numbers</h3>{numbers}'


def _seconds(run: Run) -> str:
    totals = {name: math.fsum(run.series(key)[1]) for key, name in SECONDS.items()}
    whole = math.fsum(totals.values())
    if whole <= 0 or min(totals.values()) < 0:
        return ""
    bar = "".join(
        f'<span class="c{i}" style="width:{100 * spent / whole:.2f}%"></span>'
        for i, spent in enumerate(totals.values())
    )
    key = "".join(
        f'<span class="name"><span class="key c{i}"></span>{name} {spent:,.0f} s ({100 * spent / whole:.0f} %)</span> '
        for i, (name, spent) in enumerate(totals.items())
    )
    return f'<p>Time in {len(run.metrics)} iterations: {whole:,.0f} s</p><div class="bar">{bar}</div><p>{key}</p>'


def _samples(run: Run) -> str:
    body = ""
    for path in _episode_files(run):
        records, complaint = sample_episodes(path)
        body += f"<h3>{text(path.stem, 100)}</h3>" + "".join(map(dialogue, records))
        if complaint:
            body += f'<p class="bad">{text(complaint, 400)}</p>'
    told = '<p class="soft">The first two successes and the first two failures, whole. Open one to read it.</p>'
    return told + body if body else ""


def _episode_files(run: Run) -> list[Path]:
    """The episodes behind the first table of results, or the first two files where no evaluation tells which."""
    folder = run.folder / "episodes"
    labels = [one.label for split in _all_splits(run)[:1] for one in before_and_after(run, split)]
    named = [folder / f"{label}.jsonl" for label in labels]
    return [path for path in named if path.exists()] or sorted(folder.glob("*.jsonl"))[:2]


# What was run ---------------------------------------------------------------------------------------------------------


def _what(run: Run) -> str:
    body = ""
    hashes = {one.result.panel.split: one.result.panel for one in run.evaluations}
    rows = [
        [text(split, 60), text(panel.split_hash, 80), str(panel.tasks), text(panel.environment, 100)]
        for split, panel in sorted(hashes.items())
    ]
    if rows:
        body += "<h3>Splits evaluated</h3>" + table(["split", "hash", "tasks", "environment"], rows)
    try:
        versions = read_record(run.folder / "versions.json")
    except BadResult as error:
        body += f'<p class="bad">{text(error, 400)}</p>'
    else:
        if versions:
            cells = [[text(key, 80), text(value, 400)] for key, value in sorted(_flat(versions).items())]
            body += "<h3>Versions</h3>" + table(["", ""], cells).replace("<td>", '<td class="text">')
    config = run.folder / "config.yaml"
    if config.exists():
        try:
            shown = PRIVATE.sub(r"\1 (not shown)", read_text(config))
            body += f"<h3>Settings, as resolved</h3><pre>{text(shown, 40_000)}</pre>"
        except BadResult as error:
            body += f'<p class="bad">{text(error, 400)}</p>'
    return body


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


def _rate(interval: Interval) -> str:
    return f"{_percent(interval.value)}<small>{percent(interval.low)} to {percent(interval.high)}</small>"


def _mean(interval: Interval) -> str:
    return f"{_plain(interval.value)}<small>{_plain(interval.low)} to {_plain(interval.high)}</small>"


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{percent(value)} %"


def _plain(value: float) -> str:
    return "-" if math.isnan(value) else number(value)


def _alarm(count: int) -> str:
    return f'<b class="bad">{count}</b>' if count else "0"
