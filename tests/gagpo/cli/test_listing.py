"""What can be used is listed; a package that breaks cannot break the list."""

import re

import pytest

from gagpo.cli.listing import environments, everything, list_everything
from gagpo.envs.lookup import UnknownEnvironment, find_spec
from gagpo.interop.scaffold import new_environment


def test_packages_offer_environments(tmp_path, offer):
    new_environment("sea_floor", tmp_path)
    places = {"SeaFloor-v0": "sea_floor", "No-v0": "no_such_module", "Lost-v0": "sea_floor"}
    offer("deep", "gagpo.environments", **places)
    found = {one.name: one for one in environments()}
    assert found["gagpo/SQL-v0"].package == "gagpo"
    assert (found["SeaFloor-v0"].package, found["SeaFloor-v0"].problem) == ("deep", "")
    assert "ModuleNotFoundError" in found["No-v0"].problem
    assert "registers no Lost-v0" in found["Lost-v0"].problem
    assert find_spec("SeaFloor-v0").id == "SeaFloor-v0", "an id works as it is listed"
    with pytest.raises(UnknownEnvironment, match="no_such_module"):
        find_spec("No-v0")
    with pytest.raises(UnknownEnvironment, match=r"known here: .*SeaFloor-v0"):
        find_spec("Nowhere-v0")


def test_everything_at_hand_is_listed(tmp_path):
    (tmp_path / "models" / "small").mkdir(parents=True)
    (tmp_path / "models" / "small" / "config.json").write_text("{}")
    listed = everything(tmp_path / "runs", tmp_path / "models")
    kinds = {one.kind for one in listed}
    assert kinds == {"config", "environment", "algorithm", "engine", "model"}
    assert {"gagpo", "grpo"} <= {one.name for one in listed if one.kind == "algorithm"}
    (starter,) = [one for one in listed if one.name == "starter:alfworld"]
    assert re.match(r"2\.46 M parameters, 3\.9 MiB; .* \d+\.\d \[\d+\.\d, \d+\.\d\] %$", starter.about)


def test_in_a_pipe_every_line_is_one_thing_with_tabs_between_its_facts(capsys, tmp_path):
    list_everything(tmp_path, tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(everything(tmp_path, tmp_path)) and {line.count("\t") for line in lines} == {4}
    assert "environment\tgagpo/Math-v0\t\tgagpo\t" in lines


def test_a_model_behind_a_server_needs_a_key(monkeypatch, tmp_path):
    def found():
        (one,) = [one for one in everything(tmp_path, tmp_path) if one.name == "openai:MODEL"]
        return one

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert found().kind == "model" and "OPENAI_API_KEY" in found().problem
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    assert found().problem == ""
