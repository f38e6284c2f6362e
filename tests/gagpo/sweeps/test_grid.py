"""Which runs a sweep has, and what they are called."""

from pathlib import Path

import pytest

from gagpo.settings import SettingsError
from gagpo.sweeps.grid import MOST_RUNS, is_sweep, make_sweep, split_values
from tests.rejections import rejects

QUICK = "alfworld-quickstart"
RUNS = Path("runs")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2,3", ["1", "2", "3"]),
        ("gagpo,grpo,loo:LooState", ["gagpo", "grpo", "loo:LooState"]),
        ("[a,b]", ["[a,b]"]),
        ("[a,b],[c]", ["[a,b]", "[c]"]),
        ("{name: sapo, tau: [1,2]},{name: clip}", ["{name: sapo, tau: [1,2]}", "{name: clip}"]),
        ("'a,b'", ["'a,b'"]),
        ('"a,\\",b",c', ['"a,\\",b"', "c"]),
        ("it's,ok", ["it's", "ok"]),  # an apostrophe within a word quotes nothing
        ("[a,b", ["[a,b"]),  # for the reader of YAML, who says what is wrong
        ("'a,b", ["'a,b"]),
        ("f(1,2)", ["f(1,2)"]),
        ("", [""]),
    ],
)
def test_commas_separate_values_outside_brackets_and_quotes(text, values):
    assert split_values(text) == values
    assert is_sweep([f"x={text}"]) == (len(values) > 1)


def test_a_sweep_has_the_product_of_its_values_and_the_seed_changes_last():
    sweep = make_sweep(QUICK, ["seed=1,2", "algorithm.credit=gagpo,grpo", "training.iterations=3"], RUNS)
    names = [f"{QUICK}-{credit}-seed{seed}" for seed in (1, 2) for credit in ("gagpo", "grpo")]
    assert [run.name for run in sweep.runs] == names
    assert [run.label for run in sweep.runs] == ["gagpo", "grpo"] * 2
    assert [run.folder for run in sweep.runs] == [RUNS / name for name in names]
    assert sweep.folder == RUNS / f"{QUICK}-by-seed-credit" and sweep.keys == ("seed", "algorithm.credit")
    grpo = sweep.runs[1]
    assert grpo.settings.seed == 1 and grpo.settings.algorithm.credit.name == "grpo"
    assert grpo.settings.training.iterations == 3
    assert set(grpo.overrides) == {
        "seed=1",
        "algorithm.credit=grpo",
        "training.iterations=3",
        f"name={QUICK}-grpo-seed1",
    }


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        (["seed=1,2"], [f"{QUICK}-seed1", f"{QUICK}-seed2"]),
        (["seed=1,2", "name=mine"], ["mine-seed1", "mine-seed2"]),
        (["training.iterations=2,4"], [f"{QUICK}-iterations2", f"{QUICK}-iterations4"]),  # what is swept always counts
        (["rollout.tasks=8", "seed=1,2"], [f"{QUICK}-rollout-tasks8-seed1", f"{QUICK}-rollout-tasks8-seed2"]),
        (["evaluation.splits=[valid_seen],[]"], [f"{QUICK}-splits-valid_seen", f"{QUICK}-splits-4f53cd"]),
    ],
)
def test_names_come_from_the_values(overrides, names):
    assert [run.name for run in make_sweep(QUICK, overrides, RUNS).runs] == names


def test_seeds_alone_are_compared_as_one_method():
    sweep = make_sweep(QUICK, ["seed=1,2", "name=mine"], RUNS)
    assert {run.label for run in sweep.runs} == {"mine"}


def test_values_with_the_same_last_part_have_names_that_differ():
    sweep = make_sweep(QUICK, ["model=runs/a/model,runs/b/model"], RUNS)
    assert [run.label for run in sweep.runs] == ["model-runs-a-model", "model-runs-b-model"]


@pytest.mark.parametrize(
    ("overrides", "key", "names"),
    [
        (["name=a,b"], "name", ()),
        (["seed=1,,2"], "seed", ("empty",)),
        (["seed=1,"], "seed", ("empty",)),
        (["seed=1,2,1"], "seed", ("twice",)),
        (["seed=1,2,01"], "seed", ("seed=1,2,01",)),
        (
            ["optimizer.learning_rate=1e-4,0.0001", "seed=1,2"],
            "optimizer.learning_rate",
            ("optimizer.learning_rate=1e-4,0.0001",),
        ),
        (["seed=1,2", "algorithm.credit=gagpo,{name: gagpo}"], "algorithm.credit", ("twice",)),
        (["training.ema=true,True"], "training.ema", ("twice",)),
        (["seed=1", "seed=1,2"], "seed", ("2 times",)),
        (["seed=1,2", "algorithm.credit=gagpo,nope"], "algorithm.credit", ("nope",)),
        (["seed=1,2", "rollout.taks=3"], "rollout.taks", ("rollout.tasks",)),
        (["seed=1,2", "oops"], None, ("section.key=value",)),
        ([f"seed={','.join(map(str, range(MOST_RUNS + 1)))}"], None, ("1,000 runs", "1,001")),
    ],
)
def test_a_mistake_is_found_before_anything_runs(overrides, key, names):
    with rejects(SettingsError, *names, key=key):
        make_sweep(QUICK, overrides, RUNS)
