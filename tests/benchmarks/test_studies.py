"""Every study prints its table from the stored rows, and runs with tiny numbers."""

import json

import pytest

from benchmarks.studies import calls, environments, losses, mixture, ratios, seeds, truth
from benchmarks.studies.environments import StudyEnv
from benchmarks.studies.rows import FOLDER, read_rows
from gagpo.credit import CREDITS
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
    for module in (environments, seeds, truth):
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
