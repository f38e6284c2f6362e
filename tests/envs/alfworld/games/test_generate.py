"""Generated games: reproducible from their seed, disjoint between splits, made once, and never half-made."""

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from gagpo.envs.alfworld.engine import Scene
from gagpo.envs.alfworld.games import generate as generate_module
from gagpo.envs.alfworld.games.alfred import FURNITURE
from gagpo.envs.alfworld.games.catalogue import (
    ROOMS,
    SIZES,
    TASK_TYPES,
    TOOL_OF_TASK,
    UNSEEN_PER_ROOM,
    USUAL_PLACES,
    room_of_scene,
)
from gagpo.envs.alfworld.games.gamefile import GAME, pddl_problem
from gagpo.envs.alfworld.games.generate import DEFAULT_COUNTS, SPLITS, UnsolvedGame, files_of, generate, list_jobs
from gagpo.envs.alfworld.games.package_data import package_data
from gagpo.envs.alfworld.games.random_stream import RandomStream
from gagpo.envs.alfworld.games.scenes import Scenario, draw_scenario, furnish, mangle, spoken_names
from tests.rejections import rejects


class WalkthroughEngine:
    """A mock engine that admits the commands of a game's walkthrough, wins with the last, and counts its games."""

    def __init__(self) -> None:
        self.games = 0
        self.plan: list[str] = []

    def __call__(self) -> "WalkthroughEngine":
        return self

    def reset(self, game: Path) -> Scene:
        self.games += 1
        self.plan = list(json.loads(game.read_text())["walkthrough"])
        return Scene("", self.plan)

    def step(self, command: str) -> Scene:
        self.plan = self.plan[1:]
        return Scene("", self.plan, won=not self.plan)


COUNTS = {"train": 8, "valid_seen": 6, "valid_unseen": 6}


def make(root: Path, engine: WalkthroughEngine | None = None, **options: object) -> dict:
    counts = options.pop("counts", COUNTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate_module, "NativeEngine", engine or WalkthroughEngine())
        return generate(counts=counts, root=root, **options)  # type: ignore[arg-type]


def problem_text(size: str, split: str, task_type: str, index: int, seed: int = 0) -> str:
    return pddl_problem(package_data(), draw_scenario(package_data(), seed, size, split, task_type, index))


def problems_of(size: str, count: int | None, split: str = "train", seed: int = 0) -> list[Scenario]:
    counts = None if count is None else {split: count}
    return [draw_scenario(package_data(), seed, size, *job) for job in list_jobs(size, counts, TASK_TYPES, [split])]


# These change only with the generator's FORMAT.
GOLDEN = {
    ("small", "train", "pick_and_place_simple", 0): "768d8dc1038d1533",
    ("small", "valid_unseen", "pick_two_obj_and_place", 3): "5863763375b5d6a4",
    ("full", "valid_seen", "pick_heat_then_place_in_recep", 1): "feb12ee90fd8936f",
    ("full", "train", "look_at_obj_in_light", 7): "7e56599e195f3f57",
    ("varied", "train", "pick_clean_then_place_in_recep", 4): "3a108f680a4cdd69",
    ("alfred", "train", "pick_cool_then_place_in_recep", 2): "4f625c6bc106959f",
    ("alfred", "valid_unseen", "pick_two_obj_and_place", 5): "3a5c6c7219332b76",
}


@pytest.mark.parametrize(("key", "digest"), GOLDEN.items(), ids=str)
def test_a_seed_gives_the_same_game_in_every_version(key: tuple[str, str, str, int], digest: str) -> None:
    assert hashlib.sha256(problem_text(*key).encode()).hexdigest()[:16] == digest


def test_another_process_makes_the_same_files() -> None:
    code = (
        "import hashlib; from gagpo.envs.alfworld.games.generate import *\n"
        "from gagpo.envs.alfworld.games.generate import files_of\n"
        "jobs = list_jobs('small', {'train': 6, 'valid_seen': 6, 'valid_unseen': 6}, TASK_TYPES)[::-1]\n"
        "files = sorted(str(files_of('small', 5, job)) for job in jobs)\n"
        "print(hashlib.sha256(''.join(files).encode()).hexdigest())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    jobs = list_jobs("small", {"train": 6, "valid_seen": 6, "valid_unseen": 6}, TASK_TYPES)
    here = hashlib.sha256("".join(sorted(str(files_of("small", 5, job)) for job in jobs)).encode()).hexdigest()
    assert run.stdout.strip() == here


def content(problem: Scenario) -> tuple:
    """The problem without coordinates and text: the room, the objects in their places, and the goal."""
    lying = frozenset(Counter((item.type, item.place) for item in problem.things).items())
    return (problem.layout.scene, problem.task_type, problem.object_type, problem.target, problem.toggle, lying)


@pytest.mark.parametrize("size", SIZES)
def test_splits_share_no_problem_and_no_unseen_room(size: str) -> None:
    problems = {split: problems_of(size, None, split) for split in SPLITS}
    contents = {split: set(map(content, each)) for split, each in problems.items()}
    assert {split: len(each) for split, each in contents.items()} == DEFAULT_COUNTS
    assert sum(map(len, contents.values())) == len(set.union(*contents.values()))

    scenes = {split: {problem.layout.scene for problem in each} for split, each in problems.items()}
    assert scenes["valid_seen"] <= scenes["train"]
    assert not scenes["valid_unseen"] & scenes["train"]
    assert all(scene - room_of_scene(scene).first_scene < UNSEEN_PER_ROOM for scene in scenes["valid_unseen"])
    seen_as = {
        split: {(problem.layout.room.name, problem.layout.furniture) for problem in each}
        for split, each in problems.items()
    }
    assert not seen_as["valid_unseen"] & seen_as["train"]


def test_counts_are_balanced_over_the_types() -> None:
    jobs = list_jobs("small", {"train": 20}, TASK_TYPES[:3], ["train"])
    assert sorted(Counter(type_name for _, type_name, _ in jobs).values()) == [6, 7, 7]
    assert set(list_jobs("small", {"train": 8}, TASK_TYPES[:3], ["train"])) <= set(jobs)


@pytest.mark.parametrize(("size", "least", "most"), [("small", 6, 9), ("full", 20, 48), ("varied", 3, 48)])
def test_rooms_have_the_promised_size(size: str, least: int, most: int) -> None:
    for room in ROOMS.values():
        for scene in range(room.first_scene, room.first_scene + 30):
            layout = furnish(3, size, scene)
            assert least <= len(layout.receptacles) <= most
            assert all(receptacle.location > 0 for receptacle in layout.receptacles)
            assert set(room.always) <= layout.types


def test_rooms_as_in_alfred_have_its_furniture_and_its_numbers_of_things() -> None:
    """One to four wanted objects, at least two if two are wanted; one to three of every other kind but lamps."""
    wanted_of, receptacles = Counter(), []
    for problem in problems_of("alfred", 240):
        furniture = FURNITURE[problem.layout.room.name]
        for type_name, count in problem.layout.furniture:
            assert count in furniture[type_name]
        counts = Counter(item.type for item in problem.things)
        least = 2 if "two" in problem.task_type else 1
        assert least <= counts[problem.object_type] <= 4
        wanted_of[counts[problem.object_type]] += 1
        assert all(count <= 3 for type_name, count in counts.items() if type_name != problem.object_type)
        receptacles.append(len(problem.layout.receptacles))
    assert set(wanted_of) == {1, 2, 3, 4}
    assert min(receptacles) < 10 and max(receptacles) > 35 and 15 < np.median(receptacles) < 26


def test_large_surfaces_hold_most_objects_in_rooms_as_in_alfred() -> None:
    lying, standing = Counter(), Counter()
    for problem in problems_of("alfred", 240):
        types = {receptacle.id: receptacle.type for receptacle in problem.layout.receptacles}
        standing.update(types.values())
        lying.update(types[item.place] for item in problem.things)
    each = {type_name: lying[type_name] / standing[type_name] for type_name in standing}
    assert each["CounterTop"] > 5 > each["SideTable"] > each["Shelf"] > each["Cabinet"] > 0.2


def test_in_rooms_as_in_alfred_wanted_objects_may_lie_in_the_target_of_a_treatment_but_not_in_the_appliance() -> None:
    at_target = []
    for problem in problems_of("alfred", 240):
        types = {receptacle.id: receptacle.type for receptacle in problem.layout.receptacles}
        locations = [types[item.place] for item in problem.things if item.type == problem.object_type]
        tool = TOOL_OF_TASK.get(problem.task_type)
        assert (tool or problem.target) not in locations
        if tool:
            at_target.append(problem.target in locations)
    assert 0.2 < np.mean(at_target) < 0.6


def test_alfred2_has_more_pairs_objects_in_their_target_and_pans_on_burners() -> None:
    """Rates of 240 problems of each size: two together, a treated object only in its target, burners in use."""
    rates = {}
    for size in ("alfred", "alfred2"):
        together, at_target, burners = [], [], []
        for problem in problems_of(size, 240):
            types = {receptacle.id: receptacle.type for receptacle in problem.layout.receptacles}
            locations = [item.place for item in problem.things if item.type == problem.object_type]
            if "two" in problem.task_type:
                together.append(len(set(locations)) < len(locations))
            elif problem.task_type in TOOL_OF_TASK:
                at_target.append({types[receptacle] for receptacle in locations} == {problem.target})
            held = {item.place for item in problem.things}
            burners += [receptacle in held for receptacle, type_name in types.items() if type_name == "StoveBurner"]
        rates[size] = [float(np.mean(each)) for each in (together, at_target, burners)]
    assert all(more > 1.25 * less for less, more in zip(*rates.values(), strict=True)), rates


def test_alfred3_has_furniture_that_alfred_never_has_and_lacks_what_it_always_has() -> None:
    rooms = {
        size: [furnish(0, size, room.first_scene + scene) for room in ROOMS.values() for scene in range(30)]
        for size in ("alfred2", "alfred3")
    }
    type_names = {}
    for size, layouts in rooms.items():
        type_names[size] = {
            room.name: [layout.types for layout in layouts if layout.room is room] for room in ROOMS.values()
        }
    for name in type_names["alfred2"]:
        usual = frozenset.union(*type_names["alfred2"][name])
        constant = frozenset.intersection(*type_names["alfred2"][name])
        assert constant - frozenset.intersection(*type_names["alfred3"][name]), name
        assert frozenset.union(*type_names["alfred3"][name]) >= usual
    assert "DiningTable" in frozenset.union(*type_names["alfred3"]["bedroom"])
    assert "DiningTable" not in frozenset.union(*type_names["alfred2"]["bedroom"])


def test_a_room_in_which_the_task_is_impossible_is_drawn_again() -> None:
    # The first room that is drawn has no place for a lamp.
    problem = draw_scenario(package_data(), 71, "alfred2", "train", "look_at_obj_in_light", 96)
    assert problem.toggle in {item.type for item in problem.things}


def test_varied_rooms_are_of_intermediate_size_and_objects_may_lie_in_unusual_places() -> None:
    rooms = [furnish(0, "varied", room.first_scene + scene) for room in ROOMS.values() for scene in range(30)]
    counts = [len(layout.receptacles) for layout in rooms]
    assert min(counts) < 10 and max(counts) > 30 and sum(10 <= count < 20 for count in counts) > 30
    usual, at_target = [], 0
    for problem in problems_of("varied", 120):
        locations = {receptacle.id: receptacle.type for receptacle in problem.layout.receptacles}
        usual.append(np.mean([locations[item.place] in USUAL_PLACES[item.type] for item in problem.things]))
        at_target += any(locations[t.place] == problem.target for t in problem.things if t.type == problem.object_type)
    assert sum(share < 0.7 for share in usual) > 15 and sum(share > 0.8 for share in usual) > 50
    assert at_target > 5


@pytest.mark.parametrize("size", SIZES)
def test_no_problem_is_solved_at_the_start(size: str) -> None:
    for problem in problems_of(size, 60, seed=2):
        locations = {receptacle.id: receptacle.type for receptacle in problem.layout.receptacles}
        lying = [locations[item.place] for item in problem.things if item.type == problem.object_type]
        assert problem.target not in lying or (size not in ("small", "full") and problem.task_type in TOOL_OF_TASK)
        assert len(lying) >= (2 if "two" in problem.task_type else 1)
        for item in problem.things:
            if "Lamp" not in item.type:
                assert item.type in package_data().contains[locations[item.place]]


def test_the_catalogue_agrees_with_the_package() -> None:
    source = package_data()
    for item, locations in USUAL_PLACES.items():
        if "Lamp" not in item:
            assert all(item in source.contains[location] for location in locations), item
    for room in ROOMS.values():
        assert {*room.always, *room.sometimes} <= set(room.ranges)
        assert set(room.ranges) <= set(source.contains)
        assert {*room.everyday, *room.further} <= set(USUAL_PLACES)
        assert room_of_scene(room.first_scene + 29) is room


def test_names_count_down_in_the_order_of_ids() -> None:
    ids = [mangle(id) for id in ("Mug|+01.00|+00.10|+00.00", "Mug|-01.00|+00.10|+00.00", "Sink|+0|+0|+0|SinkBasin")]
    # "_" + "minus" sorts before "_" + "plus"
    assert spoken_names([*ids, "agent1"]) == {
        ids[1]: "mug 2",
        ids[0]: "mug 1",
        ids[2]: "sinkbasin 1",
        "agent1": "agent1 ",
    }


def test_draws_are_even_and_repeatable() -> None:
    draws = RandomStream("even")
    counts = Counter(draws.below(6) for _ in range(6000))
    assert set(counts) == set(range(6))
    assert all(abs(count - 1000) < 150 for count in counts.values())
    assert [RandomStream("a", 1).below(10**9) for _ in range(2)] == [274128761, 274128761]
    assert sorted(RandomStream("b").shuffled("abcdef")) == list("abcdef")
    with rejects(ValueError, "below 0"):
        draws.below(0)


def test_games_are_made_once_and_checked_when_the_index_is_lost(tmp_path: Path) -> None:
    engine = WalkthroughEngine()
    first = make(tmp_path, engine)
    assert engine.games == 20
    assert make(tmp_path, engine) == first
    assert engine.games == 20
    for split in SPLITS:
        for game in first[split]:
            content = (tmp_path / split / game.id / GAME).read_bytes()
            assert game.digest == hashlib.sha256(content).hexdigest()
    (tmp_path / "index.json").unlink()
    assert make(tmp_path, engine) == first
    assert engine.games == 20


def test_existing_games_are_kept_when_more_are_made(tmp_path: Path) -> None:
    engine = WalkthroughEngine()
    few = make(tmp_path, engine)
    more = make(tmp_path, engine, counts=COUNTS | {"train": 12})
    assert {game.id for game in few["train"]} < {game.id for game in more["train"]}
    assert engine.games == 24
    assert make(tmp_path, engine) == few


def test_an_interrupted_call_resumes(tmp_path: Path) -> None:
    class Interrupted(WalkthroughEngine):
        def reset(self, game: Path) -> Scene:
            if self.games == 5:
                raise KeyboardInterrupt
            return super().reset(game)

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, Interrupted())
    (tmp_path / ".left-behind.part").mkdir()
    engine = WalkthroughEngine()
    make(tmp_path, engine)
    assert engine.games == 15
    assert not list(tmp_path.glob(".*.part"))


def test_a_damaged_game_is_made_again(tmp_path: Path) -> None:
    engine = WalkthroughEngine()
    game = make(tmp_path, engine)["train"][0]
    path = tmp_path / "train" / game.id / GAME
    content = path.read_bytes()
    path.write_bytes(content[:100])
    make(tmp_path, engine)
    assert path.read_bytes() == content
    assert engine.games == 21


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[" * 100_000,
        '{"games": [[["train"], "x", 0, "x", "x", 0, 0]]}',
        '{"games": [["train", "x", 0]]}',
        '{"games": 7}',
        "[]",
        '{"n": ' + "7" * 5_000 + "}",
    ],
)
def test_a_damaged_index_is_reported_in_one_line_and_rebuilt(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = WalkthroughEngine()
    result = make(tmp_path, engine)
    index = tmp_path / "index.json"
    head, rows = json.loads(index.read_text()), content
    if content.startswith('{"games": ['):  # a valid head with bad rows
        rows = json.dumps(head | {"games": head["games"][:3] + json.loads(content)["games"]})
    index.write_text(rows)
    caplog.clear()
    assert make(tmp_path, engine) == result
    assert engine.games == 20
    (message,) = [record.getMessage() for record in caplog.records if "damaged" in record.getMessage()][:1]
    assert str(index) in message and "\n" not in message
    assert json.loads(index.read_text())["format"] == head["format"]


def test_a_game_that_its_walkthrough_does_not_win_is_not_stored(tmp_path: Path) -> None:
    class NeverWon(WalkthroughEngine):
        def step(self, command: str) -> Scene:
            return Scene("", self.plan)

    with rejects(UnsolvedGame, "not won", where="game.tw-pddl"):
        make(tmp_path, NeverWon())
    assert not list(tmp_path.glob("*/*"))


HOLD = """
import sys, time
from filelock import FileLock

with FileLock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(100)
"""


def test_waits_for_another_process_until_it_is_killed_or_patience_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            with pytest.raises(TimeoutError, match=r"another process has been making ALFWorld games in .* for 0\.3 s"):
                make(tmp_path, patience=0.3)
            assert [record.message for record in caplog.records] == [
                f"waiting for another process that is making ALFWorld games in {tmp_path}"
            ]
        finally:
            process.kill()
    assert make(tmp_path, patience=20)


@pytest.mark.parametrize(
    ("options", "key", "names"),
    [
        ({"size": "huge"}, None, ("small, full, varied, alfred, alfred2, alfred3", "huge")),
        ({"counts": {"test": 3}}, None, ("test",)),
        ({"counts": {"train": -1}}, "train", ()),
        ({"counts": {"train": 5, "valid_seen": 6}}, "valid_seen", ()),
        ({"task_types": ["juggle"]}, None, ("juggle",)),
        ({"task_types": []}, None, ("task types",)),
        ({"splits": ["dev"]}, None, ("'dev'",)),
    ],
)
def test_bad_arguments_are_refused(tmp_path: Path, options: dict, key, names) -> None:
    with rejects(ValueError, *names, key=key):
        generate(root=tmp_path, **options)
    assert not list(tmp_path.iterdir())
