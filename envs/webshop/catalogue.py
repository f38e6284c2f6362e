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
    MAX_BULLETS,
    MAX_NAME_LENGTH,
    MAX_OPTION_LENGTH,
    MAX_OPTION_NAMES,
    MAX_OPTION_VALUES,
    clean,
    tidy,
    tidy_all,
    without_surrogates,
)

PRODUCTS = "items_shuffle"
ATTRIBUTES = "items_ins_v2"
HUMANS = "items_human_ins"

MAX_ASIN_LENGTH = 10
NO_ATTRIBUTES = ("DUMMY_ATTR",)
MISSING_PRICE = 100.0
MAX_PRICE = 1e9

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
        options = list(self.options.items())[:MAX_OPTION_NAMES]
        return replace(
            self,
            title=tidy(self.title, MAX_NAME_LENGTH),
            description=tidy(self.description),
            bullets=tuple(tidy(bullet) for bullet in self.bullets[:MAX_BULLETS]),
            options={
                tidy(name, MAX_OPTION_LENGTH): tuple(tidy_option(value) for value in values[:MAX_OPTION_VALUES])
                for name, values in options
            },
            attributes=tidy_all(self.attributes, MAX_NAME_LENGTH) or NO_ATTRIBUTES,
            category=tidy(self.category, MAX_NAME_LENGTH),
            query=tidy(self.query, MAX_NAME_LENGTH),
            product_category=tidy(self.product_category, MAX_NAME_LENGTH),
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
        product_files = sorted(data.glob(f"{PRODUCTS}*.json"))
        if not product_files:
            raise CatalogueError(
                f"has no {PRODUCTS}*.json", where=data, advice="give the folder of the WebShop data files"
            )
        if len(product_files) > 1:
            names = ", ".join(path.name for path in product_files)
            raise CatalogueError(
                f"has several product files ({names})", where=data, advice="give the path of one of them"
            )
        products = product_files[0]
    elif data.is_file():
        products = data
    else:
        raise CatalogueError("no such file or folder", where=data, advice="give the folder of the WebShop data files")
    suffix = ""
    if products.stem.startswith(PRODUCTS):
        suffix = products.stem.removeprefix(PRODUCTS)
    attributes = products.with_name(f"{ATTRIBUTES}{suffix}.json")
    if not attributes.is_file():
        attributes = products.with_name(f"{ATTRIBUTES}.json")
    if not attributes.is_file():
        raise CatalogueError("missing", where=attributes, advice=f"put it next to {products.name}")
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
        row_name = f"{path}, row {row} ({clean(asin, 20)})"
        if not isinstance(value, dict):
            raise CatalogueError(f"expected an object with 'attributes', found {_kind(value)}", where=row_name)
        attributes = _strings(value.get("attributes"), row_name, "attributes") or NO_ATTRIBUTES
        text = _text(value.get("instruction"), row_name, "instruction")
        instruction_attributes = _strings(value.get("instruction_attributes"), row_name, "instruction_attributes")
        annotations[regular_asin(asin)] = Annotation(
            attributes, Instruction(text, instruction_attributes) if text else None
        )
    return annotations


def read_humans(path: Path) -> dict[str, tuple[Instruction, ...]]:
    """The human instructions for each asin, with unchanged texts except lower-cased options."""
    humans = {}
    for row, asin, value in iterate_object(path, "human instructions by asin"):
        row_name = f"{path}, row {row} ({clean(asin, 20)})"
        if not isinstance(value, list):
            raise CatalogueError(f"expected a list of instructions, found {_kind(value)}", where=row_name)
        instructions = []
        for entry in value:
            if not isinstance(entry, dict) or "instruction" not in entry:
                raise CatalogueError("an instruction must be an object with the key 'instruction'", where=row_name)
            text = _text(entry["instruction"], row_name, "instruction")
            instruction_attributes = _strings(entry.get("instruction_attributes"), row_name, "instruction_attributes")
            options = _goal_options(entry.get("instruction_options"), row_name)
            instructions.append(Instruction(text, instruction_attributes, options))
        humans[regular_asin(asin)] = tuple(instructions)
    return humans


def read_products(path: Path, annotations: dict[str, Annotation], counts: Counter[str]) -> Iterator[Product]:
    """Yield the usable products of ``path`` in file order, with unchanged texts.

    Rows whose asin is 'nan', longer than ten characters, or a repetition are skipped and counted in ``counts`` under
    ``nameless``, ``long_asin`` and ``double``, as in the published environment.

    Raises:
        CatalogueError: a row has another shape or a bad price.
    """
    asins: set[str] = set()
    for row, value in iterate_list(path, "a list of products"):
        row_name = f"{path}, row {row}"
        if not isinstance(value, dict):
            raise CatalogueError(f"a product must be an object, found {_kind(value)}", where=row_name)
        asin = value.get("asin")
        if _is_nan(asin) or (isinstance(asin, str) and asin.strip().lower() == "nan"):
            counts["nameless"] += 1
            continue
        if not isinstance(asin, str) or not clean(asin):
            raise CatalogueError(
                f"a product needs an 'asin' (text of 1 to {MAX_ASIN_LENGTH} characters)", where=row_name
            )
        asin = regular_asin(asin)
        if len(asin) > MAX_ASIN_LENGTH:
            counts["long_asin"] += 1
            continue
        if asin in asins:
            counts["double"] += 1
            continue
        asins.add(asin)
        yield _product(value, asin, annotations.get(asin), f"{row_name} ({asin})")


def regular_asin(asin: str) -> str:
    """An asin as it is stored and compared: cleaned and upper-cased (clicks are not case-sensitive)."""
    return clean(asin, 200).upper()


def _product(row: dict[str, object], asin: str, annotation: Annotation | None, place: str) -> Product:
    return Product(
        asin=asin,
        title=_text(row.get("name"), place, "name"),
        description=_text(row.get("full_description"), place, "full_description"),
        bullets=_bullets(row.get("small_description"), place),
        prices=parse_prices(row.get("pricing"), place),
        options=_options(row.get("customization_options"), place),
        attributes=annotation.attributes if annotation else NO_ATTRIBUTES,
        category=_text(row.get("category"), place, "category"),
        query=_text(row.get("query"), place, "query").lower().strip(),
        product_category=_text(row.get("product_category"), place, "product_category"),
    )


def parse_prices(pricing: object, place: str) -> tuple[float, ...]:
    """The dollars of ``"$10.00"`` or ``"$10.00 - $20.00"``; empty for a missing price.

    >>> parse_prices("$1,010.50 - $2,000.00", "")
    (1010.5, 2000.0)
    """
    if pricing is None or pricing == "" or _is_nan(pricing):
        return ()
    if not isinstance(pricing, str):
        raise CatalogueError(f"'pricing' must be text like '$10.00' or null, found {_kind(pricing)}", where=place)
    quoted_pricing = clean(pricing, 60)
    if _NEGATIVE.search(pricing):
        raise CatalogueError(f"negative price {quoted_pricing!r}", where=place)
    prices = []
    for price in pricing.split("$")[1:3]:
        try:
            prices.append(float(Decimal(_NOT_NUMERIC.sub("", price))))
        except InvalidOperation:
            raise CatalogueError(
                f"bad 'pricing' {quoted_pricing!r}", where=place, advice="write '$10.00' or '$10.00 - $20.00'"
            ) from None
    if not prices:
        raise CatalogueError(
            f"'pricing' {quoted_pricing!r} has no dollar sign", where=place, advice="write '$10.00' or null"
        )
    if max(prices) > MAX_PRICE:
        raise CatalogueError(f"price {quoted_pricing!r} is above {MAX_PRICE:.0f} dollars", where=place)
    return tuple(prices)


def _options(value: object, place: str) -> dict[str, tuple[str, ...]]:
    if not value or _is_nan(value):
        return {}
    if not isinstance(value, dict):
        raise CatalogueError(f"'customization_options' must be an object or null, found {_kind(value)}", where=place)
    options: dict[str, tuple[str, ...]] = {}
    for name, contents in value.items():
        if contents is None:  # an option without values
            continue
        option = f"{place}: option {clean(name, 40)!r}"
        if not isinstance(contents, list):
            raise CatalogueError(f"{option} must be a list of values or null, found {_kind(contents)}", key=option)
        values = []
        for content in contents:
            if not isinstance(content, dict) or not isinstance(content.get("value"), str):
                raise CatalogueError(f"{option} must contain objects with a text 'value'", key=option)
            values.append(published_value(content["value"]))
        options[without_surrogates(name).lower()] = tuple(values)
    return options


def published_value(text: str) -> str:
    """An option value of the data files as the published environment shows it: trimmed, ``/`` spaced, lower-cased.

    >>> published_value(" Red/Blue ")
    'red | blue'
    """
    return without_surrogates(text).strip().replace("/", " | ").lower()


def tidy_option(value: str) -> str:
    """A published value without invisible characters, and trimmed, so that it can be clicked."""
    short = tidy(value, MAX_OPTION_LENGTH)
    return short if short is value else short.strip()


def _goal_options(value: object, place: str) -> tuple[tuple[str, str], ...]:
    if not value:
        return ()
    if isinstance(value, dict):
        return tuple((clean(name).lower(), clean(str(option_value)).lower()) for name, option_value in value.items())
    if not isinstance(value, list):
        raise CatalogueError(f"'instruction_options' must be a list or an object, found {_kind(value)}", where=place)
    options = []
    for entry in value:
        name: object = ""
        option_value: object = entry
        if isinstance(entry, list) and len(entry) == 2:
            name, option_value = entry
        if not isinstance(name, str) or not isinstance(option_value, str):
            raise CatalogueError("'instruction_options' must contain texts or [name, value] pairs", where=place)
        options.append((clean(name, MAX_OPTION_LENGTH).lower(), clean(option_value, MAX_OPTION_LENGTH).lower()))
    return tuple(options)


def _bullets(value: object, place: str) -> tuple[str, ...]:
    if value is None or _is_nan(value):
        return ()
    entries = value if isinstance(value, list) else [value]
    return tuple(_text(entry, place, "small_description") for entry in entries)


def _text(value: object, place: str, key: str) -> str:
    if value is None or _is_nan(value):
        return ""
    if isinstance(value, list) and not any(isinstance(entry, list) for entry in value):
        value = " ".join(_text(entry, place, key) for entry in value)
    if not isinstance(value, str):
        raise CatalogueError(f"{key!r} must be text, found {_kind(value)}", where=place)
    return without_surrogates(value)


def _strings(value: object, place: str, key: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise CatalogueError(f"{key!r} must be a list of texts, found {_kind(value)}", where=place)
    return tuple(without_surrogates(entry) for entry in value if entry)


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
