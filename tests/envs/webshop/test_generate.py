import hashlib
import json
from collections import Counter

import pytest

from gagpo.envs.webshop.catalogue import find_sources, read_annotations, read_humans, read_products
from gagpo.envs.webshop.generate import DEPARTMENTS, generated_folder, write_catalogue
from tests.rejections import rejects


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return generated_folder(tmp_path_factory.mktemp("generated"), 1_000)


@pytest.fixture(scope="module")
def rows(folder):
    return json.loads((folder / "items_shuffle.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def products(folder):
    sources = find_sources(folder)
    return list(read_products(sources.products, read_annotations(sources.attributes), Counter()))


def test_as_many_usable_products_as_asked_for(products):
    assert len(products) == len({product.asin for product in products}) == 1_000


def test_five_categories_with_options_and_attributes(products):
    assert {product.category for product in products} == {department.name for department in DEPARTMENTS}
    assert len(DEPARTMENTS) == 5
    names = {name for product in products for name in product.options}
    assert {"color", "size", "flavor name"} <= names
    assert all(len(product.attributes) >= 3 for product in products)


def test_the_odd_rows_of_real_files_occur(rows, products):
    asins = [r["asin"] for r in rows]
    assert len(set(asins)) < len(asins) and "nan" in asins and any(len(asin) > 10 for asin in asins)
    assert any(r["pricing"] is None for r in rows) and any(" - " in (r["pricing"] or "") for r in rows)
    assert {type(r["small_description"]) for r in rows} == {list, str}
    assert {type(r["full_description"]) for r in rows} == {list, str}
    assert any(None in (r["customization_options"] or {}).values() for r in rows)
    assert any(r["customization_options"] is None for r in rows)
    assert any(" | " in value for p in products for values in p.options.values() for value in values)
    assert any(not product.title.isascii() for product in products)
    assert any("<" in product.title or "&" in product.title for product in products)


def test_a_title_names_what_its_instruction_asks_for(folder, products):
    annotations = read_annotations(find_sources(folder).attributes)
    for product in products:
        instruction = annotations[product.asin].instruction
        assert all(attribute in product.title.lower() for attribute in instruction.attributes)
        assert product.query in instruction.text


def test_there_are_human_instructions_too(folder):
    humans = read_humans(find_sources(folder).humans)
    assert sum(len(instructions) for instructions in humans.values()) > 1_000


def test_equal_numbers_give_equal_bytes_and_another_seed_gives_others(tmp_path):
    def written(name, seed):
        (tmp_path / name).mkdir()
        write_catalogue(tmp_path / name, 50, seed)
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((tmp_path / name).iterdir())]

    first = written("a", 0)
    # Whoever changes what is written must also change generate.VERSION.
    assert [digest[:16] for digest in first] == ["306bd408b686a705", "c535b29ab462f3a4", "0d7e7e220199d055"]
    assert first == written("b", 0)
    assert first != written("c", 1)


def test_a_written_catalogue_is_not_written_again(folder):
    stamp = (folder / "items_shuffle.json").stat().st_mtime_ns
    assert generated_folder(folder.parent, 1_000) == folder
    assert (folder / "items_shuffle.json").stat().st_mtime_ns == stamp


@pytest.mark.parametrize("products", [0, 9, 100_001])
def test_sizes_out_of_range_are_refused(tmp_path, products):
    with rejects(ValueError, key="products"):
        generated_folder(tmp_path, products)
