"""YAML as version 1.2 reads it: its core schema, and nothing that changes its meaning in silence.

PyYAML reads version 1.1, where ``yes`` is true, ``010`` is eight and ``1:30`` ninety, and takes the last of two equal
keys. Here these are the texts ``yes`` and ``1:30`` and the number ten (YAML 1.2.2, section 10.3), and a key that is
written twice is an error, as are tags beyond the schema's and an alias within what it stands for.
"""

from __future__ import annotations

import re

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

_TAG = "tag:yaml.org,2002:"
_PLAIN = {  # tag: what a plain scalar of it looks like, and how it may begin
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
    """A text that is no YAML, or none that has one meaning; the message is one line."""


def parse_yaml(text: str) -> object:
    """The value of a document: null, bool, int, float, str, and lists and dicts of such.

    Raises :class:`NotYaml`.
    """
    try:
        return yaml.load(text, _Reader)
    except yaml.MarkedYAMLError as error:
        mark, problem = error.problem_mark or error.context_mark, error.problem or error.context
        raise NotYaml(f"line {mark.line + 1}: {problem}" if mark else str(problem)) from None
    except RecursionError:
        raise NotYaml("nested too deeply") from None
    except (ValueError, OverflowError):
        raise NotYaml("an escape that stands for no character") from None
    except yaml.YAMLError as error:
        raise NotYaml(" ".join(str(error).split())[:200]) from None


def write_yaml(values: object) -> str:
    """Plain values as YAML that both versions read alike: a text that either takes for something else is quoted."""
    return yaml.dump(values, Dumper=_Writer, sort_keys=False, allow_unicode=True)


class _Reader(yaml.SafeLoader):
    def get_single_node(self) -> Node | None:
        node = super().get_single_node()
        if node is not None:
            _require_finite(node, {})
        return node


class _Writer(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_str(self, data: str) -> ScalarNode:
        """Line breaks that only Unicode knows are escaped: as they are, they would be read as spaces."""
        node = super().represent_str(data)
        if set(data) & {"\x85", "\u2028", "\u2029"}:
            node.style = '"'
        return node


def _require_finite(node: Node, sizes: dict[int, int]) -> int:
    """How many values ``node`` stands for; ConstructorError for one within itself, or far too many by its aliases."""
    if id(node) in sizes:
        if not sizes[id(node)]:
            raise ConstructorError(None, None, "an alias stands within what it stands for", node.start_mark)
        return sizes[id(node)]
    sizes[id(node)] = 0  # under way
    parts: list[Node] = [] if isinstance(node, ScalarNode) else list(node.value)
    if isinstance(node, MappingNode):
        parts = [part for pair in node.value for part in pair]
    size = 1 + sum(_require_finite(part, sizes) for part in parts)
    if size > _MOST_VALUES:
        raise ConstructorError(None, None, f"more than {_MOST_VALUES:,} values", node.start_mark)
    sizes[id(node)] = size
    return size


def _scalar(node: Node) -> str:
    if not isinstance(node, ScalarNode):
        raise ConstructorError(None, None, "a single value is missing", node.start_mark)
    return str(node.value)


def _null(reader: _Reader, node: Node) -> None:
    _like("null", node)


def _bool(reader: _Reader, node: Node) -> bool:
    return _like("bool", node).lower() == "true"


def _int(reader: _Reader, node: Node) -> int:
    text = _like("int", node)
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    return int(text if base == 10 else text[2:], base)


def _float(reader: _Reader, node: Node) -> float:
    text = _like("float", node).lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


def _like(kind: str, node: Node) -> str:
    """The scalar's text, which must look like ``kind``: a tag that is written out says so of any text."""
    text = _scalar(node)
    if not re.fullmatch(_PLAIN[kind][0], text):
        raise ConstructorError(None, None, f"{text[:40]!r} is no {kind}", node.start_mark)
    if len(text) > _LONGEST_NUMBER:
        raise ConstructorError(None, None, f"a number of {len(text)} characters", node.start_mark)
    return text


def _str(reader: _Reader, node: Node) -> str:
    text = _scalar(node)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConstructorError(None, None, "half a character (a lone surrogate)", node.start_mark) from None
    return text


def _list(reader: _Reader, node: Node) -> list[object]:
    if not isinstance(node, SequenceNode):
        raise ConstructorError(None, None, "a list is missing", node.start_mark)
    return [reader.construct_object(part, deep=True) for part in node.value]


def _dict(reader: _Reader, node: Node) -> dict[object, object]:
    if not isinstance(node, MappingNode):
        raise ConstructorError(None, None, "keys and values are missing", node.start_mark)
    found: dict[object, object] = {}
    lines: dict[object, int] = {}
    for key_node, value_node in node.value:
        key = reader.construct_object(key_node, deep=True)
        if isinstance(key, list | dict):
            raise ConstructorError(None, None, "a key must be a single value", key_node.start_mark)
        if key in found:
            where = f"first in line {lines[key] + 1}"
            raise ConstructorError(None, None, f"the key {key!s:.80} is written twice, {where}", key_node.start_mark)
        found[key] = reader.construct_object(value_node, deep=True)
        lines[key] = key_node.start_mark.line
    return found


def _unknown(reader: _Reader, node: Node) -> None:
    raise ConstructorError(None, None, f"the tag {node.tag} stands for nothing here", node.start_mark)


# The reader has the schema's tables in place of PyYAML's; the writer has them too, and quotes what either would read.
_Reader.yaml_implicit_resolvers, _Reader.yaml_constructors = {}, {}
for _kind, (_form, _starts) in _PLAIN.items():
    for _class in (_Reader, _Writer):
        _class.add_implicit_resolver(_TAG + _kind, re.compile(f"(?:{_form})$"), _starts)
for _name, _construct in {
    "null": _null,
    "bool": _bool,
    "int": _int,
    "float": _float,
    "str": _str,
    "seq": _list,
    "map": _dict,
}.items():
    _Reader.add_constructor(_TAG + _name, _construct)
_Writer.add_representer(str, _Writer.represent_str)
_Reader.add_constructor(None, _unknown)
