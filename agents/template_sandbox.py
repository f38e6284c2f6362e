"""A Jinja environment for templates that are not trusted: what a template computes takes bounded time and memory.

Every value that a template makes is counted when it is made: literals, sums, concatenations, results of filters and of
calls, loop turns and output. So no value is ever larger than ``MOST_TEXT``, however it is repeated or nested, and all
of them together are at most ``MOST_WORK``. The same fields always give the same text: nothing is random.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Set, ValuesView
from contextlib import contextmanager
from typing import Any, TypeVar

from jinja2 import StrictUndefined, Undefined, nodes
from jinja2.filters import FILTERS
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from gagpo.base.errors import InvalidArgument

MOST_SOURCE = 100_000  # characters of a template
MOST_NESTED = 100  # levels of a template and of a value
MOST_TEXT = 1_000_000  # characters that a template may write, and of each value
MOST_WORK = 5_000_000  # characters and items of all values together
MOST_SECONDS = 5.0  # of the processor
MOST_ARGUMENT = 1000  # characters of a text that is looked for: some searches take the product of both lengths
TURN = 20  # work of one turn of a loop, and of a test

_TEXT_FILTERS = (
    "capitalize", "indent", "lower", "string", "title", "trim", "truncate", "upper", "wordcount",
)  # fmt: skip
_FILTERS = (
    "abs", "batch", "count", "d", "default", "dictsort", "first", "float", "int", "items", "last", "length", "list",
    "map", "max", "min", "reject", "rejectattr", "reverse", "round", "select", "selectattr", "slice", "sort", "sum",
    "tojson", "unique",
)  # fmt: skip
_LIMITS = {"batch": 10_000, "indent": 100, "round": 15, "slice": 10_000, "tojson": 8, "trim": 1000}
"""The greatest number and the longest text that some filters take as arguments: without a limit these write more."""

_GLOBALS = ("range", "dict", "namespace", "joiner", "cycler")
_TEXT_METHODS = (
    "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal",
    "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition",
    "removeprefix", "removesuffix", "replace", "rsplit", "rstrip", "split",
    "splitlines", "startswith", "strip", "swapcase", "title", "upper",
)  # fmt: skip
_STATEMENTS: dict[type[nodes.Node], str] = {
    nodes.Macro: "macro",
    nodes.CallBlock: "call",
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "from",
    nodes.Extends: "extends",
    nodes.Block: "block",
    nodes.ScopedEvalContextModifier: "autoescape",
}
# Filters that no template can name, because names have no spaces.
_COUNT = " count"
_TEXT = " text"
_TURNS = " turns"

T = TypeVar("T")


class _Budget(threading.local):
    """What the template that this thread fills may still do."""

    work = 0
    end = 0.0

    def spend(self, work: int) -> None:
        """Raise InvalidArgument if all work or time is used up."""
        self.work -= work
        if self.work < 0 or time.thread_time() > self.end:
            raise InvalidArgument("takes too much time or memory", advice="shorten its loops")


_BUDGET = _Budget()


@contextmanager
def bounded() -> Iterator[None]:
    """Give the templates that this thread compiles and fills a budget."""
    _BUDGET.work, _BUDGET.end = MOST_WORK, time.thread_time() + MOST_SECONDS
    yield


def _size(value: object, limit: int = MOST_TEXT, depth: int = 1) -> int:
    """The characters and items of ``value`` written out, deeper ones counting more.

    Raises: InvalidArgument above ``limit``.
    """
    if isinstance(value, str):
        size = depth + len(value)
    elif isinstance(value, int):
        size = depth + value.bit_length() // 3
    else:
        size = depth
        if depth > MOST_NESTED:
            raise InvalidArgument(f"makes a value nested more than {MOST_NESTED} deep")
        for item in _parts(value):
            size += _size(item, limit - size, depth + 1)
    if size > limit:
        raise InvalidArgument(f"makes a value of more than {MOST_TEXT:,} characters or items")
    return size


def _parts(value: object) -> Iterable[object]:
    """What a value contains; a range is not written out."""
    if isinstance(value, Namespace):
        value = value._Namespace__attrs
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return list(value) if isinstance(value, list | tuple | Set | KeysView | ValuesView | ItemsView) else ()


def _counted(value: T) -> T:
    """``value``, counted."""
    _BUDGET.spend(_size(value))
    return value


def _require_short(length: int) -> None:
    if length > MOST_TEXT:
        raise InvalidArgument(f"makes a value of more than {MOST_TEXT:,} characters or items")


def _as_text(value: Any) -> str:
    """A value as text, which counts as output."""
    _counted(value)
    if isinstance(value, str):
        return value
    _require_plain(value)
    return _counted(str(value))


def _require_plain(value: Any) -> None:
    """Raise InvalidArgument for a value whose text holds an address in memory, which differs between runs."""
    if isinstance(value, list | tuple | dict):
        for item in _parts(value):
            _require_plain(item)
    elif not isinstance(value, str | int | float | range | Undefined | None):
        raise InvalidArgument(
            f"shows a value that is not text, of type {type(value).__name__}", advice="add | list or | join"
        )


def _text(parts: Iterable[Any]) -> str:
    """Parts as one text."""
    texts = [_as_text(item) for item in parts]
    _require_short(sum(map(len, texts)))
    return _counted("".join(texts))


def _turns(items: Iterable[T], work: int) -> Iterator[T]:
    """The items of a loop, whose body has ``work`` characters of its own."""
    for item in items:
        _BUDGET.spend(work)
        yield item


def _joined(separator: str, parts: Iterable[Any]) -> str:
    texts = [_as_text(item) for item in parts]
    _require_short(sum(map(len, texts)) + len(separator) * len(texts))
    return _counted(separator.join(texts))


def _replaced(text: str, old: str, new: str, count: int = -1) -> str:
    count_of_old = text.count(old) if count is None or count < 0 else min(count, text.count(old))
    _require_short(len(text) + count_of_old * len(new))
    return _counted(text.replace(old, new, count_of_old))


def _join(value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    """The filter ``join``."""
    if attribute is not None:
        value = (SANDBOX.getitem(item, attribute) for item in value)
    return _joined(_as_text(d), value)


def _replace(text: Any, old: str, new: str, count: int | None = None) -> str:
    """The filter ``replace``."""
    return _replaced(_as_text(text), _as_text(old), _as_text(new), -1 if count is None else count)


def _limited(name: str) -> Callable[..., Any]:
    """The filter of Jinja with limits on its arguments, and with its result counted."""
    function, limit = FILTERS[name], _LIMITS.get(name)
    passed = int(hasattr(function, "jinja_pass_arg"))  # what Jinja passes before the value

    @functools.wraps(function)
    def limited(*arguments: Any, **options: Any) -> Any:
        before = arguments[:passed]
        value = arguments[passed]
        more = arguments[passed + 1 :]
        if limit is not None and any(_is_above(argument, limit) for argument in (*more, *options.values())):
            raise InvalidArgument(f"the filter {name} takes numbers and texts of at most {limit}")
        if name in _TEXT_FILTERS:
            value = _as_text(value)
        return _counted(function(*before, value, *more, **options))

    return limited


def _charged_test(function: Any) -> Callable[..., Any]:
    """The test of Jinja, counted: the filter ``select`` makes as many as a loop."""

    @functools.wraps(function)
    def charged(*arguments: Any, **options: Any) -> Any:
        _BUDGET.spend(TURN)
        return function(*arguments, **options)

    return charged


def _is_above(argument: object, limit: int) -> bool:
    if isinstance(argument, str):
        return len(argument) > limit
    return isinstance(argument, int | float) and abs(argument) > limit


class _Counting(NodeTransformer):
    """Has a template count what it makes."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        """Raises: InvalidArgument for a statement that is not available."""
        if type(node) in _STATEMENTS:
            raise InvalidArgument(
                f"the statement {_STATEMENTS[type(node)]!r} is not available", where=f"line {node.lineno}"
            )
        return super().generic_visit(node, *args, **kwargs)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.recursive:
            raise InvalidArgument("recursive loops are not available", where=f"line {node.lineno}")
        written = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _TURNS, nodes.Const(TURN + written))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), _TEXT)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return _filtered(self.generic_visit(node), _COUNT)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return node if node.ctx == "store" else _filtered(node, _COUNT)


def _filtered(node: Any, name: str, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(arguments), [], None, None, lineno=node.lineno)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Templates that reach nothing but their fields, give the same text for the same fields, and are bounded.

    Compile and fill them within :func:`bounded`.
    """

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        super().__init__(undefined=StrictUndefined, autoescape=False, finalize=_as_text)
        self.globals = {name: self.globals[name] for name in _GLOBALS}
        self.filters = {name: _limited(name) for name in (*_FILTERS, *_TEXT_FILTERS)}
        self.tests = {name: _charged_test(test) for name, test in self.tests.items()}
        self.filters |= {"join": _join, "replace": _replace, _COUNT: _counted, _TEXT: _text, _TURNS: _turns}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MOST_SOURCE:
            raise InvalidArgument(f"is longer than {MOST_SOURCE:,} characters")
        template = super()._parse(source, name, filename)
        _require_shallow(template)
        return _Counting().visit(template)  # type: ignore[no-any-return]

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Raises: InvalidArgument for a text or list that is repeated or formatted, and for powers."""
        numbers = all(isinstance(side, int | float) and abs(side) < 2**32 for side in (left, right))
        if operator == "**" or (operator in "*%" and not numbers):
            raise InvalidArgument(f"{operator} is for numbers, and ** is not available")
        return _counted(SandboxedEnvironment.call_binop(self, context, operator, left, right))

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Raises: InvalidArgument for a method of a text that is not available."""
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if not isinstance(owner, str):
            return _counted(super().call(context, obj, *args, **kwargs))
        if name not in _TEXT_METHODS:
            raise InvalidArgument(f"the method {name!r:.40} of a text is not available")
        if name == "join":
            return _joined(owner, *args)
        if name == "replace":
            return _replaced(owner, *args)
        if any(_is_above(argument, MOST_ARGUMENT) for argument in args if isinstance(argument, str)):
            raise InvalidArgument(f"the method {name!r} takes texts of at most {MOST_ARGUMENT} characters")
        return _counted(obj(*args, **kwargs))

    def wrap_str_format(self, value: Any) -> Any:
        """Raises: InvalidArgument for the methods that format a text."""
        owner, name = getattr(value, "__self__", None), getattr(value, "__name__", "")
        if isinstance(owner, str) and name in ("format", "format_map"):
            raise InvalidArgument(f"the method {name!r} of a text is not available", advice="join texts with ~")
        return None


def _require_shallow(template: nodes.Template) -> None:
    """Raise InvalidArgument for a template whose code would nest too deeply for Python's compiler."""
    level: list[nodes.Node] = [template]
    for _ in range(MOST_NESTED):
        level = [child for node in level for child in node.iter_child_nodes()]
        if not level:
            return
    raise InvalidArgument(f"is nested more than {MOST_NESTED} deep", where=f"line {level[0].lineno}")


SANDBOX = TemplateSandbox()
