"""A run as one HTML page: results with intervals, curves, health, numbers, sample episodes and settings."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

from gagpo.base import durable
from gagpo.base.core_schema import write_yaml
from gagpo.base.errors import InvalidArgument
from gagpo.base.tables import Table
from gagpo.eval.compare import Comparison, DifferentTaskSets, compare_results
from gagpo.eval.episode_files import EpisodeRecord, episode_files, read_episode_file
from gagpo.eval.health import health
from gagpo.eval.measures import SUCCESS
from gagpo.eval.report.page import render
from gagpo.eval.results import measures_of_k, shown_measures
from gagpo.eval.run_figure import plot_run
from gagpo.eval.runs import Evaluation, Run, load_run, shown_settings
from gagpo.eval.summary import at_k_table, measured_facts, number, task_set_facts, types_tables, whole_tables
from gagpo.runs.headline import REWARD_MEAN, SUCCESS_RATE
from gagpo.runs.reading import BadResult, read_text
from gagpo.runs.register import find
from gagpo.runs.run_folder import RunFolder

STAGES = ("before", "after", "average")
"""The columns of a table: before training, after it, and averaged weights."""
MARK = 'name="gagpo-report"'
"""The header of a page that says what it shows."""


def write_report(run_folder: str | Path, pass_at: Sequence[int] | None = None) -> Path:
    """Write ``report.html`` and ``curves.png`` into a run folder; return the path of the page.

    The page needs no other file and no network, and escapes all text from models and files.

    pass_at: the k of pass@k; by default those of :func:`gagpo.eval.results.measures_of_k`.

    Raises:
        InvalidArgument: an evaluation has fewer episodes per task than a k.
        BadResult: the folder is not a run, or an evaluation in it is broken.
    """
    folder = Path(run_folder)
    run = load_run(folder)
    splits = list(dict.fromkeys([*run.splits(), *(evaluation.split for evaluation in run.evaluations)]))
    evaluations = {split: before_and_after(run, split) for split in splits}
    results = [_result(split, evaluations, pass_at) for split, evaluations in evaluations.items()]
    page = render(
        "report.html",
        name=run.name,
        content=_content(run),
        headline=next((result["headline"] for result in results if result["headline"]), None),
        results=results,
        whole=_whole(run, evaluations),
        curves=_curves(run, folder / "curves.png"),
        curve_names="Mean reward" if REWARD_MEAN in run.headline else "Success",
        broken_lines=run.broken_lines,
        health=health(run.metrics),
        seconds=run.seconds(),
        numbers=_numbers(run),
        samples=[
            _samples(path, SUCCESS_RATE in run.headline)
            for path in _episode_files(folder, next(iter(evaluations.values()), []))
        ],
        shows_success=SUCCESS_RATE in run.headline,
        **_versions_and_settings(folder),
    )
    target = folder / "report.html"
    durable.write_text(target, page)
    return target


def has_report(run_folder: str | Path) -> bool:
    """Whether a run folder contains a report of all its iterations and evaluations.

    A report may be older than the run: ``gagpo report`` also writes one while a run trains. Those of earlier versions
    do not say what they show, and count as complete.
    """
    folder = Path(run_folder)
    try:
        page = read_text(folder / "report.html")
        return MARK not in page or f'{MARK} content="{_content(load_run(folder))}"' in page
    except BadResult:
        return False


def _content(run: Run) -> str:
    """What a report of the run shows, in a header of the page that nobody sees; no text of the run."""
    labels = [evaluation.label for evaluation in run.evaluations if evaluation.stage]
    digest = hashlib.sha256("\n".join(labels).encode()).hexdigest()
    return f"{len(run.metrics)} iterations, {len(labels)} evaluations {digest[:8]}"


def before_and_after(run: Run, split: str) -> list[Evaluation]:
    """The evaluations in the table of ``split``: before, after and average, else the last."""
    of_split = [evaluation for evaluation in run.evaluations if evaluation.split == split]
    ends = [evaluation for evaluation in of_split if evaluation.stage in STAGES]
    return ends or of_split[-1:]


def _result(split: str, evaluations: Sequence[Evaluation], pass_at: Sequence[int] | None) -> dict[str, object]:
    """The tables of a split, one column per evaluation, and the comparison with the first."""
    results = {evaluation.stage or evaluation.label: evaluation.result for evaluation in evaluations}
    measures = shown_measures(results.values())
    rows = zip(*(measured_facts(result, measures) for result in results.values()), strict=False)
    comparison: Comparison | None = None
    complaint = ""
    try:
        comparison = compare_results(results, pass_at) if len(results) > 1 else None
    except DifferentTaskSets as error:
        complaint = str(error)
    return {
        "split": split,
        "task_set": "; ".join(text for _, text in task_set_facts(evaluations[-1].result)[:2]),
        "table": Table(["", *results], [[row[0][0], *(text for _, text in row)] for row in rows]),
        "at_k": at_k_table(results, measures_of_k(results, pass_at)),
        "at_k_differences": comparison.at_k_difference_tables() if comparison else [],
        "types": types_tables(results),
        "complaint": complaint,
        "differences": comparison.difference_tables() if comparison else [],
        "note": comparison.note if comparison else "",
        "headline": _headline(split, comparison) if comparison and {"before", "after"} <= results.keys() else None,
    }


def _headline(split: str, comparison: Comparison) -> dict[str, object]:
    """The first sentence of the report: the mean reward or the success, and the success next to a mean reward."""
    measure, *further = comparison.first
    numbers = {
        each: {
            stage: each.unit.number(result.estimate(each).value) + each.unit.suffix
            for stage, result in comparison.results.items()
        }
        for each in comparison.first
    }
    rise = measure.unit.interval(comparison.of(measure)[0].rise, signed=True)
    return {
        "split": split,
        "name": measure.name.capitalize(),
        "numbers": numbers[measure],
        "rise": f"{rise} points" if measure == SUCCESS else rise,
        "success": numbers[SUCCESS] if further else {},
    }


def _whole(run: Run, evaluations_of_splits: dict[str, list[Evaluation]]) -> list[Table]:
    """Mean reward and success before and after training on each of several task sets and overall."""
    by_stage = {
        split: {evaluation.stage: evaluation.result for evaluation in evaluations}
        for split, evaluations in evaluations_of_splits.items()
    }
    task_sets = {split: results for split, results in by_stage.items() if {"before", "after"} <= results.keys()}
    return whole_tables(task_sets) if run.envs and len(task_sets) > 1 else []


def _curves(run: Run, path: Path) -> str:
    """Draw the curves; return the image as Base64, empty if there is no curve, as with a single evaluation."""
    try:
        return base64.b64encode(plot_run(run, path).read_bytes()).decode("ascii")
    except InvalidArgument:
        path.unlink(missing_ok=True)
        return ""


def _numbers(run: Run) -> Table | None:
    rows = []
    for key in sorted({key for row in run.metrics for key in row} - {"iteration"}):
        metric = find(key)
        values = run.series(key)[1]
        numbers = (values[0], values[-1], math.fsum(values) / len(values), min(values), max(values))
        rows.append([key, *(number(value, metric.share) for value in numbers), metric.hint])
    return (
        Table(["metric", "first", "last", "mean", "lowest", "highest", "meaning"], rows, words=(6,)) if rows else None
    )


def _episode_files(folder: Path, evaluations: Sequence[Evaluation]) -> list[Path]:
    """The episodes of the first table of results, else the first two files."""
    files, _ = episode_files(folder)
    named = [folder / "episodes" / f"{evaluation.label}.jsonl" for evaluation in evaluations]
    return [path for path in named if path in files] or files[:2]


def _samples(path: Path, by_success: bool, each: int = 2) -> dict[str, object]:
    """The first ``each`` successes and failures of an episodes file, and an error if a line is broken.

    by_success: whether success is reported; else the episodes with the highest and the lowest rewards are chosen.
    """
    episodes: list[EpisodeRecord] = []
    try:
        episodes, problems = read_episode_file(path)
    except BadResult as error:
        problems = [str(error)]
    if by_success:
        first = [episode for episode in episodes if episode.won][:each]
        last = [episode for episode in episodes if not episode.won][:each]
    else:
        ranked = sorted(episodes, key=lambda episode: -episode.reward)
        first, last = ranked[:each], ranked[each:][-each:]
    return {"name": path.stem, "episodes": [*first, *last], "complaint": problems[0] if problems else ""}


def _versions_and_settings(folder: Path) -> dict[str, object]:
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
