"""PDDL domains and problems, read as the planner behind TextWorld reads them.

Names become lower case, the types of predicate arguments are not checked, and conditions are brought into negation
normal form. Reading is bounded: hostile text takes linear time and ends in a :class:`GameError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NoReturn, TypeGuard

from gagpo.envs.alfworld.native.formulas import (
    NOTHING,
    TRUE,
    Action,
    Atom,
    Effect,
    Formula,
    GameError,
    Junction,
    PddlDomain,
    PddlProblem,
    Quantified,
)

MAX_DEPTH = 100  # nesting of parentheses; the shipped domain uses 7
MAX_NAMES = 20_000  # objects of a problem, or parts of a domain; a large kitchen has 250 objects
Node = str | list["Node"]  # a word, or a parenthesised list
CONNECTIVES = {"and", "or", "not", "imply", "forall", "exists"}


def read_domain(text: str) -> PddlDomain:
    """Parse ``(define (domain ...) ...)``; raises :class:`GameError`."""
    sections = _sections(text, "domain")
    name = sections[0][1][0]
    assert isinstance(name, str)
    domain = PddlDomain(name, {"object": ()}, {}, {}, {})
    bases: list[tuple[str, str]] = []
    for keyword, entries in sections[1:]:
        # Actions need the types and predicates of the whole domain, so they are read in a second pass.
        if keyword == ":types":
            bases += _typed(entries, ":types")
        elif keyword == ":constants":
            domain.constants = dict(_typed(entries, ":constants"))
        elif keyword == ":predicates":
            for entry in entries:
                if not isinstance(entry, list) or not entry or not isinstance(entry[0], str):
                    raise GameError(f":predicates: expected (name ?argument ...), got {_show(entry)}")
                domain.predicates[entry[0]] = len(_typed(entry[1:], f":predicates: {entry[0]}"))
        elif keyword not in (":requirements", ":functions", ":action"):
            raise GameError(f"{keyword} is not supported (line {_line_of(text, keyword)})")
    domain.predicates.setdefault("=", 2)
    domain.types = _closure(bases)
    for name, type_name in domain.constants.items():
        if type_name not in domain.types:
            raise GameError(f":constants: {name} has the unknown type {type_name}")
    for keyword, entries in sections[1:]:
        if keyword == ":action":
            action = _read_action(entries, domain)
            if action.name in domain.actions:
                raise GameError(f"action {action.name} is defined twice")
            domain.actions[action.name] = action
    domain.fluents = frozenset(e.literal.predicate for action in domain.actions.values() for e in action.effects)
    return domain


def read_problem(text: str, domain: PddlDomain) -> PddlProblem:
    """Parse ``(define (problem ...) ...)`` for ``domain``; raises :class:`GameError`."""
    sections = dict(_sections(text, "problem"))
    if sections.get(":domain") != [domain.name]:
        raise GameError(
            f"the problem is for domain {_show(sections.get(':domain'))}, the game's domain is {domain.name}"
        )
    for keyword in (":init", ":goal"):
        if keyword not in sections:
            raise GameError(f"there is no {keyword}")
    for keyword in sections:
        if keyword not in ("problem", ":domain", ":requirements", ":objects", ":init", ":goal", ":metric"):
            raise GameError(f"{keyword} is not supported (line {_line_of(text, keyword)})")
    objects = dict(domain.constants)
    for name, type_name in _typed(sections.get(":objects", []), ":objects"):
        if name in objects:
            raise GameError(f":objects: {name} is defined twice")
        if type_name not in domain.types:
            raise GameError(f":objects: {name} has the unknown type {type_name}")
        objects[name] = type_name
    facts, measured = _read_init(sections[":init"], domain, objects)
    goal = sections[":goal"]
    if len(goal) != 1:
        raise GameError(f":goal: expected one condition, got {len(goal)}")
    try:
        return PddlProblem(objects, facts, measured, _Conditions(domain, objects).read(goal[0]))
    except GameError as error:
        raise error.inside(":goal") from None


# Nested lists ---------------------------------------------------------------------------------------------------------


def nested(text: str) -> list[Node]:
    """Parse the one parenthesised expression of ``text`` into nested lists of lower-case words."""
    bare = re.sub(r";[^\n]*", "", text)
    if not bare.isascii():
        line = next(n for n, row in enumerate(bare.split("\n"), 1) if not row.isascii())
        raise GameError(f"line {line}: a character that is not ASCII")
    tokens = bare.lower().replace("(", " ( ").replace(")", " ) ").replace("?", " ?").split()
    if not tokens or tokens[0] != "(":
        raise GameError("line 1: expected '('")
    current: list[Node] = []
    stack: list[list[Node]] = []
    for position, word in enumerate(tokens):
        if word == "(":
            if len(stack) >= MAX_DEPTH:
                _misplaced(bare, position, f"more than {MAX_DEPTH} nested parentheses")
            inner: list[Node] = []
            current.append(inner)
            stack.append(current)
            current = inner
        elif word == ")":
            if not stack:
                _misplaced(bare, position, "a ')' without '('")
            current = stack.pop()
            if not stack and position + 1 < len(tokens):
                _misplaced(bare, position + 1, f"nothing may follow the definition, got {tokens[position + 1][:40]!r}")
        else:
            current.append(word)
    if stack:
        raise GameError(f"line {bare.count(chr(10)) + 1}: the text ends inside {len(stack)} open parentheses")
    (tree,) = current
    assert isinstance(tree, list)
    return tree


def _misplaced(bare: str, position: int, message: str) -> NoReturn:
    """Raise GameError with the line of the word at ``position``."""
    for count, match in enumerate(re.finditer(r"[()]|\?[^\s()?]*|[^\s()?]+", bare)):
        if count == position:
            raise GameError(f"line {bare.count(chr(10), 0, match.start()) + 1}: {message}")
    raise GameError(message)


def _line_of(text: str, word: str) -> int:
    return text[: max(0, text.lower().find(word))].count("\n") + 1


def _show(node: object) -> str:
    """A nested list as text, shortened."""
    if node:
        text = str(node).replace("[", "(").replace("]", ")").replace("'", "").replace(",", "")
    else:
        text = "nothing"
    return text if len(text) <= 80 else text[:77] + "..."


def _sections(text: str, kind: str) -> list[tuple[str, list[Node]]]:
    """The parts of ``(define (kind name) (:keyword ...) ...)`` as (keyword, rest)."""
    tree = nested(text)
    if len(tree) < 2 or tree[0] != "define" or not isinstance(tree[1], list) or tree[1][:1] != [kind]:
        raise GameError(f"expected (define ({kind} NAME) ...), got {_show(tree)}")
    if len(tree[1]) != 2 or not isinstance(tree[1][1], str):
        raise GameError(f"expected ({kind} NAME), got {_show(tree[1])}")
    sections = []
    for node in tree[1:]:
        if not isinstance(node, list) or not node or not isinstance(node[0], str):
            raise GameError(f"expected (:keyword ...), got {_show(node)}")
        sections.append((node[0], node[1:]))
    keywords: set[str] = set()
    for keyword, entries in sections:
        if len(sections) > MAX_NAMES or (
            keyword in (":types", ":predicates", ":objects") and len(entries) > 3 * MAX_NAMES
        ):
            raise GameError(f"{keyword}: the game is too large")
        if keyword in keywords and keyword != ":action":
            raise GameError(f"{keyword} is given twice")
        keywords.add(keyword)
    return sections


def _are_names(words: Node) -> TypeGuard[list[str]]:
    return all(isinstance(word, str) for word in words)


def _typed(words: Node, place: str) -> list[tuple[str, str]]:
    """``a b - t c`` as [(a, t), (b, t), (c, object)]."""
    if not _are_names(words):
        raise GameError(f"{place}: expected names and types, got {_show(words)}")
    result = []
    start = 0
    while start < len(words):
        try:
            dash = words.index("-", start)
        except ValueError:
            result += [(word, "object") for word in words[start:]]
            break
        if dash + 1 >= len(words):
            raise GameError(f"{place}: no type after '-'")
        result += [(word, words[dash + 1]) for word in words[start:dash]]
        start = dash + 2
    return result


def _closure(bases: list[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Type -> all its supertypes, sorted."""
    above: dict[str, set[str]] = {"object": set()}
    for name, base in bases:
        above.setdefault(name, set()).add(base)
    unknown = next((base for _, base in bases if base not in above), None)
    if unknown is not None:
        raise GameError(f":types: unknown supertype {unknown}")
    if len(above) > 500:
        raise GameError(f":types: {len(above)} types are too many")
    for middle in above:
        for supertypes in above.values():
            if middle in supertypes:
                supertypes |= above[middle]
    return {name: tuple(sorted(supertypes - {name})) for name, supertypes in above.items()}


def _read_init(
    entries: list[Node], domain: PddlDomain, objects: dict[str, str]
) -> tuple[list[tuple[str, ...]], list[str]]:
    facts: dict[tuple[str, ...], None] = {}
    measured: list[str] = []
    predicates = domain.predicates
    object_names = {name: name for name in objects}  # every name once in memory
    heads = {name: name for name in predicates}
    for entry in entries:
        if not isinstance(entry, list) or not entry:
            raise GameError(f":init: expected (predicate object ...), got {_show(entry)}")
        if entry[0] == "=":
            if len(entry) != 3 or not isinstance(entry[2], str):
                raise GameError(f":init: expected (= (function object ...) number), got {_show(entry)}")
            if isinstance(entry[1], list) and entry[1] and entry[1][0] != "total-cost":
                names = entry[1][1:]
                if not _are_names(names) or not objects.keys() >= set(names):
                    raise GameError(f":init: unknown object in {_show(entry)}")
                measured += names
            continue
        if entry[0] == "not":
            continue  # facts that are not listed are false anyway
        try:
            fact = (heads[entry[0]], *[object_names[name] for name in entry[1:]])  # type: ignore[index] # a list: TypeError
            fits = predicates[fact[0]] == len(fact) - 1
        except (KeyError, TypeError):
            fits = False
        if not fits:
            raise _bad_fact(entry, predicates, objects)
        facts[fact] = None
    return list(facts), measured


def _bad_fact(entry: list[Node], predicates: dict[str, int], objects: dict[str, str]) -> GameError:
    """The error for a bad fact of ``:init``."""
    arity = predicates.get(entry[0]) if isinstance(entry[0], str) else None
    if arity is None:
        return GameError(f":init: unknown predicate in {_show(entry)}")
    if arity != len(entry) - 1:
        return GameError(f":init: {_show(entry)} has {len(entry) - 1} arguments, not {arity}")
    stranger = next((name for name in entry[1:] if not isinstance(name, str) or name not in objects), "")
    return GameError(f":init: unknown object {_show(stranger)} in {_show(entry)}")


# Conditions and effects -----------------------------------------------------------------------------------------------


def _read_action(entries: list[Node], domain: PddlDomain) -> Action:
    if not entries or not isinstance(entries[0], str):
        raise GameError(f"an action without a name: {_show(entries)}")
    name = entries[0]
    sections = entries[1:]
    try:
        fields = dict(zip(sections[::2], sections[1::2], strict=True))
        unknown = set(fields) - {":parameters", ":precondition", ":effect"}
        if unknown or ":effect" not in fields:
            raise GameError(f"unknown {min(unknown)}" if unknown else "there is no :effect")
        parameters = _typed(fields.get(":parameters", []), ":parameters")
        if any(not variable.startswith("?") for variable, _ in parameters):
            raise GameError(f":parameters: expected ?variables, got {_show(fields[':parameters'])}")
        reader = _Conditions(domain, {variable for variable, _ in parameters} | set(domain.constants), True)
        precondition = fields.get(":precondition")
        condition = reader.read(precondition) if precondition else TRUE
        effects: list[Effect] = []
        if fields[":effect"]:
            reader.effects(fields[":effect"], effects)
        return Action(name, tuple(parameters), condition, tuple(effects))
    except GameError as error:
        raise error.inside(f"action {name}") from None
    except (TypeError, ValueError):
        raise GameError(f"action {name}: expected :parameters (...) :precondition (...) :effect (...)") from None


class _Conditions:
    """Reads conditions and effects over ``names``; ``lenient`` also allows objects that only a problem defines."""

    def __init__(self, domain: PddlDomain, names: Iterable[str], lenient: bool = False):
        self.domain = domain
        self.names = set(names)
        self.lenient = lenient

    def read(self, node: Node, negated: bool = False, scope: Mapping[str, str] = NOTHING) -> Formula:
        """Negation normal form of ``node``; ``scope`` maps quantified variables to unique names."""
        if not isinstance(node, list) or not node or not isinstance(node[0], str):
            raise GameError(f"expected a condition, got {_show(node)}")
        tag = node[0]
        args = node[1:]
        if tag not in CONNECTIVES:
            return self._literal(node, negated, scope)
        arity = {"not": 1, "imply": 2, "forall": 2, "exists": 2}.get(tag)
        if arity is not None and len(args) != arity:
            raise GameError(f"{tag} takes {arity} arguments, got {_show(node)}")
        if tag == "not":
            return self.read(args[0], not negated, scope)
        if tag == "imply":
            operands = (self.read(args[0], not negated, scope), self.read(args[1], negated, scope))
            return Junction(negated, operands)
        if tag in ("and", "or"):
            return Junction((tag == "and") != negated, tuple(self.read(operand, negated, scope) for operand in args))
        variables, inner = self._variables(args[0], scope)
        return Quantified((tag == "forall") != negated, variables, self.read(args[1], negated, inner))

    def effects(
        self,
        node: Node,
        out: list[Effect],
        variables: tuple[tuple[str, str], ...] = (),
        scope: Mapping[str, str] = NOTHING,
        condition: Formula = TRUE,
    ) -> None:
        """Append the simple effects of ``node`` to ``out``; costs are dropped."""
        if not isinstance(node, list) or not node or not isinstance(node[0], str):
            raise GameError(f"expected an effect, got {_show(node)}")
        tag = node[0]
        args = node[1:]
        if tag == "and":
            for operand in args:
                self.effects(operand, out, variables, scope, condition)
        elif tag in ("forall", "when"):
            if len(args) != 2:
                raise GameError(f"{tag} takes 2 arguments, got {_show(node)}")
            if tag == "forall":
                quantified, inner = self._variables(args[0], scope)
                self.effects(args[1], out, variables + quantified, inner, condition)
            else:
                conjunction = Junction(True, (condition, self.read(args[0], False, scope)))
                self.effects(args[1], out, variables, scope, conjunction)
        elif tag != "increase":
            literal = self._literal(node, False, scope)
            if literal.predicate == "=" or literal.predicate not in self.domain.predicates:
                raise GameError(f"{literal} cannot be an effect")
            out.append(Effect(variables, condition, literal))

    def _variables(self, words: Node, scope: Mapping[str, str]) -> tuple[tuple[tuple[str, str], ...], dict[str, str]]:
        """Quantified variables, renamed to be unique in this action or goal, and the scope inside."""
        if not isinstance(words, list):
            raise GameError(f"expected (?variable - type ...), got {_show(words)}")
        inner = dict(scope)
        variables = []
        for name, type_name in _typed(words, "quantifier"):
            if not name.startswith("?"):
                raise GameError(f"expected (?variable - type ...), got {_show(words)}")
            inner[name] = name
            while inner[name] in self.names:
                inner[name] += "'"
            self.names.add(inner[name])
            variables.append((inner[name], type_name))
        return tuple(variables), inner

    def _literal(self, node: list[Node], negated: bool, scope: Mapping[str, str]) -> Atom:
        while node[0] == "not":
            if len(node) != 2 or not isinstance(node[1], list) or not node[1]:
                raise GameError(f"not takes one condition, got {_show(node)}")
            node = node[1]
            negated = not negated
        if not _are_names(node):
            raise GameError(f"expected (predicate argument ...), got {_show(node)}")
        predicate = node[0]
        args = tuple(scope.get(name, name) for name in node[1:])
        arity = self.domain.predicates.get(predicate)
        if arity is None and predicate in self.domain.types:
            arity = 1
        if arity is None:
            raise GameError(f"unknown predicate {predicate} in {_show(node)}")
        if arity != len(args):
            raise GameError(f"{predicate} takes {arity} arguments, got {_show(node)}")
        for name in args:
            if name not in self.names and (name.startswith("?") or not self.lenient):
                raise GameError(f"unknown name {name} in {_show(node)}")
        return Atom(predicate, args, negated)
