"""Runs whose groups are trees: whole, resumed, and the same as before where nothing branches."""

import numpy as np
import pytest
from safetensors.torch import load_file

import gagpo.envs.testing
from gagpo.agents.episodes import Episode, read_episodes
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.register import REGISTER
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import SettingsError, load
from gagpo.training.trainer import Trainer, train

TREE = {"episodes": 3, "by": "visits", "rounds": 2}
COUNTED = ("branched_episodes", "branch_success_rate", "shared_turns", "replayed_turns", "discarded_branches")


def run(config, folder):
    created = RunFolder.create(folder, load(config))
    train(created, quiet=True)
    return created


def weights(folder):
    return load_file(str(checkpoints.latest(folder.path / "checkpoints").path / "model" / "model.safetensors"))


def same(a, b):
    return a.keys() == b.keys() and all((a[name] == b[name]).all() for name in a)


def timeless(rows):
    clock = ("seconds", "per_second", "busy")
    return [{key: value for key, value in row.items() if not any(word in key for word in clock)} for row in rows]


def episodes_of(folder, number):
    return [Episode.from_record(one) for one in read_episodes(folder.episodes(f"train-{number:04d}"))]


@pytest.mark.parametrize("context", [0, "full"])
def test_a_run_with_branches_counts_each_turn_once(corridor, tmp_path, context):
    evaluation = {"splits": []}
    config = corridor(rollout={"branch": TREE}, context={"history": context}, evaluation=evaluation)
    folder = run(config, tmp_path / "run")
    rows, total = folder.metrics(), 0
    for number, row in enumerate(rows, 1):
        episodes = episodes_of(folder, number)
        branches = [one for one in episodes if one.parent is not None]
        played = sum(len(one.own) for one in episodes)
        total += played
        assert row["branched_episodes"] == len(branches) == 12 and row["turns_total"] == total
        assert row["shared_turns"] == sum(one.fork for one in branches) > 0
        assert row["replayed_turns"] == row["discarded_branches"] == 0
        assert row["success_rate"] == np.mean([one.success for one in episodes if one.parent is None])
        assert row["branch_success_rate"] == np.mean([one.success for one in branches])
        # What was shared has the credit of the try that played it.
        known = {(one.group, one.sample): one for one in episodes}
        for one in branches:
            parent = known[one.group, one.parent]
            mine, theirs = ([str(turn) for turn in each.turns[: one.fork]] for each in (one, parent))
            assert mine == theirs
        assert row.keys() <= REGISTER.keys() and row["updates"] == 2 and np.isfinite(row["loss"])


def test_a_world_that_cannot_be_put_back_counts_what_it_replays(corridor, tmp_path, monkeypatch):
    evaluation = {"splits": []}
    restored = run(corridor(rollout={"branch": TREE}, evaluation=evaluation), tmp_path / "restored")
    monkeypatch.setattr(gagpo.envs.testing.CorridorEnv, "can_restore", False)
    with pytest.warns(UserWarning, match="branches replay the actions"):
        replayed = run(corridor(rollout={"branch": TREE}, evaluation=evaluation), tmp_path / "replayed")
    assert same(weights(replayed), weights(restored))
    more = 0.0
    for one, other in zip(replayed.metrics(), restored.metrics(), strict=True):
        more += one["replayed_turns"]
        assert one["replayed_turns"] == one["shared_turns"] > 0
        assert one["turns_total"] == other["turns_total"] + more and one["tokens_total"] == other["tokens_total"]


@pytest.mark.parametrize("algorithm", ["at2po", "ppo_token", "dapo"])
def test_a_run_with_branches_is_resumed_bit_for_bit(corridor, tmp_path, algorithm):
    config = corridor(
        algorithm=algorithm, rollout={"branch": TREE}, training={"iterations": 3}, evaluation={"splits": []}
    )
    whole = run(config, tmp_path / "whole")
    half = RunFolder.create(tmp_path / "half", load(config))
    trainer = Trainer(half, quiet=True)
    shorter = trainer.settings.training.model_copy(update={"iterations": 1})
    trainer.settings = trainer.settings.model_copy(update={"training": shorter})
    trainer.run()
    train(RunFolder.open(half.path), quiet=True)
    assert same(weights(half), weights(whole))
    assert timeless(half.metrics()) == timeless(whole.metrics())
    for number in (1, 2, 3):
        assert half.episodes(f"train-{number:04d}").read_text() == whole.episodes(f"train-{number:04d}").read_text()


def test_settings_of_branches_and_what_the_rows_bring(corridor):
    assert load(corridor()).rollout.branch is None
    brought = load(corridor(algorithm="at2po")).rollout.branch
    assert (brought.episodes, brought.by, brought.rounds) == (3, "entropy", 2)
    assert load(corridor(algorithm="tree_grpo")).rollout.branch.by == "uniform"
    assert load(corridor(algorithm="arpo", rollout={"branch": {"episodes": 2}})).rollout.branch.episodes == 2
    assert load(corridor(algorithm="arpo", rollout={"branch": None})).rollout.branch is None
    assert load(corridor(algorithm="at2po", rollout={"samples": 2})).rollout.branch.rounds == 1
    assert load(corridor(algorithm="arpo", rollout={"samples": 1})).rollout.branch is None


BAD = {
    "as many as samples": ({"branch": {"episodes": 6}}, "leaves no try of samples=6"),
    "none": ({"branch": {"episodes": 0}}, "greater than or equal to 1"),
    "more rounds than branches": ({"branch": {"episodes": 2, "rounds": 3}}, "lower rounds"),
    "another choice": ({"branch": {"episodes": 2, "by": "luck"}}, "visits"),
    "ahead": ({"branch": {"episodes": 2}, "ahead": 1, "workers": 1}, "set ahead=0"),
    "an unknown key": ({"branch": {"episode": 2}}, "episodes"),
}


@pytest.mark.parametrize("case", BAD)
def test_branches_that_cannot_be_are_refused_with_words(corridor, case):
    rollout, words = BAD[case]
    with pytest.raises(SettingsError, match=words):
        load(corridor(rollout=rollout))


def test_a_row_that_samples_trees_is_refused_ahead(corridor):
    with pytest.raises(SettingsError, match="at2po samples trees"):
        load(corridor(algorithm="at2po", rollout={"ahead": 1, "workers": 1}))
    load(corridor(algorithm="at2po", rollout={"ahead": 1, "workers": 1, "branch": None}))
