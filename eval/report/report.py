"""A run as one HTML page: results with intervals, curves, health, numbers, sample episodes and settings."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from pathlib import Path

from gagpo.base import durable
from gagpo.base.core_schema import write_yaml
from gagpo.base.errors import InvalidArgument
from gagpo.base.tables import Table
from gagpo.eval.at_k import shown_ks
from gagpo.eval.compare import Comparison, DifferentPanels, compare_results
from gagpo.eval.curves import plot_curves
from gagpo.eval.episode_files import EpisodeRecord, episode_files, read_episode_file
from gagpo.eval.health import sentences
from gagpo.eval.report.page import render
from gagpo.eval.runs import Evaluation, Run, load_run, shown_settings
from gagpo.eval.summary import (
    at_k_table,
    measured_facts,
    number,
    panel_facts,
    percent,
    types_table,
    whole_table,
    with_interval,
)
from gagpo.runs.reading import BadResult
from gagpo.runs.register import find
from gagpo.runs.run_folder import RunFolder

STAGES = ("before", "after", "average")
"""The columns of a table: before training, after it, and averaged weights."""


def write_report(run_folder: str | Path, pass_at: Sequence[int] | None = None) -> Path:
    """Write ``report.html`` and ``curves.png`` into a run folder; return the path of the page.

    The page needs no other file and no network, and escapes all text from models and files.

    pass_at: the k of pass@k; by default those of :func:`gagpo.eval.at_k.shown_ks`.

    Raises:
        InvalidArgument: an evaluation has fewer episodes per task than a k.
        BadResult: the folder is not a run, or an evaluation in it is broken.
    """
    folder = Path(run_folder)
    run = load_run(folder)
    splits = list(dict.fromkeys([*run.splits(), *(one.split for one in run.evaluations)]))
    shown = {split: before_and_after(run, split) for split in splits}
    results = [_result(split, evaluations, pass_at) for split, evaluations in shown.items()]
    page = render(
        "report.html",
        name=run.name,
        headline=next((one for one in results if one["rise"]), None),
        results=results,
        whole=_whole(run, shown),
        curves=_curves(run, folder / "curves.png"),
        broken_lines=run.broken_lines,
        health=sentences(run.metrics),
        seconds=run.seconds(),
        numbers=_numbers(run),
        samples=[_samples(path) for path in _episode_files(folder, next(iter(shown.values()), []))],
        **_what(folder),
    )
    target = folder / "report.html"
    durable.write_text(target, page)
    return target


def before_and_after(run: Run, split: str) -> list[Evaluation]:
    """The evaluations in the table of ``split``: before, after and average, else the last."""
    of_split = [one for one in run.evaluations if one.split == split]
    ends = [one for one in of_split if one.stage in STAGES]
    return ends or of_split[-1:]


def _result(split: str, shown: Sequence[Evaluation], pass_at: Sequence[int] | None) -> dict[str, object]:
    """The tables of a split, one column per evaluation, and the comparison with the first."""
    results = {one.stage or one.label: one.result for one in shown}
    measured = zip(*(measured_facts(result) for result in results.values()), strict=False)
    compared: Comparison | None = None
    complaint = ""
    try:
        compared = compare_results(results, pass_at) if len(results) > 1 else None
    except DifferentPanels as error:
        complaint = str(error)
    ends = compared is not None and {"before", "after"} <= results.keys()
    return {
        "split": split,
        "panel": "; ".join(text for _, text in panel_facts(shown[-1].result)[:2]),
        "table": Table(["", *results], [[row[0][0], *(text for _, text in row)] for row in measured]),
        "at_k": at_k_table(results, shown_ks(results, pass_at)),
        "at_k_differences": compared.at_k_difference_tables() if compared else [],
        "types": types_table(results),
        "complaint": complaint,
        "differences": compared.difference_table() if compared else None,
        "note": compared.note if compared else "",
        "rates": {label: percent(result.success.value) for label, result in results.items()},
        "rise": with_interval(compared.differences[0].rise, signed=True) if compared and ends else "",
    }


def _whole(run: Run, shown: dict[str, list[Evaluation]]) -> Table | None:
    """The success before and after training on each of several panels and overall."""
    found = {split: {one.stage: one.result for one in evaluations} for split, evaluations in shown.items()}
    panels = {split: results for split, results in found.items() if {"before", "after"} <= results.keys()}
    return whole_table(panels) if run.envs and len(panels) > 1 else None


def _curves(run: Run, path: Path) -> str:
    """Draw the curves; return the image as Base64, empty if there is no curve, as with a single evaluation."""
    try:
        return base64.b64encode(plot_curves({run.label: [run]}, path).read_bytes()).decode("ascii")
    except InvalidArgument:
        path.unlink(missing_ok=True)
        return ""


def _numbers(run: Run) -> Table | None:
    rows = []
    for key in sorted({key for row in run.metrics for key in row} - {"iteration"}):
        metric, values = find(key), run.series(key)[1]
        shown = (values[0], values[-1], math.fsum(values) / len(values), min(values), max(values))
        rows.append([key, *(number(value, metric.share) for value in shown), metric.hint])
    return (
        Table(["metric", "first", "last", "mean", "lowest", "highest", "meaning"], rows, words=(6,)) if rows else None
    )


def _episode_files(folder: Path, shown: Sequence[Evaluation]) -> list[Path]:
    """The episodes of the first table of results, else the first two files."""
    files, _ = episode_files(folder)
    named = [folder / "episodes" / f"{one.label}.jsonl" for one in shown]
    return [path for path in named if path in files] or files[:2]


def _samples(path: Path, each: int = 2) -> dict[str, object]:
    """The first ``each`` successes and failures of an episodes file, and an error if a line is broken."""
    episodes: list[EpisodeRecord] = []
    try:
        episodes, problems = read_episode_file(path)
    except BadResult as error:
        problems = [str(error)]
    wins, losses = ([one for one in episodes if one.won is won][:each] for won in (True, False))
    return {"name": path.stem, "episodes": [*wins, *losses], "complaint": problems[0] if problems else ""}


def _what(folder: Path) -> dict[str, object]:
    """Versions and settings, and an error if the settings cannot be read."""
    rows = [[name, str(value)] for name, value in sorted(RunFolder(folder).versions().items())]
    versions = Table(["", ""], rows, words=(1,)) if rows else None
    settings = complaint = ""
    try:
        if (folder / "config.yaml").exists():
            settings = write_yaml(shown_settings(folder / "config.yaml"))
    except BadResult as error:
        complaint = str(error)
    return {"versions": versions, "settings": settings, "complaint": complaint}
