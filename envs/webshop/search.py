"""The shop's search: Lucene's BM25 over stemmed words, from a memory-mapped index.

Scores follow Lucene's formula (k1 = 0.9, b = 0.4, the settings of the published environment's engine), computed by
bm25s; words are cut as Lucene's standard tokenizer cuts them, possessives and 33 stop words removed, and stemmed by
Porter's algorithm. Products with equal scores come in catalogue order, so that results never depend on the machine.

Lucene keeps one byte for the length of a text and so computes with a length that is up to an eighth too small. An index
has either the exact lengths or Lucene's (:data:`LENGTHS`): the same formula, and often another order.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gagpo.envs.webshop.catalogue import Product

K1 = 0.9
B = 0.4
RESULTS = 50
REMEMBERED_QUERIES = 4_096


def _decoded(byte: int) -> int:
    """``SmallFloat.byte4ToInt`` of Lucene: 24 small numbers as they are, then floats of four bits, without a sign."""
    if byte < 24:
        return byte
    mantissa, shift = (byte - 24) & 7, ((byte - 24) >> 3) - 1
    return 24 + (mantissa if shift < 0 else (mantissa | 8) << shift)


LENGTHS = np.array([_decoded(byte) for byte in range(256)])
"""What a text's length can be to Lucene; ``SmallFloat.intToByte4`` takes the largest that is not above the true one."""

_STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such "
    "that the their then there these they this to was will with"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())
# Dots and apostrophes join letters, dots and commas join digits: "don't", "o'neill", "3.5".
_WORD = re.compile(r"\w+(?:(?:(?<=[^\W\d_])['’.:·](?=[^\W\d_])|(?<=\d)['’.,;](?=\d))\w+)*")


def searched_text(product: Product) -> str:
    """What the search sees of a product: title, description, first feature and options."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    return " ".join((product.title, product.description, *product.bullets[:1], options)).lower()


def lucene_lengths(lengths: np.ndarray) -> np.ndarray:
    """The lengths that Lucene computes with.

    >>> lucene_lengths(np.array([0, 39, 41, 100, 1000])).tolist()
    [0, 39, 40, 96, 984]
    """
    return np.asarray(LENGTHS[np.searchsorted(LENGTHS, lengths, side="right") - 1])


class Analyzer:
    """Text to stemmed words. The stems of up to ``remembered`` different words are kept at hand."""

    def __init__(self, remembered: int = 50_000) -> None:
        import Stemmer

        self._stem = Stemmer.Stemmer("porter").stemWord
        self._stems: dict[str, str] = {}
        self._remembered = remembered

    def words(self, text: str) -> list[str]:
        """The index terms of ``text``, in order.

        >>> Analyzer().words("The women's running shoes, 3.5 inches")
        ['women', 'run', 'shoe', '3.5', 'inch']
        """
        stems = self._stems
        terms = []
        for word in _WORD.findall(text.lower()):
            # Stemming is slow: words are remembered with their stem, stop words with none.
            stem = stems.get(word)
            if stem is None:
                plain = word.replace("’", "'").removesuffix("'s")
                stem = "" if plain in STOP_WORDS else self._stem(plain)
                if len(stems) < self._remembered:
                    stems[word] = stem
            if stem:
                terms.append(stem)
        return terms


class IndexBuilder:
    """Takes documents one by one, keeps the numbers of their words, and writes the index."""

    def __init__(self) -> None:
        self._analyzer = Analyzer(remembered=1_000_000)
        self._vocabulary: dict[str, int] = {}
        self._rows: list[np.ndarray] = []

    def add(self, text: str) -> None:
        """Add the next document; the first is number 0."""
        numbers = self._vocabulary
        words = self._analyzer.words(text)
        self._rows.append(np.array([numbers.setdefault(word, len(numbers)) for word in words], np.int32))

    def save(self, folder: Path, rounded: bool = False) -> None:
        """Write the index of what was added into ``folder``, which is made; ``rounded``: with Lucene's lengths."""
        import bm25s

        self._vocabulary.setdefault("", len(self._vocabulary))  # bm25s wants at least one term
        engine = bm25s.BM25(method="lucene", k1=K1, b=B)
        engine.index((self._rows, self._vocabulary), show_progress=False)
        if rounded:
            engine.scores["data"] = self._lucene_scores(engine.scores)
        engine.save(folder, show_progress=False)

    def _lucene_scores(self, matrix: dict[str, Any]) -> np.ndarray:
        """The scores of the words in the documents, in the places of ``matrix`` (compressed columns, one per word).

        As ``BM25Similarity`` of Lucene 8 and later has them. The mean length is over the exact lengths, and texts
        without a word count neither there nor in the frequency of a word.
        """
        length_D = np.array([len(row) for row in self._rows])
        documents = max(int((length_D > 0).sum()), 1)
        norm_D = K1 * (1 - B + B * lucene_lengths(length_D) / max(length_D.sum() / documents, 1e-9))
        having = np.diff(matrix["indptr"])
        idf = np.log1p((documents - having + 0.5) / (having + 0.5))
        word = np.repeat(np.arange(len(having)), having)
        place = word * len(length_D) + matrix["indices"]
        told = np.concatenate(self._rows) * np.int64(len(length_D)) + np.repeat(np.arange(len(length_D)), length_D)
        places, times = np.unique(told, return_counts=True)
        frequency = times[np.searchsorted(places, place)]
        scores = idf[word] * frequency / (frequency + norm_D[matrix["indices"]])
        return np.asarray(scores.astype(matrix["data"].dtype))


class SearchIndex:
    """An index opened read-only; its arrays are memory-mapped and shared by all processes that open it."""

    def __init__(self, folder: Path):
        import bm25s

        self._engine: Any = bm25s.BM25.load(folder, mmap=True, load_corpus=False)
        for name in ("data", "indices", "indptr"):
            # The same mapped pages without numpy.memmap's own slow indexing.
            self._engine.scores[name] = np.asarray(self._engine.scores[name])
        self._analyzer = Analyzer()
        self._found: OrderedDict[str, tuple[int, ...]] = OrderedDict()

    def search(self, query: str, limit: int = RESULTS) -> tuple[int, ...]:
        """Numbers of the ``limit`` best documents sharing a word with ``query``, best first.

        Equal scores are ordered by number. Nothing in a query is syntax: any text is just words.
        """
        found = self._found.get(query)
        if found is None:
            found = self._found[query] = self._rank(query)
            if len(self._found) > REMEMBERED_QUERIES:
                self._found.popitem(last=False)
        return found[:limit]

    def _rank(self, query: str) -> tuple[int, ...]:
        terms = self._engine.get_tokens_ids(self._analyzer.words(query))
        if not terms:
            return ()
        scores = self._engine.get_scores_from_ids(terms)
        candidates = np.flatnonzero(scores > 0)
        if len(candidates) > RESULTS:
            least = np.partition(scores[candidates], -RESULTS)[-RESULTS]
            candidates = candidates[scores[candidates] >= least]
        order = np.lexsort((candidates, -scores[candidates]))[:RESULTS]
        return tuple(int(i) for i in candidates[order])
