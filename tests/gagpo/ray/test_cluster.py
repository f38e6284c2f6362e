"""Placement in a Ray cluster with fake actors, and no import of Ray without the flag."""

import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from gagpo.agents.engines.remote.server import ServerPlan
from gagpo.agents.model import ModelError
from gagpo.base.errors import MissingPackage
from gagpo.collecting.placement import LocalPlacement
from gagpo.envs.pool import WorkerPool
from gagpo.ray.driver import variables_of
from gagpo.ray.server import HostLost, PlacedServer
from gagpo.settings import EngineSettings, load, parse


def settings_of(**sections):
    env = {"id": "gagpo.envs.testing:gagpo-test/Corridor-v0"}
    values = {"name": "run", "model": "m", "environment": env, "algorithm": {"preset": "gagpo"}, **sections}
    return parse({**values, "rollout": {"workers": 0, "step_deadline": 7.0}}, "these settings")


def test_ranks_are_told_who_they_are_as_torchrun_does():
    told = variables_of([("10.0.0.1", 5001), ("10.0.0.2", 5002), ("10.0.0.1", 5003)])
    assert [one["RANK"] for one in told] == ["0", "1", "2"] and {one["WORLD_SIZE"] for one in told} == {"3"}
    assert {(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in told} == {("10.0.0.1", "5001")}
    assert [one["LOCAL_WORLD_SIZE"] for one in told] == ["2", "1", "2"]


def test_training_imports_no_ray():
    code = "import sys, gagpo.cli.main, gagpo.training.trainer, gagpo.ray.driver; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_without_ray_the_extra_is_named(monkeypatch, tmp_path):
    from gagpo.ray.driver import train_on
    from gagpo.runs.run_folder import RunFolder

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackage, match=r"gagpo\[ray\]"):
        train_on("local", RunFolder.new(tmp_path / "run", settings_of()), print)


def test_a_run_of_several_environments_ends_with_a_result_for_each(monkeypatch, tmp_path):
    from gagpo.eval.results import EvalResult
    from gagpo.ray import driver
    from gagpo.runs.run_folder import RunFolder

    envs = [{"name": name, "id": CORRIDOR} for name in ("long", "short")]
    settings = settings_of(environment=None, environments=envs, evaluation={"splits": ["test"]})
    folder = RunFolder.create(tmp_path / "run", settings)
    for panel in settings.panels:
        (folder.path / "evals" / f"after-{panel}.json").write_text("{}")
    monkeypatch.setattr(driver, "_connected", lambda address: nullcontext())
    monkeypatch.setattr(driver, "_Attempt", lambda folder: SimpleNamespace(run=lambda: ""))
    monkeypatch.setattr(EvalResult, "load", lambda path: path.stem)
    assert driver.train_on("local", folder, print) == {
        "long.test": "after-long.test",
        "short.test": "after-short.test",
    }


CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_where_nobody_is_is_said_at_once(tmp_path, address, monkeypatch):
    from gagpo.ray.driver import ClusterError, train_on
    from gagpo.runs.run_folder import RunFolder

    monkeypatch.setitem(sys.modules, "ray", object())  # not reached
    with pytest.raises(ClusterError, match=f"the Ray cluster at {address} cannot be reached: .*refused"):
        train_on(address, RunFolder.new(tmp_path / "run", settings_of()), print)


def test_a_process_that_nobody_placed_has_its_own_pool():
    settings = settings_of()
    with LocalPlacement().open_pool(settings) as pool:
        assert isinstance(pool, WorkerPool) and pool._deadlines["step"] == 7.0
    engine = EngineSettings(name="vllm", options={"replicas": 2})
    assert LocalPlacement().engine_arguments(engine) == {"dtype": "float32", "replicas": 2}


def test_a_run_asks_its_placement(corridor, outside, tmp_path):
    from gagpo.runs.run_folder import RunFolder
    from gagpo.training.trainer import train

    asked = []

    class Elsewhere(LocalPlacement):
        def open_pool(self, settings):
            asked.append("pool")
            return super().open_pool(settings)

        def engine_arguments(self, settings):
            asked.append("engine")
            return {**super().engine_arguments(settings), "token": 7}

    changes = {"training": {"iterations": 1}, "evaluation": {"tasks": 1, "before": False}}
    folder = RunFolder.create(tmp_path / "run", load(corridor(engine="elsewhere:Constant", **changes)))
    train(folder, quiet=True, placement=Elsewhere())
    assert asked == ["engine", "pool"]


def test_a_cluster_gives_what_its_settings_ask_for(tmp_path):
    pytest.importorskip("ray")
    from gagpo.ray.server import RayPlace

    placement = RayPlace(settings_of(), tmp_path)
    with placement.open_pool(settings_of()) as pool:
        assert isinstance(pool, WorkerPool)
    given = placement.engine_arguments(EngineSettings(name="vllm"))
    assert given["folder"] == str(tmp_path / "weights") and callable(given["start_with"])
    named = EngineSettings(name="vllm", options={"urls": ["http://10.0.0.1:8000"]})
    assert placement.engine_arguments(named) == LocalPlacement().engine_arguments(named)


class Actor:
    """What a server's host answers."""

    def __init__(self):
        self.dead, self.well, self.calls = False, True, []

    def __call__(self, plan):
        return self.ask, self.end

    def ask(self, method, *arguments, deadline):
        self.calls.append(method)
        if self.dead:
            raise HostLost("its node is gone")
        return {"start": ("http://10.0.0.2:9", 7), "ready": self.well, "running": True}[method]

    def end(self):
        self.dead = True


def test_a_placed_server_is_one_to_the_engine(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    actor = Actor()
    server = PlacedServer(ServerPlan(str(tmp_path)), actor)
    assert not server.running
    server.start()
    server.wait(5)
    assert server.running and server.url == "http://10.0.0.2:9" and server.process == 7
    actor.well = False
    with pytest.raises(ModelError, match="not ready after 0 s"):
        server.wait(0)
    actor.dead = True
    assert not server.running
    with pytest.raises(ModelError, match="its node is gone"):
        server.wait(5)
    with pytest.raises(ModelError, match="could not be started in the cluster: its node is gone"):
        server.start()
    server.close()
    server.close()
