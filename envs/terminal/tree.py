"""A tree of files as plain data: what an episode begins with, and what a judge reads."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass

from gagpo.base.errors import InvalidArgument

CHANGED = 1_705_320_000
"""Time of the last change of files in seconds, unless a task says otherwise: the middle of January 2024, UTC."""

Wire = tuple[bytes, str, int, bytes, int]
"""An entry as the supervisor of a sandbox takes it: path, kind, mode, content or target, time of change in ns."""


@dataclass(frozen=True)
class Node:
    """A file, folder or link.

    kind: ``f`` file, ``d`` folder, ``l`` symbolic link, ``h`` hard link to an earlier path, ``p`` anything else.
    content: of a file; the target of a link.
    changed: time of the last change, in seconds since 1970.
    """

    kind: str
    mode: int = 0o644
    content: bytes = b""
    changed: float = CHANGED


Tree = Mapping[str, Node]
"""Nodes by their path below a folder. Missing parent folders are made."""


def file(content: str | bytes, mode: int = 0o644, changed: float = CHANGED) -> Node:
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    return Node("f", mode, data, changed)


def folder(mode: int = 0o755) -> Node:
    return Node("d", mode)


def link(target: str) -> Node:
    return Node("l", 0o777, target.encode("utf-8", "surrogateescape"))


def to_wire(tree: Tree, below: str = "app") -> list[Wire]:
    """The entries of a tree, folders before their contents.

    Raises InvalidArgument for a path that leads out of the tree.

    >>> [entry[0] for entry in to_wire({"a/b": file("x")})]
    [b'app', b'app/a', b'app/a/b']
    """
    complete: dict[str, Node] = {"": tree.get("", folder())}
    for path in tree:
        if path and (path.startswith("/") or posixpath.normpath(path) != path or path.split("/")[0] == ".."):
            raise InvalidArgument(
                f"the path {path!r:.100} leads out of the tree", advice="use a relative path without '..'"
            )
        names = path.split("/")
        for depth in range(1, len(names)):
            complete.setdefault("/".join(names[:depth]), folder())
        complete[path] = tree[path]
    return [
        (
            posixpath.join(below, path).rstrip("/").encode("utf-8", "surrogateescape"),
            node.kind,
            node.mode,
            _target(node, below),
            int(node.changed * 1e9),
        )
        for path, node in sorted(complete.items(), key=lambda item: (item[1].kind == "h", item[0].split("/")))
    ]


def _target(node: Node, below: str) -> bytes:
    return below.encode() + b"/" + node.content if node.kind == "h" else node.content


def from_wire(entries: list[Wire], below: str = "app") -> dict[str, Node]:
    """The tree below a folder of an episode."""
    prefix = below.encode() + b"/"
    tree = {}
    for path, entry_type, mode, content, changed in entries:
        if path.startswith(prefix):
            target = content.removeprefix(prefix) if entry_type == "h" else content
            name = path.removeprefix(prefix).decode("utf-8", "surrogateescape")
            tree[name] = Node(entry_type, mode, target, changed / 1e9)
    return tree
