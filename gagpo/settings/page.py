"""The settings reference, made from the code: every key with its type, its default and one sentence.

python -m gagpo.settings.page > docs/settings.md
"""

from __future__ import annotations

import functools
import inspect
import operator
import re
import sys
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gagpo.base.tables import Table
from gagpo.controllers.curriculum import Curriculum
from gagpo.settings import RunSettings
from gagpo.settings.keys import options

HEAD = """# Settings

Every key of a run's YAML, made from the code by `python -m gagpo.settings.page`. On the command line a key is
written with dots: `gagpo train alfworld-small rollout.tasks=8`. Keys of `algorithm` are cells of
[the table](algorithms.md), where the options of every credit, gate and controller stand.
"""


def page() -> str:
    """The reference as Markdown."""
    parts = [HEAD]
    for path, model in sections(RunSettings):
        name = model.model_fields.get("name")
        which = f" ({name.default})" if issubclass(model, Curriculum) and name is not None else ""
        parts.append(f"\n## {path or 'Top level'}{which}\n\n{_first_paragraph(model)}\n")
        rows = [
            [f"`{name}`", _type(field), _default(field), meaning(name, field, path)]
            for name, field in model.model_fields.items()
        ]
        parts += Table(["key", "type", "default", "meaning"], rows).markdown()
    return "\n".join(parts) + "\n"


def sections(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every section of the settings with its path, outer ones first; algorithms have a page of their own."""
    yield path, model
    for name, field in model.model_fields.items():
        for section in options(field.annotation) if name != "algorithm" else ():
            if path and issubclass(section, Curriculum):  # the same as of the run
                continue
            yield from sections(section, f"{path}.{name}".strip("."))


def meaning(name: str, field: FieldInfo, path: str = "") -> str:
    """The sentence about a key: its description; a section is described under its own heading."""
    text = field.description or ""
    if not text and options(field.annotation):
        anchor = f"{path}.{name}".replace(".", "")
        text = "a row of [the table](algorithms.md)" if name == "algorithm" else f"see [{name}](#{anchor})"
    return " ".join(text.split()).rstrip(".;")


def _first_paragraph(model: type[BaseModel]) -> str:
    return " ".join(inspect.cleandoc(model.__doc__ or "").split("\n\n")[0].split())


def _type(field: FieldInfo) -> str:
    text = inspect.formatannotation(_bare(field.annotation)).replace("typing.", "")
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)
    text = re.sub(r"Literal\[([^\]]*)\]", lambda m: m[1].replace(", ", " or ").replace("'", ""), text)
    text = re.sub(r"Union\[([^\]]*)\]", lambda m: m[1].replace(", ", " | ").replace("NoneType", "None"), text)
    bounds = [_bound(one) for one in field.metadata if _bound(one)]
    return text.replace(" | ", " or ") + (f", {' and '.join(bounds)}" if bounds else "")


def _bare(annotation: Any) -> Any:
    """A type without what is only checked of it."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return functools.reduce(operator.or_, map(_bare, get_args(annotation)))
    return annotation


def _bound(one: object) -> str:
    signs = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
    return " and ".join(f"{sign} {getattr(one, name)}" for name, sign in signs if getattr(one, name, None) is not None)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True) if field.default is PydanticUndefined else field.default
    if isinstance(value, BaseModel):
        return "its defaults"
    return "none" if value is None else f"`{value}`"


if __name__ == "__main__":
    sys.stdout.write(page())
