"""The command ``eval``."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gagpo.agents.api.settings import PREFIX
from gagpo.cli.field_options import field_options, request_values, with_field_options
from gagpo.cli.options import Json, Overrides, print_json, say
from gagpo.eval.request import EvaluationRequest

if TYPE_CHECKING:
    from gagpo.eval.evaluate import EvaluationOutcome
    from gagpo.eval.results import EvalResult


def add_to(app: typer.Typer) -> None:
    """Add the command of this file to ``app``."""
    app.command("eval")(evaluate)


@with_field_options(EvaluationRequest)
def evaluate(
    *,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Write the result to this file (JSON).")] = None,
    as_json: Json = False,
    **options: object,
) -> None:
    """Measure the success rate on a fixed set of tasks.

    After an interruption the same command resumes: with --out, and for openai:MODEL always (from evals/).
    """
    _require_one_kind(str(options["model"]), options)
    from gagpo.base.durable import is_special
    from gagpo.eval.models import file_of_environment, measure_all

    episodes = options["episodes"]
    files = [path for path in (out, episodes) if isinstance(path, Path)]
    for path in files:
        _require_writable(path)
    unfinished = None if out is None or is_special(out) else out.with_name(f"{out.name}.under-way")
    outcomes = measure_all(_request(options, overrides or [], unfinished))
    if out:
        for name, outcome in outcomes.items():
            outcome.result.save(file_of_environment(out, name))
    if unfinished:
        shutil.rmtree(unfinished, ignore_errors=True)
    if options["suite"] is None:
        records = {name: _print_outcome(outcome, name) for name, outcome in outcomes.items()}
    else:  # one table of all
        records = {name: outcome.result.summary() for name, outcome in outcomes.items()}
    results = {name: outcome.result for name, outcome in outcomes.items()}
    if options["suite"] is not None:
        records |= _print_suite(str(options["suite"]), outcomes, out)
    elif len(records) > 1:
        records |= _print_overall(results)
    if files:
        say(*(f"wrote {file_of_environment(path, name)}" for path in files for name in outcomes))
    if as_json:
        print_json(records.get("", records))


def _request(options: Mapping[str, object], overrides: list[str], unfinished: Path | None) -> EvaluationRequest:
    """The request of the command's options. unfinished: folder for the episodes of a model that is not at a server."""
    from gagpo.agents.api.settings import ApiSettings
    from gagpo.eval.models import request_of

    values = request_values(EvaluationRequest, options)
    values["overrides"] = overrides
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
            raise InvalidArgument(
                f"{option.flag} is for a model behind a server ({PREFIX}MODEL), and {model} is not", key=option.flag
            )


def _print_overall(results: Mapping[str, EvalResult]) -> dict[str, dict[str, object]]:
    """Print the results of all environments; return the overall rate as JSON-ready values."""
    from gagpo.base.tables import text_width
    from gagpo.eval.measures import REWARD
    from gagpo.eval.results import shown_measures, whole
    from gagpo.eval.summary import whole_tables

    has_rewards = REWARD in shown_measures(results.values())
    name = "interval" if has_rewards else "success"
    for table in whole_tables({env: {name: result} for env, result in results.items()}):
        say(*table.lines(text_width()))
    rate = whole(results.values())
    record: dict[str, object] = {"success_rate": rate.value, "success": rate.record()}
    if has_rewards:
        record["mean_reward"] = whole(results.values(), REWARD).record()
    return {"the whole": record}


def _print_suite(
    suite: str, outcomes: Mapping[str, EvaluationOutcome], out: Path | None
) -> dict[str, dict[str, object]]:
    """Print the results of a suite, write its file and its figure; return the mean as JSON-ready values.

    out: the suite's file; None to write nothing.
    """
    from gagpo.base.tables import text_width
    from gagpo.eval.models import file_of_environment
    from gagpo.eval.suite_figure import plot_suites
    from gagpo.eval.suite_results import MEAN, SuiteResult

    result = SuiteResult(suite, {name: outcome.result for name, outcome in outcomes.items()})
    tokens = {name: outcome.tokens_written for name, outcome in outcomes.items()}
    dollars = {name: outcome.usage["cost"] for name, outcome in outcomes.items() if outcome.usage}
    say(*result.table(tokens, dollars).lines(text_width()))
    if out is not None:
        result.save(out, {name: file_of_environment(out, name) for name in outcomes})
        figure = plot_suites({result.model: result}, out.with_suffix(".png"))
        say(f"wrote {out} and {figure}")
    return {MEAN: result.record()}


def _print_outcome(outcome: EvaluationOutcome, env: str) -> dict[str, object]:
    """Print the result; return it as JSON-ready values."""
    from gagpo.base.tables import ascii_only, text_width
    from gagpo.eval.results import at_k_record
    from gagpo.eval.summary import result_lines

    result = outcome.result
    usage = outcome.usage
    record = outcome.result.summary()
    if result.task_set.tries > 1:
        record |= {"at_k": at_k_record(result)}
    if outcome.stored:
        # The journal's key has the server's address, not what the server runs: it may be another model by now.
        say(
            f"NOTE: {outcome.stored} of {result.episodes} episodes are stored answers of an earlier evaluation; the "
            f"model was not asked again. To ask it, delete {outcome.journal} and repeat the command.",
            "",
        )
        record |= {"stored_episodes": outcome.stored}
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
        raise InvalidArgument("is a folder", where=path, advice="name a file in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    probe = path.with_name(f".{path.name}.probe")
    probe.write_text("")
    probe.unlink()
