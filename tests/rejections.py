"""Ask an error for its parts, so that its sentence may be improved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gagpo.base.errors import GagpoError


@contextmanager
def rejects(
    error: type[Exception] | tuple[type[Exception], ...],
    *names: object,
    key: str | None = None,
    where: object = None,
    advice: str | None = None,
) -> Iterator[pytest.ExceptionInfo[GagpoError]]:
    """The block raises ``error`` with these parts, in one line.

    names: values, names and commands that the line contains; never sentences.
    key: of the setting, argument or option that is wrong.
    where: a text that ends the place: the file, row, address or owner.
    advice: a text that the advice contains.
    """
    with pytest.raises(error) as caught:
        yield caught
    parts = caught.value
    assert isinstance(parts, GagpoError)
    assert "\n" not in str(parts), f"more than one line: {parts}"
    assert all(str(name) in str(parts) for name in names), f"it does not contain all of {names}: {parts}"
    assert key is None or parts.key == key, f"the key is {parts.key!r}: {parts}"
    assert where is None or (parts.where or "").endswith(str(where)), f"the place is {parts.where!r}: {parts}"
    assert advice is None or advice in (parts.advice or ""), f"the advice is {parts.advice!r}: {parts}"
