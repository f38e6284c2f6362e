"""Random YAML documents and overrides: settings come of them, or one line does."""

from __future__ import annotations

import functools
import random
import time
from pathlib import Path

from gagpo.settings import RunSettings, dump, load
from gagpo.settings.keys import keys
from tests.hard.outcome import Tally, attempt
from tests.hard.worlds import write_settings

_PLAIN = (
    *("yes", "no", "on", "~", "null", "true", "010", "0o17", "0x1f", "1:30", "1_000", "1e3", "1e999", ".inf", "-.inf"),
    *(".nan", "-0", "+1", "9" * 30, "9" * 5000, "-1", "0", "1.5", "1e38", "1e-400", "2020-01-01", "=", "<<", "''"),
    *(
        '"\\ud800"',
        '"\\U99999999"',
        '"\\x00"',
        '"\\N"',
        "'\u202e'",
        "\ufeff",
        "é\u2028",
        "a" * 5000,
        "{}",
        "[]",
        "[[]]",
    ),
    *("!!python/object/apply:os.abort []", "!!binary aGk=", "!!set {a}", "!!int x", "!!float y", "!!bool 3", "!x 1"),
    *("&a [*a]", "&a {k: *a}", "*b", "&a 1", "[*a, *a]", "{a: 1, a: 2}", "{1: 2}", "{[1]: 2}", "{<<: {a: 1}}", "? a"),
    *("gagpo", "cuda", "full", "[" * 2000, "{" * 2000 + "}" * 2000, "- - -", "|\n  text", ">-\n  text", "# comment"),
)
_FITTING = ("0", "1", "2", "0.5", "1e-3", "true", "false", "null", "auto", "full", "a")  # somewhere
_JOINS = ("\n", "\n  ", ": ", ", ", " ", "\n---\n", "\t", "\r\n", "\n- ")


def documents(folder: Path, count: int, seed: int, only: int | None = None) -> Tally:
    """Read ``count`` documents: settings with hostile values or overrides, and texts of nothing but scraps."""
    begin = time.monotonic()
    tally = Tally("YAML documents")
    sound = write_settings(folder / "sound.yaml", folder / "model").read_text(encoding="utf-8")
    known = sorted(set(keys(RunSettings)))
    for case in range(count) if only is None else [only]:
        rng = random.Random(f"{seed}/{case}/documents")
        path, overrides = folder / "case.yaml", []
        path.write_text(sound, encoding="utf-8")
        kind = rng.random()
        if kind < 0.5:  # values of settings, one or several
            overrides = [f"{rng.choice(known)}={_value(rng)}" for _ in range(rng.choice((1, 1, 3)))]
        elif kind < 0.8:  # lines of the file
            lines = sound.splitlines()
            for _ in range(rng.choice((1, 1, 3))):
                place = rng.randrange(len(lines))
                if rng.random() < 0.7:
                    lines[place] = f"{lines[place].partition(':')[0]}: {_value(rng)}"
                else:
                    lines.insert(place, f"{rng.choice(known)}: {_value(rng)}")
            path.write_text("\n".join(lines), encoding="utf-8")
        else:
            text = "".join(rng.choice(_PLAIN) + rng.choice(_JOINS) for _ in range(rng.randint(1, 12)))
            path.write_text(text, encoding="utf-8")
        outcome = attempt(functools.partial(_read_twice, path, overrides))
        tally.add(f"documents --seed {seed} --only {case} ({overrides or kind!s:.80})", outcome)
    tally.seconds = time.monotonic() - begin
    return tally


def _value(rng: random.Random) -> str:
    """Hostile for the most part; without any that fits, nothing would ever be read twice."""
    return rng.choice(_FITTING if rng.random() < 0.4 else _PLAIN)


def _read_twice(path: Path, overrides: list[str]) -> None:
    """Settings must be the same when they are read from what is written of them."""
    settings = load(path, overrides)
    path.write_text(dump(settings), encoding="utf-8")
    assert load(path) == settings, "the settings change on their way to the file"
