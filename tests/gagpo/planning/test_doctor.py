"""The doctor finds every kind of fault; GPUs and other ranks are fakes."""

import json
import os
import subprocess
import sys
import time
import types

import pytest
import torch
import typer

from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.distributed.ranks import Ranks
from gagpo.envs.offers import health_checks
from gagpo.model.chosen_format import ChosenFormats
from gagpo.planning import doctor
from gagpo.planning.doctor import Finding, Machine, device_of, examine, worst_of
from tests.rejections import rejects


@pytest.fixture
def machine(tmp_path):
    return Machine("cpu", "transformers", "float32", tmp_path)


class FakeRanks(Ranks):
    """Rank 0 of two, given the answer of the other one."""

    def __new__(cls, other):
        return object.__new__(cls)

    def __init__(self, other):
        super().__init__(0, 2, 0, 2)
        object.__setattr__(self, "other", other)

    def gathered(self, mine):
        return [mine, self.other]


def fine(machine):
    return Finding("ok", "fine", {"number": 1})


def raises(machine):
    raise RuntimeError("no kernel image\nis available")


def sleeps(machine):
    time.sleep(600)


def test_a_step_and_an_engine_of_this_machine_pass(machine):
    step, engine = examine(machine, checks=[doctor.check_training_step, doctor.check_engine])
    assert (step.verdict, step.name, engine.verdict) == ("ok", "training step", "ok")
    assert max(abs(step.values[name] / value - 1) for name, value in doctor.EXPECTED.items()) < 1e-5


def test_a_step_that_computes_something_else_is_found(machine, monkeypatch):
    honest = torch.optim.AdamW
    monkeypatch.setattr(torch.optim, "AdamW", lambda *parameters, lr, **more: honest(*parameters, lr=1.1 * lr, **more))
    assert doctor.check_training_step(machine).verdict == "failed"


def test_an_engine_that_keeps_its_old_weights_is_found(machine, monkeypatch):
    class Stale(TransformersEngine):
        def load_weights(self, tensors):
            self._clear_caches()

    def make_stale(options, model, tokenizer, dtype, **inputs):
        return Stale(model, tokenizer, dtype=dtype, own_weights=True)

    monkeypatch.setattr(doctor, "make_engine", make_stale)
    finding = doctor.check_engine(machine)
    assert finding.verdict == "failed" and finding.values["gap"] < 1e-3 < finding.values["gap_after_new_weights"]


def test_a_gpu_is_named_and_its_limits_are_said(machine, monkeypatch):
    gpu = types.SimpleNamespace(name="H100", major=9, uuid="A")
    memory = [79e9, 80e9]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: tuple(memory))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    machine.device, machine.ranks = "cuda:0", FakeRanks("B")
    check_device = doctor.check_device(machine)
    assert (check_device.verdict, check_device.summary) == (
        "ok",
        "H100, 80 GB; dtype auto: bfloat16 (assuming a GPU from Ampere on)",
    )
    memory[0], machine.dtype = 60e9, "bfloat16"
    old = ChosenFormats("float32", "float32", "Tesla T4 only emulates bfloat16")
    monkeypatch.setattr(doctor, "formats_for", lambda device: old)
    check_device = doctor.check_device(machine)
    assert check_device.verdict == "warning" and "20.0 GB of cuda:0" in check_device.advice
    assert "Tesla T4 only emulates bfloat16: leave training.dtype and engine.dtype at auto" in check_device.advice
    machine.ranks = FakeRanks("A")
    assert "another rank has it too" in doctor.check_device(machine).summary
    with rejects(InvalidArgument, "4 processes", "2 GPUs", key="--processes", advice="--processes 2"):
        device_of("cuda", Ranks(1, 4, 1, 4))
    with rejects(InvalidArgument, key="--device", advice="cuda:1"):
        device_of("cuda:1", Ranks(1, 2, 1, 2))


def test_a_cpu_without_bfloat16_is_said_and_only_asking_for_it_is_a_warning(machine, monkeypatch):
    old = ChosenFormats("float32", "float32", "this CPU has neither AVX512-BF16 nor AMX")
    monkeypatch.setattr(doctor, "formats_for", lambda device: old)
    monkeypatch.setattr(doctor, "slowdown", lambda device: 14.2)
    finding = doctor.check_device(machine)
    assert finding.verdict == "ok" and finding.values["bfloat16_slowdown"] == 14.2
    assert "float32 (this CPU has neither AVX512-BF16 nor AMX)" in finding.summary and "14.2 times" in finding.summary
    machine.dtype = "bfloat16"
    assert doctor.check_device(machine).verdict == "warning"


def test_a_host_with_few_resources_gets_advice(machine, monkeypatch, tmp_path):
    memory, cores = tmp_path / "memory.max", tmp_path / "cpu.max"
    memory.write_text("500000000\n")
    cores.write_text("100000 100000\n")
    (tmp_path / "memory.current").write_text("0\n")
    monkeypatch.setattr("gagpo.base.memory.CONTROL_GROUP", tmp_path)
    monkeypatch.setattr("gagpo.base.cores.CPU_LIMIT", cores)
    monkeypatch.setattr(doctor, "SHARED", tmp_path / "none")
    monkeypatch.setattr(doctor.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda _: (1024, 1024))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    machine.ranks = Ranks(0, 2, 0, 2)
    check_host = doctor.check_host(machine)
    assert check_host.verdict == "warning" and "0.5 GB of memory free, 1 cores" in check_host.summary
    tokens = ("container's memory limit", "--shm-size", "ulimit -n", "1 of 64 cores are available")
    assert all(word in check_host.advice for word in tokens)


def test_a_small_disk_gets_advice(machine, monkeypatch, tmp_path):
    machine.runs = tmp_path / "not" / "yet"
    monkeypatch.setattr(doctor, "DISK_GB", 1e9)
    check_disk = doctor.check_disk(machine)
    assert "a larger disk" in check_disk.advice


def test_a_check_that_raises_has_failed_and_the_next_one_runs(machine):
    received = []
    findings = examine(machine, received.append, [raises, fine])
    assert findings == received and [finding.verdict for finding in findings] == ["failed", "ok"]
    assert findings[0].summary == "RuntimeError: no kernel image"
    machine.ranks = FakeRanks(None)
    with rejects(GagpoError, "raises", "rank 0", "RuntimeError: no kernel image"):
        examine(machine, received.append, [raises, fine])


def test_a_check_that_hangs_is_ended_with_its_stack(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "CHECK_SECONDS", 0.1)
    with (tmp_path / "said").open("w") as messages:
        monkeypatch.setattr(sys, "stderr", messages)
        child = os.fork()
        if not child:
            try:
                examine(machine, checks=[sleeps])
            finally:
                os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert "in sleeps" in (tmp_path / "said").read_text()


def test_the_worst_finding_of_the_ranks_is_reported():
    ok, slow = Finding("ok", "fine"), Finding("warning", "slow", {"a": 1})
    assert worst_of([ok]) is ok
    assert worst_of([ok, slow]).summary == "rank 1 of 2: slow" and worst_of([slow, slow]).summary == "slow"
    assert worst_of([slow, Finding("failed", "broken")]).verdict == "failed"


def test_a_finding_is_shown_with_its_advice():
    lines = Finding("warning", "slow", {}, "buy another", "disk", 1.25).lines()
    assert lines[0] == "warning  disk                   slow (1.2 s)" and lines[1].strip() == "-> buy another"


def test_the_command_reports_failures_and_their_status(monkeypatch, capsys):
    from gagpo.cli.planning import doctor as command

    findings = [Finding("failed", "x", name="disk"), Finding("ok", "y")]
    monkeypatch.setattr(doctor, "examine", lambda *_: findings)
    threads = torch.get_num_threads()
    with pytest.raises(typer.Exit) as ended:
        command("cpu", as_json=True)
    torch.set_num_threads(threads)
    printed = capsys.readouterr().out.splitlines()
    assert ended.value.exit_code == 1 and "failed: disk" in printed
    record = json.loads(printed[-1])
    assert record["failed"] == ["disk"] and not record["ok"] and len(record["findings"]) == 2


@pytest.mark.slow
def test_two_ranks_pass_every_check(tmp_path):
    command = [sys.executable, "-m", "gagpo", "doctor", "--device", "cpu", "--processes", "2", "--json"]
    command += ["--runs", str(tmp_path)]
    ended = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    record = json.loads(ended.stdout.splitlines()[-1])
    assert record["ok"] and [finding["name"] for finding in record["findings"]] == [
        *("host", "disk", *health_checks(), "device", "training step", "engine")
    ]
