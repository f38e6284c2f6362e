"""The reading of math-verify as the last resort of a verifier process."""

import resource
import signal

import pytest

from gagpo.envs.math.verify import library, worker
from gagpo.envs.math.verify.symbolic import Unparsable

PAIRS = [
    ("x + 1", "1 + x", True),
    (r"\frac{a}{b}", r"\dfrac{a}{b}", True),
    (r"2\sqrt{3}", r"\sqrt{3} \cdot 2", True),
    ("x + 1", "x + 2", False),
    ("7", "3 + 4", False),
    ("x", "2x - x", False),
    ("x + 1", "y + 1", False),
    (r"\frac{1}{3}", r"\int_0^1 x^2 dx", False),
    ("x", r"x \text{ million}", False),
    ("x", "x, y", False),
    ("x", "y = x", False),
]


@pytest.mark.parametrize(("gold", "answer", "same"), PAIRS)
def test_it_pays_only_whole_and_finished_answers(gold, answer, same):
    assert library.equal(gold, answer) is same


@pytest.mark.parametrize(("gold", "answer", "same"), PAIRS[:4])
def test_a_process_asks_it_only_about_what_cannot_be_read(gold, answer, same, monkeypatch):
    def unreadable(*_):
        raise Unparsable

    monkeypatch.setattr(worker, "same", unreadable)
    assert worker.compare(gold, answer, 20.0) == ("match" if same else "unparsable")


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
