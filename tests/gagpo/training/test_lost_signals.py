"""A SIGTERM that comes where its exception is thrown away ends the run with a checkpoint, and nothing is lost."""

import pytest
import yaml

from gagpo.eval.results import EvalResult
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.trainer import train
from tests.gagpo.conftest import CORRIDOR
from tests.gagpo.training import signal_envs
from tests.gagpo.training.resuming import require_equal
from tests.gagpo.training.test_trainer import run, start

ENV = "tests.gagpo.training.signal_envs:gagpo-test/Signalling-v0"


def config_of(folder, model, action, place):
    kwargs = {"max_turns": 16, "action": action, "place": place}
    values = {
        **CORRIDOR,
        "model": model,
        "environment": {"id": ENV, "kwargs": kwargs},
        "training": {"iterations": 3, "save_every": 100, "ema": False},
        "evaluation": {"splits": ["test"], "every": 2, "episodes_per_task": 4},
        "trackers": [],
    }
    path = folder / f"{place}-{action}.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture(scope="module")
def whole(warm_model, tmp_path_factory):
    """The run that nothing interrupts, and its number of actions."""
    folder = tmp_path_factory.mktemp("whole")
    signal_envs.COUNTS["actions"] = 0
    return run(config_of(folder, warm_model, 0, ""), folder / "whole"), signal_envs.COUNTS["actions"]


def require_same(folder, whole):
    require_equal(folder, whole)
    for path in (whole.path / "evals").iterdir():
        assert EvalResult.load(folder.path / "evals" / path.name).tasks == EvalResult.load(path).tasks


@pytest.mark.parametrize("place", ["destructor", "caught"])
@pytest.mark.parametrize("moment", [0.01, 0.2, 0.45, 0.6, 0.8])
def test_a_signal_in_an_action_ends_the_run(warm_model, tmp_path, monkeypatch, whole, moment, place):
    action = int(whole[1] * moment)
    monkeypatch.setattr("gagpo.base.signals.AGAIN_SECONDS", 0.01)  # the model is tiny
    folder = RunFolder.create(tmp_path / "run", load(config_of(tmp_path, warm_model, action, place)))
    signal_envs.COUNTS["actions"] = 0
    with pytest.raises(SystemExit) as ended:
        train(folder, quiet=True)
    assert ended.value.code == 143 and not (folder.path / "evals" / "after-test.json").exists()
    done = [row["iteration"] for row in folder.metrics()]
    saved = checkpoints.latest(folder.path / "checkpoints")
    assert (saved.iteration if saved else 0) == (done[-1] if done else 0)
    signal_envs.COUNTS["actions"] = action  # passed
    train(RunFolder.open(folder.path), quiet=True)
    require_same(folder, whole[0])


@pytest.mark.slow
@pytest.mark.parametrize("place", ["destructor", "caught"])
def test_a_process_ends_with_its_checkpoint(warm_model, tmp_path, whole, place):
    action = int(whole[1] * 0.4)
    process = start(config_of(tmp_path, warm_model, action, place), tmp_path / "runs")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 143 and "gnored" not in output and "stopping: finished iterations" in output
    folder = RunFolder.open(tmp_path / "runs" / "corridor")
    assert checkpoints.latest(folder.path / "checkpoints").iteration == folder.metrics()[-1]["iteration"]
