"""What CI runs, with a ``make`` that does as it is told: which failures bind; the last line tells what was left out."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TARGETS = ["test", "test-interop", "test-scale", "test-slow", "test-pages", "test-real", "test-vllm", "test-doors"]


@pytest.fixture
def ci(tmp_path):
    """Run the script beside a ``make`` that fails for some targets; gives its status, lines, and the targets it ran."""
    if shutil.which("timeout") is None:
        pytest.skip("no timeout(1)")
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    programs = tmp_path / "bin"
    programs.mkdir()

    def run(failing=(), hours=None, binding=None, deaf=None, replaced=()):
        """``deaf``: a target that goes on after SIGTERM. ``replaced``: parts of the script and their replacements."""
        log = tmp_path / "ran"
        log.write_text("")
        script = f'#!/bin/sh\necho "$1" >> {log}\nbasename "$PWD" >> {tmp_path}/folders\n'
        script += f'case " {" ".join(failing)} " in *" $1 "*) exit 2;; esac\n'
        script += f'[ "$1" != {deaf} ] || {{ trap "" TERM; sleep 50; }}\n'
        for name, text in {"make": script, "chromium": "#!/bin/sh\n", "chromedriver": "#!/bin/sh\n"}.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        text = (ROOT / ".ci" / "run").read_text()
        if hours is not None:
            text = text.replace("last=$((80 * 60))", f"last={hours}")
        for segment, other in replaced:
            assert segment in text
            text = text.replace(segment, other)
        if binding is not None:
            text = re.sub(r"^binding=\(.*\)$", f"binding=({binding})", text, flags=re.MULTILINE)
        (tmp_path / ".ci" / "run").write_text(text)
        environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", ".ci/run"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stdout.splitlines(), log.read_text().split()

    return run


def test_everything_runs_in_its_order_and_nothing_is_left_out(ci):
    status, lines, ran = ci()
    assert status == 0 and lines[-1] == "left out: nothing"
    assert [name for name in ran if not name.endswith("-environment")] == TARGETS


def test_it_tests_in_a_folder_called_gagpo(ci, tmp_path):
    (tmp_path / "file").write_text("")
    for tokens in (["init", "-q"], ["add", "file"], ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "c"]):
        subprocess.run(["git", *tokens], cwd=tmp_path, check=True)
    status, _, _ = ci()
    assert status == 0 and set((tmp_path / "folders").read_text().split()) == {"gagpo"}


APART = ["test-interop", "test-scale", "test-real", "test-vllm", "test-doors"]
(LISTED,) = re.findall(r"^binding=\((.*)\)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
BINDING = LISTED.split()


def test_only_stages_that_have_an_environment_of_their_own_are_listed():
    assert set(BINDING) <= set(APART)


@pytest.mark.parametrize("target", sorted({*TARGETS} - {*APART} | {*BINDING}))
def test_a_failure_binds(ci, target):
    status, lines, ran = ci(failing=[target])
    assert status == 2 and ran[-1] == target and lines[-2].startswith("FAILED with status 2")


@pytest.mark.parametrize("target", APART)
def test_a_failure_in_an_environment_of_its_own_binds_where_it_is_listed(ci, target):
    status, lines, ran = ci(failing=[target], binding=target)
    assert status == 2 and ran[-1] == target
    assert lines[-2].startswith("FAILED with status 2") and lines[-1] == "left out: nothing"


@pytest.mark.parametrize("target", APART)
def test_a_failure_in_an_environment_of_its_own_is_told_otherwise(ci, target):
    status, lines, ran = ci(failing=[target], binding=" ".join({*APART} - {target}))
    assert status == 0 and [name for name in ran if not name.endswith("-environment")] == TARGETS
    assert lines[-1] == f"left out:  {target} (FAILED, see above)"


def test_what_is_left_out_is_the_last_line(ci):
    status, lines, ran = ci(hours=600)
    assert status == 0 and "test-slow" not in ran and "test-interop" in ran
    assert lines[-1].startswith("left out:") and all(
        name in lines[-1] for name in ("test-slow", "test-pages", "test-vllm")
    )
    assert "test-slow (needs 900 s" in lines[-1]


def test_a_stage_that_goes_on_after_sigterm_is_stopped_when_the_time_is_over(ci):
    short = [('stage test-slow 900 "$last"', "stage test-slow 1 900"), ("timeout -k 30", "timeout -k 1")]
    status, lines, ran = ci(hours=10, deaf="test-slow", replaced=short)
    assert status == 0 and ran[-1] == "test-slow"
    assert re.search(r"test-slow \(stopped after \d+ s, when the time was over\)", lines[-1])


def test_an_environment_that_cannot_be_made_is_told(ci):
    status, lines, ran = ci(failing=["test-vllm-environment"], binding="test-vllm")
    assert status == 0 and "test-vllm" not in ran
    assert lines[-1] == "left out:  test-vllm (its environment could not be made)"
