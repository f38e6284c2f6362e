"""Compare resumed runs with uninterrupted ones."""

import shutil
import signal

from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.run_folder import RunFolder
from tests.gagpo.training.test_trainer import same, start, timeless, wait_for_rows, weights


def ends(folder):
    """All that a run comes to, but for what the clock says."""
    rows = [{k: v for k, v in row.items() if k != "seconds_waited"} for row in timeless(folder.metrics())]
    saved = checkpoints.latest(folder.path / "checkpoints")
    results = [weights(folder.path, segment) for segment in ("model", "average") if (saved.path / segment).is_dir()]
    return results, rows, saved.state()


def require_equal(one, other):
    """The same weights, average, metrics and state, bit by bit."""
    (weights_1, rows_1, state_1), (weights_2, rows_2, state_2) = ends(one), ends(other)
    assert rows_1 == rows_2 and state_1 == state_2
    assert all(map(same, weights_1, weights_2))


def killed_after(done, whole, folder):
    """The folder of a run that was killed after so many iterations: a copy of ``whole`` without what came later."""
    segment = folder / f"part-{done}"
    shutil.copytree(whole.path, segment)
    for saved in checkpoints.checkpoints(segment / "checkpoints"):
        if saved.iteration > done:
            shutil.rmtree(saved.path)
    for path in (segment / "evals").glob("after-*.json"):
        path.unlink()
    return segment


def killed_and_resumed(config, runs, rows):
    """The run of ``config`` in a process that is killed with so many rows written, and in another to its end."""
    killed = runs / "corridor"
    process = start(config, runs)
    wait_for_rows(killed / "metrics.jsonl", rows, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    resumed = start(None, runs, "--resume", killed)
    output, _ = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, output
    return RunFolder.open(killed)
