"""Two habits of the published environment, which an ``exact`` shop repeats.

Hidden searches: a query whose first word is ``<r>``, ``<c>`` or ``<q>`` does not search texts. It draws 50 products at
random, or lists those of a category or with a query word. With ``<a>`` the published environment stops.

Misrouted pages: what a click does depends on which page the address looks like. The address contains the query and the
chosen options, and these may contain the name of another page.

Source: the behaviour of princeton-nlp/WebShop, ``engine/engine.py`` and ``envs/web_agent_text_env.py``.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

RANDOM_PRODUCTS = 50
RANDOM = "<r>"
ATTRIBUTE = "<a>"
CATEGORY = "<c>"
QUERY = "<q>"
_PAGE_NAMES = {"results": "search_results", "item": "item_page", "part": "item_sub_page"}


def is_hidden(query: str) -> bool:
    """Whether a query does not search texts."""
    return _first_word(query) in (RANDOM, ATTRIBUTE, CATEGORY, QUERY)


def stops(query: str, products: int) -> bool:
    """Whether the published environment stops with an exception at this search of ``products`` products."""
    first = _first_word(query)
    return first == ATTRIBUTE or query == CATEGORY or (first == RANDOM and products < RANDOM_PRODUCTS)


def draw(products: int, seed: str) -> tuple[int, ...]:
    """The numbers of random products. The published environment's generator is shared by the whole program."""
    return tuple(random.Random(seed).sample(range(products), RANDOM_PRODUCTS))


class Labels:
    """The products with each category and query word, which hidden searches list.

    categories, queries: numbers of the products, in catalogue order.
    """

    def __init__(self, categories: Mapping[str, Sequence[int]], queries: Mapping[str, Sequence[int]]):
        self._categories = categories
        self._queries = queries

    def products(self, query: str) -> tuple[int, ...]:
        """The numbers of the products that a hidden search for a category or a query word lists."""
        first, *tokens = query.split(" ")
        if first == CATEGORY:
            return tuple(self._categories.get(tokens[0].strip(), ()))
        return tuple(self._queries.get(" ".join(tokens).strip(), ()))


def is_random(query: str) -> bool:
    return _first_word(query) == RANDOM


def _first_word(query: str) -> str:
    return query.partition(" ")[0]


def routed_kind(kind: str, query: str, options: Iterable[tuple[str, str]]) -> str:
    """The kind of page that the address of a results, item or part page is taken for.

    >>> routed_kind("item", "red search_results", []), routed_kind("part", "shirt", [("item_page", "s")])
    ('results', 'item')
    """
    contents = [_PAGE_NAMES[kind], query, *(text for option in options for text in option)]
    for page, name in _PAGE_NAMES.items():
        if any(name in content for content in contents):
            return page
    return kind
