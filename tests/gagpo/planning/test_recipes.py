"""The recipes fit their GPUs and use the published values."""

import re
from pathlib import Path

import pytest
import yaml
from transformers import Qwen2Config

from gagpo.collecting.distributed_rollout import require_fitting
from gagpo.planning.fitting import judge
from gagpo.planning.plan import Guess
from gagpo.settings import load, parse

CONFIGS = Path(__file__).parents[3] / "configs"
RECIPES = {"alfworld-24gb": 24, "alfworld-80gb": 80, "alfworld-8x80gb": 80}
SHAPES = {
    "Qwen/Qwen2.5-1.5B-Instruct": Qwen2Config(
        hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2,
        intermediate_size=8960, vocab_size=151936, tie_word_embeddings=True, max_position_embeddings=32768,
    ),
    "Qwen/Qwen2.5-7B-Instruct": Qwen2Config(
        hidden_size=3584, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
        intermediate_size=18944, vocab_size=152064, tie_word_embeddings=False, max_position_embeddings=32768,
    ),
}  # fmt: skip


def with_overrides(settings, overrides):
    return parse(settings.model_dump(mode="json"), "the settings", overrides)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_fits_its_gpu(name, tmp_path):
    recipe = load(name)
    SHAPES[recipe.model].save_pretrained(tmp_path)
    assert judge(with_overrides(recipe, [f"model={tmp_path}"]), Guess(), RECIPES[name]).fits


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_differs_from_the_published_setting_only_where_it_says_so(name):
    """All values without a comment in the file are the published ones."""
    recipe, published = load(name), load("alfworld-qwen")
    for path in ("environment", "context", "invalid_penalty", "evaluation", "algorithm.kl", "algorithm.credit.lam"):
        one, other = recipe, published
        for key in path.split("."):
            one, other = getattr(one, key), getattr(other, key)
        same = one == other or (path == "evaluation" and one.splits == other.splits)
        assert same, path
    assert (recipe.rollout.tasks, recipe.rollout.samples) == (16, 8) and recipe.training.iterations == 150
    if recipe.processes > 1:
        require_fitting(recipe, recipe.processes)


def test_every_value_of_the_published_setting_names_its_source():
    lines = Path(CONFIGS / "alfworld-qwen.yaml").read_text().splitlines()
    values = [line for line in lines if re.match(r"\s*[\w]+:\s*\S", line) and not re.match(r"\s*#", line)]
    free = ("name", "device", "preset", "id")  # not published values
    without = [line for line in values if "# [" not in line and line.split(":")[0].strip() not in free]
    assert without == []
    assert yaml.safe_load("\n".join(lines))["algorithm"]["credit"]["key"] == "observation"


def test_the_recipe_for_24_gb_samples_with_vllm_by_one_override():
    assert load("alfworld-24gb", ["engine=vllm"]).engine.dtype == "bfloat16"
