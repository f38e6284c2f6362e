"""The product files in their published form, made regular: one clean :class:`Product` per usable row."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from gagpo.envs.webshop.rows import CatalogueError, iterate_list, iterate_object

PRODUCTS = "items_shuffle"
ATTRIBUTES = "items_ins_v2"
HUMANS = "items_human_ins"

LONGEST_ASIN = 10
NO_ATTRIBUTES = ("DUMMY_ATTR",)
MISSING_PRICE = 100.0
LARGEST_PRICE = 1e9

# Longer texts are cut. Real rows stay below; a hostile row must not make a page that no browser or model can read.
LONGEST_NAME = 1_000
LONGEST_TEXT = 20_000
LONGEST_OPTION = 200
MOST_BULLETS = 100
MOST_OPTION_NAMES = 30
MOST_OPTION_VALUES = 1_000

# Controls that are not blanks, marks that reorder the text around them, lone surrogates, non-characters.
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)
_NEGATIVE = re.compile(r"^\s*-|\$\s*-|-\s*-\s*\$")
_NOT_NUMERIC = re.compile(r"[^\d.]")


def clean(text: str, longest: int = LONGEST_TEXT) -> str:
    """``text`` without control, reordering and unpaired characters, runs of blanks made one, cut to ``longest``.

    What remains passes through HTML, a URL and a browser's text nodes unchanged, so that every way of showing a page
    shows the same characters.

    >>> clean(" two\\x00\\n\\u202ewords ")
    'two words'
    """
    text = text[: 4 * longest]
    return " ".join(_UNSEEN.sub("", text).split())[:longest].rstrip()


@dataclass(frozen=True)
class Instruction:
    """What somebody asked for: text, attributes, and for human ones the option values (name '' when not given)."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Product:
    """One product as the shop shows and scores it.

    prices: in dollars; none (missing), one, or the two ends of a range. options: lower-cased name -> values.
    nouns: lower-cased nouns of the title in order, doubles kept; empty until the store's tagger has filled them in.
    """

    asin: str
    title: str
    description: str = ""
    bullets: tuple[str, ...] = ()
    prices: tuple[float, ...] = ()
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)
    attributes: tuple[str, ...] = NO_ATTRIBUTES
    category: str = ""
    query: str = ""
    product_category: str = ""
    nouns: tuple[str, ...] = ()

    @property
    def price_tag(self) -> str:
        """The price as shown; a missing one is shown as 100 dollars, as the published environment does."""
        if not self.prices:
            return f"${MISSING_PRICE}"
        return " to ".join(f"${price}" for price in self.prices)


@dataclass(frozen=True)
class Sources:
    """The three data files; without ``humans`` there are no human goals."""

    products: Path
    attributes: Path
    humans: Path | None

    @property
    def paths(self) -> list[Path]:
        return [path for path in (self.products, self.attributes, self.humans) if path]


def find_sources(data: Path) -> Sources:
    """The data files in folder ``data``, or those beside ``data`` when it is itself a product file.

    A product file ``items_shuffle_1000.json`` goes with ``items_ins_v2_1000.json`` where that exists, else with
    ``items_ins_v2.json``. Raises CatalogueError when a file is missing or several product files leave the choice open.
    """
    if data.is_dir():
        found = sorted(data.glob(f"{PRODUCTS}*.json"))
        if not found:
            raise CatalogueError(f"{data}: holds no {PRODUCTS}*.json; give the folder of the WebShop data files")
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise CatalogueError(f"{data}: holds several product files ({names}); give the path of the one to use")
        products = found[0]
    elif data.is_file():
        products = data
    else:
        raise CatalogueError(f"{data}: no such file or folder; give the folder of the WebShop data files")
    suffix = products.stem.removeprefix(PRODUCTS) if products.stem.startswith(PRODUCTS) else ""
    attributes = products.with_name(f"{ATTRIBUTES}{suffix}.json")
    if not attributes.is_file():
        attributes = products.with_name(f"{ATTRIBUTES}.json")
    if not attributes.is_file():
        raise CatalogueError(f"{attributes}: missing; it must lie beside {products.name}")
    humans = products.with_name(f"{HUMANS}.json")
    return Sources(products, attributes, humans if humans.is_file() else None)


@dataclass(frozen=True)
class Annotation:
    """What ``items_ins_v2`` says of one product."""

    attributes: tuple[str, ...]
    instruction: Instruction | None


def read_annotations(path: Path) -> dict[str, Annotation]:
    """The attributes, and where there is one the synthetic instruction, of each asin."""
    annotations = {}
    for row, asin, value in iterate_object(path, "attributes by asin"):
        where = f"{path}, row {row} ({asin[:20]})"
        if not isinstance(value, dict):
            raise CatalogueError(f"{where}: expected an object with 'attributes', found {_kind(value)}")
        attributes = _strings(value.get("attributes"), where, "attributes") or NO_ATTRIBUTES
        text = _text(value.get("instruction"), where, "instruction", LONGEST_NAME)
        wanted = _strings(value.get("instruction_attributes"), where, "instruction_attributes")
        annotations[regular_asin(asin)] = Annotation(attributes, Instruction(text, wanted) if text else None)
    return annotations


def read_humans(path: Path) -> dict[str, tuple[Instruction, ...]]:
    """The human instructions for each asin."""
    humans = {}
    for row, asin, value in iterate_object(path, "human instructions by asin"):
        where = f"{path}, row {row} ({asin[:20]})"
        if not isinstance(value, list):
            raise CatalogueError(f"{where}: expected a list of instructions, found {_kind(value)}")
        instructions = []
        for entry in value:
            if not isinstance(entry, dict) or "instruction" not in entry:
                raise CatalogueError(f"{where}: an instruction is an object with the key 'instruction'")
            text = _text(entry["instruction"], where, "instruction", LONGEST_NAME)
            wanted = _strings(entry.get("instruction_attributes"), where, "instruction_attributes")
            options = _wanted_options(entry.get("instruction_options"), where)
            instructions.append(Instruction(text, wanted, options))
        humans[regular_asin(asin)] = tuple(instructions)
    return humans


def read_products(
    path: Path, annotations: dict[str, Annotation], counts: Counter[str] | None = None
) -> Iterator[Product]:
    """Yield the usable products of ``path`` in file order.

    Rows whose asin is 'nan', longer than ten characters, or seen before are left out and counted in ``counts`` under
    ``nameless``, ``long_asin`` and ``double``. Raises CatalogueError for a row of another shape or a bad price.
    """
    counts = Counter() if counts is None else counts
    seen: set[str] = set()
    for row, value in iterate_list(path, "a list of products"):
        where = f"{path}, row {row}"
        if not isinstance(value, dict):
            raise CatalogueError(f"{where}: a product is an object, found {_kind(value)}")
        asin = value.get("asin")
        if _is_nan(asin) or (isinstance(asin, str) and asin.strip().lower() == "nan"):
            counts["nameless"] += 1
            continue
        if not isinstance(asin, str) or not clean(asin):
            raise CatalogueError(f"{where}: a product needs an 'asin' (text of 1 to {LONGEST_ASIN} characters)")
        asin = regular_asin(asin)
        if len(asin) > LONGEST_ASIN:
            counts["long_asin"] += 1
            continue
        if asin in seen:
            counts["double"] += 1
            continue
        seen.add(asin)
        yield _product(value, asin, annotations.get(asin), f"{where} ({asin})")


def regular_asin(asin: str) -> str:
    """An asin as it is stored and compared: clean and upper-cased (clicks are not case-sensitive)."""
    return clean(asin, 200).upper()


def _product(row: dict[str, Any], asin: str, annotation: Annotation | None, where: str) -> Product:
    return Product(
        asin=asin,
        title=_text(row.get("name"), where, "name", LONGEST_NAME),
        description=_text(row.get("full_description"), where, "full_description"),
        bullets=_bullets(row.get("small_description"), where),
        prices=parse_prices(row.get("pricing"), where),
        options=_options(row.get("customization_options"), where),
        attributes=annotation.attributes if annotation else NO_ATTRIBUTES,
        category=_text(row.get("category"), where, "category", LONGEST_NAME),
        query=_text(row.get("query"), where, "query", LONGEST_NAME).lower(),
        product_category=_text(row.get("product_category"), where, "product_category", LONGEST_NAME),
    )


def parse_prices(pricing: Any, where: str) -> tuple[float, ...]:
    """The dollars of ``"$10.00"`` or ``"$10.00 - $20.00"``; none for a missing price.

    >>> parse_prices("$1,010.50 - $2,000.00", "")
    (1010.5, 2000.0)
    """
    if pricing is None or pricing == "" or _is_nan(pricing):
        return ()
    if not isinstance(pricing, str):
        raise CatalogueError(f"{where}: 'pricing' is text like '$10.00' or null, found {_kind(pricing)}")
    shown = clean(pricing, 60)
    if _NEGATIVE.search(pricing):
        raise CatalogueError(f"{where}: negative price {shown!r}")
    prices = []
    for part in pricing.split("$")[1:3]:
        try:
            prices.append(float(Decimal(_NOT_NUMERIC.sub("", part))))
        except InvalidOperation:
            raise CatalogueError(
                f"{where}: 'pricing' {shown!r} is no price; write '$10.00' or '$10.00 - $20.00'"
            ) from None
    if not prices:
        raise CatalogueError(f"{where}: 'pricing' {shown!r} names no dollars; write '$10.00' or null")
    if max(prices) > LARGEST_PRICE:
        raise CatalogueError(f"{where}: price {shown!r} is above {LARGEST_PRICE:.0f} dollars")
    return tuple(prices)


def _options(value: Any, where: str) -> dict[str, tuple[str, ...]]:
    if not value or _is_nan(value):
        return {}
    if not isinstance(value, dict):
        raise CatalogueError(f"{where}: 'customization_options' is an object or null, found {_kind(value)}")
    options: dict[str, tuple[str, ...]] = {}
    for name, contents in value.items():
        if contents is None:
            continue
        if not isinstance(contents, list):
            raise CatalogueError(f"{where}: option {name[:40]!r} is a list of values or null, found {_kind(contents)}")
        values = []
        for content in contents[:MOST_OPTION_VALUES]:
            if not isinstance(content, dict) or not isinstance(content.get("value"), str):
                raise CatalogueError(f"{where}: option {name[:40]!r} needs objects with a text 'value'")
            values.append(option_value(content["value"]))
        name = clean(name, LONGEST_OPTION).lower()
        if name and any(values) and len(options) < MOST_OPTION_NAMES:
            options[name] = tuple(dict.fromkeys(v for v in values if v))
    return options


def option_value(text: str) -> str:
    """An option value as the shop shows it: ``/`` apart, lower-cased.

    >>> option_value(" Red/Blue ")
    'red | blue'
    """
    return clean(text.strip().replace("/", " | "), LONGEST_OPTION).lower()


def _wanted_options(value: Any, where: str) -> tuple[tuple[str, str], ...]:
    if not value:
        return ()
    if isinstance(value, dict):
        return tuple((clean(name).lower(), clean(str(wanted)).lower()) for name, wanted in value.items())
    if not isinstance(value, list):
        raise CatalogueError(f"{where}: 'instruction_options' is a list or an object, found {_kind(value)}")
    options = []
    for entry in value:
        name, wanted = entry if isinstance(entry, list) and len(entry) == 2 else ("", entry)
        if not isinstance(name, str) or not isinstance(wanted, str):
            raise CatalogueError(f"{where}: 'instruction_options' holds texts or [name, value] pairs")
        options.append((clean(name, LONGEST_OPTION).lower(), clean(wanted, LONGEST_OPTION).lower()))
    return tuple(options)


def _bullets(value: Any, where: str) -> tuple[str, ...]:
    if value is None or _is_nan(value):
        return ()
    entries = value if isinstance(value, list) else [value]
    return tuple(_text(entry, where, "small_description") for entry in entries[:MOST_BULLETS])


def _text(value: Any, where: str, key: str, longest: int = LONGEST_TEXT) -> str:
    if value is None or _is_nan(value):
        return ""
    if isinstance(value, list):
        value = " ".join(_text(entry, where, key, longest) for entry in value[:MOST_BULLETS])
    if not isinstance(value, str):
        raise CatalogueError(f"{where}: {key!r} is text, found {_kind(value)}")
    return clean(value, longest)


def _strings(value: Any, where: str, key: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise CatalogueError(f"{where}: {key!r} is a list of texts, found {_kind(value)}")
    return tuple(text for text in (clean(entry, LONGEST_NAME) for entry in value) if text)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
