"""The recipes fit their GPUs and use the published values."""

import re
from pathlib import Path

import pytest
from transformers import Qwen2Config

from gagpo.collecting.distributed_rollout import require_fitting
from gagpo.planning.fitting import judge
from gagpo.planning.plan import Guess
from gagpo.settings import load, parse, resolve
from gagpo.settings.machine import with_machine_formats

CONFIGS = Path(__file__).parents[3] / "configs"
RECIPES = {"alfworld-24gb": 24, "alfworld-80gb": 80, "alfworld-8x80gb": 80}
PUBLISHED = {"alfworld-qwen": 48, "webshop-qwen": 48, "math-qwen": 80}
SHAPES = {
    "Qwen/Qwen2.5-1.5B-Instruct": Qwen2Config(
        hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2,
        intermediate_size=8960, vocab_size=151936, tie_word_embeddings=True, max_position_embeddings=32768,
    ),
    "Qwen/Qwen2.5-3B-Instruct": Qwen2Config(
        hidden_size=2048, num_hidden_layers=36, num_attention_heads=16, num_key_value_heads=2,
        intermediate_size=11008, vocab_size=151936, tie_word_embeddings=True, max_position_embeddings=32768,
    ),
    "Qwen/Qwen2.5-7B-Instruct": Qwen2Config(
        hidden_size=3584, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
        intermediate_size=18944, vocab_size=152064, tie_word_embeddings=False, max_position_embeddings=32768,
    ),
}  # fmt: skip


def with_overrides(settings, overrides):
    return parse(settings.model_dump(mode="json"), "the settings", overrides)


@pytest.mark.parametrize(("name", "gigabytes"), (RECIPES | PUBLISHED).items())
def test_a_recipe_fits_its_gpu(name, gigabytes, tmp_path):
    recipe = load(name)
    SHAPES[recipe.model].save_pretrained(tmp_path)
    assert judge(with_overrides(recipe, [f"model={tmp_path}"]), Guess(), gigabytes).fits


def leaves(value, path=""):
    """The values of nested mappings, by their dotted keys."""
    if not isinstance(value, dict):
        return {path: value}
    return {
        key: leaf
        for name, segment in value.items()
        for key, leaf in leaves(segment, f"{path}.{name}".strip(".")).items()
    }


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_differs_from_the_published_setting_only_where_it_says_so(name):
    """A value that is not the published one stands on a line with a comment."""
    recipe, published = load(name), load("alfworld-qwen")
    actual, expected = (leaves(settings.model_dump(mode="json")) for settings in (recipe, published))
    differing = {key for key in actual.keys() | expected.keys() if actual.get(key) != expected.get(key)} - {"name"}
    commented = [line for line in (CONFIGS / f"{name}.yaml").read_text().splitlines() if re.search(r": .*#", line)]
    explained = set(re.findall(r"\b([a-z_]+):", "\n".join(commented)))
    assert {key for key in differing if not set(key.split(".")) & explained} == set()
    if recipe.processes > 1:
        require_fitting(recipe, recipe.processes)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_value_of_a_published_setting_names_its_source(name):
    lines = (CONFIGS / f"{name}.yaml").read_text().splitlines()
    values = [line for line in lines if re.match(r"\s*[\w]+:\s*\S", line) and not re.match(r"\s*#", line)]
    free = ("name", "device", "preset", "id")  # not published values
    without = [line for line in values if "# [" not in line and line.split(":")[0].strip() not in free]
    assert without == []
    settings = load(name)
    assert settings.training.target_kl is None and not settings.training.ema
    assert not settings.optimizer.scale_by_groups and settings.name == name
    if settings.algorithm.preset == "gagpo":
        assert settings.algorithm.credit.state_key == "observation" and settings.invalid_action_penalty == 0.01


def test_the_recipe_for_24_gb_samples_with_vllm_by_one_override():
    settings = with_machine_formats(resolve(load("alfworld-24gb", ["engine=vllm"])))
    assert settings.engine.dtype == settings.lora.base_dtype == "bfloat16"
