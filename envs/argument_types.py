"""The types of arguments, compared with the annotations of a constructor.

YAML 1.2 reads ``no`` and ``off`` as text, and text is true: unchecked, ``tools=no`` turns tools on. Plain types, paths,
literals, and lists, mappings and unions of them are checked. Any other annotation accepts every value.
"""

from __future__ import annotations

import inspect
import os
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

from gagpo.base.errors import InvalidArgument

_PLAIN: dict[type, tuple[tuple[type, ...], tuple[str, ...]]] = {
    bool: ((bool, np.bool_), ("true", "false")),
    int: ((Integral,), ("an integer",)),
    float: ((Real,), ("a number",)),
    str: ((str,), ("text",)),
    Path: ((str, os.PathLike), ("text",)),
}
"""For a plain type, the types of values that are accepted for it, and the values in words."""
_MAPPINGS = (dict, Mapping)
_LISTS = (list, tuple, set, frozenset, Sequence, Collection, Iterable)
_PLURALS = {"an integer": "integers", "a number": "numbers", "text": "texts"}


def require_types(owner: str, cls: type, arguments: Mapping[str, object]) -> None:
    """Compare ``arguments`` with the annotations of the constructor of ``cls``, and of those of its base classes.

    An annotation that does not fit the parameter's default is wrong itself, and is ignored.

    owner: the start of the message.

    Raises:
        InvalidArgument: an argument has another type than its parameter.
    """
    parameters = _typed_parameters(cls)
    for name, value in arguments.items():
        if name not in parameters:
            continue
        annotation, default = parameters[name]
        is_wrong = default is not inspect.Parameter.empty and not fits(default, annotation)
        if not is_wrong and not fits(value, annotation):
            raise InvalidArgument(f"{name} must be {_words(annotation)} (got {value!r:.80})", key=name, where=owner)


def fits(value: object, annotation: Any) -> bool:
    """Whether ``value`` may be passed where ``annotation`` is declared; an integer is a number, any iterable a list.

    >>> fits(3, float), fits(True, int), fits("no", bool), fits("ab", list[str]), fits((1, 2), list[int] | None)
    (True, False, False, False, True)
    """
    origin = get_origin(annotation) or annotation
    alternatives = get_args(annotation)
    if origin is Union or origin is UnionType:
        return any(fits(value, alternative) for alternative in alternatives)
    if origin is Literal:
        return any(isinstance(value, type(alternative)) and value == alternative for alternative in alternatives)
    if not isinstance(origin, type):
        return True
    if origin is NoneType:
        return value is None
    if origin in _PLAIN:
        is_flag = isinstance(value, bool | np.bool_)
        return isinstance(value, _PLAIN[origin][0]) and (origin is bool or not is_flag)
    if origin in _MAPPINGS:
        return isinstance(value, Mapping) and all(
            fits(item, alternative)
            for pair in value.items()
            for item, alternative in zip(pair, alternatives, strict=False)
        )
    if origin in _LISTS:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            return False
        items = value if isinstance(value, Collection) and alternatives else ()
        return all(
            any(fits(item, alternative) for alternative in alternatives if alternative is not ...) for item in items
        )
    return True


def _typed_parameters(cls: type) -> dict[str, tuple[Any, object]]:
    """Annotation and default of each parameter, of the most derived constructor that has it."""
    parameters: dict[str, tuple[Any, object]] = {}
    for constructor in (vars(base)["__init__"] for base in reversed(cls.__mro__[:-1]) if "__init__" in vars(base)):
        try:
            annotations = typing.get_type_hints(constructor)
        except Exception:  # other people's annotations may name what is imported for type checkers only
            annotations = {}
        for name, parameter in inspect.signature(constructor).parameters.items():
            parameters[name] = (annotations.get(name, Any), parameter.default)
    return parameters


def _words(annotation: Any) -> str:
    """The accepted values in words; null only if it is the only one."""
    *choices, last = list(dict.fromkeys(_choices(annotation))) or ["null"]
    return f"{', '.join(choices)} or {last}" if choices else last


def _choices(annotation: Any) -> list[str]:
    origin = get_origin(annotation) or annotation
    alternatives = get_args(annotation)
    if origin is Union or origin is UnionType:
        return [choice for alternative in alternatives for choice in _choices(alternative)]
    if origin is Literal:
        return list(map(repr, alternatives))
    if not isinstance(origin, type) or origin is NoneType:
        return []
    if origin in _PLAIN:
        return list(_PLAIN[origin][1])
    plurals = [_PLURALS.get(_words(alternative), "") for alternative in alternatives]
    if origin in _MAPPINGS:
        return [f"a mapping of {plurals[0]} to {plurals[1]}" if plurals and all(plurals) else "a mapping"]
    return [f"a list of {plurals[0]}" if plurals and plurals[0] else "a list"]
