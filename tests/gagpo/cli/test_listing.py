"""What can be used is listed; a package that breaks cannot break the list."""

from gagpo.cli.listing import environments, everything
from gagpo.interop.scaffold import new_world


def test_packages_offer_environments(tmp_path, offer):
    new_world("sea_floor", tmp_path)
    places = {"SeaFloor-v0": "sea_floor", "No-v0": "no_such_module", "Lost-v0": "sea_floor"}
    offer("deep", "gagpo.environments", **places)
    found = {one.name: one for one in environments()}
    assert found["gagpo/SQL-v0"].package == "gagpo"
    assert (found["sea_floor:SeaFloor-v0"].package, found["sea_floor:SeaFloor-v0"].problem) == ("deep", "")
    assert "ModuleNotFoundError" in found["no_such_module:No-v0"].problem
    assert "registers no Lost-v0" in found["sea_floor:Lost-v0"].problem


def test_everything_at_hand_is_listed(tmp_path):
    (tmp_path / "models" / "small").mkdir(parents=True)
    (tmp_path / "models" / "small" / "config.json").write_text("{}")
    listed = everything(tmp_path / "runs", tmp_path / "models")
    kinds = {one.kind for one in listed}
    assert kinds == {"environment", "algorithm", "engine", "model"}
    assert {"gagpo", "grpo"} <= {one.name for one in listed if one.kind == "algorithm"}
