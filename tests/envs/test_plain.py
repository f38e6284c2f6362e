"""Environments that know nothing of gagpo are checked, played and configured through their seeds."""

from __future__ import annotations

import contextlib
import enum
import sys
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from gagpo.agents.setup import make_env
from gagpo.base.errors import InvalidArgument
from gagpo.envs.base import TextEnv
from gagpo.envs.check.check import check
from gagpo.envs.plain import seed_ranges, written
from gagpo.envs.pool import WorkerPool
from gagpo.eval.models import evaluate
from gagpo.settings import parse
from tests.rejections import rejects


class Moves(enum.IntEnum):
    left = 0
    right = 1


class NumberedEnv(gymnasium.Env[dict[str, Any], int]):
    """Walk right to the wall, with numbers as actions and a grid as an observation."""

    actions = Moves
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi", "rgb_array"]}

    def __init__(self, size: int = 3, outcome: str = "", render_mode: str | None = None):
        self.size, self.outcome, self.render_mode = size, outcome, render_mode
        self.action_space = spaces.Discrete(2)
        grid = spaces.Box(0, 1, (1, 8), np.uint8)
        self.observation_space = spaces.Dict({"grid": grid, "mission": spaces.Text(50)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(self.size))
        return self._seen(), {}

    def step(self, action: int) -> Any:
        assert action in self.action_space
        self.place += 2 * action - 1
        there = self.place >= self.size
        info = {"success": False} if self.outcome == "unsolved" else {}
        return (
            self._seen(),
            float(there),
            there and self.outcome != "cut",
            self.outcome == "cut" or self.place < -5,
            info,
        )

    def render(self) -> Any:
        return f"\x1b[41mx\x1b[0m at {self.place}"

    def _seen(self) -> dict[str, Any]:
        grid = np.zeros((1, 8), np.uint8)
        grid[0, max(0, self.place)] = 1
        return {"grid": grid, "mission": "go right"}


class UnnamedEnv(NumberedEnv):
    actions = None


class MeaningfulEnv(UnnamedEnv):
    def get_action_meanings(self) -> list[str]:
        return ["BACK", "FORTH"]


class MaskedEnv(gymnasium.Env[str, int]):
    """Three actions that begin at 5, and a mask of them."""

    action_names = ("wait", "left", "right")

    def __init__(self, mask: Any) -> None:
        self.action_space, self.observation_space = spaces.Discrete(3, start=5), spaces.Text(20)
        self.about = {"action_mask": mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return "", self.about

    def step(self, action: int) -> Any:
        return f"moved by {self.action_names[action - 5]}", 0.0, False, False, self.about


class ListingEnv(MaskedEnv):
    """The same, with a list of the possible ones."""

    def __init__(self, listed: Any, mask: Any = None) -> None:
        super().__init__(mask)
        self.about["admissible_actions"] = listed


class RaisingEnv(gymnasium.Env[str, str]):
    def __init__(self, error: str) -> None:
        raise {"licence": RuntimeError("no licence"), "key": KeyError("size"), "file": OSError(2, "no maps")}[error]


class EmptyEnv(gymnasium.Env[str, str]):
    """An environment that does not call its spaces."""

    def __init__(self, space: bool = False) -> None:
        if space:
            self.action_space = spaces.Text(3)


NOT_POSSIBLE = "That action is not possible here. Possible are: {}."


class CombinedEnv(UnnamedEnv):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.MultiDiscrete([2, 2])


class SteeredEnv(UnnamedEnv):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-1, 1, (2,))


class FilmedEnv(NumberedEnv):
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)


class EchoEnv(gymnasium.Env[str, str]):
    """Say what the environment said first."""

    def __init__(self) -> None:
        self.observation_space = self.action_space = spaces.Text(100)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.word = str(self.np_random.integers(1000))
        return self.word, {}

    def step(self, action: str) -> Any:
        return action, float(action == self.word), True, False, {}


NUMBERED = (NumberedEnv, UnnamedEnv, MeaningfulEnv, SteeredEnv, MaskedEnv, ListingEnv, CombinedEnv, FilmedEnv)
for kind in (*NUMBERED, EchoEnv, RaisingEnv, EmptyEnv):
    gymnasium.register(f"gagpo-test/{kind.__name__}-v0", f"{__name__}:{kind.__name__}", max_episode_steps=20)


def made(name: str, **kwargs: Any) -> TextEnv:
    return make_env(f"gagpo-test/{name}-v0", kwargs)


def test_seeds_are_the_tasks() -> None:
    env = made("EchoEnv", tasks={"train": "0-9", "rest": "20-21"})
    assert env.splits == ("train", "rest")
    assert env.tasks("rest").ids == ["rest-0000020", "rest-0000021"]
    tokens = {task: env.reset(seed=1, options={"task": task})[0] for task in env.tasks("train").ids}
    assert len(set(tokens.values())) > 5
    assert tokens["train-0000003"] == env.reset(seed=2, options={"task": "train-0000003"})[0]
    other = made("NumberedEnv", tasks={"train": "0-9", "rest": "20-21"})
    assert env.tasks("rest").hash != other.tasks("rest").hash
    assert env.tasks("rest").hash == made("EchoEnv", tasks={"rest": "20-21"}).tasks("rest").hash
    assert made("EchoEnv").splits == ("train", "test")  # by default


@pytest.mark.parametrize(
    ("tasks", "key", "names"),
    [
        ({"train": "many"}, "tasks.train", ("100000 seeds", "0-999", "got 'many'")),
        ({"train": "9-0"}, "tasks.train", ()),
        ({"train": "0-999999"}, "tasks.train", ()),
        ({"train": "0-9", "test": "9-12"}, "tasks.test", ("9-12", "tasks.train")),
    ],
)
def test_wrong_ranges_of_seeds(tasks: dict[str, str], key, names) -> None:
    with rejects(InvalidArgument, *names, key=key):
        seed_ranges(tasks)


def test_a_numbered_action_is_chosen_by_its_name() -> None:
    env = made("NumberedEnv", size=2)
    text, info = env.reset(options={"task": "train-0000000"})
    assert text.startswith("mission: go right\ngrid: ")
    assert info["admissible_actions"] == ["left", "right"]
    assert env.instructions == "The actions are: left, right."
    text, reward, over, _, info = env.step("jump")
    assert (text, reward, over, info["valid"]) == (f"There is no such action. {env.instructions}", 0, False, False)
    while not over:
        _, reward, over, _, info = env.step(" Right\n")
    assert (reward, info["success"], info["valid"]) == (1, True, True)
    assert made("MeaningfulEnv").reset()[1]["admissible_actions"] == ["BACK", "FORTH"]
    assert made("UnnamedEnv", actions=["a b", "c"]).reset()[1]["admissible_actions"] == ["a b", "c"]


MASKS: list[tuple[Any, list[str]]] = [
    ([1, 0, 1], ["wait", "right"]),
    (np.array([True, False, True]), ["wait", "right"]),
    (np.array([0, 1, 0], np.int8), ["left"]),
    ((1.0, 1.0, 0.0), ["wait", "left"]),
    (None, ["wait", "left", "right"]),
]


@pytest.mark.parametrize(("mask", "names"), MASKS)
def test_a_mask_chooses_the_admissible_actions(mask: Any, names: list[str]) -> None:
    with contextlib.closing(made("MaskedEnv", mask=mask)) as env:
        assert env.reset(seed=0)[1]["admissible_actions"] == names
        for name in ("wait", "left", "right"):
            observation, *_, info = env.step(name)
            assert (info["valid"], info["admissible_actions"]) == (name in names, names)
            assert observation == (f"moved by {name}" if name in names else NOT_POSSIBLE.format(", ".join(names)))


@pytest.mark.parametrize(
    ("actions", "names"),
    [
        (["right", "Wait"], ["wait", "right"]),
        ((5, np.int64(7)), ["wait", "right"]),
        (np.array([6]), ["left"]),
        (None, ["wait", "left", "right"]),
    ],
)
def test_listed_actions_are_the_admissible_ones(actions: Any, names: list[str]) -> None:
    with contextlib.closing(made("ListingEnv", listed=actions)) as env:
        assert env.reset(seed=0)[1]["admissible_actions"] == names
        assert [name for name in ("wait", "left", "right") if env.step(name)[-1]["valid"]] == names
    if actions is not None:  # the mask is about the numbers themselves
        with contextlib.closing(made("ListingEnv", listed=actions, mask=[0, 1, 1])) as env:
            assert env.reset(seed=0)[1]["admissible_actions"] == ["left", "right"]


@pytest.mark.parametrize(
    ("actions", "names"),
    [
        (["jump"], ("jump",)),
        ([4], ("4", "action")),
        ([8], ("8", "action")),
        (3.5, ("3.5",)),
        ([], ("info['admissible_actions']",)),
    ],
)
def test_listed_actions_that_do_not_exist_are_an_error(actions: Any, names) -> None:
    with rejects(InvalidArgument, *names):
        made("ListingEnv", listed=actions).reset(seed=0)


@pytest.mark.parametrize(
    ("mask", "key", "names"),
    [
        ([1, 0], "action_mask", ("0", "1", "3 actions", "[1, 0]")),
        ([[1, 0, 1]], "action_mask", ("3 actions",)),
        ([1, 0, 2], "action_mask", ("[1, 0, 2]",)),
        (["1", "0", "1"], "action_mask", ("3 actions",)),
        (3, "action_mask", ("3",)),
        ([0, 0, 0], None, ("allows",)),
    ],
)
def test_a_mask_that_does_not_fit_is_an_error(mask: Any, key, names) -> None:
    with rejects(InvalidArgument, "info['action_mask']", *names, key=key, where="gagpo-test/MaskedEnv-v0"):
        made("MaskedEnv", mask=mask).reset(seed=0)


@pytest.mark.parametrize(
    ("name", "kwargs", "key", "names"),
    [
        ("UnnamedEnv", {}, "actions", ("2 numbered", "environment.kwargs.actions")),
        ("UnnamedEnv", {"actions": ["a"]}, "actions", ("1 names",)),
        ("UnnamedEnv", {"actions": ["a", "A"]}, "actions", ("2 different",)),
        ("NumberedEnv", {"sise": 2}, "sise", ("NumberedEnv-v0", "size")),
        ("CombinedEnv", {}, None, ("MultiDiscrete", "Text")),
        ("SteeredEnv", {}, None, ("Text", "Discrete")),
        ("FilmedEnv", {}, None, ("(64, 64, 3)",)),
        ("EmptyEnv", {}, None, ("EmptyEnv-v0", "action_space", "self.action_space", "__init__")),
        ("EmptyEnv", {"space": True}, None, ("observation_space",)),
        ("RaisingEnv", {"error": "licence"}, None, ("RuntimeError", "test_plain.py")),
        ("RaisingEnv", {"error": "key"}, None, ("KeyError", "size")),
        ("RaisingEnv", {"error": "file"}, None, ("FileNotFoundError",)),
        ("FilmedEnv", {"render_mode": "ansi"}, "render_mode", ("environment.kwargs.render_mode",)),
    ],
)
def test_spaces_that_cannot_be_played_are_refused(name: str, kwargs: dict[str, Any], key, names) -> None:
    with rejects(InvalidArgument, *names, key=key):
        made(name, **kwargs)


@pytest.mark.parametrize(("outcome", "success"), [("", True), ("unsolved", False), ("cut", False)])
def test_success_is_a_positive_reward_at_the_end_unless_info_says_otherwise(outcome: str, success: bool) -> None:
    env = made("NumberedEnv", size=1, outcome=outcome)
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("right")
    assert (reward, terminated, truncated) == (1, outcome != "cut", outcome == "cut")
    assert info["success"] is success


def test_a_graded_reward_at_the_end_is_only_assumed_to_be_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    env = made("NumberedEnv", size=1)
    inner = env.unwrapped.env
    step = inner.step
    monkeypatch.setattr(inner, "step", lambda action: (step(action)[0], 0.25, *step(action)[2:4], {}))
    env.reset(seed=0)
    info = env.step("right")[4]
    assert info["success"] and info["success_assumed"] is True
    plain = made("NumberedEnv", size=1)
    plain.reset(seed=0)
    assert "success_assumed" not in plain.step("right")[4]


def test_the_environments_own_limit_of_turns_counts() -> None:
    env = made("NumberedEnv", size=8)
    env.reset(seed=0)
    assert any(env.step(action)[3] for action in ["left", "right"] * 10)
    assert env.turn == 20


def test_a_rendering_replaces_the_observation() -> None:
    env = made("NumberedEnv", render_mode="ansi")
    env.reset(options={"task": "train-0000000"})
    assert env.step("right")[0].startswith("x at ")


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        (7, "7"),
        (np.float32(0.123456), "0.1235"),
        ((3, 10, True), "3 10 True"),
        (np.array([1, 2]), "1 2"),
        (np.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]]), "1,2 3,4\n5,6 7,8"),
        ({"b": np.eye(2, dtype=int), "a": "text", "c": {"d": 1}}, "a: text\nb:\n1 0\n0 1\nc: d: 1"),
    ],
)
def test_observations_are_written(observation: object, text: str) -> None:
    assert written(observation) == text


@pytest.mark.parametrize("name", ["NumberedEnv", "EchoEnv"])
def test_the_check_passes_and_says_what_is_not_guaranteed(name: str) -> None:
    findings = {
        finding.name: finding
        for finding in check(f"gagpo-test/{name}-v0", {"tasks": {"train": "0-49", "test": "50-59"}})
    }
    wrong = [finding for finding in findings.values() if not finding.ok and finding.name != "chance"]
    assert wrong == []
    assert "its tasks are seeds" in findings["construction"].detail
    assert "there is no expert" in findings["construction"].detail
    assert not findings["equal states"].judged


@pytest.mark.parametrize("name", ["Brought-NumberedEnv-v0", "NumberedEnv"])
def test_a_file_in_the_working_directory_is_played_in_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    source = Path(__file__).read_text().partition("\ndef made(")[0].replace("gagpo-test/", "Brought-")
    (tmp_path / "brought.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "brought", raising=False)  # of the other parameter's folder
    with WorkerPool(f"brought:{name}", {"size": 2}, workers=1) as pool:
        pool.reset(0, "train-0000003", seed=5)
        (event,) = pool.wait()
    assert event.kind == "reset", event.error
    assert event.observation.startswith("mission: go right")


def test_a_class_of_the_main_program_is_played_in_its_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EchoEnv, "__module__", "__main__")
    monkeypatch.setitem(gymnasium.registry, "Main-v0", gymnasium.envs.registration.EnvSpec("Main-v0", EchoEnv))
    for env in ("Main-v0", "tests.envs.test_plain:EchoEnv"):
        assert evaluate("random", environment=env, tasks=3, workers=0, quiet=True).failed == 0
        with rejects(InvalidArgument, advice="workers=0"):
            WorkerPool(env, workers=1)


CONFIG = """
name: numbered
model: starter:alfworld
environment: {id: gagpo-test/NumberedEnv-v0, tasks: {train: 0-49, test: 50-59}, kwargs: {size: 2}}
algorithm: gagpo
evaluation: {splits: [test]}
"""


def test_a_config_names_the_seeds_and_an_evaluation_takes_them(tmp_path: Path) -> None:
    (tmp_path / "numbered.yaml").write_text(CONFIG)
    result = evaluate("random", like=tmp_path / "numbered.yaml", workers=0, quiet=True)
    assert (result.task_set.split, result.task_set.tasks, result.failed) == ("test", 10, 0)
    assert result.successes > 0
    some: dict[str, Any] = {"environment": "gagpo-test/NumberedEnv-v0", "split": "train", "tasks": 5}
    again = evaluate("random", **some, workers=0, quiet=True)
    assert again.task_set.tasks == 5


def test_the_seeds_of_a_config() -> None:
    from yaml import safe_load

    values = safe_load(CONFIG)
    settings = parse(values, "numbered.yaml", ["environment.tasks.test=60-69"])
    assert settings.environment is not None
    assert settings.environment.kwargs == {"size": 2, "tasks": {"train": "0-49", "test": "60-69"}}
    assert parse(settings.model_dump(mode="json"), "the run", []) == settings
    for changes in (["environment.kwargs.tasks={test: 60-69}"], ["environment.kwargs.tasks.test=60-69"]):
        environment = parse(values, "numbered.yaml", changes).environment
        assert environment is not None and environment.kwargs["tasks"]["test"] == environment.tasks["test"] == "60-69"
    with rejects(ValueError, key="tasks.test", where="override 'environment.tasks.test=0-9'"):
        parse(values, "numbered.yaml", ["environment.tasks.test=0-9"])


def test_an_environment_of_gymnasium_itself() -> None:
    kwargs = {"actions": ["left", "down", "right", "up"], "is_slippery": False, "render_mode": "ansi"}
    env = make_env("FrozenLake-v1", kwargs)
    env.reset(seed=0)
    for action in ["down", "down", "right", "right", "down", "right"]:
        text, reward, _, _, info = env.step(action)
    assert text.endswith("HFFG\n")
    assert (reward, info["success"]) == (1, True)


@pytest.mark.interop
def test_babyai_is_played_by_configuration_alone() -> None:
    pytest.importorskip("minigrid", reason="the package minigrid is not installed")
    env = make_env("minigrid:BabyAI-GoToRedBallGrey-v0")
    text, info = env.reset(options={"task": "train-0000003"})
    assert text.startswith("mission: go to the red ball\nimage:\n")
    assert text.count("2,5,0") >= 7  # a grey wall
    assert info["admissible_actions"] == ["left", "right", "forward", "pickup", "drop", "toggle", "done"]
    result = evaluate("random", environment="minigrid:BabyAI-GoToRedBallGrey-v0", tasks=20, workers=0, quiet=True)
    assert result.failed == 0
