"""Tasks as folders in Harbor's format, which other suites and Terminal-Bench 2 use too.

    TASK/task.toml           settings; [verifier] timeout_sec is used
    TASK/instruction.md      what the agent reads
    TASK/environment/        a Dockerfile, or the files of the tree
    TASK/tests/test.sh       writes the reward to /logs/verifier/reward.txt, or reward.json
    TASK/solution/solve.sh   the expert; optional

The folders are somebody else's: each error is one line with the path.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import posixpath
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gagpo.base.errors import GagpoError
from gagpo.envs.division import divided, part_of
from gagpo.envs.tasks import Task, TaskSet
from gagpo.envs.terminal.backends.base import WORKING_FOLDER, BadTree, Sandbox, SandboxLost
from gagpo.envs.terminal.tree import Node, Tree, file, folder, link

MAX_FILE = 16 << 20  # bytes
MAX_FILES = 5_000
BASES = ("debian", "ubuntu", "python")
"""Images for which the system of this machine stands in: its tools and Python."""
IGNORED = ("CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL", "HEALTHCHECK", "SHELL", "USER")
NEVER_KEPT = (
    "conftest.py",
    "sitecustomize.py",
    "usercustomize.py",
    "pytest.ini",
    "tox.ini",
    ".pytest.ini",
    "setup.cfg",
)
"""Files that change how a test program runs; those that an agent adds are not laid before the judge."""


class BadTaskFolder(GagpoError, ValueError):
    """A task's folder cannot be used; the message names the path."""


@dataclass(frozen=True)
class HarborTask:
    """A task of a folder.

    tree: the files at the start.
    tests: laid to ``/tests``, read-only, after the last command.
    seconds: deadline of the tests.
    """

    text: str
    tree: Tree
    tests: Tree
    solution: tuple[str, ...]
    seconds: float
    services: str = ""
    wrong: tuple[str, ...] = ()

    @staticmethod
    def read(path: Path, needs_image: bool = False) -> HarborTask:
        """Read a folder.

        needs_image: a container makes the tree from the folder's image.

        Raises BadTaskFolder.
        """
        settings = _settings(path / "task.toml")
        verifier = settings.get("verifier", {})
        seconds = verifier.get("timeout_sec", 600.0) if isinstance(verifier, dict) else None
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 86_400:
            raise BadTaskFolder(f"{path / 'task.toml'}: verifier.timeout_sec must be from 0 to 86400 seconds")
        tests = folder_tree(path / "tests")
        if tests.get("test.sh", folder()).kind != "f":
            raise BadTaskFolder(f"{path / 'tests' / 'test.sh'} is missing")
        solve = path / "solution" / "solve.sh"
        commands = (f"bash <<'END_OF_SOLUTION'\n{_text(solve)}\nEND_OF_SOLUTION",) if solve.is_file() else ()
        tree = {} if needs_image else environment_tree(path / "environment")
        return HarborTask(_text(path / "instruction.md").strip(), tree, tests, commands, float(seconds))

    def judge(self, sandbox: Sandbox) -> float:
        """Kill what the agent started, lay the tests beside its files in a fresh sandbox, and read the reward."""
        try:
            sandbox.kill()
            sandbox.start(self._judged(sandbox.files()), {"/tests": self.tests})
            sandbox.run(
                "mkdir -p /logs/verifier /logs/agent; exec bash --norc --noprofile /tests/test.sh", self.seconds
            )
            return _reward(sandbox.files("/logs"))
        except (BadTree, SandboxLost):
            return 0.0

    def _judged(self, final: Mapping[str, Node]) -> dict[str, Node]:
        """The files that the tests see: without links that lead out of the tree and settings of test programs."""
        tree = {}
        for path, node in final.items():
            name = posixpath.basename(path)
            if (name in NEVER_KEPT or name.endswith(".pth")) and path not in self.tree:
                continue
            if node.kind == "l" and _leads_out(path, node) and path not in self.tree:
                continue
            tree[path] = node
        return tree


def _leads_out(path: str, node: Node) -> bool:
    target = node.content.decode("utf-8", "surrogateescape")
    resolved = posixpath.normpath(posixpath.join(WORKING_FOLDER, posixpath.dirname(path), target))
    return resolved != WORKING_FOLDER and not resolved.startswith(f"{WORKING_FOLDER}/")


def _reward(logs: Mapping[str, Node]) -> float:
    """The number in the reward file, from 0 to 1; 0 without one."""
    for name in ("verifier/reward.txt", "verifier/reward.json"):
        node = logs.get(name)
        if node is None or node.kind != "f" or len(node.content) > 10_000:
            continue
        try:
            value: Any = json.loads(node.content)
        except (ValueError, RecursionError):
            return 0.0
        if isinstance(value, dict):
            value = value.get("reward")
        if isinstance(value, int | float) and math.isfinite(value):
            return min(1.0, max(0.0, float(value)))
    return 0.0


# Reading folders ------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=8)
def read_tasks(root: Path, has_image: bool = False) -> dict[str, TaskSet]:
    """The tasks of a folder by split: the folder itself if it is a task, else all task folders directly in it.

    has_image: the trees come from an image.

    A hash of its name decides a task's split. Raises BadTaskFolder if there is none.
    """
    if not root.is_dir():
        raise BadTaskFolder("is no folder", where=root, advice="tasks must be a folder of tasks in Harbor's format")
    folders = [root] if (root / "task.toml").exists() else sorted(root.glob("*/task.toml"))
    paths = [path if path.is_dir() else path.parent for path in folders]
    if not paths:
        raise BadTaskFolder(f"{root} holds no task.toml, and no folder in it does")
    splits = ("train", "validation", "test")
    tasks = []
    for path in paths:
        content = HarborTask.read(path, has_image)
        digest = hashlib.sha256(
            repr((content.text, sorted(content.tree.items()), sorted(content.tests.items()))).encode()
        )
        tasks.append(
            Task(path.resolve().name, "test" if len(paths) == 1 else "", "harbor", digest.hexdigest()[:16], str(path))
        )
    by_name = {task.id: part_of(task.id, splits) for task in tasks}
    advice = f"{root} holds {len(tasks)} tasks."
    return divided(tasks, by_name, splits, advice) | {"unseen": TaskSet("unseen", [], advice)}


def _text(path: Path) -> str:
    data = _bytes(path)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadTaskFolder(f"not UTF-8 at byte {error.start}", where=path) from None


def _bytes(path: Path) -> bytes:
    """The content of a regular file; a link could lead to any file of this machine."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        raise BadTaskFolder(f"{path} {reason}") from None
    with os.fdopen(number, "rb") as stream:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE:
            raise BadTaskFolder(f"{path} must be a regular file of at most {MAX_FILE >> 20} MiB")
        return stream.read(MAX_FILE)


def _settings(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadTaskFolder(f"{' '.join(str(error).split())[:200]}", where=path) from None


def folder_tree(root: Path) -> dict[str, Node]:
    """The files of a folder. Links stay links. Raises BadTaskFolder."""
    tree: dict[str, Node] = {}
    if root.is_symlink() or not root.is_dir():
        raise BadTaskFolder(f"{root} is no folder")
    for parent, folders, names in os.walk(root):
        relative = Path(parent).relative_to(root)
        for name in [*folders, *names]:
            path = Path(parent) / name
            key = (relative / name).as_posix()
            if path.is_symlink():
                tree[key] = link(os.readlink(path))
            elif path.is_dir():
                tree[key] = folder(stat.S_IMODE(path.stat().st_mode))
            else:
                content = _bytes(path)
                tree[key] = file(content, stat.S_IMODE(path.stat().st_mode))
        if len(tree) > MAX_FILES:
            raise BadTaskFolder(f"{root} holds more than {MAX_FILES} files")
    return tree


def environment_tree(root: Path) -> dict[str, Node]:
    """The tree of a task: that of its Dockerfile if this machine's system can stand in for the image, else all files.

    Raises BadTaskFolder with the backend that can make it.
    """
    content = folder_tree(root)
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if name in content:
            raise BadTaskFolder(
                "several containers are not supported", where=root / name, advice="use the package harbor"
            )
    if "Dockerfile" not in content:
        return content
    return _copied(root / "Dockerfile", {path: node for path, node in content.items() if path != "Dockerfile"})


def _copied(dockerfile: Path, context: Tree) -> dict[str, Node]:
    """What the COPY lines of a Dockerfile put into the working folder."""
    tree: dict[str, Node] = {}
    text = _text(dockerfile).replace("\\\n", " ")
    for number, line in enumerate(text.splitlines(), 1):
        word, _, remainder = line.strip().partition(" ")
        instruction, arguments = word.upper(), remainder.split()
        if not word or word.startswith("#") or instruction in IGNORED:
            continue
        image = posixpath.basename(arguments[0]).partition(":")[0] if arguments else ""
        is_known = (
            (instruction == "FROM" and image in BASES)
            or (instruction == "WORKDIR" and arguments == [WORKING_FOLDER])
            or (instruction in ("COPY", "ADD") and len(arguments) == 2 and not remainder.startswith(("-", "[")))
        )
        if not is_known:
            raise BadTaskFolder(
                f"{line.strip()[:60]!r} needs an image",
                where=f"{dockerfile}, line {number}",
                advice=(
                    f"build it (docker build "
                    f"{dockerfile.parent}) and use -k backend=docker -k image=NAME, or backend=podman"
                ),
            )
        if instruction in ("COPY", "ADD"):
            tree |= _copy(arguments[0], arguments[1], context, f"{dockerfile}, line {number}")
    return tree


def _copy(source: str, target: str, context: Tree, place: str) -> dict[str, Node]:
    """The nodes that ``COPY source target`` makes, by their path in the working folder."""
    destination = posixpath.normpath(posixpath.join(WORKING_FOLDER, target))
    if destination != WORKING_FOLDER and not destination.startswith(f"{WORKING_FOLDER}/"):
        raise BadTaskFolder(
            f"only files below {WORKING_FOLDER} are supported", where=place, advice="use backend=docker or podman"
        )
    below = destination.removeprefix(WORKING_FOLDER).strip("/")
    origin = posixpath.normpath(source).strip("/")
    if origin == ".":
        return {posixpath.join(below, path): node for path, node in context.items()}
    if origin not in context:
        raise BadTaskFolder(f"{source} is missing", where=place)
    if context[origin].kind != "d":
        into_folder = target.endswith("/") or target in (".", WORKING_FOLDER)
        return {posixpath.join(below, posixpath.basename(origin)) if into_folder else below: context[origin]}
    inside = {path.removeprefix(f"{origin}/"): node for path, node in context.items() if path.startswith(f"{origin}/")}
    return {posixpath.join(below, path): node for path, node in inside.items()}
