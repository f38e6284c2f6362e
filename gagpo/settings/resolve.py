"""Fill the settings that a config leaves open. Each rule is a pure function that returns new settings."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gagpo.envs.pool.pool import WORKERS
from gagpo.settings.derived import OF_RUN, Value, is_set
from gagpo.settings.run import RunSettings

LORA_RATE = 1e-5
"""The learning rate of an adapter unless it is set: ten times that of all weights."""

NOTHING: Mapping[str, Value] = MappingProxyType({})


def resolve(settings: RunSettings, derived: Mapping[str, Value] = NOTHING) -> RunSettings:
    """Fill what the settings leave open; values that the user set stay.

    The input stays unchanged, and resolving twice gives the same as once. A run stores the result in its config.yaml
    and resumes from it.

    derived: values by dotted key from the model's folder, see :func:`gagpo.settings.derived.derived_values`.

    Raises:
        pydantic.ValidationError: a derived value is invalid.
    """
    settings = correct_for_sampler(settings)
    settings = raise_adapter_rate(settings)
    settings = take_derived_values(settings, derived)
    settings = divide_by_response_limit(settings)
    return separate_workers(settings)


def correct_for_sampler(settings: RunSettings) -> RunSettings:
    """By default, set ``algorithm.correction`` where the sampler's log-probabilities differ from the trainer's.

    If they compute differently, ratios start from the trainer's log-probabilities (``recompute``). If the sampler's
    weights are older, each token is weighted (``tis``): the decoupled objective (Hilton et al. 2021), whose trust
    region is around the weights before the update and not around the sampler's.
    """
    if "correction" in settings.algorithm.model_fields_set:
        return settings
    if settings.rollout.ahead > 0:
        return _with_correction(settings, "tis")
    formats = (settings.engine.dtype, settings.training.dtype)
    if "bfloat16" in formats or not settings.engine.options.equal_logprobs:
        return _with_correction(settings, "recompute")
    return settings  # with ``auto``, settings are resolved again when the machine has chosen


def _with_correction(settings: RunSettings, name: str) -> RunSettings:
    correction = type(settings.algorithm.correction).model_validate({"name": name})
    return _changed(settings, "algorithm", correction=correction)


def raise_adapter_rate(settings: RunSettings) -> RunSettings:
    """By default, train an adapter at :data:`LORA_RATE`."""
    if settings.lora is None or is_set(settings, "optimizer.learning_rate"):
        return settings
    return _changed(settings, "optimizer", learning_rate=LORA_RATE)


def take_derived_values(settings: RunSettings, derived: Mapping[str, Value]) -> RunSettings:
    """By default, take the values of :data:`~gagpo.settings.derived.OF_RUN` from the model's folder."""
    for key in OF_RUN:
        if key in derived and not is_set(settings, key):
            section, _, field = key.partition(".")
            # Checked as if written in the config, because the file may have been edited.
            checked = type(getattr(settings, section)).model_validate({field: derived[key]})
            settings = _changed(settings, section, **{field: getattr(checked, field)})
    return settings


def divide_by_response_limit(settings: RunSettings) -> RunSettings:
    """By default, set ``aggregation.length`` of a constant to the longest response (Dr.GRPO)."""
    algorithm = settings.algorithm.resolved(settings.longest_response)
    return settings if algorithm is settings.algorithm else settings.model_copy(update={"algorithm": algorithm})


def separate_workers(settings: RunSettings) -> RunSettings:
    """With ``rollout.ahead``, step environments in workers: the thread that samples cannot step them itself."""
    if settings.rollout.ahead == 0 or settings.rollout.workers != "auto":
        return settings
    return _changed(settings, "rollout", workers=WORKERS)


def _changed(settings: RunSettings, section: str, **values: object) -> RunSettings:
    """A copy with other values in a section, which count as set from then on."""
    return settings.model_copy(update={section: getattr(settings, section).model_copy(update=values)})
