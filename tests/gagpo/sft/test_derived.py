"""What SFT derives; a run takes it from its model's folder unless it is set."""

import json

import numpy as np
import pytest
import yaml

from gagpo.agents.setup import make_env
from gagpo.data import Episode, Turn
from gagpo.settings import SettingsError, load
from gagpo.settings.derived import derived_values
from gagpo.settings.resolve import take_derived_values
from gagpo.sft.derived import POSITIONS, TokenLengths, derived_shape, rate_of, vocabulary_of
from gagpo.sft.run import sft
from gagpo.training.launch import new_run
from tests.rejections import rejects

OPEN = {
    "name": "open",
    "threads": 1,
    "environment": {"id": "gagpo.envs.testing:gagpo-test/Corridor-v0", "kwargs": {"max_turns": 16}},
    "context": {"history": 0},
    "rollout": {"workers": 0},
    "algorithm": "gagpo",
    "sft": {"episodes": 24, "steps": 2},
}


@pytest.fixture
def config(tmp_path):
    """A config that leaves open whatever can be derived."""
    path = tmp_path / "open.yaml"
    path.write_text(yaml.safe_dump({**OPEN, "model": str(tmp_path / "model")}))
    return path


def test_only_open_settings_are_filled(config):
    derived = {"rollout.max_tokens": 3, "optimizer.learning_rate": 1e-4, "sft.mistake_rate": 0.5}
    filled = take_derived_values(load(config, ["rollout.max_tokens=9"]), derived)
    assert (filled.rollout.max_tokens, filled.optimizer.learning_rate, filled.sft.mistake_rate) == (9, 1e-4, None)


def test_lengths_by_hand(config):
    turns = [
        Turn("", "", "", prompt_ids=np.zeros(prompt, np.int32), response_ids=np.zeros(response, np.int32))
        for prompt, response in ((10, 2), (19, 5))
    ]
    lengths = TokenLengths()
    lengths.add(Episode("t", turns=turns))
    assert (lengths.first_prompt, lengths.added_prompt, lengths.demonstrated_response, lengths.sequence) == (
        10,
        7,
        5,
        24,
    )
    settings = load(config)
    env = make_env(settings.environment.id, settings.environment.kwargs)
    assert lengths.response == 8, "5 x 1.5, rounded up"
    assert lengths.context(settings, env) == 1024, "10 + 16 x (7 + 8) + 8 = 258, and at least 1024"
    env.max_turns = 100
    assert lengths.context(settings, env) == 1536, "10 + 100 x (7 + 8) + 8 = 1518, the next multiple of 64"


def test_the_words_decide_the_vocabulary_and_it_the_width(config):
    assert vocabulary_of(["left right"] * 50) == 384
    assert vocabulary_of([f"word{i}" for i in range(900)]) >= 320 + 2 * 895
    settings = load(config)
    env = make_env(settings.environment.id, settings.environment.kwargs)
    assert [derived_shape(settings, size, TokenLengths(), env).width for size in (400, 2000)] == [128, 192]


def test_larger_models_take_smaller_steps():
    assert rate_of(1_000_000) == 2e-4
    assert rate_of(16_000_000) == pytest.approx(1e-4)


def test_what_was_derived_is_said_and_written_to_the_run(config, tmp_path):
    received = []
    sft(load(config), quiet=True, say=received.append)
    record = json.loads((tmp_path / "model" / "sft.json").read_text())
    assert {"rollout.max_tokens", "optimizer.learning_rate", "sft.mistake_rate", "sft.model.hidden_size"} <= set(
        record["derived"]
    )
    keys = {key: value for key, value in record["derived"].items() if key != POSITIONS}
    assert all(f"{key}={value}" in received[0] for key, value in keys.items())
    load(config, [f"{key}={value}" for key, value in keys.items()])  # all that is printed as a key is one
    assert received[0].endswith(f"; the model reads at most {record['derived'][POSITIONS]} tokens")
    assert [item["step"] for item in record["measured"]] == [2]
    folder = new_run(config, [], tmp_path / "runs")
    folder.write()
    written = yaml.safe_load((tmp_path / "runs" / "open" / "config.yaml").read_text())
    assert written["rollout"]["max_tokens"] == record["derived"]["rollout.max_tokens"]
    assert written["optimizer"]["learning_rate"] == record["derived"]["optimizer.learning_rate"]
    other = new_run(config, ["name=other", "rollout.max_tokens=40"], tmp_path / "runs")
    assert other.settings.rollout.max_tokens == 40


def test_a_model_folder_sets_nothing_but_what_is_derived(config, tmp_path):
    settings = load(config)
    assert derived_values(settings) == {}, "there is no folder"
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / "sft.json"
    path.write_text(json.dumps({"derived": {"engine.name": "evil:Engine", "rollout.max_tokens": 7, "no.such": 1}}))
    assert derived_values(settings) == {"rollout.max_tokens": 7}
    path.write_text(json.dumps({"derived": {"rollout.max_tokens": -1}}))
    with rejects(SettingsError, key="max_tokens", where="sft.json"):
        derived_values(settings)
    for nonsense in ("[]", "{", '{"derived": 3}', "null"):
        path.write_text(nonsense)
        assert derived_values(settings) == {}
