"""Settings of a model behind a server; they import no client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from pydantic import Field

from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Flag

if TYPE_CHECKING:
    from gagpo.agents.api.answer import Usage

OPENAI = "https://api.openai.com/v1"

PREFIX = "openai:"
"""Marks the name of a model behind a server, as in ``openai:MODEL``."""


@dataclass(frozen=True)
class ApiSettings:
    """A model behind a server. Fields with a ``Flag`` are options of ``gagpo eval``, described by their help text.

    model: its name at the server.
    base_url: of a compatible server; None for OpenAI's own.
    key_variable: environment variable that holds the key; a local server needs none.
    timeout: seconds for one answer, to its last byte.
    attempts: most attempts of one request.
    input_price, output_price: dollars per million tokens read and written.
    cached_price: dollars per million tokens that the server had cached; None for the input price.
    limit_cost: dollars after which no request is sent.
    """

    model: str
    base_url: Annotated[str | None, Flag(), Field(description="URL of a compatible server; by default OpenAI's.")] = (
        None
    )
    key_variable: Annotated[
        str, Flag(), Field(description="Environment variable with the API key; OPENAI_API_KEY by default.")
    ] = "OPENAI_API_KEY"
    timeout: Annotated[
        float, Flag(), Field(description="Timeout of a request in seconds; 120 by default.", ge=0.001)
    ] = 120.0
    attempts: int = 8
    input_price: Annotated[float, Flag("--price-in"), Field(description="Dollars per million input tokens.", ge=0)] = (
        0.0
    )
    cached_price: Annotated[
        float | None, Flag("--price-cached"), Field(description="Dollars per million cached input tokens.", ge=0)
    ] = None
    output_price: Annotated[
        float, Flag("--price-out"), Field(description="Dollars per million output tokens.", ge=0)
    ] = 0.0
    limit_cost: Annotated[float | None, Flag(), Field(description="Stop at this cost in dollars.", ge=0)] = None

    def __post_init__(self) -> None:
        if not self.model:
            raise InvalidArgument(f"name the model, as in {PREFIX}MODEL", key="model")
        if self.attempts < 1 or self.timeout <= 0:
            raise InvalidArgument("attempts and timeout must be positive")
        for name, value in vars(self).items():
            if isinstance(value, float | int) and not 0 <= value < float("inf"):
                raise InvalidArgument(f"{name} must be a finite number of at least 0, got {value}", key=name)
        if self.limit_cost is not None and not (self.input_price or self.output_price):
            raise InvalidArgument(
                "a limit on the cost needs prices", key="limit_cost", advice="give --price-in and --price-out"
            )
        if self.base_url is not None and not _is_address(self.base_url):
            raise InvalidArgument(
                f"{self.base_url!r:.80} is not an http address of a server",
                key="base_url",
                advice="give one such as http://127.0.0.1:8000/v1",
            )

    @property
    def url(self) -> str:
        """The address of the server's API, as the ``openai`` package takes it."""
        return (self.base_url or OPENAI).rstrip("/")

    def cost(self, usage: Usage) -> float:
        """Cost in dollars."""
        cached = self.input_price if self.cached_price is None else self.cached_price
        fresh = usage.prompt - usage.cached
        return (fresh * self.input_price + usage.cached * cached + usage.completion * self.output_price) / 1e6


def _is_address(url: str) -> bool:
    try:
        address = urlsplit(url)
        return address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:  # a port that is not a number
        return False
