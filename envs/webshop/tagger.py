"""Finds the nouns in product titles, which the type part of the reward compares.

The published environment uses a spaCy model. This module uses it if it is installed, and a word list otherwise. The
tagger runs only while a catalogue is built, so workers load no model. Its name is part of the store's key.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Iterator
from typing import Protocol

SPACY_MODEL = "en_core_web_sm"


class Tagger(Protocol):
    """Finds the nouns of titles; ``name`` identifies the tagger and its version."""

    name: str

    def nouns(self, titles: Iterable[str]) -> Iterator[tuple[str, ...]]:
        """For each title, its common and proper nouns: lower-cased, in order, with repetitions."""
        ...


class SpacyTagger:
    """The nouns and proper nouns of a spaCy pipeline."""

    def __init__(self, model: str = SPACY_MODEL):
        import spacy

        self._pipeline = spacy.load(model, exclude=["parser", "ner", "lemmatizer"])
        self.name = f"spacy-{model}-{self._pipeline.meta.get('version', 'unknown')}"

    def nouns(self, titles: Iterable[str]) -> Iterator[tuple[str, ...]]:
        for parsed in self._pipeline.pipe(titles, batch_size=256):
            yield tuple(token.text.lower() for token in parsed if token.pos_ in ("NOUN", "PROPN"))


class RuleTagger:
    """Takes every word for a noun except function words, units, and common adjectives, verbs and adverbs.

    Titles consist mostly of nouns, so this comes close to a model. Words are runs of letters, which may contain
    apostrophes; a hyphen separates words, as in spaCy. A word is not a noun if it is listed below, is a single letter,
    or has six letters or more and ends in ``-ly``, ``-able``, ``-ible``, ``-less`` or ``-ful``.

    >>> next(RuleTagger().nouns(["Women's Ultra-Soft Cotton T-Shirt for Running, Pack of 2"]))
    ('women', 'cotton', 'shirt', 'running', 'pack')
    """

    name = "rule-1"

    def nouns(self, titles: Iterable[str]) -> Iterator[tuple[str, ...]]:
        for title in titles:
            tokens = (word.removesuffix("'s") for word in _WORD.findall(title.lower().replace("’", "'")))
            yield tuple(word for word in tokens if _is_noun(word))


_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
_ENDINGS = ("ly", "able", "ible", "less", "ful")
_OTHER_WORDS = """
    a an the this that these those each every all any some no both either neither another such
    and or nor but so yet if than as while when where because although though
    of in on at by for with from to into onto over under up down out off about after before between through during
    without within against among across per via inside outside near like
    i you he she it we they me him her us them my your his its our their mine yours ours theirs who which what whose
    be is are was were been being am do does did have has had can could will would shall should may might must
    not very too also just only more most less least many much few other same own here there now then
    make makes made making use used using fit fits fitted give gives keep keeps get gets help helps
    include includes included including come comes set sets
    new old big small large medium mini little long short high low wide narrow thick thin deep slim regular loose
    soft hard light heavy dark bright warm cool cold hot dry wet clean fresh sweet strong easy quick fast slow
    good great best better nice fine perfect ideal super ultra extra premium original classic modern casual formal
    natural organic pure real free safe healthy digital wireless portable electric electronic automatic manual
    black white red blue green yellow brown grey gray pink purple orange golden beige navy
    full half double single dual triple multi universal adjustable foldable waterproof stainless
    inch inches ft feet mm cm oz lb lbs ml kg
"""
_OTHER_CLASSES = frozenset(_OTHER_WORDS.split())


def _is_noun(word: str) -> bool:
    if len(word) < 2 or word in _OTHER_CLASSES:
        return False
    return len(word) < 6 or not word.endswith(_ENDINGS)


def default_tagger() -> Tagger:
    """spaCy's small English model if it is installed, else :class:`RuleTagger`."""
    installed = all(importlib.util.find_spec(name) for name in ("spacy", SPACY_MODEL))
    return SpacyTagger() if installed else RuleTagger()
