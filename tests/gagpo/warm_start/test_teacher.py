"""Demonstrations by a model behind a server: what the learner makes of them, and that none is paid for twice."""

import json

import pytest
import yaml

from gagpo.agents.calls.phrasing import Phrasing
from gagpo.agents.episodes import Episode, Turn
from gagpo.agents.prompts import STYLES
from gagpo.base.errors import InvalidArgument
from gagpo.settings import SettingsError, dump, load, parse
from gagpo.settings.derived import RECIPE
from gagpo.warm_start.demonstrations import demonstrations
from gagpo.warm_start.recipe import recipe, recipe_difference
from gagpo.warm_start.run import warm_start
from gagpo.warm_start.teacher import in_learner_style

TAGGED = "<think>which way?</think><action>{}</action>"


def turn(response, action, valid=True):
    return Turn("You stand at 1.", response, action, invalid="" if valid else "refused")


@pytest.mark.parametrize(
    ("style", "said", "learned"),
    [
        ("plain", TAGGED.format("left"), "left"),
        ("plain", "left", "left"),
        ("tags", TAGGED.format("left"), TAGGED.format("left")),
        ("tags", "left", "<action>left</action>"),
        ("whole", TAGGED.format("left"), "left"),
        ("plain", "<action>left</action>", "left"),
    ],
)
def test_the_learner_says_what_its_own_parser_reads(style, said, learned):
    episode = Episode("t", turns=[turn(said, "left")])
    in_learner_style(episode, Phrasing(STYLES[style]))
    assert episode.turns[0].response == learned and episode.turns[0].trainable


def test_what_the_world_refused_is_not_imitated():
    episode = Episode("t", turns=[turn("I ramble", "", valid=False), turn("fly", "fly", valid=False), turn("a", "a")])
    in_learner_style(episode, Phrasing(STYLES["plain"]))
    assert [(one.response, one.trainable) for one in episode.turns] == [("", False), ("fly", False), ("a", True)]


@pytest.mark.parametrize(
    ("teacher", "said"),
    [
        ({}, r"warm_start\.teacher\.model' is missing"),
        ({"model": "m", "style": "verse"}, "unknown style 'verse'; choose one of plain"),
        ({"model": "m", "limit_cost": 1.0}, "a limit on the cost needs prices"),
        ({"model": "m", "address": "x"}, r"nearest valid key is 'warm_start\.teacher"),
    ],
)
def test_a_teacher_that_cannot_be_is_refused(corridor, teacher, said):
    with pytest.raises(SettingsError, match=said):
        load(corridor(warm_start={"teacher": teacher}))


def test_only_what_the_teacher_plays_belongs_to_the_recipe(corridor, tmp_path):
    settings = load(corridor(warm_start={"teacher": {"model": "m"}}), [f"model={tmp_path}"])
    assert parse(yaml.safe_load(dump(settings)), "again") == settings
    (tmp_path / RECIPE).write_text(json.dumps(recipe(settings)))
    moved = load(corridor(warm_start={"teacher": {"model": "m", "base_url": "http://h/v1"}}), [f"model={tmp_path}"])
    assert recipe_difference(moved) == ""
    other = load(corridor(warm_start={"teacher": {"model": "n"}}), [f"model={tmp_path}"])
    assert recipe_difference(other) == "warm_start.teacher.model: m then, n now"


def test_a_model_behind_a_server_is_warmed_up_on(corridor, tmp_path):
    from tests.agents.chat_server import serving

    model = tmp_path / "taught"
    with serving(style=TAGGED) as server:
        config = corridor(warm_start={"episodes": 6, "teacher": {"model": "m", "base_url": server.url}})
        settings = load(config, [f"model={model}"])
        episodes = demonstrations(settings, quiet=True)
        assert len(episodes) == 6 and all(episode.success for episode in episodes)
        assert {one.response for episode in episodes for one in episode.turns} <= {"left", "right"}
        asked = server.requests[0]["messages"][0]["content"]
        assert "<action>" in asked and "You stand at" in asked  # it is told how to answer, and where it is
        assert warm_start(settings, quiet=True) == model and (model / "config.json").is_file()
    assert recipe_difference(settings) == ""


def test_lessons_go_on_after_a_limit_and_none_is_paid_for_twice(corridor, tmp_path):
    from gagpo.agents.api.client import LimitReached
    from tests.agents.chat_server import serving

    with serving(style=TAGGED) as server:
        teacher = {"model": "m", "base_url": server.url, "concurrency": 1}
        config = corridor(warm_start={"episodes": 6, "teacher": {**teacher, "limit_tokens": 150}})
        work = tmp_path / "work"
        with pytest.raises(LimitReached, match=r"of 6 episodes are kept, the same command goes on"):
            demonstrations(load(config), True, work)
        config = corridor(warm_start={"episodes": 6, "teacher": teacher})
        episodes = demonstrations(load(config), True, work)
        before = len(server.requests)
        again = demonstrations(load(config), True, work)
        assert len(server.requests) == before and [e.record() for e in again] == [e.record() for e in episodes]
        whole = sum(len(episode.turns) for episode in episodes)
        assert whole <= before <= whole + 16  # at most the lesson that was under way is asked for again


def test_a_teacher_that_solves_nothing_ends_the_lessons(corridor):
    from tests.agents.chat_server import serving

    with serving(style="no idea {}") as server:
        config = corridor(warm_start={"episodes": 2, "teacher": {"model": "m", "base_url": server.url}})
        with pytest.raises(InvalidArgument, match="the teacher m solved none of 2 episodes"):
            demonstrations(load(config), True)
