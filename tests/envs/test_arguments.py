"""Unknown and missing arguments of an environment, found before it is built."""

from __future__ import annotations

import importlib.util
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from gagpo.base.errors import InvalidArgument
from gagpo.envs.arguments import build, require_arguments
from gagpo.envs.testing import CorridorEnv
from gagpo.interop.games import opened
from gagpo.settings import load, shipped_configs

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


def coloured(colour: str, **kwargs: Any) -> CorridorEnv:
    return ColouredEnv(colour, **kwargs)


gymnasium.register("gagpo-test/Function-v0", coloured)

WRONG = [
    ("gagpo/Math-v0", {"max_turn": 3}, r"has no argument 'max_turn' .*-k max_turn=\.\.\.\); nearest: max_turns$"),
    ("gagpo/Math-v0", {"wrong": "Q"}, r"has no argument 'wrong' .*; known: attempts, columns, data, "),
    ("gagpo/Program-v0", {}, r"needs the argument tasks: set environment\.kwargs\.tasks, or -k tasks=\.\.\.$"),
    ("gagpo/Program-v0", {"tasks": "t.jsonl", "agnt": "a:b"}, "'agnt' .*; nearest: agent"),
    (f"{HERE}:ColouredEnv", {}, "needs the argument colour"),
    (f"{HERE}:ColouredEnv", {"colour": "red", "widht": 3}, "'widht' .*; nearest: width"),
    (f"{HERE}:ColouredEnv", {"colour": "red", "max_turn": 3}, "'max_turn' .*; nearest: max_turns"),
    (f"{HERE}:gagpo-test/Function-v0", {"colour": "red", "max_turn": 3}, "has no argument 'max_turn'"),
    (f"{HERE}:gagpo-test/Function-v0", {}, "needs the argument colour"),
    (f"{HERE}:UnpreparedEnv", {}, "needs the argument size"),
    (f"{HERE}:UnpreparedEnv", {"size": 3, "huge": "blue"}, "'huge' .*; nearest: hue"),
    (f"{HERE}:UnpreparedEnv", {"size": 3, "action": ["a", "b"]}, "'action' .*; nearest: actions"),
    pytest.param(
        "http://127.0.0.1:9", {"feild": "text"}, "'feild' .*; nearest: field", marks=needs_openenv, id="server"
    ),
    ("gagpo/Math-v0", {"max_turns": "3"}, r"max_turns must be an integer \(got '3'\)"),
    ("gagpo/Storeroom-v0", {"max_turns": True}, r"max_turns must be an integer \(got True\)"),
]


@pytest.mark.parametrize(("env_id", "kwargs", "words"), WRONG)
def test_a_wrong_argument_is_one_line_with_the_nearest_name(env_id: str, kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as caught:
        build(env_id, kwargs)
    assert "\n" not in str(caught.value) and "TypeError" not in str(caught.value)
    with pytest.raises(InvalidArgument, match=words), opened(env_id, kwargs):
        pass


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("gagpo/Math-v0", {"max_turns": 3, "expert": True, "size": 20}),
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
    ("program", "words"),
    [
        ("import sys; sys.exit(0)", r"SystemExit: 0 \(faulty_module\.py, line 1\)"),
        ("x = = 3", r"SyntaxError: invalid syntax \(faulty_module\.py, line 1\)$"),
        ("\nraise RuntimeError('no display')", r"RuntimeError: no display \(faulty_module\.py, line 2\)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(tmp_path: Any, monkeypatch: Any, program: str, words: str) -> None:
    (tmp_path / "faulty_module.py").write_text(program)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidArgument, match=rf"'faulty_module:X-v0': its module cannot be imported: {words}"):
        require_arguments("faulty_module:X-v0")
