"""Compares the text environment with the published one (``tests/oracles``): the same bytes and rules, except for the
documented differences."""

import itertools
import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.envs.webshop.catalogue import Product, find_sources
from gagpo.envs.webshop.env import WebShopEnv
from gagpo.envs.webshop.generate import generated_folder
from gagpo.envs.webshop.goals import Goal
from gagpo.envs.webshop.pages import parse_action
from gagpo.envs.webshop.reward import COLOURS, score_purchase
from gagpo.envs.webshop.texts import visible
from tests.envs.webshop.shelf import options, row, shared_root, write_files
from tests.oracles import webshop_pages, webshop_reward

pytestmark = pytest.mark.usefixtures("shop_data")
BLANKS = (
    *("two  blanks", " at both ends ", "a\nline\n\nbreak", "tab\tand\rreturn", "\xa0no\xa0break\xa0", "   ", "\n \n"),
    *(" \n", "", "x" * 25_000, "control \x07 marks \u202e and\x0bso\x1con\x85"),
    "a & b <i>c</i> \"d\" 'e' &amp; &#x41;",
)
VALUES = (
    *("Red", "red", "RED", "Café", '24" x 36"', "a/b", "a  /  b", "", " ", "buy now", "< prev", "search", "attributes"),
    *("next >", "back to search", "[x]", "x [l]", "Two  Blanks", "line\nbreak", "color", "features", "Buy Now", "ǅ İ"),
    *("search_results", "an item_page", "Description", "item_sub_page"),
)
NAMES = ("Color", "size", "Two  Blanks", "", "NONE", "line\nbreak", "Café", "'single'", "red", "Search_Results")


def odd_rows(number, rng):
    """Products with texts like the worst in real files."""
    for n in range(number):
        choices = {}
        for name in rng.sample(NAMES, rng.randint(0, 4)):
            values = [rng.choice(VALUES) for _ in range(rng.randint(0, 5))]
            choices[name] = None if name == "NONE" else [{"value": value} for value in values]
        yield row(
            f"B{n:03d}",
            f"shirt {rng.choice(BLANKS)}" if n % 5 else rng.choice(BLANKS),
            full_description=rng.choice(BLANKS),
            small_description=[rng.choice(BLANKS) for _ in range(rng.randint(1, 4))] if n % 4 else rng.choice(BLANKS),
            pricing=rng.choice(["$10.00", "$1,234.50", "$5.00 - $7.25", None, "$9.99"]),
            customization_options=choices or None,
            category=rng.choice((*BLANKS, "clothing", "clothing", "x")),
            query=f" Shirt {n % 3} ",
            product_category="Clothing › Tops ›  Shirts",
        )


def attributes_of(rows):
    return {
        r["asin"]: {
            "attributes": [" soft", "machine  wash", "slim\nfit", "soft"][: 1 + n % 4],
            "instruction": f"find me{'  ' if n % 2 else ' '}a shirt of kind {n}\n",
            "instruction_attributes": ["soft"],
        }
        for n, r in enumerate(rows)
    }


class Comparison:
    """Two environments and the published one over the same files, with the same actions."""

    def __init__(self, data, rows, attributes, *, exact):
        kwargs = {"data": data, "exact": exact, "max_turns": 10_000}
        self.text = WebShopEnv(observation="text", **kwargs)
        self.rich = WebShopEnv(observation="text_rich", **kwargs)
        self.exact = exact
        usable = {}
        for r in rows:
            if r["asin"] != "nan" and len(r["asin"]) <= 10:
                usable.setdefault(r["asin"], r)
        self.products = [webshop_pages.product_of(r, attributes) for r in usable.values()]

    def start(self, task):
        store, exact = self.text.store, self.exact
        goal = store.goal(task)
        expected = store.product(store.number(goal.asin))

        def reward(asin, chosen):
            bought = next(product for product in self.products if product["asin"] == asin)
            bought = {**bought, "nouns": store.product(store.number(asin)).nouns}
            requests = {
                "attributes": goal.attributes,
                "goal_options": dict(goal.options),
                "price_upper": goal.budget,
                "query": expected.query,
                "product_category": expected.product_category,
                "nouns": expected.nouns,
            }
            return webshop_reward.reward(bought, requests, store.price(store.number(asin)), chosen)

        def search(query):
            return [store.product(number).asin for number in store.index.search(query)]

        draws = itertools.count(1)

        def draw(products):
            """The published environment's draws follow no seed of the episode; these follow ours."""
            numbers = random.Random(f"{task} {next(draws)}").sample(range(len(products)), 50)
            return [products[number] for number in numbers]

        switches = {"visited": exact, "truthful": not exact, "draw": draw if exact else None}
        self.original = webshop_pages.Original(self.products, goal.instruction, search, reward, **switches)
        first = [env.reset(options={"task": task})[0] for env in (self.text, self.rich)]
        assert first == [self.original.text, self.original.rich]

    def step(self, action):
        """Take the action in all three environments; returns whether it ended the episode."""
        stopped = False
        try:
            score = self.original.step(action)
        except webshop_pages.Stopped:
            score, stopped = 0.0, True
        for env, output in ((self.text, self.original.text), (self.rich, self.original.rich)):
            observation, reward, terminated, _, info = env.step(action)
            assert (reward, terminated) == (score, self.original.done), action
            assert not (stopped and info["valid"]), action
            if not terminated or self.exact:
                assert observation == output, action
        if self.exact and not terminated:
            labels = {f"click[{label}]" for label in self.original.clickable}
            offered = {action for action in info["admissible_actions"] if action.startswith("click[")}
            assert offered == labels - {"click[search]", "click[]"}
        return terminated

    def walk(self, rng, turns, words):
        for _ in range(turns):
            labels = [label for label in self.original.clickable if label != "buy now" or rng.random() < 0.1]
            label = rng.choice(labels)
            search, odd = f"search[{rng.choice(words)}]", rng.choice(ODD_ACTIONS)
            action = rng.choice([*[f"click[{label}]"] * 6, f"click[{label.upper()}] and so on", search, odd])
            if self.step(action):
                return


ODD_ACTIONS = (
    *("Search[red]", " click[buy now]", "click [buy now]", "click[ buy now ]", "search[ ]", "search[]", "click[]", "x"),
    *("think[a] click[buy now]", "search[red] search[blue]", "search[red\nshirt]", "search[red]\nclick[buy now]"),
    *("[red]", "click[Back to Search]]", "search[[red]]", "search[re[d]", "click[search]", "click[next >] now", "]["),
)
WORDS = (
    *("shirt", "red shirt", "  Shirt ", '"red" shirt', "zebra", "x" * 600, "café shirt", "<r> shirt", 'shirt "color"'),
    *("search_results", "shirt item_page", "item_sub_page shirt", "shirt search_results item_page", "<q> shirt 1"),
    *("<c> clothing", "<c>", "<c>  x", "<q>", "<q>  shirt 2 ", "<a> soft", " <q> shirt", "<r>", "<R>", "<q>shirt"),
)


@pytest.fixture(scope="module")
def generated():
    folder = generated_folder(shared_root() / "webshop", 1_000)
    sources = find_sources(folder)
    return folder, json.loads(sources.products.read_text("utf-8")), json.loads(sources.attributes.read_text("utf-8"))


def without_list_descriptions(rows):
    """The published reward fails on a description that is a list."""
    return [
        {**r, "full_description": " ".join(r["full_description"])} if isinstance(r["full_description"], list) else r
        for r in rows
    ]


@pytest.mark.parametrize("exact", [True, False])
def test_walks_in_the_generated_shop_are_the_published_ones(generated, exact):
    folder, rows, attributes = generated
    comparison = Comparison(folder, without_list_descriptions(rows), attributes, exact=exact)
    rng = random.Random(5)
    for task in rng.sample(comparison.text.tasks("train").ids, 5):
        goal = comparison.text.store.goal(task)
        comparison.start(task)
        comparison.walk(rng, 14, [goal.request, *WORDS])


@pytest.mark.parametrize("seed", range(3))
def test_walks_among_the_oddest_rows_are_the_published_ones_byte_for_byte(tmp_path, seed):
    rng = random.Random(seed)
    rows = list(odd_rows(40, rng))
    attributes = attributes_of(rows)
    comparison = Comparison(write_files(tmp_path, rows, attributes), rows, attributes, exact=True)
    tasks = [task for split in comparison.text.splits for task in comparison.text.tasks(split).ids]
    for task in rng.sample(tasks, 4):
        comparison.start(task)
        comparison.walk(rng, 20, WORDS)


def test_rewards_in_the_generated_shop_follow_the_published_rule(generated):
    """Random purchases and the expert's, of the wanted product and others."""
    folder, rows, attributes = generated
    comparison = Comparison(folder, without_list_descriptions(rows), attributes, exact=True)
    rng = random.Random(11)
    rewards = []
    for task in rng.sample(comparison.text.tasks("test").ids, 25):
        comparison.start(task)
        goal, store = comparison.text.store.goal(task), comparison.text.store
        product = store.product(store.number(goal.asin))
        comparison.step(f"search[{product.title if rng.random() < 0.7 else product.query}]")
        asins = [a for a in comparison.original.clickable if a.isdigit()]
        comparison.step(f"click[{goal.asin if goal.asin in asins and rng.random() < 0.7 else rng.choice(asins)}]")
        for label, (_, is_option) in list(comparison.original.clickable.items()):
            if is_option and rng.random() < 0.4:
                comparison.step(f"click[{label}]")
        comparison.step("click[buy now]")
        rewards.append(comparison.original.reward)
    assert 0 < sum(reward == 1.0 for reward in rewards) < len(rewards)


OPTION_WORDS = (
    *("large", "x-large", "red", "dark red", "navy blue", "standard", "rose gold", "6 feet", "16 feet", "pack of 12"),
    *("pack of 1", "color", "size", "tan", "titanium", "a | b", '24" x 36"', "women's", "café", "\xa0x", "木"),
    "stonewash",
)
options_words = st.sampled_from(OPTION_WORDS) | st.text(max_size=12).map(str.lower)
chosen_options = st.dictionaries(options_words, options_words, max_size=3)


@settings(deadline=None, max_examples=400)
@given(
    st.one_of(chosen_options, st.lists(options_words, max_size=3)),
    chosen_options,
    st.lists(st.sampled_from(["soft", "soft touch", "slim fit", "red", "cotton shirt"]), min_size=1, max_size=3),
    st.sampled_from([9.0, 20.0, 30.0]),
)
def test_the_reward_is_the_published_rule(asked, chosen, attributes, budget):
    product = Product(
        *("B1", "Red Cotton Shirt", "A soft one."),
        bullets=("Slim fit",),
        attributes=("soft", "long sleeve"),
        query="shirt",
        product_category="Clothing › Tops › Shirts",
        nouns=("cotton", "shirt"),
    )
    pairs = tuple(asked.items()) if isinstance(asked, dict) else tuple(("", value) for value in asked)
    if isinstance(asked, dict) and "" in asked:
        return  # a name of no letters stands for a goal that gives no name
    goal = Goal("B1-s0", "B1", "find", "find", tuple(attributes), pairs, budget)
    plain = {
        "Attributes": product.attributes,
        "Title": product.title,
        "BulletPoints": product.bullets,
        "Description": product.description,
        "query": "shirt",
        "product_category": product.product_category,
        "nouns": product.nouns,
    }
    expected = {**plain, "attributes": attributes, "goal_options": asked, "price_upper": budget}
    assert score_purchase(goal, product, product, 20.0, chosen).reward == webshop_reward.reward(
        plain, expected, 20.0, chosen
    )


def test_the_colours_are_the_published_ones_in_their_order():
    assert list(COLOURS) == webshop_reward.COLOUR_ORDER


@settings(deadline=None, max_examples=500)
@given(
    st.text(st.sampled_from("[]ab\n "), max_size=14) | st.text(max_size=20), st.sampled_from(["", "click", "search"])
)
def test_actions_are_read_as_published(rest, name):
    action = f"{name}{rest}"
    published, argument = webshop_pages.read_action(action)
    expected = (published, argument) if published in ("click", "search") and argument is not None else None
    assert parse_action(action, exact=True) == expected
    # By default, labels with brackets or line breaks are also read.
    if (read := parse_action(action)) != expected:
        assert expected is None and read[0] == "click" and re.search(r"[\[\]\n]", read[1])


@settings(deadline=None, max_examples=300)
@given(st.text(st.sampled_from(" \n\t\r\x0c\x0ba\xa0"), max_size=6) | st.text(max_size=8))
def test_visible_strings_are_those_of_beautiful_soup(text):
    soup = webshop_pages.BeautifulSoup(
        webshop_pages.JINJA.from_string("<p>{{ text }}</p>").render(text=text), "html.parser"
    )
    strings = [str(string) for string in soup.find_all(string=True) if string != "\n"]
    assert strings == ([] if visible(text) is None else [visible(text)])


def fifty_shirts():
    """Products of two categories and three query words, with options and an asin named like pages and buttons."""
    names = [f"B{n:03d}" for n in range(58)] + ["FEATURES", "< PREV", "BUY NOW"]
    return [
        row(
            asin,
            f"shirt {n}",
            query=f"Shirt {n % 3}",
            category="fashion" if n % 2 else "home",
            customization_options=options(Size=["search_results", "attributes", "next >"], item_page=["x"]),
        )
        for n, asin in enumerate(names)
    ]


ROUTES = {
    "random products": ["search[<r>]", "click[next >]", "click[< prev]", "search[<r> shirt]"],
    "random products of an episode": ["search[<r>]", "click[back to search]", "search[<r>]"],
    "a category": ["search[<c> Home shirt]", "click[next >]", "click[b010]", "click[< prev]"],
    "no such category": ["search[<c> shoes]", "search[<c>]", "search[<c> ]"],
    "a query": ["search[<q> shirt 1]", "click[next >]", "click[next >]", "click[next >]", "search[<q>  shirt 2 ]"],
    "attributes": ["search[<a> soft]", "search[shirt]", "search[<a>]"],
    "not the first word": ["search[ <c> home]", "search[shirt <r>]", "search[<r>shirt]"],
    "results named in the query": ["search[shirt search_results]", "click[next >]", "click[b011]", "click[< prev]"],
    "page 0": ["search[search_results <c> shirt]", "click[b000]", "click[features]", "click[< prev]", "click[next >]"],
    "the item named in the query": ["search[<q> shirt 1]", "search[item_page shirt]", "click[b001]", "click[< prev]"],
    "a part of an item named in the query": [
        "search[item_page shirt]",
        "click[b001]",
        "click[reviews]",
        "click[< prev]",
    ],
    "results named by an option": ["search[shirt]", "click[b001]", "click[search_results]", "click[next >]"],
    "a button named like an option": ["search[shirt]", "click[b001]", "click[next >]", "click[buy now]"],
    "the item named by an option": ["search[shirt]", "click[b001]", "click[x]", "click[description]", "click[< prev]"],
    "attributes as an option": ["search[shirt]", "click[b001]", "click[attributes]", "click[< prev]", "click[x]"],
    "products named like labels": ["search[<q> shirt 1]", *["click[next >]"] * 2, "click[features]", "click[< prev]"],
}


@pytest.fixture(scope="module")
def fifty(tmp_path_factory):
    rows = fifty_shirts()
    attributes = attributes_of(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GAGPO_DATA", str(shared_root()))
        return Comparison(write_files(tmp_path_factory.mktemp("fifty"), rows, attributes), rows, attributes, exact=True)


@pytest.mark.parametrize("actions", ROUTES.values(), ids=ROUTES)
def test_hidden_searches_and_misrouted_pages_are_the_published_ones(fifty, actions):
    fifty.start("B001-s0")
    for action in actions:
        fifty.step(action)


def test_the_state_of_a_hidden_search_is_whole(fifty):
    """Equal addresses show equal pages, and a draw is another state each time it is shown."""
    pages = {}
    for actions in ROUTES.values():
        for _ in range(2):
            env = fifty.text
            env.reset(options={"task": "B001-s0"})
            for action in actions:
                output, *_, info = env.step(action)
                assert pages.setdefault(info["state"], output) == output
    env.reset(options={"task": "B001-s0"})
    draws = [env.step("search[<r>]") for _ in range(3)]
    assert len({output for output, *_ in draws}) == len({info["state"] for *_, info in draws}) == 3


def test_the_default_shop_has_no_hidden_searches(fifty):
    env = WebShopEnv(data=fifty.text.store.manifest["sources"])
    env.reset(options={"task": "B001-s0"})
    assert "(Total results: 0)" in env.step("search[<c> zebra]")[0]
    assert env.step("search[<a> soft]")[4]["valid"] and "(Total results: 50)" in env.step("search[<r> shirt]")[0]
