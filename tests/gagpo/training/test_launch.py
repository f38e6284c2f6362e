"""The run that all ranks open, as the first rank describes it."""

import pytest

from gagpo.distributed.ranks import Ranks
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.settings.formats import is_open
from gagpo.training.launch import _folder_of_all, new_run, resolved_settings


class Second(Ranks):
    """The second rank, which hears of the folder that the first one opened."""

    def hear_of(self, folder):
        self.heard = [str(folder.path), folder.is_new]
        return self

    def of_first(self, call):
        return self.heard


@pytest.mark.parametrize("begun", [True, False])
def test_every_rank_of_a_run_resumed_by_auto_reads_its_stored_formats(corridor, tmp_path, begun):
    config = corridor()
    settings = resolved_settings(config, ["name=corridor"])
    assert is_open(settings)
    if begun:
        folder = RunFolder.create(tmp_path / "corridor", load(config, ["name=corridor"]))
        folder.choose_formats("float32", "float32")

    described = new_run(config, ["name=corridor"], tmp_path, auto=True)
    folder = _folder_of_all(Second().hear_of(described), pytest.fail, settings)
    assert folder.path == described.path
    assert folder.is_new is not begun
    assert folder.settings == described.settings
