"""What ``auto`` becomes in the settings of a run."""

import pytest

from gagpo.settings import load, resolve
from gagpo.settings.formats import formats_of, is_open, with_formats, with_formats_of, with_unsharded


def settings_of(*overrides):
    return resolve(load("alfworld-quickstart", overrides))


def test_auto_is_the_default_everywhere():
    settings = settings_of("lora.rank=4")
    assert set(formats_of(settings).values()) == {"auto"} and len(formats_of(settings)) == 3
    assert is_open(settings) and not is_open(with_formats(settings, "float32", "float32"))


@pytest.mark.parametrize(
    ("overrides", "choice", "base"),
    [
        ([], ("bfloat16", "bfloat16"), "bfloat16"),
        ([], ("bfloat16", "float32"), "float32"),
        ([], ("float32", "float32"), "float32"),
        (["engine.dtype=float32"], ("bfloat16", "bfloat16"), "float32"),
        (["lora.base_dtype=bfloat16"], ("float32", "float32"), "bfloat16"),
    ],
)
def test_a_base_is_stored_in_bfloat16_where_all_computation_is(overrides, choice, base):
    chosen = formats_of(with_formats(settings_of("lora.rank=4", *overrides), *choice))
    assert chosen["lora.base_dtype"] == base
    explicit = dict(override.split("=") for override in overrides)
    assert explicit.items() <= chosen.items()


def test_the_correction_follows_when_the_machine_has_chosen():
    settings = settings_of()
    assert settings.algorithm.correction.name == "none"
    assert resolve(with_formats(settings, "bfloat16", "float32")).algorithm.correction.name == "recompute"
    assert resolve(with_formats(settings, "float32", "float32")).algorithm.correction.name == "none"


def test_only_open_formats_are_taken_from_a_stored_run():
    stored = with_formats(settings_of(), "bfloat16", "float32")
    assert formats_of(with_formats_of(settings_of(), stored)) == formats_of(stored)
    explicit = with_formats_of(settings_of("training.dtype=float32"), stored)
    assert formats_of(explicit) == {"training.dtype": "float32", "engine.dtype": "float32"}


def test_two_choices_of_one_section_are_both_kept():
    settings = settings_of()
    stored = with_unsharded(with_formats(settings, "float32", "float32"), "all")
    same = with_formats_of(settings, stored)
    assert (same.training.dtype, same.training.unsharded) == ("float32", "all")
    assert same == stored
