"""A signal is answered at once with what happens, also where it must wait."""

import signal

import pytest

from gagpo.base.errors import Terminated
from gagpo.distributed import interrupt
from gagpo.distributed.interrupt import Interruptions
from gagpo.distributed.ranks import Ranks

AGAIN = "press Ctrl-C again to stop at once (the run resumes from its last checkpoint)\n"


@pytest.fixture
def printed(capsys):
    return lambda: capsys.readouterr().err


def test_a_signal_in_an_update_says_what_it_waits_for_and_how_to_end_now(printed):
    interruptions = Interruptions()
    with pytest.raises(KeyboardInterrupt), interruptions.watching(), interruptions.deferred("the update"):
        signal.raise_signal(signal.SIGINT)
        assert printed() == f"stopping after the update; {AGAIN}"


def test_a_second_signal_in_an_update_ends_it(printed):
    interruptions = Interruptions()
    order = []
    with pytest.raises(KeyboardInterrupt), interruptions.watching(), interruptions.deferred("the update"):
        signal.raise_signal(signal.SIGINT)
        printed()
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            order.append(printed())
    assert order == ["stopping at once: the run resumes from its last checkpoint\n"]


def test_a_signal_elsewhere_is_raised_with_a_line(printed):
    interruptions = Interruptions()
    with pytest.raises(Terminated), interruptions.watching():
        with interruptions.deferred():
            pass
        signal.raise_signal(signal.SIGTERM)
    assert printed() == "stopping: finished iterations are saved\n"


def test_only_the_first_rank_speaks(printed, monkeypatch):
    monkeypatch.setattr(Ranks, "first", property(lambda ranks: False))
    with pytest.raises(KeyboardInterrupt), Interruptions().watching():
        signal.raise_signal(signal.SIGINT)
    assert printed() == ""


def test_a_closed_stream_does_not_keep_a_signal_from_being_raised(monkeypatch):
    class Closed:
        def write(self, text):
            raise ValueError("closed")

    monkeypatch.setattr(interrupt.sys, "stderr", Closed())
    with pytest.raises(KeyboardInterrupt), Interruptions().watching():
        signal.raise_signal(signal.SIGINT)
