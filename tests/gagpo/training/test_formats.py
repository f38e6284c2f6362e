"""A run's number formats: chosen by the machine once, when the run begins, and stored."""

import pytest

from gagpo.distributed.ranks import Ranks
from gagpo.model import chosen_format
from gagpo.model.chosen_format import native_bfloat16
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.settings.formats import formats_of, with_formats_of
from gagpo.sweeps.status import _changes
from gagpo.training.events import FormatsChosen, WarningIssued
from gagpo.training.formats import choose_formats
from gagpo.training.launch import new_run
from gagpo.training.trainer import train


@pytest.fixture
def cpu(monkeypatch):
    """Make this CPU, and models of any width, one that multiplies bfloat16 natively, or one that does not."""

    def become(native):
        native_bfloat16.cache_clear()
        monkeypatch.setattr(chosen_format, "TRAINING_WIDTH", 1)
        monkeypatch.setattr(chosen_format, "_of_cpu", lambda: (native, "this CPU is new" if native else "it is old"))

    yield become
    native_bfloat16.cache_clear()


def run_to(folder, iterations, events):
    folder.change([f"training.iterations={iterations}"])
    train(folder, events.append, quiet=True)
    return folder


@pytest.mark.parametrize(("begun_native", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_a_run_keeps_its_format_on_a_machine_of_another_kind(corridor, tmp_path, cpu, begun_native, dtype):
    config = corridor(evaluation={"before": False, "splits": []}, training={"iterations": 1, "ema": False})
    cpu(begun_native)
    events = []
    train(RunFolder.create(tmp_path / "runs" / "corridor", load(config)), events.append, quiet=True)
    chosen = [str(event) for event in events if isinstance(event, FormatsChosen)]
    assert len(chosen) == 1 and dtype in chosen[0] and ("new" if begun_native else "old") in chosen[0]
    assert "auto" not in (tmp_path / "runs" / "corridor" / "config.yaml").read_text().split("dtype: ")[1][:10]

    cpu(not begun_native)
    folder = RunFolder.open(tmp_path / "runs" / "corridor")
    before = formats_of(folder.settings)
    assert before["training.dtype"] == dtype
    events.clear()
    run_to(folder, 2, events)
    assert not [event for event in events if isinstance(event, FormatsChosen)]
    assert formats_of(RunFolder.open(folder.path).settings) == before
    assert [row["iteration"] for row in folder.metrics()] == [1, 2]


def test_auto_and_sweeps_know_a_run_that_another_machine_began(corridor, tmp_path, cpu):
    config = corridor()
    folder = RunFolder.create(tmp_path / "corridor", load(config, ["name=corridor"]))
    cpu(True)
    choose_formats(folder, Ranks())
    assert formats_of(folder.settings)["training.dtype"] == "bfloat16"
    cpu(False)
    assert new_run(config, ["name=corridor"], tmp_path, auto=True).path == folder.path
    again = RunFolder.open(folder.path)
    assert _changes(again, with_formats_of(folder.settings, again.settings)) == []
    other = new_run(config, ["name=corridor", "training.dtype=float32"], tmp_path, auto=True)
    assert other.path != folder.path


def test_an_explicit_bfloat16_is_kept_and_its_cost_said_once(corridor, tmp_path, cpu, monkeypatch):
    monkeypatch.setattr("gagpo.training.formats.slowdown", lambda device: 41.0)
    cpu(False)
    settings = load(corridor(), ["training.dtype=bfloat16"])
    folder = RunFolder.new(tmp_path / "run", settings)
    warnings = [str(event) for event in choose_formats(folder, Ranks()) if isinstance(event, WarningIssued)]
    assert len(warnings) == 1 and "training.dtype=bfloat16" in warnings[0] and "41 times" in warnings[0]
    assert formats_of(folder.settings)["training.dtype"] == "bfloat16"
    with folder.locked():
        folder.write()
    (resumed,) = choose_formats(RunFolder.open(folder.path), Ranks())
    assert str(resumed).endswith("a resumed run keeps its format")
