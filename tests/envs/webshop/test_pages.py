"""The shop as a state machine: what each page shows, where each action leads, and properties of every path."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gagpo.envs.tasks import UnknownTask
from gagpo.envs.webshop import pages, search, store
from gagpo.envs.webshop.pages import (
    DONE,
    INDEX,
    ITEM,
    MAX_QUERY_LENGTH,
    PART,
    RESULTS,
    PageElement,
    Shop,
    clickables,
    regular_query,
)
from gagpo.envs.webshop.render import address
from tests.envs.webshop.shelf import build, generated_store, options, row
from tests.rejections import rejects


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """25 shirts, of which B00 comes in two colours and two sizes."""
    choices = options(color=["Red", "Blue/Green"], size=["S", "Red wine"])
    rows = [row("B00", "shirt number 0", customization_options=choices, small_description=["Soft", "Warm"])]
    rows += [row(f"B{n:02d}", f"shirt number {n}", pricing="$5.00 - $7.50") for n in range(1, 25)]
    return Shop(build(tmp_path_factory.mktemp("shop"), rows))


def go(shop, *actions, task="B00-s0"):
    state = shop.start(task)
    for action in actions:
        state = shop.search(state, action[1:]) if action[0] == "?" else shop.click(state, action)
        assert state is not None, action
    return state


def shown(shop, state):
    return [element.text for element in shop.page(state).elements]


def test_the_first_page_has_the_instruction_and_the_search_bar(shop):
    page = shop.page(shop.start("B00-s0"))
    instruction = shop.goal("B00-s0").instruction
    assert [element.text for element in page.elements] == ["WebShop", "Instruction: ", instruction, "Search"]
    assert page.has_search_bar and page.clickables == {}


def test_the_item_page_in_the_published_order(shop):
    state = go(shop, "?number 0", "b00")
    assert shown(shop, state)[2:] == [
        *("Back to Search", "< Prev", "color", "red", "blue | green", "size", "s", "red wine"),
        *("shirt number 0", "Price: $10.0", "Rating: N.A.", "Description", "Features", "Reviews", "Buy Now"),
    ]
    assert list(shop.page(state).clickables) == [
        *("back to search", "< prev", "description", "features", "reviews", "buy now"),
        *("red", "blue | green", "s", "red wine"),
    ]


def test_options_are_one_a_name_and_survive_the_sub_pages(shop):
    state = go(shop, "?number 0", "b00", "Blue | Green", "S", "red")
    assert state.options == (("color", "red"), ("size", "s"))
    for segment, content in (("Description", ["A shirt."]), ("Features", [" Soft", " Warm"]), ("Reviews", [])):
        inside = shop.click(state, segment)
        assert shown(shop, inside)[2:] == ["Back to Search", "< Prev", *content]
        assert shop.click(inside, "< prev") == state


def test_going_back_to_the_results_or_searching_forgets_item_and_options(shop):
    item = go(shop, "?shirt", "next >", "b15")
    assert shop.click(item, "< prev") == go(shop, "?shirt", "next >")
    chosen = go(shop, "?number 0", "b00", "red")
    assert shop.click(chosen, "< prev") == go(shop, "?number 0")
    assert shop.search(chosen, "shirt") == go(shop, "?shirt")
    assert shop.click(chosen, "back to search") == shop.start("B00-s0")
    again = shop.click(shop.click(chosen, "< prev"), "b00")
    assert again.options == ()


def test_buying_ends_everything(shop):
    done = go(shop, "?number 0", "b00", "red", "buy now")
    assert done.kind == DONE
    assert shown(shop, done)[:2] == ["Thank you for shopping with us!", "Your score (min 0.0, max 1.0)"]
    assert shop.search(done, "shirt") is None
    assert shop.page(done).clickables == {}


def test_only_labels_of_the_page_can_be_clicked(shop):
    start = shop.start("B00-s0")
    for label in ("search", "buy now", "b00", "", "shirt number 0", "instruction:"):
        assert shop.click(start, label) is None
    item = go(shop, "?number 0", "b00")
    for label in ("b01", "search", "next >", "color", "price: $10.0", "shirt number 0"):
        assert shop.click(item, label) is None


def test_a_doubled_label_means_the_button_then_the_last_option():
    elements = [
        PageElement("buy now", "option", "x"),
        PageElement("red", "option", "x"),
        PageElement("red", "chosen", "y"),
    ]
    assert clickables([*elements, PageElement("Buy Now", "button")]) == {"buy now": 3, "red": 2}
    assert clickables([PageElement("Buy Now", "button"), *elements]) == {"buy now": 0, "red": 3}


def test_nothing_called_search_can_be_clicked():
    assert (
        clickables(
            [PageElement("Search", "search"), PageElement("search", "option", "x"), PageElement("SEARCH", "product")]
        )
        == {}
    )


def test_every_value_of_an_option_is_shown_and_an_option_without_values_too(tmp_path):
    choices = {"Size": [{"value": "M"}, {"value": "M"}, {"value": ""}], "Color": [], "Style": None}
    wish = {"instruction": "x", "instruction_attributes": ["soft"], "instruction_options": []}
    shop = Shop(build(tmp_path, [row("B1", customization_options=choices)], humans={"B1": [wish]}))
    task = shop.store.tasks("human", "train").ids[0]
    item = go(shop, "?shirt", "b1", task=task)
    assert shown(shop, item)[4:-7] == ["size", "m", "m", "color"]
    assert shop.click(item, "m").options == (("size", "m"),) and shop.click(item, "") is None


def test_products_with_options_named_like_controls_can_be_bought(tmp_path):
    choices = options(**{"buy now": ["Buy Now", "< Prev", "Reviews"], "other": ["Buy Now"]})
    shop = Shop(build(tmp_path, [row("B1", customization_options=choices)]))
    item = go(shop, "?shirt", "b1", task="B1-s0")
    assert shop.click(item, "buy now").kind == DONE
    assert shop.click(item, "< prev").kind == RESULTS
    assert shop.click(item, "reviews").kind == PART


@pytest.mark.parametrize(
    ("words", "query"),
    [("  Red   SHIRT\n", "red shirt"), ("\x00\u202e", ""), ("<r>", "<r>"), ("x" * 1_000_000, "x" * MAX_QUERY_LENGTH)],
)
def test_queries_are_made_regular(words, query):
    assert regular_query(words) == query


def test_results_per_page_can_be_chosen(shop):
    few = Shop(shop.store, results_per_page=3)
    assert len(shown(few, go(few, "?shirt"))) == 5 + 3 * 3
    with rejects(ValueError, key="results_per_page"):
        Shop(shop.store, results_per_page=0)


def test_unknown_tasks_are_refused(shop):
    for task in ("", "B99-s0", "../B00-s0", "B00-s0 "):
        with pytest.raises(UnknownTask):
            shop.start(task)


class Shopper(RuleBasedStateMachine):
    """Walks the generated shop at random and checks every page it comes to."""

    def __init__(self):
        super().__init__()
        self.shop = Shop(generated_store(), results_per_page=7)
        self.task = self.shop.store.tasks("synthetic", "test").ids[0]
        self.state = self.shop.start(self.task)
        self.addresses = {}

    @rule(words=st.sampled_from(["red shirt", "usb cable", "gluten free", "zebra", "  Coffee "]) | st.text(max_size=30))
    def search(self, words):
        state = self.shop.search(self.state, words)
        if state is None:
            assert self.state.kind == DONE or not words
        else:
            self.state = state

    @precondition(lambda self: self.shop.page(self.state).clickables)
    @rule(data=st.data())
    def click(self, data):
        label = data.draw(st.sampled_from(sorted(self.shop.page(self.state).clickables)))
        if label == "buy now" and data.draw(st.booleans()):
            return  # else most walks would be short
        before, self.state = self.state, self.shop.click(self.state, label.upper())
        if label == "next >":
            assert self.shop.click(self.state, "< prev") == before
        if before.kind == RESULTS and self.state.kind == ITEM:
            assert self.shop.click(self.state, "< prev") == before
        if before.kind == ITEM and self.state.kind == ITEM:
            assert (label in dict(self.state.options).values()) and self.shop.click(self.state, label) == self.state
            names = dict(before.options).keys() | dict(self.state.options).keys()
            assert len(self.state.options) == len(names)

    @invariant()
    def the_address_says_it_all(self):
        here = address(self.shop, self.state)
        assert self.addresses.setdefault(here, self.state) == self.state
        assert here.isascii() and " " not in here

    @invariant()
    def a_page_depends_on_the_state_alone(self):
        fresh = Shop(self.shop.store, results_per_page=7)
        assert fresh.page(self.state) == self.shop.page(self.state)

    @invariant()
    def every_label_leads_somewhere(self):
        page = self.shop.page(self.state)
        for label in page.clickables:
            assert self.shop.page(self.shop.click(self.state, label)).elements
        assert not page.clickables or "back to search" in page.clickables
        assert page.has_search_bar == (self.state.kind == INDEX)


TestShopper = Shopper.TestCase
TestShopper.settings = settings(deadline=None, max_examples=15, stateful_step_count=20)


def wander(shop, task, seed, steps=60):
    """The pages of a random walk."""
    rng, state, pages = random.Random(seed), shop.start(task), []
    for _ in range(steps):
        page = shop.page(state)
        pages.append((state, page))
        choices = [label for label in page.clickables if label != "buy now"]
        tokens = rng.choice(["red shirt", "usb cable", "free shampoo", "coffee", "for women", "metal", "tea"])
        state = shop.click(state, rng.choice(choices)) if choices and rng.random() < 0.8 else shop.search(state, tokens)
    return pages


@pytest.fixture
def forgetful(monkeypatch):
    """A shop with tiny caches, so that concurrent episodes evict each other's pages."""
    for module, name in ((pages, "CACHED_PAGES"), (store, "CACHED_PRODUCTS"), (search, "CACHED_QUERIES")):
        monkeypatch.setattr(module, name, 2)
    return Shop(store.Store(generated_store().folder))


def test_concurrent_episodes_in_one_shop_are_independent(forgetful):
    tasks = forgetful.store.tasks("synthetic", "test").ids[:6]
    alone = [wander(Shop(generated_store()), task, seed) for seed, task in enumerate(tasks)]
    with ThreadPoolExecutor(len(tasks)) as crowd:
        together = list(crowd.map(lambda pair: wander(forgetful, pair[1], pair[0]), enumerate(tasks)))
    assert together == alone
