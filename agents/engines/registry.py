"""Engines by name; :mod:`gagpo.base.registry` explains how a package or a file adds one.

An entry is a class derived from :class:`gagpo.agents.engines.options.EngineOptions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, ValidationError, model_serializer

from gagpo.agents.engines.base import Engine
from gagpo.agents.engines.offers import engine_offers
from gagpo.agents.engines.options import EngineInputs, EngineOptions
from gagpo.base import renamed
from gagpo.base.errors import InvalidArgument
from gagpo.base.options import explain
from gagpo.base.registry import Registry


def _require_options(entry: Any, title: str) -> None:
    """Raise InvalidArgument unless a registered object is a class of options."""
    if not isinstance(entry, type) or not issubclass(entry, EngineOptions):
        raise InvalidArgument(
            f"{title} is not a class of options",
            advice=(
                f"derive one from {EngineOptions.__module__}.EngineOptions, with a method build(inputs) "
                "that returns the engine"
            ),
        )


ENGINES: Registry[type[EngineOptions]] = Registry(
    "engine",
    "gagpo.engines",
    {
        "transformers": "gagpo.agents.engines.transformers_options:TransformersOptions",
        **{name: address for offer in engine_offers() for name, address in offer.engines.items()},
    },
    _require_options,
    home="gagpo/agents/engines",
)
for _offer in engine_offers():
    renamed.ARGUMENTS.update(_offer.renamed_options)


def engine_options(name: str, values: Mapping[str, Any] | None = None) -> EngineOptions:
    """The options of the engine called ``name``. Raises: InvalidArgument naming wrong options and the nearest ones."""
    options_class = ENGINES.find(name)
    if options_class.build is EngineOptions.build:
        raise InvalidArgument(
            f"engine {name} has no method build(inputs) that returns the engine", advice="add it to the class"
        )
    for option in values or {}:
        if reason := renamed.replacement(renamed.ARGUMENTS.get(name, {}), option, "option"):
            raise InvalidArgument(reason, key=option, where=f"engine {name}")
    try:
        return options_class.model_validate(dict(values or {}))
    except ValidationError as error:
        raise explain(error, options_class.model_fields, f"engine {name}") from None


class StoredOptions(EngineOptions):
    """The options of a stored run whose engine is code of others, which reading a run must not import.

    They are validated when the engine is built.
    """

    takes_memory: ClassVar[bool] = True  # unknown until the engine is imported

    engine: str = Field(description="name of the engine")
    values: dict[str, Any] = Field({}, description="the options")

    @model_serializer
    def _written(self) -> dict[str, Any]:
        return self.values

    def build(self, inputs: EngineInputs) -> Engine:
        """Import the engine's module and build the engine."""
        return engine_options(self.engine, self.values).build(inputs)
