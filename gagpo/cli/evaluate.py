"""The commands ``eval``, ``compare`` and ``report``."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gagpo.cli.field_options import field_options, request_values, with_field_options
from gagpo.cli.options import Json, print_json, say
from gagpo.eval.request import PREFIX, EvaluationRequest

if TYPE_CHECKING:
    from gagpo.eval.evaluate import EvaluationOutcome
    from gagpo.eval.results import EvalResult
    from gagpo.eval.runs import Run

PassAt = Annotated[
    str | None,
    typer.Option("--pass-at", help="k of pass@k and the like, such as 1,8,64; by default 1, 2, 4, ... and all tries."),
]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file to ``app``."""
    app.command("eval")(evaluate)
    app.command()(compare)
    app.command()(report)


@with_field_options(EvaluationRequest)
def evaluate(
    *,
    out: Annotated[Path | None, typer.Option(help="Write the result to this file (JSON).")] = None,
    as_json: Json = False,
    **options: object,
) -> None:
    """Measure the success rate on a fixed set of tasks.

    After an interruption the same command resumes: with --out, and for openai:MODEL always (from evals/).
    """
    _require_one_kind(str(options["model"]), options)
    from gagpo.eval.models import file_of_environment, measure_all

    episodes = options["episodes"]
    files = [path for path in (out, episodes) if isinstance(path, Path)]
    for path in files:
        _require_writable(path)
    unfinished = None if out is None else out.with_name(f"{out.name}.under-way")
    outcomes = measure_all(_request(options, unfinished))
    if out and unfinished:
        for name, outcome in outcomes.items():
            outcome.result.save(file_of_environment(out, name))
        shutil.rmtree(unfinished, ignore_errors=True)
    records = {name: _print_outcome(outcome, name) for name, outcome in outcomes.items()}
    if len(records) > 1:
        records |= _print_overall({name: outcome.result for name, outcome in outcomes.items()})
    if files:
        say(*(f"wrote {file_of_environment(path, name)}" for path in files for name in outcomes))
    if as_json:
        print_json(records.get("", records))


def _request(options: Mapping[str, object], unfinished: Path | None) -> EvaluationRequest:
    """The request of the command's options. unfinished: folder for the episodes of a model that is not at a server."""
    from gagpo.agents.api.settings import ApiSettings
    from gagpo.eval.models import request_of

    values = request_values(EvaluationRequest, options)
    values["journals"] = unfinished
    model = values["model"]
    if model.startswith(PREFIX):
        values["server"] = ApiSettings(model.removeprefix(PREFIX), **values.get("server", {}))
        values["journals"] = Path("evals")  # requests at a server may cost money, so their answers are always kept
    return request_of(**values)


def _require_one_kind(model: str, options: Mapping[str, object]) -> None:
    """Raise InvalidArgument if an option of a served model is typed for another one."""
    from gagpo.base.errors import InvalidArgument

    if model.startswith(PREFIX):
        return
    for option in field_options(EvaluationRequest):
        if option.path[0] == "server" and options[option.parameter.name] is not None:
            raise InvalidArgument(f"{option.flag} is for a model behind a server ({PREFIX}MODEL), and {model} is not")


def _print_overall(results: Mapping[str, EvalResult]) -> dict[str, dict[str, object]]:
    """Print the results of all environments; return the overall rate as JSON-ready values."""
    from gagpo.base.tables import text_width
    from gagpo.eval.results import whole
    from gagpo.eval.summary import whole_table

    table = whole_table({name: {"success": result} for name, result in results.items()})
    say(*table.lines(text_width()))
    rate = whole(results.values())
    return {"the whole": {"success_rate": rate.value, "success": rate.record()}}


def _print_outcome(outcome: EvaluationOutcome, env: str) -> dict[str, object]:
    """Print the result; return it as JSON-ready values."""
    from gagpo.base.tables import ascii_only, text_width
    from gagpo.eval.at_k import at_k_record, shown_ks
    from gagpo.eval.summary import result_lines

    result, usage, record = outcome.result, outcome.usage, outcome.result.summary()
    if result.panel.tries > 1:
        record |= {"at_k": at_k_record(result, shown_ks({"": result}))}
    say(*result_lines(result, text_width()), *([""] if env else []))
    if result.failed:
        say(f"first failure: {ascii_only(outcome.failure)}")
    if usage:
        least = "at least " if usage["unanswered"] else ""
        say(f"tokens: {least}{usage['prompt']:,} read ({usage['cached']:,} cached), {usage['completion']:,} written")
        say(f"requests: {usage['requests']:,}, cost: {least}${usage['cost']:.2f}, episodes: {outcome.journal}")
        if least:
            say(f"  the cost of {usage['unanswered']:,} requests without a valid answer is unknown")
        record |= {"usage": usage, "journal": str(outcome.journal)}
    return record


def _require_writable(path: Path) -> None:
    """Raise an error before the evaluation if ``path`` cannot be written after it."""
    from gagpo.base.errors import InvalidArgument

    if path.is_dir():
        raise InvalidArgument(f"{path} is a folder; name a file in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    probe = path.with_name(f".{path.name}.probe")
    probe.write_text("")
    probe.unlink()


def compare(
    results: Annotated[list[Path], typer.Argument(help="Two or more result files or run folders.")],
    split: Annotated[str | None, typer.Option(help="Split to compare in run folders; by default the first.")] = None,
    pass_at: PassAt = None,
    as_json: Json = False,
) -> None:
    """Compare evaluations of the same tasks with paired tests."""
    from gagpo.base.tables import text_width
    from gagpo.eval.at_k import read_ks
    from gagpo.eval.compare import compare_files

    comparison = compare_files(results, split, read_ks(pass_at))
    say(*comparison.lines(text_width()))
    if as_json:
        print_json(comparison.record())


def report(
    runs: Annotated[list[str], typer.Argument(help="Run folders, LABEL=FOLDER, or files of results (JSON lines).")],
    baseline: Annotated[
        str | None, typer.Option(help="Label of the baseline; `before` is each run before training.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split to show; by default the first.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table in Markdown.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print the table in LaTeX (booktabs).")] = False,
    curves: Annotated[
        Path | None, typer.Option(help="Draw the learning curves of all runs into this PNG, averaged over seeds.")
    ] = None,
    y: Annotated[
        str | None, typer.Option(help="Metric for --curves, such as entropy; by default success, also on the splits.")
    ] = None,
    x: Annotated[str, typer.Option(help="x axis of --curves: iteration or turns.")] = "iteration",
    smooth: Annotated[int, typer.Option(min=1, help="For --curves: mean over this many iterations.")] = 1,
    pass_at: PassAt = None,
    as_json: Json = False,
) -> None:
    """Write a page for each run (curves.png, report.html); for several runs, print one table with paired tests."""
    from gagpo.base.errors import InvalidArgument
    from gagpo.eval.at_k import read_ks
    from gagpo.eval.curves import plot_curves
    from gagpo.eval.report.report import write_report
    from gagpo.eval.runs import group_runs

    if y is not None and curves is None:
        raise InvalidArgument("--y needs a file to draw into: add --curves FILE.png")
    ks = read_ks(pass_at)
    folders = [run for run in runs if not run.endswith(".jsonl")]
    groups = group_runs(folders)
    pages = [str(write_report(run.folder, ks)) for group in groups.values() for run in group]
    say(*pages)
    record: dict[str, object] = {}
    if len(runs) > 1 or not folders or markdown or latex:
        form = "markdown" if markdown else "text"
        files = [Path(run) for run in runs if run not in folders]
        record = _print_study(groups, files, baseline, split, ks, "latex" if latex else form)
    if curves:
        say(str(plot_curves(groups, curves, x, smooth, y)))
    if as_json:
        print_json({"pages": pages, **record} if record else pages)


def _print_study(
    groups: Mapping[str, Sequence[Run]],
    files: Sequence[Path],
    baseline: str | None,
    split: str | None,
    ks: Sequence[int] | None,
    form: str,
) -> dict[str, object]:
    """Print the study of several runs; return it as JSON-ready values. form: ``text``, ``markdown`` or ``latex``."""
    from gagpo.base.tables import text_width
    from gagpo.eval.compare import compare_files
    from gagpo.eval.study import study_of
    from gagpo.eval.study_at_k import measure_studies

    study = study_of(groups, files, baseline, split, ks)
    measures = measure_studies(study, ks)
    if form == "text":
        width = text_width(most=100)
        loaded = [run for group in groups.values() for run in group]
        by_task = len(groups) == len(loaded) > 1  # one seed each: pair by task
        say(*study.lines(width))
        if not by_task or files:
            say(*(line for measure in measures for line in ("", *measure.lines(width))))
        if by_task:
            say("", *compare_files([run.folder for run in loaded], split, ks).lines(text_width()))
    else:
        tables = [study.table(), *(measure.table() for measure in measures)]
        texts = [table.latex() if form == "latex" else table.markdown() for table in tables]
        say("\n\n".join("\n".join(lines) for lines in texts))
    at_k = {measure.measure.name: measure.record() for measure in measures}
    return {"study": study.record(), **({"at_k": at_k} if at_k else {})}
