"""Replace the evaluation of answers in reasoning-gym's verifiers.

Several verifiers pass the answer of a model to ``eval``, directly or through SymPy's ``parse_expr``. In the process
that scores, :func:`restrict` replaces both: a literal is read as a literal, and an expression may only contain numbers,
symbols, operators and SymPy's functions. A process that scores may not start programs or open connections either.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Mapping
from typing import Any

LITERALS = (
    "reasoning_gym.algorithmic.binary_matrix",
    "reasoning_gym.algorithmic.spiral_matrix",
    "reasoning_gym.algorithmic.string_insertion",
    "reasoning_gym.games.n_queens",
)
"""The modules whose verifier evaluates the answer. Each expects a list there."""

_NODES = (
    ast.Expression,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.Call,
    ast.Constant,
    ast.Name,
    ast.Load,
    ast.Tuple,
    ast.List,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
)
_FUNCTIONS = frozenset({"sqrt", "cbrt", "root", "real_root"})  # of SymPy; its other functions are classes
_FORBIDDEN_EVENTS = (
    "ctypes.",
    "os.exec",
    "os.fork",
    "os.kill",
    "os.posix_spawn",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.spawn",
    "os.system",
    "pty.",
    "shutil.",
    "socket.bind",
    "socket.connect",
    "subprocess.",
)


class NotMathematics(ValueError):
    """An answer that is not a mathematical expression."""


def restrict() -> None:
    """Replace the evaluation of answers in this process, which must have imported the verifiers."""
    from sympy.parsing import sympy_parser

    for name in LITERALS:
        # A module's own name shadows the built-in function.
        vars(importlib.import_module(name))["eval"] = ast.literal_eval
    vars(sympy_parser)["eval"] = evaluate
    sys.addaudithook(_forbid)  # a second line of defence; a hook cannot be removed


def evaluate(code: Any, global_names: dict[str, Any], local_names: Mapping[str, Any]) -> Any:
    """Evaluate an expression that SymPy's parser wrote, for its function ``eval_expr``.

    code: Python source.
    global_names, local_names: the names that it may use.

    Raises:
        NotMathematics: ``code`` contains something else than mathematics.
    """
    if not isinstance(code, str):
        raise NotMathematics("only source code can be checked")
    tree = ast.parse(code.strip(), mode="eval")
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise NotMathematics(f"{type(node).__name__} is not mathematics")
        if isinstance(node, ast.Name) and not _is_mathematical(node.id, {**global_names, **local_names}):
            raise NotMathematics(f"{node.id[:40]!r} is not mathematics")
        if isinstance(node, ast.Call) and (node.keywords or not isinstance(node.func, ast.Name)):
            raise NotMathematics("only functions can be called, by name")
    return eval(compile(tree, "<answer>", "eval"), global_names, dict(local_names))


def _is_mathematical(name: str, names: Mapping[str, Any]) -> bool:
    """Whether ``name`` is a symbol, a finite number, or a function of SymPy that does nothing but calculate.

    An unevaluated operation is not: the derivative of ``Integral(f, x)`` is ``f``, so it would integrate any ``f``.
    """
    from sympy import Add, Basic, Mul, Number, Pow, Symbol, zoo
    from sympy.core.function import Application

    value = names.get(name)
    if isinstance(value, type):
        return issubclass(value, Application | Number | Symbol | Add | Mul | Pow)
    if isinstance(value, Number) or value is zoo:
        return bool(value.is_finite)
    return isinstance(value, Basic) or (name in _FUNCTIONS and getattr(value, "__module__", "").startswith("sympy."))


def _forbid(event: str, arguments: tuple[object, ...]) -> None:
    if event.startswith(_FORBIDDEN_EVENTS):
        raise PermissionError(f"{event} is not allowed while answers are scored")
