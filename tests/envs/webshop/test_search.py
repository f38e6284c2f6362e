import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.envs.webshop.search import RESULTS, STOP_WORDS, Analyzer, IndexBuilder, SearchIndex


def build_index(folder, documents):
    builder = IndexBuilder()
    for text in documents:
        builder.add(text)
    builder.save(folder)


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


def lucene_scores(query):
    """BM25 as Lucene defines it, k1 = 0.9, b = 0.4, written out."""
    words = Analyzer().words
    documents = [Counter(words(text)) for text in DOCUMENTS]
    average = sum(sum(d.values()) for d in documents) / len(documents)
    scores = [0.0] * len(documents)
    for word in words(query):
        having = sum(word in d for d in documents)
        idf = math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
        for n, d in enumerate(documents):
            scores[n] += idf * d[word] / (d[word] + 0.9 * (1 - 0.4 + 0.4 * sum(d.values()) / average))
    return scores


@pytest.mark.parametrize("query", ["red shirt", "cotton shirts", "shoes", "the day", "shirt shirt red", "inch"])
def test_ranking_is_lucenes(index, query):
    scores = lucene_scores(query)
    expected = sorted((n for n, score in enumerate(scores) if score > 0), key=lambda n: (-round(scores[n], 5), n))
    assert index.search(query) == tuple(expected)


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


def test_there_are_33_stop_words():
    assert len(STOP_WORDS) == 33


def test_at_most_fifty_are_found(tmp_path):
    build_index(tmp_path, ["same words"] * 80)
    assert SearchIndex(tmp_path).search("words") == tuple(range(RESULTS))


def test_documents_without_words_are_no_error(tmp_path):
    build_index(tmp_path, ["", "the", "shirt"])
    assert SearchIndex(tmp_path).search("shirt") == (2,)


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=200))
def test_any_text_is_a_query(index, query):
    found = index.search(query)
    assert len(set(found)) == len(found)
    assert all(0 <= n < len(DOCUMENTS) for n in found)
    assert index.search(query) == found
