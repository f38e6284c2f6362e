"""Spans exclude nested spans, and a profile covers an iteration."""

import json

import pytest
from typer.testing import CliRunner

from gagpo.cli.main import app
from gagpo.model import spans
from gagpo.planning.profile import PARTS, profile
from gagpo.settings import load


def test_a_span_excludes_nested_spans_and_is_measured_in_a_profile_only(monkeypatch):
    seconds = iter([0.0, 1.0, 4.0, 10.0])
    monkeypatch.setattr(spans.time, "perf_counter", lambda: next(seconds))
    monkeypatch.setattr(spans.time, "process_time", lambda: 0.0)
    with spans.Profile().running() as running, spans.span("outer"), spans.span("inner"):
        pass
    with spans.span("outside"):
        pass
    assert running.wall == {"inner": 3.0, "outer": 7.0} and running.processor == {"inner": 0.0, "outer": 0.0}


def test_a_profile_covers_an_iteration_and_leaves_nothing_behind(corridor, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = corridor(training={"minibatches": 2}, algorithm={"correction": "recompute"})
    before = sorted(tmp_path.iterdir())
    shares = profile(load(config), 2)
    assert sorted(tmp_path.iterdir()) == before
    assert list(shares.wall) == list(PARTS) and len(shares.metrics) == 2
    assert all(shares.wall[segment] > 0 for segment in PARTS), "every span still occurs"
    measured = sum(row["seconds_env"] + row["seconds_generate"] + row["seconds_train"] for row in shares.metrics) / 2
    assert sum(shares.wall.values()) == pytest.approx(measured, rel=0.5)
    text = "\n".join(shares.table("corridor").lines(120))
    assert all(segment in text for segment in PARTS)


def test_the_command_prints_a_table_and_one_object(corridor):
    result = CliRunner().invoke(app, ["profile", str(corridor()), "--iterations", "1", "--json"])
    assert result.exit_code == 0, result.output
    *_, last = result.output.strip().splitlines()
    assert set(json.loads(last)) == {"seconds", "processor_seconds", "metrics"}
    assert "backward" in result.output and "response tokens per second" in result.output
