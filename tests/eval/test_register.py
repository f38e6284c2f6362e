"""The register: whatever is logged or shown stands in it, and every place shows what it says."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from gagpo.data import Episode, Turn
from gagpo.eval import curves
from gagpo.eval.health import RULES
from gagpo.eval.report.report import write_report
from gagpo.eval.viewer.export import export
from gagpo.runs.register import REGISTER, SECTIONS, Display, find, metrics_in
from gagpo.training.events import IterationFinished
from gagpo.training.metrics import rollout_metrics

ROOT = Path(__file__).parents[2]


class AskedRow(dict):
    """A row that remembers which metrics were looked up in it."""

    def __init__(self):
        super().__init__(dict.fromkeys(REGISTER, 1.0))
        self.names = set()

    def __contains__(self, name):
        self.names.add(name)
        return super().__contains__(name)

    def __getitem__(self, name):
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name, default=None):
        self.names.add(name)
        return super().get(name, default)


def names(place):
    return [metric.name for metric in metrics_in(place)]


def test_every_metric_stands_in_it_once_with_unit_and_sentence():
    listed = [metric.name for section in SECTIONS.values() for metric in section]
    assert len(listed) == len(set(listed)) == len(REGISTER)
    assert all(metric.unit and metric.sentence.endswith(".") and metric.caption for metric in REGISTER.values())


def test_every_metric_is_logged_by_something():
    replicas = pytest.importorskip("gagpo.agents.engines.remote.replicas")
    sources = "".join(
        path.read_text(encoding="utf-8") for room in ("agents", "gagpo") for path in (ROOT / room).rglob("*.py")
    )
    counters = {f"engine_{field.name}" for field in dataclasses.fields(replicas.ServerCounters)}
    assert [name for name in REGISTER if f'"{name}"' not in sources and name not in counters] == []
    assert counters <= REGISTER.keys()


def test_the_rules_of_health_read_registered_metrics_alone():
    row = AskedRow()
    for rule in RULES:
        rule([row] * 20)
    assert {"zero_advantage_groups", "repeated_states"} <= row.names <= REGISTER.keys()


def test_the_trainers_line_shows_registered_metrics_alone():
    str(IterationFinished(dict.fromkeys(REGISTER, 1.0)))  # any other is a KeyError
    played = rollout_metrics([Episode("t", "k", "train", turns=[Turn("o", "r", "a")])])
    assert played.keys() <= REGISTER.keys()


def test_the_axes_of_curves_and_the_parts_of_time_are_metrics():
    assert set(curves.X_KEYS.values()) <= REGISTER.keys()
    assert {REGISTER[name].unit for name in names(Display.TIME)} == {"seconds"}


def test_the_viewer_gets_its_curves_from_the_register(tmp_path):
    run = tmp_path / "run"
    (run / "episodes").mkdir(parents=True)
    (run / "metrics.jsonl").write_text('{"iteration": 1, "success_rate": 0.5}\n')
    turn = {"observation": "o", "response": "r", "action": "a", "reward": 1.0}
    (run / "episodes" / "train-0001.jsonl").write_text(json.dumps({"task": "t", "turns": [turn]}) + "\n")
    export([run], tmp_path / "out")
    index = (tmp_path / "out" / "data" / "index.js").read_text()
    curves = json.loads(index[len("viewer.load(") : -len(");\n")])["curves"]
    assert [curve["name"] for curve in curves] == names(Display.VIEWER)
    assert {curve["name"] for curve in curves if curve["share"]} == {
        name for name in names(Display.VIEWER) if REGISTER[name].unit == "share"
    }
    pages = "".join(path.read_text() for path in (ROOT / "eval" / "viewer" / "page").glob("*.js"))
    assert set(re.findall(r"\brun\.metrics\.(\w+)", pages)) <= REGISTER.keys()


def test_the_report_explains_what_the_register_says(tmp_path, make_run):
    folder = make_run(tmp_path / "run", iterations=3)
    logged = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0]).keys()
    page = write_report(folder).read_text(encoding="utf-8")
    for name in logged - {"iteration"}:
        assert REGISTER[name].sentence.replace("'", "&#39;") in page, name


@pytest.mark.parametrize(("name", "unit"), [("engine_gap_3", "nats"), ("engine_gap", "nats"), ("of_somebody_else", "")])
def test_a_number_at_the_end_says_of_which_and_foreign_names_are_shown_as_they_are(name, unit):
    assert find(name).unit == unit
    assert find("of_somebody_else").caption == "of somebody else" and find("of_somebody_else").hint == ""
