"""Every study prints its table from the stored rows, and runs with tiny numbers."""

import json
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from benchmarks.studies import calls, environments, losses, mixture, ratios, seeds, truth
from benchmarks.studies import map as map_study
from benchmarks.studies.environments import StudyEnv
from benchmarks.studies.learner import algorithm_of
from benchmarks.studies.rows import FOLDER, read_rows
from gagpo.credit import CREDITS, turns_for
from gagpo.data import Episode, Turn
from tests.gagpo.conftest import CORRIDOR as CORRIDOR_CONFIG

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
SHORT = {"max_turns": 8}


@pytest.mark.parametrize(
    ("main", "arguments", "expected"),
    [
        (calls.STUDY.main, ["table"], "lead over lines"),
        (losses.STUDY.main, ["table"], "three kinds"),
        (mixture.STUDY.main, ["table"], "specialist %"),
        (ratios.STUDY.main, ["table"], "pass@8 %"),
        (seeds.main, ["table"], "area less gagpo's"),
        (truth.main, ["table"], "wrong signs"),
        (truth.main, ["visits"], "8+ visits"),
        (truth.main, ["compare", "graph@state", "gagpo@state"], "graph@state less gagpo@state: "),
    ],
)
def test_a_study_prints_its_table_from_the_stored_rows(main, arguments, expected, capsys):
    assert main(arguments) == 0
    assert expected in capsys.readouterr().out


def test_the_stored_rows_name_no_credit_that_is_gone():
    """A table of today's methods must not print, or correct for, a method that was removed."""
    for row in read_rows(FOLDER / "truth.jsonl"):
        names = {label.split("@")[0].split()[0] for label in row["credits"]} - {"exact", "graph"}
        assert names <= set(CREDITS.places()), names
    assert {row["method"] for row in read_rows(FOLDER / "seeds.jsonl")} <= {*seeds.METHODS, "gagpo-state-zeros", "eb"}
    assert "eb" not in "\n".join(seeds.table(FOLDER / "seeds.jsonl", "small"))


@pytest.fixture
def corridor(monkeypatch, tmp_path):
    """The corridor as the only environment of the studies of a small policy."""
    env = StudyEnv(CORRIDOR, SHORT, "test", 100)
    for module in (environments, seeds, truth, map_study):
        monkeypatch.setitem(module.ENVIRONMENTS_TRIED, "small", env)
    monkeypatch.setenv("GAGPO_DATA", str(tmp_path / "data"))
    return tmp_path


def test_truth_judges_every_credit_by_visits(corridor, capsys):
    tiny = ["--environment", "small", "--horizon", "8", "--group", "3", "--success", "0.5"]
    tiny += ["--tries", "2", "--tasks", "2", "--batches", "2", "--rows", str(corridor)]
    assert truth.main(["run", *tiny]) == 0
    assert truth.main(["run", "--slips", "0.5", *tiny]) == 0  # a script, which has no probabilities
    policy, script = (row["credits"] for row in read_rows(corridor / "truth.jsonl"))
    assert {"empg", "optimal_token_baseline", "grpo", "gagpo@state", "graph@state"} <= policy.keys()
    assert policy.keys() - script.keys() == {"empg", "optimal_token_baseline"}
    for judged in (*policy.values(), *script.values()):
        fractions = [segment["fraction"] for segment in judged.get("visits", {}).values()]
        assert not fractions or sum(fractions) == pytest.approx(1)
    assert truth.main(["visits", "--rows", str(corridor)]) == 0
    assert "| gagpo@state |" in capsys.readouterr().out


def test_seeds_sweeps_runs_and_prints(corridor, capsys, monkeypatch):
    monkeypatch.setattr(seeds, "RATES", (0.1,))
    monkeypatch.setattr(seeds, "SWEEP_SEEDS", (901,))
    common = ["--environments", "small", "--methods", "gagpo", "ppo", "--rows", str(corridor)]
    for command in (["sweep"], ["run", "--seeds", "1"], ["table"]):
        assert seeds.main([*command, *common]) == 0
    assert "| gagpo | 0.1 | 1 |" in capsys.readouterr().out


@pytest.fixture
def tiny(warm_model, tmp_path):
    """Overrides that put a run of a study into the corridor, from a small model."""
    problem = {"environment": {"id": CORRIDOR, "kwargs": SHORT}, "context": {"history": 0}, "sft": None}
    fixed = {"model": warm_model, "threads": 1, "rollout": {"tasks": 2, "group_size": 3, "max_tokens": 3, "workers": 0}}
    training = {"iterations": 3, "max_turns": None, "minibatches": 1, "epochs": 2}
    return [f"{key}={json.dumps(value)}" for key, value in {**problem, **fixed, "training": training}.items()]


@pytest.mark.slow
def test_ratios_runs_an_algorithm(tiny, tmp_path, capsys):
    locations = ["--runs", str(tmp_path / "runs"), "--rows", str(tmp_path), "--seeds", "1", "--only", "grpo"]
    assert ratios.STUDY.main(["run", *tiny, *locations]) == 0
    (row,) = read_rows(tmp_path / "ratios.jsonl")
    assert row["algorithm"] == "grpo" and row["iterations"] == 3 and 0 <= row["after_pass_8"] <= 1


@pytest.mark.slow
def test_mixture_runs_the_mixture_and_its_specialists(warm_model, tmp_path):
    named = [{"name": name, "id": CORRIDOR, "kwargs": {"max_turns": turns}} for name, turns in (("a", 6), ("b", 8))]
    config = tmp_path / "mixture.yaml"
    settings = {**CORRIDOR_CONFIG, "model": warm_model, "environments": named, "sft": None}
    del settings["environment"]
    config.write_text(json.dumps(settings))
    locations = ["--runs", str(tmp_path / "runs"), "--rows", str(tmp_path), "--seeds", "1", "--config", str(config)]
    assert mixture.STUDY.main(["run", *locations]) == 0
    rows = list(read_rows(tmp_path / "mixture.jsonl"))
    assert [(row["player"], row["environment"]) for row in rows] == [
        *(("mixture", "a"), ("mixture", "b"), ("specialist", "a"), ("specialist", "b"))
    ]
    assert mixture.STUDY.main(["run", *locations]) == 0 and len(list(read_rows(tmp_path / "mixture.jsonl"))) == 4
    assert mixture.STUDY.main(["table", *locations]) == 0


def episode_of(outcome, seed, length=6):
    turns = [Turn(f"text {i}", "go", "go", reward=0.0, state=f"state {i}") for i in range(length)]
    turns[-1] = replace(turns[-1], reward=float(outcome))
    return Episode("task", seed=seed, turns=turns, success=outcome)


def test_hidden_states_are_unique_and_as_many_as_the_share_says():
    """Two visits of a hidden state must never be equal, and the first state stays readable."""
    episodes = [episode_of(True, seed) for seed in range(300)]
    for share in (1.0, 0.5, 0.0):
        cell = map_study.Cell("small", 20, share, 0.0)
        changed = map_study.degraded(episodes, cell, seed=3)
        assert changed == map_study.degraded(episodes[::-1], cell, seed=3)[::-1]  # whatever the order
        keys = [turn.state for episode in changed for turn in episode.turns[1:]]
        hidden = [key for key in keys if len(key.split()) > 2]
        assert len(set(hidden)) == len(hidden) == pytest.approx((1 - share) * len(keys), abs=80)
        assert {episode.turns[0].state for episode in changed} == {"state 0"}
        assert [episode.reward for episode in changed] == [episode.reward for episode in episodes]
    assert {turn.state for episode in episodes for turn in episode.turns} == {f"state {i}" for i in range(6)}


def test_noise_inverts_rewards_and_success_alike():
    episodes = [episode_of(seed % 3 == 0, seed) for seed in range(600)]
    for noise in (0.0, 0.2, 1.0):
        changed = map_study.degraded(episodes, map_study.Cell("small", 20, 1.0, noise), seed=3)
        inverted = [a.success != b.success for a, b in zip(episodes, changed, strict=True)]
        assert sum(inverted) == pytest.approx(noise * 600, abs=40)
        assert all(episode.reward == float(episode.success) for episode in changed)
        assert [len(episode.turns) for episode in changed] == [6] * 600


@pytest.mark.parametrize(("environment", "pays_by_it"), [("NoisyMath-v0", True), ("NoisyStatistics-v0", False)])
def test_one_success_in_ten_is_wrong_in_training_only(environment, pays_by_it):
    env = gymnasium.make(f"benchmarks.studies.noise:{environment}", attempts=1, tools=False)
    for split, wrong in (("train", 0.1), ("test", 0.0)):
        reported, rewards = [], []
        for number in range(400):  # as the episodes of a group, which share their seed
            env.reset(seed=7, options={"split": split})
            _, reward, terminated, _, info = env.step(f"I do not know. #### none {number}")
            assert terminated
            reported.append(info["success"])
            rewards.append(reward)
        assert np.mean(reported) == pytest.approx(wrong, abs=0.05 if wrong else 0)
        assert rewards == ([float(success) for success in reported] if pays_by_it else [0.0] * 400)


def test_a_hidden_map_leaves_gagpo_the_first_action_and_grpo_everything():
    """Why credit by state needs repeats: a state visited once is worth its own return."""
    episodes = map_study.degraded(
        [episode_of(seed < 4, seed) for seed in range(8)], map_study.Cell("small", 20, 0, 0), 1
    )
    for method, credited in (("gagpo-state", {0}), ("graph", {0}), ("grpo", set(range(6)))):
        algorithm = algorithm_of(method)
        credit = replace_norm(algorithm.credit)
        advantage_N = credit.advantage(turns_for(episodes, credit))
        assert {place % 6 for place in np.flatnonzero(np.abs(advantage_N) > 1e-9)} == credited, method


def replace_norm(credit):
    """The credit without normalisation, whose mean would give every turn a share."""
    return credit.model_copy(update={"norm": "none"}) if hasattr(credit, "norm") else credit


def test_map_sweeps_runs_and_prints(corridor, capsys, monkeypatch):
    for name, value in (("RATES", (0.1,)), ("SWEEP_SEEDS", (901,)), ("LIMITS", (6, 20)), ("TURNS", {"small": 100})):
        monkeypatch.setattr(map_study, name, value)
    common = ["--rows", str(corridor), "--methods", "grpo", "gagpo-state"]
    for command in (["sweep"], ["run", "--seeds", "1", "2"], ["run", "--seeds", "1", "2"]):
        assert map_study.main([*command, *common]) == 0
    rows = list(read_rows(corridor / "map.jsonl"))
    assert len(rows) == 2 * 2 * (2 + 6)  # seeds x levels of noise x (GRPO without shares + GAGPO with all)
    assert map_study.main(["table", *common]) == 0
    assert "| 20 | 50 | 2 |" in capsys.readouterr().out
    assert map_study.main(["picture", *common]) == 0 and (corridor / "map-dark.png").exists()
    assert map_study.main(["run", "--rate", "0.03", "--noise", "0", "--seeds", "1", "2", *common]) == 0
    assert {row["rate"] for row in read_rows(corridor / map_study.EQUAL_RATES)} == {0.03}
    assert {row["rate"] for row in map_study.rows_at(corridor)} == {0.1}
    assert map_study.main(["table", "--rate", "0.03", *common]) == 0
    assert "| 20 | 50 | 2 |" in capsys.readouterr().out
