"""The commands that pages print: fenced blocks of a shell, and files that a page tells its reader to write.

A comment before a block says how it is run where it cannot be run as it stands::

    <!-- skip: needs a GPU -->          it is not run, and the reason is told
    <!-- run: train + seed=2; eval a + -k x=1 -->   words that are added to ``gagpo train ...`` and ``gagpo eval a ...``
    <!-- stop: 10 -->                   its last command goes on until it is stopped after ten seconds
    <!-- status: 1 -->                  it ends with that status
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
MARKS = ("skip", "run", "stop", "status")
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- *(\w+): *(.*?) *-->")
BEFORE = re.compile(r"(?:<!--[^\n]*-->\s*)+\Z")
FILE = re.compile(r"# ([\w-]+\.(?:py|yaml))\n")
SHELLS = ("", "sh", "bash", "console")
FIRST = ("gagpo", "make", "python", "pip", "torchrun", "apt-get", "export", "cd", ".")
KEPT = ("export ", "cd ", ". ")  # what holds for the rest of a page
PLACEHOLDER = re.compile(r"(?<![\w$/.=:-])(?:RUN|CONFIG|FOLDER|ENV|NAME|HOST|PORT|ID|N|M)\d?(?![\w=])|\.\.\.|/path/to/")


@dataclass(frozen=True)
class Block:
    """A block of commands, or of a file that has a name. line: where its fence stands, from 1."""

    page: str
    line: int
    text: str
    file: str = ""
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    def lines(self) -> list[str]:
        """Its commands, one whole one in a line, without comments."""
        full = re.sub(r"\\\n\s*", "", self.text)
        return [bare for line in full.splitlines() if (bare := re.sub(r"(?:^|\s+)#(?: .*)?$", "", line).rstrip())]

    def script(self) -> str:
        """What bash is given: the commands with what its marks add."""
        lines = [self._extended(line) for line in self.lines()]
        if "stop" in self.marks:
            stopped = f"timeout -s INT -k 20 {int(self.marks['stop'])} gagpo"
            lines[-1] = lines[-1].replace("gagpo", stopped, 1) + " || [ $? -eq 124 ]"
        return "\n".join(lines)

    def _extended(self, line: str) -> str:
        """``line`` with what a mark adds to the commands that begin as it says."""
        segments = line.split()
        messages = " ".join(segments[segments.index("gagpo") + 1 :] if "gagpo" in segments else segments)
        for segment in filter(None, self.marks.get("run", "").split(";")):
            # What stands before the plus is how the command begins.
            begins, _, added = (item.strip() for item in segment.partition(" + "))
            if f"{messages} ".startswith(f"{begins} "):
                line = f"{line} {added}"
        return line


def blocks(page: Path) -> Iterator[Block]:
    """What a reader of ``page`` types and writes, in order."""
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        before = BEFORE.search(text[: match.start()])
        marks = dict(MARK.findall(before[0])) if before else {}
        line = text.count("\n", 0, match.start()) + 1
        name = page.relative_to(ROOT).as_posix()
        language, body = match.groups()
        written = FILE.match(body)
        if language in ("python", "yaml") and written:
            yield Block(name, line, body, written[1], marks)
        elif language in SHELLS and _is_shell(body):
            yield Block(name, line, body, "", marks)


def _is_shell(body: str) -> bool:
    for line in body.splitlines():
        tokens = [word for word in line.split() if not re.match(r"[A-Z_]+=", word)]
        if tokens and not tokens[0].startswith("#"):
            return tokens[0] in FIRST and (tokens[0] != "." or len(tokens) == 2)
    return False


def pages() -> list[Path]:
    """README and the pages of the site, in the order of its menu."""
    menu = re.findall(r":? *([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    return [ROOT / "README.md", *(ROOT / "docs" / name for name in menu)]


def gagpo_commands(page: Path) -> Iterator[list[str]]:
    """The arguments of every whole ``gagpo ...`` that a page prints: in blocks, indented, and in its sentences."""
    text = page.read_text(encoding="utf-8")
    results = [line for block in blocks(page) for line in block.lines()]
    prose = FENCE.sub("", text)
    results += re.findall(r"^    ((?:[A-Z_]+=\S+ )*gagpo .*)", prose, re.MULTILINE)
    results += [code.replace("\n", " ") for code in re.findall(r"`(gagpo [^`]+)`", prose)]
    for line in results:
        segments = shlex.split(line.split(" > ")[0].split(" && ")[0].split(" | ")[0], comments=True)
        if "gagpo" in segments and all(re.match(r"[A-Z_]+=", word) for word in segments[: segments.index("gagpo")]):
            yield segments[segments.index("gagpo") + 1 :]
