"""JSON of programs is bounded before it becomes objects."""

import time

import pytest

from gagpo.envs.gateway.json_values import MAX_DEPTH, MAX_VALUES, InvalidJson, JsonTooLarge, count_values, parse


@pytest.mark.parametrize("opened", [b"[", b'{"a":'])
@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1, 199, 201, 100_000])
def test_the_depth_is_limited(opened, depth):
    closed = b"]" if opened == b"[" else b"}"
    text = opened * depth + b"1" + closed * depth
    if depth > MAX_DEPTH:
        with pytest.raises(JsonTooLarge):
            parse(text)
    else:
        assert parse(text) and parse(text.decode())


@pytest.mark.parametrize("text", [b"[" + b"[]," * MAX_VALUES + b"[]]", b"[" + b'{"":0},' * MAX_VALUES + b"{}]"])
def test_the_number_of_values_is_limited(text):
    for type_name in (bytes, bytearray, bytes.decode):
        with pytest.raises(JsonTooLarge, match="200,000 JSON values"):
            parse(type_name(text))


def test_commas_and_brackets_in_a_text_are_no_values():
    text = '"' + r"1, [2, {\"3\", " * MAX_VALUES + '"'
    assert len(parse(text)) > MAX_VALUES
    assert count_values(text, 100) == 1


def test_an_unclosed_text_is_counted_in_linear_time():
    begun = time.process_time()
    with pytest.raises(InvalidJson):
        parse(b'{"a":"' + rb"\"" * 2_000_000)
    assert time.process_time() - begun < 2.0


@pytest.mark.parametrize("text", [b"", b"{", b"NaN", b'"\\ud800"', b"\xff", b"1e", b"9" * 5000])
def test_other_text_is_not_json(text):
    with pytest.raises(InvalidJson) as error:
        parse(text)
    assert str(error.value).isprintable()
