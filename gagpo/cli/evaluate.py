"""The commands ``eval``, ``compare`` and ``report``."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.models import OptionInfo

from gagpo.cli.options import Json, Kwargs, Quiet, TrustRemoteCode, print_json, say, values

if TYPE_CHECKING:
    from gagpo.agents.api.settings import ApiSettings
    from gagpo.eval.evaluate import EvaluationOutcome
    from gagpo.eval.results import EvalResult
    from gagpo.eval.runs import Run

PREFIX = "openai:"


def _option(*flags: str, help: str, min: float | None = None) -> OptionInfo:
    panel = "A model behind a server (openai:MODEL)"
    option: OptionInfo = typer.Option(*flags, help=help, rich_help_panel=panel, min=min)
    return option


BaseUrl = Annotated[str | None, _option(help="URL of a compatible server; by default OpenAI's.")]
Timeout = Annotated[float | None, _option(help="Timeout of a request in seconds; 120 by default.", min=0.001)]
InputPrice = Annotated[float | None, _option("--price-in", help="Dollars per million input tokens.", min=0)]
CachedPrice = Annotated[float | None, _option("--price-cached", help="Dollars per million cached input tokens.", min=0)]
OutputPrice = Annotated[float | None, _option("--price-out", help="Dollars per million output tokens.", min=0)]
PassAt = Annotated[
    str | None,
    typer.Option("--pass-at", help="k of pass@k and the like, such as 1,8,64; by default 1, 2, 4, ... and all tries."),
]
LimitCost = Annotated[float | None, _option(help="Stop at this cost in dollars.", min=0)]
KeyVariable = Annotated[str | None, _option(help="Environment variable with the API key; OPENAI_API_KEY by default.")]


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
            help="A run folder (runs/X; runs/X@20, @best, @ema), a model, `random`, `expert`, or openai:MODEL."
        ),
    ],
    env: Annotated[
        str | None, typer.Option(help="Environment id, or the name of one in a run; by default all of the run's.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split to play.")] = None,
    kwargs: Kwargs = None,
    like: Annotated[
        str | None,
        typer.Option("--like", "--config", help="Take environment, split, tasks and prompts from this run or config."),
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(min=1, help="Number of tasks, evenly spaced; the whole split by default.")
    ] = None,
    episodes_per_task: Annotated[int, typer.Option(min=1, help="Episodes of each task.")] = 1,
    temperature: Annotated[float | None, typer.Option(min=0, help="Sampling temperature; the run's, else 0.4.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Token limit of a response.")] = None,
    prompt: Annotated[str | None, typer.Option(help="A shipped prompt (plain, tags, ...) or a YAML file.")] = None,
    history: Annotated[str | None, typer.Option(help="Earlier turns in the prompt: full, or a number.")] = None,
    admissible: Annotated[bool | None, typer.Option(help="List the admissible actions.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the episodes.")] = 0,
    workers: Annotated[int, typer.Option(min=0, help="Environment processes.")] = 2,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, help="Concurrent episodes; by default 256, at a server 16, of programs one per CPU core."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")] = None,
    trust_remote_code: TrustRemoteCode = False,
    out: Annotated[Path | None, typer.Option(help="Write the result to this file (JSON).")] = None,
    episodes: Annotated[Path | None, typer.Option(help="Write the episodes to this file (JSON lines).")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
    base_url: BaseUrl = None,  # this and the options below are read by _server; most are named as in ApiSettings
    key_variable: KeyVariable = None,
    timeout: Timeout = None,
    input_price: InputPrice = None,
    cached_price: CachedPrice = None,
    output_price: OutputPrice = None,
    limit_cost: LimitCost = None,
) -> None:
    """Measure the success rate on a fixed set of tasks.

    After an interruption the same command resumes: with --out, and for openai:MODEL always (from evals/).
    """
    server = _server(model, context)
    from gagpo.eval.models import file_of_environment, measure_all, request_of
    from gagpo.eval.request import EvaluationRequest

    for path in (out, episodes):
        _require_writable(path)
    under_way = None if out is None else out.with_name(f"{out.name}.under-way")
    options = {name: context.params[name] for name in EvaluationRequest.__dataclass_fields__ if name in context.params}
    prompts = {"prompt": prompt, "history": history, "admissible": admissible}
    options |= {
        "environment": env,
        "kwargs": values(kwargs),
        "context": {name: value for name, value in prompts.items() if value is not None},
        "server": server,
        "journals": Path("evals") if server else under_way,
    }
    outcomes = measure_all(request_of(**options))
    if out and under_way:
        for name, outcome in outcomes.items():
            outcome.result.save(file_of_environment(out, name))
        shutil.rmtree(under_way, ignore_errors=True)
    records = {name: _shown(outcome, name) for name, outcome in outcomes.items()}
    if len(records) > 1:
        records |= _shown_together({name: outcome.result for name, outcome in outcomes.items()})
    if written := [file_of_environment(path, name) for path in (out, episodes) if path for name in outcomes]:
        say(*(f"wrote {path}" for path in written))
    if as_json:
        print_json(records.get("", records))


def _server(model: str, context: typer.Context) -> ApiSettings | None:
    """How to reach the server of ``openai:MODEL``; None for any other model.

    Raises:
        InvalidArgument: an option of a served model is given for another one.
    """
    from gagpo.agents.api.settings import ApiSettings
    from gagpo.base.errors import InvalidArgument

    options = {option.name: option for option in context.command.params if getattr(option, "rich_help_panel", None)}
    given = {str(name): context.params[str(name)] for name in options}
    given = {name: value for name, value in given.items() if value is not None}
    if not model.startswith(PREFIX):
        for name in given:
            flag = options[name].opts[0]
            raise InvalidArgument(f"{flag} is for a model behind a server ({PREFIX}MODEL), and {model} is not")
        return None
    chosen = {name: value for name, value in given.items() if name in ApiSettings.__dataclass_fields__}
    return ApiSettings(model.removeprefix(PREFIX), **chosen)


def _shown_together(results: Mapping[str, EvalResult]) -> dict[str, dict[str, object]]:
    """Print the results of all environments; return the overall rate as JSON-ready values."""
    from gagpo.base.tables import text_width
    from gagpo.eval.results import whole
    from gagpo.eval.summary import whole_table

    table = whole_table({name: {"success": result} for name, result in results.items()})
    say(*table.lines(text_width()))
    rate = whole(results.values())
    return {"the whole": {"success_rate": rate.value, "success": rate.record()}}


def _shown(outcome: EvaluationOutcome, env: str) -> dict[str, object]:
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


def _require_writable(path: Path | None) -> None:
    """Raise an error before the evaluation if ``path`` cannot be written after it."""
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
        record = _shown_study(groups, files, baseline, split, ks, "latex" if latex else form)
    if curves:
        say(str(plot_curves(groups, curves, x, smooth, y)))
    if as_json:
        print_json({"pages": pages, **record} if record else pages)


def _shown_study(
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
