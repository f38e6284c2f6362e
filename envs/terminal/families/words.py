"""Words for names and texts; each split has its own, so that no task of one split begins like a task of another."""

from __future__ import annotations

import builtins
import keyword
import random

_STEMS = {
    "train": """
        amber anchor apple arrow badge baker barrel basil beacon birch blanket border bottle branch bridge bronze bucket
        butter cabin camera candle canvas carbon cargo castle cedar chapel cherry circle clover cobalt copper coral
        cotton cradle crater crystal desert dragon eagle ember engine fabric falcon feather fender fiddle filter flute
        forest fossil galaxy garden garlic ginger glacier globe granite guitar hammer harbor hazel helmet honey island
    """,
    "validation": "ivory jacket jasper jungle kernel kettle ladder lagoon lantern lemon lilac linen "
    "lizard lobster lotus",
    "test": "magnet mango marble meadow mirror monsoon mosaic needle nectar oasis olive onyx orbit orchid otter",
    "unseen": "paddle panda papaya pebble pepper pigeon pillow planet plaza pocket pollen poppy prairie prism puzzle",
}
PEOPLE = [
    "ada",
    "ben",
    "cleo",
    "dan",
    "eve",
    "finn",
    "gus",
    "hana",
    "ivan",
    "jane",
    "kofi",
    "lena",
    "milo",
    "nora",
    "omar",
    "pia",
]


_LETTERS = "abcdefghijklmnopqrstuvwxyzaeiouaeio"
_RESERVED = frozenset((*keyword.kwlist, *dir(builtins)))
INVENTED = "invented"
"""In place of a split: words that no list has, so that a model must read them."""


def _invented(rng: random.Random) -> list[str]:
    """Twenty made-up words of three to eight letters, none of which is in a list.

    All orders of letters occur: a model that has only seen syllables copies no other words.
    """
    listed = {stem for text in _STEMS.values() for stem in text.split()}
    names: dict[str, None] = {}
    while len(names) < 20:
        word = "".join(rng.choices(_LETTERS, k=rng.randint(3, 8)))
        if word not in listed and word not in _RESERVED:
            names[word] = None
    return list(names)


class SplitWords:
    """Draws words of a split without repeating one."""

    def __init__(self, rng: random.Random, split: str):
        self._stems = _STEMS[split].split() if split in _STEMS else _invented(rng)
        rng.shuffle(self._stems)

    def stem(self) -> str:
        """A word that was not drawn yet; after the last one, words with numbers."""
        word = self._stems.pop(0)
        self._stems.append(f"{word.rstrip('0123456789')}{len(word) - len(word.rstrip('0123456789')) + 2}")
        return word

    def stems(self, count: int) -> list[str]:
        return [self.stem() for _ in range(count)]
