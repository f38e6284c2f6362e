"""A signal ends the program wherever it arrives: also where Python or other code throws its exception away."""

import ctypes
import gc
import signal
import sys
import threading
import time
import weakref
from contextlib import suppress

import pytest

from gagpo.base.errors import Terminated
from gagpo.base.signals import AGAIN, AGAIN_SECONDS, Signals, accept

ERRORS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}
ENOUGH = 20.0  # seconds that a test would wait if no signal arrived


class Destroyed:
    def __init__(self, action):
        self.action = action

    def __del__(self):
        self.action()


class Plain:
    pass


def in_destructor(action):
    Destroyed(action)


def in_destructor_of_cycle(action):
    destroyed = Destroyed(action)
    destroyed.self = destroyed
    del destroyed
    gc.collect()


def in_weak_callback(action):
    target = Plain()
    reference = weakref.ref(target, lambda _: action())
    del target
    assert reference() is None


def in_finalizer(action):
    weakref.finalize(Plain(), action)


def in_callback_of_c_code(action):
    ctypes.CFUNCTYPE(None)(action)()


def in_garbage_callback(action):
    def collected(phase, _):
        if phase == "stop":
            gc.callbacks.remove(collected)
            action()

    gc.callbacks.append(collected)
    gc.collect()


def in_generator_close(action):
    def generator():
        try:
            yield
        finally:
            action()

    next(generator())


def in_code_that_catches_all(action):
    with suppress(BaseException):  # as other packages do
        action()


def in_plain_code(action):
    action()


PLACES = [
    in_destructor,
    in_destructor_of_cycle,
    in_weak_callback,
    in_finalizer,
    in_callback_of_c_code,
    in_garbage_callback,
    in_generator_close,
    in_code_that_catches_all,
    in_plain_code,
]


def wait_in_code():
    until = time.monotonic() + ENOUGH
    while time.monotonic() < until:
        pass


WAITS = {
    "nothing": lambda: None,
    "code": wait_in_code,
    "sleep": lambda: time.sleep(ENOUGH),
    "lock": lambda: threading.Event().wait(ENOUGH),
}


CASES = [(place, wait, signal.SIGTERM) for place in PLACES for wait in ("sleep", "nothing")]
CASES += [(in_destructor, wait, signal.SIGTERM) for wait in WAITS]
CASES += [(place, "lock", signal.SIGINT) for place in (in_destructor, in_code_that_catches_all, in_plain_code)]


@pytest.mark.parametrize(("place", "wait", "number"), CASES)
def test_a_signal_arrives_from_everywhere(number, place, wait, capfd):
    started = time.monotonic()
    with pytest.raises(ERRORS[number]) as raised, Signals().watching():
        place(lambda: signal.raise_signal(number))
        WAITS[wait]()
    assert time.monotonic() - started < ENOUGH / 2
    assert number == signal.SIGINT or raised.value.code == 143
    assert "ignored" not in capfd.readouterr().err


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_what_clears_up_is_not_interrupted_again(place):
    """The exception is on its way: in a ``finally``, and below it in code that handles errors of its own."""
    cleared = []

    def clear_up():
        try:
            raise ValueError
        except ValueError:
            time.sleep(3 * AGAIN_SECONDS)
        cleared.append(place)

    with pytest.raises(Terminated), Signals().watching():
        try:
            in_finalizer(lambda: None)
            place(lambda: signal.raise_signal(signal.SIGTERM))
            wait_in_code()
        finally:
            clear_up()
    assert cleared


def test_a_finalizer_that_runs_for_the_exception_is_not_cut_short():
    cleared = []

    def act():
        holder = Destroyed(lambda: (time.sleep(3 * AGAIN_SECONDS), cleared.append(1)))
        signal.raise_signal(signal.SIGTERM)
        return holder

    with pytest.raises(Terminated) as raised, Signals().watching():
        try:
            act()
        except Terminated as error:
            raise error.with_traceback(None) from None  # drops the frame that holds it
    assert raised.value.code == 143 and cleared


def test_a_second_signal_ends_a_finalizer_that_hangs():
    def hang():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        wait_in_code()

    started = time.monotonic()
    with pytest.raises(Terminated), Signals().watching():
        in_destructor(hang)
        wait_in_code()
    assert time.monotonic() - started < ENOUGH / 2


def test_everything_is_as_before_after_the_block():
    numbers = (signal.SIGINT, signal.SIGTERM, AGAIN)
    before = [signal.getsignal(number) for number in numbers]
    hook = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), Signals().watching():
        signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in numbers] == before and sys.unraisablehook is hook
    time.sleep(2 * AGAIN_SECONDS)  # a late signal of the thread does nothing


def test_a_signal_that_the_program_has_dealt_with_is_not_raised_again():
    with Signals().watching():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            accept()
        time.sleep(3 * AGAIN_SECONDS)


def test_an_ignored_ctrl_c_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Signals().watching([signal.SIGTERM]):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
