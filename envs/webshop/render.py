"""Renders a page as text or rich text, and a state as its address."""

from __future__ import annotations

import functools
from urllib.parse import quote_plus

from gagpo.envs.webshop.pages import DONE, INDEX, PageElement, PageState, Shop

ROOT = "/shop"


def text(elements: tuple[PageElement, ...]) -> str:
    """The visible strings, trimmed and joined by ``[SEP]``."""
    return " [SEP] ".join([element.text.strip() for element in elements])


def text_rich(elements: tuple[PageElement, ...]) -> str:
    """One line per visible string, with marks around clickable ones; the chosen options come first."""
    chosen_lines = []
    lines = []
    for text, role, _ in elements:
        if role == "text":
            lines.append(text)
        elif role == "option":
            lines.append(f"  [button] {text} [button_]")
        elif role == "chosen":
            lines.append(f"  [clicked button] {text} [clicked button_]")
            chosen_lines.append(f"You have clicked {text}.")
        elif role == "product":
            lines.append(f"\n[button] {text} [button_]")
        elif role == "visited":
            lines.append(f"\n[clicked button] {text} [clicked button_]")
        else:
            lines.append(f"[button] {text} [button_]")
    return "\n".join([*chosen_lines[::-1], *lines, ""])


def address(shop: Shop, state: PageState) -> str:
    """A text that contains the whole state; different states have different addresses."""
    path = f"{ROOT}/{_quoted(state.task)}"
    if state.kind == INDEX:
        return f"{path}?draws={state.draws}" if state.draws else path
    fields = []
    if state.kind != DONE:
        fields += [f"q={_quoted(state.query)}", f"page={state.page}"]
    if state.product >= 0:
        fields.append(f"asin={_quoted(shop.store.product(state.product).asin)}")
    fields += [f"option.{_quoted(name)}={_quoted(value)}" for name, value in state.options]
    fields += sorted(f"seen={_quoted(shop.store.product(number).asin)}" for number in state.visited)
    fields += [f"draws={state.draws}"] if state.draws else []
    return f"{path}/{state.part or state.kind}?{'&'.join(fields)}"


@functools.lru_cache(maxsize=16_384)
def _quoted(text: str) -> str:
    return quote_plus(text)
