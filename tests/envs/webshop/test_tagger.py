import importlib.util

import pytest

from gagpo.envs.webshop.tagger import SPACY_MODEL, RuleTagger, SpacyTagger, default_tagger


@pytest.mark.parametrize(
    ("title", "nouns"),
    [
        ("Women's Running Shoes, Size 8", ("women", "running", "shoes", "size")),
        ("The best soft cotton t-shirt for men", ("cotton", "shirt", "men")),
        ("USB-C Cable (2 Pack) 6ft", ("usb", "cable", "pack")),
        ("Really washable, adjustable and seamless", ()),
        ("Café Crème 500 ml", ("café", "crème")),
        ("cable cable", ("cable", "cable")),
        ("", ()),
    ],
)
def test_the_rule_keeps_nouns_in_order_with_doubles(title, nouns):
    assert list(RuleTagger().nouns([title])) == [nouns]


def test_the_rule_tagger_is_the_fallback():
    has_model = importlib.util.find_spec(SPACY_MODEL) is not None
    assert isinstance(default_tagger(), SpacyTagger if has_model else RuleTagger)


@pytest.mark.slow
def test_any_spacy_pipeline_serves(tmp_path):
    spacy = pytest.importorskip("spacy")
    pipeline = spacy.blank("en")
    pipeline.add_pipe("attribute_ruler").add([[{"LOWER": "shirt"}]], {"POS": "NOUN"})
    pipeline.to_disk(tmp_path)
    tagger = SpacyTagger(str(tmp_path))
    assert list(tagger.nouns(["Red Shirt", "none"])) == [("shirt",), ()]
    assert tagger.name.startswith("spacy-")
