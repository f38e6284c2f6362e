"""Expressions in the text of games, ``{o.indefinite + ' ' + o.name}``: read with :mod:`ast`, compiled to closures.

Only names, attributes of entities, string constants, ``+``, comparisons and ``and/or/not/if`` are supported; nothing is
evaluated as code.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gagpo.envs.alfworld.native.formulas import GameError

MAX_EXPRESSION = 500  # characters; the shipped grammar uses 30


@dataclass(frozen=True, slots=True)
class Entity:
    """The attributes of an object that expressions can use."""

    id: str
    type: str
    name: str
    definite: str = "the"
    indefinite: str = "a"
    noun: None = None
    adj: None = None
    desc: None = None
    room_type: None = None
    synonyms: None = None

    def __str__(self) -> str:
        return self.name


Expression = Callable[[Mapping[str, Entity]], Any]  # an entity, a text, a truth value


def expression(source: str) -> tuple[tuple[str, ...], Expression]:
    """The names in an expression, and its closure; raises :class:`GameError` for unsupported constructs."""
    if len(source) > MAX_EXPRESSION:
        raise GameError(f"expression {source[:40]!r}... has more than {MAX_EXPRESSION} characters")
    try:
        tree = ast.parse(source.lstrip(" \t"), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise GameError(f"expression {source!r} cannot be read") from None
    try:
        compute = _compile(tree.body)
    except GameError as error:
        raise GameError(f"expression {source!r}: {error}") from None

    def checked(variables: Mapping[str, Entity]) -> object:
        try:
            return compute(variables)
        except (TypeError, GameError) as error:
            raise GameError(f"expression {source!r}: {error}") from None

    return tuple(sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)})), checked


_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


def _compile(node: ast.expr) -> Expression:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        constant = node.value
        return lambda variables: constant
    if isinstance(node, ast.Name):
        name = node.id
        return lambda variables: variables[name]
    if isinstance(node, ast.Attribute) and node.attr in Entity.__slots__:
        owner = _compile(node.value)
        attribute = node.attr
        return lambda variables: _attribute(owner(variables), attribute)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        lhs = _compile(node.left)
        rhs = _compile(node.right)
        return lambda variables: lhs(variables) + rhs(variables)
    if isinstance(node, ast.BoolOp):
        operands = [_compile(value) for value in node.values]
        return _junction(operands, isinstance(node.op, ast.And))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        operand = _compile(node.operand)
        return lambda variables: not operand(variables)
    if isinstance(node, ast.IfExp):
        test = _compile(node.test)
        body = _compile(node.body)
        orelse = _compile(node.orelse)
        return lambda variables: body(variables) if test(variables) else orelse(variables)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        compare = _COMPARISONS[type(node.ops[0])]
        first = _compile(node.left)
        second = _compile(node.comparators[0])
        return lambda variables: compare(first(variables), second(variables))
    raise GameError(f"{type(node).__name__} is not allowed")


def _attribute(owner: object, name: str) -> object:
    if not isinstance(owner, Entity):
        raise GameError(f"{name} of something that is not an entity")
    return getattr(owner, name)


def _junction(operands: list[Expression], conjunctive: bool) -> Expression:
    """``and`` (``conjunctive``) or ``or``: as in Python, the value of the last operand evaluated."""

    def compute(variables: Mapping[str, Entity]) -> object:
        value = operands[0](variables)
        for operand in operands[1:]:
            if bool(value) != conjunctive:
                break
            value = operand(variables)
        return value

    return compute
