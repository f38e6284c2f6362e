"""Tables as lines of text that fit a narrow terminal, as Markdown, and in colour on a terminal."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gagpo.base.terminal import printable

if TYPE_CHECKING:
    import rich.table

WIDTH, NARROWEST = 60, 30  # columns of text, also in a pipe and on a wide terminal; and the minimum
_LATEX = str.maketrans(
    {char: f"\\{char}" for char in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "±": r"$\pm$"}
)
_MINUS = re.compile(r"(?<![\w.])-(?=[\d.])")  # a hyphen before a number
CUT = 8  # least characters of a column of words


def text_width(most: int = WIDTH) -> int:
    """Columns for text: ``most``, or the width of a narrower terminal."""
    return max(NARROWEST, min(most, shutil.get_terminal_size((most, 24)).columns))


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(119), duration(600), duration(9000)
    ('119 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def ascii_only(text: str) -> str:
    """``text`` on one line of printable ASCII, with all else as backslash escapes (it may come from a model).

    >>> ascii_only("Zoë" + chr(27) + "[2J")
    'Zo\\\\xeb\\\\x1b[2J'
    """
    return "".join(c if " " <= c <= "~" else c.encode("unicode_escape").decode("ascii") for c in text)


@dataclass(frozen=True)
class Table:
    """A header and rows.

    words: the columns of words, aligned left; numbers are aligned right.
    total: the last row is the sum of the others.
    styles: a rich style by the text of a cell.

    >>> print("\\n".join(Table(["k", "pass@k %"], [["1", "83.3"], ["2", "100.0"]]).lines()))
    k  pass@k %
    -----------
    1      83.3
    2     100.0
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    words: Collection[int] = (0,)
    total: bool = False
    styles: Mapping[str, str] = field(default_factory=dict)

    def lines(self, width: int = WIDTH) -> list[str]:
        """ASCII lines of at most ``width`` (at least 30) characters; the first column is cut to fit (:func:`cut`).

        If that leaves it less than eight characters, each row becomes a block of ``name: value`` lines.
        """
        cells = [[ascii_only(cell) for cell in row] for row in (self.header, *self.rows)]
        sizes = [max(map(len, column)) for column in zip(*cells, strict=True)]
        other_width = sum(sizes[1:]) + 2 * (len(sizes) - 1)
        first = min(sizes[0], width - other_width)
        if not self.fits(width):
            return list(_blocks(cells[0], cells[1:], width))
        lines = []
        for short, (_, *values) in zip(cut([name for name, *_ in cells], first), cells, strict=True):
            padded = [
                cell.ljust(size) if column in self.words else cell.rjust(size)
                for column, (cell, size) in enumerate(zip([short, *values], [first, *sizes[1:]], strict=True))
            ]
            lines.append("  ".join(padded).rstrip())
        lines.insert(1, "-" * (first + other_width))
        return lines

    def fits(self, width: int) -> bool:
        """Whether :meth:`lines` gives one line per row."""
        sizes = [max(len(ascii_only(row[i])) for row in (self.header, *self.rows)) for i in range(len(self.header))]
        return width - sum(sizes[1:]) - 2 * (len(sizes) - 1) >= min(CUT, sizes[0])

    def without(self, *names: str) -> Table:
        """The table without these columns."""
        columns = [i for i, title in enumerate(self.header) if title not in names]
        rows = [[row[i] for i in columns] for row in self.rows]
        text_columns = [number for number, i in enumerate(columns) if i in self.words]
        return replace(self, header=[self.header[i] for i in columns], rows=rows, words=text_columns)

    def split(self, width: int, keys: int = 1) -> list[Table]:
        """The table as tables that fit ``width``, each with the first ``keys`` columns and at least one other."""
        column_groups: list[list[str]] = []
        for name in self.header[keys:]:
            widened = [*(column_groups[-1] if column_groups else []), name]
            hidden = [title for title in self.header[keys:] if title not in widened]
            if column_groups and self.without(*hidden).fits(width):
                column_groups[-1].append(name)
            else:
                column_groups.append([name])
        return [self.without(*(name for name in self.header[keys:] if name not in group)) for group in column_groups]

    def markdown(self) -> list[str]:
        """Lines of Markdown."""
        cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in (self.header, *self.rows)]
        header, *rows = [f"| {' | '.join(row)} |" for row in cells]
        return [header, "|" + "---|" * len(self.header), *rows]

    def latex(self, caption: str = "") -> list[str]:
        r"""Lines of LaTeX for the package booktabs, with a caption as a floating table.

        >>> print("\n".join(Table(["method", "points"], [["a-b", "-1.5 [-2.0, +0.5]"]]).latex()))
        \begin{tabular}{lr}
        \toprule
        method & points \\
        \midrule
        a-b & $-$1.5 [$-$2.0, +0.5] \\
        \bottomrule
        \end{tabular}
        """
        columns = "".join("l" if number in self.words else "r" for number in range(len(self.header)))
        header, *rows = [" & ".join(self._latex_cells(row)) + r" \\" for row in (self.header, *self.rows)]
        begin, end = rf"\begin{{tabular}}{{{columns}}}", r"\end{tabular}"
        tabular = [begin, r"\toprule", header, r"\midrule", *rows, r"\bottomrule", end]
        if not caption:
            return tabular
        head = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(caption)}}}"]
        return [*head, *tabular, r"\end{table}"]

    def _latex_cells(self, row: Sequence[str]) -> list[str]:
        """The cells, with minus signs in place of hyphens in columns of numbers."""
        cells = [_latex(cell) for cell in row]
        return [cell if column in self.words else _MINUS.sub("$-$", cell) for column, cell in enumerate(cells)]

    def __rich__(self) -> rich.table.Table:
        from rich.table import Table
        from rich.text import Text

        # Text, not str: titles and cells are not markup.
        table = Table(title=Text(printable(self.title)) if self.title else None)
        for number, name in enumerate(self.header):
            table.add_column(
                Text(printable(name)), justify="left" if number in self.words else "right", overflow="fold"
            )
        for number, row in enumerate(self.rows):
            if self.total and number == len(self.rows) - 1:
                table.add_section()
            table.add_row(*(Text(printable(cell), self.styles.get(cell, "")) for cell in row))
        return table


def _latex(text: str) -> str:
    """``text`` on one line, with the characters escaped that LaTeX reads as commands."""
    return " ".join(text.split()).translate(_LATEX)


def cut(names: Sequence[str], most: int) -> list[str]:
    """``names`` cut to ``most`` characters: at the end, or where names would become equal around what differs.

    >>> cut(["weights", "weights of a run", "weights of a run, averaged"], 13)
    ['weights', 'weig..f a run', 'weig..veraged']
    >>> cut(["results/long-first/evals/after", "results/long-other/evals/after"], 14)
    ['..first/eval..', '..other/eval..']
    """
    letters = max(0, most - 2)
    front = letters * 2 // 5
    ends = [name if len(name) <= most else name[:letters] + ".." for name in names]
    middles = [name[:front] + ".." + name[len(name) - letters + front :] for name in names]
    cut_names = [middle if end in _repeated(ends, names) else end for end, middle in zip(ends, middles, strict=True)]
    alike = _repeated(cut_names, names)
    if not alike:
        return cut_names
    ambiguous = [name for name, short in zip(names, cut_names, strict=True) if short in alike]
    start = next((i for i, letters_here in enumerate(zip(*ambiguous, strict=False)) if len(set(letters_here)) > 1), 0)
    window = max(0, most - 4)
    return [
        f"..{name[start : start + window]}.." if short in alike else short
        for name, short in zip(names, cut_names, strict=True)
    ]


def _repeated(texts: Sequence[str], names: Sequence[str]) -> set[str]:
    """The texts that stand for several names and are themselves none."""
    return {text for text, count in Counter(texts).items() if count > 1} - set(names)


def facts(pairs: Sequence[tuple[str, str]], width: int = WIDTH) -> list[str]:
    """``name  value`` lines in ASCII with aligned, wrapped values."""
    size = max((len(name) for name, _ in pairs), default=0) + 2
    lines: list[str] = []
    for name, value in pairs:
        first, *more = textwrap.wrap(ascii_only(value), max(CUT, width - size)) or [""]
        lines += [(name.ljust(size) + first).rstrip(), *(" " * size + line for line in more)]
    return lines


def _blocks(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Each row as its first cell, and an indented line for each other cell."""
    for name, *values in rows:
        texts = [("", name), *(("  ", f"{title}: {cell}") for title, cell in zip(header[1:], values, strict=True))]
        for indent, text in texts:
            yield from textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent + "  ") or [""]
