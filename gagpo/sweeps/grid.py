"""The runs of a sweep: every combination of the values that overrides list, as in ``seed=1,2,3``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gagpo.settings import RunSettings, SettingsError, load
from gagpo.settings.naming import differing_words, join_words, last_values, short_key, words_of

MOST_RUNS = 1000
"""Maximum number of runs: a mistyped product must not fill a disk."""

_CLOSING = {"[": "]", "{": "}", "(": ")"}


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    label: what it is compared as: its values of the sweep without the seed.
    overrides: one value for each key, and its name.
    settings: of the config with these overrides, before they are resolved.
    folder: where it is written.
    """

    label: str
    overrides: tuple[str, ...]
    settings: RunSettings
    folder: Path

    @property
    def name(self) -> str:
        return self.settings.name


@dataclass(frozen=True)
class Sweep:
    """The runs of one command.

    keys: that have several values, in the order of the command line.
    folder: for logs and the report.
    """

    config: str
    keys: tuple[str, ...]
    runs: tuple[SweepRun, ...]
    folder: Path


def is_sweep(overrides: Sequence[str]) -> bool:
    """Whether any override lists several values."""
    return any(len(split_values(override.partition("=")[2])) > 1 for override in overrides)


def split_values(text: str) -> list[str]:
    """The values that commas separate; commas within brackets or quotes do not.

    >>> split_values("1,2,3"), split_values("[a,b],[c]"), split_values("'a,b'"), split_values("it's,ok")
    (['1', '2', '3'], ['[a,b]', '[c]'], ["'a,b'"], ["it's", 'ok'])
    """
    values = [""]
    awaited: list[str] = []  # closing brackets, the innermost last
    quote = ""
    skipping = False
    for character, before in zip(text, f",{text}", strict=False):
        if not quote and not awaited and character == ",":
            values.append("")
            continue
        values[-1] += character
        if quote:
            if character == quote and not skipping:
                quote = ""
            skipping = character == "\\" and quote == '"' and not skipping
        elif character in "\"'" and before in ",[{(: ":  # elsewhere it is an apostrophe
            quote = character
        elif character in _CLOSING:
            awaited.append(_CLOSING[character])
        elif awaited and character == awaited[-1]:
            awaited.pop()
    return [text] if quote or awaited else values


def make_sweep(config: str, overrides: Sequence[str], runs: Path) -> Sweep:
    """The runs of a sweep, without a look at their folders.

    runs: folder for run folders.

    Raises:
        SettingsError: the settings of a run are invalid, or an override cannot be swept.
    """
    choices = _choices(overrides)
    count = math.prod(len(values) for _, values in choices)
    if count > MOST_RUNS:
        raise SettingsError(f"a sweep has at most {MOST_RUNS:,} runs (got {count:,})", advice="list fewer values")
    labels = {key: dict(zip(values, words_of(key, values), strict=True)) for key, values in choices if len(values) > 1}
    sweep_runs = [_make_run(config, combination, labels, runs) for combination in _combinations(choices)]
    _require_different(sweep_runs, labels)
    name = load(config, [f"{key}={values[0]}" for key, values in choices]).name
    keys = "-".join(map(short_key, labels))
    return Sweep(config, tuple(labels), tuple(sweep_runs), runs / f"{name}-by-{keys}")


def _make_run(config: str, combination: Sequence[str], words: Mapping[str, Mapping[str, str]], runs: Path) -> SweepRun:
    """One run, whose name has the words of all swept keys and of other overrides that differ from the config.

    words: of the swept keys, by value.
    """
    values = last_values(combination)
    settings = load(config, combination)
    swept = {key: word_by_value[values[key]] for key, word_by_value in words.items()}
    fixed = {} if "name" in values else differing_words(config, settings, combination)
    fixed = {key: word for key, word in fixed.items() if key not in words}
    name = join_words(settings.name, {**fixed, **swept})
    overrides = [*(override for override in combination if not override.startswith("name=")), f"name={name}"]
    label = "-".join(word for key, word in swept.items() if key != "seed") or settings.name
    return SweepRun(label, tuple(overrides), load(config, overrides), runs / name)


def _require_different(runs: Sequence[SweepRun], words: Mapping[str, Mapping[str, str]]) -> None:
    """Raise SettingsError if two runs have equal settings: values such as 1e-4 and 0.0001 differ only as texts."""
    runs_by_settings: dict[str, SweepRun] = {}
    for run in runs:
        text = run.settings.model_copy(update={"name": ""}).model_dump_json()
        earlier = runs_by_settings.setdefault(text, run)
        if earlier is run:
            continue
        before, after = last_values(earlier.overrides), last_values(run.overrides)
        key = next(key for key in words if before[key] != after[key])
        override = f"{key}={','.join(words[key])}"
        raise SettingsError(
            f"lists a value twice ({before[key]} and {after[key]} are the same setting)",
            key=key,
            where=f"override {override!r:.80}",
            advice="remove one",
        )


def _choices(overrides: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Every key with its values."""
    choices: list[tuple[str, list[str]]] = []
    for override in overrides:
        key, equals, text = override.partition("=")
        values = [value.strip() for value in split_values(text)] if equals else []
        if not equals or not key:
            raise SettingsError("must look like section.key=value", where=f"override {override!r:.80}")
        if len(values) > 1:
            if key == "name":
                raise SettingsError(
                    f"name cannot be swept (got {override!r:.80}): runs are named after the other values", key="name"
                )
            if "" in values:
                raise SettingsError(
                    "lists an empty value",
                    key=key,
                    where=f"override {override!r:.80}",
                    advice="remove a comma, or quote the text",
                )
            if len(set(values)) < len(values):
                where = f"override {override!r:.80}"
                raise SettingsError("lists a value twice", key=key, where=where, advice="remove one")
        choices.append((key, values if len(values) > 1 else [text]))
    keys = [key for key, _ in choices]
    for key, values in choices:
        if len(values) > 1 and keys.count(key) > 1:
            raise SettingsError(
                f"{key} is set {keys.count(key)} times", key=key, advice="list all of its values in one override"
            )
    return choices


def _combinations(choices: Sequence[tuple[str, Sequence[str]]]) -> Iterator[list[str]]:
    """One override for each key. The seed changes last, so that an interrupted sweep has all methods alike."""
    slowest_first = sorted(range(len(choices)), key=lambda number: choices[number][0] != "seed")
    for values in itertools.product(*(choices[number][1] for number in slowest_first)):
        value_of = dict(zip(slowest_first, values, strict=True))
        yield [f"{key}={value_of[number]}" for number, (key, _) in enumerate(choices)]
