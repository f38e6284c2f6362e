"""Word problems in four levels, by the number and kind of steps they need.

A story is a function from a random generator to its text and its steps. A step is a calculator expression; the value of
the last one is the answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable

# The order of draws in a story is part of its tasks: another order makes other problems for the same seed.
Story = tuple[str, list[str]]

NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Iris", "Jonas", "Kira", "Leo")
THINGS = ("apples", "books", "coins", "marbles", "pencils", "shells", "stamps", "tickets")
GOODS = ("cups", "lamps", "pens", "plants", "shirts", "toys")


def _two_names(rng: random.Random) -> tuple[str, str]:
    first, second = rng.sample(NAMES, 2)
    return first, second


def gets_more(rng: random.Random) -> Story:
    name = rng.choice(NAMES)
    item = rng.choice(THINGS)
    a = rng.randint(2, 20)
    b = rng.randint(2, 20)
    return f"{name} has {a} {item} and gets {b} more. How many {item} does {name} have now?", [f"{a} + {b}"]


def gives_away(rng: random.Random) -> Story:
    name = rng.choice(NAMES)
    item = rng.choice(THINGS)
    a = rng.randint(5, 30)
    b = rng.randint(2, a - 2)
    return f"{name} has {a} {item} and gives {b} away. How many {item} does {name} have left?", [f"{a} - {b}"]


def together(rng: random.Random) -> Story:
    first, second = _two_names(rng)
    item = rng.choice(THINGS)
    a = rng.randint(2, 20)
    b = rng.randint(2, 20)
    return f"{first} has {a} {item}. {second} has {b} {item}. How many {item} do they have together?", [f"{a} + {b}"]


def boxes(rng: random.Random) -> Story:
    item = rng.choice(THINGS)
    a = rng.randint(2, 9)
    b = rng.randint(2, 12)
    c = rng.randint(2, 20)
    text = f"There are {a} boxes with {b} {item} in each, and {c} {item} on the table. How many {item} are there?"
    return text, [f"{a} * {b}", f"{a * b} + {c}"]


def spends(rng: random.Random) -> Story:
    name = rng.choice(NAMES)
    goods = rng.choice(GOODS)
    price = rng.randint(2, 12)
    count = rng.randint(2, 9)
    money = price * count + rng.randint(1, 40)
    text = f"{name} has {money} dollars and buys {count} {goods} for {price} dollars each. How many dollars are left?"
    return text, [f"{count} * {price}", f"{money} - {price * count}"]


def shares(rng: random.Random) -> Story:
    first, second = _two_names(rng)
    item = rng.choice(THINGS)
    per_child = rng.randint(3, 12)
    children = rng.randint(2, 9)
    total = per_child * children
    a = rng.randint(2, total - 2)
    text = (
        f"{first} has {a} {item} and {second} has {total - a}. "
        f"They share all of them equally among {children} children. How many {item} does each child get?"
    )
    return text, [f"{a} + {total - a}", f"{total} / {children}"]


def work_days(rng: random.Random) -> Story:
    name = rng.choice(NAMES)
    wage = rng.randint(8, 25)
    hours = rng.randint(2, 9)
    days = rng.randint(2, 6)
    costs = rng.randint(5, wage * hours * days - 1)
    text = (
        f"{name} works {hours} hours a day for {days} days and earns {wage} dollars an hour. "
        f"Then {name} pays {costs} dollars for rent. How many dollars are left?"
    )
    total = hours * days
    return text, [f"{hours} * {days}", f"{total} * {wage}", f"{total * wage} - {costs}"]


def ages(rng: random.Random) -> Story:
    first, second = _two_names(rng)
    age = rng.randint(3, 15)
    factor = rng.randint(2, 4)
    years = rng.randint(2, 12)
    text = (
        f"{first} is {age} years old. {second} is {factor} times as old. "
        f"How old will they be together in {years} years, when both ages are added?"
    )
    older = age * factor
    return text, [f"{age} * {factor}", f"{age} + {older}", f"{age + older} + 2 * {years}"]


def two_prices(rng: random.Random) -> Story:
    name = rng.choice(NAMES)
    first, second = rng.sample(GOODS, 2)
    a = rng.randint(2, 9)
    p = rng.randint(2, 15)
    b = rng.randint(2, 9)
    q = rng.randint(2, 15)
    text = f"{name} buys {a} {first} for {p} dollars each and {b} {second} for {q} dollars each. What is the total?"
    return text, [f"{a} * {p}", f"{b} * {q}", f"{a * p} + {b * q}"]


def percent_off(rng: random.Random) -> Story:
    goods = rng.choice(GOODS)
    percent = rng.choice((5, 10, 15, 20, 25, 30, 40))
    count = rng.randint(2, 9)
    price = 20 * rng.randint(1, 12)
    total = count * price
    text = (
        f"A shop sells {goods} for {price} dollars each and takes {percent} percent off the total. "
        f"How many dollars do {count} of them cost?"
    )
    off = total * percent // 100  # exact: the price is a multiple of 20 and the percentage one of 5
    return text, [f"{count} * {price}", f"{total} * {percent} / 100", f"{total} - {off}"]


def travel(rng: random.Random) -> Story:
    a = rng.randint(1, 6)
    s = rng.randint(20, 90)
    b = rng.randint(1, 6)
    t = rng.randint(20, 90)
    text = (
        f"A train goes {s} km an hour for {a} hours and then {t} km an hour for {b} hours. "
        "What is its average speed in km an hour, as an integer or a fraction?"
    )
    way = a * s + b * t
    hours = a + b
    return text, [f"{a} * {s}", f"{b} * {t}", f"{a * s} + {b * t}", f"{a} + {b}", f"{way} / {hours}"]


def mixture(rng: random.Random) -> Story:
    first, second = _two_names(rng)
    item = rng.choice(THINGS)
    first_part = rng.randint(2, 6)
    second_part = rng.randint(7, 11)
    unit = rng.randint(3, 12)
    gift = rng.randint(2, 9)
    total = unit * (first_part + second_part)
    text = (
        f"{first} and {second} share {total} {item} in the ratio {first_part} to {second_part}. "
        f"Then {second} gives {first} {gift} of them. How many {item} does {first} have now?"
    )
    share = unit * first_part
    return text, [
        f"{first_part} + {second_part}",
        f"{total} / {first_part + second_part}",
        f"{unit} * {first_part}",
        f"{share} + {gift}",
    ]


STORIES: dict[int, tuple[Callable[[random.Random], Story], ...]] = {
    1: (gets_more, gives_away, together),
    2: (boxes, spends, shares),
    3: (work_days, ages, two_prices),
    4: (percent_off, travel, mixture),
}
