"""Experts that buy the goal's product with its options.

:func:`next_action` gets the goal's product. It searches with words of the instruction, in their order, turns pages
until the product is shown, chooses its options, and buys. If those words do not find the product, it searches with the
product's own words. If several titles fit, an agent cannot infer which result this expert opens.

:func:`browse` gets only the instruction. It opens one result after another and buys the first that offers all options
within the budget.

An imperfect expert buys the first product that it opens, without choosing options.
"""

from __future__ import annotations

import re
from collections.abc import Set

from gagpo.envs.webshop.goals import Goal
from gagpo.envs.webshop.pages import BUY, DONE, ITEM, NEXT, PART, PREVIOUS, RESULTS, PageState, Shop, regular_query
from gagpo.envs.webshop.reward import colour_of, is_fuzzy_match, same_words
from gagpo.envs.webshop.search import STOP_WORDS, searched_text

MAX_QUERY_WORDS = 8  # words of the first query
_FILLERS = """
    i am im i'm i'd id i've ive hey me my sister we our you your want wants need needs needed would like love
    prefer please find get
    buy buying purchase shopping shop looking look search searching seeking see show help some something one any
    which who where when what should must can could do does have has had made make makes also and or very really
    about from in so too than more less other good nice great new it's its them those these
"""
_IGNORED_WORDS = frozenset(_FILLERS.split()) | STOP_WORDS
_WORD = re.compile(r"[^\W_]+(?:['’.\-][^\W_]+)*")


def queries(shop: Shop, goal: Goal) -> list[str]:
    """The expert's searches, in order, until the product is among the results."""
    product = shop.store.product(shop.store.number(goal.asin))
    tokens = [w for w in _WORD.findall(goal.request.lower()) if w not in _IGNORED_WORDS]
    plans = [" ".join(list(dict.fromkeys(tokens))[:MAX_QUERY_WORDS]), product.title, searched_text(product)]
    # Brackets would end an action early; the search treats them as spaces anyway.
    plain = (regular_query(plan.replace("[", " ").replace("]", " ")) for plan in plans)
    return list(dict.fromkeys(query for query in plain if query))


def next_action(shop: Shop, state: PageState, imperfect: bool = False) -> str | None:
    """The expert's action in ``state``; None after the purchase, or if no search finds the product."""
    goal = shop.goal(state.task)
    number = shop.store.number(goal.asin)
    if state.kind == DONE:
        return None
    if state.kind == PART:
        return _click(PREVIOUS)
    if state.kind == ITEM:
        if state.product != number:
            return _click(PREVIOUS)
        return _click(BUY) if imperfect else _at_item(shop, state, goal)
    if state.kind == RESULTS:
        products = shop.results(state)
        if number in products:
            page = 1 + products.index(number) // shop.results_per_page
            if page == state.page:
                return _click(goal.asin)
            if not shop.is_drawn(state):  # the next page of random products has others
                return _click(NEXT if state.page < page else PREVIOUS)
    plan = queries(shop, goal)
    next_queries = plan[plan.index(state.query) + 1 :] if state.query in plan else plan
    return f"search[{next_queries[0]}]" if next_queries else None


def browse(shop: Shop, state: PageState, opened_products: Set[int], imperfect: bool = False) -> str | None:
    """The action of an expert that has opened ``opened_products``; None after the purchase or the last result."""
    goal = shop.goal(state.task)
    if state.kind == DONE:
        return None
    if state.kind == PART:
        return _click(PREVIOUS)
    if state.kind == ITEM:
        if imperfect:
            return _click(BUY)
        if fits(shop, state, goal):
            return _at_item(shop, state, goal)
        return _click(PREVIOUS)
    if state.kind == RESULTS:
        products = shop.results(state)
        page_products = products[(state.page - 1) * shop.results_per_page : state.page * shop.results_per_page]
        unopened = [number for number in page_products if number not in opened_products]
        if unopened:
            return _click(shop.store.product(unopened[0]).asin)
        if len(products) > state.page * shop.results_per_page:
            return _click(NEXT)
        return None
    plan = queries(shop, goal)
    return f"search[{plan[0]}]" if plan else None


def fits(shop: Shop, state: PageState, goal: Goal) -> bool:
    """Whether the product on the page has all options of the instruction, within the budget."""
    within = shop.store.price(state.product) <= goal.budget
    return within and len(options_to_choose(shop, state, goal)) == len(goal.options)


def _at_item(shop: Shop, state: PageState, goal: Goal) -> str:
    page = shop.page(state)
    chosen_options = dict(state.options)
    for name, value in options_to_choose(shop, state, goal):
        number = page.clickables.get(value)
        is_offered = number is not None and page.elements[number].group == name and shop.can_say(value)
        if is_offered and chosen_options.get(name) != value:
            return _click(value)
    return _click(BUY)


def options_to_choose(shop: Shop, state: PageState, goal: Goal) -> list[tuple[str, str]]:
    """For each option of the goal, the product's (name, value) that matches it best."""
    options = shop.store.product(state.product).options
    choices = []
    for name, value in goal.options:
        # The same value, else an equal one under any name, else one of the same colour.
        if value in options.get(name, ()):
            choices.append((name, value))
            continue
        everything = [(option_name, option_value) for option_name, values in options.items() for option_value in values]
        equal = [choice for choice in everything if same_words(choice[1], value)]
        close = [choice for choice in everything if is_fuzzy_match(colour_of(choice[1]), colour_of(value))]
        choices += (equal or close)[:1]
    return choices


def _click(label: str) -> str:
    return f"click[{label.lower()}]"
