"""The design of a learning study: a config, its variants, and the split that is reported."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Study:
    """What is compared.

    config: the settings that all runs share.
    variants: overrides of the config, by the label of the method.
    split: what is reported.
    chosen_on: the split on which learning rates are chosen.
    common: overrides of every run.
    """

    config: str
    variants: dict[str, list[str]]
    split: str = "valid_unseen"
    chosen_on: str = "valid_seen"
    common: list[str] = field(default_factory=list)


def preset(name: str, *more: str) -> list[str]:
    """Overrides that train with a preset, without the reference model's KL."""
    return [f"algorithm={{preset: {name}, kl: {{coefficient: 0.0}}}}", *more]
