"""The tools of an environment: name, description and JSON schema of the arguments."""

from __future__ import annotations

import json
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
_WORDS = ("", "a", "red mug", "12", "1+1", "Zoë")  # random text arguments


class Arguments(BaseModel):
    """Base class of a tool's arguments: strict types, and unknown arguments are rejected."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Schema(GenerateJsonSchema):
    """Omits titles, which repeat the names: a prompt contains the whole schema."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


@dataclass(frozen=True)
class Tool:
    """A tool that a model can call.

    name: at most 64 letters, digits, ``_``, ``-`` and ``.``.
    parameters: a JSON schema of type ``object``.
    model: validates the arguments; if None, the called environment validates them.

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
            allowed = "at most 64 letters, digits, _, - and ."
            raise InvalidArgument(f"a tool's name must consist of {allowed}, got {quoted(self.name)}", key="name")
        if self.parameters.get("type") != "object":
            raise InvalidArgument(
                "its parameters must be a JSON schema with type 'object'", key="parameters", where=f"tool {self.name}"
            )

    @classmethod
    def of(cls, name: str, description: str, arguments: type[BaseModel]) -> Tool:
        """A tool whose arguments are the fields of a pydantic model, with their descriptions."""
        schema = arguments.model_json_schema(schema_generator=_Schema)
        for schema_part in (schema, *schema.get("$defs", {}).values()):
            schema_part.pop("title", None)
            if schema_part.get("description") == (arguments.__doc__ or "").strip():
                schema_part.pop("description", None)  # the tool has its own description
        schema.setdefault("properties", {})
        return cls(name, description, schema, arguments)

    @property
    def spec(self) -> dict[str, Any]:
        """The tool in the format of chat templates and chat servers."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    def fit(self, arguments: dict[str, JsonValue]) -> Any:
        """The arguments as an instance of the model, or unchanged if there is none; raises CallError."""
        if self.model is None:
            return arguments
        try:
            return self.model.model_validate_json(json.dumps(arguments, ensure_ascii=False))
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            key = ".".join(map(str, problem["loc"]))
            where = f"argument {quoted(key)} of {self.name}" if key else f"the arguments of {self.name}"
            remainder = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
            raise CallError(f"{problem['msg']}{remainder}", where=where) from None

    def sample(self, rng: np.random.Generator) -> ToolCall:
        """A call with random arguments, most of which fit the schema."""
        properties = cast(Mapping[str, Any], self.parameters.get("properties") or {})
        definitions = cast(Mapping[str, Any], self.parameters.get("$defs") or {})
        return ToolCall(self.name, {str(name): _value(schema, rng, definitions) for name, schema in properties.items()})


def tools_of(env: object) -> tuple[Tool, ...]:
    """The tools that an environment declares; empty if it has no attribute ``tools``, or one of another kind."""
    tools = getattr(env, "tools", ())
    return tuple(tools) if isinstance(tools, Sequence) and all(isinstance(tool, Tool) for tool in tools) else ()


def find_tool(tools: Sequence[Tool], name: str) -> Tool:
    """The tool called ``name``; raises CallError with the nearest names."""
    by_name = {tool.name: tool for tool in tools}
    if name in by_name:
        return by_name[name]
    near = nearest(name[:64], list(by_name)) or list(by_name)[:5]
    raise CallError(f"there is no tool {quoted(name)}", advice=f"there is {', '.join(near) or 'none'}")


def _value(schema: object, rng: np.random.Generator, definitions: Mapping[str, Any], depth: int = 3) -> JsonValue:
    """A random value of the schema's type; a text if the schema is unknown or too deep.

    definitions: schemas under ``$defs``.
    depth: nested levels below this value.
    """
    fields: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
    if "$ref" in fields:
        fields = definitions.get(str(fields["$ref"]).removeprefix("#/$defs/"), fields)
    for key in ("enum", "anyOf"):
        choices = fields.get(key)
        if isinstance(choices, list) and choices:
            choice = choices[int(rng.integers(len(choices)))]
            return cast(JsonValue, choice) if key == "enum" else _value(choice, rng, definitions, depth)
    type_name = fields.get("type") if depth else "string"
    if type_name == "integer":
        low = fields.get("minimum", 0)
        return (int(low) if isinstance(low, int) else 0) + int(rng.integers(0, 10))
    if type_name == "number":
        return round(float(rng.normal(0, 10)), 2)
    if type_name in ("boolean", "null"):
        return bool(rng.integers(2)) if type_name == "boolean" else None
    if type_name == "array":
        return [_value(fields.get("items"), rng, definitions, depth - 1) for _ in range(int(rng.integers(3)))]
    if type_name == "object":
        properties = cast(Mapping[str, Any], fields.get("properties") or {})
        return {str(name): _value(item_schema, rng, definitions, depth - 1) for name, item_schema in properties.items()}
    return _WORDS[int(rng.integers(len(_WORDS)))]


class _Command(Arguments):
    command: str = Field(description="the action, as the environment takes it")


ACT = Tool.of("act", "Do one action in the environment; what you see then is the answer.", _Command)
"""The tool of an environment that declares none: its argument ``command`` is the action."""
