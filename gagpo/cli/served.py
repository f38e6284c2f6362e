"""``gagpo eval openai:MODEL``: the options of a model behind a server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.models import OptionInfo

if TYPE_CHECKING:
    from gagpo.agents.api.settings import ApiSettings

PREFIX = "openai:"
_PANEL = "A model behind a server (openai:MODEL)"


def _option(help: str, min: float | None = None) -> OptionInfo:
    option: OptionInfo = typer.Option(help=help, rich_help_panel=_PANEL, min=min)
    return option


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
_SETTINGS = {  # fields of ApiSettings by the option that sets them
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
_OPTIONS = (*_SETTINGS, "concurrency", "completion_tokens", "keep_reasoning", "journals")


def refuse_misplaced(model: str, given: Mapping[str, object]) -> None:
    """InvalidArgument for an option that says nothing about this kind of model. given: all options, by name."""
    from gagpo.base.errors import InvalidArgument

    served = model.startswith(PREFIX)
    kind = "a model in this process" if served else f"a model behind a server ({PREFIX}MODEL)"
    for name in ("device", "revision") if served else _OPTIONS:
        if given[name] is not None:
            raise InvalidArgument(f"--{name.replace('_', '-')} is about {kind}, and {model} is none")


def settings(model: str, given: Mapping[str, Any]) -> ApiSettings | None:
    """How the model that ``openai:MODEL`` names is asked; None for any other. given: all options, by name."""
    from gagpo.agents.api.settings import ApiSettings

    if not model.startswith(PREFIX):
        return None
    chosen = {field: given[name] for name, field in _SETTINGS.items() if given[name] is not None}
    if given["completion_tokens"]:
        chosen["token_parameter"] = "max_completion_tokens"
    return ApiSettings(model.removeprefix(PREFIX), **chosen)
