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

DRAWN = 50
RANDOM, ATTRIBUTE, CATEGORY, QUERY = "<r>", "<a>", "<c>", "<q>"
_PAGE_NAMES = {"results": "search_results", "item": "item_page", "part": "item_sub_page"}


class HiddenSearches:
    """Searches that do not use the index.

    size: number of products in the catalogue.
    categories, queries: numbers of the products with a category or a query word.
    """

    def __init__(self, size: int, categories: Mapping[str, Sequence[int]], queries: Mapping[str, Sequence[int]]):
        self._size, self._categories, self._queries = size, categories, queries

    def fails(self, query: str) -> bool:
        """Whether the published environment stops with an exception at this search."""
        first, *others = query.split(" ")
        return first == ATTRIBUTE or (first == CATEGORY and not others) or (first == RANDOM and self._size < DRAWN)

    def products(self, query: str, seed: str) -> tuple[int, ...] | None:
        """The numbers of the products that a hidden search lists; None for other queries.

        seed: of a random draw. The published environment draws from a generator that the whole program shares.
        """
        first, *others = query.split(" ")
        if first == RANDOM:
            return tuple(random.Random(seed).sample(range(self._size), DRAWN))
        if first == CATEGORY:
            return tuple(self._categories.get(others[0].strip(), ()))
        if first == QUERY:
            return tuple(self._queries.get(" ".join(others).strip(), ()))
        return None


def is_random(query: str) -> bool:
    return query.split(" ")[0] == RANDOM


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
