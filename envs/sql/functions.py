"""The SQL functions that a query may call: their value depends only on their arguments, and their cost is bounded.

Two kinds of functions are replaced by ones that check their arguments first. The date and time functions can read the
clock and the machine's time zone. ``printf`` accepts a width of two billion characters and loops over it, whatever the
limit on the length of a text.
"""

from __future__ import annotations

import functools
import re
import sqlite3
from collections.abc import Callable
from typing import Any

_AGGREGATE = "avg count group_concat max median min percentile percentile_cont percentile_disc string_agg sum total"
_WINDOW = "cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number"
_MATHS = (
    "abs acos acosh asin asinh atan atan2 atanh ceil ceiling cos cosh degrees exp floor ln log log10 log2 mod pi pow "
    "power radians round sign sin sinh sqrt tan tanh trunc"
)
_TEXT = (
    "char concat concat_ws glob hex instr length like lower ltrim octet_length quote replace rtrim soundex substr "
    "substring trim unhex unicode upper"
)
_CHOICE = "coalesce if ifnull iif likelihood likely nullif typeof unlikely"
_TIMED = ("date", "datetime", "julianday", "strftime", "time", "timediff", "unixepoch")
_PRINTED = ("format", "printf")
_CLOCKS = frozenset({"current_date", "current_time", "current_timestamp"})

ALLOWED = frozenset({*" ".join((_AGGREGATE, _WINDOW, _MATHS, _TEXT, _CHOICE)).split(), *_TIMED, *_PRINTED})

_NOW = frozenset({"now", "subsec", "subsecond"})  # time values; the last two since SQLite 3.42
_ZONES = frozenset({"localtime", "utc"})
_WIDTH = re.compile(r"%[^a-zA-Z%]*")
_WIDEST = 100
_LONGEST_CACHED = 100  # characters of an argument


class CallRejected(Exception):
    """A call that is not allowed; the message is for the query's author."""


def rejection_reason(name: str) -> str | None:
    """The reason why the function ``name`` cannot be called; None if it can."""
    if name in _CLOCKS:
        return f"there is no clock here: {name} cannot be used"
    if name in ALLOWED:
        return None
    return f"the function {name} is not available"


def install(connection: sqlite3.Connection, refuse: Callable[[str], None]) -> None:
    """Replace the functions whose arguments must be checked.

    refuse: called with the reason, because SQLite only reports that a call failed.
    """

    def replacement(name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            try:
                _check(name, arguments)
            except CallRejected as error:
                refuse(str(error))
                raise
            short = all(not isinstance(value, str | bytes) or len(value) <= _LONGEST_CACHED for value in arguments)
            return (_cached_call if short else _call)(name, *arguments)

        return call

    for name in (*_TIMED, *_PRINTED):
        connection.create_function(name, -1, replacement(name), deterministic=True)


def _check(name: str, arguments: tuple[Any, ...]) -> None:
    texts = [_text(argument) for argument in arguments]
    if name in _PRINTED:
        for directive in _WIDTH.findall(texts[0] if texts else ""):
            if "*" in directive or any(int(number) > _WIDEST for number in re.findall(r"[0-9]+", directive)):
                raise CallRejected(f"{name} takes widths up to {_WIDEST}, written out")
        return
    moments = texts[1:] if name == "strftime" else texts
    if not moments or moments[0] in _NOW or "now" in moments or not _ZONES.isdisjoint(moments):
        raise CallRejected(f"there is no clock here: {name} must be told a time, and no time zone")


def _text(value: Any) -> str:
    """``value`` as SQLite's time functions read it: a C string, so it ends at a zero byte."""
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if isinstance(value, str):
        return value.partition("\0")[0].strip().lower()
    return repr(value)


@functools.cache
def _sqlite() -> sqlite3.Connection:
    """The connection on which the original functions are called."""
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
    return connection


def _call(name: str, *arguments: Any) -> Any:
    return _sqlite().execute(f"SELECT {name}({', '.join('?' * len(arguments))})", arguments).fetchone()[0]


_cached_call = functools.lru_cache(maxsize=4096, typed=True)(_call)  # a column of dates has few different values
