"""A run in a Ray cluster of two nodes whose actors are killed at random: nothing is lost."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

ray = pytest.importorskip("ray", reason="an optional extra: pip install 'gagpo[ray]'")
from ray.cluster_utils import Cluster  # noqa: E402

from gagpo.eval.runs import final_results  # noqa: E402
from gagpo.ray.driver import ClusterError, train_on  # noqa: E402
from gagpo.runs.run_folder import RunFolder  # noqa: E402
from gagpo.settings import dump, parse  # noqa: E402
from gagpo.sft.run import sft  # noqa: E402
from gagpo.training.trainer import train  # noqa: E402

pytestmark = pytest.mark.slow

ITERATIONS, DEATHS = 20, 3


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of three cores each, whatever this machine has."""
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  (beside anything else, workers would starve)
    small = {"num_cpus": 3, "object_store_memory": 100 * 2**20}
    nodes = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    nodes.add_node(**small)
    yield nodes
    nodes.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "corridor"
    sft(settings_of("warm", folder), quiet=True)
    return folder


def settings_of(name, model, **sections):
    values = {
        "name": name,
        "model": str(model),
        "threads": 1,
        "environment": {"id": "gagpo.envs.testing:gagpo-test/Corridor-v0", "kwargs": {"max_turns": 8}},
        "rollout": {"tasks": 4, "samples": 4, "max_tokens": 3, "workers": 0},
        "engine": {"name": "tests.scale.one_by_one:OneByOne", "options": {"own": True}},  # ranks sample from copies
        "algorithm": {"preset": "gagpo", "kl": {"coefficient": 0.0}},
        "optimizer": {"learning_rate": 1e-3},
        "training": {"iterations": ITERATIONS, "save_every": 1, "keep_episodes": 1},
        "evaluation": {"splits": ["test"], "temperature": 0.0},
        "trackers": [],
        "cluster": {"restarts": 30},
        "sft": {
            "episodes": 40,
            "noise": 0.5,
            "mistakes": 0.0,
            "steps": 20,
            "learning_rate": 1e-2,
            "model": {"layers": 1, "width": 64, "vocabulary": 300},
        },
    }
    return parse({**values, **sections}, "these settings")


def actors():
    """The named actors of the run."""
    return sorted(actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True))


class Killer(threading.Thread):
    """Kills the rank at random moments, so often, as long as the run goes on."""

    def __init__(self, deaths, seed=0):
        super().__init__(daemon=True)
        self.left, self.killed, self.rng = deaths, [], random.Random(seed)
        self.over = threading.Event()

    def run(self):
        while self.left and not self.over.wait(self.rng.uniform(0.2, 1.5)):
            if not ray.is_initialized():
                continue  # to look would connect
            try:
                ranks = [name for name in actors() if name.startswith("gagpo-rank") and name not in self.killed]
                if ranks:
                    name = self.rng.choice(ranks)
                    ray.kill(ray.get_actor(name, namespace="gagpo"))
                    self.killed.append(name)
                    self.left -= 1
            except (ValueError, ray.exceptions.RayError):
                continue  # it ended between two lines


def numbers(folder):
    """What an iteration's metrics say of learning, without times."""
    names = ("iteration", "success_rate", "mean_turns", "turns_total", "tokens_total", "loss", "grad_norm")
    return [{name: row[name] for name in names} for row in folder.metrics()]


@pytest.fixture(scope="module")
def alone(model, tmp_path_factory):
    """The run without a cluster."""
    folder = RunFolder.new(tmp_path_factory.mktemp("alone") / "run", settings_of("alone", model))
    train(folder, quiet=True)
    return folder


def test_a_run_whose_rank_is_killed_three_times_is_the_run_on_one_machine(cluster, model, alone, tmp_path):
    folder = RunFolder.new(tmp_path / "run", settings_of("killed", model))
    killer, said = Killer(DEATHS), []
    killer.start()
    try:
        results = train_on(cluster.address, folder, said.append)
    finally:
        killer.over.set()
    print(f"killed {killer.killed}; said {said}")
    assert len(killer.killed) == len(said) == DEATHS
    assert [row["iteration"] for row in folder.metrics()] == list(range(1, ITERATIONS + 1))
    assert numbers(folder) == numbers(alone)
    for row in folder.metrics():
        assert row["failed_episodes"] == 0
    lines = [path.read_text().count("\n") for path in sorted((folder.path / "episodes").glob("train-*.jsonl"))]
    assert lines == [16] * ITERATIONS
    assert results["test"].success.value == final_results(alone.path, ["test"])["test"].success.value


def test_two_ranks_of_which_one_is_killed_are_the_run_on_one_machine(cluster, model, alone, tmp_path):
    training = {"iterations": 4, "save_every": 1}
    settings = settings_of("two", model, processes=2, training=training, cluster={"restarts": 5})
    folder, said, killed = RunFolder.new(tmp_path / "run", settings), [], []

    def kill():
        while not folder.path.exists() or not folder.metrics():
            time.sleep(0.1)
        name = next(name for name in actors() if name.startswith("gagpo-rank-1"))
        ray.kill(ray.get_actor(name, namespace="gagpo"))
        killed.append(name)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    train_on(cluster.address, folder, said.append)
    print(f"two ranks: killed {killed}, said {said}")
    assert len(said) == len(killed) == 1
    for mine, other in zip(numbers(folder), numbers(alone)[:4], strict=True):
        assert mine == pytest.approx(other, rel=1e-3, abs=1e-5)


def test_what_the_user_has_to_mend_ends_the_run_at_once(cluster, model, tmp_path):
    broken = {"id": "tests.envs.faulty:gagpo-test/Broken-v0", "kwargs": {}}
    evaluation = {"splits": ["test"], "before": False}
    settings = settings_of("broken", model, environment=broken, evaluation=evaluation)
    said = []
    with pytest.raises(ClusterError, match="every episode failed in its environment"):
        train_on(cluster.address, RunFolder.new(tmp_path / "run", settings), said.append)
    assert not said


def test_no_room_is_said(cluster, model, tmp_path):
    settings = settings_of("large", model, processes=50, cluster={"start_deadline": 2})
    with pytest.raises(ClusterError, match=r"no room for 50 ranks of \{'CPU': 1\.0\} within 2 s"):
        train_on(cluster.address, RunFolder.new(tmp_path / "run", settings), print)


def test_the_command_streams_what_ranks_print(cluster, model, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(dump(settings_of("command", model, training={"iterations": 2, "save_every": 1})))
    line = [sys.executable, "-m", "gagpo", "train", str(config), "--ray", cluster.address, "--runs", str(tmp_path)]
    begun = time.monotonic()
    done = subprocess.run(line, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("success") >= 3 and "report: " in done.stdout, done.stdout
    print(f"a run of two iterations took {time.monotonic() - begun:.0f} s")
    missing = subprocess.run([*line[:-3], "127.0.0.1:1", "--runs", str(tmp_path), "name=other"], capture_output=True)
    assert missing.returncode == 2 and b"cannot be reached" in missing.stderr
    assert not (tmp_path / "other").exists()


def test_an_interrupted_run_writes_a_checkpoint_and_goes_on(cluster, model, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(dump(settings_of("stopped", model, training={"iterations": 4000, "save_every": 4000})))
    line = [sys.executable, "-m", "gagpo", "train", str(config), "--ray", cluster.address, "--runs", str(tmp_path)]
    folder = tmp_path / "stopped"
    running = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        end = time.monotonic() + 300
        while not (folder / "metrics.jsonl").exists() or not RunFolder.open(folder).metrics():
            assert running.poll() is None and time.monotonic() < end
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        said = running.communicate(timeout=300)[0]
    finally:
        running.kill()
    assert running.returncode == 130 and f"--resume {folder}" in said, said
    rows = RunFolder.open(folder).metrics()
    saved = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert len(rows) < 4000 and saved == [f"iteration-{rows[-1]['iteration']:06d}"]
