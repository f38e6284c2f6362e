"""The native engine against TextWorld, byte by byte."""

import json
import random
import sys
import tarfile
from pathlib import Path

import pytest

from tests.envs.alfworld import native_den
from tests.outside import outside_data

pytest.importorskip("textworld")
if sys.version_info >= (3, 13):
    pytest.skip("TextWorld needs locals() as they were before PEP 667", allow_module_level=True)

from benchmarks.alfworld import parity as comparison
from benchmarks.alfworld.parity import GARBAGE, Keys, compare_game, differences, parity
from benchmarks.alfworld.variants import VARIANTS
from gagpo.envs.alfworld.games.catalogue import TASK_TYPES
from gagpo.envs.alfworld.games.generate import files_of
from gagpo.envs.alfworld.native.engine import NativeEngine
from gagpo.envs.alfworld.reference.engine import TextWorldEngine
from tests.rejections import rejects

pytestmark = pytest.mark.textworld


def game_file(folder: Path, size: str, task_type: str, index: int = 0) -> Path:
    files = files_of(size, 11, ("train", task_type, index))
    path = folder / files.folder / "game.tw-pddl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(files.game)
    return path


CASES = list(zip(TASK_TYPES, ["small", "full", "varied", "alfred", "small", "alfred"], VARIANTS, strict=True))


@pytest.mark.parametrize(("task_type", "size", "variant"), CASES)
def test_every_type_of_task_in_every_variant_says_the_same(tmp_path, task_type, size, variant):
    unit = compare_game("one", str(game_file(tmp_path, size, task_type)), variant, 150, seed=1)
    assert unit.mismatches == []
    assert unit.steps == 150 and unit.wins >= 1


def test_garbage_and_idle_commands_say_the_same_before_and_after_winning(tmp_path):
    path = game_file(tmp_path, "small", "pick_cool_then_place_in_recep")
    engines = NativeEngine(), TextWorldEngine()
    scenes = [engine.reset(path) for engine in engines]
    plan = json.loads(path.read_text())["walkthrough"]
    after = ("help", "look", "inventory", "examine", *GARBAGE)
    for command in (*after, *plan, *after):
        scenes = [engine.step(command) for engine in engines]
        assert differences(*scenes) == {}
    assert scenes[0].won


def test_a_game_beyond_households_says_the_same(tmp_path, monkeypatch):
    # The grammar is ours.
    monkeypatch.setattr("gagpo.envs.alfworld.reference.engine._reject_code", lambda grammar: None)
    path = native_den.write(tmp_path)
    path.write_text(path.read_text().replace("doll_minus_", "doll"))  # a mark that alfworld cannot read in a name
    engines = NativeEngine(), TextWorldEngine()
    rng = random.Random(3)
    keys = Keys()
    wins = 0
    for _ in range(6):
        before, command = None, ""
        item, two = (engine.reset(path) for engine in engines)
        for _ in range(120):
            assert differences(item, two) == {} == keys.difference(before, command, item, two)
            wins += item.won
            before, command = item, rng.choice(two.admissible_commands)
            item, two = (engine.step(command) for engine in engines)
    assert wins > 0


def test_a_difference_is_found_and_reported_with_all_that_repeats_it(tmp_path, monkeypatch):
    path = game_file(tmp_path, "small", "pick_two_obj_and_place")
    monkeypatch.setattr("gagpo.envs.alfworld.native.engine.NOTHING_HAPPENS", "Nothing  happens.")
    unit = compare_game("one", str(path), "as is", 200, seed=1)
    (mismatch,) = unit.mismatches
    assert mismatch["field"] == "observation"
    assert (mismatch["native"], mismatch["textworld"]) == ("Nothing  happens.", "Nothing happens.")
    engine = NativeEngine()
    engine.reset(path)
    assert [engine.step(command) for command in mismatch["commands"]][-1].observation == "Nothing  happens."


def test_an_interrupted_comparison_goes_on_from_its_journal(tmp_path, monkeypatch):
    games = [game_file(tmp_path, "small", type_name) for type_name in TASK_TYPES[:2]]
    journal = tmp_path / "journal.jsonl"
    report = parity(games, steps=40, steps_per_game=20, journal=journal)
    assert (report["steps"], report["games"], report["mismatches"]) == (40, 2, 0)
    monkeypatch.setattr(comparison, "compare_game", None)  # nothing is left to play
    again = parity(games, steps=40, steps_per_game=20, journal=journal)
    assert again["steps"] == 40
    journal.write_text("{}\n")
    with rejects(ValueError, where="journal.jsonl, line 1"):
        parity(games, steps=40, steps_per_game=20, journal=journal)


@pytest.mark.slow
def test_processes_share_the_work(tmp_path):
    games = [game_file(tmp_path, "small", type_name) for type_name in TASK_TYPES]
    report = parity(games, steps=6 * 60, steps_per_game=60, processes=2)
    assert (report["steps"], report["games"], report["mismatches"]) == (360, 6, 0)


@pytest.mark.slow
def test_two_hundred_released_games_say_the_same(tmp_path):
    with tarfile.open(outside_data("alfworld-released-train.tar.xz")) as archive:
        archive.extractall(tmp_path, filter="data")
    games = sorted(tmp_path.rglob("game.tw-pddl"))
    report = parity(games, steps=len(games) * 20, steps_per_game=20, processes=2)
    assert (report["games"], report["steps"], report["mismatches"]) == (200, 4000, 0)
