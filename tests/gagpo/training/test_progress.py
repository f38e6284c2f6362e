"""What a terminal shows within an iteration: episodes that have ended with their reward, updates with their rate."""

from contextlib import contextmanager

import pytest

from gagpo.base.progress import Meter
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training import progress
from gagpo.training.trainer import train


@pytest.fixture
def bars(monkeypatch):
    """Every bar of training with its last state, in order."""
    output = []

    @contextmanager
    def track(label, total, unit, quiet=False, bound=False, inner=False):
        assert inner and not quiet
        meter = Meter(label, total, unit, None, float("inf"), bound=bound)
        advance = meter.advance
        notes = []

        def noted(amount=1, note=""):
            advance(amount)
            notes.append(note)

        meter.advance = noted
        yield meter
        output.append((label, unit, meter.done, meter.total, notes))

    monkeypatch.setattr(progress, "track", track)
    return output


@pytest.mark.parametrize("ahead", [0, 1])
def test_every_episode_and_every_update_is_shown(corridor, tmp_path, bars, ahead):
    plan = {"rollout": {"ahead": ahead, "workers": 1 if ahead else 0}, "evaluation": {"splits": []}}
    folder = RunFolder.create(tmp_path / "run", load(corridor(**plan)))
    train(folder)
    assert [bar[:4] for bar in bars] == [
        ("iteration 1 of 2", "episodes", 24, 24),
        ("iteration 1 of 2", "updates", 2, 2),
        ("iteration 2 of 2", "episodes", 24, 24),
        ("iteration 2 of 2", "updates", 2, 2),
    ]
    rows = folder.metrics()
    assert bars[0][4][-1] == f"mean reward {rows[0]['reward_mean']:.3f}"
    assert set(bars[0][4][:-1]) == {""}
    assert set(bars[2][4][:-1]) == {f"{bars[0][4][-1]} in iteration 1"}  # not of the episodes that ended first
    assert bars[2][4][-1] == f"mean reward {rows[1]['reward_mean']:.3f}"
    assert bars[1][4] == [f"learning rate {rows[0]['learning_rate']:.1e}"] * 2


def test_rounds_of_dynamic_sampling_are_an_upper_bound(corridor, tmp_path, bars):
    algorithm = {"preset": "dapo", "controllers": {"dynamic_sampling": {"rounds": 3}}}
    plan = {"algorithm": algorithm, "training": {"iterations": 1}, "evaluation": {"splits": []}}
    folder = RunFolder.create(tmp_path / "run", load(corridor(**plan)))
    train(folder)
    _, _, done, total, notes = bars[0]
    assert set(notes[: 24 * 2]) == {""}  # nobody knows which episode is the last
    assert total == 72 and done == 24 * folder.metrics()[0]["sampling_rounds"]
