"""Mutations of files: of their bytes, their text and their values."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

_DIGITS, _NEST = "@digits@", "@nest@"  # stand for what no writer of JSON would write
_TEXTS = {f'"{_DIGITS}"': "9" * 5000, f'"{_NEST}"': "[" * 20_000 + "]" * 20_000}
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 1e308, 2**63, float("nan"), float("inf"), "", " ", "\x00", "../..", "null"),
    *([], {}, [[]], {"": {}}, [None], "é\u2028", "x" * 100_000, _DIGITS, _NEST),
)
_SCRAPS = (
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\n", b"\n\n[1, 2]\n", b"\nnull\n", b"{", b"}", b'"'),
    *(
        b",",
        b": ",
        b"[" * 5000,
        b"9" * 5000,
        b"1e999",
        b"NaN",
        b"-",
        b"\t",
        b"!!python/object/apply:os.abort []",
        b"&a [*a]",
    ),
    *(b"x" * 200_000,),
)


def mutate(path: Path, rng: random.Random) -> str:
    """Change the file at ``path`` in one way or several, and say how."""
    data = path.read_bytes()
    data, how = mutated(data, rng, path.suffix in (".json", ".jsonl", ".yaml") or _is_json(data))
    path.unlink()  # a link to the sound file must not lead the mutation there
    path.write_bytes(data)
    return how


def mutated(data: bytes, rng: random.Random, values: bool) -> tuple[bytes, str]:
    """``data`` changed in one way or several, and how; also in the values that it spells where it has ``values``."""
    ways = [*_OF_BYTES, *(_OF_VALUES if values else ())]
    chosen = [rng.choice(ways) for _ in range(rng.choice((1, 1, 1, 2, 4)))]
    for way in chosen:
        data = way(data, rng)
    return data, " + ".join(way.__name__.strip("_").replace("_", " ") for way in chosen)


def _is_json(data: bytes) -> bool:
    return data[:1] in b"{["


# Bytes ----------------------------------------------------------------------------------------------------------------


def _flip_bits(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8) if data else 0):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut_the_end(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _cut_a_part(data: bytes, rng: random.Random) -> bytes:
    start, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    return data[:start] + data[end:]


def _repeat_a_part(data: bytes, rng: random.Random) -> bytes:
    start, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    return data[:end] + data[start:end] + data[end:]


def _insert_a_scrap(data: bytes, rng: random.Random) -> bytes:
    randrange = rng.randrange(len(data) + 1)
    return data[:randrange] + rng.choice(_SCRAPS) + data[randrange:]


def _empty(data: bytes, rng: random.Random) -> bytes:
    return b""


def _random_bytes(data: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(rng.randint(1, 1000))


# Values ---------------------------------------------------------------------------------------------------------------


def _replace_a_value(data: bytes, rng: random.Random) -> bytes:
    return _edited(data, rng, lambda container, key: container.__setitem__(key, rng.choice(HOSTILE)))


def _drop_a_value(data: bytes, rng: random.Random) -> bytes:
    return _edited(data, rng, lambda container, key: container.pop(key))


def _rename_a_key(data: bytes, rng: random.Random) -> bytes:
    def rename(container: Any, key: Any) -> None:
        if isinstance(container, dict):
            container[f"{key}x"] = container.pop(key)

    return _edited(data, rng, rename)


def _edited(data: bytes, rng: random.Random, edit: Callable[[Any, Any], object]) -> bytes:
    """``data`` (JSON, lines of it, or YAML) with one value edited, wherever it lies; as it is if it is none of them."""
    try:
        text = data.decode()
        lines = text.splitlines()
        for reads, writes in ((json.loads, json.dumps), (yaml.safe_load, yaml.safe_dump)):
            try:
                document = reads(text)
                return _spelled(writes(_one_edit(document, rng, edit)))
            except (ValueError, yaml.YAMLError):
                if len(lines) > 1 and _is_json(lines[0].encode()):
                    randrange = rng.randrange(len(lines))
                    lines[randrange] = json.dumps(_one_edit(json.loads(lines[randrange]), rng, edit))
                    return _spelled("\n".join(lines) + "\n")
    except (ValueError, RecursionError):
        pass
    return data


def _spelled(text: str) -> bytes:
    for quoted, spelled in _TEXTS.items():
        text = text.replace(quoted, spelled).replace(quoted.strip('"').join("''"), spelled)
    return text.encode(errors="surrogatepass")


def _one_edit(document: Any, rng: random.Random, edit: Callable[[Any, Any], object]) -> Any:
    locations: list[tuple[Any, Any]] = []
    unseen = [document]
    while unseen and len(locations) < 10_000:
        value = unseen.pop()
        keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        locations += ((value, key) for key in keys)
        unseen += (value[key] for key in keys)
    if locations:
        edit(*rng.choice(locations))
        return document
    return rng.choice(HOSTILE)


_OF_BYTES = (
    *(_flip_bits, _cut_the_end, _cut_a_part, _repeat_a_part),
    *(_insert_a_scrap, _insert_a_scrap, _empty, _random_bytes),
)
_OF_VALUES = (_replace_a_value, _replace_a_value, _replace_a_value, _drop_a_value, _rename_a_key) * 2
