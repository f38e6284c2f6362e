"""Reads the published product files: one :class:`Product` per usable row."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path

from gagpo.envs.webshop.rows import CatalogueError, iterate_list, iterate_object
from gagpo.envs.webshop.texts import (
    LONGEST_NAME,
    LONGEST_OPTION,
    MOST_BULLETS,
    MOST_OPTION_NAMES,
    MOST_OPTION_VALUES,
    clean,
    paired,
    tidy,
    tidy_all,
)

PRODUCTS = "items_shuffle"
ATTRIBUTES = "items_ins_v2"
HUMANS = "items_human_ins"

LONGEST_ASIN = 10
NO_ATTRIBUTES = ("DUMMY_ATTR",)
MISSING_PRICE = 100.0
LARGEST_PRICE = 1e9

_NEGATIVE = re.compile(r"^\s*-|\$\s*-|-\s*-\s*\$")
_NOT_NUMERIC = re.compile(r"[^\d.]")


@dataclass(frozen=True)
class Instruction:
    """A request for a product.

    options: (name, value) pairs of a human instruction; the name is '' if not given.
    """

    text: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Product:
    """One product as the shop shows and scores it.

    prices: in dollars; empty (missing), one price, or both ends of a range.
    options: values by lower-cased name, with duplicate and empty values, which the published environment also shows.
    nouns: lower-cased nouns of the title, in order, with repetitions; filled in by the store's tagger.
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
        """The displayed price; a missing price is shown as 100 dollars, as in the published environment."""
        if not self.prices:
            return f"${MISSING_PRICE}"
        return " to ".join(f"${price}" for price in self.prices)

    def tidy(self) -> Product:
        """This product with its texts cleaned and cut to a readable length."""
        options = list(self.options.items())[:MOST_OPTION_NAMES]
        return replace(
            self,
            title=tidy(self.title, LONGEST_NAME),
            description=tidy(self.description),
            bullets=tuple(tidy(bullet) for bullet in self.bullets[:MOST_BULLETS]),
            options={
                tidy(name, LONGEST_OPTION): tuple(tidy_option(value) for value in values[:MOST_OPTION_VALUES])
                for name, values in options
            },
            attributes=tidy_all(self.attributes, LONGEST_NAME) or NO_ATTRIBUTES,
            category=tidy(self.category, LONGEST_NAME),
            query=tidy(self.query, LONGEST_NAME),
            product_category=tidy(self.product_category, LONGEST_NAME),
        )


@dataclass(frozen=True)
class Sources:
    """The data files; without ``humans`` there are no human goals."""

    products: Path
    attributes: Path
    humans: Path | None


def find_sources(data: Path) -> Sources:
    """The data files in the folder ``data``, or next to ``data`` if it is a product file.

    The product file ``items_shuffle_1000.json`` belongs to ``items_ins_v2_1000.json`` if that exists, else to
    ``items_ins_v2.json``.

    Raises:
        CatalogueError: a file is missing, or the folder has several product files.
    """
    if data.is_dir():
        found = sorted(data.glob(f"{PRODUCTS}*.json"))
        if not found:
            raise CatalogueError(f"{data}: has no {PRODUCTS}*.json; give the folder of the WebShop data files")
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise CatalogueError(f"{data}: has several product files ({names}); give the path of one of them")
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
        raise CatalogueError(f"{attributes}: missing; put it next to {products.name}")
    humans = products.with_name(f"{HUMANS}.json")
    return Sources(products, attributes, humans if humans.is_file() else None)


@dataclass(frozen=True)
class Annotation:
    """The entry of one product in ``items_ins_v2``."""

    attributes: tuple[str, ...]
    instruction: Instruction | None


def read_annotations(path: Path) -> dict[str, Annotation]:
    """The attributes and the optional synthetic instruction of each asin, with unchanged texts."""
    annotations = {}
    for row, asin, value in iterate_object(path, "attributes by asin"):
        # Without attributes, the published environment uses a dummy.
        where = f"{path}, row {row} ({clean(asin, 20)})"
        if not isinstance(value, dict):
            raise CatalogueError(f"{where}: expected an object with 'attributes', found {_kind(value)}")
        attributes = _strings(value.get("attributes"), where, "attributes") or NO_ATTRIBUTES
        text = _text(value.get("instruction"), where, "instruction")
        wanted = _strings(value.get("instruction_attributes"), where, "instruction_attributes")
        annotations[regular_asin(asin)] = Annotation(attributes, Instruction(text, wanted) if text else None)
    return annotations


def read_humans(path: Path) -> dict[str, tuple[Instruction, ...]]:
    """The human instructions for each asin, with unchanged texts except lower-cased options."""
    humans = {}
    for row, asin, value in iterate_object(path, "human instructions by asin"):
        where = f"{path}, row {row} ({clean(asin, 20)})"
        if not isinstance(value, list):
            raise CatalogueError(f"{where}: expected a list of instructions, found {_kind(value)}")
        instructions = []
        for entry in value:
            if not isinstance(entry, dict) or "instruction" not in entry:
                raise CatalogueError(f"{where}: an instruction must be an object with the key 'instruction'")
            text = _text(entry["instruction"], where, "instruction")
            wanted = _strings(entry.get("instruction_attributes"), where, "instruction_attributes")
            options = _wanted_options(entry.get("instruction_options"), where)
            instructions.append(Instruction(text, wanted, options))
        humans[regular_asin(asin)] = tuple(instructions)
    return humans


def read_products(path: Path, annotations: dict[str, Annotation], counts: Counter[str]) -> Iterator[Product]:
    """Yield the usable products of ``path`` in file order, with unchanged texts.

    Rows whose asin is 'nan', longer than ten characters, or a repetition are skipped and counted in ``counts`` under
    ``nameless``, ``long_asin`` and ``double``, as in the published environment.

    Raises:
        CatalogueError: a row has another shape or a bad price.
    """
    seen: set[str] = set()
    for row, value in iterate_list(path, "a list of products"):
        where = f"{path}, row {row}"
        if not isinstance(value, dict):
            raise CatalogueError(f"{where}: a product must be an object, found {_kind(value)}")
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
    """An asin as it is stored and compared: cleaned and upper-cased (clicks are not case-sensitive)."""
    return clean(asin, 200).upper()


def _product(row: dict[str, object], asin: str, annotation: Annotation | None, where: str) -> Product:
    return Product(
        asin=asin,
        title=_text(row.get("name"), where, "name"),
        description=_text(row.get("full_description"), where, "full_description"),
        bullets=_bullets(row.get("small_description"), where),
        prices=parse_prices(row.get("pricing"), where),
        options=_options(row.get("customization_options"), where),
        attributes=annotation.attributes if annotation else NO_ATTRIBUTES,
        category=_text(row.get("category"), where, "category"),
        query=_text(row.get("query"), where, "query").lower().strip(),
        product_category=_text(row.get("product_category"), where, "product_category"),
    )


def parse_prices(pricing: object, where: str) -> tuple[float, ...]:
    """The dollars of ``"$10.00"`` or ``"$10.00 - $20.00"``; empty for a missing price.

    >>> parse_prices("$1,010.50 - $2,000.00", "")
    (1010.5, 2000.0)
    """
    if pricing is None or pricing == "" or _is_nan(pricing):
        return ()
    if not isinstance(pricing, str):
        raise CatalogueError(f"{where}: 'pricing' must be text like '$10.00' or null, found {_kind(pricing)}")
    shown = clean(pricing, 60)
    if _NEGATIVE.search(pricing):
        raise CatalogueError(f"{where}: negative price {shown!r}")
    prices = []
    for part in pricing.split("$")[1:3]:
        try:
            prices.append(float(Decimal(_NOT_NUMERIC.sub("", part))))
        except InvalidOperation:
            raise CatalogueError(f"{where}: bad 'pricing' {shown!r}; write '$10.00' or '$10.00 - $20.00'") from None
    if not prices:
        raise CatalogueError(f"{where}: 'pricing' {shown!r} has no dollar sign; write '$10.00' or null")
    if max(prices) > LARGEST_PRICE:
        raise CatalogueError(f"{where}: price {shown!r} is above {LARGEST_PRICE:.0f} dollars")
    return tuple(prices)


def _options(value: object, where: str) -> dict[str, tuple[str, ...]]:
    if not value or _is_nan(value):
        return {}
    if not isinstance(value, dict):
        raise CatalogueError(f"{where}: 'customization_options' must be an object or null, found {_kind(value)}")
    options: dict[str, tuple[str, ...]] = {}
    for name, contents in value.items():
        if contents is None:  # an option without values
            continue
        option = f"{where}: option {clean(name, 40)!r}"
        if not isinstance(contents, list):
            raise CatalogueError(f"{option} must be a list of values or null, found {_kind(contents)}")
        values = []
        for content in contents:
            if not isinstance(content, dict) or not isinstance(content.get("value"), str):
                raise CatalogueError(f"{option} must contain objects with a text 'value'")
            values.append(published_value(content["value"]))
        options[paired(name).lower()] = tuple(values)
    return options


def published_value(text: str) -> str:
    """An option value of the data files as the published environment shows it: trimmed, ``/`` spaced, lower-cased.

    >>> published_value(" Red/Blue ")
    'red | blue'
    """
    return paired(text).strip().replace("/", " | ").lower()


def tidy_option(value: str) -> str:
    """A published value without invisible characters, and trimmed, so that it can be clicked."""
    short = tidy(value, LONGEST_OPTION)
    return short if short is value else short.strip()


def _wanted_options(value: object, where: str) -> tuple[tuple[str, str], ...]:
    if not value:
        return ()
    if isinstance(value, dict):
        return tuple((clean(name).lower(), clean(str(wanted)).lower()) for name, wanted in value.items())
    if not isinstance(value, list):
        raise CatalogueError(f"{where}: 'instruction_options' must be a list or an object, found {_kind(value)}")
    options = []
    for entry in value:
        name, wanted = entry if isinstance(entry, list) and len(entry) == 2 else ("", entry)
        if not isinstance(name, str) or not isinstance(wanted, str):
            raise CatalogueError(f"{where}: 'instruction_options' must contain texts or [name, value] pairs")
        options.append((clean(name, LONGEST_OPTION).lower(), clean(wanted, LONGEST_OPTION).lower()))
    return tuple(options)


def _bullets(value: object, where: str) -> tuple[str, ...]:
    if value is None or _is_nan(value):
        return ()
    entries = value if isinstance(value, list) else [value]
    return tuple(_text(entry, where, "small_description") for entry in entries)


def _text(value: object, where: str, key: str) -> str:
    if value is None or _is_nan(value):
        return ""
    if isinstance(value, list) and not any(isinstance(entry, list) for entry in value):
        value = " ".join(_text(entry, where, key) for entry in value)
    if not isinstance(value, str):
        raise CatalogueError(f"{where}: {key!r} must be text, found {_kind(value)}")
    return paired(value)


def _strings(value: object, where: str, key: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise CatalogueError(f"{where}: {key!r} must be a list of texts, found {_kind(value)}")
    return tuple(paired(entry) for entry in value if entry)


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
