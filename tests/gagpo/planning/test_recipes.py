"""The recipes: their page says what the commands print, they fit their cards, and their values are those they name."""

import re
from pathlib import Path

import pytest
import yaml

from gagpo.collecting.distributed_rollout import require_fitting
from gagpo.settings import load
from tests.gagpo.planning.recipes import BLOCK, PAGE, rendered

RECIPES = ("alfworld-24gb", "alfworld-80gb", "alfworld-8x80gb")
CONFIGS = PAGE.parents[1] / "configs"


def test_the_page_says_what_its_commands_print(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    assert {match[1].split()[2] for match in BLOCK.finditer(text)} == {*RECIPES, "alfworld-qwen"}
    assert rendered(text, tmp_path) == text, "write it anew: python -m tests.gagpo.planning.recipes"
    assert all(re.search(r"GB: fits.*hours for 150 iterations", match[2], re.DOTALL) for match in BLOCK.finditer(text))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_differs_from_the_published_setting_only_where_it_says_so(name):
    """Whatever the file does not give a reason for beside it is the published value."""
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
    free = ("name", "device", "preset", "id")  # these are no choice of values
    without = [line for line in values if "# [" not in line and line.split(":")[0].strip() not in free]
    assert without == []
    assert yaml.safe_load("\n".join(lines))["algorithm"]["credit"]["key"] == "observation"
