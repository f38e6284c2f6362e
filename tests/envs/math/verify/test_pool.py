"""Verifier processes: hostile answers do not delay others, nothing leaks, verdicts do not depend on order."""

import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from gagpo.base.child import Child, ChildFailed, ChildLate
from gagpo.envs.math.verify import worker
from gagpo.envs.math.verify.pool import VerifyPool
from gagpo.envs.math.verify.verifier import Verifier
from tests.rejections import rejects


def compared(pool, pairs):
    """Verdicts of (gold, prediction) pairs, by all workers in parallel."""
    with ThreadPoolExecutor(pool.workers) as threads:
        return list(threads.map(lambda pair: pool.compare(*pair), pairs))


REASONS = {"match", "mismatch", "no_answer", "unparsable", "timeout"}

HOSTILE = {
    "power tower": r"\boxed{9^{9^{9^{9}}}}",
    "flat power tower": r"\boxed{9^9^9^9}",
    "huge factorial": r"\boxed{999999999!}",
    "huge binomial": r"\boxed{\binom{10^{9}}{5 \cdot 10^{8}}}",
    "endless sum": r"\boxed{\sum_{k=1}^{10^{12}} k^k}",
    "200 nested brackets": r"\boxed{" + "(" * 200 + "x" + ")" * 200 + "}",
    "200 nested roots": r"\boxed{" + r"\sqrt{" * 120 + "x" + "}" * 120 + "}",
    "200 nested fractions": r"\boxed{" + r"\frac{1}{1+" * 80 + "x" + "}" * 80 + "}",
    "1 MB of one letter": "a" * 2**20,
    "1 MB of digits in a box": r"\boxed{" + "7" * 2**20 + "}",
    "1 MB of boxes that never close": r"\boxed{" * (2**20 // 7),
    "1 MB of brackets": "(" * 2**20,
    "1 MB of answers": "the answer is " * (2**20 // 14),
    "1 MB of numbers": "1 " * 2**19,
    "1 MB of hashes": "#" * 2**20,
    "import": r"\boxed{__import__('os').system('touch hacked')}",
    "text import": r"\boxed{\text{__import__('os')}}",
    "never closes": r"\boxed{\frac{1}{",
    "never closes in a formula": r"\boxed{\begin{pmatrix} 1 & 2 }",
    "null bytes": "\\boxed{x\0y}",
    "newlines": '\\boxed{x\n\n{"gold": 1}\n}',
    "lone surrogate": "\\boxed{x\ud800}",
    "right to left": "\\boxed{\u202e1 + x}",
    "input command": r"\boxed{\input{/etc/passwd}}",
    "huge exponent": r"\boxed{1e999999999}",
    "deep unicode": r"\boxed{" + "²" * 900 + "}",
    "many commas": r"\boxed{" + "x," * 400 + "x}",
}


@pytest.fixture(scope="module")
def pool():
    with VerifyPool(seconds=0.3, deadline=4.0) as pool:
        yield pool


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_are_survived(pool, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    verdict = Verifier(pool=pool).verify("x + 1", HOSTILE[name])
    assert verdict.reason in ({"timeout"} if name == "power tower" else REASONS - {"match"})
    assert list(tmp_path.iterdir()) == []
    assert len(pool.processes) <= 1
    assert pool.compare("x + 1", "1 + x") == "match"


def test_a_number_is_never_compared_by_algebra():
    class Untouchable:
        def compare(self, gold, prediction):
            pytest.fail("went to the pool")

    for response in HOSTILE.values():
        assert not Verifier(pool=Untouchable()).verify("7", response).correct


def test_hostile_answers_do_not_delay_the_others():
    """With two workers, the others are compared while one hostile answer uses up its time."""
    finished = []
    with VerifyPool(workers=2, seconds=0.5, deadline=10.0) as pool:
        compared(pool, [("x + 1", "1 + x"), ("x + 2", "2 + x")])

        def ask(name, gold, prediction):
            pool.compare(gold, prediction)
            finished.append(name)

        hostile = threading.Thread(target=ask, args=("hostile", "x + 1", "9^{9^{9^{9}}}"))
        hostile.start()
        remaining = [threading.Thread(target=ask, args=(i, f"x + {i}", f"{i} + x")) for i in range(20)]
        for thread in remaining:
            thread.start()
        for thread in (*remaining, hostile):
            thread.join(60)
    assert finished[-1] == "hostile" and len(finished) == 21


def test_the_deadline_is_hard():
    """A stopped process is killed at its deadline and replaced, and the comparison repeated."""
    with VerifyPool(seconds=0.5, deadline=2.0) as pool:
        assert pool.compare("x + 1", "1 + x") == "match"
        [stopped] = pool.processes
        os.kill(stopped, signal.SIGSTOP)
        assert pool.compare("x + 2", "2 + x") == "match"
        assert not psutil.pid_exists(stopped)


def test_a_timeout_by_wall_time_is_not_cached(pool, monkeypatch):
    def late(self, request, seconds):
        raise ChildLate("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(Child, "ask", late)
        assert pool.compare("x + 3", "3 + x") == "timeout"
    assert pool.compare("x + 3", "3 + x") == "match"


def test_verdicts_are_cached_also_timeouts_by_cpu_time(pool, monkeypatch):
    assert pool.compare("2x", "x \\cdot 2") == "match"
    assert pool.compare("x + 1", "9^{9^{9^{9}}}") == "timeout"
    monkeypatch.setattr(pool, "_ask", lambda *_: "asked")
    assert pool.compare("2x", "x \\cdot 2") == "match"
    assert pool.compare("x + 1", "9^{9^{9^{9}}}") == "timeout"
    assert pool.compare("2x", "x \\cdot 3") == "asked"


def test_a_comparison_that_missed_its_deadline_is_repeated_alone(monkeypatch):
    pool = VerifyPool(workers=3)
    running, requests, lock = [0], {}, threading.Lock()

    def ask(child, request):
        with lock:
            running[0] += 1
            requests[request] = requests.get(request, 0) + 1
            again = requests[request] == 2
        for _ in range(20):
            assert not again or running[0] == 1
            time.sleep(0.001)
        with lock:
            running[0] -= 1
        return "match" if again else None

    monkeypatch.setattr(pool, "_ask", ask)
    assert compared(pool, [(f"x + {i}", f"{i} + x") for i in range(12)]) == ["match"] * 12
    assert set(requests.values()) == {2}


def test_a_killed_process_is_replaced_and_the_comparison_repeated(pool):
    assert pool.compare("x + 1", "1 + x") == "match"
    [victim] = pool.processes
    os.kill(victim, signal.SIGKILL)
    assert pool.compare("x + 4", "4 + x") == "match"
    assert pool.processes != [victim]


SYMBOLIC = [
    ("2x + 1", "1 + 2x"),
    ("2x + 1", "2x - 1"),
    ("(x+1)^2", "x^2 + 2x + 1"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
    (r"\frac{\pi}{4}", r"\pi/4"),
    (r"\pi", "3.14159265"),
    ("x > 3", r"(3, \infty)"),
    ("3 + 4i", "4i + 3"),
    ("3 + 4i", "3 - 4i"),
    (r"\sin^2 x + \cos^2 x", "1"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}"),
    ("x + 1", r"\begin{cases} x \end"),
    ("x + 1", "9^{9^{9^{9}}}"),
]


def test_verdicts_do_not_depend_on_order_or_concurrency():
    runs = []
    for workers, seed in ((1, 0), (2, 1)):
        order = random.Random(seed).sample(range(len(SYMBOLIC)), len(SYMBOLIC))
        with VerifyPool(workers, seconds=1.0, deadline=20.0) as pool:
            reasons = compared(pool, [SYMBOLIC[i] for i in order])
        runs.append(dict(zip(order, reasons, strict=True)))
    expected, other = runs
    assert other == expected
    assert [expected[i] for i in (0, 1, 12, 13)] == ["match", "mismatch", "unparsable", "timeout"]


def test_close_ends_every_process_and_the_pool_can_be_used_again():
    pool = VerifyPool(workers=2)
    compared(pool, [("x + 1", "1 + x"), ("x + 2", "2 + x")])
    running = pool.processes
    assert running and all(psutil.pid_exists(pid) for pid in running)
    pool.close()
    pool.close()
    assert not any(psutil.pid_exists(pid) for pid in running) and pool.processes == []
    assert pool.compare("x + 3", "3 + x") == "match"
    pool.close()


def test_closing_while_a_comparison_runs_leaves_nothing_behind():
    pool = VerifyPool(seconds=1.0, deadline=10.0)
    pool.compare("x + 1", "1 + x")
    [running] = pool.processes
    thread = threading.Thread(target=pool.compare, args=("x + 1", "9^{9^{9^{9}}}"))
    thread.start()
    wait_until(lambda: pool._idle.empty())
    pool.close()
    thread.join(30)
    assert not psutil.pid_exists(running) and pool.processes == []


def wait_until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


def test_a_busy_process_ends_with_its_owner():
    script = textwrap.dedent(
        """
        import signal, threading
        from gagpo.envs.math.verify.pool import VerifyPool
        pool = VerifyPool(seconds=1.0, deadline=30.0)
        pool.compare("x + 1", "1 + x")
        threading.Thread(target=pool.compare, args=("x + 1", "9^{9^{9^{9}}}"), daemon=True).start()
        print(*pool.processes, flush=True)
        signal.pause()
        """
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    [worker] = [int(pid) for pid in owner.stdout.readline().split()]
    owner.kill()
    owner.wait()
    owner.stdout.close()
    wait_until(lambda: not psutil.pid_exists(worker))


def test_a_forked_copy_has_its_own_processes(pool):
    assert pool.compare("x + 1", "1 + x") == "match"
    parents = pool.processes
    copy = os.fork()
    if copy == 0:
        good = pool.compare("x + 5", "5 + x") == "match" and not set(pool.processes) & set(parents)
        pool.close()
        os._exit(not good)
    assert os.waitpid(copy, 0)[1] == 0
    assert pool.compare("x + 6", "6 + x") == "match" and pool.processes == parents


def test_a_process_that_cannot_start_says_why(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with VerifyPool() as pool, rejects(ChildFailed, "ended (1)", where="a verifier process"):
        pool.compare("x + 1", "1 + x")
    assert pool.processes == []


def test_a_comparison_leaves_no_limit_behind():
    """A limit left in a process that goes on would kill it later, without a message."""
    former, handler = resource.getrlimit(resource.RLIMIT_CPU), signal.signal(signal.SIGPROF, signal.SIG_IGN)
    chosen = (10**6, former[1])
    resource.setrlimit(resource.RLIMIT_CPU, chosen)
    try:
        assert worker.compare("x + 1", "1 + x", 20.0) == "match"
        assert resource.getrlimit(resource.RLIMIT_CPU) == chosen
        assert signal.getsignal(signal.SIGPROF) == signal.SIG_IGN
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, former)
        signal.signal(signal.SIGPROF, handler)


def test_bad_arguments_are_rejected():
    with rejects(ValueError, key="workers"):
        VerifyPool(0)
    with pytest.raises(ValueError, match="seconds <= deadline"):
        VerifyPool(seconds=5, deadline=1)


def test_verifiers_share_one_pool_which_ends_with_the_last():
    first, second = Verifier(), Verifier()
    assert first.verify("x + 1", r"\boxed{1 + x}").correct and second.verify("x + 1", r"\boxed{1+1x}").correct
    assert first.pool is second.pool
    [running] = first.pool.processes
    first.close()
    first.close()
    assert psutil.pid_exists(running)
    second.close()
    assert not psutil.pid_exists(running)
