"""The page machine: a state is a page, an action leads from state to state, and nothing else is remembered.

The text environment and the site both show what :meth:`Shop.page` returns and both move by :meth:`Shop.click` and
:meth:`Shop.search`, so they cannot differ. A state is a plain value; its address (``render.address``) holds all of it.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from gagpo.base.errors import InvalidArgument
from gagpo.envs.webshop.goals import Goal
from gagpo.envs.webshop.reward import PurchaseScore, judge
from gagpo.envs.webshop.store import Store
from gagpo.envs.webshop.texts import clean, visible

INDEX, RESULTS, ITEM, PART, DONE = "index", "results", "item", "part", "done"
PARTS = ("Description", "Features", "Reviews")
BACK, PREVIOUS, NEXT, BUY, SEARCH = "Back to Search", "< Prev", "Next >", "Buy Now", "Search"
LONGEST_QUERY = 500
LONGEST_EXACT_QUERY = 10_000
LAST_PAGE = 999_999_999
REMEMBERED_PAGES = 1_024


class PageState(NamedTuple):
    """Where a shopper is. Fields that a kind of page does not need hold their defaults, so equal pages are equal.

    page: of the results, from 1. product: number in the store, -1 for none. part: one of ``PARTS``,
    lower-cased. options: chosen (name, value) pairs in the product's order. seen: products visited since the first
    page, which only an ``exact`` shop keeps.
    """

    task: str
    kind: str = INDEX
    query: str = ""
    page: int = 0
    product: int = -1
    part: str = ""
    options: tuple[tuple[str, str], ...] = ()
    seen: frozenset[int] = frozenset()


class Piece(NamedTuple):
    """One visible string. kind: ``text``, ``button``, ``search`` (the button of the search form), ``product`` (a link
    to it), ``visited`` (the same in an ``exact`` shop), ``option`` or ``chosen``; group: the option's name, None for
    what is no option."""

    text: str
    kind: str = "text"
    group: str | None = None


class PageSection(NamedTuple):
    """Pieces that belong together on the page; the role says how to lay them out."""

    role: str
    pieces: tuple[Piece, ...]


class Page(NamedTuple):
    """What a state shows, top to bottom."""

    state: PageState
    sections: tuple[PageSection, ...]
    pieces: tuple[Piece, ...]
    clickables: dict[str, int]
    has_search_bar: bool


_CONTROLS = PageSection("controls", (Piece(BACK, "button"), Piece(PREVIOUS, "button")))
_BUY = PageSection("buy", (Piece(BUY, "button"),))


class NoSuchPage(ValueError):
    """A state that no sequence of actions leads to."""


def make_page(state: PageState, sections: Iterable[PageSection]) -> Page:
    """Put a page together and find what can be clicked on it."""
    sections = tuple(sections)
    pieces = tuple(piece for section in sections for piece in section.pieces)
    return Page(state, sections, pieces, clickables(pieces), any(piece.kind == "search" for piece in pieces))


def texts(*strings: str) -> tuple[Piece, ...]:
    """The pieces that ``strings`` of a page are; what is nothing on a page is none."""
    seen = (visible(string) for string in strings)
    return tuple(Piece(string) for string in seen if string is not None)


def clickables(pieces: Iterable[Piece]) -> dict[str, int]:
    """Lower-cased labels that can be clicked, each with the number of the piece it means: buttons and products in page
    order, then options.

    A label that occurs twice means the button, else the last option. ``search`` is none of them, whatever bears that
    name: a search carries words.
    """
    buttons: dict[str, int] = {}
    options: dict[str, int] = {}
    for number, (words, kind, group) in enumerate(pieces):
        if group is not None:
            options[words.lower()] = number
        elif kind in ("button", "product", "visited"):
            buttons.setdefault(words.lower(), number)
    found = {**buttons, **options, **buttons} if options else buttons
    found.pop("search", None)
    return found


def parse_action(action: str, exact: bool = False) -> tuple[str, str] | None:
    """``("search" | "click", argument)``, None for anything else.

    As the published environment reads actions, with ``(.+)\\[(.+)\\]`` from the start of the first line: the name is
    written in small letters and without blanks, what follows the last bracket is ignored. That rule cannot click a
    label with a bracket in it; unless ``exact``, what stands between the outermost brackets is a label too.

    >>> parse_action("click[Buy Now]"), parse_action("click[red [l]]"), parse_action("click[red [l]]", exact=True)
    (('click', 'Buy Now'), ('click', 'red [l]'), None)
    """
    # Not by the expression itself: on a long row of brackets it takes quadratic time.
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
    """A query as the shop keeps it: clean, lower-cased, at most 500 characters."""
    return clean(words.lower(), LONGEST_QUERY)


class Shop:
    """The page machine over one store.

    results_per_page: 10 in the published environment.
    exact: nothing differs from the published environment's text; open the store with ``exact`` too.
    """

    def __init__(self, store: Store, results_per_page: int = 10, exact: bool = False):
        if results_per_page < 1:
            raise InvalidArgument(f"results_per_page must be at least 1, got {results_per_page}")
        self.store = store
        self.results_per_page = results_per_page
        self.exact = exact
        self._parts = PageSection("parts", tuple(Piece(part, "button") for part in PARTS))
        self._goals: OrderedDict[str, Goal] = OrderedDict()
        self._pages: OrderedDict[PageState, Page] = OrderedDict()
        self._cards: OrderedDict[int, PageSection] = OrderedDict()
        self._choices: OrderedDict[int, tuple[PageSection, ...]] = OrderedDict()

    # Moving ---------------------------------------------------------------------------------------------------------

    def start(self, task: str) -> PageState:
        """The first page of a task; raises UnknownTask."""
        return PageState(self.goal(task).id)

    def search(self, state: PageState, words: str) -> PageState | None:
        """Where searching leads; None for an empty text or after the purchase. Works on every page."""
        if not words or state.kind == DONE:
            return None
        query = words.lower()[:LONGEST_EXACT_QUERY] if self.exact else regular_query(words)
        return PageState(state.task, RESULTS, query, 1, seen=state.seen)

    def click(self, state: PageState, label: str) -> PageState | None:
        """Where clicking ``label`` (any case) leads, None when the page has no such thing to click."""
        page = self.page(state)
        number = page.clickables.get(label.lower())
        return None if number is None else self.press(state, page.pieces[number])

    def can_say(self, label: str) -> bool:
        """Whether ``click[label]`` is read as a click on ``label``: an ``exact`` shop knows none with brackets."""
        return parse_action(f"click[{label}]", self.exact) == ("click", label)

    def press(self, state: PageState, piece: Piece) -> PageState:
        """Where pressing a clickable piece of the page of ``state`` leads."""
        if piece.kind in ("product", "visited"):
            number = self.store.number(piece.text)
            return state._replace(kind=ITEM, product=number, seen=state.seen | {number} if self.exact else state.seen)
        if piece.group is not None:
            return self._choose(state, piece.group, piece.text)
        if piece.text == BACK:
            return PageState(state.task)
        if piece.text == BUY:
            return PageState(state.task, DONE, product=state.product, options=state.options, seen=state.seen)
        if piece.text == NEXT:
            return state._replace(page=state.page + 1)
        if piece.text == PREVIOUS and state.kind == RESULTS:
            return state._replace(page=state.page - 1)
        if piece.text == PREVIOUS and state.kind == PART:
            return state._replace(kind=ITEM, part="")
        if piece.text == PREVIOUS:
            return PageState(state.task, RESULTS, state.query, state.page, seen=state.seen)
        return state._replace(kind=PART, part=piece.text.lower())

    def _choose(self, state: PageState, name: str, value: str) -> PageState:
        chosen = {**dict(state.options), name: value}
        names = self.store.product(state.product).options
        return state._replace(options=tuple((name, chosen[name]) for name in names if name in chosen))

    def validate(self, state: PageState) -> PageState:
        """``state`` itself if actions lead to it; raises NoSuchPage with the reason."""
        self.goal(state.task)
        if state.kind == INDEX:
            good = state == PageState(state.task)
        elif state.kind == RESULTS:
            good = state == PageState(state.task, RESULTS, regular_query(state.query), state.page) and self._has(state)
        elif state.kind in (ITEM, PART):
            good = self._has(state) and state.product in self._shown(state) and self._has_options(state)
            item = state._replace(kind=ITEM, part="")
            good = good and (state == item or self.click(item, state.part) == state)
        else:
            good = state == PageState(state.task, DONE, product=state.product, options=state.options)
            good = good and 0 <= state.product < len(self.store) and self._has_options(state)
        if not good:
            raise NoSuchPage("no such page: the address was changed or is out of date")
        return state

    def _has(self, state: PageState) -> bool:
        """Whether the state's query and results page exist. Pages go on after the last result, empty."""
        return state.query == regular_query(state.query) and 1 <= state.page <= LAST_PAGE

    def _shown(self, state: PageState) -> tuple[int, ...]:
        first = (state.page - 1) * self.results_per_page
        return self.store.index.search(state.query)[first : first + self.results_per_page]

    def _has_options(self, state: PageState) -> bool:
        options = self.store.product(state.product).options
        names = [name for name in options if name in dict(state.options)]
        return names == [name for name, _ in state.options] and all(v and v in options[n] for n, v in state.options)

    # Seeing ---------------------------------------------------------------------------------------------------------

    def goal(self, task: str) -> Goal:
        """The goal of a task; raises UnknownTask."""
        goal = self._goals.get(task)
        if goal is None:
            goal = self._goals[task] = self.store.goal(task)
            if len(self._goals) > REMEMBERED_PAGES:
                self._goals.popitem(last=False)
        return goal

    def page(self, state: PageState) -> Page:
        """What ``state`` shows. The latest pages are remembered."""
        page = self._pages.get(state)
        if page is None:
            page = self._pages[state] = make_page(state, self._sections(state))
            if len(self._pages) > REMEMBERED_PAGES:
                self._pages.popitem(last=False)
        return page

    def verdict(self, state: PageState) -> PurchaseScore:
        """What the purchase shown by a ``DONE`` state is worth."""
        goal = self.goal(state.task)
        return judge(
            goal,
            self.store.product(self.store.number(goal.asin)),
            self.store.product(state.product),
            self.store.price(state.product),
            dict(state.options),
        )

    def _sections(self, state: PageState) -> list[PageSection]:
        if state.kind == DONE:
            return [PageSection("done", self._thanks(state))]
        # The first page of the published environment has a blank more.
        label = Piece("Instruction: " if state.kind == INDEX else "Instruction:")
        instruction = PageSection("instruction", (label, *texts(self.goal(state.task).instruction)))
        if state.kind == INDEX:
            return [
                PageSection("brand", (Piece("WebShop"),)),
                instruction,
                PageSection("search", (Piece(SEARCH, "search"),)),
            ]
        if state.kind == RESULTS:
            return [instruction, *self._results(state)]
        if state.kind == ITEM:
            return [instruction, _CONTROLS, *self._item(state)]
        product = self.store.product(state.product)
        if state.part == "description":
            shown = texts(product.description)
        elif state.part == "features":
            shown = texts(*(f" {bullet}" for bullet in product.bullets))
        else:
            shown = ()
        return [instruction, _CONTROLS, PageSection("part", shown)]

    def _thanks(self, state: PageState) -> tuple[Piece, ...]:
        score = str(self.verdict(state).reward)
        if not self.exact:
            return texts("Thank you for shopping with us!", "Your score (min 0.0, max 1.0)", score)
        # The published page as text: a survey's form, filled in with what the text environment does not know.
        options = json.dumps(dict(state.options), sort_keys=True)
        for sign in "<>&'":
            options = options.replace(sign, f"\\u{ord(sign):04x}")
        bought = self.store.product(state.product).asin
        return texts(
            *("Thank you for shopping with us!", "Your code: ", "None", " (Paste it in your MTurk interface.)"),
            *("Purchased", "asin", bought, "options", options, "attrs", "None", "category", "None", "query", "None"),
            *("product category", "None", "Target", "asin", "options", "attrs", "price upper", "instuction text"),
            *("category", "product category", "query", "Goal ", "None", "Reward", "Your score (min 0.0, max 1.0)"),
            *(score, "Reward Details ", "None"),
        )

    def _results(self, state: PageState) -> list[PageSection]:
        total = len(self.store.index.search(state.query))
        controls = [Piece(BACK, "button"), Piece(f"Page {state.page} (Total results: {total})")]
        if state.page > 1:
            controls.append(Piece(PREVIOUS, "button"))
        controls.append(Piece(NEXT, "button"))
        cards = []
        for number in self._shown(state):
            card = self._card(number)
            if number in state.seen:
                card = PageSection(card.role, (card.pieces[0]._replace(kind="visited"), *card.pieces[1:]))
            cards.append(card)
        return [PageSection("controls", tuple(controls)), *cards]

    def _card(self, number: int) -> PageSection:
        card = self._cards.get(number)
        if card is None:
            product = self.store.product(number)
            pieces = (Piece(product.asin, "product"), *texts(product.title, product.price_tag))
            card = self._cards[number] = PageSection("card", pieces)
            if len(self._cards) > 4 * REMEMBERED_PAGES:
                self._cards.popitem(last=False)
        return card

    def _item(self, state: PageState) -> list[PageSection]:
        product = self.store.product(state.product)
        sections = list(self._choices_of(state.product))
        if state.options or self.exact:
            sections = [
                PageSection(role, tuple(p._replace(kind="chosen") if self._is_chosen(state, p) else p for p in pieces))
                for role, pieces in sections
            ]
        facts = texts(product.title, f"Price: {product.price_tag}", "Rating: N.A.")
        return [*sections, PageSection("facts", facts), self._parts, _BUY]

    def _is_chosen(self, state: PageState, piece: Piece) -> bool:
        """Whether an option is marked as clicked.

        The published environment looks for the value in quotes in the page's address, where the query and the options
        as JSON stand: it misses letters beyond ASCII and finds equal values of other options.
        """
        if piece.group is None or not self.exact:
            return (piece.group, piece.text) in state.options
        return f'"{piece.text}"' in f"{'+'.join(state.query.split(' '))}/{state.page}/{json.dumps(dict(state.options))}"

    def _choices_of(self, number: int) -> tuple[PageSection, ...]:
        """The options of a product, none of them chosen."""
        sections = self._choices.get(number)
        if sections is None:
            options = self.store.product(number).options
            sections = self._choices[number] = tuple(
                PageSection("options", (*texts(name), *(Piece(value, "option", name) for value in values if value)))
                for name, values in options.items()
            )
            if len(self._choices) > REMEMBERED_PAGES:
                self._choices.popitem(last=False)
        return sections
