"""What a run of several ranks holds unsharded: chosen by the plan when it begins, and stored."""

import pytest

from gagpo.distributed.ranks import Ranks
from gagpo.planning import fitting
from gagpo.planning.fitting import choose_unsharded
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.settings.formats import with_formats_of
from gagpo.sweeps.status import _changes
from gagpo.training.launch import new_run


class TwoMachines(Ranks):
    """The first of four ranks, two on each machine, without the others."""

    def __init__(self):
        super().__init__(world_size=4, local_world_size=2)

    def of_first(self, call):
        return call()


@pytest.mark.parametrize(("gigabytes", "chosen"), [(1000.0, "all"), (1e-3, "least")])
def test_a_run_that_begins_chooses_by_the_machines_memory_and_stores_it(
    corridor, tmp_path, monkeypatch, gigabytes, chosen
):
    monkeypatch.setattr(fitting, "memory_here", lambda device: gigabytes)
    folder = RunFolder.create(tmp_path / "corridor", load(corridor(), ["name=corridor"]))
    assert choose_unsharded(folder, Ranks()) == "" and folder.settings.training.unsharded == "auto"
    assert choose_unsharded(folder, TwoMachines()).startswith(f"training.unsharded={chosen}: ")

    monkeypatch.setattr(fitting, "memory_here", lambda device: 1.0)
    again = RunFolder.open(folder.path)
    assert again.settings.training.unsharded == chosen and choose_unsharded(again, TwoMachines()) == ""
    assert again.settings.training.unsharded == chosen
    # `--auto` and sweeps know the run, whose config leaves open what it has chosen.
    assert new_run(corridor(), ["name=corridor"], tmp_path, auto=True).path == folder.path
    settings = load(corridor(), ["name=corridor"])
    assert _changes(again, with_formats_of(settings, again.settings)) == []
    other = new_run(corridor(), ["name=corridor", "training.unsharded=gradients"], tmp_path, auto=True)
    assert other.path != folder.path


def test_a_stated_value_and_a_model_that_is_not_here_yet_are_not_planned(corridor, tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "memory_here", lambda device: 1000.0)
    folder = RunFolder.create(tmp_path / "stated", load(corridor(), ["training.unsharded=layers"]))
    assert choose_unsharded(folder, TwoMachines()) == "" and folder.settings.training.unsharded == "layers"
    folder = RunFolder.create(tmp_path / "absent", load(corridor(), ["model=nobody/has-this-model", "sft=null"]))
    assert choose_unsharded(folder, TwoMachines()) and folder.settings.training.unsharded == "layers"
