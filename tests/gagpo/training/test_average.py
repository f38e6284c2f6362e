"""Runs with averaged weights: saved and evaluated."""

import pytest
import torch
from safetensors.torch import load_file

from gagpo.controllers.average import AveragedWeights, average_weight
from gagpo.runs import keeping
from gagpo.runs.run_folder import RunFolder, named
from gagpo.settings import SettingsError, load
from gagpo.training.trainer import train
from tests.gagpo.training.test_trainer import same, weights
from tests.rejections import rejects


@pytest.fixture
def run(corridor, tmp_path):
    def start(name, changes, **training):
        config = load(corridor(**changes, training={"save_every": 1, **training}, evaluation={"tasks": 2}))
        return RunFolder.create(tmp_path / name, config)

    return start


def test_the_average_is_that_of_all_iterations(run):
    folder = run("one", {}, iterations=3, max_checkpoints=9)
    train(folder, quiet=True)
    expected = load_file(f"{folder.settings.model}/model.safetensors")
    for iteration in (1, 2, 3):
        file = load_file(folder.path / f"checkpoints/iteration-{iteration:06d}/model/model.safetensors")
        keep = (iteration - 1) / (iteration + 3)
        expected = {
            name: keep * value.float() + (1 - keep) * file[name] for name, value in expected.items() if name in file
        }
    averaged = weights(folder.path, "average")
    assert not same(averaged, weights(folder.path))
    assert all(row["average_distance"] > 0 for row in folder.metrics()[1:])
    for name, value in expected.items():
        torch.testing.assert_close(averaged[name], value, atol=1e-6, rtol=0)


def test_it_is_measured_at_the_end_also_after_a_kill_and_has_a_name(run):
    folder = run("one", {}, iterations=2)
    train(folder, quiet=True)
    assert sorted(path.stem for path in (folder.path / "evals").iterdir()) == [
        "after-test",
        "average-test",
        "before-test",
    ]
    path, which = named(folder.path.with_name("one@ema"))
    assert path == folder.path and which == "ema"
    chosen = keeping.find_checkpoint(path, which, folder.settings.training)
    assert chosen.model.endswith("iteration-000002/average")
    measured = folder.path / "evals" / "average-test.json"
    before = measured.read_bytes()
    measured.unlink()  # as if the run had been killed before
    assert not folder.finished
    train(RunFolder.open(folder.path), quiet=True)
    assert folder.finished and measured.read_bytes() == before


def test_a_run_without_an_average_says_what_to_set(run):
    folder = run("one", {}, ema=False, iterations=1)
    train(folder, quiet=True)
    with rejects(SettingsError, key="training.ema"):
        keeping.find_checkpoint(folder.path, "ema", folder.settings.training)


def test_swapping_twice_changes_nothing():
    parameters = [torch.nn.Parameter(torch.randn(3, 4)), torch.nn.Parameter(torch.randn(5))]
    before = [parameter.detach().clone() for parameter in parameters]
    average = AveragedWeights(parameters)
    average.update(1)
    with torch.no_grad():
        parameters[0].add_(1.0)
    average.update(2)  # keeps a fifth
    with average.applied():
        torch.testing.assert_close(parameters[0].detach(), before[0] + 0.8)
    torch.testing.assert_close(parameters[0].detach(), before[0] + 1.0)
    assert torch.equal(parameters[1].detach(), before[1])


@pytest.mark.parametrize("iterations", [1, 2, 20, 400])
def test_a_growing_average_lags_a_fifth_of_the_run_behind_and_forgets_its_start(iterations):
    """Weights that are 1 in one iteration and 0 in all others show what that iteration weighs in the end."""
    weighs = []
    for item in range(iterations + 1):  # 0: the weights that a run begins with
        average = float(item == 0)
        for iteration in range(1, iterations + 1):
            keep = average_weight(iteration)
            average = keep * average + (1 - keep) * (iteration == item)
        weighs.append(average)
    assert weighs[0] == 0 and sum(weighs) == pytest.approx(1.0)
    assert weighs[1:] == sorted(weighs[1:])
    lag = sum(weight * (iterations - item) for item, weight in enumerate(weighs))
    assert lag == pytest.approx((iterations - 1) / 5)
