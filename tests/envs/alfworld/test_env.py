"""ALFWorld as a gymnasium environment, on games generated for and played in the real engine."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import gagpo.envs  # noqa: F401 (registers the environments)
from gagpo.envs.alfworld.engine import BrokenGame
from gagpo.envs.alfworld.env import ALFWorldEnv
from gagpo.envs.alfworld.games.catalogue import TASK_TYPES
from gagpo.envs.alfworld.games.folder import NoGames
from gagpo.envs.alfworld.games.generate import default_root, generate
from gagpo.envs.tasks import EmptySplit, UnknownTask
from tests.outside import outside_data
from tests.rejections import rejects

COUNTS = {"train": 6, "valid_seen": 3, "valid_unseen": 3}


@pytest.fixture(scope="module", autouse=True)
def data(tmp_path_factory: pytest.TempPathFactory):
    """Twelve games, generated once for all tests of this file."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GAGPO_DATA", str(folder))
        generate(counts=COUNTS, root=default_root("small", 0))
        yield folder


def make(**options) -> ALFWorldEnv:
    return gymnasium.make("gagpo/ALFWorld-v0", **{"counts": COUNTS} | options).unwrapped  # type: ignore[return-value]


@pytest.fixture(scope="module")
def env():
    env = make(expert=True)
    yield env
    env.close()


def test_passes_gymnasiums_checker(env: ALFWorldEnv) -> None:
    check_env(env, skip_render_check=True)


def test_reset_starts_the_given_task(env: ALFWorldEnv) -> None:
    for split in ALFWorldEnv.splits:
        for task in env.tasks(split):
            text, info = env.reset(options={"task": task.id})
            assert (info["task"], info["split"], info["task_type"]) == (task.id, split, task.type)
            assert task.type in TASK_TYPES
            assert text.startswith("You are in the middle of a room.")
            assert text.endswith(f"Your task is to: {info['goal']}")
            expected, scene = task.id.split("/")[0].split("-")[1], task.id.split("/")[0].split("-")[-1]
            assert expected.lower() in info["goal"]
            assert scene.isdigit()


def test_the_expert_wins_every_task(env: ALFWorldEnv) -> None:
    for split in ALFWorldEnv.splits:
        for task in env.tasks(split):
            _, info = env.reset(options={"task": task.id})
            over = False
            rewards = []
            while not over:
                assert info["expert_action"] in info["admissible_actions"]
                _, reward, terminated, truncated, info = env.step(info["expert_action"])
                over = terminated or truncated
                rewards.append(reward)
            assert info["success"]
            assert terminated
            assert rewards == [0.0] * (len(rewards) - 1) + [1.0]
            assert info["expert_action"] is None


def test_an_imperfect_expert_wins_only_simple_placing_tasks() -> None:
    env = make(expert="imperfect")
    for task in env.tasks("train"):
        _, info = env.reset(options={"task": task.id})
        actions: list[str] = []
        while info["expert_action"] is not None:
            assert info["expert_action"] in info["admissible_actions"]
            actions.append(info["expert_action"])
            *_, info = env.step(actions[-1])
        assert info["success"] == (task.type == "pick_and_place_simple"), task.id
        assert actions[-1].startswith("use" if "light" in task.type else "move") and len(actions) < env.max_turns
        assert not any(action.startswith(("clean", "heat", "cool")) for action in actions)
    env.close()
    with rejects(ValueError, advice='False, True, "imperfect"'):
        make(expert="lazy")


def test_random_actions_rarely_win(env: ALFWorldEnv) -> None:
    rng = np.random.default_rng(0)
    wins = 0
    for task in env.tasks("train"):
        _, info = env.reset(options={"task": task.id})
        for _ in range(25):
            assert info["valid"]
            _, _, terminated, _, info = env.step(str(rng.choice(info["admissible_actions"])))
            if terminated:
                wins += info["success"]
                break
    assert wins <= 2


def test_garbage_is_answered_and_changes_nothing(env: ALFWorldEnv) -> None:
    text, info = env.reset(seed=1)
    state = info["state"]
    for action in ("", "x" * 100_000, "öffne Schublade 1 漢字 \x00\ud800", "GO TO shelf 1", "look\nlook", "{r.name}"):
        answer, reward, terminated, truncated, info = env.step(action)
        assert (answer, reward, terminated, truncated) == ("Nothing happens.", 0.0, False, False)
        assert not info["valid"]
        assert info["state"] == state
    assert env.step("look")[4]["valid"]
    assert env.reset(seed=1)[0] == text


def test_the_same_seed_gives_the_same_texts_in_any_process(data: Path, tmp_path: Path) -> None:
    code = (
        "import os, gymnasium, numpy as np, gagpo.envs\n"
        f"env = gymnasium.make('gagpo/ALFWorld-v0', counts={COUNTS!r})\n"
        "rng = np.random.default_rng(7)\n"
        "text, info = env.reset(seed=7)\n"
        "out = [text]\n"
        "for _ in range(8):\n"
        "    text, *_, info = env.step(str(rng.choice(info['admissible_actions'])))\n"
        "    out += [text, info['state'], *info['admissible_actions']]\n"
        "print(out)"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={
                **os.environ,
                "PYTHONHASHSEED": hash_seed,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "ALFWORLD_DATA": str(tmp_path / "untouched"),
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(answers) == 1
    assert "You are in the middle of a room" in answers.pop()
    assert not (tmp_path / "untouched").exists()  # importing alfworld would make it


def test_ends_after_max_turns() -> None:
    env = make(max_turns=2)
    env.reset(seed=0)
    assert env.step("look")[2:4] == (False, False)
    assert env.step("look")[2:4] == (False, True)
    env.close()
    env.close()  # a second time is harmless


def test_an_unknown_task_names_the_nearest(env: ALFWorldEnv) -> None:
    recorded = env.tasks("train").ids[0]
    with rejects(UnknownTask, advice=recorded):
        env.reset(options={"task": recorded + "x"})


def test_games_of_some_types_from_a_folder(data: Path) -> None:
    type_name = TASK_TYPES[1]
    env = make(games=default_root("small", 0), task_types=[type_name], split="train")
    assert {task.type for task in env.tasks("train")} == {type_name}
    assert make(task_types=[type_name], counts=COUNTS | {"train": 1, "valid_seen": 1}).tasks("train").hash == (
        env.tasks("train").hash
    )
    with pytest.raises(EmptySplit):
        make(games=default_root("small", 0), task_types=[TASK_TYPES[5]], split="valid_seen").reset(seed=0)


def test_a_folder_without_one_split_plays_the_others(data: Path, tmp_path: Path) -> None:
    for split in ("train", "valid_unseen"):
        (tmp_path / split).symlink_to(default_root("small", 0) / split)
    env = make(games=tmp_path)
    unseen = env.tasks("valid_unseen").ids[0]
    assert env.reset(options={"task": unseen})[1]["split"] == "valid_unseen"
    with rejects(NoGames, "valid_seen", key="games"):
        env.reset(options={"task": "nowhere"})


def test_released_games_are_played_through_the_same_class(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    (tmp_path / "json_2.1.1").symlink_to(default_root("small", 0))
    released, generated = make(games="official"), make()
    assert released.tasks("train").hash == generated.tasks("train").hash
    assert released.reset(seed=3)[0] == generated.reset(seed=3)[0]


def test_a_game_damaged_after_the_start_is_named(tmp_path: Path, env: ALFWorldEnv) -> None:
    task = env.tasks("train").draw(np.random.default_rng(0))
    folder = tmp_path / "train" / task.id
    shutil.copytree(Path(task.source).parent, folder)
    copy = make(games=tmp_path)
    (folder / "game.tw-pddl").write_text('{"pddl_domain": ')
    with rejects(BrokenGame, where="game.tw-pddl, line 1, column 17"):
        copy.reset(seed=0)


def test_held_out_games_are_a_split_and_leave_training(env: ALFWorldEnv) -> None:
    divided = make(held_out=0.4)
    assert divided.splits == ("train", "train_dev", "valid_seen", "valid_unseen")
    train, dev, full = divided.tasks("train"), divided.tasks("train_dev"), env.tasks("train")
    assert train.ids and dev.ids and sorted([*train.ids, *dev.ids]) == full.ids
    assert divided.tasks("valid_unseen").hash == env.tasks("valid_unseen").hash
    from_folder = make(games=default_root("small", 0), held_out=0.4, split="train_dev")
    assert from_folder.tasks("train_dev").hash == dev.hash != from_folder.tasks("train").hash == train.hash
    text, info = divided.reset(options={"task": dev.ids[0]})
    assert info["split"] == "train_dev" and text == env.reset(options={"task": dev.ids[0]})[0]
    assert "held_out" in ALFWorldEnv.choosing


@pytest.mark.slow
def test_the_held_out_part_of_the_released_games(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(outside_data("alfworld-released-train.tar.xz")) as archive:
        archive.extractall(tmp_path / "json_2.1.1", filter="data")
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    split = make(games="official", verb="both", held_out=0.25)
    assert {name: (len(split.tasks(name)), split.tasks(name).hash) for name in ("train", "train_dev")} == {
        "train": (147, "33415eefd0dcb98c"),
        "train_dev": (53, "bc3034f0dea66023"),
    }
    shared_rooms = {room_of(task) for task in split.tasks("train").ids} & set(
        map(room_of, split.tasks("train_dev").ids)
    )
    assert len(shared_rooms) > 20
    by_room = make(games="official", verb="both", held_out=0.25, held_out_by="room")
    train, dev = ({room_of(task) for task in by_room.tasks(name).ids} for name in ("train", "train_dev"))
    assert not train & dev and len(dev) > 5 and len(by_room.tasks("train")) + len(by_room.tasks("train_dev")) == 200


def room_of(task: str) -> str:
    return task.split("/")[0].rpartition("-")[2]


@pytest.mark.parametrize(
    ("options", "key", "names"),
    [
        ({"split": "test"}, None, ("test",)),
        ({"size": "huge"}, None, ("huge",)),
        ({"task_types": ["juggle"]}, None, ("juggle",)),
        ({"games": "/nowhere"}, "games", ("/nowhere/train",)),
        ({"games": "official"}, "games", ("alfworld-download",)),
        ({"split": "train_dev"}, None, ("'train_dev'", "held_out=0.2")),
        ({"held_out_by": "wall"}, "held_out_by", ("task, room", "wall")),
        ({"held_out": 1.0}, "held_out", ("1.0",)),
        ({"held_out": "half"}, "held_out", ("got 'half'",)),
    ],
)
def test_bad_settings_are_errors_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict, key, names
) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with rejects(ValueError, *names, key=key):
        make(**options)


def test_an_unknown_engine_is_an_error_that_names_the_engines() -> None:
    with rejects(ValueError, "'java'", advice="native or textworld"):
        make(engine="java")


@pytest.mark.textworld
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="textworld breaks on 3.13")
def test_the_packages_own_engine_gives_the_same_episode(env: ALFWorldEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    reference = make(expert=True, engine="textworld")
    task = next(iter(env.tasks("valid_unseen")))
    options = {"task": task.id}
    (text, info), (reference_text, reference_info) = env.reset(options=options), reference.reset(options=options)
    over = False
    while not over:
        for key in ("goal", "admissible_actions", "expert_action", "success", "valid"):
            assert info[key] == reference_info[key]
        assert text == reference_text
        action = info["expert_action"]
        text, reward, over, _, info = env.step(action)
        reference_text, reference_reward, reference_over, _, reference_info = reference.step(action)
        assert (reward, over) == (reference_reward, reference_over)
    assert info["success"] and reference_info["success"] and "ALFWORLD_DATA" not in os.environ
    assert ALFWorldEnv.material({"engine": "textworld"}) == ALFWorldEnv.material({})
    reference.close()
