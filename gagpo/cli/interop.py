"""The commands that lead elsewhere: serving worlds, models behind servers, exports, worlds of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gagpo.cli.options import Json, Kwargs, Quiet, print_table, say, values


def add_to(app: typer.Typer) -> None:
    """Hang the commands of this file under ``app``."""
    app.command()(serve)
    app.command("eval-api")(eval_api)
    app.command()(export)
    app.command("new")(new)
    app.command("list")(list_everything)


def serve(
    env: Annotated[str, typer.Argument(help="Environment id, e.g. gagpo/ALFWorld-v0 or module:Name-v0.")],
    kwargs: Kwargs = None,
    host: Annotated[str, typer.Option(help="0.0.0.0 to be reached from elsewhere.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free one.")] = 8000,
    workers: Annotated[int, typer.Option(min=0, help="Environment processes.")] = 2,
    sessions: Annotated[int, typer.Option(min=1, help="Most sessions at once.")] = 64,
    admissible: Annotated[bool, typer.Option(help="Send the admissible actions with each observation.")] = False,
    session_minutes: Annotated[float, typer.Option(help="How long a session may last.")] = 60.0,
    idle_minutes: Annotated[float, typer.Option(help="After which an unused session ends.")] = 10.0,
    package: Annotated[Path | None, typer.Option(help="Write the folder for `openenv push` instead.")] = None,
) -> None:
    """Serve an environment over OpenEnv, for any trainer that plays such servers."""
    from gagpo.interop import serve as serving

    if package is not None:
        say("\n".join(map(str, serving.write_package(env, values(kwargs), package))))
        return
    serving.serve(
        env,
        values(kwargs),
        host=host,
        port=port,
        workers=workers,
        max_sessions=sessions,
        admissible=admissible,
        session_seconds=60 * session_minutes,
        idle_seconds=60 * idle_minutes,
    )


def eval_api(
    model: Annotated[str, typer.Argument(help="openai:MODEL, as the server calls it.")],
    env: Annotated[str, typer.Option(help="Environment id.")],
    base_url: Annotated[str | None, typer.Option(help="Of a compatible server; OpenAI's own by default.")] = None,
    split: Annotated[str | None, typer.Option(help="Split to play.")] = None,
    kwargs: Kwargs = None,
    tasks: Annotated[int | None, typer.Option(min=1, help="Evenly spaced part of the split.")] = None,
    tries: Annotated[int, typer.Option(min=1, help="Episodes of each task.")] = 1,
    temperature: Annotated[float, typer.Option(min=0)] = 0.4,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a response.")] = 512,
    style: Annotated[str, typer.Option(help="Prompt style: tags, plain, whole.")] = "tags",
    history: Annotated[str, typer.Option(help="full, or the number of turns a window shows.")] = "full",
    admissible: Annotated[bool, typer.Option(help="List the admissible actions.")] = False,
    keep_reasoning: Annotated[bool, typer.Option(help="Leave what the model thought in the conversation.")] = False,
    workers: Annotated[int, typer.Option(min=0, help="Environment processes.")] = 2,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at once.")] = 16,
    timeout: Annotated[float, typer.Option(help="Seconds for one answer.")] = 120.0,
    requests_per_minute: Annotated[float | None, typer.Option(min=1)] = None,
    tokens_per_minute: Annotated[float | None, typer.Option(min=1)] = None,
    price_in: Annotated[float, typer.Option(min=0, help="Dollars per million tokens read.")] = 0.0,
    price_cached: Annotated[float | None, typer.Option(min=0, help="Of tokens the server had cached.")] = None,
    price_out: Annotated[float, typer.Option(min=0, help="Dollars per million tokens written.")] = 0.0,
    limit_cost: Annotated[float | None, typer.Option(min=0, help="Dollars after which to stop.")] = None,
    limit_tokens: Annotated[int | None, typer.Option(min=0, help="Tokens after which to stop.")] = None,
    key_variable: Annotated[str, typer.Option(help="Environment variable with the key.")] = "OPENAI_API_KEY",
    completion_tokens: Annotated[
        bool, typer.Option(help="Send max_completion_tokens, for models that refuse max_tokens.")
    ] = False,
    journals: Annotated[Path, typer.Option(help="Where finished episodes are kept; the same command goes on.")] = Path(
        "evals"
    ),
    out: Annotated[Path | None, typer.Option(help="Write the result to this file (JSON).")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure a model behind an OpenAI-compatible server (`gagpo eval openai:MODEL`); the same command continues."""
    from gagpo.agents.api.client import ApiSettings
    from gagpo.envs.errors import InvalidArgument
    from gagpo.eval.tables import result_lines
    from gagpo.interop.measure_api import PREFIX, evaluate_api

    if not model.startswith(PREFIX):
        raise InvalidArgument(f"name the model as {PREFIX}MODEL, got {model!r}")
    if history != "full" and not history.isdecimal():
        raise InvalidArgument(f"--history is full or a number of turns, got {history!r}")
    api = ApiSettings(
        model.removeprefix(PREFIX),
        base_url,
        key_variable,
        timeout,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        input_price=price_in,
        cached_price=price_cached,
        output_price=price_out,
        limit_cost=limit_cost,
        limit_tokens=limit_tokens,
        token_parameter="max_completion_tokens" if completion_tokens else "max_tokens",
    )
    report = evaluate_api(
        api,
        environment=env,
        split=split,
        kwargs=values(kwargs),
        tasks=tasks,
        tries=tries,
        temperature=temperature,
        max_tokens=max_tokens,
        style=style,
        history=history if history == "full" else int(history),
        admissible=admissible,
        reasoning="keep" if keep_reasoning else "drop",
        workers=workers,
        concurrency=concurrency,
        journals=journals,
        quiet=quiet,
    )
    if out:
        report.result.save(out)
    say("\n".join(result_lines(report.result)))
    usage = report.usage
    say(f"tokens: {usage['prompt']:,} read ({usage['cached']:,} cached), {usage['completion']:,} written")
    say(f"requests: {usage['requests']:,}, cost: ${usage['cost']:.2f}, episodes: {report.journal}")
    if as_json:
        print(json.dumps({**report.result.summary(), "usage": usage, "journal": str(report.journal)}))


def export(
    source: Annotated[Path, typer.Argument(help="A journal of an evaluation, or a file of episodes.")],
    out: Annotated[Path, typer.Argument(help="File (jsonl) or folder (atif, inspect, hf) to write.")],
    form: Annotated[str, typer.Option("--to", help="jsonl, atif, inspect or hf.")] = "jsonl",
) -> None:
    """Write episodes in another suite's format."""
    from gagpo.interop.export import export as write

    say(f"{write(source, form, out)} episodes: {out}")


def new(
    name: Annotated[str, typer.Argument(help="Of the module: small letters, digits and _.")],
    folder: Annotated[Path, typer.Option(help="Where the files go.")] = Path(),
) -> None:
    """Begin a world of one's own: a file, a config and a test, ready to train."""
    from gagpo.interop.worlds import new_world

    made = new_world(name, folder)
    say("\n".join(map(str, made)))
    world = f"{name}:{''.join(part.title() for part in name.split('_'))}-v0"
    say(f"next: gagpo check {world}; gagpo warm-start {made[1]}; gagpo train {made[1]}")


def list_everything(
    runs: Annotated[Path, typer.Option(help="Folder of runs.")] = Path("runs"),
    models: Annotated[Path, typer.Option(help="Folder of models.")] = Path("data/models"),
    as_json: Json = False,
) -> None:
    """What can be used here: environments, algorithms, engines, models and runs."""
    from rich.table import Table

    from gagpo.interop.worlds import everything

    listed = everything(runs, models)
    table: Any = Table("kind", "name", "from", "problem")
    for one in listed:
        table.add_row(one.kind, one.name, one.package, one.problem)
    print_table(table)
    if as_json:
        print(json.dumps([vars(one) for one in listed]))
