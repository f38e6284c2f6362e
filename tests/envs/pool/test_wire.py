"""Frames and plain data: a round trip at any fragmentation, and errors that name what is not plain."""

from __future__ import annotations

import enum
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.base.child import LONGEST_FRAME, pack
from gagpo.envs.pool.wire import Garbage, MessageDecoder, describe, is_plain, plain
from gagpo.envs.pool.worker import is_answer

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=40)
@given(st.lists(VALUES, max_size=6), st.data())
def test_frames_survive_any_cutting(messages: list[Any], data: st.DataObject) -> None:
    stream = b"".join(map(pack, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    inbox, received = MessageDecoder(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += inbox.take(stream[start:end])
    assert received == messages
    assert not inbox.corrupt


def test_bytes_that_are_no_frame_are_noticed_and_do_not_harm_what_came_before() -> None:
    for nonsense in (struct.pack("<I", LONGEST_FRAME + 1), struct.pack("<I", 3) + b"???", struct.pack("<I", 1) + b"["):
        inbox = MessageDecoder()
        assert inbox.take(pack("good") + nonsense) == ["good"]
        assert inbox.corrupt


def test_a_message_without_the_token_is_nonsense_before_it_is_read() -> None:
    for frame in (pack("for you"), pack("for you", b"other-00"), struct.pack("<I", 40_000_000) + b"other"):
        inbox = MessageDecoder(b"token-00")
        assert inbox.take(pack("good", b"token-00") + frame) == ["good"]
        assert inbox.corrupt


@given(st.lists(st.binary(max_size=100), max_size=5))
def test_no_bytes_whatsoever_raise(chunks: list[bytes]) -> None:
    inbox = MessageDecoder(b"token-00")
    assert [message for chunk in chunks for message in inbox.take(chunk)] == []


@pytest.mark.parametrize(
    "body", [b"", b"[", b"[\xff\xff\xff\xff", b"c", b"\xe3", b"r\0\0\0\0", b"(\1\0\0\0" * 3000, b"l"]
)
def test_bytes_that_are_no_value_are_nonsense_even_with_the_token(body: bytes) -> None:
    inbox = MessageDecoder(b"token-00")
    assert inbox.take(struct.pack("<I", len(body) + 8) + b"token-00" + body) == []
    assert inbox.corrupt


@settings(max_examples=40)
@given(VALUES)
def test_plain_data_is_left_as_it_is(value: Any) -> None:
    assert plain(value) == value
    assert is_plain(value)


GOOD = ("You see a door.", 0.5, False, False, {"success": False, "actions": ["left"]})


@pytest.mark.parametrize(
    "message",
    [
        *(5, None, [], (), (1,), (b"error",), (None, None), (1, 2, 3), "12345", ("reset", {})),
        *((*GOOD[:i], wrong, *GOOD[i + 1 :]) for i in range(5) for wrong in (None, 7, b"x", ("x",), {1: 2}, "\ud800")),
        *((*GOOD[:4], {"deep": wrong}) for wrong in (b"x", {1}, {2: 3}, 10**5000, (lambda: 0).__code__, ...)),
        ("x", float("nan"), False, False, {}),
    ],
)
def test_what_is_no_answer_is_known_from_one(message: Any) -> None:
    assert is_answer(GOOD, "step") and is_answer(("x", {}), "reset") and is_answer(("broken",), "reset")
    assert not is_answer(GOOD, "reset")
    assert not is_answer(message, "step")


@settings(max_examples=40)
@given(VALUES, st.sampled_from(["step", "reset"]))
def test_no_value_whatsoever_makes_the_reading_of_answers_raise(value: Any, operation: str) -> None:
    is_answer(value, operation)
    is_answer((value, value), operation)
    is_answer((value, 0.0, False, False, value), operation)


class Colour(enum.IntEnum):
    RED = 1


class Shout(str):
    pass


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.int64(3), 3),
        (np.str_("text"), "text"),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (Colour.RED, 1),
        (Shout("hey"), "hey"),
        (Path("a/b"), "a/b"),
        ({"deep": [np.float64(1.5), (np.int8(2),)]}, {"deep": [1.5, (2,)]}),
    ],
)
def test_values_with_a_plain_equal_become_plain(value: Any, expected: Any) -> None:
    result = plain(value)
    assert result == expected
    assert type(result) is type(expected)
    (received,) = MessageDecoder().take(pack(result))
    assert received == expected


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": [1, {2}]}, "info['a'][1] holds set"),
        ({"a": b"bytes"}, "info['a'] holds bytes"),
        ({1: "one"}, "info has a key that is not a string"),
        ({"a": np.array([object()])}, "info['a'] holds ndarray"),
        ({"a": [2**63]}, "info['a'][0] is an integer of more than 64 bits"),
        ({"a": 10**5000}, "info['a'] is an integer of more than 64 bits"),
        ({"a": print}, "info['a'] holds builtin_function_or_method"),
    ],
)
def test_what_is_not_plain_is_named_with_its_place(value: Any, words: str) -> None:
    with pytest.raises(Garbage) as caught:
        plain(value, "info")
    assert words in str(caught.value)


def test_endless_nesting_is_an_error_and_not_a_crash() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(RecursionError):
        plain({"a": endless})


def test_an_error_is_described_in_one_line_with_its_place() -> None:
    def fail() -> None:
        raise KeyError("two\nlines")

    with pytest.raises(KeyError) as caught:
        fail()
    text = describe(caught.value)
    assert text.startswith("KeyError: 'two\\nlines' (test_wire.py, line ")
    assert text.endswith("in fail)")
    assert describe(Garbage("bad")) == "Garbage: bad"
    assert describe(SystemExit()) == "SystemExit"
    assert len(describe(ValueError("x" * 10_000))) < 600


def test_an_error_that_cannot_be_shown_is_still_described() -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise math.nan  # type: ignore[misc]

    assert describe(Rude()) == "Rude: (its message cannot be shown)"
