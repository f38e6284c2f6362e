"""The messages of the pool and its workers: frames of plain data."""

from __future__ import annotations

import marshal
import traceback
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

from gagpo.base.child import HEADER, LONGEST_FRAME

TOKEN_BYTES = 8
_SCALARS = frozenset({str, float, bool, type(None)})  # not int, whose size is limited
_STRING = frozenset({str})
_INT_LIMIT = 2**63  # few formats contain larger numbers, and Python does not print more than 4,300 digits

Request = tuple[Any, ...]  # the operation, the number of its episode, and its arguments


class Garbage(ValueError):
    """An environment returned a value that its contract does not allow."""


def plain(value: Any, place: str = "value") -> Any:
    """``value`` as None, bool, int, float, str, list, tuple and dict with string keys.

    NumPy values are converted, and paths become strings. Any other value, and an integer of more than 64 bits, raises
    :class:`Garbage`, which names its ``place``.
    """
    if is_plain(value):
        return value
    value_type = type(value)
    if value_type is list or value_type is tuple:
        return value_type(plain(item, f"{place}[{i}]") for i, item in enumerate(value))
    if isinstance(value, Mapping):
        if not all(type(key) is str for key in value):
            raise Garbage(f"{place} has a key that is not a string")
        return {key: plain(item, f"{place}[{key!r}]") for key, item in value.items()}
    if isinstance(value, np.generic) and not isinstance(value, np.void | np.object_):
        return plain(value.item(), place)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufU":
        return value.tolist()
    if isinstance(value, int) and not -_INT_LIMIT <= value < _INT_LIMIT:
        raise Garbage(f"{place} is an integer of more than 64 bits")
    for base in (str, bool, int, float):  # subclasses, such as enumerations
        if isinstance(value, base):
            return base(value)
    if isinstance(value, PurePath):
        return str(value)
    raise Garbage(f"{place} holds {value_type.__name__}, which is not plain data (text, numbers, lists, dicts)")


def is_plain(value: Any) -> bool:
    """Whether :func:`plain` leaves ``value`` as it is. Raises RecursionError if it is nested too deeply."""
    value_type = type(value)
    if value_type in _SCALARS:
        return True
    if value_type is int:
        return bool(-_INT_LIMIT <= value < _INT_LIMIT)
    if value_type is list or value_type is tuple:
        return _SCALARS.issuperset(map(type, value)) or _all_plain(value)
    return value_type is dict and _STRING.issuperset(map(type, value)) and _all_plain(value.values())


def _all_plain(values: Iterable[Any]) -> bool:
    """Whether all are plain; unrolled for speed, since it checks every answer of every environment."""
    for value in values:
        value_type = type(value)
        if value_type in _SCALARS or (value_type is list and _STRING.issuperset(map(type, value))):
            continue
        if not is_plain(value):
            return False
    return True


def describe(error: BaseException) -> str:
    """``error`` on one line: type, message and, except for :class:`Garbage`, where it was raised."""
    try:
        message = " ".join(str(error).split())[:500]
    except Exception:
        message = "(its message cannot be shown)"
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, Garbage) or not frames:
        return text
    return f"{text} ({PurePath(frames[-1].filename).name}, line {frames[-1].lineno}, in {frames[-1].name})"


class MessageDecoder:
    """Splits a stream of bytes into messages that carry the ``token``.

    >>> decoder = MessageDecoder()
    >>> frame = pack(["hello"]) + pack(["environment"])
    >>> decoder.take(frame[:5]), decoder.take(frame[5:])
    ([], [['hello'], ['environment']])
    """

    def __init__(self, token: bytes = b"") -> None:
        self.corrupt = False  # invalid bytes arrived: an environment, or a program of it, wrote into the connection
        self._token = token
        self._incomplete = bytearray()

    def take(self, data: bytes) -> list[object]:
        """The messages that ``data`` completes, up to the first invalid bytes. Never raises."""
        if self._incomplete:
            self._incomplete += data
            if not self._has_message():
                return []  # a long message is copied once, when it is complete, not with every chunk
            data = bytes(self._incomplete)
        messages: list[object] = []
        token = self._token
        size = len(data)
        position = 0
        while (start := position + HEADER.size) <= size:
            # Without a valid token the length may be anything, so the token is checked first.
            (length,) = HEADER.unpack_from(data, position)
            end = start + length
            if length > LONGEST_FRAME or not data.startswith(token[: size - start], start):
                self.corrupt = True
            if end > size or self.corrupt:
                break
            try:
                messages.append(marshal.loads(data[start + len(token) : end]))
            except (EOFError, TypeError, ValueError, MemoryError, RecursionError, SystemError):
                self.corrupt = True
                break
            position = end
        self._incomplete = bytearray(data[position:])
        return messages

    def _has_message(self) -> bool:
        size = len(self._incomplete)
        return size >= HEADER.size and size >= HEADER.size + HEADER.unpack_from(self._incomplete)[0]
