"""Nothing that is printed reaches a terminal as something to obey."""

import io
import logging
import sys
import unicodedata
import warnings

import pytest

from gagpo.base.progress import track
from gagpo.base.terminal import CleanStream, cleaned, is_terminal, printable, raw

HOSTILE = {
    "a colour": "\x1b[31m",
    "a cleared screen": "\x1b[2J\x1b[H",
    "a title": "\x1b]0;taken\x07",
    "a link": "\x1b]8;;http://evil.example\x1b\\text\x1b]8;;\x1b\\",
    "the clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "a control sequence of one byte": "\x9b31m",
    "an operating system command of one byte": "\x9d0;taken\x9c",
    "an overwritten line": "fine\rgone",
    "a backspace": "fine\b\b\b\bgone",
    "an end of transmission": "\x04",
    "a deleted character": "\x7f",
    "a reversed text": "\u202egnp.exe",
    "an isolate": "\u2066evil\u2069",
    "an Arabic letter mark": "\u061c",
    "a line separator": "a\u2028b\u2029c\x85d\x0be\x0cf",
    "tags": "\U000e0041",
    "half a surrogate pair": "\ud83d",
    "a zero byte": "\0",
    "a byte order mark": "\ufeff",
}


def is_harmless(text):
    return all(unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") or c in "\n\t\u200c\u200d" for c in text)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_a_terminal_obeys_is_escaped(text):
    output = printable(f"a{text}z")
    assert is_harmless(output) and output.startswith("a") and output.endswith("z")
    if "\\" not in text:  # an escape can be read back
        assert output.encode("latin-1", "backslashreplace").decode("unicode_escape") == f"a{text}z"


@pytest.mark.parametrize("text", ["", "two\nlines\tand a tab", "Zoë, 答案, إجابة, می‌خواهم", "👩‍🔬 ✓ ±", "\\x1b"])
def test_other_text_stays(text):
    assert printable(text) == text


class Terminal(io.StringIO):
    """What a terminal is to a program: its encoding, and that it is one."""

    encoding = "ascii"

    def isatty(self):
        return True


def test_every_way_to_print_is_cleaned(monkeypatch):
    hostile = "".join(HOSTILE.values())
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Terminal())
    terminals = sys.stdout, sys.stderr
    with cleaned():
        print(hostile, 1)
        print(hostile, file=sys.stderr)
        sys.stdout.writelines([hostile, "\n"])
        logging.Logger("alone").warning("%s", hostile)  # by the handler of last resort
        # As Python shows a warning; pytest would record one, and could not send a lone surrogate between processes.
        print(warnings.formatwarning(UserWarning(hostile), UserWarning, hostile, 1), file=sys.stderr)
        with cleaned():
            print(hostile)
        assert not sys.stdout.isatty() and is_terminal(sys.stdout) and raw(sys.stdout) is terminals[0]
    assert (sys.stdout, sys.stderr) == terminals
    print("after it \x1b")  # a program of the user's own prints what it likes
    assert terminals[0].getvalue().endswith("after it \x1b\n")
    terminals[0].truncate(terminals[0].tell() - 2)
    for terminal in terminals:
        text = terminal.getvalue()
        assert text.count("taken") >= 4 and is_harmless(text) and text.isascii()  # its encoding has no others


def test_a_bar_draws_on_a_terminal_and_what_is_printed_meanwhile_is_cleaned(monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with cleaned(), track("evaluating \x1b]0;taken\x07 [red]x[/red]", 2) as meter:
        print("meanwhile \x1b]0;taken\x07")
        print("and \x1b[31mthis", file=sys.stderr)
        meter.advance(2, "note \x9b31m")
        meter.bar.refresh()
    drawn = raw(sys.stderr).getvalue()
    assert "\x1b[" in drawn and "\x1b]" not in drawn and "\x9b" not in drawn and "\x1b[31mthis" not in drawn
    assert "meanwhile \\x1b]0;taken\\x07" in drawn and "and \\x1b[31mthis" in drawn
    assert "[red]x[/red]" in drawn


def test_a_stream_behind_has_everything_else():
    clean = CleanStream(io.TextIOWrapper(io.BytesIO(), "utf-8"))
    assert clean.encoding == "utf-8" and clean.write("é\x1b") == 2
    clean.flush()
    assert clean.buffer.getvalue().decode() == "é\\x1b"
