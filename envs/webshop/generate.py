"""Generates a catalogue of up to 100,000 products in the format of the published files.

The environment uses it if the user has no data files. Products of one type differ in brand, attributes, options and
price. An instruction asks for a type with two attributes that the wanted product's title contains. The irregularities
of real files are included: repeated rows, 'nan' asins, missing and ranged prices, features as text, slashes in options,
non-ASCII letters.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypedDict

from gagpo.base.errors import InvalidArgument
from gagpo.envs.webshop.catalogue import ATTRIBUTES, HUMANS, PRODUCTS
from gagpo.envs.webshop.store import build_once

VERSION = 1
MIN_PRODUCTS = 10
MAX_PRODUCTS = 100_000  # an asin has five digits
MAX_INSTRUCTED = 1_500  # products with instructions, so that a worker can keep the list of goals


class OfferedValue(TypedDict):
    value: str
    image: None


Row = dict[str, object]  # an object of a data file
OptionTable = dict[str, list[OfferedValue] | None]  # by name, as the published files have them


class ProductKind(NamedTuple):
    """A type of product.

    path: category.
    options: keys of ``_CHOICES``.
    low, high: usual prices in dollars.
    """

    name: str
    path: str
    options: tuple[str, ...]
    low: float
    high: float


class Department(NamedTuple):
    name: str
    root: str
    kinds: tuple[ProductKind, ...]
    attributes: tuple[str, ...]
    audiences: tuple[str, ...]


def _split_list(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


def _kinds(options: str, low: float, high: float, **paths: str) -> list[ProductKind]:
    return [
        ProductKind(name.strip(), path.replace("_", " "), tuple(options.split()), low, high)
        for path, names in paths.items()
        for name in names.split(",")
    ]


DEPARTMENTS = (
    Department(
        "fashion",
        "Clothing, Shoes & Jewelry",
        (
            *_kinds("color size", 12, 60, Tops="t-shirt, hoodie, polo shirt, tank top", Trousers="jeans, leggings"),
            *_kinds("color size", 25, 140, Coats="rain jacket, winter coat", Dresses="maxi dress, pencil skirt"),
            *_kinds("color shoe", 20, 120, Shoes="running shoes, ankle boots, sandals, slippers"),
        ),
        _split_list(
            "machine washable, slim fit, long sleeve, short sleeve, quick drying, moisture wicking, loose fit, "
            "high waist, stretch fabric, button closure, rubber sole, memory foam, relaxed fit, faux fur"
        ),
        ("women", "men", "girls", "boys", "teens"),
    ),
    Department(
        "beauty",
        "Beauty & Personal Care",
        (
            *_kinds("scent volume", 6, 40, Hair_Care="shampoo, conditioner, hair oil", Body="body lotion, shower gel"),
            *_kinds("shade", 5, 35, Makeup="lipstick, nail polish, eye shadow, foundation"),
            *_kinds("color", 8, 90, Tools="hair brush, makeup mirror, nail clipper"),
        ),
        _split_list(
            "cruelty free, long lasting, paraben free, sulfate free, dermatologist tested, fragrance free, "
            "easy to use, travel size, anti aging, plant based, non toxic, oil free, high quality"
        ),
        ("dry skin", "sensitive skin", "curly hair", "damaged hair", "women"),
    ),
    Department(
        "electronics",
        "Electronics",
        (
            *_kinds("color style", 15, 180, Audio="headphones, bluetooth speaker, soundbar, earbuds"),
            *_kinds("length color", 5, 45, Cables="usb cable, hdmi cable, charging cable"),
            *_kinds("color", 9, 400, Accessories="phone case, tablet stand, camera tripod, webcam, smart watch"),
        ),
        _split_list(
            "fast charging, noise cancelling, water resistant, hands free, high definition, plug and play, ultra slim, "
            "light weight, heavy duty, gold plated, easy to install, shock proof, dual band"
        ),
        ("travel", "office", "gaming", "home", "sports"),
    ),
    Department(
        "garden",
        "Home & Kitchen",
        (
            *_kinds("color bed", 20, 160, Bedding="duvet cover, mattress topper, blanket, bed frame"),
            *_kinds("color", 25, 900, Furniture="coffee table, office chair, bookshelf, bar stool, sofa"),
            *_kinds("color panel", 10, 90, Decor="blackout curtains, area rug, table lamp, wall mirror"),
        ),
        _split_list(
            "easy to assemble, space saving, solid wood, easy to clean, mid century, stainless steel, "
            "eco friendly, heavy duty, machine washable, non slip, fade resistant, faux leather, tempered glass"
        ),
        ("living room", "bedroom", "dining room", "home office", "small rooms"),
    ),
    Department(
        "grocery",
        "Grocery & Gourmet Food",
        (
            *_kinds("flavor pack", 4, 40, Snacks="protein bars, potato chips, trail mix, popcorn, crackers"),
            *_kinds("flavor pack", 5, 50, Drinks="green tea, ground coffee, hot cocoa, fruit juice"),
            *_kinds("pack", 3, 30, Pantry="olive oil, almond butter, rice noodles, tomato sauce"),
        ),
        _split_list(
            "gluten free, low sugar, non gmo, keto friendly, dairy free, high protein, low carb, organic, "
            "artificial colors free, low sodium, individually wrapped, ready to eat, plant based, nut free"
        ),
        ("kids", "breakfast", "lunch boxes", "parties", "hiking"),
    ),
)

# For each kind of option: the displayed name, and the values to draw from.
_CHOICES: dict[str, tuple[str, tuple[str, ...]]] = {
    "color": (
        "color",
        _split_list(
            "Black, White, Navy, Red, Olive Green, Grey, Pink, Yellow, Teal, Burgundy, Ivory, Sky Blue, Black/White, "
            "Purple, Café Brown, Rose Gold"
        ),
    ),
    "size": ("size", ("X-Small", "Small", "Medium", "Large", "X-Large", "XX-Large")),
    "shoe": ("size", ("6", "7", "8", "9", "10", "11", "8.5 Wide", "9.5 Wide")),
    "scent": ("scent", ("Lavender", "Citrus", "Rose", "Coconut", "Unscented", "Mint", "Crème Brûlée")),
    "volume": ("size", ("3 Fl Oz", "8 Fl Oz", "12 Fl Oz (Pack of 2)", "16 Fl Oz", "1/2 Gallon")),
    "shade": ("color", ("01 Nude", "02 Coral", "03 Cherry Red", "04 Plum", "05 Mocha", "06 Blush", "07 Rosé")),
    "style": ("style", ("Standard", "With Charging Case", "With Carrying Bag", "2nd Generation")),
    "length": ("size", ("3 Feet", "6 Feet", "10 Feet", "15 Feet", "25 Feet")),
    "bed": ("size", ("Twin", "Full", "Queen", "King", "California King")),
    "panel": ("size", ('24" x 36"', '42" x 63"', '52" x 84"', "5 x 8 Feet", "8 x 10 Feet")),
    "flavor": ("flavor name", ("Chocolate", "Vanilla", "Sea Salt", "Honey", "Strawberry", "Jalapeño", "Maple")),
    "pack": ("size", ("Pack of 1", "Pack of 2", "Pack of 4", "Pack of 6", "Pack of 12", "8 Ounce / 226 g")),
}
_BRANDS = _split_list(
    "Norvale, Halden & Co, Brightmoor, O'Hara, Zoë's, Kestrel, Ångström, Pinefold, Quillon, Ravensby, Solenne, Tarn, "
    "Umbra+, Verdano, Wexley, Łódźcraft, Yarrow, Castell, Dunmere, Elowen™, Fjordlys, Greyloch, Hollins, Ivarsson, "
    "Juno <3, Kordova, Lumière, Marrow & Finch, Nimbus, Ostra, 木野, Šípek"
)
_REQUESTS = (
    "i need a {first} {kind} that is {second}",
    "i am looking for {kind} for {audience} that is {first} and {second}",
    "find me {first}, {second} {kind}",
    "i want a {kind} that is {first}, and also {second}",
    "i would like to buy {first} {second} {kind} for {audience}",
    "show me a {second} {kind} that is {first}",
)
_HUMAN_REQUESTS = (
    "Hey, can you find {kind} that is {first} and {second}{options}?",
    "My sister wants {first} {kind}{options}. It should be {second}.",
    "I'm shopping for {kind} for {audience}, {first} and {second}{options}.",
    "Get me some {second} {kind}, {first}{options}, please",
)


def generated_folder(root: Path, products: int = 1_000, seed: int = 0) -> Path:
    """The folder of a generated catalogue below ``root``, written if missing.

    The same arguments give the same bytes on every machine.

    products: number of usable products, 10 to 100,000.
    """
    if not MIN_PRODUCTS <= products <= MAX_PRODUCTS:
        raise InvalidArgument(
            f"products must be between {MIN_PRODUCTS} and {MAX_PRODUCTS}, got {products}", key="products"
        )
    folder = root / f"generated-{products}-{seed}-v{VERSION}"
    return build_once(folder, lambda unfinished: write_catalogue(unfinished, products, seed))


def write_catalogue(folder: Path, products: int, seed: int = 0) -> None:
    """Write the three data files of a catalogue into ``folder``."""
    rng = random.Random(f"catalogue:{VERSION}:{seed}")
    asins = [f"{number:05d}" for number in rng.sample(range(100_000), products)]
    attributes: Row = {}
    humans: Row = {}
    with (folder / f"{PRODUCTS}.json").open("w", encoding="utf-8") as file:
        file.write("[")
        for n, asin in enumerate(asins):
            # Written row by row, to keep a large catalogue out of memory.
            row, attributes[asin], human = _product(asin, rng, with_instruction=n < MAX_INSTRUCTED)
            if human:
                humans[asin] = human
            for i, file_row in enumerate(_with_odd_rows(row, n, rng)):
                file.write((",\n" if n or i else "") + json.dumps(file_row, ensure_ascii=False))
        file.write("]\n")
    for name, content in ((ATTRIBUTES, attributes), (HUMANS, humans)):
        (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _with_odd_rows(row: Row, number: int, rng: random.Random) -> Iterator[Row]:
    yield row
    if number % 97 == 96:
        yield {**row, "name": "a second row of the same product", "pricing": "$1.00"}
    if number % 211 == 210:
        yield {**row, "asin": "nan"}
    if number % 307 == 306:
        yield {**row, "asin": f"TOO-LONG-{rng.randrange(10_000):04d}"}


def _product(asin: str, rng: random.Random, with_instruction: bool) -> tuple[Row, Row, list[Row]]:
    department = rng.choice(DEPARTMENTS)
    product_kind = rng.choice(department.kinds)
    brand = rng.choice(_BRANDS)
    audience = rng.choice(department.audiences)
    attributes = rng.sample(department.attributes, rng.randint(3, 5))
    first, second = attributes[:2]
    title = f"{brand} {first} {product_kind.name} for {audience}, {second}"
    features = [f"{attribute.capitalize()}: our {product_kind.name} is {attribute}." for attribute in attributes]
    options = _options(product_kind, rng)
    row = {
        "asin": asin,
        "name": title,
        "category": department.name,
        "query": product_kind.name,
        "product_category": " › ".join((department.root, product_kind.path, product_kind.name.title())),
        "full_description": _description(product_kind, brand, audience, attributes, rng),
        "small_description": features[0] if rng.random() < 0.1 else features,
        "pricing": _pricing(product_kind, rng),
        "customization_options": options,
        "images": [f"https://images.invalid/{asin}.jpg"],
        "brand": brand,
    }
    annotation: Row = {}
    if rng.random() < 0.98 or with_instruction:
        annotation["attributes"] = attributes
    values = {"kind": product_kind.name, "first": first, "second": second, "audience": audience}
    human: list[Row] = []
    if with_instruction:
        annotation["instruction"] = rng.choice(_REQUESTS).format(**values)
        annotation["instruction_attributes"] = [first, second]
        for _ in range(rng.randint(1, 2)):
            human.append(_human_instruction(values, options, rng))
    return row, annotation, human


def _options(kind: ProductKind, rng: random.Random) -> OptionTable | None:
    options: OptionTable = {}
    for choice in kind.options:
        name, values = _CHOICES[choice]
        if rng.random() < 0.1:  # so that products of one kind differ in their options
            continue
        indexes = sorted(rng.sample(range(len(values)), rng.randint(2, 4)))
        options[name.title()] = [{"value": values[i], "image": None} for i in indexes]
    if rng.random() < 0.03:
        options["Special Offer"] = None
    return options or None


def _pricing(kind: ProductKind, rng: random.Random) -> str | None:
    chance = rng.random()
    if chance < 0.05:
        return None
    price = rng.uniform(kind.low, kind.high)
    if chance < 0.2:
        return f"${price:,.2f} - ${price * rng.uniform(1.05, 1.6):,.2f}"
    return f"${price:,.2f}"


def _description(kind: ProductKind, brand: str, audience: str, attributes: list[str], rng: random.Random) -> object:
    sentences = [
        f"{brand} makes this {kind.name} with {audience} in mind.",
        f"It is {', '.join(attributes[:-1])} and {attributes[-1]}.",
        rng.choice(
            ("A gift that pleases.", "Made to last.", "Ships in one box.", "Questions? We answer within a day.")
        ),
    ]
    return sentences if rng.random() < 0.05 else " ".join(sentences)


def _human_instruction(words: dict[str, str], options: OptionTable | None, rng: random.Random) -> Row:
    option_values = [
        rng.choice(values)["value"].replace("/", " | ").lower() for values in (options or {}).values() if values
    ]
    options_text = f" in {' and '.join(option_values)}" if option_values else ""
    return {
        "instruction": rng.choice(_HUMAN_REQUESTS).format(**words, options=options_text),
        "instruction_attributes": [words["first"], words["second"]],
        "instruction_options": [" ".join(value.split()) for value in option_values],
    }
