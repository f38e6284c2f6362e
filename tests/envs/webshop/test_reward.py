"""The published reward rule, clause by clause, with numbers worked out by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thefuzz import fuzz

from gagpo.envs.webshop.catalogue import Product
from gagpo.envs.webshop.expert import options_to_choose
from gagpo.envs.webshop.goals import Goal
from gagpo.envs.webshop.pages import Shop
from gagpo.envs.webshop.reward import (
    colour_of,
    has_attribute,
    is_fuzzy_match,
    option_matches,
    score_purchase,
    similarity,
    type_score,
)
from tests.envs.webshop.shelf import generated_store

SHIRT = Product(
    "B1",
    "Red Cotton Shirt",
    description="For hot days.",
    bullets=("Machine Wash",),
    attributes=("long sleeve", "slim fit"),
    category="fashion",
    query="shirt",
    product_category="Clothing › Tops › Shirts",
    nouns=("cotton", "shirt"),
)


def product(query="other", path="X › Y", nouns=(), **fields):
    return Product("B2", "title", query=query, product_category=path, nouns=nouns, **fields)


def goal(attributes=("slim fit",), options=(), budget=50.0):
    return Goal("B1-s0", "B1", "find", "find", tuple(attributes), tuple(options), budget)


def test_buying_the_wanted_product_in_budget_with_its_options_is_success():
    expected = goal(("slim fit", "long sleeve"), (("color", "red"), ("size", "large")))
    verdict = score_purchase(expected, SHIRT, SHIRT, 50.0, {"color": "red", "size": "large"})
    assert (verdict.reward, verdict.success) == (1.0, True)
    assert (verdict.r_type, verdict.r_att, verdict.r_option, verdict.r_price) == (1.0, 1.0, 1.0, 1.0)


def test_each_unmet_point_costs_its_share():
    expected = goal(("slim fit", "rubber sole"), (("color", "red"), ("size", "large")), budget=20.0)
    # 1 of 2 attributes, 1 of 2 options, too dear: 2 of 5 points.
    verdict = score_purchase(expected, SHIRT, SHIRT, 20.01, {"color": "red"})
    assert verdict.reward == 2 / 5
    assert (verdict.r_att, verdict.r_option, verdict.r_price) == (0.5, 0.5, 0.0)
    # The budget itself is still within the budget: 3 of 5.
    assert score_purchase(expected, SHIRT, SHIRT, 20.0, {"color": "red"}).reward == 3 / 5


def test_without_options_in_the_goal_the_choice_does_not_count():
    verdict = score_purchase(goal(), SHIRT, SHIRT, 1.0, {"size": "whatever"})
    assert (verdict.reward, verdict.r_option) == (1.0, None)


def test_the_type_scales_everything():
    # One of six nouns is shared: .1 < 1/6 <= .2, nothing else agrees, so half of (1 + 1) / 2.
    expected = product(query="a", path="A › B", nouns=("a", "b", "c", "d", "e", "f"), attributes=("slim fit",))
    bought = product(query="b", path="C › D", nouns=("a",), attributes=("slim fit",))
    verdict = score_purchase(goal(), expected, bought, 1.0, {})
    assert (verdict.r_type, verdict.reward) == (0.5, 0.5)


TEN = tuple("abcdefghij")


@pytest.mark.parametrize(
    ("wanted", "bought", "r_type"),
    [
        # The queries agree.
        (product("q", "A › B", TEN), product("q", "C › D", TEN[:1]), 1.0),
        # Two parts of the path agree, in any order; one is not enough.
        (product("q", "A › B › C", TEN), product("p", "B › A", TEN[:1]), 1.0),
        (product("q", "A › B › C", TEN), product("p", "A › D › E", TEN[:1]), 0.5),
        # A part that stands twice is one part.
        (product("q", "A › A › C", TEN), product("p", "A › A › E", TEN[:1]), 0.5),
        # The title score must be above .2: two of ten are not enough, three are.
        (product("q", "A", TEN), product("p", "B", TEN[:2]), 0.5),
        (product("q", "A", TEN), product("p", "B", TEN[:3]), 1.0),
        # .1 exactly is not below .1; below it nothing else helps.
        (product("q", "A", TEN), product("p", "B", TEN[:1]), 0.5),
        (product("q", "A › B", (*TEN, "k")), product("q", "A › B", TEN[:1]), 0.1),
        # No noun in common: worthless, even in the same category and for the same query.
        (product("q", "A › B", TEN), product("q", "A › B", ("z",)), 0.0),
        # A wanted title without nouns counts as .2: not above .2, not below .1.
        (product("q", "A", ()), product("p", "B", ("z",)), 0.5),
        (product("q", "A", ()), product("q", "B", ("z",)), 1.0),
    ],
)
def test_type_clauses(wanted, bought, r_type):
    assert type_score(wanted, bought)[0] == r_type


def test_a_noun_said_twice_counts_twice_below_the_line():
    expected, bought = product(nouns=("cable", "cable", "usb")), product(nouns=("cable", "usb"))
    assert type_score(expected, bought)[1] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("attribute", "found"),
    [
        ("slim fit", True),
        ("fit slim", True),  # the order of words does not matter
        ("slim", True),  # a false positive of the rule: a part of the words is enough
        ("slim fitt", True),  # 94
        ("long sleeves", True),  # 96
        ("cotton", True),  # in the title, whose case is ignored
        ("machine wash", True),  # in a feature
        ("hot days", True),  # in the description
        ("rubber sole", False),
        ("Cotton", False),  # texts are lower-cased, the wanted attribute is not
    ],
)
def test_attributes_match_by_likeness_or_by_being_in_the_texts(attribute, found):
    assert has_attribute(SHIRT, attribute) is found


@pytest.mark.parametrize(
    ("wanted", "chosen", "nameless", "named"),
    [
        ("large", "large", True, True),
        ("large", "x-large", True, False),
        ("pack of 12", "pack of 1", True, True),
        ("large", "small", False, False),
        ("light blue", "royal blue", True, True),  # both are "blue"
        ("dark red", "red", False, True),  # nameless "dark" against "red"; named, "red" is one of the words
        ("6 feet", "16 feet", True, False),  # 92, or with the word "size" less
        ("queen", "king", False, False),
        ("standard", "standard", True, False),  # "tan" is in it, and is no word of "('size', 'standard')"
        ("red | blue", "red  |  blue", True, True),
    ],
)
def test_options_match_as_published(wanted, chosen, nameless, named):
    assert option_matches(("", wanted), {"size": chosen}) is nameless
    assert option_matches(("size", wanted), {"size": chosen}) is named


@pytest.mark.parametrize(
    ("value", "colour"),
    [("navy blue", "blue"), ("titanium", "tan"), ("a1-dark red", "dark"), ("extra large", "extra large"), ("", "")],
)
def test_the_first_colour_of_the_list_that_is_contained_stands_for_a_value(value, colour):
    assert colour_of(value) == colour


@pytest.mark.parametrize(
    ("first", "second", "ratio"),
    [("large", "x-large", 100), ("pack of 12", "pack of 1", 95), ("", "", 0), ("a", "", 0)],
)
def test_known_ratios(first, second, ratio):
    assert similarity(first, second) == ratio


@pytest.mark.parametrize("kind", ["synthetic", "human"])
def test_every_goal_of_the_generated_catalogue_can_be_met(kind):
    shop = Shop(generated_store())
    for split in ("train", "validation", "test"):
        for task in shop.store.tasks(kind, split).ids:
            expected, start = shop.goal(task), shop.start(task)
            number = shop.store.number(expected.asin)
            product = shop.store.product(number)
            chosen = dict(options_to_choose(shop, start._replace(product=number), expected))
            assert score_purchase(expected, product, product, shop.store.price(number), chosen).success, task


words = st.text(st.sampled_from("abc ABC-|/é木1²ß\u212a'"), max_size=20) | st.text(max_size=20)


@settings(deadline=None, max_examples=500)
@given(words, words)
def test_similarity_is_thefuzz(first, second):
    assert similarity(first, second) == fuzz.token_set_ratio(first, second)
    assert is_fuzzy_match(first, second) == (fuzz.token_set_ratio(first, second) > 85)
