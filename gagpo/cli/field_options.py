"""Options of a command generated from the fields of a request: names, types, defaults, ranges and help texts."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer
from annotated_types import Ge
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gagpo.base.options import Flag
from gagpo.cli.options import values


@dataclass(frozen=True)
class FieldOption:
    """An option of a command that comes from a field.

    path: the names of the field's sections, and its own.
    flag: as it is typed, such as ``--price-in``.
    pairs: whether it is repeated ``name=value`` pairs.
    parameter: for typer.
    """

    path: tuple[str, ...]
    flag: str
    pairs: bool
    parameter: inspect.Parameter


def field_options(request: type, path: tuple[str, ...] = (), panel: str = "") -> list[FieldOption]:
    """The options of the fields that are marked with :class:`gagpo.base.options.Flag`, and of marked sections.

    path: of ``request``, if it is a section.
    panel: title of the options in the help; "" for none.
    """
    options = []
    for name, field in _fields(request).items():
        flag = next((mark for mark in field.metadata if isinstance(mark, Flag)), None)
        if flag is None:
            continue
        field_type = _first_type(field.annotation)
        if _is_section(field_type):
            options += field_options(field_type, (*path, name), flag.panel)
        else:
            options.append(_field_option((*path, name), field_type, field, flag, panel))
    return options


def with_field_options(request: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of ``request``, before those in its own signature; it gets them as ``**options``."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        generated = [option.parameter for option in field_options(request)]
        signature = inspect.signature(command, eval_str=True)
        declared = [
            parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD
        ]
        # typer reads the signature; a repeated name is an error here.
        command.__signature__ = signature.replace(parameters=[*generated, *declared])  # type: ignore[attr-defined]
        return command

    return decorate


def request_values(request: type, options: Mapping[str, object]) -> dict[str, Any]:
    """What the user typed as values of the fields, those of sections nested; options that are None are left out."""
    nested: dict[str, Any] = {}
    for option in field_options(request):
        value = options[option.parameter.name]
        if value is None:
            continue
        section = nested
        for name in option.path[:-1]:
            section = section.setdefault(name, {})
        section[option.path[-1]] = values(value) if option.pairs else value  # type: ignore[arg-type]
    return nested


def _fields(request: Any) -> Mapping[str, FieldInfo]:
    """The fields of a pydantic model or a dataclass."""
    if issubclass(request, BaseModel):
        model_fields: dict[str, FieldInfo] = request.model_fields
        return model_fields
    hints = get_type_hints(request, include_extras=True)
    return {field.name: FieldInfo.from_annotation(hints[field.name]) for field in dataclasses.fields(request)}


def _first_type(annotation: Any) -> Any:
    """The type itself, or the first of a union."""
    return get_args(annotation)[0] if get_origin(annotation) in _UNIONS else annotation


_UNIONS = (Union, type(int | str))


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and (issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind))


def _field_option(path: tuple[str, ...], kind: Any, field: FieldInfo, flag: Flag, panel: str) -> FieldOption:
    name = path[-1]
    minimum: Any = next((mark.ge for mark in field.metadata if isinstance(mark, Ge)), None)
    pairs = get_origin(kind) is Mapping
    if pairs:
        kind = list[str]
    names = flag.names or (f"--{name.replace('_', '-')}",)
    info: Any = typer.Option(*flag.names, help=field.description, min=minimum, rich_help_panel=panel or None)
    default: Any = field.default
    if field.is_required() and len(path) == 1:
        info, default = typer.Argument(help=field.description), inspect.Parameter.empty
    elif len(path) > 1:
        default = None  # whether an option of a section was typed decides whether the section is used
    if default is None:
        kind = kind | None
    annotation = Annotated[kind, info]
    parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    return FieldOption(path, names[0], pairs, parameter)
