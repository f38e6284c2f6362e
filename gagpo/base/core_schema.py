"""YAML 1.2 (core schema), by ruamel.yaml: ``yes`` and ``1:30`` are strings, and duplicate keys are errors."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.scanner import Scanner, ScannerError

from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.base.regular_file import read_bytes

_MOST_VALUES = 100_000  # with aliases written out
_MOST_NESTED = 200  # brackets; the time of ruamel.yaml's scanner grows with their square
_VERSION = (1, 2)


class NotYaml(ValueError):
    """A text that is not YAML, or is ambiguous; the message is one line."""


def parse_yaml(text: str) -> Any:
    """The value of a document: null, bool, int, float, str, and lists and dicts of them; NotYaml if it is invalid."""
    try:
        yaml: Any = YAML(typ="safe", pure=True)
        yaml.Scanner, yaml.Constructor = _Scanner, _Constructor
        value = yaml.load(text)
        _require_finite(value, 0)
    except DuplicateKeyError as error:
        named = re.search(r'duplicate key "(.*?)" with', str(error.problem), re.DOTALL)
        name = repr(named[1] if named else "")[1:-1]  # control characters escaped
        raise NotYaml(f"line {_line(error)}: the key {name:.80} is written twice") from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise NotYaml(f"line {line}: the character U+{error.character:04X} is not allowed; remove it") from None
    except MarkedYAMLError as error:
        problem = " ".join(str(error.problem or error.context).split())[:200]
        raise NotYaml(f"line {_line(error)}: {problem}") from None
    except RecursionError:
        raise NotYaml("nested too deeply, or an alias within its own value") from None
    except YAMLError as error:
        raise NotYaml(" ".join(str(error).split())[:200]) from None
    except NotYaml:
        raise
    except (ValueError, OverflowError, TypeError, LookupError, AttributeError):
        raise NotYaml("a number that is too long, an invalid escape or a tag that does not fit") from None
    return value


def write_yaml(values: object) -> str:
    """Plain values as YAML that :func:`parse_yaml` reads back."""
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style = False
    yaml.allow_unicode = True
    yaml.sort_base_mapping_type_on_output = False
    stream = io.StringIO()
    yaml.dump(values, stream)
    return stream.getvalue().removesuffix("...\n")


def read_mapping(path: Path, error: type[GagpoError] = InvalidArgument, keys: str = "") -> dict[str, object]:
    """The keys and values of a YAML file; ``error`` with its path if it cannot be read or does not hold ``keys``."""
    try:
        values = parse_yaml(read_bytes(path).decode("utf-8"))
    except OSError as caught:
        raise error(f"cannot be read: {caught.strerror}", where=path) from None
    except (NotYaml, UnicodeDecodeError) as caught:
        raise error(f"is not a YAML file: {caught}", where=path) from None
    if not isinstance(values, dict):
        raise error(f"must hold keys and values{keys and ': '}{keys}, got {type(values).__name__}", where=path)
    if odd := [key for key in values if not isinstance(key, str)]:
        raise error(f"the key {odd[0]!s:.40} is not text", where=path, advice="quote it")
    return values


class _Scanner(Scanner):
    """Reads YAML 1.2 only: in an older version the same text has other values (``yes``, ``010``, ``1:30``)."""

    def scan_yaml_directive_value(self, start_mark: Any) -> tuple[int, int]:
        version: tuple[int, int] = tuple(super().scan_yaml_directive_value(start_mark))
        if version != _VERSION:
            stated = f"%YAML {version[0]}.{version[1]}"
            raise ScannerError(None, None, f"{stated:.40} is not supported; write %YAML 1.2, or remove it", start_mark)
        return version

    def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:
        if len(self.flow_context) >= _MOST_NESTED:
            raise NotYaml(f"nested too deeply: more than {_MOST_NESTED} brackets")
        super().fetch_flow_collection_start(TokenClass, to_push)


class _Constructor(SafeConstructor):
    """Plain values; dates are strings."""


class _Representer(SafeRepresenter):
    """Plain values, texts of several lines as blocks.

    Unicode line breaks are escaped, because they would be read as spaces.
    """

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_text(self, data: str) -> Any:
        style = '"' if set(data) & {"\x85", "\u2028", "\u2029"} else None
        if "\n" in data and data.replace("\n", "").isprintable() and not data[0].isspace():
            style = "|"
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)
_Representer.add_representer(str, _Representer.represent_text)


def _require_finite(value: object, count: int) -> int:
    """``count`` plus the number of values in ``value``; NotYaml for too many and for lone surrogates."""
    if count > _MOST_VALUES:
        raise NotYaml(f"more than {_MOST_VALUES:,} values")
    if isinstance(value, str) and re.search("[\ud800-\udfff]", value):
        raise NotYaml("half a character (a lone surrogate)")
    values: list[object] = []
    if isinstance(value, dict):
        values = [*value.keys(), *value.values()]
    elif isinstance(value, list):
        values = value
    for part in values:
        count = _require_finite(part, count + 1)
    return count


def _line(error: MarkedYAMLError) -> int:
    mark = error.problem_mark or error.context_mark
    return int(mark.line) + 1 if mark else 1
