"""A plain implementation of WebShop's published reward, with dictionaries for products and goals, and thefuzz.

Source: the rule in princeton-nlp/WebShop, ``web_agent_site/engine/goal.py`` and ``normalize.py``. Nothing of this
project is imported. A product is ``{query, product_category, nouns, Attributes, Title, BulletPoints, Description}``
(``nouns``: of the title, in order), a goal ``{query, product_category, nouns, attributes, goal_options, price_upper}``,
``goal_options`` a dict (synthetic goals) or a list of values (human ones).
"""

from thefuzz import fuzz

_COLOURS = (
    "alabaster,apricot,aqua,ash,asphalt,azure,banana,beige,black,blue,blush,bordeaux,bronze,brown,burgundy,camel,camo,"
    "caramel,champagne,charcoal,cheetah,chestnut,chocolate,christmas,coffee,cognac,copper,coral,cranberry,cream,crystal,"
    "dark,denim,eggplant,elephant,espresso,fuchsia,gold,granite,grape,graphite,grass,gray,green,grey,heather,indigo,"
    "ivory,ivy,khaki,lavender,lemon,leopard,light,lilac,lime,magenta,maroon,mauve,merlot,midnight,mint,mocha,multicolor,"
    "mushroom,mustard,natural,navy,nude,olive,orange,peach,pewter,pink,plum,purple,rainbow,red,rose,royal,rust,sand,"
    "sapphire,seashell,silver,skull,slate,steel,stone,stonewash,sunflower,tan,taupe,teal,tiger,turquoise,violet,walnut,"
    "wheat,white,wine,yellow"
)
COLOUR_ORDER = _COLOURS.split(",")


def first_colour(value):
    """The first colour that is ``in`` the value: a substring of a text, an element of a pair."""
    for colour in COLOUR_ORDER:
        if colour in value:
            return colour
    return value


def option_points(chosen, goal_options):
    """The number of goal options that a chosen value resembles. A dict gives (name, value) pairs, compared as pairs."""
    requests = goal_options.items() if isinstance(goal_options, dict) else goal_options
    actual = [first_colour(value) for value in chosen.values()]
    points = 0
    for request in requests:
        request = first_colour(request)
        # thefuzz converts a pair to text, with parentheses, quotes and comma.
        points += any(fuzz.token_set_ratio(value, request) > 85 for value in actual)
    return points


def attribute_points(product, attributes):
    points = 0
    for attribute in attributes:
        alike = any(fuzz.token_set_ratio(Attribute, attribute) > 85 for Attribute in product["Attributes"])
        texts = (product["Title"], " ".join(product["BulletPoints"]), product["Description"])
        points += alike or any(attribute in text.lower() for text in texts)
    return points


def type_factor(bought, goal):
    path = {segment.strip() for segment in bought["product_category"].split("›")}
    wanted_path = {segment.strip() for segment in goal["product_category"].split("›")}
    expected = goal["nouns"]
    title = len(set(bought["nouns"]) & set(expected)) / len(expected) if expected else 0.2
    agrees = bought["query"] == goal["query"] or len(path & wanted_path) >= 2 or title > 0.2
    if title == 0.0:
        return 0.0
    if title < 0.1:
        return 0.1
    return 1.0 if agrees else 0.5


def reward(bought, goal, price, chosen):
    points = attribute_points(bought, goal["attributes"]) + option_points(chosen, goal["goal_options"])
    points += price <= goal["price_upper"]
    return points / (len(goal["attributes"]) + len(goal["goal_options"]) + 1) * type_factor(bought, goal)
