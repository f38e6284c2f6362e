"""Unknown, missing and wrong arguments of an environment, found before it is built."""

from __future__ import annotations

import doctest
import importlib.util
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from gagpo.base.errors import InvalidArgument
from gagpo.envs import argument_types
from gagpo.envs.arguments import build, require_arguments
from gagpo.envs.testing import CorridorEnv
from gagpo.interop.games import opened
from gagpo.settings import load, shipped_configs
from tests.rejections import rejects

if TYPE_CHECKING:
    from decimal import Decimal

HERE = __name__
needs_openenv = pytest.mark.skipif(importlib.util.find_spec("openenv") is None, reason="needs the package openenv")


class ColouredEnv(CorridorEnv):
    """A corridor with arguments of its own, which passes the others on."""

    def __init__(self, colour: str, *, width: int = 3, **kwargs: Any):
        super().__init__(**kwargs)
        self.colour, self.width = colour, width


class SwallowingEnv(CorridorEnv):
    """A corridor that takes any argument."""

    def __init__(self, **options: Any):
        super().__init__()
        self.options = options


class UnpreparedEnv(gymnasium.Env[str, int]):
    """An environment of another package, with numbers as actions."""

    action_names = ("left", "right")

    def __init__(self, size: int, hue: str = "red", render_mode: str | None = None):
        self.action_space, self.observation_space = spaces.Discrete(2), spaces.Text(20)


class TypedEnv(CorridorEnv):
    """A corridor with arguments of every type, some with wrong annotations."""

    def __init__(
        self,
        names: Sequence[str] | None = None,
        weights: Mapping[str, float] | None = None,
        path: str | Path = "",
        mode: Literal["plain", "bold", 3] = "plain",
        ratio: float = 0.5,
        wrong: int = 0.5,  # type: ignore[assignment]
        other: Any = 0,
        custom: Fraction | int = 0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)


class UnreadableEnv(CorridorEnv):
    """A corridor with an annotation that cannot be resolved."""

    def __init__(self, flag: bool = False, max_turns: Decimal | int = 3, **kwargs: Any):
        super().__init__(**kwargs)


def coloured(colour: str, **kwargs: Any) -> CorridorEnv:
    return ColouredEnv(colour, **kwargs)


gymnasium.register("gagpo-test/Function-v0", coloured)

WRONG = [
    ("gagpo/Math-v0", {"max_turn": 3}, "max_turn", "nearest: max_turns"),
    ("gagpo/Math-v0", {"wrong": "Q"}, "wrong", "known: attempts, columns, data, "),
    ("gagpo/Program-v0", {}, "tasks", "set environment.kwargs.tasks, or -k tasks=..."),
    ("gagpo/Program-v0", {"tasks": "t.jsonl", "agnt": "a:b"}, "agnt", "nearest: agent"),
    (f"{HERE}:ColouredEnv", {}, "colour", "-k colour=..."),
    (f"{HERE}:ColouredEnv", {"colour": "red", "widht": 3}, "widht", "nearest: width"),
    (f"{HERE}:ColouredEnv", {"colour": "red", "max_turn": 3}, "max_turn", "nearest: max_turns"),
    (f"{HERE}:gagpo-test/Function-v0", {"colour": "red", "max_turn": 3}, "max_turn", None),
    (f"{HERE}:gagpo-test/Function-v0", {}, "colour", "-k colour=..."),
    (f"{HERE}:UnpreparedEnv", {}, "size", "-k size=..."),
    (f"{HERE}:UnpreparedEnv", {"size": 3, "huge": "blue"}, "huge", "nearest: hue"),
    (f"{HERE}:UnpreparedEnv", {"size": 3, "action": ["a", "b"]}, "action", "nearest: actions"),
    pytest.param("http://127.0.0.1:9", {"feild": "text"}, "feild", "nearest: field", marks=needs_openenv, id="server"),
    ("gagpo/Math-v0", {"max_turns": "3"}, "max_turns", None),
    ("gagpo/Storeroom-v0", {"max_turns": True}, "max_turns", None),
]


@pytest.mark.parametrize(("env_id", "kwargs", "key", "advice"), WRONG)
def test_a_wrong_argument_is_one_line_with_the_nearest_name(env_id: str, kwargs: dict[str, Any], key, advice) -> None:
    with rejects(InvalidArgument, key=key, where=f"environment {env_id}", advice=advice) as caught:
        build(env_id, kwargs)
    assert "TypeError" not in str(caught.value)
    with rejects(InvalidArgument, key=key, advice=advice), opened(env_id, kwargs):
        pass


WRONG_TYPES = [
    ("Math", {"tools": "no"}, "true or false"),
    ("Math", {"attempts": "x"}, "an integer"),
    ("Math", {"families": 5}, "a list of texts or text"),
    ("Math", {"data": 5}, "text or a mapping"),
    ("Math", {"expert": 5}, "true, false or text"),
    ("WebShop", {"exact": "off"}, "true or false"),
    ("WebShop", {"products": 1.5}, "an integer"),
    ("ALFWorld", {"seed": "abc"}, "an integer"),
    ("ALFWorld", {"counts": {"train": "many"}}, "a mapping of texts to integers"),
    ("ALFWorld", {"games": 5}, "text"),
    ("ALFWorld", {"task_types": "nope"}, "a list of texts"),
    ("SQL", {"types": 5}, "a list of texts or text"),
    ("SQL", {"tables": "some"}, "'listed' or 'invented'"),
    ("Program", {"tasks": "t.jsonl", "timeout": "abc"}, "a number"),
    ("Program", {"tasks": "t.jsonl", "memory": "abc"}, "an integer"),
    ("Program", {"tasks": "t.jsonl", "agent": 5}, "text"),
    ("Program", {"tasks": 5}, "text"),
    ("Web", {"source": "folder", "screenshots": "no"}, "true or false"),
]


@pytest.mark.parametrize(("name", "kwargs", "types"), WRONG_TYPES)
def test_a_wrong_type_is_one_line_with_the_argument(name: str, kwargs: dict[str, Any], types: str) -> None:
    with rejects(InvalidArgument, types, key=list(kwargs)[-1], where=f"gagpo/{name}-v0"):
        require_arguments(f"gagpo/{name}-v0", kwargs)


def test_the_example_of_types_is_right() -> None:
    assert doctest.testmod(argument_types) == (0, 1)


@pytest.mark.parametrize(
    ("kwargs", "key", "names"),
    [
        ({"names": "ab"}, "names", ("list of texts",)),
        ({"names": [1]}, "names", ("list of texts",)),
        ({"weights": {"a": "b"}}, "weights", ("texts to numbers",)),
        ({"path": 5}, "path", ("text",)),
        ({"mode": "wide"}, "mode", ("plain", "bold", "3")),
        ({"ratio": True}, "ratio", ("a number",)),
        ({"max_turns": None}, "max_turns", ("an integer",)),  # of the base class
    ],
)
def test_every_simple_annotation_is_compared(kwargs: dict[str, Any], key, names) -> None:
    with rejects(InvalidArgument, *names, key=key):
        require_arguments(f"{HERE}:TypedEnv", kwargs)


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("gagpo/Math-v0", {"max_turns": 3, "expert": True, "size": 20}),
        (f"{HERE}:TypedEnv", {"names": ("a", "b"), "weights": {"a": 1, "b": 0.5}, "path": Path("x"), "ratio": 1}),
        (f"{HERE}:TypedEnv", {"names": None, "mode": 3, "ratio": np.float32(1)}),
        (f"{HERE}:TypedEnv", {"wrong": "text", "other": object(), "custom": "1/2"}),
        (f"{HERE}:UnreadableEnv", {"flag": "no", "max_turns": "x"}),
        (f"{HERE}:ColouredEnv", {"colour": "red", "width": 4, "max_turns": 3, "split": "test"}),
        (f"{HERE}:SwallowingEnv", {"anything": 1}),
        (f"{HERE}:UnpreparedEnv", {"size": 3, "hue": "blue", "max_turns": 4, "max_episode_steps": 5}),
    ],
)
def test_right_arguments_pass(env_id: str, kwargs: dict[str, Any]) -> None:
    require_arguments(env_id, kwargs)
    build(env_id, kwargs).close()


def test_arguments_that_an_environment_checks_itself_are_left_to_it() -> None:
    require_arguments("gagpo/Web-v0", {"level": "easy"})  # of the source of its tasks
    require_arguments("gagpo/Web-v0", {"source": "module:Name", "anything": 1})


@pytest.mark.parametrize("config", shipped_configs())
def test_environments_of_shipped_configs_take_their_arguments(config: str) -> None:
    for environment in load(config).environments:
        require_arguments(environment.id, environment.kwargs)


@pytest.mark.parametrize(
    ("program", "names"),
    [
        ("import sys; sys.exit(0)", ("SystemExit", "0", "faulty_module.py", "line 1")),
        ("x = = 3", ("SyntaxError: invalid syntax (faulty_module.py, line 1)",)),
        ("\nraise RuntimeError('no display')", ("RuntimeError: no display (faulty_module.py, line 2)",)),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(tmp_path: Any, monkeypatch: Any, program: str, names) -> None:
    (tmp_path / "faulty_module.py").write_text(program)
    monkeypatch.syspath_prepend(str(tmp_path))
    with rejects(InvalidArgument, *names, where="environment 'faulty_module:X-v0'"):
        require_arguments("faulty_module:X-v0")
