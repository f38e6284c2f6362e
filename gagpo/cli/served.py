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


BaseUrl = Annotated[str | None, _option("URL of a compatible server; OpenAI's own by default.")]
KeepReasoning = Annotated[bool | None, _option("Keep the model's thoughts in the conversation.")]
Concurrency = Annotated[int | None, _option("Episodes at once; 16 by default.", min=1)]
Timeout = Annotated[float | None, _option("Seconds for one answer; 120 by default.", min=0.001)]
RequestsPerMinute = Annotated[float | None, _option("Rate limit of the server.", min=1)]
TokensPerMinute = Annotated[float | None, _option("Rate limit of the server.", min=1)]
PriceIn = Annotated[float | None, _option("Dollars per million tokens read.", min=0)]
PriceCached = Annotated[float | None, _option("Dollars per million tokens that the server had cached.", min=0)]
PriceOut = Annotated[float | None, _option("Dollars per million tokens written.", min=0)]
LimitCost = Annotated[float | None, _option("Stop after this many dollars.", min=0)]
LimitTokens = Annotated[int | None, _option("Stop after this many tokens.", min=0)]
KeyVariable = Annotated[str | None, _option("Environment variable with the key; OPENAI_API_KEY by default.")]
CompletionTokens = Annotated[bool | None, _option("Send max_completion_tokens, for models that refuse max_tokens.")]
Journals = Annotated[
    Path | None, _option("Folder for finished episodes, evals/ by default; a repeated command resumes.")
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


def settings(model: str, given: Mapping[str, Any]) -> ApiSettings | None:
    """How the server of ``openai:MODEL`` is asked; None for any other model.

    given: all options of the command, by name.

    Raises:
        InvalidArgument: an option of a served model is given for another one.
    """
    from gagpo.agents.api.settings import ApiSettings
    from gagpo.base.errors import InvalidArgument

    if not model.startswith(PREFIX):
        for name in _OPTIONS:
            if given[name] is not None:
                option = f"--{name.replace('_', '-')}"
                raise InvalidArgument(f"{option} is for a model behind a server ({PREFIX}MODEL), and {model} is not")
        return None
    chosen = {field: given[name] for name, field in _SETTINGS.items() if given[name] is not None}
    if given["completion_tokens"]:
        chosen["token_parameter"] = "max_completion_tokens"
    return ApiSettings(model.removeprefix(PREFIX), **chosen)
