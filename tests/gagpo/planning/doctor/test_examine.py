"""Checks run in processes of their own, so a failing one does not stop the others."""

import json
import os
from pathlib import Path

import pytest
import typer

from gagpo.base import child
from gagpo.base.errors import InvalidArgument
from gagpo.planning.doctor import examine as examination
from gagpo.planning.doctor import processes
from gagpo.planning.doctor.examine import conclusion, examine
from gagpo.planning.doctor.machine import Finding, Machine, worst_of
from tests.gagpo.planning.doctor import broken


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Processes take minutes to start on a busy machine."""
    monkeypatch.setattr(processes, "START_SECONDS", 600.0)


def children():
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if b"gagpo.planning.doctor.rank" in (place / "cmdline").read_bytes():
                found.append(int((place / "stat").read_text().rpartition(")")[2].split()[1]))
        except OSError:
            continue
    return [parent for parent in found if parent == os.getpid()]


@pytest.mark.slow
def test_a_healthy_machine_passes_every_check(tmp_path):
    heard = []
    findings = examine("cpu", runs=tmp_path, processes=2, report=heard.append)
    assert findings == heard and not children()
    assert [finding.name for finding in findings if finding.verdict == "skipped"] == ["memory"]
    assert not [finding for finding in findings if finding.verdict == "failed"], findings
    found = {finding.name: finding for finding in findings}
    assert found["sharded update of 2"].values["apart"] < 1e-5 and "log probabilities of 2" in found
    assert found["learning"].values["after"] > found["learning"].values["before"] + 0.15
    json.dumps([vars(finding) for finding in findings])
    assert conclusion(findings).splitlines()[-1] == "no check failed"


@pytest.mark.slow
def test_a_check_that_raises_crashes_or_hangs_does_not_stop_the_others(monkeypatch):
    monkeypatch.setattr(processes, "CHECK_SECONDS", 3.0)
    findings = examine("cpu", alone=[broken.fine, broken.is_killed, broken.sleeps, broken.fine, broken.raises])
    assert [finding.verdict for finding in findings] == ["ok", "failed", "failed", "ok", "failed"]
    _, killed, hung, _, raised = (finding.summary for finding in findings)
    assert killed.startswith("was killed by SIGSEGV: ") and "the driver has fallen off the bus" in killed
    assert "has not answered in 3 s, in sleeps (broken.py:" in hung and "NCCL_DEBUG" in findings[2].advice
    assert raised == "RuntimeError: no kernel image is available" and not children()
    assert conclusion(findings) == "failed: is killed, sleeps, raises"


@pytest.mark.slow
def test_the_rank_that_failed_is_named(monkeypatch):
    monkeypatch.setattr(processes, "CHECK_SECONDS", 5.0)
    wanted = [broken.one_warns, broken.one_raises, broken.one_hangs, broken.fine]
    warned, raised, hung, fine = examine("cpu", alone=[], together=wanted, processes=2)
    assert (warned.verdict, warned.summary) == ("warning", "rank 1 of 2: seen by 1")
    assert [one["number"] for one in warned.values["ranks"]] == [1, 1]
    assert (raised.verdict, raised.summary) == ("failed", "rank 1 of 2: RuntimeError: no kernel image is available")
    assert hung.verdict == "failed" and set(hung.values["problems"]) == {"0", "1"}
    assert "in sleeps (broken.py:" in hung.values["problems"]["1"]
    assert "from gathered_bytes (ranks.py:" in hung.values["problems"]["0"]  # where the barrier waits
    assert (fine.verdict, fine.summary) == ("ok", "rank 0") and not children()


def test_ranks_that_cannot_be_started_are_reported_once(monkeypatch):
    monkeypatch.setattr(child, "_BOOT", "import sys; sys.exit('no such library')")
    (found,) = examine("cpu", alone=[], together=[broken.fine, broken.raises], processes=2)
    assert found.verdict == "failed"
    assert found.summary == "processes could not be started: rank 0 of 2: ended with status 1: no such library"


def test_several_processes_reject_a_single_named_gpu():
    with pytest.raises(InvalidArgument, match="name the device cuda, not cuda:1"):
        examine("cuda:1", processes=2)


def test_the_worst_finding_of_the_ranks_is_reported():
    fine, slow = Finding("ok", "fine"), Finding("warning", "slow", {"a": 1})
    assert worst_of([fine]) is fine
    assert worst_of([fine, slow]).summary == "rank 1 of 2: slow" and worst_of([slow, slow]).summary == "slow"
    assert worst_of([slow, Finding("failed", "broken")]).verdict == "failed"


def test_a_finding_is_shown_with_its_advice():
    lines = Finding("warning", "slow", {}, "buy another", "disk", 1.25).lines()
    assert lines[0] == "warning  disk                   slow (1.2 s)" and lines[1].strip() == "-> buy another"
    assert len(Finding("ok", "fast").lines()) == 1


def test_the_command_reports_failures_and_their_status(monkeypatch, capsys):
    from gagpo.cli.planning import doctor

    monkeypatch.setattr(examination, "run_checks", lambda *_: [Finding("failed", "x", name="disk"), Finding("ok", "y")])
    with pytest.raises(typer.Exit) as ended:
        doctor("cpu", "transformers", "float32", 1, Path(os.curdir), True, True)
    printed = capsys.readouterr().out.splitlines()
    assert ended.value.exit_code == 1 and "failed: disk" in printed
    record = json.loads(printed[-1])
    assert record["failed"] == ["disk"] and not record["ok"] and len(record["findings"]) == 2


@pytest.mark.slow
def test_a_process_ends_with_its_parent_even_during_a_check(tmp_path):
    crew = processes.CheckProcesses(Machine("cpu", "transformers", "float32", tmp_path), [broken.sleeps], 1)
    assert crew.start() == ""
    (started,) = crew._children
    started.pipe.close()
    assert started._process.wait(60) == 1
    crew.kill()
