"""Names of objects: ALFRED's ids, their form in PDDL, and the names that texts use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

_CODES = (("|", "_bar_"), ("-", "_minus_"), ("+", "_plus_"), (".", "_dot_"), (",", "_comma_"))


def mangle(name: str) -> str:
    """An ALFRED id as a PDDL name."""
    for plain, code in _CODES:
        name = name.replace(plain, code)
    return name


def spoken_names(ids: Iterable[str]) -> dict[str, str]:
    """Mangled id -> its name in texts (``mug 2``); an id without coordinates keeps its name and gets a blank.

    The lexicographically first id of a name, in lower case, gets the highest number: the alfworld package takes numbers
    from the end of a list.
    """
    order = sorted((id.lower(), id) for id in ids)
    next_number = Counter(_word(lower) for lower, _ in order if "_bar_" in lower)
    names: dict[str, str] = {}
    for lower, id in order:
        word = _word(lower)
        names[id] = f"{word} {next_number[word] if '_bar_' in lower else ''}"
        next_number[word] -= "_bar_" in lower
    return names


def _word(low: str) -> str:
    word, bar, _ = low.partition("_bar_")
    if not bar:
        for plain, code in _CODES:
            word = word.replace(code, plain)
        return word
    return word + "basin" if "basin" in low else word
