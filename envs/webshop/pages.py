"""The shop as a state machine: each state is a page, and each action leads from one state to another.

A state is a plain value that its address (``render.address``) holds whole.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from typing import NamedTuple

from gagpo.base.errors import InvalidArgument
from gagpo.envs.webshop.goals import Goal
from gagpo.envs.webshop.published import draw, is_hidden, is_random, routed_kind, stops
from gagpo.envs.webshop.reward import PurchaseScore, score_purchase
from gagpo.envs.webshop.store import Store, UnknownProduct
from gagpo.envs.webshop.texts import clean, visible

# Kinds of pages
INDEX = "index"
RESULTS = "results"
ITEM = "item"
PART = "part"
DONE = "done"

# Labels of buttons
BACK = "Back to Search"
PREVIOUS = "< Prev"
NEXT = "Next >"
BUY = "Buy Now"
SEARCH = "Search"
PARTS = ("Description", "Features", "Reviews")
ATTRIBUTES = "attributes"
PUBLISHED_PARTS = (*(part.lower() for part in PARTS), ATTRIBUTES)
"""Labels that open a part in an ``exact`` shop. No button is called ``attributes``, but an option may be."""
MAX_QUERY_LENGTH = 500
MAX_EXACT_QUERY_LENGTH = 10_000
CACHED_PAGES = 1_024


class PageState(NamedTuple):
    """A page of one task. Fields that a kind of page does not need keep their defaults, so equal pages are equal.

    kind: ``INDEX``, ``RESULTS``, ``ITEM``, ``PART`` or ``DONE``.
    page: page of the results, from 1.
    product: number in the store, -1 for none.
    part: one of ``PARTS``, lower-cased, or :data:`ATTRIBUTES`.
    options: chosen (name, value) pairs in the product's order.
    visited: products visited since the first page; only an ``exact`` shop records them.
    draws: pages of random products shown in the episode, in an ``exact`` shop: each is drawn anew.
    """

    task: str
    kind: str = INDEX
    query: str = ""
    page: int = 0
    product: int = -1
    part: str = ""
    options: tuple[tuple[str, str], ...] = ()
    visited: frozenset[int] = frozenset()
    draws: int = 0


class PageElement(NamedTuple):
    """One visible string.

    kind: ``text``, ``button``, ``search`` (the button of the search form), ``product`` (a link to it), ``visited`` (a
        link to a product seen before, in an ``exact`` shop), ``option`` or ``chosen``.
    group: name of the option; None for other elements.
    """

    text: str
    kind: str = "text"
    group: str | None = None


class Page(NamedTuple):
    """What a state shows, from top to bottom.

    clickables: see :func:`clickables`.
    """

    state: PageState
    elements: tuple[PageElement, ...]
    clickables: dict[str, int]
    has_search_bar: bool


_CONTROLS = (PageElement(BACK, "button"), PageElement(PREVIOUS, "button"))
_ITEM_BUTTONS = tuple(PageElement(label, "button") for label in (*PARTS, BUY))


def texts(*strings: str) -> tuple[PageElement, ...]:
    """The elements of those ``strings`` that are visible on a page."""
    visible_strings = (visible(string) for string in strings)
    return tuple(PageElement(string) for string in visible_strings if string is not None)


def clickables(elements: Iterable[PageElement]) -> dict[str, int]:
    """The lower-cased labels that can be clicked, each with the index of its element.

    Buttons and products come first, in page order, then options. A label that occurs twice means the button, or else
    the last option. ``search`` cannot be clicked: a search needs words.
    """
    buttons: dict[str, int] = {}
    options: dict[str, int] = {}
    for number, (label, role, group) in enumerate(elements):
        if group is not None:
            options[label.lower()] = number
        elif role in ("button", "product", "visited"):
            buttons.setdefault(label.lower(), number)
    labels = {**buttons, **options, **buttons} if options else buttons
    labels.pop("search", None)
    return labels


def parse_action(action: str, exact: bool = False) -> tuple[str, str] | None:
    """``("search" | "click", argument)``, or None for any other text.

    The published environment matches ``(.+)\\[(.+)\\]`` from the start of the first line: the name is in lower case
    without spaces, and text after the last bracket is ignored. That rule cannot click a label that contains a bracket.
    Unless ``exact``, the text between the outermost brackets is accepted as a label, too.

    >>> parse_action("click[Buy Now]"), parse_action("click[red [l]]"), parse_action("click[red [l]]", exact=True)
    (('click', 'Buy Now'), ('click', 'red [l]'), None)
    """
    # The expression itself takes quadratic time on a long row of brackets.
    line = action.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 1, end - 1) if end > 0 else -1
    if start > 0 and line[:start] in ("search", "click"):
        return line[:start], line[start + 1 : end]
    end = action.rfind("]")
    if not exact and action.startswith("click[") and end > len("click["):
        return "click", action[len("click[") : end]
    return None


def regular_query(words: str) -> str:
    """A query as the shop stores it: cleaned, lower-cased, at most 500 characters."""
    return clean(words.lower(), MAX_QUERY_LENGTH)


class Shop:
    """The state machine over one store.

    results_per_page: 10 in the published environment.
    exact: show exactly the published environment's text; requires a store opened with ``exact``.
    """

    def __init__(self, store: Store, results_per_page: int = 10, exact: bool = False):
        if results_per_page < 1:
            raise InvalidArgument(
                f"results_per_page must be at least 1, got {results_per_page}", key="results_per_page"
            )
        self.store = store
        self.results_per_page = results_per_page
        self.exact = exact
        cached = functools.lru_cache(CACHED_PAGES)
        self.goal: Callable[[str], Goal] = cached(store.goal)
        """The goal of a task; raises UnknownTask."""
        self.page: Callable[[PageState], Page] = cached(self._page)
        """The page of a state."""
        self._options = cached(self._make_options)
        self._card = functools.lru_cache(4 * CACHED_PAGES)(self._make_card)

    # Moving ---------------------------------------------------------------------------------------------------------

    def start(self, task: str) -> PageState:
        """The first page of a task; raises UnknownTask."""
        return PageState(self.goal(task).id)

    def search(self, state: PageState, words: str) -> PageState | None:
        """The state after a search, which works on every page; None for an empty text or after the purchase."""
        if not words or state.kind == DONE:
            return None
        if not self.exact:
            return self._results_of(state, regular_query(words), 1)
        query = words.lower()[:MAX_EXACT_QUERY_LENGTH]
        if stops(query, len(self.store)):
            return None
        return self._results_of(state, query, 1)

    def click(self, state: PageState, label: str) -> PageState | None:
        """The state after a click on ``label`` (any case), or None if the page has no such label.

        In an ``exact`` shop also None where the published environment stops with an exception.
        """
        page = self.page(state)
        number = page.clickables.get(label.lower())
        if number is None:
            return None
        element = page.elements[number]
        if self.exact:
            return self._press_published(state, element)
        return self.press(state, element)

    def _results_of(self, state: PageState, query: str, page: int) -> PageState:
        """A page of the results of ``query``, reached from ``state``."""
        after = PageState(state.task, RESULTS, query, page, visited=state.visited, draws=state.draws)
        if self.is_drawn(after):
            return after._replace(draws=state.draws + 1)
        return after

    def is_drawn(self, state: PageState) -> bool:
        """Whether the results are random products, others on every page that is shown."""
        return self.exact and is_random(state.query)

    def can_say(self, label: str) -> bool:
        """Whether ``click[label]`` is parsed as a click on ``label``; with brackets it is not, in an ``exact`` shop."""
        return parse_action(f"click[{label}]", self.exact) == ("click", label)

    def press(self, state: PageState, element: PageElement) -> PageState:
        """The state after pressing a clickable element of the page of ``state``."""
        if element.kind in ("product", "visited"):
            return state._replace(kind=ITEM, product=self.store.number(element.text))
        if element.group is not None:
            return self._choose(state, element.group, element.text)
        if element.text == BACK:
            return PageState(state.task)
        if element.text == BUY:
            return PageState(state.task, DONE, product=state.product, options=state.options, visited=state.visited)
        if element.text == NEXT:
            return state._replace(page=state.page + 1)
        if element.text == PREVIOUS and state.kind == RESULTS:
            return state._replace(page=state.page - 1)
        if element.text == PREVIOUS and state.kind == PART:
            return state._replace(kind=ITEM, part="")
        if element.text == PREVIOUS:
            return PageState(state.task, RESULTS, state.query, state.page, visited=state.visited)
        return state._replace(kind=PART, part=element.text.lower())

    def _press_published(self, state: PageState, element: PageElement) -> PageState | None:
        """The state after pressing an element by the published rules, which go by its label before its kind."""
        label = element.text.lower()
        if label == BACK.lower():
            return PageState(state.task, draws=state.draws)
        if label == BUY.lower():
            # Without a product, which only a product named like the button can cause, it stops.
            purchase = state._replace(kind=DONE, query="", page=0, part="")
            return purchase if state.product >= 0 else None
        if label in (NEXT.lower(), PREVIOUS.lower()):
            routed_page = routed_kind(state.kind, state.query, state.options)
            if routed_page == RESULTS:
                return self._results_of(state, state.query, state.page + (1 if label == NEXT.lower() else -1))
            if label == PREVIOUS.lower():
                if routed_page == ITEM:
                    return self._results_of(state, state.query, state.page)
                return state._replace(kind=ITEM, part="")
        if label in PUBLISHED_PARTS:
            if state.product >= 0:
                return state._replace(kind=PART, part=label)
            return None
        if element.group is not None:
            return self._choose(state, element.group, element.text)
        try:
            number = self.store.number(label.upper())
        except UnknownProduct:  # an asin with lower-case letters
            return None
        return state._replace(kind=ITEM, product=number, visited=state.visited | {number})

    def _choose(self, state: PageState, name: str, value: str) -> PageState:
        options = {**dict(state.options), name: value}
        names = self.store.product(state.product).options
        return state._replace(options=tuple((name, options[name]) for name in names if name in options))

    def results(self, state: PageState) -> tuple[int, ...]:
        """The products that the state's query finds, on all pages."""
        if self.is_drawn(state):
            return draw(len(self.store), f"{state.task} {state.draws}")
        if self.exact and is_hidden(state.query):
            return self.store.labels.products(state.query)
        return self.store.index.search(state.query)

    # Showing --------------------------------------------------------------------------------------------------------

    def verdict(self, state: PageState) -> PurchaseScore:
        """The score of the purchase that a ``DONE`` state shows."""
        goal = self.goal(state.task)
        goal_product = self.store.product(self.store.number(goal.asin))
        bought_product = self.store.product(state.product)
        return score_purchase(goal, goal_product, bought_product, self.store.price(state.product), dict(state.options))

    def _page(self, state: PageState) -> Page:
        elements = self._elements(state)
        return Page(state, elements, clickables(elements), any(element.kind == "search" for element in elements))

    def _elements(self, state: PageState) -> tuple[PageElement, ...]:
        if state.kind == DONE:
            return self._thanks(state)
        instruction = texts(self.goal(state.task).instruction)
        if state.kind == INDEX:
            # The first page of the published environment has one more space.
            return (PageElement("WebShop"), PageElement("Instruction: "), *instruction, PageElement(SEARCH, "search"))
        head = (PageElement("Instruction:"), *instruction)
        if state.kind == RESULTS:
            return (*head, *self._results(state))
        if state.kind == ITEM:
            return (*head, *_CONTROLS, *self._item(state))
        return (*head, *_CONTROLS, *self._part(state))

    def _part(self, state: PageState) -> tuple[PageElement, ...]:
        product = self.store.product(state.product)
        if state.part == "description":
            return texts(product.description)
        if state.part == "features":
            return texts(*(f" {bullet}" for bullet in product.bullets))
        if state.part == ATTRIBUTES:
            attributes = (f" {attribute}" for attribute in product.attributes)
            return texts(*attributes, product.category, product.query, product.product_category)
        return ()

    def _thanks(self, state: PageState) -> tuple[PageElement, ...]:
        score = str(self.verdict(state).reward)
        if not self.exact:
            return texts("Thank you for shopping with us!", "Your score (min 0.0, max 1.0)", score)
        # The published page is a survey form; the text environment fills in None for what it does not know.
        options = json.dumps(dict(state.options), sort_keys=True)
        for symbol in "<>&'":
            options = options.replace(symbol, f"\\u{ord(symbol):04x}")
        asin = self.store.product(state.product).asin
        return texts(
            *("Thank you for shopping with us!", "Your code: ", "None", " (Paste it in your MTurk interface.)"),
            *("Purchased", "asin", asin, "options", options, "attrs", "None", "category", "None", "query", "None"),
            *("product category", "None", "Target", "asin", "options", "attrs", "price upper", "instuction text"),
            *("category", "product category", "query", "Goal ", "None", "Reward", "Your score (min 0.0, max 1.0)"),
            *(score, "Reward Details ", "None"),
        )

    def _results(self, state: PageState) -> list[PageElement]:
        products = self.results(state)
        elements = [PageElement(BACK, "button"), PageElement(f"Page {state.page} (Total results: {len(products)})")]
        if state.page > 1:
            elements.append(PageElement(PREVIOUS, "button"))
        elements.append(PageElement(NEXT, "button"))
        first = (state.page - 1) * self.results_per_page  # a misrouted click can lead to page 0, which is empty
        for number in products[first : first + self.results_per_page] if first >= 0 else ():
            product, *facts = self._card(number)
            elements += [product._replace(kind="visited") if number in state.visited else product, *facts]
        return elements

    def _make_card(self, number: int) -> tuple[PageElement, ...]:
        """A product in a list of results."""
        product = self.store.product(number)
        return (PageElement(product.asin, "product"), *texts(product.title, product.price_tag))

    def _item(self, state: PageState) -> tuple[PageElement, ...]:
        product = self.store.product(state.product)
        options = self._options(state.product)
        if state.options or self.exact:
            options = tuple(p._replace(kind="chosen") if self._is_chosen(state, p) else p for p in options)
        return (*options, *texts(product.title, f"Price: {product.price_tag}", "Rating: N.A."), *_ITEM_BUTTONS)

    def _is_chosen(self, state: PageState, element: PageElement) -> bool:
        """Whether an option is marked as clicked.

        The published environment searches the page's address, which holds the query and the options as JSON, for the
        quoted value: it misses non-ASCII letters and also marks equal values of other options.
        """
        if element.group is None or not self.exact:
            return (element.group, element.text) in state.options
        return (
            f'"{element.text}"' in f"{'+'.join(state.query.split(' '))}/{state.page}/{json.dumps(dict(state.options))}"
        )

    def _make_options(self, number: int) -> tuple[PageElement, ...]:
        """The options of a product, none of them chosen."""
        elements: list[PageElement] = []
        for name, values in self.store.product(number).options.items():
            elements += [*texts(name), *(PageElement(value, "option", name) for value in values if value)]
        return tuple(elements)
