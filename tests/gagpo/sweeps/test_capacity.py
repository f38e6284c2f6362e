"""How many runs a machine holds: cores, memory and GPUs, capped by --jobs."""

import subprocess

import pytest

from gagpo.base import memory
from gagpo.planning.plan import DEFAULT_GUESS
from gagpo.settings import SettingsError, load
from gagpo.sweeps import capacity
from gagpo.sweeps.capacity import Capacity, Estimator, Need, at_once, capacity_here, threads_of
from tests.rejections import rejects

GB = 1e9


@pytest.mark.parametrize(
    ("machine", "need", "count"),
    [
        (Capacity(4, 100 * GB), Need(1, GB), 4),  # cores
        (Capacity(4, 2.5 * GB), Need(1, GB), 2),  # memory
        (Capacity(4, 100 * GB, jobs=2), Need(1, GB), 2),
        (Capacity(1, 100 * GB, jobs=3), Need(1, GB), 3),  # the user knows how many cores there are
        (Capacity(4, 2.5 * GB, jobs=4), Need(1, GB), 2),  # but memory that is not there ends a run
        (Capacity(2, 100 * GB), Need(4, GB), 1),  # a run that fits nowhere runs alone
        (Capacity(4, 0.5 * GB), Need(1, GB), 1),
        (Capacity(4, 100 * GB), Need(1, None), 1),  # unknown memory
        (Capacity(4, 100 * GB, jobs=2), Need(1, None), 2),
        (Capacity(16, 100 * GB, [80 * GB]), Need(1, GB, 1, 20 * GB), 4),  # several runs share a GPU
        (Capacity(16, 100 * GB, [80 * GB, 80 * GB]), Need(1, GB, 1, 50 * GB), 2),
        (Capacity(16, 100 * GB, [80 * GB, 80 * GB]), Need(1, GB, 1, 30 * GB), 4),
        (Capacity(16, 100 * GB, [80 * GB] * 4), Need(1, GB, 2, 60 * GB), 2),  # two GPUs each
        (Capacity(16, 100 * GB, [80 * GB, 80 * GB]), Need(1, GB, 1, 30 * GB, gpu=1), 2),  # cuda:1
        (Capacity(16, 100 * GB, [80 * GB]), Need(1, GB, 1, 90 * GB), 1),
    ],
)
def test_as_many_runs_as_fit(machine, need, count):
    assert at_once(machine, [need] * 10) == count
    assert machine.shares == []  # it was only tried


def test_runs_are_spread_over_gpus_and_see_only_theirs(monkeypatch):
    monkeypatch.delenv(capacity.VISIBLE, raising=False)
    machine = Capacity(16, 100 * GB, [80 * GB, 80 * GB])
    need = Need(1, GB, 1, 30 * GB)
    shares = [machine.take(need) for _ in range(5)]
    assert [share and share.gpus for share in shares] == [(0,), (1,), (0,), (1,), None]
    assert [machine.variables(share) for share in shares[:2]] == [{capacity.VISIBLE: "0"}, {capacity.VISIBLE: "1"}]
    machine.give_back(shares[1])
    assert machine.take(need).gpus == (1,)
    monkeypatch.setenv(capacity.VISIBLE, "4,7")  # of the machine's GPUs this process sees two
    assert machine.variables(shares[1]) == {capacity.VISIBLE: "7"}
    assert Capacity(4, GB, [80 * GB]).variables(shares[0]) == {}
    assert machine.variables(machine.take(Need(1, GB, 1, 1.0, gpu=0))) == {}


def test_a_run_on_a_cpu_is_estimated_as_plan_does(corridor):
    settings = load(corridor())
    need = Estimator(Capacity(2, 100 * GB)).need(settings)
    assert need.cores == 1 and 0.5 * GB < need.memory < 2 * GB and need.gpus == 0


def test_an_expert_is_asked_once_for_all_runs_of_a_sweep(corridor, monkeypatch):
    calls = []
    monkeypatch.setattr("gagpo.planning.plan.guess_of", lambda settings: calls.append(settings) or DEFAULT_GUESS)
    estimator = Estimator(Capacity(2, 100 * GB))
    needs = [estimator.need(load(corridor(), [f"algorithm.credit={name}"])) for name in ("gagpo", "grpo", "gagpo")]
    assert len(calls) == 1 and needs[0] == needs[1]


def test_a_model_that_is_not_here_is_unknown_and_says_why(corridor):
    need = Estimator(Capacity(2, 100 * GB)).need(load(corridor(), ["model=some/where", "sft=null"]))
    assert need.memory is None and "some/where" in need.why


def test_a_run_without_threads_gets_its_part_of_the_cores(corridor):
    settings = load(corridor(), ["threads=0"])
    assert [threads_of(settings, Capacity(8, GB, jobs=jobs)) for jobs in (None, 2, 16)] == [8, 4, 1]
    assert threads_of(load(corridor(), ["threads=0", "device=cuda"]), Capacity(16, GB)) == capacity.GPU_CORES
    assert threads_of(load(corridor(), ["threads=3"]), Capacity(16, GB, jobs=2)) == 3


def test_gpus_are_looked_for_in_another_process_and_only_if_used(corridor, monkeypatch):
    calls = []

    def run(command, **_):
        calls.append(command)
        return subprocess.CompletedProcess(command, 0, "a warning\n[80000000000, 40000000000]\n")

    monkeypatch.setattr(subprocess, "run", run)
    cpu, gpu = load(corridor()), load(corridor(), ["device=cuda"])
    assert capacity_here([cpu], 2).gpus == [] and not calls
    assert capacity_here([cpu, gpu], 2).gpus == pytest.approx([76 * GB, 38 * GB]) and len(calls) == 1
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess((), 0, "no list"))
    with rejects(SettingsError, "no GPU"):
        capacity_here([gpu], 2)


def test_available_memory_heeds_the_control_group(tmp_path, monkeypatch):
    assert memory.available_memory() > 0
    monkeypatch.setattr(memory, "CONTROL_GROUP", tmp_path)
    free = memory.available_memory()
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("2500000\n")
    (tmp_path / "memory.stat").write_text("anon 9\ninactive_file 1000000\n")
    assert memory.available_memory() == 1_500_000 < free
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_memory() > 1_500_000
