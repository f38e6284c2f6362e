"""What an environment offers to be called: tools by name, with a sentence and the JSON schema of their arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from gagpo.base.errors import InvalidArgument
from gagpo.base.nearest import nearest
from gagpo.envs.tools.call import CallError, ToolCall, quoted

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_WORDS = ("", "a", "red mug", "12", "1+1", "Zoë")  # texts that a player without any idea might try


class Arguments(BaseModel):
    """Base of a tool's arguments: a text is no number, and nobody makes up arguments."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Schema(GenerateJsonSchema):
    """Without titles: they repeat the names, and a prompt holds the whole schema."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


@dataclass(frozen=True)
class Tool:
    """name: letters, digits, ``_``, ``-`` and ``.``; at most 64. parameters: a JSON schema of an object. model: what
    checks arguments, for a tool of this process; without one the environment that is called checks them.

    >>> class Walk(Arguments):
    ...     steps: int = Field(ge=1, description="how many")
    >>> walk = Tool.of("walk", "Walk on.", Walk)
    >>> walk.parameters["properties"]
    {'steps': {'description': 'how many', 'minimum': 1, 'type': 'integer'}}
    >>> walk.fit({"steps": 2}).steps
    2
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    model: type[BaseModel] | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidArgument(
                f"a tool's name is of letters, digits, _, - and ., and at most 64 of them, got {quoted(self.name)}"
            )
        if self.parameters.get("type") != "object":
            raise InvalidArgument(f"tool {self.name}: its parameters are a JSON schema with type 'object'")

    @classmethod
    def of(cls, name: str, description: str, arguments: type[BaseModel]) -> Tool:
        """A tool whose arguments are the fields of a pydantic model; each field's description is told to the model."""
        schema = arguments.model_json_schema(schema_generator=_Schema)
        for part in (schema, *schema.get("$defs", {}).values()):
            part.pop("title", None)
            if part.get("description") == (arguments.__doc__ or "").strip():
                part.pop("description", None)  # what the tool does is said beside its name
        schema.setdefault("properties", {})
        return cls(name, description, schema, arguments)

    @property
    def spec(self) -> dict[str, Any]:
        """The tool as chat templates and chat servers take it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    def fit(self, arguments: dict[str, JsonValue]) -> Any:
        """The arguments as the model's object, or as they are where there is no model; CallError says what is wrong."""
        if self.model is None:
            return arguments
        try:
            return self.model.model_validate_json(ToolCall(self.name, arguments).arguments_text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            where = f"argument {quoted(place)} of {self.name}" if place else f"the arguments of {self.name}"
            more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
            raise CallError(f"{where}: {first['msg']}{more}") from None

    def sample(self, rng: np.random.Generator) -> ToolCall:
        """A call with arguments that somebody without any idea might try; most of them fit the schema."""
        properties = cast(Mapping[str, Any], self.parameters.get("properties") or {})
        named = cast(Mapping[str, Any], self.parameters.get("$defs") or {})
        return ToolCall(self.name, {str(name): _value(schema, rng, named) for name, schema in properties.items()})


def tools_of(env: object) -> tuple[Tool, ...]:
    """What an environment declares; nothing for one that declares none, and for an attribute of that name of another kind."""
    found = getattr(env, "tools", ())
    is_declared = isinstance(found, Sequence) and all(isinstance(tool, Tool) for tool in found)
    return tuple(found) if is_declared else ()


def find_tool(tools: Sequence[Tool], name: str) -> Tool:
    """The tool of that name; CallError names the nearest ones."""
    for tool in tools:
        if tool.name == name:
            return tool
    names = [tool.name for tool in tools]
    near = nearest(name[:64], names) or names[:5]
    raise CallError(f"there is no tool {quoted(name)}; there is {', '.join(near) or 'none'}")


def _value(schema: object, rng: np.random.Generator, named: Mapping[str, Any], depth: int = 3) -> JsonValue:
    """A value of the schema's type; what is not understood, or lies too deep, becomes a text.

    named: schemas that others refer to.
    """
    schema = schema if isinstance(schema, Mapping) else {}
    schema = named.get(str(schema.get("$ref", "")).removeprefix("#/$defs/"), schema) if "$ref" in schema else schema
    for key in ("enum", "anyOf"):
        choices = schema.get(key)
        if isinstance(choices, list) and choices:
            choice = choices[int(rng.integers(len(choices)))]
            return cast(JsonValue, choice) if key == "enum" else _value(choice, rng, named, depth)
    kind = schema.get("type") if depth else "string"
    if kind == "integer":
        low = schema.get("minimum", 0)
        return (int(low) if isinstance(low, int) else 0) + int(rng.integers(0, 10))
    if kind == "number":
        return round(float(rng.normal(0, 10)), 2)
    if kind in ("boolean", "null"):
        return bool(rng.integers(2)) if kind == "boolean" else None
    if kind == "array":
        return [_value(schema.get("items"), rng, named, depth - 1) for _ in range(int(rng.integers(3)))]
    if kind == "object":
        properties = cast(Mapping[str, Any], schema.get("properties") or {})
        return {str(name): _value(part, rng, named, depth - 1) for name, part in properties.items()}
    return _WORDS[int(rng.integers(len(_WORDS)))]


class _Command(Arguments):
    command: str = Field(description="the action, as the environment takes it")


ACT = Tool.of("act", "Do one action in the environment; what you see then is the answer.", _Command)
"""What an environment that declares no tools is called by: its argument ``command`` is the environment's action."""
