"""YAML 1.2 by its core schema: ``yes`` and ``1:30`` are texts, ``010`` is ten, and a key written twice is an error.

Texts are read and written by ruamel.yaml. Dates and tags beyond the schema are not supported.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, DuplicateKeyError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    Event,
    ScalarEvent,
)
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.resolver import BaseResolver

_TAG = "tag:yaml.org,2002:"
_PLAIN = {  # tag: form of its plain scalars, and their first characters (YAML 1.2.2, section 10.3)
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}

_LONGEST_NUMBER = 100  # characters
_MOST_VALUES = 100_000  # with aliases written out


class NotYaml(ValueError):
    """A text that is not YAML, or that means two things; the message is one line."""


def parse_yaml(text: str) -> object:
    """The value of a document: null, bool, int, float, str, and lists and dicts of them.

    Raises:
        NotYaml: the text cannot be read.
    """
    try:
        if "*" in text:
            _require_finite(_yaml().parse(text))
        return _yaml().load(text)
    except DuplicateKeyError as error:
        named = re.search(r'duplicate key "(.*?)" with', str(error.problem), re.DOTALL)
        key = " ".join(named[1].split())[:80] if named else ""
        raise NotYaml(f"line {_line(error)}: the key {key} is written twice") from None
    except MarkedYAMLError as error:
        problem = " ".join(str(error.problem or error.context).split())[:200]
        raise NotYaml(f"line {_line(error)}: {problem}") from None
    except RecursionError:
        raise NotYaml("nested too deeply") from None
    except NotYaml:
        raise
    except YAMLError as error:
        raise NotYaml(" ".join(str(error).split())[:200]) from None
    except (ValueError, OverflowError):
        raise NotYaml("an escape that stands for no character") from None


def write_yaml(values: object) -> str:
    """Plain values as YAML that :func:`parse_yaml` reads back."""
    stream = io.StringIO()
    _yaml().dump(values, stream)
    return stream.getvalue().removesuffix("...\n")


def _require_finite(events: Iterable[Event]) -> None:
    """Raise NotYaml for an alias inside its own value, and for too many values with aliases written out."""
    sizes: dict[str, int] = {}  # by anchor; 0 while its value is open
    counts, anchors = [0], list[str]()
    for event in events:
        if isinstance(event, CollectionStartEvent):
            counts.append(1)
            anchors.append(event.anchor or "")
            sizes[anchors[-1]] = 0
            continue
        if isinstance(event, CollectionEndEvent):
            size = sizes[anchors.pop()] = counts.pop()
        elif isinstance(event, AliasEvent):
            size = sizes.get(event.anchor, 1)
            if not size:
                raise NotYaml(f"line {event.start_mark.line + 1}: an alias stands within what it stands for")
        elif isinstance(event, ScalarEvent):
            size = sizes[event.anchor or ""] = 1
        else:
            continue
        counts[-1] += size
        if counts[-1] > _MOST_VALUES:
            raise NotYaml(f"line {event.start_mark.line + 1}: more than {_MOST_VALUES:,} values")


def _line(error: MarkedYAMLError) -> int:
    mark = error.problem_mark or error.context_mark
    return int(mark.line) + 1 if mark else 1


class _Resolver(BaseResolver):
    """The core schema's scalars, whatever version a document names."""

    processing_version = (1, 2)

    def __init__(self, version: object = None, loader: object = None):
        super().__init__(loadumper=loader)

    def add_version_12(self, version: object) -> None:
        """A directive with a version changes nothing."""


class _Constructor(SafeConstructor):
    """Values of the core schema."""

    def like(self, kind: str, node: Node) -> str:
        """The scalar's text, which a tag may have called a ``kind`` that it does not look like."""
        text = str(self.construct_scalar(node))
        if not re.fullmatch(_PLAIN[kind][0], text):
            raise ConstructorError(None, None, f"{text[:40]!r} is not of type {kind}", node.start_mark)
        if len(text) > _LONGEST_NUMBER:
            raise ConstructorError(None, None, f"a number of {len(text)} characters", node.start_mark)
        return text

    def construct_null(self, node: Node) -> None:
        self.like("null", node)

    def construct_bool(self, node: Node) -> bool:
        return self.like("bool", node).lower() == "true"

    def construct_int(self, node: Node) -> int:
        text = self.like("int", node)
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        return int(text if base == 10 else text[2:], base)

    def construct_float(self, node: Node) -> float:
        return float(self.like("float", node).lower().replace(".inf", "inf").replace(".nan", "nan"))

    def construct_text(self, node: Node) -> str:
        text = str(self.construct_scalar(node))
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ConstructorError(None, None, "half a character (a lone surrogate)", node.start_mark) from None
        return text

    def construct_pairs_once(self, node: Node) -> Iterator[dict[object, object]]:
        if not isinstance(node, MappingNode):
            raise ConstructorError(None, None, "keys and values are missing", node.start_mark)
        for key, _ in node.value:
            if not isinstance(key, ScalarNode):
                raise ConstructorError(None, None, "a key must be a single value", key.start_mark)
        found: dict[object, object] = {}
        yield found
        found.update(self.construct_mapping(node, deep=True))

    def refuse(self, node: Node) -> None:
        raise ConstructorError(None, None, f"the tag {node.tag} is not supported", node.start_mark)


class _Representer(SafeRepresenter):
    """Plain values; line breaks that only Unicode knows are escaped, or they would be read as spaces."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_text(self, data: str) -> Any:
        style = '"' if set(data) & {"\x85", "\u2028", "\u2029"} else None
        return self.represent_scalar(_TAG + "str", data, style=style)


for _kind, (_form, _starts) in _PLAIN.items():
    _Resolver.add_implicit_resolver(_TAG + _kind, re.compile(f"(?:{_form})$"), _starts)
_Constructor.yaml_constructors = {
    _TAG + "null": _Constructor.construct_null,
    _TAG + "bool": _Constructor.construct_bool,
    _TAG + "int": _Constructor.construct_int,
    _TAG + "float": _Constructor.construct_float,
    _TAG + "str": _Constructor.construct_text,
    _TAG + "seq": SafeConstructor.construct_yaml_seq,
    _TAG + "map": _Constructor.construct_pairs_once,
    None: _Constructor.refuse,
}
_Representer.add_representer(str, _Representer.represent_text)


def _yaml() -> YAML:
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.Resolver, yaml.Constructor, yaml.Representer = _Resolver, _Constructor, _Representer
    yaml.default_flow_style, yaml.allow_unicode, yaml.sort_base_mapping_type_on_output = False, True, False
    return yaml
