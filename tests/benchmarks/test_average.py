"""Models are averaged weight by weight, or refused by name."""

from dataclasses import replace

import pytest
import torch

from benchmarks.starters.average import average
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.sft.small_model import ModelShape, build, save_folder

SHAPE = ModelShape(layers=1, width=16, heads=2, feed_forward=16, vocabulary=300, context=64)
TEXTS = ["go left", "go right"]


@pytest.fixture
def folders(tmp_path):
    for seed in (1, 2, 3):
        save_folder(*build(SHAPE, TEXTS, seed), tmp_path / str(seed))
    return [str(tmp_path / str(seed)) for seed in (1, 2, 3)]


def test_every_weight_is_the_mean(folders, tmp_path):
    made = average(folders, tmp_path / "mean")
    weights = [load_model(folder).state_dict() for folder in (*folders, str(made))]
    for name, value in weights[3].items():
        torch.testing.assert_close(value, sum(one[name] for one in weights[:3]) / 3)
    assert load_tokenizer(str(made)).get_vocab() == load_tokenizer(folders[0]).get_vocab()


def test_the_mean_of_a_model_with_itself_is_the_model(folders, tmp_path):
    made = average([folders[0]] * 2, tmp_path / "mean")
    before, after = load_model(folders[0]).state_dict(), load_model(str(made)).state_dict()
    assert all(bool((before[name] == after[name]).all()) for name in before)


def test_what_has_no_mean_is_refused_by_name(folders, tmp_path):
    save_folder(*build(replace(SHAPE, width=32), TEXTS, 1), tmp_path / "wide")
    save_folder(*build(SHAPE, ["up and down"], 1), tmp_path / "tongue")
    for other, words in (("wide", "other weights"), ("tongue", "tokenizer|weights")):
        with pytest.raises(ValueError, match=f"{other} has .*{words}"):
            average([folders[0], str(tmp_path / other)], tmp_path / "mean")
    with pytest.raises(ValueError, match="needs two"):
        average(folders[:1], tmp_path / "mean")
    with pytest.raises(ValueError, match="exists"):
        average(folders, tmp_path / "1")
