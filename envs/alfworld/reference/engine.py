"""The reference engine: textworld's, with the names that the alfworld package gives to objects.

It makes about 23 steps a second, because textworld translates PDDL and parses text templates again and again.
``memoise=True`` caches both, which changes no text and makes it about ten times faster.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

import textworld
from textworld.core import GameState
from textworld.envs.pddl import PddlEnv, textgen
from textworld.envs.pddl import logic as pddl_logic
from textworld.logic import Proposition

from gagpo.base.errors import InvalidArgument, is_termination
from gagpo.envs.alfworld.engine import BrokenGame, Scene, read_game
from gagpo.envs.alfworld.games.package_data import package_data
from gagpo.envs.alfworld.reference.memoise import memoised_textworld


def _import_demangler() -> type:
    """The class with which the alfworld package names objects.

    The import makes a folder at ``$ALFWORLD_DATA`` and sets the variable; a user's own value and home stay as they are.
    """
    before = os.environ.get("ALFWORLD_DATA")
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["ALFWORLD_DATA"] = scratch
        try:
            from alfworld.agents.utils.misc import Demangler
        finally:
            if before is None:
                del os.environ["ALFWORLD_DATA"]
            else:
                os.environ["ALFWORLD_DATA"] = before
    return cast(type, Demangler)


_Demangler = _import_demangler()

# Bookkeeping of the domain that no rule and no goal ever reads.
_BOOKKEEPING = ("checked", "examined", "wasinreceptacle")
_TASK = re.compile(r"Your task is to: ([^\"{}#\[\]|\\]*)\.")


class TextWorldEngine:
    """textworld with the methods of the native engine. Use one object for many games: each leaks about 1 MB.

    Not for threads: the translator replaces ``sys.argv`` and standard output of the process for a moment.

    memoise: let textworld cache translated problems and parsed templates, and avoid its deep copies.

    Raises:
        InvalidArgument: on Python 3.13 and later, where textworld's text generator breaks.
    """

    def __init__(self, memoise: bool = True):
        if sys.version_info >= (3, 13):  # the generator changes locals(), which PEP 667 made a copy
            raise InvalidArgument(
                "engine textworld requires Python 3.12 or older: textworld breaks on 3.13", key="engine"
            )
        self._memoise = memoise
        self._env = PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True))
        self._digest = ""
        self._ignored_predicates: set[str] = set()
        self._negated_queries: set[str] = set()
        self._shared_places: set[str] = set()

    def reset(self, game: Path) -> Scene:
        data = read_game(Path(game))
        with self._guarded():
            try:
                if data["digest"] != self._digest:
                    self._digest = ""
                    _reject_code(data["grammar"])
                    self._env.load(data)
                    entities = self._env._entity_infos
                    demangler = _Demangler(game_infos=entities, shuffle=False)
                    for entity in entities.values():
                        entity.name = demangler.demangle_alfred_name(entity.id)
                state = self._env.reset()
            except (Exception, SystemExit) as error:  # the translator exits where others raise
                if is_termination(error):
                    raise
                self._digest = ""
                message = " ".join(str(error).split())[:200]
                raise BrokenGame(f"textworld cannot load it ({type(error).__name__}: {message})", where=game) from None
        if data["digest"] != self._digest:
            self._digest = data["digest"]
            self._prepare_key(data["grammar"], state["_facts"])
        return self._scene(state, state.feedback)

    def step(self, command: str) -> Scene:
        if not self._digest:
            raise RuntimeError("no game is loaded: call reset() before step()")
        with self._guarded():
            state, _, _ = self._env.step(command)
        return self._scene(state, state.feedback)

    def close(self) -> None:
        self._digest = ""

    def _scene(self, state: GameState, text: str) -> Scene:
        won = bool(state["won"])
        return Scene(text, list(state["admissible_commands"]), won, won, int(won), self._key(state["_facts"]))

    # The state key ----------------------------------------------------------------------------------------------------
    #
    # textworld keeps what an action made untrue as a fact of its own ("not_holds"), and a text can ask for it: `look`
    # lists what lies at a location and is "not_inreceptacle". Such facts belong to the state only if a text asks, and
    # that one only where two receptacles share a location: elsewhere it says nothing that the others do not say.

    def _prepare_key(self, grammar: str, facts: list[Proposition]) -> None:
        self._ignored_predicates = {name for name in _BOOKKEEPING if name not in grammar}
        self._negated_queries = set(re.findall(r"not_\w+", grammar))
        key = {fact.arguments[0].name: fact.arguments[1].name for fact in facts if fact.name == "receptacleatlocation"}
        crowds = Counter(key.values())
        self._shared_places = {receptacle for receptacle, location in key.items() if crowds[location] > 1}

    def _in_key(self, fact: Proposition) -> bool:
        if fact.name == "not_inreceptacle" and fact.arguments[1].name not in self._shared_places:
            return False
        return fact.name not in self._ignored_predicates and (
            not fact.is_negation or fact.name in self._negated_queries
        )

    def _key(self, facts: list[Proposition]) -> str:
        lines = sorted(str(fact) for fact in facts if self._in_key(fact))
        return hashlib.sha256("\n".join([self._digest, *lines]).encode()).hexdigest()[:24]

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Undo what the translator does to the process: it overwrites ``sys.argv``."""
        argv = sys.argv
        with ExitStack() as stack:
            if self._memoise:
                stack.enter_context(memoised_textworld())
            try:
                yield
            finally:
                sys.argv = argv


def _reject_code(grammar: str) -> None:
    """Raise ValueError unless all that textworld would evaluate in ``grammar`` is names, strings, + and ``or``.

    textworld hands expressions in templates to Python's ``eval``. The package's own grammar with a plain task text is
    known to be harmless; any other is parsed, and every expression found is checked before the game is loaded.
    """
    if _TASK.sub("Your task is to: UNKNOWN GOAL.", grammar, count=1) == package_data().grammar:
        return
    logic = pddl_logic.GameLogic(domain="", grammar=grammar)
    pending = [symbol for rules in logic.grammar._rules.values() for rule in rules for symbol in rule.rhs]
    for action in logic.actions.values():
        for text in (action.template, action.feedback_rule):
            pending += textgen._parse_and_convert(text, rule_name="symbols")
    while pending:
        # Symbols nest; whatever would be evaluated is looked at, however deep it stands.
        symbol = pending.pop()
        if isinstance(symbol, textgen.EvalSymbol):
            _check_expression(symbol.expression)
        elif isinstance(symbol, textgen.ConditionalSymbol):
            pending.append(symbol.expression)
        elif isinstance(symbol, textgen.ListSymbol):
            pending.append(symbol.symbol)


def _check_expression(expression: str) -> None:
    try:
        nodes = list(ast.walk(ast.parse(expression.strip(), mode="eval")))
    except SyntaxError:
        raise InvalidArgument(f"the grammar's expression {expression[:80]!r} is not understood") from None
    allowed = (ast.Expression, ast.Name, ast.Load, ast.Constant, ast.BinOp, ast.Add, ast.BoolOp, ast.Or, ast.Attribute)
    for node in nodes:
        # An attribute may be asked of a name only, and only one that the text is made of.
        plain = isinstance(node, allowed)
        if isinstance(node, ast.Attribute):
            plain = isinstance(node.value, ast.Name) and node.attr in ("name", "id", "type", "definite", "indefinite")
        if not plain:
            raise InvalidArgument(f"the grammar wants to run {expression[:80]!r}, which is more than names and text")
