"""The reward of a purchase by the published rule, with its known errors in both directions.

``r = r_type * (n_att + n_opt + [price <= budget]) / (|att| + |opt| + 1)``, 0 to 1; success is ``r == 1``.
A fuzzy match is a ``token_set_ratio`` above 85 by the library thefuzz, a thin layer over rapidfuzz. This module calls
rapidfuzz with the same preparation and rounding; a property test compares the two.

The odd rules are kept, because published numbers depend on them:

- A set of words matches any larger set: ``large`` matches ``x-large``, and ``pack of 1`` is close to ``pack of 12``.
- Colours are found inside other words (``tan`` in ``titanium``), and the first colour of a fixed list replaces a value.
- An option of a goal may match a chosen value of another option (see :func:`option_matches`).
- An attribute counts wherever its letters occur in the title, the joined features or the description.
- The price counts as much as one attribute, and a goal without options only divides by one less.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from rapidfuzz.fuzz import token_set_ratio as _token_set_ratio
from rapidfuzz.utils import default_process

from gagpo.envs.webshop.catalogue import Product
from gagpo.envs.webshop.goals import Goal

MATCH_ABOVE = 85

# The first of these that an option value contains replaces the value: "dark" before "red", and "tan" in "titanium".
_COLOUR_WORDS = """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
    caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal
    dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory
    ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor
    mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand
    sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut
    wheat white wine yellow
"""
COLOURS = tuple(_COLOUR_WORDS.split())
_LATIN_1 = dict.fromkeys(range(128, 256))


@dataclass(frozen=True)
class PurchaseScore:
    """A purchase's reward and its parts; ``r_option`` is None if the goal asks for no option."""

    reward: float
    r_type: float
    r_att: float
    r_option: float | None
    r_price: float
    title_score: float

    @property
    def success(self) -> bool:
        return self.reward == 1.0


def score_purchase(
    goal: Goal, goal_product: Product, bought_product: Product, price: float, options: dict[str, str]
) -> PurchaseScore:
    """Score the purchase of ``bought_product`` for ``goal``.

    goal_product: the goal's product.
    price: in dollars.
    options: chosen values by name.
    """
    r_type, title_score = type_score(goal_product, bought_product)
    attributes = sum(has_attribute(bought_product, attribute) for attribute in goal.attributes)
    matching_options = sum(option_matches(option, options) for option in goal.options)
    affordable = price <= goal.budget  # counts as much as one attribute or one option
    reward = r_type * ((attributes + matching_options + affordable) / (len(goal.attributes) + len(goal.options) + 1))
    return PurchaseScore(
        reward=reward,
        r_type=r_type,
        r_att=attributes / len(goal.attributes),
        r_option=matching_options / len(goal.options) if goal.options else None,
        r_price=float(affordable),
        title_score=title_score,
    )


def is_solvable(goal: Goal, product: Product, price: float) -> bool:
    """Whether buying the product and options that a synthetic goal names earns a reward of 1."""
    goal = goal.tidy()
    return score_purchase(goal, product, product, price, dict(goal.options)).success


def type_score(goal_product: Product, bought_product: Product) -> tuple[float, float]:
    """``(r_type, title_score)``.

    ``title_score``: number of distinct nouns in both titles, divided by the number of nouns in the wanted title (with
        repetitions); 0.2 if it has none.
    ``r_type``: 0 if title_score is 0, and 0.1 if it is below 0.1. Otherwise 1 if the queries agree, two parts of the
        category path agree, or title_score > 0.2, else 0.5.
    """
    title_score = 0.2  # what the published rule gives to a title without nouns: not above 0.2, not below 0.1
    if goal_product.nouns:
        title_score = len(set(bought_product.nouns) & set(goal_product.nouns)) / len(goal_product.nouns)
    if title_score < 0.1:
        return 0.1 if title_score else 0.0, title_score
    same_query = bought_product.query == goal_product.query
    same_category = len(_path(bought_product.product_category) & _path(goal_product.product_category)) >= 2
    return 1.0 if same_query or same_category or title_score > 0.2 else 0.5, title_score


@functools.lru_cache(maxsize=16_384)
def _path(product_category: str) -> frozenset[str]:
    return frozenset(category.strip() for category in product_category.split("›"))


def has_attribute(product: Product, attribute: str) -> bool:
    """Whether an attribute of ``product`` is a fuzzy match of ``attribute``, or a text contains it."""
    if any(is_fuzzy_match(product_attribute, attribute) for product_attribute in product.attributes):
        return True
    return (
        attribute in product.title.lower()
        or attribute in " ".join(product.bullets).lower()
        or attribute in product.description.lower()
    )


def option_matches(goal_option: tuple[str, str], chosen_options: dict[str, str]) -> bool:
    """Whether one of ``chosen_options`` satisfies ``goal_option``, a (name, value).

    The published rule compares every chosen value, whatever its name, with :func:`option_text`. If the goal gives no
    name (human goals), ``x-large`` is accepted for ``large``. If it does (synthetic goals), the name is compared, too:
    ``x-large`` fails for ``large``, and so does a value that contains a colour (``tan`` in ``standard``) for itself.

    >>> option_matches(("", "large"), {"size": "x-large"}), option_matches(("size", "large"), {"size": "x-large"})
    (True, False)
    """
    name, value = goal_option
    text = option_text(name, value)
    return any(is_fuzzy_match(colour_of(chosen_value), text) for chosen_value in chosen_options.values())


def same_words(first: str, second: str) -> bool:
    """Whether two option values have the same words, whatever the spaces between them."""
    return first == second or first.split() == second.split()


@functools.lru_cache(maxsize=65_536)
def option_text(name: str, value: str) -> str:
    """The text that the published rule compares chosen values with.

    Without a name, the colour of the value, or the value. With a name, the ``repr`` of the pair, or the colour alone
    if the name or the value is exactly a colour.

    >>> option_text("", "navy blue"), option_text("color", "navy blue"), option_text("color", "navy")
    ('blue', "('color', 'navy blue')", 'navy')
    """
    if not name:
        return colour_of(value)
    return next((colour for colour in COLOURS if colour in (name, value)), str((name, value)))


@functools.lru_cache(maxsize=65_536)
def colour_of(value: str) -> str:
    """The first of ``COLOURS`` that ``value`` contains, or ``value``."""
    return next((colour for colour in COLOURS if colour in value), value)


@functools.lru_cache(maxsize=65_536)
def is_fuzzy_match(first: str, second: str) -> bool:
    """Whether the two texts are a fuzzy match."""
    return similarity(first, second) > MATCH_ABOVE


def similarity(first: str, second: str) -> int:
    """thefuzz's ``token_set_ratio``, 0 to 100: Latin-1 letters removed, other signs made spaces, lower-cased, rounded.

    >>> similarity("large", "x-large"), similarity("pack of 12", "pack of 1")
    (100, 95)
    """
    return round(_token_set_ratio(_prepared(first), _prepared(second)))


@functools.lru_cache(maxsize=65_536)
def _prepared(text: str) -> str:
    return default_process(text.translate(_LATIN_1))
