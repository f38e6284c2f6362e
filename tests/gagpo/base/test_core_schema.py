"""YAML 1.2: written values are read back, and invalid texts are rejected in one line."""

from hypothesis import given
from hypothesis import strategies as st

from gagpo.base.core_schema import NotYaml, parse_yaml, write_yaml

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
