"""What can be used is listed; a package that breaks cannot break the list."""

import re

import pytest

from gagpo.cli.listing import environments, everything, list_everything, narrow_lines
from gagpo.cli.options import first_comment
from gagpo.envs.lookup import UnknownEnvironment, find_spec
from gagpo.interop.scaffold import new_environment
from tests.rejections import rejects


def test_packages_offer_environments(tmp_path, offer):
    new_environment("sea_floor", tmp_path)
    locations = {"SeaFloor-v0": "sea_floor", "No-v0": "no_such_module", "Lost-v0": "sea_floor"}
    offer("deep", "gagpo.environments", **locations)
    results = {environment.name: environment for environment in environments()}
    assert results["gagpo/Math-v0"].package == "gagpo"
    assert (results["SeaFloor-v0"].package, results["SeaFloor-v0"].problem) == ("deep", "")
    assert "ModuleNotFoundError" in results["No-v0"].problem
    assert "registers no Lost-v0" in results["Lost-v0"].problem
    assert find_spec("SeaFloor-v0").id == "SeaFloor-v0", "an id works as it is listed"
    with rejects(UnknownEnvironment, "no_such_module"):
        find_spec("No-v0")
    with rejects(UnknownEnvironment, advice="SeaFloor-v0"):
        find_spec("Nowhere-v0")


def test_everything_at_hand_is_listed(tmp_path):
    (tmp_path / "models" / "small").mkdir(parents=True)
    (tmp_path / "models" / "small" / "config.json").write_text("{}")
    listed = everything(tmp_path / "runs", tmp_path / "models")
    type_names = {item.kind for item in listed}
    assert type_names == {"config", "environment", "algorithm", "engine", "model"}
    assert {"gagpo", "grpo"} <= {item.name for item in listed if item.kind == "algorithm"}
    (starter,) = [item for item in listed if item.name == "starter:alfworld"]
    assert re.match(r"2\.46 M parameters, 3\.9 MiB; .* \d+\.\d \[\d+\.\d, \d+\.\d\] %$", starter.about)


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal_shows_names_whole_with_their_description_below(tmp_path, width):
    items = everything(tmp_path, tmp_path)
    lines = narrow_lines(items, width)
    assert all(len(line) <= width for line in lines)
    assert {"configs", "environments", "algorithms", "models"} <= set(lines)
    assert "  math-quickstart" in lines and "gagpo, gigpo" in " ".join(" ".join(lines).split())


def test_a_description_is_a_whole_sentence(tmp_path):
    about = {item.name: item.about for item in everything(tmp_path, tmp_path) if item.kind == "config"}
    assert all(text.endswith(".") for text in about.values()), about
    config = tmp_path / "config.yaml"
    config.write_text("# Trains 1.5B weights with\n# docs/scale.md at hand. More.\nname: x\n# no\n")
    assert first_comment(config) == "Trains 1.5B weights with docs/scale.md at hand."


def test_in_a_pipe_every_line_is_one_thing_with_tabs_between_its_facts(capsys, tmp_path):
    list_everything(tmp_path, tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(everything(tmp_path, tmp_path)) and {line.count("\t") for line in lines} == {4}
    assert "environment\tgagpo/Math-v0\t\tgagpo\t" in lines


def test_a_model_behind_a_server_needs_a_key(monkeypatch, tmp_path):
    def found():
        (item,) = [item for item in everything(tmp_path, tmp_path) if item.name == "openai:MODEL"]
        return item

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert found().kind == "model" and "OPENAI_API_KEY" in found().problem
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    assert found().problem == ""
