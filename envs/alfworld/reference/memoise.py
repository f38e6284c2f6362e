"""Cache what textworld computes again and again (translated PDDL, parsed templates), and copy only what changes."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager

import fast_downward
from textworld.envs.pddl import logic as pddl_logic
from textworld.envs.pddl import textgen
from textworld.logic import Rule

Context = dict[str, dict[str, object]]

_translate = functools.lru_cache(maxsize=32)(fast_downward.pddl2sas)  # a full game's translation takes about 3 MB
_parse_symbols = functools.lru_cache(maxsize=4096)(textgen._parse_and_convert)
_parse_logic = functools.lru_cache(maxsize=32)(pddl_logic._parse_and_convert)
_parse_query = functools.lru_cache(maxsize=4096)(Rule.parse_conjunctive_query)


def _translate_once(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> object:
    # The optimised translation is for planning only, which this engine does not use.
    return _translate(domain, problem)


def _fresh_symbols(*args: object, **kwargs: object) -> object:
    # Symbols are given their context by assignment, so each caller gets its own.
    return copy.deepcopy(_parse_symbols(*args, **kwargs))


def _lean_context(context: Context) -> Context:
    # Contexts are extended with further variables; what a variable stands for is only ever read.
    return context | {"variables": dict(context["variables"]), "mapping": dict(context["mapping"])}


def _lean_symbol(self: textgen.Symbol, context: Context) -> textgen.Symbol:
    symbol = copy.copy(self)
    symbol.context = _lean_context(context)
    return symbol


@contextmanager
def memoised_textworld() -> Iterator[None]:
    """While active, textworld's translator and parsers look up earlier answers. Text is unchanged; not for threads."""
    patches: list[tuple[object, str, object]] = [
        (fast_downward, "pddl2sas", _translate_once),
        (textgen, "_parse_and_convert", _fresh_symbols),
        (textgen, "copy_context", _lean_context),
        (textgen.Symbol, "copy", _lean_symbol),
        (pddl_logic, "_parse_and_convert", _parse_logic),
        (Rule, "parse_conjunctive_query", staticmethod(_parse_query)),
    ]
    saved = [(owner, name, vars(owner)[name]) for owner, name, _ in patches]
    for owner, name, value in patches:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in saved:
            setattr(owner, name, value)
