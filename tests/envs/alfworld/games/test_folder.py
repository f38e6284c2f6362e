"""Folders of games as task sets: which games count, what is cached, and the errors for broken files."""

import json
import sys
from pathlib import Path

import pytest

from gagpo.envs.alfworld.engine import BrokenGame, read_game, read_json
from gagpo.envs.alfworld.games import folder as games_module
from gagpo.envs.alfworld.games.catalogue import TASK_TYPES
from gagpo.envs.alfworld.games.folder import NoGames, find_games
from gagpo.envs.alfworld.games.gamefile import GAME, TRAJECTORY
from gagpo.envs.tasks import EmptySplit
from tests.rejections import rejects

TRIAL = "train/b-Mug-None-Shelf-7/trial_2"
CONTENT = {"pddl_domain": "d", "grammar": "g", "pddl_problem": "p", "solvable": True}


def write(folder: Path, task_type: str | None = TASK_TYPES[0], **changes: object) -> Path:
    folder.mkdir(parents=True)
    content = {key: value for key, value in (CONTENT | changes).items() if value is not ...}
    (folder / GAME).write_text(json.dumps(content))
    if task_type is not None:
        (folder / TRAJECTORY).write_text(json.dumps({"task_type": task_type}))
    return folder / GAME


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GAGPO_DATA", str(tmp_path / "data"))
    train = tmp_path / "games" / "train"
    write(train / "b-Mug-None-Shelf-7" / "trial_2")
    write(train / "a-Mug-None-Shelf-7" / "trial_1", task_type=TASK_TYPES[5])
    return tmp_path / "games"


def test_ids_are_paths_below_the_split(root: Path) -> None:
    tasks = find_games(root, "train").tasks
    assert tasks.ids == ["a-Mug-None-Shelf-7/trial_1", "b-Mug-None-Shelf-7/trial_2"]
    task = tasks["a-Mug-None-Shelf-7/trial_1"]
    assert (task.type, task.split) == (TASK_TYPES[5], "train")
    assert read_game(Path(task.source))["digest"] == task.digest


def test_only_complete_solvable_games_of_the_given_types_count(root: Path) -> None:
    train = root / "train"
    write(train / "c" / "unsolvable", solvable=False)
    write(train / "c" / "not tried", solvable=None)
    write(train / "c" / "no verdict", solvable=...)
    write(train / "c" / "no trajectory", task_type=None)
    write(train / "c-movable-recep" / "trial")
    write(train / "c-AppleSliced" / "trial")
    write(train / "c" / "other", task_type="pick_and_place_with_movable_recep")
    (write(train / "c" / "no game")).unlink()
    assert len(find_games(root, "train").tasks) == 2
    assert find_games(root, "train", [TASK_TYPES[5]]).tasks.ids == ["a-Mug-None-Shelf-7/trial_1"]


def alfworlds(folder: Path, task_types: list[str]) -> set[str]:
    """What alfworld's own collector lists, run as its package ships it."""
    pytest.importorskip("textworld")
    from alfworld.agents.environment.alfred_tw_env import TASK_TYPES as NUMBERS
    from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv

    collector = AlfredTWEnv.__new__(AlfredTWEnv)
    collector.train_eval = "train"
    numbers = [number for number, name in NUMBERS.items() if name in task_types]
    collector.config = {"dataset": {"data_path": str(folder), "num_train_games": 0}, "env": {"task_types": numbers}}
    collector.collect_game_files()
    return {Path(path).parent.relative_to(folder).as_posix() for path in collector.game_files}


@pytest.mark.textworld
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="textworld needs locals() as they were before PEP 667")
def test_the_rules_are_alfworlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setenv("GAGPO_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "alfworld"))
    train = tmp_path / "games" / "train"
    write(train / "a" / "whole")
    write(train / "a" / "whole" / "inner", task_type=TASK_TYPES[2])
    write(train / "a" / ".hidden")
    write(train / "a" / "unsolvable", solvable=False, pddl_domain=..., grammar=..., pddl_problem=...)
    write(train / "a" / "no verdict", solvable=..., grammar=...)
    write(train / "a" / "a list").write_text("[1]")
    write(train / "a" / "other type", task_type="juggle").write_text("{broken")
    write(train / "a-movable" / "x", task_type=None)
    (train / "a-movable" / "x" / TRAJECTORY).write_text("{broken")
    write(train / "a-Sliced" / "x").write_bytes(b"\xff")
    write(train / "a" / "no game").unlink()
    dangling = write(train / "a" / "dangling game")
    dangling.unlink()
    dangling.symlink_to(tmp_path / "nowhere")
    write(train / "a" / "no trajectory", task_type=None)
    write(tmp_path / "elsewhere" / "linked")
    (train / "a" / "linked folder").symlink_to(tmp_path / "elsewhere" / "linked", target_is_directory=True)
    (train / "a" / "round").symlink_to(train, target_is_directory=True)
    for types in (list(TASK_TYPES), [TASK_TYPES[0]], [TASK_TYPES[2]], [TASK_TYPES[4]]):
        games = find_games(tmp_path / "games", "train", types)
        assert set(games.tasks.ids) == alfworlds(train, types)
    games = find_games(tmp_path / "games", "train")
    assert games.tasks.ids == ["a/.hidden", "a/whole", "a/whole/inner"]
    assert {reason: len(ids) for reason, ids in games.skipped.items()} == {
        "with movable receptacles or slicing": 2,
        "not marked solvable or unsolvable": 2,
        "without a game file": 2,
        "of another type": 1,
        "not solvable": 1,
    }
    (message,) = [record.getMessage() for record in caplog.records if record.name == games_module.__name__]
    assert message.startswith(f"{train}: 3 games; left out, as alfworld does: 2 ")


def test_an_untouched_game_is_read_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = find_games(root, "train").tasks
    read: list[Path] = []

    def counting(path: Path) -> tuple:
        read.append(path)
        return read_json(path)

    monkeypatch.setattr(games_module, "read_json", counting)
    assert find_games(root, "train").tasks.hash == first.hash
    assert read == []
    changed = root / TRIAL / GAME
    changed.write_text(json.dumps(CONTENT | {"grammar": "another"}))
    assert find_games(root, "train").tasks.hash != first.hash
    assert set(read) == {changed, changed.with_name(TRAJECTORY)}


def test_a_damaged_cache_is_ignored(root: Path, tmp_path: Path) -> None:
    expected = find_games(root, "train").tasks.hash
    (manifest,) = (tmp_path / "data" / "alfworld" / "manifests").iterdir()
    for content in (
        "",
        "[]",
        "[" * 100_000,
        '{"format": 3, "games": {"b-Mug-None-Shelf-7/trial_2": [3]}}',
        '{"format": 3, "games": {"b-Mug-None-Shelf-7/trial_2": 3}}',
        '{"format": 3, "games": 3}',
        '{"format": 0, "games": {}}',
    ):
        manifest.write_text(content)
        assert find_games(root, "train").tasks.hash == expected


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"", ("line 1, column 1",)),
        (b'{"pddl_domain": "d",\n "grammar" 3}', ("line 2, column 12",)),
        (b'{"pddl_domain": "d', ("line 1",)),
        (b"3", ("JSON object", "int")),
        (b'{"n": ' + b"7" * 5_000 + b"}", ("JSON",)),
        (
            b'{"solvable": true, "pddl_domain": "d", "grammar": 3, "pddl_problem": "p"}',
            ("grammar",),
        ),
        (b'{"a": "\xff"}', ("byte 7", "UTF-8")),
        (b"[" * 200_000, ("nested",)),
        (b" " * 5_000_001, ("5000000",)),
    ],
    ids=["empty", "syntax", "truncated", "number", "digits", "type", "encoding", "nesting", "size"],
)
def test_the_error_for_a_broken_game_names_file_and_place(root: Path, content: bytes, names: tuple[str, ...]) -> None:
    path = root / TRIAL / GAME
    path.write_bytes(content)
    with rejects(BrokenGame, *names) as caught:
        find_games(root, "train")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_the_error_for_a_broken_trajectory_names_the_file(root: Path, content: str) -> None:
    (root / TRIAL / TRAJECTORY).write_text(content)
    with rejects(BrokenGame, TRAJECTORY):
        find_games(root, "train")


def test_errors_for_missing_folders_and_empty_splits_give_advice(root: Path) -> None:
    with rejects(NoGames, key="games", advice="alfworld-download"):
        find_games(root, "valid_seen")
    (root / "valid_seen").mkdir()
    with rejects(EmptySplit, key="split", advice="o solvable game"):
        find_games(root, "valid_seen").tasks.require()
