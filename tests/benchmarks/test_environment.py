"""The benchmark measures what it says; how fast things are is not a test's business."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from benchmarks.environment import bench, footprint, table
from gagpo.envs.lookup import find_spec, portable
from tests.rejections import rejects

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"


@pytest.fixture(scope="module")
def report() -> dict:
    return bench(CORRIDOR, seconds=0.3, workers=(0, 1, 2), reference_kwargs={"max_turns": 7}, split="test")


def test_every_number_is_there_and_positive(report: dict) -> None:
    for side in ("environment", "reference"):
        numbers = report[side]
        for name in ("steps_per_second", "resets_per_second", "first_reset_ms", "cold_start_seconds"):
            assert numbers[name] > 0, name
        assert numbers["tasks"] == 4
        assert set(numbers["pool"]) == {"0", "1", "2"}
        assert numbers["pool"]["0"]["ratio"] == 1.0
        assert all(value > 0 for pool in numbers["pool"].values() for value in pool.values())
    assert report["reference"]["kwargs"] == {"max_turns": 7}
    assert report["machine"]["cores"] >= 1


def test_the_report_is_json_and_a_table(report: dict) -> None:
    assert json.loads(json.dumps(report)) == report
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table(report))
    text = console.export_text()
    assert f"{report['environment']['steps_per_second']:,.0f}" in text
    assert "max_turns=7" in text and "pool of 2" in text and "per processor second" in text


HEAVY = """
import mmap

import gymnasium
from gagpo.envs.testing import CorridorEnv

class HeavyEnv(CorridorEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.weight = mmap.mmap(-1, 3_000_000)  # pages of its own: a heap may have 3 MB to spare
        for _ in range(30):
            self.weight.write(b"x" * 100_000)

gymnasium.register("Heavy-v0", "heavy:HeavyEnv", disable_env_checker=True)
"""


def test_memory_is_counted_per_environment(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "heavy.py").write_text(HEAVY, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    numbers = footprint(portable(find_spec("heavy:Heavy-v0")), {}, ["door-00", "door-01"], 0, 0.0)
    assert 2.8 < numbers["mb_per_environment"] < 3.3


def test_arguments_are_checked() -> None:
    with rejects(ValueError, key="seconds"):
        bench(CORRIDOR, seconds=0)
    with rejects(ValueError, key="seconds"):
        bench(CORRIDOR, workers=[])
    with rejects(ValueError, "lunch"):
        bench(CORRIDOR, {"split": "lunch"}, seconds=0.1)
