"""A run that averages its weights: what is saved, measured, sampled from and held to; a resume changes none of it."""

import json

import pytest
import torch
from safetensors.torch import load_file

from gagpo.distributed.ranks import Ranks
from gagpo.learning.steps.average import AveragedWeights, kept
from gagpo.runs import keeping
from gagpo.runs.checkpoint import latest
from gagpo.runs.run_folder import RunFolder, named
from gagpo.settings import AverageSettings, SettingsError, load
from gagpo.training.trainer import Trainer, train
from tests.gagpo.distributed.conftest import train_in_two, write_config
from tests.gagpo.training.resuming import killed_after, require_equal

HELD = {"preset": "gagpo", "kl": {"coefficient": 0.1}}
WAYS = {
    "measured": ({}, {"average": {"decay": 0.6}}),
    "growing": ({}, {}),
    "sampled": ({}, {"average": {"decay": 0.6, "sample": True}}),
    "held to": ({"algorithm": HELD}, {"average": {"decay": 0.6, "reference": True}}),
    "sampled and held to": ({"algorithm": HELD}, {"average": {"decay": 0.6, "reference": True, "sample": True}}),
    "of an adapter": ({"lora": {"rank": 2}}, {"average": {"decay": 0.6}}),
}


def tensors(folder, weights):
    (path,) = (latest(folder / "checkpoints").path / weights).glob("*.safetensors")
    return load_file(path)


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def run(corridor, tmp_path):
    def start(name, changes, training, **more):
        config = load(corridor(**changes, training={"save_every": 1, **training, **more}, evaluation={"tasks": 2}))
        return RunFolder.create(tmp_path / name, config)

    return start


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_resumed_run_has_the_same_weights_and_the_same_average(run, way):
    whole = run("whole", *way, iterations=3)
    train(whole, quiet=True)
    half = run("half", *way, iterations=3)
    trainer = Trainer(half, quiet=True)
    training = trainer.settings.training.model_copy(update={"iterations": 1})
    trainer.settings = trainer.settings.model_copy(update={"training": training})
    trainer.run()
    for path in (half.path / "evals").glob("a*.json"):
        path.unlink()
    train(RunFolder.open(half.path), quiet=True)
    for weights in ("model", "average"):
        assert equal(tensors(half.path, weights), tensors(whole.path, weights))
    assert not equal(tensors(whole.path, "model"), tensors(whole.path, "average"))
    told = [json.loads(line)["average_distance"] for line in (half.path / "metrics.jsonl").read_text().splitlines()]
    assert len(told) == 3 and all(value > 0 for value in told[1:])


def test_two_ranks_that_resume_sample_from_the_average(tmp_path, warm_model):
    """Each rank's engine has a copy of its own, which is made before there is an average."""
    sampled = {"iterations": 3, "save_every": 1, "keep": 3, "average": {"decay": 0.6, "sample": True}}
    config = write_config(tmp_path, warm_model, training=sampled, evaluation={"tasks": 2, "before": False})
    train_in_two([(config, tmp_path / "whole", None)], tmp_path)
    whole = RunFolder.open(tmp_path / "whole")
    part = killed_after(2, whole, tmp_path)
    train_in_two([(config, part, None)], tmp_path)
    require_equal(RunFolder.open(part), whole)


def test_the_average_is_that_of_all_iterations(run):
    folder = run("one", *WAYS["measured"], iterations=3, keep=9)
    train(folder, quiet=True)
    expected = load_file(f"{folder.settings.model}/model.safetensors")
    for iteration in (1, 2, 3):
        found = load_file(folder.path / f"checkpoints/iteration-{iteration:06d}/model/model.safetensors")
        expected = {name: 0.6 * value.float() + 0.4 * found[name] for name, value in expected.items() if name in found}
    averaged = tensors(folder.path, "average")
    for name, value in expected.items():
        torch.testing.assert_close(averaged[name], value, atol=1e-6, rtol=0)


def test_it_is_measured_at_the_end_and_has_a_name(run):
    folder = run("one", *WAYS["measured"], iterations=2)
    train(folder, quiet=True)
    assert sorted(path.stem for path in (folder.path / "evals").iterdir()) == [
        "after-test",
        "average-test",
        "before-test",
    ]
    path, which = named(folder.path.with_name("one@average"))
    assert path == folder.path and which == "average"
    chosen = keeping.chosen(path, which, folder.settings.training)
    assert chosen.model.endswith("iteration-000002/average")


def test_a_run_that_was_killed_before_its_average_was_measured_is_not_finished(run):
    folder = run("one", *WAYS["measured"], iterations=1)
    train(folder, quiet=True)
    measured = folder.path / "evals" / "average-test.json"
    before = measured.read_bytes()
    measured.unlink()
    assert not folder.finished
    train(RunFolder.open(folder.path), quiet=True)
    assert folder.finished and measured.read_bytes() == before


def test_sampling_from_it_changes_what_is_played(run):
    ends = []
    for way in ("measured", "sampled"):
        folder = run(way, *WAYS[way], iterations=3)
        train(folder, quiet=True)
        ends.append([json.loads(line)["loss"] for line in (folder.path / "metrics.jsonl").read_text().splitlines()])
    assert ends[0][0] == ends[1][0] and ends[0] != ends[1]
    assert not (folder.path / "evals/average-test.json").exists(), "what samples is the average: after is its panel"


def test_a_run_without_an_average_says_what_to_set(run):
    folder = run("one", {}, {"average": None}, iterations=1)
    train(folder, quiet=True)
    with pytest.raises(SettingsError, match=r"keeps no average of its weights: its training\.average is null"):
        keeping.chosen(folder.path, "average", folder.settings.training)


@pytest.mark.parametrize(
    ("changes", "average", "said"),
    [
        ({"rollout": {"ahead": 1, "workers": 1}}, {"sample": True}, r"set rollout\.ahead=0"),
        ({"algorithm": HELD, "lora": {"rank": 2}}, {"reference": True}, r"lora=null"),
        ({}, {"reference": True}, r"algorithm\.kl\.coefficient is 0"),
        ({}, {"decay": 1.0}, r"decay"),
    ],
)
def test_what_does_not_go_together_is_refused(corridor, changes, average, said):
    with pytest.raises(SettingsError, match=said):
        load(corridor(**changes, training={"average": average}))


def test_swapping_twice_changes_nothing():
    parameters = [torch.nn.Parameter(torch.randn(3, 4)), torch.nn.Parameter(torch.randn(5))]
    before = [parameter.detach().clone() for parameter in parameters]
    average = AveragedWeights(parameters, AverageSettings(decay=0.5))
    with torch.no_grad():
        parameters[0].add_(1.0)
    average.update(1, Ranks())
    with average.applied():
        torch.testing.assert_close(parameters[0].detach(), before[0] + 0.5)
    torch.testing.assert_close(parameters[0].detach(), before[0] + 1.0)
    assert torch.equal(parameters[1].detach(), before[1])


@pytest.mark.parametrize("iterations", [1, 2, 20, 400])
def test_a_growing_average_lags_a_fifth_of_the_run_behind_and_forgets_its_start(iterations):
    """Weights that are 1 in one iteration and 0 in all others show what that iteration weighs in the end."""
    weighs, settings = [], AverageSettings()
    for one in range(iterations + 1):  # 0: the weights that a run begins with
        average = float(one == 0)
        for iteration in range(1, iterations + 1):
            keep = kept(settings, iteration)
            average = keep * average + (1 - keep) * (iteration == one)
        weighs.append(average)
    assert weighs[0] == 0 and sum(weighs) == pytest.approx(1.0)
    assert weighs[1:] == sorted(weighs[1:])
    lag = sum(weight * (iterations - one) for one, weight in enumerate(weighs))
    assert lag == pytest.approx((iterations - 1) / 5)
