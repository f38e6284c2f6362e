"""Resolving settings: each rule alone, and all together twice."""

import json

import pytest
import yaml
from pydantic import ValidationError

from gagpo.runs.run_folder import RunFolder
from gagpo.settings import dump, load, resolve
from gagpo.settings.resolve import (
    correct_for_sampler,
    divide_by_response_limit,
    raise_adapter_rate,
    separate_workers,
    take_derived_values,
)

MINIMAL = {"name": "x", "model": "m", "environment": {"id": "gagpo/ALFWorld-v0"}, "algorithm": "gagpo"}
DERIVED = {"rollout.max_tokens": 7, "optimizer.learning_rate": 3e-4}
OPEN = ["algorithm=dr_grpo", "rollout.ahead=1", "lora={}", "engine.dtype=bfloat16"]


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(MINIMAL))
    return lambda *overrides: load(path, overrides)


def test_resolving_leaves_its_input_and_a_resolved_copy_unchanged(settings):
    arguments = settings(*OPEN)
    before = arguments.model_dump_json(), json.dumps(arguments.model_dump(mode="json", exclude_unset=True))
    result = resolve(arguments, DERIVED)
    assert (arguments.model_dump_json(), json.dumps(arguments.model_dump(mode="json", exclude_unset=True))) == before
    assert result != arguments
    assert resolve(result) == result and resolve(result, {"rollout.max_tokens": 9}) == result


def test_a_run_stores_what_is_resolved_and_reads_it_back(settings, tmp_path):
    folder = RunFolder.create(tmp_path / "run", settings(*OPEN))
    stored = (tmp_path / "run" / "config.yaml").read_text()
    assert folder.settings == resolve(settings(*OPEN)) == load(tmp_path / "run" / "config.yaml")
    assert dump(RunFolder.open(tmp_path / "run").settings) == stored


@pytest.mark.parametrize(
    ("overrides", "correction"),
    [
        ([], "none"),
        (["engine.dtype=bfloat16"], "recompute"),
        (["training.dtype=bfloat16"], "recompute"),
        (["rollout.ahead=1"], "tis"),
        (["rollout.ahead=1", "engine.dtype=bfloat16"], "tis"),
        (["rollout.ahead=1", "algorithm.correction=none"], "none"),
    ],
)
def test_the_correction_follows_from_how_the_sampler_differs(settings, overrides, correction):
    assert correct_for_sampler(settings(*overrides)).algorithm.correction.name == correction


def test_an_adapter_has_a_higher_rate(settings):
    assert raise_adapter_rate(settings()).optimizer.learning_rate == 1e-6
    assert raise_adapter_rate(settings("lora={}")).optimizer.learning_rate == 1e-5
    assert raise_adapter_rate(settings("lora={}", "optimizer.learning_rate=2e-6")).optimizer.learning_rate == 2e-6


def test_derived_values_fill_what_is_open(settings):
    filled = take_derived_values(settings("rollout.max_tokens=9"), {**DERIVED, "engine.name": "evil:Engine"})
    assert (filled.rollout.max_tokens, filled.optimizer.learning_rate) == (9, 3e-4)
    assert filled.engine.name == "transformers", "only keys of OF_RUN are taken"
    with pytest.raises(ValidationError):
        take_derived_values(settings(), {"rollout.max_tokens": -1})


def test_a_constant_is_the_response_limit_after_derived_values(settings):
    assert divide_by_response_limit(settings("algorithm=dr_grpo")).algorithm.aggregation.length == 512
    assert resolve(settings("algorithm=dr_grpo"), DERIVED).algorithm.aggregation.length == 7
    reference = settings("algorithm=dr_grpo", "algorithm.aggregation.length=40")
    assert resolve(reference, DERIVED).algorithm.aggregation.length == 40


def test_a_thread_that_samples_ahead_has_workers(settings):
    assert separate_workers(settings()).rollout.workers == "auto"
    assert separate_workers(settings("rollout.ahead=1")).rollout.workers == 2
    assert separate_workers(settings("rollout.ahead=1", "rollout.workers=3")).rollout.workers == 3
