"""A task: its text, the files it begins with, and the checker of those it should end with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gagpo.envs.terminal.backends.base import BadTree, CommandResult, Sandbox, SandboxLost
from gagpo.envs.terminal.tree import Node, Tree

JUDGE_SECONDS = 10.0  # for each command of a judge
PREPARE_SECONDS = 30.0


class Final:
    """The files at the end of an episode, read after all its processes were killed.

    processes: the command lines of what still ran at the end.

    A checker reads them as data. What has to be run, it runs in a fresh sandbox, and compares what was printed outside
    of it: exit statuses and files of a test program could be made by the code that is tested.
    """

    def __init__(self, tree: Tree, sandbox: Sandbox, processes: Sequence[str] = ()):
        self.tree = tree
        self.processes = processes
        self.sandbox = sandbox

    def text(self, path: str) -> str | None:
        """The text of a regular file; None if there is none, or a link."""
        node = self.tree.get(path)
        if node is None or node.kind not in "fh":
            return None
        if node.kind == "h":
            return self.text(node.content.decode("utf-8", "surrogateescape"))
        return node.content.decode("utf-8", "replace")

    def lines(self, path: str) -> list[str] | None:
        """The lines of a file without trailing spaces and without empty lines at its end."""
        text = self.text(path)
        return None if text is None else [line.rstrip() for line in text.rstrip().split("\n")]

    def files(self, folder: str = "") -> set[str]:
        """Paths of everything but folders, below a folder."""
        prefix = f"{folder}/" if folder else ""
        return {path for path, node in self.tree.items() if node.kind != "d" and path.startswith(prefix)}

    def unchanged(self, tree: Tree, *but: str) -> bool:
        """Whether every file of ``tree`` has its content, except those of the paths ``but``."""
        return all(
            self.text(path) == node.content.decode("utf-8", "replace")
            for path, node in tree.items()
            if node.kind == "f" and path not in but
        )

    def run(self, command: str, more: Tree | None = None) -> CommandResult:
        """Run a command on a copy of the files in a fresh shell.

        more: files that are laid over the tree before.
        """
        self.sandbox.start({**self.tree, **(more or {})})
        return self.sandbox.run(command, JUDGE_SECONDS)


@dataclass(frozen=True)
class Exercise:
    """A generated task.

    check: whether the files at the end are right.
    solution, second: commands of the expert, and others that are right too.
    wrong: commands that a hasty agent would use; they fail the check.
    setup: commands that make the rest of the tree, such as a git repository.
    services: commands that start processes before the first turn.
    """

    text: str
    tree: Mapping[str, Node]
    check: Callable[[Final], bool]
    solution: tuple[str, ...]
    second: tuple[str, ...]
    wrong: tuple[str, ...]
    setup: str = ""
    services: str = ""


def judge(sandbox: Sandbox, check: Callable[[Final], bool]) -> bool:
    """Kill everything that the agent started, read the files, and check them.

    Files that cannot be read, and a sandbox that ends, are the agent's doing: the verdict is False.
    """
    try:
        processes = sandbox.kill()
        return bool(check(Final(sandbox.files(), sandbox, processes)))
    except (BadTree, SandboxLost):
        return False


def prepared_tree(sandbox: Sandbox, exercise: Exercise) -> Tree:
    """The tree at the start, after the exercise's setup.

    Raises SandboxLost if the setup fails.
    """
    if not exercise.setup:
        return exercise.tree
    sandbox.start(exercise.tree)
    result = sandbox.run(f"set -e\n{exercise.setup}\nset +e", PREPARE_SECONDS)
    if result.status != 0 or result.restarted:
        raise SandboxLost(f"the setup of a task fails: {result.errors.text()[:200]}")
    sandbox.kill()
    return sandbox.files()
