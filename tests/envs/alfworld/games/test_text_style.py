"""Two verbs and two kinds of task text, in games, folders, goals and the expert."""

import json
import re
from itertools import product

import pytest

from gagpo.envs.alfworld.env import ALFWorldEnv
from gagpo.envs.alfworld.expert.goal import read_goal
from gagpo.envs.alfworld.games.catalogue import TASK_TYPES
from gagpo.envs.alfworld.games.gamefile import GAME
from gagpo.envs.alfworld.games.generate import check_plan, default_root, files_of, generate
from gagpo.envs.alfworld.games.package_data import package_data
from gagpo.envs.alfworld.games.random_stream import RandomStream
from gagpo.envs.alfworld.games.scenes import draw_scenario
from gagpo.envs.alfworld.games.text_style import HUMAN_TEXTS, TextStyle, human_text
from gagpo.envs.alfworld.native.engine import NativeEngine
from tests.rejections import rejects

OPERATION = {"pick_clean": "clean", "pick_heat": "heat", "pick_cool": "cool", "look_at": "light"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GAGPO_DATA", str(root))
        yield root


def test_the_default_wording_changes_neither_games_nor_folders():
    assert TextStyle().suffix == "" and TextStyle().index_fields == {}
    job = ("train", TASK_TYPES[0], 3)
    assert files_of("small", 0, job, TextStyle()) == files_of("small", 0, job)
    styles = [TextStyle(*wording) for wording in product(("move", "put", "both"), ("template", "human", "both"))]
    roots = {default_root("small", 0, style) for style in styles}
    assert len(roots) == 9 and default_root("small", 0) in roots


@pytest.mark.parametrize("task_type", TASK_TYPES)
@pytest.mark.parametrize("size", ["small", "full"])
def test_games_with_the_older_verb_are_won_by_their_walkthrough(tmp_path, size, task_type):
    files = files_of(size, 0, ("train", task_type, 0), TextStyle("put", "human"))
    (tmp_path / GAME).write_text(files.game)
    engine = NativeEngine()
    check_plan(engine, tmp_path / GAME, files.plan)
    engine.close()
    assert not [command for command in files.plan if command.startswith("move ")]
    assert task_type == TASK_TYPES[1] or re.fullmatch(r"put \S+ \d+ in/on \S+ \d+", files.plan[-1])


def test_both_alternates_and_rooms_and_goals_stay_the_same():
    both = TextStyle("both", "both")
    assert [both.uses_put(k) for k in range(4)] == [False, True, False, True]
    assert [both.uses_human_text(k) for k in range(4)] == [False, False, True, True]
    for index in range(4):
        job = ("train", TASK_TYPES[5], index)
        plain, other = (json.loads(files_of("small", 0, job, style).game) for style in (TextStyle(), both))
        assert plain["pddl_problem"] == other["pddl_problem"]
        assert ("put {o} in/on {r}" in other["grammar"]) == both.uses_put(index)
        assert (plain["grammar"] == other["grammar"]) == (index == 0)


def test_released_alternates_between_the_wordings_of_releases_since_0_4_and_before(tmp_path):
    """alfworld's ``scripts/patch_tw-pddl.py`` replaces three phrases at once: the verb, its answer and the arrival."""
    messages = {}
    for index in range(2):
        files = files_of("alfred", 0, ("train", TASK_TYPES[0], index), TextStyle("released"))
        (tmp_path / GAME).write_text(files.game)
        engine = NativeEngine()
        engine.reset(tmp_path / GAME)
        messages[index] = " ".join(engine.step(command).observation for command in files.plan)
        engine.close()
    assert re.search(r"You arrive at (?!loc)\w+ \d+\. .* You move the", messages[0])
    assert re.search(r"You arrive at loc \d+\. .* You put the \w+ \d+ in/on the", messages[1])
    assert "arrive at {r.name}" in files_of("small", 0, ("train", TASK_TYPES[0], 1), TextStyle("put")).game


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_the_expert_understands_every_human_sentence(task_type):
    for index in range(40):
        problem = draw_scenario(package_data(), 0, "full", "train", task_type, index)
        receptacles = {type_name.lower() for type_name in problem.layout.types}
        for k in range(12):
            text = human_text(RandomStream(index, k), task_type, problem.object_type, problem.target, problem.toggle)
            goal = read_goal(text, receptacles)
            assert goal is not None, text
            assert goal.object_type == problem.object_type.lower(), text
            assert goal.target == problem.target.lower(), text
            expected = next((name for start, name in OPERATION.items() if task_type.startswith(start)), "")
            assert goal.operation == expected, text
            assert goal.count == (2 if task_type == TASK_TYPES[5] else 1), text


def test_human_sentences_differ_from_the_templates():
    templates = {phrase for _, phrases in package_data().goals.values() for phrase in phrases}
    assert not templates & {text for texts in HUMAN_TEXTS.values() for text in texts}


@pytest.mark.parametrize(("argument", "value"), [("verb", "shove"), ("texts", "latin")])
def test_an_unknown_wording_is_refused(argument, value):
    with rejects(ValueError, argument, value):
        ALFWorldEnv(**{argument: value})


def test_the_expert_discovers_the_verb_by_trying(data):
    counts = {"train": 12, "valid_seen": 0, "valid_unseen": 0}
    env = ALFWorldEnv(expert=True, verb="both", texts="both", counts=counts, task_types=[TASK_TYPES[5]])
    refused = {True: 0, False: 0}
    for index, task in enumerate(sorted(env.tasks("train"), key=lambda task: task.id[-5:])):
        _, info = env.reset(options={"task": task.id})
        over = False
        while not over:
            _, _, terminated, truncated, info = env.step(info["expert_action"])
            refused[index % 2 == 1] += not info["valid"]
            over = terminated or truncated
        assert info["success"], info["goal"]
    assert refused == {False: 0, True: 6}  # once a game, though two objects are put down in each
    assert "put OBJECT in/on RECEPTACLE" in env.instructions
    env.close()


def test_the_expert_tells_the_verb_of_an_older_release_from_how_it_says_that_one_arrives(data):
    counts = {"train": 4, "valid_seen": 0, "valid_unseen": 0}
    env = ALFWorldEnv(expert=True, verb="released", counts=counts, task_types=[TASK_TYPES[0]])
    for task in env.tasks("train"):
        _, info = env.reset(options={"task": task.id})
        over = False
        while not over:
            action = info["expert_action"]
            _, _, terminated, truncated, info = env.step(action)
            over = terminated or truncated
            assert info["valid"] or not action.startswith(("put", "move"))
        assert info["success"]
    assert "put OBJECT in/on RECEPTACLE" in env.instructions
    env.close()


def test_an_index_of_another_wording_is_not_used(data):
    counts = {"train": 6, "valid_seen": 0, "valid_unseen": 0}
    root = data / "shared"
    with_put = {}
    for verb in ("move", "put"):
        responses = generate(counts=counts, root=root, splits=("train",), text_style=TextStyle(verb))
        games = [(root / "train" / game.id / GAME).read_text() for game in responses["train"]]
        with_put[verb] = ["put {o} in/on {r}" in game for game in games]
    assert not any(with_put["move"]) and all(with_put["put"])
