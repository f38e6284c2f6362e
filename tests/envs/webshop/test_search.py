import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.envs.webshop.search import LENGTHS, RESULTS, Analyzer, IndexBuilder, SearchIndex, lucene_lengths


def build_index(folder, documents, rounded=False):
    builder = IndexBuilder()
    for text in documents:
        builder.add(text)
    builder.save(folder, rounded)


DOCUMENTS = [
    "red cotton shirt for women",
    "blue cotton shirt, a shirt for every day and a very long text about shirts",
    "running shoes 3.5 inches",
    "red shoes",
    "red shoes",
    "nothing in common",
]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("index")
    build_index(folder, DOCUMENTS)
    return SearchIndex(folder)


def bm25(query, texts=DOCUMENTS, kept=lambda length: length):
    """BM25 by Lucene's formula, k1 = 0.9, b = 0.4, written out; ``kept``: what is kept of a length."""
    tokens = Analyzer().words
    documents = [Counter(tokens(text)) for text in texts]
    filled = [d for d in documents if d]
    average = sum(sum(d.values()) for d in filled) / len(filled)
    scores = [0.0] * len(documents)
    for word in tokens(query):
        having = sum(word in d for d in documents)
        idf = math.log(1 + (len(filled) - having + 0.5) / (having + 0.5))
        for n, d in enumerate(documents):
            scores[n] += idf * d[word] / (d[word] + 0.9 * (1 - 0.4 + 0.4 * kept(sum(d.values())) / average))
    return scores


def test_lengths_are_those_that_one_byte_holds():
    """``SmallFloat.intToByte4`` and back by hand: 24 numbers as they are, then 24 + a float of four bits.

    41 is 24 + 17 = 24 + 0b10001, which four bits hold as 0b1000|0: 40. 100 is 24 + 76 = 24 + 0b1001100: 24 + 0b1001000
    = 96. 1000 is 24 + 976 = 24 + 0b1111010000: 24 + 0b1111000000 = 984. The largest is 24 + 0b1111 << 27.
    """
    assert lucene_lengths(np.arange(40)).tolist() == list(range(40))
    assert lucene_lengths(np.array([40, 41, 42, 55, 56, 59, 60])).tolist() == [40, 40, 42, 54, 56, 56, 60]
    assert lucene_lengths(np.array([87, 88, 95, 96, 100, 1000])).tolist() == [84, 88, 88, 96, 96, 984]
    assert int(LENGTHS[-1]) == 2_013_265_944 == int(lucene_lengths(np.array([2**31 - 1]))[0])
    assert len(LENGTHS) == 256 and (np.diff(LENGTHS) > 0).all()


LONG = [f"shirt {' '.join(f'w{i}' for i in range(n))} {'red ' * (n % 3)}" for n in (60, 58, 41, 100, 97, 3, 57)]


@pytest.mark.parametrize("query", ["shirt", "red shirt", "w1 w50 red", "w96 shirt shirt"])
@pytest.mark.parametrize("rounded", [False, True])
def test_ranking_has_the_lengths_that_were_asked_for(tmp_path, query, rounded):
    texts = [*LONG, ""] if rounded else LONG
    build_index(tmp_path / "index", texts, rounded)
    retained = (lambda length: int(lucene_lengths(np.array([length]))[0])) if rounded else (lambda length: length)
    scores = bm25(query, texts, retained)
    expected = sorted((n for n, score in enumerate(scores) if score > 0), key=lambda n: (-round(scores[n], 5), n))
    assert SearchIndex(tmp_path / "index").search(query) == tuple(expected)


def test_texts_with_equal_stored_lengths_come_in_catalogue_order(tmp_path):
    for rounded, first in ((False, 1), (True, 0)):
        build_index(tmp_path / str(rounded), ["shirt " + "a1 " * 40, "shirt " + "a1 " * 39], rounded)
        assert SearchIndex(tmp_path / str(rounded)).search("shirt")[0] == first


def test_equal_scores_come_in_catalogue_order(index):
    assert index.search("red shoes")[:2] == (3, 4)


def test_only_products_that_share_a_word_are_found(index):
    assert index.search("zebra") == ()
    assert index.search("") == ()
    assert index.search("the of and") == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The Women's shoes", ["women", "shoe"]),
        ("3.5 inches, 1,000 pieces", ["3.5", "inch", "1,000", "piec"]),
        ("don't o'neill U.S.A.", ["don't", "o'neil", "u.s.a"]),
        ("size 8 | x-large", ["size", "8", "x", "larg"]),
        ("café 木野", ["café", "木野"]),
        ("<r> title: red AND (blue)", ["r", "titl", "red", "blue"]),
    ],
)
def test_words_are_cut_and_stemmed(text, words):
    assert Analyzer().words(text) == words


def test_at_most_fifty_are_found(tmp_path):
    build_index(tmp_path, ["same words"] * 80)
    assert SearchIndex(tmp_path).search("words") == tuple(range(RESULTS))


def test_documents_without_words_are_no_error(tmp_path):
    for rounded in (False, True):
        build_index(tmp_path / str(rounded), ["", "the", "shirt"], rounded)
        assert SearchIndex(tmp_path / str(rounded)).search("shirt") == (2,)


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=200))
def test_any_text_is_a_query(index, query):
    match = index.search(query)
    assert len(set(match)) == len(match)
    assert all(0 <= n < len(DOCUMENTS) for n in match)
    assert index.search(query) == match
