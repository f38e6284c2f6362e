"""A rate that follows the signal of the gradient: short steps of noise, long ones of what mini-batches agree on."""

import pytest
import torch

from gagpo.controllers import SignalRate, SignalRateController
from gagpo.distributed.ranks import Ranks
from gagpo.learning.steps.signal import GradientSignal
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import SettingsError, load
from gagpo.training.trainer import train
from tests.gagpo.training.resuming import killed_after, require_equal


def follower(**options):
    return SignalRateController(SignalRate(**options))


def test_the_rate_is_multiplied_by_the_root_of_a_running_share():
    one = follower(decay=0.5, first=0.04)
    assert one.scale == pytest.approx(0.2)
    one.observe(0.28)
    assert one.share == pytest.approx(0.16) and one.values() == {"signal_scale": pytest.approx(0.4)}


def test_it_stays_within_its_bounds():
    one = follower(decay=0.0, least=0.1)
    for share, scale in ((-0.3, 0.1), (-1e9, 0.1), (0.005, 0.1), (1.0, 1.0), (7.0, 1.0)):
        one.observe(share)
        assert one.scale == pytest.approx(scale)


def test_an_iteration_that_measured_nothing_says_nothing():
    one = follower()
    one.observe(None)
    assert one.share == one.settings.first


@pytest.mark.parametrize(("signal", "noise"), [(1.0, 0.0), (1.0, 1.0), (0.2, 1.0), (0.0, 1.0)])
def test_gradients_of_known_signal_are_followed(signal, noise):
    """Over iterations of four mini-batches the scale comes to signal / length of a gradient."""
    generator = torch.Generator().manual_seed(3)
    parameter, one = torch.nn.Parameter(torch.zeros(4000)), follower()
    for _ in range(40):
        found = GradientSignal()
        for _ in range(4):
            parameter.grad = (signal + noise * torch.randn(4000, generator=generator)) / 4000**0.5
            found.observe([parameter], Ranks())
        one.observe(found.values(4.0, Ranks())["gradient_signal"])
    expected = signal / (signal**2 + noise**2) ** 0.5
    assert one.scale == pytest.approx(max(expected, one.settings.least), abs=0.05)


def test_its_state_is_resumed():
    one, other = follower(), follower()
    one.share = -0.02
    other.load_state_dict(one.state_dict())
    assert other.share == -0.02
    with pytest.raises(ValueError, match="share of a gradient"):
        other.load_state_dict({"share": 3.0})


FOLLOWING = {"minibatches": 2, "save_every": 1, "keep": 9, "signal_rate": {"decay": 0.5}}


@pytest.fixture
def followed(corridor, tmp_path):
    settings = load(corridor(evaluation={"before": False}, training={"iterations": 3, **FOLLOWING}))
    folder = RunFolder.create(tmp_path / "run", settings)
    train(folder, quiet=True)
    return folder


def test_a_run_takes_the_rate_that_it_logs(followed):
    rows = followed.metrics()
    assert rows[0]["signal_scale"] == pytest.approx(0.1**0.5)
    share = 0.1
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        assert row["learning_rate"] == pytest.approx(followed.settings.optimizer.learning_rate * row["signal_scale"])
        share = 0.5 * share + 0.5 * row.get("gradient_signal", share)
        if after:
            assert after["signal_scale"] == pytest.approx(max(0.05, max(share, 0.0) ** 0.5))


def test_a_run_that_is_continued_goes_on_with_its_rate(followed, tmp_path):
    part = killed_after(1, followed, tmp_path)
    train(RunFolder.open(part), quiet=True)
    require_equal(RunFolder.open(part), followed)


def test_one_mini_batch_has_nothing_to_be_compared_with(corridor):
    with pytest.raises(SettingsError, match="set minibatches to 2 or more"):
        load(corridor(training={"minibatches": 1, "signal_rate": {}}))
