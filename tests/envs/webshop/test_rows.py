import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.envs.webshop import rows
from gagpo.envs.webshop.rows import CatalogueError, iterate_list, iterate_object
from tests.rejections import rejects

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rows")


@settings(deadline=None, max_examples=60)
@given(st.lists(values, max_size=8), st.sampled_from([None, 2]), st.booleans(), st.integers(1, 40))
def test_a_list_read_in_any_pieces_is_the_list(folder, content, indent, ascii_only, chunk):
    path = folder / "list.json"
    path.write_text(
        json.dumps(content, indent=indent, ensure_ascii=ascii_only).replace("\ud800", ""), "utf-8", "ignore"
    )
    expected = json.loads(path.read_text("utf-8"))
    CHUNK = rows.CHUNK
    rows.CHUNK = chunk
    try:
        assert list(iterate_list(path, "values")) == list(enumerate(expected, 1))
    finally:
        rows.CHUNK = CHUNK


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.text(st.characters(codec="utf-8")), values, max_size=8), st.integers(1, 40))
def test_an_object_read_in_any_pieces_is_the_object(folder, content, chunk):
    path = folder / "object.json"
    path.write_text(json.dumps(content), "utf-8")
    CHUNK = rows.CHUNK
    rows.CHUNK = chunk
    try:
        assert {key: value for _, key, value in iterate_object(path, "values")} == content
    finally:
        rows.CHUNK = CHUNK


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"a": 1}', "expected products (a list), found an object; were two files mixed up?"),
        (b"", "found nothing"),
        (b"[1, 2", "ends after row 2"),
        (b"[1, {broken]", "row 2: broken JSON"),
        (b"[1 2]", "after row 1, expected a comma"),
        (b"[1, 2] 3", "text after the closing"),
        (b'["fine", "\xff"]', "not UTF-8 (near byte 10)"),
        ("[1]".encode("utf-16"), "not UTF-8"),
        (b"[" + b"[" * 200_000, "row 1: nested too deeply"),
        (b"[" + b"9" * 10_000 + b"]", "row 1: broken JSON"),
    ],
)
def test_a_damaged_list_is_refused_with_file_and_row(tmp_path, content, says):
    path = tmp_path / "items.json"
    path.write_bytes(content)
    with pytest.raises(CatalogueError) as error:
        list(iterate_list(path, "products"))
    assert says in str(error.value)
    assert str(path) in str(error.value)


def test_a_list_where_an_object_belongs_is_refused(tmp_path):
    path = tmp_path / "items.json"
    path.write_text("[1]")
    with rejects(CatalogueError, "an object", "a list", where="items.json"):
        list(iterate_object(path, "texts"))


def test_a_missing_file_is_refused(tmp_path):
    with rejects(CatalogueError, "No such file", where="none.json"):
        list(iterate_list(tmp_path / "none.json", "products"))


def test_a_byte_order_mark_is_no_error(tmp_path):
    path = tmp_path / "items.json"
    path.write_bytes(b"\xef\xbb\xbf[1]")
    assert list(iterate_list(path, "numbers")) == [(1, 1)]
