"""What ranks in a Ray cluster are told, and no import of Ray without the flag."""

import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from gagpo.base.errors import MissingPackage
from gagpo.ray.driver import variables_of
from gagpo.settings import parse


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
