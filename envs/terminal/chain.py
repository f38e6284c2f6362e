"""Several generated tasks as one: each in a folder of its own, all of which must be right."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gagpo.envs.terminal.exercise import Exercise, Final
from gagpo.envs.terminal.families.words import SplitWords
from gagpo.envs.terminal.tree import Node, folder


def chained(exercises: Sequence[Exercise], rng: random.Random, words: SplitWords) -> Exercise:
    """The task of doing ``exercises`` in their order, each in a folder with a name of ``words``.

    ``wrong`` does all exercises right but one, drawn by ``rng``, so that a chain with one failed task is not solved.
    """
    folders = words.stems(len(exercises))
    tree: dict[str, Node] = {}
    for name, exercise in zip(folders, exercises, strict=True):
        tree |= {name: folder(), **{f"{name}/{path}": _moved_node(node, name) for path, node in exercise.tree.items()}}
    requests = [
        f"{number}. In the folder {name}: {exercise.text}"
        for number, (name, exercise) in enumerate(zip(folders, exercises, strict=True), 1)
    ]
    mistaken = rng.randrange(len(exercises))
    wrong = [exercise.wrong if number == mistaken else exercise.solution for number, exercise in enumerate(exercises)]
    return Exercise(
        "\n".join([f"Do {len(exercises)} tasks, each in its own folder.", *requests]),
        tree,
        _check_of_all(folders, exercises),
        _in_folders(folders, [exercise.solution for exercise in exercises]),
        _in_folders(folders, [exercise.second for exercise in exercises]),
        _in_folders(folders, wrong),
        _scripts(folders, [exercise.setup for exercise in exercises]),
        _scripts(folders, [exercise.services for exercise in exercises]),
    )


def _moved_node(node: Node, name: str) -> Node:
    """A node of a tree that becomes a folder; hard links name their target from the top."""
    return replace(node, content=name.encode() + b"/" + node.content) if node.kind == "h" else node


def _in_folders(folders: Sequence[str], commands: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The commands of each task in its folder, from the folder of the task before."""
    lines: list[str] = []
    for number, (name, solution) in enumerate(zip(folders, commands, strict=True)):
        lines += [f"cd ../{name}" if number else f"cd {name}", *solution]
    return tuple(lines)


def _scripts(folders: Sequence[str], scripts: Sequence[str]) -> str:
    """The scripts that are not empty, each in its folder."""
    pairs = zip(folders, scripts, strict=True)
    return "\n".join(f"cd {name}\n{script}\ncd .." for name, script in pairs if script)


def _check_of_all(folders: Sequence[str], exercises: Sequence[Exercise]) -> Callable[[Final], bool]:
    return lambda final: all(
        exercise.check(Final(_below(final.tree, name), final.sandbox, final.processes))
        for name, exercise in zip(folders, exercises, strict=True)
    )


def _below(tree: Mapping[str, Node], name: str) -> dict[str, Node]:
    """The tree of a folder. A hard link to a file outside of it has that file's content."""
    prefix = f"{name}/"
    content: dict[str, Node] = {}
    for path, node in tree.items():
        if path.startswith(prefix):
            target = node.content.decode("utf-8", "surrogateescape") if node.kind == "h" else ""
            if target.startswith(prefix):
                node = replace(node, content=target.removeprefix(prefix).encode("utf-8", "surrogateescape"))
            elif target:
                node = tree.get(target, node)
            content[path.removeprefix(prefix)] = node
    return content
