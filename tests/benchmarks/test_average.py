"""Models are averaged weight by weight, or refused by name."""

from dataclasses import replace

import pytest
import torch

from benchmarks.starters.average import average
from gagpo.model import adapters
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.sft.adapter import Trained, adapter_of
from gagpo.sft.small_model import ModelShape, build, save_folder
from tests.rejections import rejects

SHAPE = ModelShape(layers=1, width=16, heads=2, feed_forward=16, vocabulary=300, context=64)
TEXTS = ["go left", "go right"]


@pytest.fixture
def folders(tmp_path):
    for seed in (1, 2, 3):
        save_folder(*build(SHAPE, TEXTS, seed), tmp_path / str(seed))
    return [str(tmp_path / str(seed)) for seed in (1, 2, 3)]


def test_every_weight_is_the_mean(folders, tmp_path):
    result = average(folders, tmp_path / "mean")
    weights = [load_model(folder).state_dict() for folder in (*folders, str(result))]
    for name, value in weights[3].items():
        torch.testing.assert_close(value, sum(weight[name] for weight in weights[:3]) / 3)
    assert load_tokenizer(str(result)).get_vocab() == load_tokenizer(folders[0]).get_vocab()


def test_the_mean_of_a_model_with_itself_is_the_model(folders, tmp_path):
    result = average([folders[0]] * 2, tmp_path / "mean")
    before, after = load_model(folders[0]).state_dict(), load_model(str(result)).state_dict()
    assert all(bool((before[name] == after[name]).all()) for name in before)


def with_adapter(base, folder, seed, alpha=4.0):
    """A model made by an adapter of rank 2 with random numbers."""
    model = load_model(base)
    adapters.inject(model, 2, alpha, adapters.ALL_LINEAR, seed)
    torch.manual_seed(seed)
    for parameter in adapters.adapter_parameters(model).values():
        torch.nn.init.normal_(parameter, std=0.1)
    Trained(model, adapters.Base.of(base, load_model(base))).save(load_tokenizer(base), folder, {})
    return str(folder)


def test_adapters_are_averaged_matrix_by_matrix_and_keep_their_rank(folders, tmp_path):
    made_by = [with_adapter(folders[0], tmp_path / f"adapted-{seed}", seed) for seed in (4, 5)]
    mean = average(made_by, tmp_path / "mean")
    tensors = [adapters.tensors_of(adapter_of(name) / adapters.WEIGHTS) for name in (*made_by, str(mean))]
    assert tensors[2]
    for name, value in tensors[2].items():
        torch.testing.assert_close(value, (tensors[0][name] + tensors[1][name]) / 2)
    adapted = load_model(folders[0])
    adapters.read_into(adapted, adapter_of(str(mean)))
    merged, expected = load_model(str(mean)).state_dict(), adapters.merge(adapted).state_dict()
    for name, value in merged.items():
        torch.testing.assert_close(value, expected[name])


def test_adapters_on_different_bases_or_of_different_scales_have_no_mean(folders, tmp_path):
    first = with_adapter(folders[0], tmp_path / "first", 4)
    on_other = with_adapter(folders[1], tmp_path / "on-other", 4)
    scaled = with_adapter(folders[0], tmp_path / "scaled", 4, alpha=8.0)
    with rejects(ValueError, "another base", where="on-other"):
        average([first, on_other], tmp_path / "mean")
    with rejects(ValueError, "scales", where="scaled"):
        average([first, scaled], tmp_path / "mean")


def test_what_has_no_mean_is_refused_by_name(folders, tmp_path):
    save_folder(*build(replace(SHAPE, width=32), TEXTS, 1), tmp_path / "wide")
    save_folder(*build(SHAPE, ["up and down"], 1), tmp_path / "tongue")
    for other, name in (("wide", "other weights"), ("tongue", "other")):
        with rejects(ValueError, name, where=other):
            average([folders[0], str(tmp_path / other)], tmp_path / "mean")
    with rejects(ValueError, key="models"):
        average(folders[:1], tmp_path / "mean")
    with rejects(ValueError, "exists", advice="another folder"):
        average(folders, tmp_path / "1")
