import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.envs.webshop.catalogue import (
    NO_ATTRIBUTES,
    Instruction,
    clean,
    find_sources,
    parse_prices,
    read_annotations,
    read_humans,
    read_products,
)
from gagpo.envs.webshop.rows import CatalogueError
from tests.envs.webshop.shelf import options, row, write_files
from tests.rejections import rejects


def products(tmp_path, rows, counts=None):
    path = tmp_path / "items_shuffle.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    return [product.tidy() for product in read_products(path, {}, Counter() if counts is None else counts)]


def test_doubles_nan_and_long_asins_are_left_out_and_counted(tmp_path):
    rows = [
        row("B01"),
        row("b01", "double"),
        row("nan"),
        row("B" * 11),
        {**row("B02"), "asin": float("nan")},
        row("B03"),
    ]
    counts = Counter()
    assert [p.asin for p in products(tmp_path, rows, counts)] == ["B01", "B03"]
    assert counts == {"double": 1, "nameless": 2, "long_asin": 1}


def test_option_values_are_trimmed_spaced_and_lower_cased(tmp_path):
    """Repeated values and options without values are kept."""
    fields = {"Color": [{"value": " Red/Blue ", "image": None}, {"value": "RED/BLUE"}], "Nothing": None, "Size": []}
    (product,) = products(tmp_path, [row("B1", customization_options=fields)])
    assert product.options == {"color": ("red | blue", "red | blue"), "size": ()}


def test_texts_keep_white_space_but_lose_invisible_characters(tmp_path):
    name = " two  blanks\nand\x00 \u202emarks\x85"
    path = write_files(tmp_path, [row("B1", name)]) / "items_shuffle.json"
    (product,) = read_products(path, {}, Counter())
    assert product.title == name
    assert product.tidy().title == " two  blanks\nand marks "


def test_lists_in_lists_are_refused(tmp_path):
    nested = "x"
    for _ in range(400):
        nested = [nested]
    with rejects(CatalogueError, "full_description", where="items_shuffle.json, row 1 (B1)"):
        products(tmp_path, [row("B1", full_description=nested)])


@pytest.mark.parametrize(
    ("small", "bullets"), [(["a", "b"], ("a", "b")), ("only one", ("only one",)), (None, ()), ([], ())]
)
def test_features_may_be_a_list_or_one_text(tmp_path, small, bullets):
    (product,) = products(tmp_path, [row("B1", small_description=small)])
    assert product.bullets == bullets


@pytest.mark.parametrize(
    ("full", "description"), [("one", "one"), (["one", "two"], "one two"), (None, ""), (float("nan"), "")]
)
def test_a_description_may_be_text_list_or_missing(tmp_path, full, description):
    (product,) = products(tmp_path, [row("B1", full_description=full)])
    assert product.description == description


@pytest.mark.parametrize(
    ("pricing", "prices", "tag"),
    [
        ("$10.00", (10.0,), "$10.0"),
        ("$10.00 - $20.50", (10.0, 20.5), "$10.0 to $20.5"),
        ("$1,299.99", (1299.99,), "$1299.99"),
        ("$1.00 - $2.00 - $3.00", (1.0, 2.0), "$1.0 to $2.0"),
        (None, (), "$100.0"),
        ("", (), "$100.0"),
    ],
)
def test_prices_single_ranged_and_missing(tmp_path, pricing, prices, tag):
    (product,) = products(tmp_path, [row("B1", pricing=pricing)])
    assert (product.prices, product.price_tag) == (prices, tag)


@pytest.mark.parametrize(
    ("pricing", "says"),
    [
        ("-$5.00", "negative price '-$5.00'"),
        ("$-5.00", "negative price"),
        ("$1.00 - -$5.00", "negative price"),
        ("$free", "bad 'pricing'"),
        ("$1.2.3", "bad 'pricing'"),
        ("ten dollars", "has no dollar sign"),
        ("$" + "9" * 400, "is above"),
        (12.5, "must be text like '$10.00' or null, found a number"),
    ],
)
def test_a_bad_price_is_refused_with_file_row_and_asin(tmp_path, pricing, says):
    with pytest.raises(CatalogueError) as error:
        products(tmp_path, [row("B1"), row("B2", pricing=pricing)])
    assert str(error.value).startswith(f"{tmp_path / 'items_shuffle.json'}, row 2 (B2): ")
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (["a list"], "row 2: a product must be an object, found a list"),
        ({"name": "no asin"}, "row 2: a product needs an 'asin'"),
        ({**row("B2"), "asin": 17}, "row 2: a product needs an 'asin'"),
        (row("B2", name={"en": "x"}), "row 2 (B2): 'name' must be text, found an object"),
        (row("B2", customization_options=["red"]), "'customization_options' must be an object or null, found a list"),
        (row("B2", customization_options={"size": "red"}), "'size' must be a list of values or null, found text"),
        (row("B2", customization_options={"size": [{"image": 1}]}), "'size' must contain objects with a text 'value'"),
    ],
)
def test_a_row_of_another_shape_is_refused_with_its_number(tmp_path, broken, says):
    with pytest.raises(CatalogueError) as error:
        products(tmp_path, [row("B1"), broken])
    assert says in str(error.value)


def test_attributes_and_instructions(tmp_path):
    path = tmp_path / "items_ins_v2.json"
    path.write_text(
        json.dumps(
            {
                "b1": {"attributes": ["soft", ""], "instruction": "find", "instruction_attributes": ["soft"]},
                "B2": {"attributes": []},
                "B3": {},
            }
        )
    )
    read = read_annotations(path)
    assert read["B1"].attributes == ("soft",)
    assert read["B1"].instruction == Instruction("find", ("soft",))
    assert read["B2"].attributes == read["B3"].attributes == NO_ATTRIBUTES
    assert read["B3"].instruction is None


def test_human_instructions_with_options_in_all_their_forms(tmp_path):
    path = tmp_path / "items_human_ins.json"
    entries = [
        {"instruction": "a", "instruction_attributes": ["x"], "instruction_options": ["Red", "large"]},
        {"instruction": "b", "instruction_attributes": ["x"], "instruction_options": {"Color": "Red"}},
        {"instruction": "c", "instruction_attributes": ["x"], "instruction_options": [["color", "red"]]},
        {"instruction": "d"},
    ]
    path.write_text(json.dumps({"B1": entries}))
    formats = [instruction.options for instruction in read_humans(path)["B1"]]
    assert formats == [(("", "red"), ("", "large")), (("color", "red"),), (("color", "red"),), ()]


@pytest.mark.parametrize(
    ("reader", "content", "says"),
    [
        (read_annotations, {"B1": {"attributes": "soft"}}, "(B1): 'attributes' must be a list of texts, found text"),
        (read_annotations, {"B1": [{"instruction": "x"}]}, "row 1 (B1): expected an object with 'attributes', found a"),
        (read_humans, {"B1": {"attributes": []}}, "row 1 (B1): expected a list of instructions, found an object"),
        (read_humans, {"B1": [{"text": "x"}]}, "an instruction must be an object with the key 'instruction'"),
        (
            read_humans,
            {"B1": [{"instruction": "x", "instruction_options": [1]}]},
            "must contain texts or [name, value]",
        ),
    ],
)
def test_mixed_up_or_broken_annotation_files_are_refused(tmp_path, reader, content, says):
    path = tmp_path / "file.json"
    path.write_text(json.dumps(content))
    with pytest.raises(CatalogueError) as error:
        reader(path)
    assert says in str(error.value)
    assert str(path) in str(error.value)


def test_files_are_found_in_a_folder_or_beside_a_product_file(tmp_path):
    write_files(tmp_path, [row("B1")], humans={})
    assert find_sources(tmp_path).humans == tmp_path / "items_human_ins.json"
    small = tmp_path / "items_shuffle_1000.json"
    small.write_text("[]")
    with rejects(CatalogueError, "several", advice="path of one"):
        find_sources(tmp_path)
    assert find_sources(small).attributes == tmp_path / "items_ins_v2.json"
    (tmp_path / "items_ins_v2_1000.json").write_text("{}")
    assert find_sources(small).attributes == tmp_path / "items_ins_v2_1000.json"


def test_missing_files_are_named(tmp_path):
    with rejects(CatalogueError, "items_shuffle*.json"):
        find_sources(tmp_path)
    with rejects(CatalogueError, "no such file"):
        find_sources(tmp_path / "nowhere")
    (tmp_path / "items_shuffle.json").write_text("[]")
    with rejects(CatalogueError, "missing", where="items_ins_v2.json", advice="items_shuffle.json"):
        find_sources(tmp_path)


@settings(deadline=None)
@given(st.text())
def test_cleaning_is_final_and_leaves_nothing_unseen(text):
    once = clean(text)
    assert clean(once) == once
    assert once.encode("utf-8").decode("utf-8") == once
    assert not any(ord(c) < 32 or c in "\u202e\u2066\ufeff" for c in once)
    assert clean(once.lower()) == once.lower()


def test_hostile_rows_are_cut_to_a_readable_size(tmp_path):
    many = options(size=[f"size {i}" for i in range(5_000)])
    (product,) = products(tmp_path, [row("B1", "x" * 1_000_000, customization_options=many)])
    assert len(product.title) == 1_000
    assert len(product.options["size"]) == 1_000


def test_thousands_and_ranges():
    assert parse_prices("$1,010.50 - $2,000.00", "") == (1010.5, 2000.0)
