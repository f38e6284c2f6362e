"""Which words of a product title are nouns: the type part of the reward compares those.

The published environment asks a spaCy model. Where that model is installed it is asked here too; elsewhere a fixed
word-class rule answers. The tagger runs once, when a catalogue is built, and its name is part of the store's key: two
stores tagged differently are never mixed up, and no worker loads a model.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Iterator
from typing import Protocol

SPACY_MODEL = "en_core_web_sm"


class Tagger(Protocol):
    """Names the nouns of titles; ``name`` identifies tagger and version."""

    name: str

    def nouns(self, titles: Iterable[str]) -> Iterator[tuple[str, ...]]:
        """For each title its common and proper nouns, lower-cased, in order, doubles kept."""
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
    """Every word is a noun but function words, numbers, measures, and the commonest adjectives, verbs and adverbs.

    Titles are strings of nouns with few other words among them, so that leaving out the others comes close to a model.
    Words are runs of letters (an apostrophe may stand inside); a hyphen separates, as it does in spaCy. A word is no
    noun when it is listed below, is a single letter, or ends in ``-ly``, ``-able``, ``-ible``, ``-less``, ``-ful``
    (six letters or more).

    >>> next(RuleTagger().nouns(["Women's Ultra-Soft Cotton T-Shirt for Running, Pack of 2"]))
    ('women', 'cotton', 'shirt', 'running', 'pack')
    """

    name = "rule-1"

    def nouns(self, titles: Iterable[str]) -> Iterator[tuple[str, ...]]:
        for title in titles:
            words = (word.removesuffix("'s") for word in _WORD.findall(title.lower().replace("’", "'")))
            yield tuple(word for word in words if _is_noun(word))


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
    """spaCy's small English model where it is installed, else :class:`RuleTagger`."""
    return SpacyTagger() if tagger_is_spacy() else RuleTagger()


def tagger_is_spacy() -> bool:
    """Whether spaCy and its model are both there; neither is imported to find out."""
    return all(importlib.util.find_spec(name) for name in ("spacy", SPACY_MODEL))
