"""The commands that measure: ``eval``, ``compare`` and ``report``."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gagpo.cli import served
from gagpo.cli.options import Json, Kwargs, Quiet, print_json, say, values

if TYPE_CHECKING:
    from gagpo.eval.panel import EvaluationOutcome
    from gagpo.eval.results import EvalResult


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file to ``app``."""
    app.command("eval")(evaluate)
    app.command()(compare)
    app.command()(report)


def evaluate(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            help="A run folder (runs/X; runs/X@20, @best, @average), a model, `random`, `expert`, or openai:MODEL."
        ),
    ],
    env: Annotated[
        str | None, typer.Option(help="Environment id, or the name of one of a run's; the run's own, all, by default.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split to play.")] = None,
    kwargs: Kwargs = None,
    like: Annotated[
        str | None,
        typer.Option("--like", "--config", help="Take environment, split, panel and prompts from this run or config."),
    ] = None,
    tasks: Annotated[int | None, typer.Option(min=1, help="Evenly spaced part of the split.")] = None,
    tries: Annotated[int, typer.Option(min=1, help="Episodes of each task.")] = 1,
    temperature: Annotated[float | None, typer.Option(min=0, help="0.4, or the run's.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of a response.")] = None,
    style: Annotated[str | None, typer.Option(help="Prompt style: plain, tags, whole, tools.")] = None,
    history: Annotated[str | None, typer.Option(help="full, or the number of turns a window shows.")] = None,
    admissible: Annotated[bool | None, typer.Option(help="List the admissible actions.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Other episodes of the same tasks; part of the panel.")] = 0,
    workers: Annotated[int, typer.Option(min=0, help="Environment processes.")] = 2,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the code that a model brings along; read it first.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the result to this file (JSON).")] = None,
    episodes: Annotated[Path | None, typer.Option(help="Write the episodes to this file (JSON lines).")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
    base_url: served.BaseUrl = None,  # this and the options below are read by gagpo.cli.served, by their names
    key_variable: served.KeyVariable = None,
    concurrency: served.Concurrency = None,
    timeout: served.Timeout = None,
    requests_per_minute: served.RequestsPerMinute = None,
    tokens_per_minute: served.TokensPerMinute = None,
    price_in: served.PriceIn = None,
    price_cached: served.PriceCached = None,
    price_out: served.PriceOut = None,
    limit_cost: served.LimitCost = None,
    limit_tokens: served.LimitTokens = None,
    completion_tokens: served.CompletionTokens = None,
    keep_reasoning: served.KeepReasoning = None,
    journals: served.Journals = None,
) -> None:
    """Measure the success rate on a fixed panel; with --out, the same command resumes after an interruption.

    A model behind a server (openai:MODEL) resumes without --out: finished episodes are kept in --journals.
    """
    server = served.settings(model, context.params)
    from gagpo.eval.models import file_of_environment, measure_all, request_of
    from gagpo.eval.request import EvaluationRequest

    for path in (out, episodes):
        _require_writable(path)
    under_way = None if out is None else out.with_name(f"{out.name}.under-way")
    options = {name: context.params[name] for name in EvaluationRequest.__dataclass_fields__ if name in context.params}
    prompts = {"style": style, "history": history, "admissible": admissible}
    options |= {
        "environment": env,
        "kwargs": values(kwargs),
        "context": {name: value for name, value in prompts.items() if value is not None},
        "server": server,
        "reasoning": "keep" if keep_reasoning else "drop",
        "journals": journals or (Path("evals") if server else under_way),
    }
    outcomes = measure_all(request_of(**options))
    if out and under_way:
        for name, outcome in outcomes.items():
            outcome.result.save(file_of_environment(out, name))
        shutil.rmtree(under_way, ignore_errors=True)
    records = {name: _shown(outcome, name) for name, outcome in outcomes.items()}
    if len(records) > 1:
        records |= _shown_together({name: outcome.result for name, outcome in outcomes.items()})
    if as_json:
        print_json(records.get("", records))


def _shown_together(results: Mapping[str, EvalResult]) -> dict[str, dict[str, object]]:
    """Print the results of all environments; the whole as JSON-ready values."""
    from gagpo.base.tables import text_width
    from gagpo.eval.results import whole
    from gagpo.eval.summary import environment_lines

    say(*environment_lines(results, text_width()))
    rate = whole(results.values())
    return {"the whole": {"success_rate": rate.value, "success": rate.record()}}


def _shown(outcome: EvaluationOutcome, env: str) -> dict[str, object]:
    """Print what came out; the same as JSON-ready values."""
    from gagpo.base.tables import ascii_only, text_width
    from gagpo.eval.summary import result_lines

    result, usage, record = outcome.result, outcome.usage, outcome.result.summary()
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


def _require_writable(path: Path | None) -> None:
    """Raise an error that names ``path`` when it cannot be written; better before an hour of playing than after it."""
    from gagpo.base.errors import InvalidArgument

    if path is None:
        return
    if path.is_dir():
        raise InvalidArgument(f"{path} is a folder; name a file in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    probe = path.with_name(f".{path.name}.probe")
    probe.write_text("")
    probe.unlink()


def compare(
    results: Annotated[list[Path], typer.Argument(help="Two or more result files, or run folders (their last).")],
    split: Annotated[
        str | None, typer.Option(help="Which split of run folders; the first evaluated by default.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare evaluations on the same panel, task by task, with paired tests."""
    from gagpo.base.tables import text_width
    from gagpo.eval.compare import compare_files

    comparison = compare_files(results, split)
    say(*comparison.lines(text_width()))
    if as_json:
        print_json(comparison.record())


def report(
    runs: Annotated[list[str], typer.Argument(help="Run folders, LABEL=FOLDER, or files of results (JSON lines).")],
    baseline: Annotated[
        str | None, typer.Option(help="The label to take differences to; before: each run's start.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Which split; the first evaluated by default.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table in Markdown.")] = False,
    curves: Annotated[
        Path | None, typer.Option(help="Draw the learning curves of all runs into this PNG; seeds are averaged.")
    ] = None,
    x: Annotated[str, typer.Option(help="x axis of --curves: iteration or turns.")] = "iteration",
    smooth: Annotated[int, typer.Option(min=1, help="For --curves: trailing mean over this many iterations.")] = 1,
    as_json: Json = False,
) -> None:
    """Write a page for each run (curves.png, report.html); for several runs, print one table with paired tests."""
    from gagpo.base.tables import text_width
    from gagpo.eval.compare import compare_files
    from gagpo.eval.curves import plot_curves
    from gagpo.eval.report.report import write_report
    from gagpo.eval.runs import group_runs, named_runs
    from gagpo.eval.study import study_of

    folders = [run for run in runs if not run.endswith(".jsonl")]
    pages = [str(write_report(folder)) for _, folder in named_runs(folders)]
    say(*pages)
    groups, study = group_runs(folders), None
    if len(runs) > 1 or not folders or markdown:
        study = study_of(groups, [Path(run) for run in runs if run not in folders], baseline, split)
        say(*(study.markdown() if markdown else study.lines(text_width(most=100))))
        loaded = [run for group in groups.values() for run in group]
        if len(groups) == len(loaded) > 1 and not markdown:  # one seed each, so only tasks can be paired
            say("", *compare_files([run.folder for run in loaded], split).lines(text_width()))
    if curves:
        say(str(plot_curves(groups, curves, x, smooth)))
    if as_json:
        print_json({"pages": pages, "study": study.record()} if study else pages)
