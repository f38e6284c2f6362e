"""Names of earlier versions and those that replaced them: only this file and ``registration.py`` contain old ones.

What a user writes with an old name is an error that gives the new one. What an earlier version stored (a run's config,
its metrics, the rows of a study) is read as if it had the new names.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

KEYS = {
    "invalid_penalty": "invalid_action_penalty",
    "rollout.samples": "rollout.group_size",
    "rollout.lockstep": "rollout.deterministic",
    "rollout.step_deadline": "rollout.step_timeout",
    "rollout.reset_deadline": "rollout.reset_timeout",
    "training.trust_region": "training.target_kl",
    "training.average": "training.ema",
    "training.keep": "training.max_checkpoints",
    "training.best": "training.best_metric",
    "training.keep_episodes": "training.save_episodes_every",
    "training.turns": "training.max_turns",
    "training.precision": "training.dtype",
    "optimizer.by_groups": "optimizer.scale_by_groups",
    "optimizer.warmup": "optimizer.warmup_iterations",
    "optimizer.schedule": "optimizer.lr_scheduler",
    "lora.base": "lora.base_dtype",
    "engine.memory": "engine.gpu_memory_utilization",
    "ranks.deadline": "ranks.timeout",
    "evaluation.tries": "evaluation.episodes_per_task",
    "environments.evaluation.tries": "environments.evaluation.episodes_per_task",
    "algorithm.credit.key": "algorithm.credit.state_key",
    "algorithm.credit.credits.key": "algorithm.credit.credits.state_key",
    "algorithm.credit.trajectory_weight": "algorithm.credit.episode_weight",
    "algorithm.credit.credits.trajectory_weight": "algorithm.credit.credits.episode_weight",
    "sft.base": "sft.base_model",
    "sft.mistakes": "sft.mistake_rate",
    "sft.model.layers": "sft.model.num_layers",
    "sft.model.width": "sft.model.hidden_size",
    "sft.model.vocabulary": "sft.model.vocab_size",
}
"""Keys of a config. A list's elements have the key of the list."""

REMOVED = dict.fromkeys(("max_nonfinite_steps", "max_skipped"), "3 such steps in a row end a run")
"""Keys of ``training`` that no longer have an effect, with what holds in their place."""

ARGUMENTS: dict[str, Mapping[str, str]] = {}
"""Options of an engine by its name, and arguments of an environment by its id, as their folders register them."""

PRESETS = {
    "ppo_token": "ppo",
    "reinforce_baseline": "reinforce_plus_plus_baseline",
    "max_rl": "maxrl",
}
"""Algorithms and credits."""

VALUES = {
    "algorithm": PRESETS,
    "algorithm.preset": PRESETS,
    "algorithm.credit": PRESETS,
    "algorithm.credit.name": PRESETS,
    "algorithm.credit.credits": PRESETS,
    "algorithm.credit.credits.name": PRESETS,
    "algorithm.correction": {"token": "tis"},
    "algorithm.correction.name": {"token": "tis"},
    "environment.kwargs.expert": {"hasty": "imperfect"},
    "environment.kwargs.expert_mode": {"knowing": "oracle"},
    "environments.kwargs.expert": {"hasty": "imperfect"},
    "environments.kwargs.expert_mode": {"knowing": "oracle"},
}
"""Values, by the key that has them."""

CONFIGS = {
    "alfworld-first": "alfworld-quickstart",
    "webshop-first": "webshop-quickstart",
    "maths-first": "math-quickstart",
    "maths-small": "math-small",
    "maths-smollm2": "math-smollm2",
    "maths-single-small": "math-single-small",
}

METRICS = {
    "zero_groups": "zero_advantage_groups",
    "old_kl": "approx_kl",
    "value_explained": "explained_variance",
    "step_kept": "target_kl_scale",
    "rate_scale": "lr_scale",
    "coverage": "repeated_states",
    "engine_asked": "engine_requests",
    "engine_again": "engine_retries",
    "engine_lost": "engine_servers_lost",
    "engine_silent": "engine_timeouts",
    "engine_revived": "engine_restarts",
}
"""Metrics; one of several environments has its name after a slash."""

OPTIONS = {"--tries": "--episodes-per-task", "--again": "--overwrite"}
"""Options of the command line."""

CHECKPOINTS = {"average": "ema"}
"""Which of a run's checkpoints: ``RUN@average``."""


def replacement(names: Mapping[str, str], name: str, kind: str) -> str:
    """``"preset 'max_rl' is renamed to 'maxrl'"`` for an old name; else ''."""
    return f"{kind} {name!r} is renamed to {names[name]!r}" if name in names else ""


def modernized(values: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values of a stored config with the new names, as a copy."""
    copy = _walked(values, "", "", [])
    assert isinstance(copy, dict)
    return copy


def without_removed(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a config without the keys that were removed, each with a warning."""
    training = values.get("training")
    if not isinstance(training, Mapping):
        return dict(values)
    for key in REMOVED.keys() & training.keys():
        text = f"training.{key} is removed and has no effect: {REMOVED[key]}"
        warnings.warn(text, FutureWarning, stacklevel=2)
    return {**values, "training": {key: value for key, value in training.items() if key not in REMOVED}}


def old_names(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The keys of a config that have, or whose values are, old names, each with what to say about it."""
    old_names_found: list[tuple[str, str]] = []
    _walked(values, "", "", old_names_found)
    return old_names_found


def new_metric(name: str) -> str:
    """The metric's new name.

    >>> new_metric("zero_groups/shop"), new_metric("loss")
    ('zero_advantage_groups/shop', 'loss')
    """
    match = re.fullmatch(r"([a-z_]+?)((?:_\d+)?(?:/.*)?)", name)
    return METRICS.get(match[1], match[1]) + match[2] if match else name


def _walked(
    value: object, place: str, written_place: str, old_names_found: list[tuple[str, str]], owner: object = None
) -> object:
    """A copy of a part of a config with the new names; the old ones are added to ``old_names_found``.

    place, written_place: the part's key with the new names, and as the config has it.
    owner: the environment's id or the engine's name, in their arguments.
    """
    if isinstance(value, list):
        return [_walked(item, place, written_place, old_names_found, owner) for item in value]
    if isinstance(value, str) and value in VALUES.get(place, {}):
        old_names_found.append((written_place, f"{place}={value} is renamed to {VALUES[place][value]}"))
        return VALUES[place][value]
    if not isinstance(value, Mapping):
        return value
    copy: dict[object, object] = {}
    for key, item, new in _new_keys(value, place, owner):
        old_place = f"{place}.{key}".strip(".")
        new_place = f"{place}.{new}".strip(".")
        written_inner = f"{written_place}.{key}".strip(".")
        if new != key:
            old_names_found.append((written_inner, f"key {old_place!r} is renamed to {new_place!r}"))
            if new in value:  # the new name wins
                continue
        inner_owner = {"kwargs": value.get("id"), "options": value.get("name")}.get(new)
        copy[new] = _walked(item, new_place, written_inner, old_names_found, inner_owner)
    return copy


def _new_keys(values: Mapping[Any, Any], place: str, owner: object) -> Iterator[tuple[Any, Any, Any]]:
    """Each key with its value and its new name."""
    arguments = ARGUMENTS.get(owner, {}) if isinstance(owner, str) else {}
    for key, value in values.items():
        if place == "training" and key in REMOVED:
            continue
        new = KEYS.get(f"{place}.{key}".strip(".")) if isinstance(key, str) else None
        yield key, value, new.rpartition(".")[2] if new else arguments.get(key, key)
