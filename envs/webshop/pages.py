"""The page machine: a state is a page, an action leads from state to state, and nothing else is remembered.

The text environment and the site both show what :meth:`Shop.page` returns and both move by :meth:`Shop.click` and
:meth:`Shop.search`, so they cannot differ. A state is a plain value; its address (``render.address``) holds all of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from gagpo.envs.errors import InvalidArgument
from gagpo.envs.webshop.catalogue import clean
from gagpo.envs.webshop.goals import Goal
from gagpo.envs.webshop.reward import Verdict, judge
from gagpo.envs.webshop.store import Store

INDEX, RESULTS, ITEM, PART, DONE = "index", "results", "item", "part", "done"
PARTS = ("Description", "Features", "Reviews")
BACK, PREVIOUS, NEXT, BUY, SEARCH = "Back to Search", "< Prev", "Next >", "Buy Now", "Search"
LONGEST_QUERY = 500
REMEMBERED_PAGES = 1_024


class State(NamedTuple):
    """Where a shopper is. Fields that a kind of page does not need hold their defaults, so equal pages are equal.

    page: of the results, from 1. product: number in the store, -1 for none. part: one of ``PARTS``, lower-cased.
    options: chosen (name, value) pairs in the product's order.
    """

    task: str
    kind: str = INDEX
    query: str = ""
    page: int = 0
    product: int = -1
    part: str = ""
    options: tuple[tuple[str, str], ...] = ()


class Piece(NamedTuple):
    """One visible string. kind: ``text``, ``button``, ``search`` (the button of the search form), ``product`` (a link
    to it), ``option`` or ``chosen``; group: the option's name."""

    text: str
    kind: str = "text"
    group: str = ""


class Section(NamedTuple):
    """Pieces that belong together on the page; the role says how to lay them out."""

    role: str
    pieces: tuple[Piece, ...]


class Page(NamedTuple):
    """What a state shows, top to bottom."""

    state: State
    sections: tuple[Section, ...]
    pieces: tuple[Piece, ...]
    clickables: dict[str, int]
    has_search_bar: bool


_CONTROLS = Section("controls", (Piece(BACK, "button"), Piece(PREVIOUS, "button")))
_PARTS = Section("parts", tuple(Piece(part, "button") for part in PARTS))
_BUY = Section("buy", (Piece(BUY, "button"),))


class Unreachable(ValueError):
    """A state that no sequence of actions leads to."""


def make_page(state: State, sections: Iterable[Section]) -> Page:
    """Put a page together and find what can be clicked on it."""
    sections = tuple(sections)
    pieces = tuple(piece for section in sections for piece in section.pieces)
    return Page(state, sections, pieces, clickables(pieces), any(piece.kind == "search" for piece in pieces))


def clickables(pieces: Iterable[Piece]) -> dict[str, int]:
    """Lower-cased labels that can be clicked, each with the number of the piece it means: buttons and products in page
    order, then options.

    A label that occurs twice means the button, else the last option (as in the published environment, but that there
    an option can hide a button). The search button is none of them: a search carries words.
    """
    buttons: dict[str, int] = {}
    options: dict[str, int] = {}
    for number, (words, kind, group) in enumerate(pieces):
        if group:
            options[words.lower()] = number
        elif kind in ("button", "product"):
            buttons.setdefault(words.lower(), number)
    return {**buttons, **options, **buttons} if options else buttons


def regular_query(words: str) -> str:
    """A query as the shop keeps it: clean, lower-cased, at most 500 characters."""
    return clean(words.lower(), LONGEST_QUERY)


def regular_label(label: str) -> str:
    """A label as it is compared: clean and lower-cased."""
    return clean(label).lower()


class Shop:
    """The page machine over one store. ``results_per_page`` is 10 in the published environment."""

    def __init__(self, store: Store, results_per_page: int = 10, strict_options: bool = False):
        if results_per_page < 1:
            raise InvalidArgument(f"results_per_page must be at least 1, got {results_per_page}")
        self.store = store
        self.results_per_page = results_per_page
        self.strict_options = strict_options
        self._goals: OrderedDict[str, Goal] = OrderedDict()
        self._pages: OrderedDict[State, Page] = OrderedDict()
        self._cards: OrderedDict[int, Section] = OrderedDict()
        self._choices: OrderedDict[int, tuple[Section, ...]] = OrderedDict()

    # Moving ---------------------------------------------------------------------------------------------------------

    def start(self, task: str) -> State:
        """The first page of a task; raises UnknownTask."""
        return State(self.goal(task).id)

    def search(self, state: State, words: str) -> State | None:
        """Where searching leads; None without words or after the purchase. Works on every page."""
        query = regular_query(words)
        if not query or state.kind == DONE:
            return None
        return State(state.task, RESULTS, query, 1)

    def click(self, state: State, label: str) -> State | None:
        """Where clicking ``label`` (any case) leads, None when the page has no such thing to click."""
        page = self.page(state)
        number = page.clickables.get(regular_label(label))
        return None if number is None else self.press(state, page.pieces[number])

    def press(self, state: State, piece: Piece) -> State:
        """Where pressing a clickable piece of the page of ``state`` leads."""
        if piece.kind == "product":
            return state._replace(kind=ITEM, product=self.store.number(piece.text))
        if piece.group:
            return self._choose(state, piece.group, piece.text)
        if piece.text == BACK:
            return State(state.task)
        if piece.text == BUY:
            return State(state.task, DONE, product=state.product, options=state.options)
        if piece.text == NEXT:
            return state._replace(page=state.page + 1)
        if piece.text == PREVIOUS and state.kind == RESULTS:
            return state._replace(page=state.page - 1)
        if piece.text == PREVIOUS and state.kind == PART:
            return state._replace(kind=ITEM, part="")
        if piece.text == PREVIOUS:
            return State(state.task, RESULTS, state.query, state.page)
        return state._replace(kind=PART, part=piece.text.lower())

    def _choose(self, state: State, name: str, value: str) -> State:
        chosen = {**dict(state.options), name: value}
        names = self.store.product(state.product).options
        return state._replace(options=tuple((name, chosen[name]) for name in names if name in chosen))

    def validate(self, state: State) -> State:
        """``state`` itself if actions lead to it; raises Unreachable with the reason."""
        self.goal(state.task)
        if state.kind == INDEX:
            good = state == State(state.task)
        elif state.kind == RESULTS:
            good = state == State(state.task, RESULTS, regular_query(state.query), state.page) and self._has(state)
        elif state.kind in (ITEM, PART):
            good = (state.part in {name.lower() for name in PARTS}) == (state.kind == PART)
            good = good and bool(state.part) == (state.kind == PART) and self._has(state)
            good = good and state.product in self._shown(state) and self._has_options(state)
        else:
            good = state == State(state.task, DONE, product=state.product, options=state.options)
            good = good and 0 <= state.product < len(self.store) and self._has_options(state)
        if not good:
            raise Unreachable("no such page: the address was changed or is out of date")
        return state

    def _has(self, state: State) -> bool:
        """Whether the state's query and results page exist."""
        if not state.query or state.query != regular_query(state.query) or state.page < 1:
            return False
        return state.page == 1 or (state.page - 1) * self.results_per_page < len(self.store.index.search(state.query))

    def _shown(self, state: State) -> tuple[int, ...]:
        first = (state.page - 1) * self.results_per_page
        return self.store.index.search(state.query)[first : first + self.results_per_page]

    def _has_options(self, state: State) -> bool:
        options = self.store.product(state.product).options
        names = [name for name in options if name in dict(state.options)]
        return names == [name for name, _ in state.options] and all(v in options[n] for n, v in state.options)

    # Seeing ---------------------------------------------------------------------------------------------------------

    def goal(self, task: str) -> Goal:
        """The goal of a task; raises UnknownTask."""
        goal = self._goals.get(task)
        if goal is None:
            goal = self._goals[task] = self.store.goal(task)
            if len(self._goals) > REMEMBERED_PAGES:
                self._goals.popitem(last=False)
        return goal

    def page(self, state: State) -> Page:
        """What ``state`` shows. The latest pages are remembered."""
        page = self._pages.get(state)
        if page is None:
            page = self._pages[state] = make_page(state, self._sections(state))
            if len(self._pages) > REMEMBERED_PAGES:
                self._pages.popitem(last=False)
        return page

    def verdict(self, state: State) -> Verdict:
        """What the purchase shown by a ``DONE`` state is worth."""
        goal = self.goal(state.task)
        return judge(
            goal,
            self.store.product(self.store.number(goal.asin)),
            self.store.product(state.product),
            self.store.price(state.product),
            dict(state.options),
            self.strict_options,
        )

    def _sections(self, state: State) -> list[Section]:
        if state.kind == DONE:
            score = str(self.verdict(state).reward)
            thanks = (Piece("Thank you for shopping with us!"), Piece("Your score (min 0.0, max 1.0)"), Piece(score))
            return [Section("done", thanks)]
        instruction = Section("instruction", (Piece("Instruction:"), Piece(self.goal(state.task).instruction)))
        if state.kind == INDEX:
            return [Section("brand", (Piece("WebShop"),)), instruction, Section("search", (Piece(SEARCH, "search"),))]
        if state.kind == RESULTS:
            return [instruction, *self._results(state)]
        if state.kind == ITEM:
            return [instruction, _CONTROLS, *self._item(state)]
        product = self.store.product(state.product)
        texts = {"description": (product.description,), "features": product.bullets, "reviews": ()}[state.part]
        return [instruction, _CONTROLS, Section("part", tuple(Piece(text) for text in texts if text))]

    def _results(self, state: State) -> list[Section]:
        total = len(self.store.index.search(state.query))
        controls = [Piece(BACK, "button"), Piece(f"Page {state.page} (Total results: {total})")]
        if state.page > 1:
            controls.append(Piece(PREVIOUS, "button"))
        if state.page * self.results_per_page < total:
            controls.append(Piece(NEXT, "button"))
        return [Section("controls", tuple(controls)), *map(self._card, self._shown(state))]

    def _card(self, number: int) -> Section:
        card = self._cards.get(number)
        if card is None:
            product = self.store.product(number)
            pieces = (Piece(product.asin, "product"), Piece(product.title), Piece(product.price_tag))
            card = self._cards[number] = Section("card", pieces)
            if len(self._cards) > 4 * REMEMBERED_PAGES:
                self._cards.popitem(last=False)
        return card

    def _item(self, state: State) -> list[Section]:
        product = self.store.product(state.product)
        chosen = dict(state.options)
        sections = []
        for section in self._choices_of(state.product):
            wanted = chosen.get(section.pieces[0].text)
            if wanted is not None:
                marked = [p._replace(kind="chosen") if p.group and p.text == wanted else p for p in section.pieces]
                section = Section(section.role, tuple(marked))
            sections.append(section)
        facts = (Piece(product.title), Piece(f"Price: {product.price_tag}"), Piece("Rating: N.A."))
        return [*sections, Section("facts", facts), _PARTS, _BUY]

    def _choices_of(self, number: int) -> tuple[Section, ...]:
        """The options of a product, none of them chosen."""
        sections = self._choices.get(number)
        if sections is None:
            options = self.store.product(number).options
            sections = self._choices[number] = tuple(
                Section("options", (Piece(name), *(Piece(value, "option", name) for value in values)))
                for name, values in options.items()
            )
            if len(self._choices) > REMEMBERED_PAGES:
                self._choices.popitem(last=False)
        return sections
