"""What a purchase is worth: the published rule, its known errors in both directions included.

``r = r_type * (n_att + n_opt + [price <= budget]) / (|att| + |opt| + 1)``, in 0..1; success is ``r == 1``.
Fuzzy matches are ``token_set_ratio > 85`` of the library thefuzz. That library is a thin layer over rapidfuzz, which is
called here directly with the same preparation and rounding (a property test holds the two together).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from rapidfuzz.fuzz import token_set_ratio as _token_set_ratio
from rapidfuzz.utils import default_process

from gagpo.envs.webshop.catalogue import Product
from gagpo.envs.webshop.goals import Goal

MATCH_ABOVE = 85

# The first of these contained in an option value stands for the value, "dark" before "red" and "tan" in "titanium".
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
    """A purchase's reward and its parts; ``r_option`` is None when the goal asks for no option."""

    reward: float
    r_type: float
    r_att: float
    r_option: float | None
    r_price: float
    query_match: bool
    category_match: bool
    title_score: float

    @property
    def success(self) -> bool:
        return self.reward == 1.0


def judge(
    goal: Goal,
    wanted: Product,
    bought: Product,
    price: float,
    options: dict[str, str],
) -> PurchaseScore:
    """Score buying ``bought`` at ``price`` dollars with ``options`` (name -> value) for ``goal``.

    wanted: the goal's own product.
    """
    r_type, query_match, category_match, title_score = type_score(wanted, bought)
    attributes = sum(has_attribute(bought, attribute) for attribute in goal.attributes)
    matched = sum(option_matches(option, options) for option in goal.options)
    affordable = price <= goal.budget
    reward = r_type * ((attributes + matched + affordable) / (len(goal.attributes) + len(goal.options) + 1))
    return PurchaseScore(
        reward=reward,
        r_type=r_type,
        r_att=attributes / len(goal.attributes),
        r_option=matched / len(goal.options) if goal.options else None,
        r_price=float(affordable),
        query_match=query_match,
        category_match=category_match,
        title_score=title_score,
    )


def within_reach(goal: Goal, product: Product, price: float) -> bool:
    """Whether buying the very product with the very options that a synthetic goal names earns everything."""
    goal = goal.tidy()
    return judge(goal, product, product, price, dict(goal.options)).success


def type_score(wanted: Product, bought: Product) -> tuple[float, bool, bool, float]:
    """``(r_type, query_match, category_match, title_score)``.

    title_score: distinct nouns that both titles have, over the nouns of the wanted title (doubles counted), 0.2 when
    that has none. r_type: 1 if the queries agree, or two parts of the category path, or title_score > 0.2; else 0.5;
    but 0.1 if title_score < 0.1 and 0 if it is 0, whatever else agrees.
    """
    query_match = bought.query == wanted.query
    category_match = len(_path(bought.product_category) & _path(wanted.product_category)) >= 2
    if wanted.nouns:
        title_score = len(set(bought.nouns) & set(wanted.nouns)) / len(wanted.nouns)
    else:
        title_score = 0.2
    r_type = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    if title_score < 0.1:
        r_type = 0.1
    if title_score == 0.0:
        r_type = 0.0
    return r_type, query_match, category_match, title_score


@functools.lru_cache(maxsize=16_384)
def _path(product_category: str) -> frozenset[str]:
    return frozenset(part.strip() for part in product_category.split("›"))


def has_attribute(product: Product, attribute: str) -> bool:
    """Whether an attribute of ``product`` resembles ``attribute``, or its texts contain it."""
    if any(alike(own, attribute) for own in product.attributes):
        return True
    return (
        attribute in product.title.lower()
        or attribute in " ".join(product.bullets).lower()
        or attribute in product.description.lower()
    )


def option_matches(wanted: tuple[str, str], chosen: dict[str, str]) -> bool:
    """Whether one of the ``chosen`` values satisfies the ``wanted`` (name, value).

    The published rule compares every chosen value, whatever its name, with :func:`asked_for`. Where the goal gives no
    name (human goals), ``large`` passes for ``x-large``. Where it does (synthetic goals), the words of the name count
    among those asked for: ``x-large`` fails for ``large``, and so does a value with a colour inside one of its words
    (``standard`` holds ``tan``) for itself.

    >>> option_matches(("", "large"), {"size": "x-large"}), option_matches(("size", "large"), {"size": "x-large"})
    (True, False)
    """
    name, value = wanted
    text = asked_for(name, value)
    return any(alike(colour_of(own), text) for own in chosen.values())


def same(first: str, second: str) -> bool:
    """Whether two option values are the same words, however they are spaced."""
    return first == second or first.split() == second.split()


@functools.lru_cache(maxsize=65_536)
def asked_for(name: str, value: str) -> str:
    """What the published rule compares chosen values with.

    Without a name the colour of the value, or the value. With one, the pair as Python writes it; but the colour alone
    where name or value are a colour and nothing else.

    >>> asked_for("", "navy blue"), asked_for("color", "navy blue"), asked_for("color", "navy")
    ('blue', "('color', 'navy blue')", 'navy')
    """
    if not name:
        return colour_of(value)
    return next((colour for colour in COLOURS if colour in (name, value)), str((name, value)))


@functools.lru_cache(maxsize=65_536)
def colour_of(value: str) -> str:
    """The first colour word, in the order of the list, that ``value`` contains; ``value`` itself if there is none."""
    return next((colour for colour in COLOURS if colour in value), value)


@functools.lru_cache(maxsize=65_536)
def alike(first: str, second: str) -> bool:
    """Whether the two are a fuzzy match."""
    return similarity(first, second) > MATCH_ABOVE


def similarity(first: str, second: str) -> int:
    """thefuzz's ``token_set_ratio``, 0..100: Latin-1 letters dropped, other signs blanked, lower-cased, rounded.

    >>> similarity("large", "x-large"), similarity("pack of 12", "pack of 1")
    (100, 95)
    """
    return round(_token_set_ratio(_prepared(first), _prepared(second)))


@functools.lru_cache(maxsize=65_536)
def _prepared(text: str) -> str:
    return default_process(text.translate(_LATIN_1))
