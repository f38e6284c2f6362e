"""What follows from a world is derived from it, printed, and written to the run's config; what is set stays."""

import json

import numpy as np
import pytest
import yaml

from gagpo.agents.episodes import Episode, Turn
from gagpo.agents.setup import make_world
from gagpo.settings import SettingsError, load
from gagpo.settings.derived import applied, open_to, with_derived
from gagpo.training.launch import started
from gagpo.warm_start.derived import Lengths, rate_of, shape_of, vocabulary_of
from gagpo.warm_start.recipe import recipe_difference
from gagpo.warm_start.run import warm_start

OPEN = {
    "name": "open",
    "threads": 1,
    "environment": {"id": "gagpo.envs.testing:gagpo-test/Corridor-v0", "kwargs": {"max_turns": 16}},
    "context": {"history": 0},
    "rollout": {"workers": 0},
    "algorithm": "gagpo",
    "warm_start": {"episodes": 24, "most_steps": 2, "panel": 2},
}


@pytest.fixture
def config(tmp_path):
    """Writes a config that leaves as much as possible open; gives its path."""

    def write(**warm):
        values = {**OPEN, "model": str(tmp_path / "model"), "warm_start": {**OPEN["warm_start"], **warm}}
        (tmp_path / "open.yaml").write_text(yaml.safe_dump(values))
        return tmp_path / "open.yaml"

    return write


def test_only_what_is_left_open_is_filled(config):
    settings = load(config(model={"width": 64}), ["rollout.max_tokens=9"])
    derived = {"rollout.max_tokens": 3, "warm_start.model.width": 128, "warm_start.model.layers": 2}
    filled = applied(settings, derived)
    assert (filled.rollout.max_tokens, filled.warm_start.model.width, filled.warm_start.model.layers) == (9, 64, 2)
    assert open_to(settings, "warm_start.model.layers") and not open_to(filled, "warm_start.model.layers")


def test_fixed_steps_leave_shape_and_vocabulary_as_they_are(config):
    settings = load(config(steps=5))
    assert shape_of(settings, 400, 100) == {} and vocabulary_of(settings, ["a b"]) == {}


def test_lengths_by_hand(config):
    turns = [Turn("", "", "") for _ in range(2)]
    turns[0].prompt_ids, turns[0].response_ids = np.zeros(10, np.int32), np.zeros(2, np.int32)
    turns[1].prompt_ids, turns[1].response_ids = np.zeros(19, np.int32), np.zeros(5, np.int32)
    lengths = Lengths()
    lengths.add(Episode("t", turns=turns))
    assert (lengths.first, lengths.read, lengths.answer, lengths.longest) == (10, 7, 5, 24)
    settings = load(config())
    world = make_world(settings.environment.id, settings.environment.kwargs)
    found = lengths.derived(settings, world)
    assert found["rollout.max_tokens"] == 8, "5 x 1.5, rounded up"
    assert found["warm_start.model.context"] == 1024, "10 + 16 x (7 + 8) + 8 = 258 would do, but never fewer than 1024"
    world.max_turns = 100
    longer = lengths.derived(settings, world)["warm_start.model.context"]
    assert longer == 1536, "10 + 100 x (7 + 8) + 8 = 1518, the next multiple of 64"


def test_words_make_the_vocabulary(config):
    few = vocabulary_of(load(config()), ["left right"] * 50)
    many = vocabulary_of(load(config()), [f"word{i}" for i in range(900)])
    assert few == {"warm_start.model.vocabulary": 384}
    assert many["warm_start.model.vocabulary"] >= 320 + 2 * 895


def test_larger_models_take_smaller_steps():
    assert rate_of(1_000_000) == {"optimizer.learning_rate": 2e-4}
    assert rate_of(16_000_000)["optimizer.learning_rate"] == pytest.approx(1e-4)


def test_what_was_derived_is_said_and_written_to_the_run(config, tmp_path):
    heard = []
    path = config()
    warm_start(load(path), quiet=True, say=heard.append)
    made = json.loads((tmp_path / "model" / "warm_start.json").read_text())
    assert {"rollout.max_tokens", "optimizer.learning_rate", "warm_start.wander"} <= set(made["derived"])
    assert all(f"{key}=" in heard[0] for key in made["derived"])
    assert [one["step"] for one in made["measured"]] == [2]
    folder = started(path, [], tmp_path / "runs")
    folder.write()
    written = yaml.safe_load((tmp_path / "runs" / "open" / "config.yaml").read_text())
    assert written["rollout"]["max_tokens"] == made["derived"]["rollout.max_tokens"]
    assert written["optimizer"]["learning_rate"] == made["derived"]["optimizer.learning_rate"]
    assert written["warm_start"]["wander"] == made["derived"]["warm_start.wander"]
    other = started(path, ["name=other", "rollout.max_tokens=40"], tmp_path / "runs")
    assert other.settings.rollout.max_tokens == 40


def test_a_folder_that_left_the_width_open_is_not_one_whose_width_was_set(config):
    warm_start(load(config()), quiet=True)
    assert recipe_difference(load(config())) == ""
    assert recipe_difference(load(config(model={"width": 128}))) == "warm_start.model.width: derived then, 128 now"


def test_a_folder_without_a_recipe_changes_nothing(config):
    settings = load(config())
    assert with_derived(settings) is settings


@pytest.mark.parametrize(("width", "heads"), [(64, 2), (100, 2), (48, 1), (128, 4)])
def test_heads_follow_a_width_that_is_set(config, width, heads):
    settings = load(config(model={"width": width}))
    shape = shape_of(settings, 400, 100)
    assert shape["warm_start.model.heads"] == heads
    assert applied(settings, shape).warm_start.model.feed_forward == 3 * width


def test_a_width_follows_heads_that_are_set(config):
    settings = load(config(model={"heads": 128}))
    assert applied(settings, shape_of(settings, 2000, 100)).warm_start.model.width == 256, "192 are not shared by 128"


def test_a_folder_can_set_nothing_but_what_is_derived(config, tmp_path):
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / "warm_start.json"
    path.write_text(json.dumps({"derived": {"engine.name": "evil:Engine", "rollout.max_tokens": 7, "no.such": 1}}))
    settings = with_derived(load(config()))
    assert (settings.engine.name, settings.rollout.max_tokens) == ("transformers", 7)
    path.write_text(json.dumps({"derived": {"rollout.max_tokens": -1}}))
    with pytest.raises(SettingsError, match=r"warm_start\.json: what it derived.*max_tokens"):
        with_derived(load(config()))
    for nonsense in ("[]", "{", '{"derived": 3}', "null"):
        path.write_text(nonsense)
        assert with_derived(load(config())).rollout.max_tokens == 512
