"""The HTML of a report: escaping, tables and the page around them. One file, no script, no request to anywhere."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence

LONGEST_TEXT = 6000  # characters of one text; a model may answer with a hundred thousand


def text(value: object, longest: int = LONGEST_TEXT) -> str:
    """Any text as safe HTML: markup escaped, invisible and direction-changing characters made visible, length capped.

    >>> text("<b>" + chr(27) + chr(0x202e))
    '&lt;b&gt;\\\\x1b\\\\u202e'
    """
    whole = str(value)
    shown = "".join(map(_visible, whole[:longest]))
    more = len(whole) - longest
    rest = f'<span class="more"> … {more:,} more characters</span>' if more > 0 else ""
    return html.escape(shown, quote=True) + rest


def _visible(character: str) -> str:
    if character in "\n\t":
        return character
    # Cc control, Cf format (direction marks, zero widths), Cs lone surrogates, Co private use, Zl/Zp separators.
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return character.encode("unicode_escape").decode("ascii")
    return character


def table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """A table of cells that are already HTML; the first column names the row, the others are numbers."""
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>' for row in rows
    )
    told = f"<caption>{caption}</caption>" if caption else ""
    return f'<div class="wide"><table>{told}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def section(title: str, body: str, name: str) -> str:
    """A headed part of the page, or nothing when it is empty; the title is plain text."""
    return f'<section id="{name}"><h2>{text(title)}</h2>{body}</section>' if body else ""


def details(summary: str, body: str, opened: bool = False) -> str:
    """A part that the reader opens; both arguments are HTML."""
    return f"<details{' open' if opened else ''}><summary>{summary}</summary>{body}</details>"


def page(title: str, body: str) -> str:
    """The whole document. The policy in its head forbids scripts and requests, should an escape ever be missed."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(title, 200)}</title><style>{STYLE}</style></head>\n<body><main>{body}</main></body></html>\n"
    )


STYLE = """
:root { --paper: #fff; --ink: #1d2126; --soft: #5b6470; --line: #d8dde3; --tint: #f3f5f8; --agent: #e6f0fa;
  --bad: #a33b00; --good: #00694a; --c0: #0072b2; --c1: #d55e00; --c2: #008a65; --c3: #b0558e; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --ink: #e4e7eb; --soft: #9aa4b0; --line: #363d46;
  --tint: #1e2328; --agent: #182c3f; --bad: #ff9d66; --good: #4fd0a5; --c0: #5cb8f0; --c1: #f2913d; --c2: #3fcf9f;
  --c3: #dd9cc4; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1rem 1rem 4rem; }
h1 { font-size: 1.5rem; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; }
h3 { font-size: 1rem; margin: 1.25rem 0 .5rem; overflow-wrap: anywhere; }
p { margin: .5rem 0; overflow-wrap: anywhere; }
.soft, caption, figcaption, .more { color: var(--soft); }
.bad { color: var(--bad); }
.good { color: var(--good); }
.headline { font-size: 1.15rem; }
.headline b { font-size: 1.5rem; }

.wide { overflow-x: auto; margin: .75rem 0; }
.splits { display: grid; gap: 0 2rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-size: .85rem; padding-bottom: .25rem; overflow-wrap: anywhere; }
th, td { padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; text-align: left; }
th { font-weight: 500; }
thead th { color: var(--soft); font-size: .85rem; }
tbody th { overflow-wrap: anywhere; }
td { white-space: nowrap; }
td.text { white-space: normal; overflow-wrap: anywhere; }
td small { display: block; font-size: .8rem; color: var(--soft); }

.charts { display: grid; gap: 1rem 1.5rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 17rem), 1fr)); }
figure { margin: 0; }
figure.large { max-width: 34rem; }
figcaption { font-size: .85rem; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 11px; }
svg text.name { font-weight: 600; fill: var(--c); }
svg .axis { stroke: var(--line); }
svg .line { fill: none; stroke: var(--c); stroke-width: 1.8; }
svg .range { stroke: var(--c); opacity: .6; }
svg circle { fill: var(--paper); stroke: var(--c); stroke-width: 1.8; }
.c0 { --c: var(--c0); }
.c1 { --c: var(--c1); }
.c2 { --c: var(--c2); }
.c3 { --c: var(--c3); }
.bar { display: flex; height: 1.1rem; gap: 2px; }
.bar span, .key { background: var(--c); }
.key { display: inline-block; width: .7em; height: .7em; margin-right: .3em; }
.name { white-space: nowrap; margin-right: 1em; }

details { border: 1px solid var(--line); border-radius: .4rem; margin: .5rem 0; }
summary { cursor: pointer; padding: .5rem .75rem; overflow-wrap: anywhere; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: .82rem/1.45 ui-monospace, monospace; margin: 0;
  unicode-bidi: plaintext; }
.turn { border-left: 2px solid var(--line); padding-left: .6rem; margin: .75rem; }
.world, .agent { border-radius: .4rem; padding: .5rem .6rem; margin: .3rem 0; background: var(--tint); }
.agent { background: var(--agent); margin-left: 1rem; }
.who { font-size: .75rem; color: var(--soft); overflow-wrap: anywhere; }
"""
