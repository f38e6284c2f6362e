"""YAML 1.2: written values are read back, and invalid texts are rejected in one line."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagpo.base.core_schema import NotYaml, parse_yaml, read_mapping, write_yaml
from gagpo.base.errors import InvalidArgument
from tests.rejections import rejects

TEXTS = st.one_of(
    st.text(),
    st.text(alphabet="\x85\u2028\u2029\ufeff\x7f\t\r\n a:"),
    st.sampled_from(
        ["yes", "010", "0o10", "1:30", "1e5", "1_0", "2020-01-01", "~", "", "null", "=", "<<", ".5", "off"]
    ),
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.floats(allow_nan=False), TEXTS)
VALUES = st.recursive(SCALARS, lambda part: st.one_of(st.lists(part), st.dictionaries(TEXTS, part)), max_leaves=8)


@given(VALUES)
def test_what_is_written_is_read_back(value):
    text = write_yaml(value)
    assert parse_yaml(text) == value
    assert repr(parse_yaml(text)) == repr(value)


@given(st.text(alphabet="ab:[]{}&*!-? \n\t\"'\\ux0159.~<|>%@`#,=eE+on", max_size=60))
def test_any_text_is_read_or_refused_in_one_line(text):
    try:
        parse_yaml(text)
    except NotYaml as error:
        assert str(error) and "\n" not in str(error)


@pytest.mark.parametrize("version", ["1.1", "1.0", "1.3", "2.0", "  1.1 # old", "1.12"])
@pytest.mark.parametrize("before", ["", "\ufeff", "# a comment\n", "%TAG ! tag:a,2000:\n"])
def test_another_version_of_yaml_is_refused(version, before):
    """In YAML 1.1 ``yes`` is true, ``1:30`` is 90 and ``010`` is 8."""
    with pytest.raises(NotYaml, match=r"line \d: %YAML \d\.\d+ is not supported; write %YAML 1\.2, or remove it"):
        parse_yaml(f"{before}%YAML {version}\n---\na: yes\n")


def test_the_directive_of_version_1_2_is_read():
    assert parse_yaml("%YAML 1.2\n---\na: yes\nb: 1:30\nc: 010\nd: |\n %YAML 1.1\n") == {
        "a": "yes",
        "b": "1:30",
        "c": 10,
        "d": "%YAML 1.1\n",
    }


@pytest.mark.parametrize("text", [3000 * "[", 3000 * "{a: ", 3000 * "- ", 3000 * "? "], ids=["lists", "maps", "-", "?"])
def test_deep_nesting_is_refused_at_once(text):
    with pytest.raises(NotYaml, match="nested too deeply"):
        parse_yaml(text)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a pipe", "a folder"])
def test_what_is_not_a_file_is_refused(tmp_path, make):
    make(tmp_path / "a.yaml")
    with rejects(InvalidArgument, "a.yaml", "regular file"):
        read_mapping(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nna\x07me: x", r"line 2: the character U\+0007 is not allowed; remove it$"),
        ("\x1b", r"line 1: the character U\+001B is not allowed"),
        ('"a\\u001b": 1\n"a\\u001b": 2', r"line 2: the key a\\x1b is written twice$"),
    ],
)
def test_control_characters_are_named_and_not_shown(text, message):
    with pytest.raises(NotYaml, match=message):
        parse_yaml(text)
