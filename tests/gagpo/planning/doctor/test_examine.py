"""Steps in processes of their own: whatever one does, the others are taken, and the report says what it did."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from gagpo.base.errors import InvalidArgument
from gagpo.base.interpreter import command
from gagpo.planning.doctor import processes, steps
from gagpo.planning.doctor.examine import conclusion, examine
from gagpo.planning.doctor.machine import DoctorFinding, Machine, worst_of
from gagpo.planning.doctor.rank import described, taken
from gagpo.planning.doctor.steps import STEPS, Step, steps_for
from tests.gagpo.planning.doctor import broken

ALONE = {"versions", "host", "disk", "cards", "peer access", "device", "weights", "engine parity", "memory", "speed"}


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """On a machine that does much else, processes take minutes to start."""
    monkeypatch.setattr(processes, "START_SECONDS", 600.0)


def step_of(check, together=False, seconds=300.0):
    return Step(check.__name__, f"{check.__module__}:{check.__qualname__}", seconds, together)


def children():
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if b"gagpo.planning.doctor.rank" in (place / "cmdline").read_bytes():
                found.append(place.name)
        except OSError:
            continue
    return found


def test_a_healthy_machine_passes_every_quick_step():
    heard = []
    findings = examine("cpu", learn=False, report=heard.append, minutes=60)
    assert findings == heard and {finding.name for finding in findings} == ALONE
    assert all(finding.ok for finding in findings), findings
    assert {finding.name for finding in findings if finding.verdict == "left out"} == {"cards", "peer access"}
    json.dumps([vars(finding) for finding in findings])
    assert conclusion(findings).splitlines()[-1] == "all is well" and not children()


def test_a_step_that_raises_crashes_or_hangs_ends_no_other():
    wrong = [broken.raises, broken.is_killed, broken.sleeps, broken.leaves]
    wanted = [step_of(broken.fine), *(step_of(check) for check in wrong), step_of(broken.fine)]
    wanted[3] = replace(wanted[3], seconds=1.0)
    findings = examine("cpu", steps=wanted, minutes=60)
    assert [finding.verdict for finding in findings] == ["ok", *["failed"] * 4, "ok"]
    raised, killed, hung, left = (finding.summary for finding in findings[1:5])
    assert raised == "RuntimeError: no kernel image is available"
    assert killed.startswith("was killed by SIGSEGV: ") and "the driver has fallen off the bus" in killed
    assert "has not answered in 1 s, in sleeps (broken.py:" in hung and "NCCL_DEBUG" in findings[3].advice
    assert left == "ended with status 3: so long"
    assert not children()
    assert conclusion(findings) == "failed: raises, is_killed, sleeps, leaves"


@pytest.mark.slow
def test_of_two_ranks_the_one_that_went_wrong_is_named():
    wanted = [broken.one_warns, broken.one_raises, broken.one_hangs, broken.fine]
    made = [step_of(check, True, 2.0 if check is broken.one_hangs else 300.0) for check in wanted]
    warned, raised, hung, fine = examine("cpu", steps=made, processes=2, minutes=60)
    assert (warned.verdict, warned.summary) == ("warning", "rank 1 of 2: seen by 1")
    assert [one["number"] for one in warned.values["ranks"]] == [1, 1]
    assert (raised.verdict, raised.summary) == ("failed", "rank 1 of 2: RuntimeError: no kernel image is available")
    assert hung.verdict == "failed" and set(hung.values["problems"]) == {"0", "1"}
    assert "in sleeps (broken.py:" in hung.values["problems"]["1"]
    assert "from gathered_bytes (ranks.py:" in hung.values["problems"]["0"]  # where the barrier waits for the other
    assert (fine.verdict, fine.summary) == ("ok", "rank 0") and not children()


@pytest.mark.slow
def test_two_ranks_without_cards_take_every_step(tmp_path):
    """The code that runs with cards, over gloo."""
    findings = examine("cpu", processes=2, runs=tmp_path, learn=False, minutes=60)
    found = {finding.name: finding for finding in findings}
    assert list(found) == [step.name for step in steps_for(2, learn=False)]
    assert all(finding.ok for finding in findings), [finding for finding in findings if not finding.ok]
    here = {"weights by nccl", "weights by ipc", "cards", "peer access"}
    assert here <= {finding.name for finding in findings if finding.verdict == "left out"} <= {*here, "weights by file"}
    assert abs(found["memory of a rank"].values["off"]) < 0.25
    assert found["sharded update"].values["apart"] < 1e-5 and found["weights gathered"].values["buckets"] > 5
    json.dumps([vars(finding) for finding in findings])


def test_steps_of_ranks_are_left_out_once_they_could_not_be_started(monkeypatch):
    monkeypatch.setattr(
        processes, "module_command", lambda *_: command("-c", "import sys; sys.exit('no such library')")
    )
    first, second = examine("cpu", steps=[step_of(broken.fine, True), step_of(broken.raises, True)], processes=2)
    assert first.verdict == "failed" and second.verdict == "left out"
    assert first.summary.startswith("its processes could not be started: rank 0 of 2: ended with status 1: no such")


def test_more_ranks_than_cards_are_told_at_their_start(monkeypatch):
    (found,) = examine("cuda", steps=[step_of(broken.fine, True)], processes=2)
    assert found.verdict == "failed" and "2 processes and" in found.summary and "say --processes" in found.summary


def test_what_begins_after_the_minutes_is_left_out():
    findings = examine("cpu", steps=[step_of(broken.fine)] * 2, minutes=1e-9)
    assert [finding.verdict for finding in findings] == ["left out", "left out"]
    assert findings[1].summary == "the 1e-09 minutes are over: say --minutes 2e-09"


@pytest.mark.parametrize("wrong", [{"processes": 0}, {"minutes": 0.0}, {"processes": 2, "device": "cuda:1"}], ids=str)
def test_what_cannot_be_examined_is_refused(wrong):
    with pytest.raises(InvalidArgument):
        examine(**wrong)


def test_the_order_has_every_step_once_and_each_has_a_time():
    assert len({step.name for step in STEPS}) == len(STEPS)
    assert all(0 < step.seconds <= 300 and callable(step.load()) for step in STEPS)
    assert {step.name for step in steps_for(1, learn=False)} == ALONE
    assert steps_for(1, learn=True)[-1].name == "learning" and steps_for(8, learn=True) == list(STEPS)


def test_the_worst_rank_speaks_for_all():
    fine, slow = DoctorFinding("x", "ok", "fine"), DoctorFinding("x", "warning", "slow", {"a": 1})
    assert worst_of([fine]) is fine
    assert worst_of([fine, slow]).summary == "rank 1 of 2: slow" and worst_of([slow, slow]).summary == "slow"
    assert worst_of([slow, replace(fine, verdict="failed")]).verdict == "failed"
    out = DoctorFinding("x", "left out", "no cards")
    assert worst_of([out, out]).verdict == "left out"


def test_a_finding_is_shown_with_what_to_do():
    lines = DoctorFinding("disk", "warning", "slow", {}, "buy another", 1.25).lines()
    assert lines[0] == "warning  disk                   slow (1.2 s)" and lines[1].strip() == "-> buy another"
    assert len(DoctorFinding("disk", "ok", "fast").lines()) == 1


def test_an_answer_is_a_finding_or_an_error(tmp_path):
    machine = Machine("cpu", "transformers", "float32", tmp_path)
    assert taken(step_of(broken.fine), machine)["finding"]["verdict"] == "ok"
    assert taken(step_of(broken.raises), machine) == {"error": "RuntimeError: no kernel image is available"}
    assert taken(Step("gone", "gagpo.planning.doctor.host:nothing"), machine)["error"].startswith("AttributeError")
    assert described(ValueError("x" * 1000)) == "ValueError: " + "x" * 300


def test_a_place_in_the_code_is_read_from_its_stack():
    assert processes.place_in("nothing") == "and does not say where it is"


def test_the_command_reports_failures_and_their_status(monkeypatch, capsys):
    from gagpo.cli.models import doctor

    made = (step_of(broken.fine), step_of(broken.raises), step_of(broken.one_warns))
    monkeypatch.setattr(steps, "STEPS", made)
    with pytest.raises(typer.Exit) as ended:
        doctor("cpu", "transformers", "float32", 1, Path(os.curdir), 60.0, True, True)
    printed = capsys.readouterr().out.splitlines()
    assert ended.value.exit_code == 1 and "failed: raises" in printed
    record = json.loads(printed[-1])
    assert record["failed"] == ["raises"] and not record["ok"] and len(record["findings"]) == 3
    assert record["warnings"] == [] and record["left_out"] == []
    assert record["findings"][1]["summary"] == "RuntimeError: no kernel image is available"


def test_the_doctors_processes_end_with_whoever_started_them(tmp_path):
    """Its input ends, and so does a process, in the middle of a step."""
    crew = processes.StepProcesses(Machine("cpu", "transformers", "float32", tmp_path), 1)
    crew.take(step_of(broken.fine), 600)
    (one,) = crew._running
    crew._tell(one, json.dumps({"number": 9, "step": vars(step_of(broken.sleeps))}))
    one.process.stdin.close()
    assert one.process.wait(60) == 1
    crew._kill()
