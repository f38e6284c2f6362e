"""Renders a page as text, rich text or HTML, and converts states to addresses and back."""

from __future__ import annotations

import functools
import html as markup
import re
from urllib.parse import parse_qsl, quote_plus, unquote

from gagpo.envs.webshop.pages import (
    DONE,
    INDEX,
    ITEM,
    LAST_PAGE,
    LONGEST_QUERY,
    PART,
    RESULTS,
    NoSuchPage,
    Page,
    PageSection,
    PageState,
    Piece,
    Shop,
    regular_query,
)
from gagpo.envs.webshop.store import UnknownProduct

ROOT = "/shop"


def text(pieces: tuple[Piece, ...]) -> str:
    """The visible strings, trimmed and joined by ``[SEP]``."""
    return " [SEP] ".join([piece.text.strip() for piece in pieces])


def text_rich(pieces: tuple[Piece, ...]) -> str:
    """One line per visible string, with marks around clickable ones; the chosen options come first."""
    chosen, lines = [], []
    for words, kind, _ in pieces:
        if kind == "text":
            lines.append(words)
        elif kind == "option":
            lines.append(f"  [button] {words} [button_]")
        elif kind == "chosen":
            lines.append(f"  [clicked button] {words} [clicked button_]")
            chosen.append(f"You have clicked {words}.")
        elif kind == "product":
            lines.append(f"\n[button] {words} [button_]")
        elif kind == "visited":
            lines.append(f"\n[clicked button] {words} [clicked button_]")
        else:
            lines.append(f"[button] {words} [button_]")
    return "\n".join([*chosen[::-1], *lines, ""])


# Addresses ------------------------------------------------------------------------------------------------------------


def address(shop: Shop, state: PageState) -> str:
    """Path and query of the state's page on the site. It contains the whole state, and each page has only one."""
    path = f"{ROOT}/{_quoted(state.task)}"
    if state.kind == INDEX:
        return path
    fields = [] if state.kind == DONE else [f"q={_quoted(state.query)}", f"page={state.page}"]
    if state.product >= 0:
        fields.append(f"asin={_quoted(shop.store.product(state.product).asin)}")
    fields += [f"option.{_quoted(name)}={_quoted(value)}" for name, value in state.options]
    fields += sorted(f"seen={_quoted(shop.store.product(number).asin)}" for number in state.seen)
    return f"{path}/{state.part or state.kind}?{'&'.join(fields)}"


@functools.lru_cache(maxsize=16_384)
def _quoted(text: str) -> str:
    return quote_plus(text)


def state_at(shop: Shop, task: str, kind: str, query: str) -> PageState:
    """The state whose page is at ``/shop/<task>/<kind>?<query>``.

    Unknown fields are ignored, and a missing page number is 1.

    Raises:
        UnknownTask: unknown task.
        NoSuchPage: no sequence of actions leads to the page.
    """
    shop.goal(task)
    if kind == INDEX:
        return PageState(task)
    try:
        fields = dict(parse_qsl(query, keep_blank_values=True, errors="replace", max_num_fields=100))
        product = shop.store.number(fields["asin"]) if kind != RESULTS else -1
        digits = fields.get("page", "1")
        page = int(digits) if len(digits) <= len(str(LAST_PAGE)) else 0
    except (KeyError, ValueError, UnknownProduct):
        raise NoSuchPage("no such page: the address is incomplete or wrong") from None
    options = tuple((n.removeprefix("option."), v) for n, v in fields.items() if n.startswith("option."))
    words = fields.get("q", "")
    if kind == RESULTS:
        # An empty form, unlike a search for spaces, sends no page number.
        asked = words or "page" in fields
        return shop.validate(PageState(task, RESULTS, regular_query(words), page)) if asked else PageState(task)
    if kind == DONE:
        return shop.validate(PageState(task, DONE, product=product, options=options))
    if kind == ITEM:
        return shop.validate(PageState(task, ITEM, words, page, product, options=options))
    return shop.validate(PageState(task, PART, words, page, product, unquote(kind), options))


# HTML -----------------------------------------------------------------------------------------------------------------

_HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title} · WebShop</title>\n'
    '<link rel="stylesheet" href="/style.css">\n</head>\n<body>\n<main class="page-{kind}">\n'
)
_TENTHS = re.compile(r"(?<=\$)\d+\.\d(?!\d)")
_FOOT = '</main>\n<footer><a href="/">All tasks</a></footer>\n</body>\n</html>\n'
_NAVIGATION = {"controls": "Pages", "parts": "More about this product", "buy": "Purchase"}
_TITLES = {INDEX: "Search", RESULTS: "Results", ITEM: "Product", PART: "Product", DONE: "Thank you"}


def html(shop: Shop, page: Page) -> str:
    """The document that the site serves for ``page``. Every text of the data files is escaped, in a ``bdi``."""
    state = page.state
    parts = [_HEAD.format(title=_TITLES[state.kind], kind=state.kind)]
    cards = False
    for section in page.sections:
        if (section.role == "card") != cards:
            parts.append("</ul>\n" if cards else '<ul class="results" aria-label="Results">\n')
            cards = not cards
        parts.append(_section(shop, state, section))
    if cards:
        parts.append("</ul>\n")
    parts.append(_FOOT)
    return "".join(parts)


def _section(shop: Shop, state: PageState, section: PageSection) -> str:
    role, pieces = section
    if role == "search":
        return _search_form(shop, state, pieces[0])
    if role == "card":
        link, *title, price = pieces
        heading = "".join(f"<h2>{_plain(piece)}</h2>" for piece in title)
        return f'<li class="card">{_link(shop, state, link)}{heading}<p class="price">{_price(price)}</p></li>\n'
    if role == "options":
        heading = "".join(f"<h2>{_plain(piece)}</h2>" for piece in pieces if piece.group is None)
        links = "".join(f"<li>{_link(shop, state, piece)}</li>" for piece in pieces if piece.group is not None)
        return f'<section class="options">{heading}<ul>{links}</ul></section>\n'
    if role == "instruction":
        label, *instruction = pieces
        words = "".join(map(_plain, instruction))
        return f'<header class="instruction"><p>{_plain(label)}</p><h1>{words}</h1></header>\n'
    if role == "facts":
        *title, price, rating = pieces
        heading = "".join(f"<h2>{_plain(piece)}</h2>" for piece in title)
        return (
            f'<section class="facts">{heading}<p class="price">{_price(price)}</p><p>{_plain(rating)}</p></section>\n'
        )
    if role == "done":
        thanks, meaning, score = pieces
        shown = f'<h1>{_plain(thanks)}</h1><p>{_plain(meaning)}</p><p class="score">{_plain(score)}</p>\n'
        return shown + _breakdown(shop, state) + _next_task(shop, state)
    if role == "brand":
        return f'<p class="brand">{_plain(pieces[0])}</p>\n'
    if role == "part":
        return "".join(f"<p>{_plain(piece)}</p>\n" for piece in pieces)
    inner = " ".join(_plain(piece) if piece.kind == "text" else _link(shop, state, piece) for piece in pieces)
    return f'<nav class="{role}" aria-label="{_NAVIGATION[role]}">{inner}</nav>\n'


def _search_form(shop: Shop, state: PageState, button: Piece) -> str:
    target = escape(address(shop, PageState(state.task)))
    return (
        f'<form class="search" role="search" method="get" action="{target}/results">'
        f'<input type="search" name="q" maxlength="{LONGEST_QUERY}" aria-label="Words to search for" '
        f'required autofocus autocomplete="off">'
        f'<button type="submit" data-kind="search">{escape(button.text)}</button></form>\n'
    )


def escape(text: str) -> str:
    """``text`` escaped for HTML, including carriage returns, which a browser would change."""
    return markup.escape(text).replace("\r", "&#13;")


def _plain(piece: Piece) -> str:
    return f'<bdi data-kind="text" dir="auto">{escape(piece.text)}</bdi>'


def _price(piece: Piece) -> str:
    """A price with two decimals; ``data-text`` contains the text environment's spelling."""
    cents = _TENTHS.sub(lambda match: f"{match[0]}0", piece.text)
    return f'<bdi data-kind="text" data-text="{escape(piece.text)}" dir="auto">{escape(cents)}</bdi>'


def _link(shop: Shop, state: PageState, piece: Piece) -> str:
    current = ' aria-current="true"' if piece.kind == "chosen" else ""
    to = escape(address(shop, shop.press(state, piece)))
    mark = f'data-kind="{piece.kind}"'
    if piece.group is not None:
        # Choosing reloads the page. The fragment points to the option, so that it keeps the focus.
        name = escape(f"{_quoted(piece.group)}={_quoted(piece.text)}")
        mark = f'id="{name}" data-group="{escape(piece.group)}" {mark}'
        to = f"{to}#{name}"
    return f'<a class="button" href="{to}" {mark}{current}><bdi dir="auto">{escape(piece.text)}</bdi></a>'


def _breakdown(shop: Shop, state: PageState) -> str:
    """The parts of a purchase's score."""
    goal, verdict = shop.goal(state.task), shop.verdict(state)
    lines = [f"Kind of product: times {verdict.r_type:g}"]
    lines.append(f"Attributes: {round(verdict.r_att * len(goal.attributes))} of {len(goal.attributes)}")
    if verdict.r_option is not None:
        lines.append(f"Options: {round(verdict.r_option * len(goal.options))} of {len(goal.options)}")
    lines.append(f"Price within the budget: {'yes' if verdict.r_price else 'no'}")
    points = 1 + len(goal.attributes) + len(goal.options)
    lines.append(f"Points are added, divided by {points}, and multiplied by the first line.")
    listed = "".join(f"<li>{line}</li>" for line in lines)
    return f'<ul class="breakdown" aria-label="What the score is made of">{listed}</ul>\n'


def _next_task(shop: Shop, state: PageState) -> str:
    kind, split = shop.store.place(state.task)
    return f'<p><a class="button" href="/start?goals={kind}&amp;split={split}">Next task</a></p>\n'


def front_page(sizes: dict[tuple[str, str], int], products: int) -> str:
    """The page on which a visitor chooses a task.

    sizes: number of tasks by (kind of goals, split).
    """
    kinds = dict.fromkeys(kind for (kind, _), number in sizes.items() if number)
    splits = dict.fromkeys(split for (_, split), number in sizes.items() if number)
    rows = "".join(f"<li>{number} {kind} tasks in {split}</li>" for (kind, split), number in sizes.items() if number)
    return (
        _HEAD.format(title="Tasks", kind="front")
        + '<p class="brand">WebShop</p>\n<h1>Find and buy what somebody asked for</h1>\n'
        + f"<p>You are given an instruction and a shop of {products} products. Search, choose the options that are "
        + "asked for, and buy. The score says how well the purchase fits the instruction.</p>\n"
        + '<form class="start" method="get" action="/start">'
        + _select("goals", "Instructions", kinds)
        + _select("split", "Split", splits)
        + f'<button type="submit">Start a task</button></form>\n<ul>{rows}</ul>\n</main>\n</body>\n</html>\n'
    )


def _select(name: str, label: str, choices: dict[str, None]) -> str:
    options = "".join(f'<option value="{choice}">{choice}</option>' for choice in choices)
    return f'<label>{label} <select name="{name}">{options}</select></label> '


def problem_page(title: str, text: str) -> str:
    """An error page; it must not repeat any part of the request."""
    return (
        _HEAD.format(title=escape(title), kind="problem") + f"<h1>{escape(title)}</h1><p>{escape(text)}</p>\n" + _FOOT
    )
