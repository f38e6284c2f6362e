"""``gagpo eval openai:MODEL``: the options of a model behind a server, and how it is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gagpo.cli.options import print_json, say

PREFIX = "openai:"
_PANEL = "A model behind a server (openai:MODEL)"


def _option(help: str, **more: Any) -> Any:
    return typer.Option(help=help, rich_help_panel=_PANEL, **more)


BaseUrl = Annotated[str | None, _option("Of a compatible server; OpenAI's own by default.")]
KeepReasoning = Annotated[bool | None, _option("Leave what the model thought in the conversation.")]
Concurrency = Annotated[int | None, _option("Episodes at once; 16 by default.", min=1)]
Timeout = Annotated[float | None, _option("Seconds for one answer; 120 by default.", min=0.001)]
RequestsPerMinute = Annotated[float | None, _option("What the server allows.", min=1)]
TokensPerMinute = Annotated[float | None, _option("What the server allows.", min=1)]
PriceIn = Annotated[float | None, _option("Dollars per million tokens read.", min=0)]
PriceCached = Annotated[float | None, _option("Of tokens the server had cached.", min=0)]
PriceOut = Annotated[float | None, _option("Dollars per million tokens written.", min=0)]
LimitCost = Annotated[float | None, _option("Dollars after which to stop.", min=0)]
LimitTokens = Annotated[int | None, _option("Tokens after which to stop.", min=0)]
KeyVariable = Annotated[str | None, _option("Environment variable with the key; OPENAI_API_KEY by default.")]
CompletionTokens = Annotated[bool | None, _option("Send max_completion_tokens, for models that refuse max_tokens.")]
Journals = Annotated[
    Path | None, _option("Where finished episodes are kept, evals/ by default; the same command goes on.")
]
_SETTINGS = {
    "base_url": "base_url",
    "key_variable": "key_variable",
    "timeout": "timeout",
    "requests_per_minute": "requests_per_minute",
    "tokens_per_minute": "tokens_per_minute",
    "price_in": "input_price",
    "price_cached": "cached_price",
    "price_out": "output_price",
    "limit_cost": "limit_cost",
    "limit_tokens": "limit_tokens",
}


def refuse_misplaced(model: str, server_only: dict[str, Any], local_only: dict[str, Any]) -> None:
    """InvalidArgument for an option that says nothing about this kind of model."""
    from gagpo.envs.errors import InvalidArgument

    served = model.startswith(PREFIX)
    for name, value in (local_only if served else server_only).items():
        if value is not None:
            kind = "a model in this process" if served else f"a model behind a server ({PREFIX}MODEL)"
            raise InvalidArgument(f"--{name.replace('_', '-')} is about {kind}, and {model} is none")


def evaluate_served(
    model: str,
    options: dict[str, Any],
    *,
    like: str | None,
    environment: str | None,
    split: str | None,
    kwargs: dict[str, Any],
    tasks: int | None,
    tries: int,
    temperature: float | None,
    max_tokens: int | None,
    style: str | None,
    history: str | int | None,
    admissible: bool | None,
    seed: int,
    workers: int,
    episodes: Path | None,
    out: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Measure the model that ``openai:MODEL`` names; what is not given comes from the run or config ``like``.

    options: of the server, by the names of this file's options in small letters.
    """
    from gagpo.agents.api.client import ApiSettings
    from gagpo.agents.episodes import write_episodes
    from gagpo.envs import durable
    from gagpo.eval.tables import result_lines
    from gagpo.evaluation.models import panel_like
    from gagpo.evaluation.served import evaluate_api

    given = {_SETTINGS[name]: value for name, value in options.items() if name in _SETTINGS and value is not None}
    if options["completion_tokens"]:
        given["token_parameter"] = "max_completion_tokens"
    asked = {"environment": environment, "split": split, "tasks": tasks, "temperature": temperature}
    asked |= {"max_tokens": max_tokens, "style": style, "history": history, "admissible": admissible}
    asked |= {"concurrency": options["concurrency"]}
    report = evaluate_api(
        ApiSettings(model.removeprefix(PREFIX), **given),
        **panel_like(like, kwargs, {name: value for name, value in asked.items() if value is not None}),
        tries=tries,
        reasoning="keep" if options["keep_reasoning"] else "drop",
        seed=seed,
        workers=workers,
        journals=options["journals"] or Path("evals"),
        quiet=quiet,
    )
    if out:
        report.result.save(out)
    if episodes:
        with durable.replacing(episodes) as temporary:
            write_episodes(temporary, report.episodes)
    usage = report.usage
    say("\n".join(result_lines(report.result)))
    say(f"tokens: {usage['prompt']:,} read ({usage['cached']:,} cached), {usage['completion']:,} written")
    say(f"requests: {usage['requests']:,}, cost: ${usage['cost']:.2f}, episodes: {report.journal}")
    if as_json:
        print_json({**report.result.summary(), "usage": usage, "journal": str(report.journal)})
