"""Change one value of a configuration and nothing else of the file."""

from __future__ import annotations

import configparser
import json
import random

from gagpo.envs.terminal.exercise import Exercise, Final
from gagpo.envs.terminal.families.family import family
from gagpo.envs.terminal.families.words import SplitWords
from gagpo.envs.terminal.tree import file


def _replaced(text: str, line: str, new: str) -> str:
    """The text with one line replaced: the only one of this content."""
    lines = text.split("\n")
    assert lines.count(line) == 1
    return "\n".join(new if candidate == line else candidate for candidate in lines)


def _same_lines(final: Final, path: str, expected: str) -> bool:
    return final.lines(path) == expected.rstrip().split("\n")


@family("set-env", 2)
def set_env(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    key, other, *more = (stem.upper() for stem in words.stems(4))
    name = words.stem()
    old, new = rng.sample(range(1000, 9999), k=2)
    extra = f"# {key}=0\n" if level == 2 else ""
    text = f"{extra}{other}_{key}={old}\n{key}={old}\n" + "".join(f"{stem}={rng.randint(1, 99)}\n" for stem in more)
    tree = {f"{name}.env": file(text)}
    expected = _replaced(text, f"{key}={old}", f"{key}={new}")
    python = (
        f"import re; p = '{name}.env'; t = open(p).read(); "
        f"open(p, 'w').write(re.sub('(?m)^{key}=.*$', '{key}={new}', t))"
    )
    return Exercise(
        f"Set {key} to {new} in {name}.env. Change nothing else in the file.",
        tree,
        lambda final: _same_lines(final, f"{name}.env", expected),
        (f"sed -i 's/^{key}=.*/{key}={new}/' {name}.env",),
        (f'python3 -c "{python}"',),
        (f"sed -i 's/{key}=.*/{key}={new}/' {name}.env",),
    )


@family("set-ini", 2)
def set_ini(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    name, *sections = words.stems(2 + level)
    keys = words.stems(3)
    section, key = rng.choice(sections), rng.choice(keys)
    old, new = rng.sample(range(100, 999), k=2)
    lines = []
    for title in sections:
        lines += [f"[{title}]", *(f"{stem} = {old if stem == key else rng.randint(1, 99)}" for stem in keys), ""]
    tree = {f"{name}.ini": file("\n".join(lines))}
    values = {
        title: {stem: (str(new) if (title, stem) == (section, key) else value) for stem, value in content.items()}
        for title, content in _ini("\n".join(lines)).items()
    }
    python = (
        f"import configparser; c = configparser.ConfigParser(); c.read('{name}.ini'); "
        f"c['{section}']['{key}'] = '{new}'; c.write(open('{name}.ini', 'w'))"
    )
    return Exercise(
        f"In {name}.ini, set {key} of the section {section} to {new}. All other values stay.",
        tree,
        lambda final: _ini(final.text(f"{name}.ini") or "") == values,
        (f"sed -i '/^\\[{section}\\]/,/^\\[/s/^{key} = .*/{key} = {new}/' {name}.ini",),
        (f'python3 -c "{python}"',),
        (f"sed -i 's/^{key} = .*/{key} = {new}/' {name}.ini",),
    )


def _ini(text: str) -> dict[str, dict[str, str]]:
    """The values by section; empty for text that is no such file."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except configparser.Error:
        return {}
    return {title: dict(parser[title]) for title in parser.sections()}


@family("set-json", 3)
def set_json(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    name, outer, key, other, more = words.stems(5)
    old, new = rng.sample(range(100, 999), k=2)
    inner: dict[str, object] = {key: old, other: [1, 2, {key: old}], more: None}
    values: dict[str, object] = {outer: inner, key: old, other: True} if level > 1 else inner
    path = {1: f"[{key!r}]", 2: f"[{outer!r}][{key!r}]", 3: f"[{outer!r}][{other!r}][2][{key!r}]"}[level]
    where = {
        1: f"the value of {key} at the top",
        2: f"the value of {key} in {outer}",
        3: f"the value of {key} in the last entry of the list {other} in {outer}",
    }[level]
    expected = json.loads(json.dumps(values))
    container = {1: expected, 2: expected.get(outer), 3: expected.get(outer, {}).get(other, [0, 0, 0])[2]}[level]
    container[key] = new
    tree = {f"{name}.json": file(json.dumps(values, indent=2) + "\n")}
    code = f"import json; d = json.load(open('{name}.json')); d{path} = {new}; "
    write = f"json.dump(d, open('{name}.json', 'w'), indent=2)"
    again = f"open('{name}.json', 'w').write(json.dumps(d))"
    return Exercise(
        f"In {name}.json, change {where} to {new}. Everything else stays.",
        tree,
        lambda final: _json(final.text(f"{name}.json")) == expected,
        (f'python3 -c "{code}{write}"',),
        (f'python3 -c "{code}{again}"',),
        (f'sed -i \'s/"{key}": {old}/"{key}": {new}/\' {name}.json',),
    )


def _json(text: str | None) -> object:
    try:
        return json.loads(text or "")
    except (ValueError, RecursionError):
        return None


@family("set-yaml", 2)
def set_yaml(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    name, *services = words.stems(2 + level)
    service = rng.choice(services)
    port, new = rng.sample(range(2000, 9000), k=2)
    lines = ["# ports of all services", "services:"]
    for title in services:
        lines += [f"  {title}:", f"    port: {port if title == service else rng.randint(1000, 1999)}", "    retries: 3"]
    text = "\n".join([*lines, f"port: {port}"]) + "\n"
    expected = _replaced(text, f"    port: {port}", f"    port: {new}")
    tree = {f"{name}.yaml": file(text)}
    python = (
        f"t = open('{name}.yaml').read(); a, b = t.split('  {service}:', 1); "
        f"open('{name}.yaml', 'w').write(a + '  {service}:' + b.replace('port: {port}', 'port: {new}', 1))"
    )
    return Exercise(
        f"In {name}.yaml, change the port of the service {service} to {new}. Change no other line.",
        tree,
        lambda final: _same_lines(final, f"{name}.yaml", expected),
        (f"sed -i '/^  {service}:/,/port:/s/port: .*/port: {new}/' {name}.yaml",),
        (f'python3 -c "{python}"',),
        (f"sed -i 's/port: {port}/port: {new}/' {name}.yaml",),
    )
