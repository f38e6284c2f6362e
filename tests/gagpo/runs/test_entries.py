"""A checkpoint's entries are declared in one place: written, verified, read."""

import pytest

from gagpo.runs import checkpoint as checkpoints
from gagpo.runs import disk_space
from gagpo.runs.checkpoint import CheckpointError, Entry, Saver
from gagpo.runs.entries import SampledEntry, StateEntry
from tests.rejections import rejects


class Notes(Entry):
    """An entry of other code."""

    name = "notes.txt"

    def __init__(self, text=None):
        self.text = text

    def copy(self):
        return self.text

    def write(self, content, path, ranks):
        path.write_text(content)

    def read(self, path):
        self.text = path.read_text()

    def size(self):
        return len(self.text or "")


def saved(folder, *entries, iteration=1):
    saver = Saver(folder)
    saver.save(iteration, entries, keep=2)
    saver.wait()
    return checkpoints.latest(folder)


def test_an_entry_of_other_code_is_written_and_read(tmp_path):
    checkpoint = saved(tmp_path, Notes("as it was"), StateEntry(lambda: {"iteration": 1}, lambda _: None))
    checkpoint.verify()
    notes = Notes()
    checkpoint.read(notes)
    assert notes.text == "as it was" and checkpoint.state() == {"iteration": 1}
    assert disk_space.checkpoint_bytes([notes]) == disk_space.SMALL_FILES + len("as it was")


def test_what_changes_after_the_copy_is_not_written(tmp_path):
    notes = Notes("before")
    saver = Saver(tmp_path)
    start = saver.start

    def changed(work):
        notes.text = "after"
        start(work)

    saver.start = changed
    saver.save(1, [notes], keep=1)
    saver.wait()
    assert (checkpoints.latest(tmp_path).path / "notes.txt").read_text() == "before"


def test_an_optional_entry_may_be_missing_and_another_may_not(tmp_path):
    checkpoint = saved(tmp_path, SampledEntry(None, lambda _: None), Notes("x"))
    assert {path.name for path in checkpoint.path.iterdir()} == {"notes.txt", "manifest.json"}
    checkpoint.read(SampledEntry(None, lambda _: pytest.fail("there is nothing to load")))
    (checkpoint.path / "notes.txt").unlink()
    with rejects(CheckpointError, "read", where="notes.txt", advice="iteration-000001"):
        checkpoint.read(Notes())


def test_a_state_of_another_trainer_is_named(tmp_path):
    checkpoint = saved(tmp_path, StateEntry(dict, lambda _: None))
    with rejects(CheckpointError, "'iteration'", where="state.json"):
        checkpoint.read(StateEntry(dict, lambda state: state["iteration"]))
