"""Programs get few environment variables, cannot read each other's, and leave nothing on the disk."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")

from gagpo.base import separation
from gagpo.base.errors import InvalidArgument
from gagpo.envs.command import LONGEST_WORD
from gagpo.envs.program.command import MAX_OUTPUT, run
from gagpo.envs.program.variables import named, passed
from tests.envs.pool.faulty import gone, until
from tests.envs.program.programs import play, running, wait
from tests.rejections import rejects

ROOT = Path(__file__).parents[3]
SECRETS = ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "GAGPO_TEST_SECRET", "https_proxy")
SEEN = """
import os

def seen():
    with open("/proc/self/environ") as file:  # also what the process was started with
        started_with = {line.partition("=")[0] for line in file.read().split("\\0")}
    return started_with | set(os.environ)
"""
AGENT = """
from variables_seen import seen

async def play(task, client):
    await client.chat.completions.create(model="any", messages=[{"role": "user", "content": " ".join(seen())}])
    return 1
"""
needs_domains = pytest.mark.skipif(
    separation.version() < separation.SIGNALS_SINCE, reason="this system has no Landlock of version 6"
)


@pytest.fixture
def secrets(monkeypatch):
    for name in SECRETS:
        monkeypatch.setenv(name, "http://secret.invalid")
    monkeypatch.setenv("LC_TIME", "C")


@pytest.mark.parametrize("kind", ["command", "agent"])
def test_a_program_gets_few_variables_and_those_that_the_user_names(tmp_path, monkeypatch, secrets, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "variables_seen.py").write_text(SEEN)
    (tmp_path / "seeing.py").write_text(AGENT)
    source = "from variables_seen import seen\nchat(user(' '.join(seen())))\nprint('{\"reward\": 1}')\n"
    kwargs = {"command": "", "agent": "seeing:play"} if kind == "agent" else {}
    with running(tmp_path, source, environment=["GAGPO_TEST_SECRET"], **kwargs) as pool:
        first, end = play(pool, "ok")
    assert end.reward == 1.0
    names = set(first.observation.split())
    assert names & set(SECRETS) == {"GAGPO_TEST_SECRET"}
    assert {"PATH", "HOME", "LC_TIME", "TMPDIR", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "GAGPO_TASK_FILE"} <= names


def test_variables_that_cannot_be_passed_are_refused_by_name(tmp_path, monkeypatch):
    assert named("A, B_2 C") == named(["A", "B_2", "C"]) == ["A", "B_2", "C"]
    for wrong, value in (
        (["A=1"], "got 'A=1'"),
        ([""], "got ''"),
        ([3], "got 3"),
        ("OPENAI_API_KEY", "gagpo sets OPENAI_API_KEY"),
        ("TMPDIR", "gagpo sets TMPDIR"),
    ):
        with rejects(InvalidArgument, value, key="environment"):
            named(wrong)
    monkeypatch.setenv("GAGPO_TEST_LONG", "\U0001f600" * (LONGEST_WORD // 4))
    for name, fault in (("GAGPO_TEST_MISSING", "not set"), ("GAGPO_TEST_LONG", "too long")):
        with rejects(InvalidArgument, name, fault, key="environment"):
            passed([name])
        with rejects(InvalidArgument, name, fault, key="environment"):
            running(tmp_path, "", environment=name).__enter__()


THIEF = """
import signal

if TASK["id"] == "victim":
    open({pid!r}, "w").write(str(os.getpid()))
    chat(user("one"))
    chat(user("two"))
    print('{{"reward": 1}}')
else:
    chat(user("ready"))
    key_here, stolen, signalled = os.environ["OPENAI_API_KEY"], set(), 0
    for process in filter(str.isdecimal, os.listdir("/proc")):
        try:
            variables = open(f"/proc/{{process}}/environ").read().split("\\0")
            stolen |= {{line.partition("=")[2] for line in variables if line.startswith("OPENAI_API_KEY=")}}
        except OSError:
            pass
    for key in stolen - {{key_here}}:
        post("/reward", {{"reward": -7}}, key=key)
    for process in (int(open({pid!r}).read()), {trainer}):
        try:
            os.kill(process, 0)
            signalled += 1
        except PermissionError:
            pass
    print(json.dumps({{"reward": len(stolen) + 100 * signalled}}))
"""


@needs_domains
def test_a_program_cannot_use_the_key_of_another_nor_send_it_signals(tmp_path):
    source = THIEF.format(pid=str(tmp_path / "pid"), trainer=os.getpid())
    with running(tmp_path, source, rows=("victim", "thief")) as pool:
        pool.reset(0, "victim", 1)
        assert wait(pool).observation == "one"
        assert play(pool, "ok", task="thief", slot=1)[-1].reward == 1.0  # its own key
        pool.step(0, "ok")
        assert wait(pool).reward == 0.0
        pool.step(0, "ok")
        assert wait(pool).reward == 1.0


def test_a_program_writes_its_output_to_no_disk(tmp_path):
    source = """
import stat
chat(user("one"))
kinds = [stat.S_ISFIFO(os.fstat(number).st_mode) for number in (1, 2)]
print("x" * (8 << 20))
sys.stderr.write("y" * (8 << 20))
print(json.dumps({"reward": sum(kinds)}))
"""
    with running(tmp_path, source) as pool:
        assert play(pool, "ok")[-1].reward == 2.0


@pytest.mark.parametrize(
    ("script", "status", "output"),
    [
        ("exec >&- 2>&-; exit 3", 3, ""),  # it closes both
        ("sleep 1000 & echo 'ended'", 0, "ended\n"),  # its child holds them open
        ("yes & printf 'ended'; exit 4", 4, None),  # its child writes on
        (f"head -c {MAX_OUTPUT} /dev/zero; printf 'last'; kill -9 $$", -9, "\0" * (MAX_OUTPUT - 4) + "last"),
        ("printf '\\377'", 0, "\ufffd"),
    ],
)
def test_the_end_of_an_output_is_read_whoever_holds_it_open(script, status, output):
    code = """
import os, signal, sys
from gagpo.envs.program.command import run
os.setpgid(0, 0)
print(repr(run(["sh", "-c", sys.argv[1]])), flush=True)
os.killpg(0, signal.SIGKILL)  # also what it started
"""
    done = subprocess.run([sys.executable, "-c", code, script], cwd=ROOT, stdout=subprocess.PIPE, timeout=60)
    assert done.returncode == -signal.SIGKILL
    result = ast.literal_eval(done.stdout.decode())
    assert result[0] == status and result[2] == "" and output in (result[1], None)
    assert len(result[1]) <= MAX_OUTPUT


def test_a_command_that_cannot_be_started_is_an_error_of_the_system():
    with pytest.raises(OSError, match="no-such-program"):
        run(["/no-such-program"])


LITTER = """
import tempfile
chat(user(os.environ["TMPDIR"]))
assert tempfile.gettempdir() == os.environ["TMPDIR"]
open(tempfile.mkdtemp() + "/file", "w").write("x")
place = os.environ["TMPDIR"]
for _ in range(1100):  # deeper than Python's recursion limit
    os.mkdir("deep") if place is None else os.mkdir(place + "/deep")
    os.chdir("deep" if place is None else place + "/deep")
    place = None
os.mkdir(os.environ["TMPDIR"] + "/closed", 0)
"""


@pytest.mark.parametrize("end", ["print('{\"reward\": 1}')", "os.kill(os.getppid(), 9)\ntime.sleep(1000)"])
def test_the_scratch_folder_of_a_program_is_removed(tmp_path, end):
    with running(tmp_path, LITTER + end) as pool:
        pool._max_restarts = 0
        pool.reset(0, "a", 1)
        folder = Path(wait(pool).observation)
        assert folder.is_dir() and folder.stat().st_mode & 0o077 == 0
        pool.step(0, "ok")
        wait(pool)
        until(lambda: not folder.exists(), "the removal")
        assert folder.parent.is_dir()
    assert not folder.parent.exists()


def test_the_scratch_folders_of_a_killed_trainer_are_removed(tmp_path):
    code = """
import time
from pathlib import Path
from tests.envs.program.programs import running, wait
with running(Path.cwd(), "chat(user(os.environ['TMPDIR'] + ' ' + str(os.getpid())))") as pool:
    pool.reset(0, "a", 1)
    print(wait(pool).observation, flush=True)
    time.sleep(1000)
"""
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True
    ) as trainer:
        folder, program = trainer.stdout.readline().split()
        assert Path(folder).is_dir()
        trainer.kill()
    until(lambda: gone(int(program)) and not Path(folder).parent.exists(), "the end of the program and its folder")


SHARES = """
import mmap, multiprocessing.shared_memory as shared
chat(user("one"))
size, chunk = 400 << 20, bytes(1 << 20)
if TASK["id"] == "memfd":  # open, but not mapped
    number = os.memfd_create("x")
    for _ in range(size >> 20):
        os.write(number, chunk)
elif TASK["id"] == "anonymous":
    memory = mmap.mmap(-1, size)
    for start in range(0, size, 1 << 20):
        memory[start : start + (1 << 20)] = chunk
elif TASK["id"] == "file":  # left behind, closed
    with open({path!r}, "wb") as file:
        for _ in range(size >> 20):
            file.write(chunk)
            file.flush()
            time.sleep(0.002)
elif TASK["id"] == "little":
    memory = mmap.mmap(-1, 50 << 20)
    for _ in range(2):  # both use the same memory
        if os.fork() == 0:
            memory[:] = bytes(50 << 20)
            time.sleep(1)
            os._exit(0)
    os.wait(), os.wait()
if TASK["id"] != "little":
    time.sleep(30)
print('{{"reward": 1}}')
"""


def test_shared_memory_counts_once(tmp_path):
    path = f"/dev/shm/gagpo-test-{os.getpid()}"
    rows = ("memfd", "anonymous", "file", "little")
    try:
        with running(tmp_path, SHARES.format(path=path), rows, memory=120) as pool:
            pool._max_restarts = 0
            ends = {name: play(pool, "ok", task=name)[-1] for name in rows}
    finally:
        Path(path).unlink(missing_ok=True)
    for name in ("memfd", "anonymous", "file"):
        assert "took more memory than its limit" in ends[name].error, name
    assert ends["little"].reward == 1.0
