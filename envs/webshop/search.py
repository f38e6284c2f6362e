"""The shop's search: Lucene's BM25 over stemmed words, from a memory-mapped index.

bm25s computes the scores by Lucene's formula with the published environment's settings, k1 = 0.9 and b = 0.4. Text is
tokenized as by Lucene's standard tokenizer, without possessives and 33 stop words, and stemmed by Porter's algorithm.
Products with equal scores come in catalogue order, so results do not depend on the machine.

Lucene stores the length of a text in one byte, so the length it uses is up to an eighth too small. An index has either
the exact lengths or Lucene's (:data:`LENGTHS`). The formula is the same, but the order often differs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gagpo.envs.webshop.catalogue import Product

K1 = 0.9
B = 0.4
RESULTS = 50
CACHED_QUERIES = 4_096


def _decode(byte: int) -> int:
    """Lucene's ``SmallFloat.byte4ToInt``: the first 24 numbers, then unsigned floats with a mantissa of four bits."""
    if byte < 24:
        return byte
    mantissa = (byte - 24) & 7
    shift = ((byte - 24) >> 3) - 1
    return 24 + (mantissa if shift < 0 else (mantissa | 8) << shift)


LENGTHS = np.array([_decode(byte) for byte in range(256)])
"""The text lengths that Lucene can store; ``SmallFloat.intToByte4`` rounds down to one of them."""

_STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such "
    "that the their then there these they this to was will with"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())
# Dots and apostrophes join letters, dots and commas join digits: "don't", "o'neill", "3.5".
_WORD = re.compile(r"\w+(?:(?:(?<=[^\W\d_])['’.:·](?=[^\W\d_])|(?<=\d)['’.,;](?=\d))\w+)*")


def searched_text(product: Product) -> str:
    """The indexed text of a product: title, description, first feature and options."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    return " ".join((product.title, product.description, *product.bullets[:1], options)).lower()


def lucene_lengths(lengths: np.ndarray) -> np.ndarray:
    """The given text lengths, rounded as Lucene stores them.

    >>> lucene_lengths(np.array([0, 39, 41, 100, 1000])).tolist()
    [0, 39, 40, 96, 984]
    """
    return np.asarray(LENGTHS[np.searchsorted(LENGTHS, lengths, side="right") - 1])


class Analyzer:
    """Splits text into stemmed words, with a cache for the stems of ``cached`` different words."""

    def __init__(self, cached: int = 50_000) -> None:
        import Stemmer

        self._stem = Stemmer.Stemmer("porter").stemWord
        self._stems: dict[str, str] = {}
        self._cached = cached

    def words(self, text: str) -> list[str]:
        """The index terms of ``text``, in order.

        >>> Analyzer().words("The women's running shoes, 3.5 inches")
        ['women', 'run', 'shoe', '3.5', 'inch']
        """
        stems = self._stems
        terms = []
        for word in _WORD.findall(text.lower()):
            # Stemming is slow, so stems are cached; the stem of a stop word is empty.
            stem = stems.get(word)
            if stem is None:
                plain = word.replace("’", "'").removesuffix("'s")
                stem = "" if plain in STOP_WORDS else self._stem(plain)
                if len(stems) < self._cached:
                    stems[word] = stem
            if stem:
                terms.append(stem)
        return terms


class IndexBuilder:
    """Collects documents one by one and writes the index."""

    def __init__(self) -> None:
        self._analyzer = Analyzer(cached=1_000_000)
        self._vocabulary: dict[str, int] = {}
        self._rows: list[np.ndarray] = []

    def add(self, text: str) -> None:
        """Add the next document; the first is number 0."""
        numbers = self._vocabulary
        tokens = self._analyzer.words(text)
        self._rows.append(np.array([numbers.setdefault(word, len(numbers)) for word in tokens], np.int32))

    def save(self, folder: Path, rounded: bool = False) -> None:
        """Create ``folder`` and write the index into it; ``rounded`` uses Lucene's lengths."""
        import bm25s

        self._vocabulary.setdefault("", len(self._vocabulary))  # bm25s needs at least one term
        engine = bm25s.BM25(method="lucene", k1=K1, b=B)
        engine.index((self._rows, self._vocabulary), show_progress=False)
        if rounded:
            engine.scores["data"] = self._lucene_scores(engine.scores)
        engine.save(folder, show_progress=False)

    def _lucene_scores(self, matrix: dict[str, Any]) -> np.ndarray:
        """Scores by ``BM25Similarity`` of Lucene 8 and later for ``matrix`` (compressed columns, one per word).

        The mean length uses the exact lengths. Texts without a word count neither there nor in document frequencies.
        """
        length_D = np.array([len(row) for row in self._rows])
        documents = max(int((length_D > 0).sum()), 1)
        norm_D = K1 * (1 - B + B * lucene_lengths(length_D) / max(length_D.sum() / documents, 1e-9))
        document_frequency = np.diff(matrix["indptr"])
        idf = np.log1p((documents - document_frequency + 0.5) / (document_frequency + 0.5))
        word = np.repeat(np.arange(len(document_frequency)), document_frequency)
        key = word * len(length_D) + matrix["indices"]
        pairs = np.concatenate(self._rows) * np.int64(len(length_D)) + np.repeat(np.arange(len(length_D)), length_D)
        keys, times = np.unique(pairs, return_counts=True)
        frequency = times[np.searchsorted(keys, key)]
        scores = idf[word] * frequency / (frequency + norm_D[matrix["indices"]])
        return np.asarray(scores.astype(matrix["data"].dtype))


class SearchIndex:
    """An index opened read-only; its arrays are memory-mapped and shared by all processes."""

    def __init__(self, folder: Path):
        import bm25s

        self._engine: Any = bm25s.BM25.load(folder, mmap=True, load_corpus=False)
        for name in ("data", "indices", "indptr"):
            # The same mapped pages, without numpy.memmap's slow indexing.
            self._engine.scores[name] = np.asarray(self._engine.scores[name])
        self._analyzer = Analyzer()
        self.search: Callable[[str], tuple[int, ...]] = functools.lru_cache(CACHED_QUERIES)(self._search)
        """Numbers of the ``RESULTS`` best documents that share a word with the query, best first.

        Equal scores are ordered by number. A query has no syntax: any text is a list of words.
        """

    def _search(self, query: str) -> tuple[int, ...]:
        terms = self._engine.get_tokens_ids(self._analyzer.words(query))
        if not terms:
            return ()
        scores = self._engine.get_scores_from_ids(terms)
        candidates = np.flatnonzero(scores > 0)
        if len(candidates) > RESULTS:
            threshold = np.partition(scores[candidates], -RESULTS)[-RESULTS]
            candidates = candidates[scores[candidates] >= threshold]
        order = np.lexsort((candidates, -scores[candidates]))[:RESULTS]
        return tuple(int(i) for i in candidates[order])
