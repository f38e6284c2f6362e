"""Configs of published settings: each value has its source, and those of papers are the published ones."""

import re
from pathlib import Path

import pytest

from gagpo.eval.suite import read_suite
from gagpo.settings import load

CONFIGS = Path(__file__).parents[3] / "configs"
SOURCES = {
    "math-qwen": {"paper", "sapo", "ours"},
    "alfworld-qwen": {"paper", "others", "ours"},
    "webshop-qwen": {"paper", "others", "ours"},
}
GAGPO = {
    "rollout.tasks": 16,
    "rollout.group_size": 8,
    "rollout.temperature": 1.0,
    "rollout.max_tokens": 512,
    "context.history": 2,
    "optimizer.learning_rate": 1e-6,
    "algorithm.credit.gamma": 0.95,
    "algorithm.credit.lam": 0.8,
    "algorithm.kl.coefficient": 0.01,
    "invalid_action_penalty": 0.1 / 10,  # 0.1 where a success pays 10
    "training.iterations": 150,
    "training.epochs": 1,
    "evaluation.temperature": 0.4,
}
PUBLISHED = {
    # arXiv 2605.04066: appendix K.1 (B prompts, G rollouts of each, N = B x G responses) and section 5.1 (evaluation)
    "math-qwen": {
        "rollout.tasks": 512,
        "rollout.group_size": 8,
        "rollout.temperature": 1.0,
        "optimizer.learning_rate": 1e-6,
        "algorithm.kl.coefficient": 0.001,
        "algorithm.controllers.apmpo.scale": 0.8,
        "algorithm.controllers.apmpo.low": 0.2,
        "algorithm.controllers.apmpo.high": 0.4,
        "training.iterations": 400,
        "evaluation.temperature": 0.6,
    },
    # arXiv 2605.13217, and the setting that the papers of this line of work share
    "alfworld-qwen": {**GAGPO, "environment.kwargs.max_turns": 50},
    "webshop-qwen": {**GAGPO, "environment.kwargs.max_turns": 15},
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_value_has_its_source(name):
    text = (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8")
    body = text[text.index("\nname:") :]
    without = [
        line
        for line in body.splitlines()
        if re.match(r" *[a-z_]+: [^{ ]", line) and not re.search(rf"# \[({'|'.join(SOURCES[name])})\b", line)
    ]
    free = ("name:", "device:", "  id:", "  preset:")
    assert [line for line in without if not line.startswith(free)] == []


@pytest.mark.parametrize("name", PUBLISHED)
def test_values_are_as_published(name):
    settings = load(name)
    values = {}
    for key in PUBLISHED[name]:
        value = settings
        for segment in key.split("."):
            value = value[segment] if isinstance(value, dict) else getattr(value, segment)
        values[key] = value
    assert values == pytest.approx(PUBLISHED[name])


def test_the_suite_of_apmpo_has_the_papers_six_sets():
    suite = read_suite("apmpo")
    assert {entry.kwargs["data"]: entry.episodes_per_task for entry in suite.values()} == {
        "math-500": None,
        "aime-2024": 16,
        "aime-2025": 16,
        "amc-2023": 16,
        "minerva": None,
        "olympiadbench": None,
    }
    assert {entry.temperature for entry in suite.values()} == {0.6}
    assert {(entry.kwargs["attempts"], entry.kwargs["tools"]) for entry in suite.values()} == {(1, False)}


def test_the_suite_of_gagpo_has_both_panels_and_the_shop():
    suite = read_suite("gagpo")
    assert [entry.split for entry in suite.values()] == ["valid_seen", "valid_unseen", "test"]
    assert {entry.temperature for entry in suite.values()} == {0.4}
