"""PDDL domains and problems, read as the planner behind TextWorld reads them.

Names become lower case, the types of predicate arguments are not checked, and conditions are brought into negation
normal form. Types have no subtypes. Reading is bounded: hostile text takes linear time and ends in a
:class:`GameError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeGuard

from gagpo.envs.alfworld.native.formulas import (
    NOTHING,
    TRUE,
    Action,
    Atom,
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
CONNECTIVES = ("and", "or", "not", "forall", "exists")


def read_domain(text: str) -> PddlDomain:
    """Parse ``(define (domain ...) ...)``; raises :class:`GameError`."""
    name, sections = _sections(text, "domain", {":requirements", ":types", ":predicates", ":functions", ":action"})
    domain = PddlDomain(name, {"object"}, {"=": 2}, {})
    for keyword, rest in sections:
        if keyword == ":types":
            domain.types |= _types(rest)
        elif keyword == ":predicates":
            for entry in rest:
                if not isinstance(entry, list) or not entry or not isinstance(entry[0], str):
                    raise GameError(f":predicates: expected (name ?argument ...), got {_show(entry)}")
                domain.predicates[entry[0]] = len(_typed(entry[1:], f":predicates: {entry[0]}"))
    for keyword, rest in sections:  # actions need the predicates of the whole domain
        if keyword == ":action":
            action = _read_action(rest, domain)
            if action.name in domain.actions:
                raise GameError(f"action {action.name} is defined twice")
            domain.actions[action.name] = action
    for action in domain.actions.values():
        domain.fluents |= action.unsure | {effect.predicate for effect in action.effects}
    return domain


def read_problem(text: str, domain: PddlDomain) -> PddlProblem:
    """Parse ``(define (problem ...) ...)`` for ``domain``; raises :class:`GameError`."""
    known = {":domain", ":requirements", ":objects", ":init", ":goal", ":metric"}
    sections = dict(_sections(text, "problem", known)[1])
    for keyword in (":domain", ":init", ":goal"):
        if len(sections.get(keyword, [])) != 1 and (keyword != ":init" or keyword not in sections):
            raise GameError(f"there is no {keyword}, or it has several parts")
    if sections[":domain"] != [domain.name]:
        raise GameError(f"the problem is for domain {_show(sections[':domain'])}, the game's domain is {domain.name}")
    objects: dict[str, str] = {}
    for name, kind in _typed(sections.get(":objects", []), ":objects"):
        if name in objects or kind not in domain.types:
            raise GameError(f":objects: {name} is defined twice, or {kind} is an unknown type")
        objects[name] = kind
    facts = _read_init(sections[":init"], domain, objects)
    try:
        return PddlProblem(objects, facts, _Conditions(domain, objects).read(sections[":goal"][0]))
    except GameError as error:
        raise error.inside(":goal") from None


# Nested lists ---------------------------------------------------------------------------------------------------------


def nested(text: str) -> list[Node]:
    """Parse the one parenthesised expression of ``text`` into nested lists of lower-case words."""
    bare = re.sub(r";[^\n]*", "", text).lower()
    if not bare.isascii():
        raise GameError("a character that is not ASCII")
    root: list[Node] = []
    stack = [root]
    for word in bare.replace("(", " ( ").replace(")", " ) ").replace("?", " ?").split():
        if word == "(":
            if len(stack) > MAX_DEPTH:
                raise GameError(f"more than {MAX_DEPTH} nested parentheses")
            inner: list[Node] = []
            stack[-1].append(inner)
            stack.append(inner)
        elif word != ")":
            stack[-1].append(word)
        elif len(stack) > 1:
            stack.pop()
        else:
            raise GameError("a ')' without '('")
    if len(stack) > 1:
        raise GameError(f"the text ends inside {len(stack) - 1} open parentheses")
    if len(root) != 1 or isinstance(root[0], str):
        raise GameError(f"expected one expression in parentheses, got {_show(root)}")
    return root[0]


def _show(node: object) -> str:
    """A nested list as text, shortened."""
    text = str(node).replace("[", "(").replace("]", ")").replace("'", "").replace(",", "") if node else "nothing"
    return text if len(text) <= 80 else text[:77] + "..."


def _sections(text: str, kind: str, known: set[str]) -> tuple[str, list[tuple[str, list[Node]]]]:
    """The name and the parts (keyword, rest) of ``(define (kind name) (:keyword ...) ...)``."""
    tree = nested(text)
    head = tree[1] if len(tree) > 1 else []
    if tree[:1] != ["define"] or len(head) != 2 or head[0] != kind or not isinstance(head[1], str):
        raise GameError(f"expected (define ({kind} NAME) ...), got {_show(tree)}")
    if len(tree) > MAX_NAMES:
        raise GameError("the game is too large")
    sections: list[tuple[str, list[Node]]] = []
    for node in tree[2:]:
        if not isinstance(node, list) or not node or not isinstance(node[0], str):
            raise GameError(f"expected (:keyword ...), got {_show(node)}")
        if node[0] not in known or (node[0] != ":action" and any(word == node[0] for word, _ in sections)):
            raise GameError(f"{node[0]} is not supported, or is given twice")
        sections.append((node[0], node[1:]))
    return head[1], sections


def _are_names(words: Node) -> TypeGuard[list[str]]:
    return all(isinstance(word, str) for word in words)


def _typed(words: Node, place: str) -> list[tuple[str, str]]:
    """``a b - t c`` as [(a, t), (b, t), (c, object)]."""
    if not isinstance(words, list) or not _are_names(words) or words[-1:] == ["-"] or len(words) > 3 * MAX_NAMES:
        raise GameError(f"{place}: expected names and types, got {_show(words)}")
    result: list[tuple[str, str]] = []
    names: list[str] = []
    left = iter(words)
    for word in left:
        if word == "-":
            kind = next(left)
            result += [(name, kind) for name in names]
            names = []
        else:
            names.append(word)
    return result + [(name, "object") for name in names]


def _types(words: list[Node]) -> set[str]:
    found = _typed(words, ":types")
    if any(base != "object" for _, base in found) or len(found) > 500:
        raise GameError(":types: subtypes, or more than 500 types, are not supported")
    return {name for name, _ in found}


def _read_init(entries: list[Node], domain: PddlDomain, objects: dict[str, str]) -> list[tuple[str, ...]]:
    facts: dict[tuple[str, ...], None] = {}
    predicates = domain.predicates
    known = {name: name for name in objects}  # every name once in memory
    heads = {name: name for name in predicates}
    for entry in entries:
        if entry and entry[0] in ("=", "not"):
            continue  # costs; and facts that are not listed are false anyway
        try:
            fact = (heads[entry[0]], *[known[name] for name in entry[1:]])  # type: ignore[index] # a list: TypeError
            fits = predicates[fact[0]] == len(fact) - 1
        except (KeyError, TypeError, IndexError):
            fits = False
        if not fits:
            raise GameError(f":init: {_misfit(entry)}")
        facts[fact] = None
    return list(facts)


def _misfit(node: object) -> str:
    return f"an unknown predicate or name, or a wrong number of arguments, in {_show(node)}"


# Conditions and effects -----------------------------------------------------------------------------------------------


def _read_action(rest: list[Node], domain: PddlDomain) -> Action:
    if not rest or not isinstance(rest[0], str):
        raise GameError(f"an action without a name: {_show(rest)}")
    name, parts = rest[0], rest[1:]
    try:
        fields = dict(zip(parts[::2], parts[1::2], strict=True))
        if not {":effect"} <= fields.keys() <= {":parameters", ":precondition", ":effect"}:
            raise ValueError
    except (TypeError, ValueError):
        raise GameError(f"action {name}: expected :parameters (...) :precondition (...) :effect (...)") from None
    try:
        parameters = tuple(_typed(fields.get(":parameters", []), ":parameters"))
        reader = _Conditions(domain, {variable for variable, _ in parameters}, True)
        precondition = fields.get(":precondition")
        condition = reader.read(precondition) if precondition else TRUE
        effects = reader.effects(fields[":effect"]) if fields[":effect"] else []
    except GameError as error:
        raise error.inside(f"action {name}") from None
    unsure = frozenset(effect.predicate for effect, sure in effects if not sure)
    return Action(name, parameters, condition, tuple(effect for effect, sure in effects if sure), unsure)


class _Conditions:
    """Reads conditions and effects over ``names``; ``lenient`` also allows objects that only a problem defines."""

    def __init__(self, domain: PddlDomain, names: Iterable[str], lenient: bool = False):
        self.domain = domain
        self.used = set(names)
        self.lenient = lenient

    def read(self, node: Node, negated: bool = False, scope: Mapping[str, str] = NOTHING) -> Formula:
        """Negation normal form of ``node``; ``scope`` maps quantified variables to unique names."""
        if isinstance(node, str) or node[:1] == [] or node[0] not in CONNECTIVES:
            return self._literal(node, negated, scope)
        tag, args = node[0], node[1:]
        if tag in ("and", "or"):
            return Junction((tag == "and") != negated, tuple(self.read(part, negated, scope) for part in args))
        if len(args) != (1 if tag == "not" else 2):
            raise GameError(_misfit(node))
        if tag == "not":
            return self.read(args[0], not negated, scope)
        variables, inner = self._variables(args[0], scope)
        return Quantified((tag == "forall") != negated, variables, self.read(args[1], negated, inner))

    def effects(self, node: Node, sure: bool = True, scope: Mapping[str, str] = NOTHING) -> list[tuple[Atom, bool]]:
        """The simple effects of ``node``, each with whether it is unconditional; costs are dropped."""
        if isinstance(node, list) and node[:1] == ["and"]:
            return [effect for part in node[1:] for effect in self.effects(part, sure, scope)]
        if isinstance(node, list) and len(node) == 3 and node[0] == "forall":
            return self.effects(node[2], False, self._variables(node[1], scope)[1])
        if isinstance(node, list) and len(node) == 3 and node[0] == "when":
            self.read(node[1], False, scope)
            return self.effects(node[2], False, scope)
        if isinstance(node, list) and node[:1] == ["increase"]:
            return []
        literal = self._literal(node, False, scope)
        if literal.predicate == "=":
            raise GameError(f"{literal} cannot be an effect")
        return [(literal, sure)]

    def _variables(self, words: Node, scope: Mapping[str, str]) -> tuple[tuple[tuple[str, str], ...], dict[str, str]]:
        """Quantified variables, renamed to be unique in this action or goal, and the scope inside."""
        inner = dict(scope)
        variables = []
        for name, kind in _typed(words, "quantifier"):
            inner[name] = name
            while inner[name] in self.used:
                inner[name] += "'"
            self.used.add(inner[name])
            variables.append((inner[name], kind))
        return tuple(variables), inner

    def _literal(self, node: Node, negated: bool, scope: Mapping[str, str]) -> Atom:
        if isinstance(node, list) and len(node) == 2 and node[0] == "not":
            return self._literal(node[1], not negated, scope)
        if isinstance(node, str) or not node or not _are_names(node):
            raise GameError(f"expected (predicate argument ...), got {_show(node)}")
        args = tuple(scope.get(name, name) for name in node[1:])
        known = all(name in self.used or (self.lenient and not name.startswith("?")) for name in args)
        if not known or self.domain.predicates.get(node[0]) != len(args) or len(set(args)) != len(args):
            raise GameError(_misfit(node))
        return Atom(node[0], args, negated)
