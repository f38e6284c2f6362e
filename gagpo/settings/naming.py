"""The name of a run whose overrides differ from its config: ``alfworld-quickstart-grpo-seed2``."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

from gagpo.base.core_schema import NotYaml, parse_yaml
from gagpo.settings.files import load
from gagpo.settings.keys import CHANGEABLE, keys
from gagpo.settings.run import RunSettings, SettingsError

ELSEWHERE = (*CHANGEABLE, "name", "device", "trackers", "evaluation")
"""Keys and sections that do not change what is learned: runs that differ only in them have one name."""

NAMED_BY_VALUE = ("algorithm", "algorithm.preset", "algorithm.credit", "algorithm.credit.name", "model")
"""Keys whose values are names that stand alone: ``grpo`` instead of ``algorithm-grpo``."""

_REFERENCE = re.compile(r"[\w./:@+-]+")  # a name, a path or module:Class, of which the last part is enough

LONGEST_WORD = 32  # characters of one override in a name; a longer one ends in a digest
LONGEST_NAME = 120  # characters of a name; a folder's name has at most 255 bytes, and files are named after it


def with_run_name(config: str | Path, overrides: Sequence[str]) -> list[str]:
    """The overrides of a run, with a name from those that differ from the config unless they set one.

    Raises:
        SettingsError: the settings are invalid.
    """
    if "name" in last_values(overrides):
        return list(overrides)
    settings = load(config, overrides)
    return [*overrides, f"name={join_words(settings.name, differing_words(config, settings, overrides))}"]


def differing_words(config: str | Path, settings: RunSettings, overrides: Sequence[str]) -> dict[str, str]:
    """The words in a run's name by key: of the overrides that differ from the config and change what is learned.

    settings: of the config with the overrides.
    """
    labels = {key: word_of(key, text) for key, text in last_values(overrides).items() if _counts(key)}
    differing = differing_keys(config, settings, labels) if labels else set()
    return {key: word for key, word in labels.items() if key in differing}


def last_values(overrides: Sequence[str]) -> dict[str, str]:
    """The value of every key, as it is written; the last one counts."""
    pairs = (override.partition("=") for override in overrides)
    return {key: text for key, _, text in pairs}


def differing_keys(config: str | Path, settings: RunSettings, changed: Collection[str]) -> set[str]:
    """The keys in ``changed`` whose value in ``settings`` is not the config's.

    A config that is valid only with its overrides counts as different in all of them.
    """
    try:
        before = load(config).model_dump(mode="json")
    except SettingsError:
        return set(changed)
    after = settings.model_dump(mode="json")
    return {key for key in changed if _at(before, key) != _at(after, key) or _at(after, key) is None}


def join_words(name: str, words: Mapping[str, str]) -> str:
    """``name`` and the words of some overrides by key; the seed comes last, where reports look for it.

    >>> join_words("quickstart", {"seed": "seed2", "algorithm": "grpo"})
    'quickstart-grpo-seed2'
    """
    ordered = [word for key, word in words.items() if key != "seed"]
    ordered += [words["seed"]] if "seed" in words else []
    joined = "-".join([name, *ordered])
    if len(joined) <= LONGEST_NAME:
        return joined
    # The seed stays readable, because runs that differ only in it are grouped by their names.
    ending = f"-{_digest(joined)}" + (f"-{words['seed']}" if "seed" in words else "")
    return joined[: LONGEST_NAME - len(ending)].rstrip("-.") + ending


def word_of(key: str, text: str) -> str:
    """One override in a name: ``seed2``, ``lam0.5``, ``grpo``, ``reward-success``.

    text: the value as it is written on the command line.

    >>> word_of("seed", "2"), word_of("rollout.tasks", "8"), word_of("algorithm.credit", "loo:LooState")
    ('seed2', 'rollout-tasks8', 'LooState')
    """
    name = short_key(key)
    if _is_number(text):
        return f"{name}{text.strip()}"
    if key in NAMED_BY_VALUE and _REFERENCE.fullmatch(text):
        return _plain(re.split(r"[/:]", text.rstrip("/"))[-1])
    return f"{name}-{_plain(text)}"


def words_of(key: str, texts: Sequence[str]) -> list[str]:
    """The words of several values of a key, all different.

    >>> words_of("model", ["runs/a/best", "runs/b/best"])
    ['model-runs-a-best', 'model-runs-b-best']
    """
    labels = [word_of(key, text) for text in texts]
    if len(set(labels)) < len(labels):
        labels = [f"{short_key(key)}-{_plain(text)}" for text in texts]
    if len(set(labels)) < len(labels):
        labels = [f"{word}-{_digest(text)}" for word, text in zip(labels, texts, strict=True)]
    return labels


def _counts(key: str) -> bool:
    return not any(key == other or key.startswith(f"{other}.") for other in ELSEWHERE)


def short_key(key: str) -> str:
    """The last part of a key, with the one before it where several sections have a key of that name."""
    above, _, last = key.rpartition(".")
    return f"{above.rpartition('.')[2]}-{last}" if above and last in _ambiguous() else last


@cache
def _ambiguous() -> frozenset[str]:
    endings = Counter(key.rpartition(".")[2] for key in set(keys(RunSettings)))
    return frozenset(name for name, count in endings.items() if count > 1)


def _is_number(text: str) -> bool:
    try:
        value = parse_yaml(text)
    except NotYaml:
        return False
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(text: str) -> str:
    """``text`` in letters of a file name, cut to :data:`LONGEST_WORD`."""
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.")
    if plain and len(plain) <= LONGEST_WORD:
        return plain
    return f"{plain[: LONGEST_WORD - 7].rstrip('-.')}-{_digest(text)}".lstrip("-")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _at(values: object, key: str) -> object:
    """The value at a dotted key of plain data, in a list by a row's number or name; None if there is none."""
    for name in key.split("."):
        if isinstance(values, list):
            rows = {str(row.get("name")): row for row in values if isinstance(row, dict)}
            numbered = values[int(name)] if name.isdecimal() and int(name) < len(values) else None
            values = rows.get(name, numbered)
        else:
            values = values.get(name) if isinstance(values, dict) else None
    return values
