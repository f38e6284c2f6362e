"""Functions that settings name, and the values that they return."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from gagpo.base.registry import Registry
from gagpo.envs.gateway.messages import MAX_REWARD
from gagpo.envs.pool.wire import Garbage

FUNCTIONS: Registry[Callable[..., Any]] = Registry("function", "gagpo.functions", {})


def report(result: object, author: str) -> str:
    """The result of a function as a program reports it: one line of JSON.

    author: who returned it, for the error.

    Raises: Garbage for what is neither a number nor a mapping with one.
    """
    values = dict(result) if isinstance(result, Mapping) else {"reward": result}
    report: dict[str, float | bool] = {}
    if "reward" in values:
        report["reward"] = _number(values["reward"], author)
    success = _unwrapped(values.get("success"))
    if success is not None:
        if not isinstance(success, bool):
            raise Garbage(f"{author} returned {success!a:.40} as success; return True or False")
        report["success"] = success
    return json.dumps(report)


def _number(value: object, author: str) -> float:
    """A reward as a number: of Python, or a scalar of NumPy, torch and others."""
    number = _unwrapped(value)
    convertible = hasattr(type(number), "__float__") and not hasattr(number, "shape")
    try:
        if convertible:
            return _bounded(float(number), author)  # type: ignore[arg-type]
    except Garbage:
        raise
    except OverflowError:
        return _bounded(math.inf, author)
    except (TypeError, ValueError):
        pass
    shape = f"an array of shape {number.shape}" if hasattr(number, "shape") else type(number).__name__
    raise Garbage(f'{author} returned {shape} as the reward; return a number, or {{"reward": 1.0, "success": True}}')


def _bounded(number: float, author: str) -> float:
    if not abs(number) <= MAX_REWARD:
        raise Garbage(
            f"{author} returned {number} as the reward; return a number from {-MAX_REWARD:g} to {MAX_REWARD:g}"
        )
    return number


def _unwrapped(value: object) -> object:
    """The Python number in an array without dimensions; any other value as it is."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
