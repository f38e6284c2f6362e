"""Goals by the published recipe, with per-product random numbers and fixed splits.

The published environment draws prices and budgets from the process's global random numbers before it shuffles, so two
processes disagree about instructions and splits. Here every product has its own generator, seeded by the catalogue's
seed and the asin. The list of goals is made once, stored, and identified by its content.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from gagpo.envs.webshop.catalogue import MISSING_PRICE, Instruction, Product, tidy_option
from gagpo.envs.webshop.texts import MAX_NAME_LENGTH, MAX_OPTION_LENGTH, tidy, tidy_all

KINDS = ("synthetic", "human")
SHUFFLE_SEED = 233
TEST_SIZE = 500
VALIDATION_SIZE = 1_000
OFFICIAL_FROM = 3_000  # goals; with fewer, the official sizes would leave little for training
BUDGETS = tuple(10.0 * n for n in range(1, 100))
NO_BUDGET = 1_000_000.0
MAX_COMBINATIONS = 1_000
MAX_GOALS = 50_000  # per kind and catalogue, because every worker keeps the list of task ids in memory


@dataclass(frozen=True)
class Goal:
    """One thing to buy.

    id: ``<asin>-s<n>`` for the n-th option combination of a synthetic instruction, ``<asin>-h<n>`` for the n-th human
        instruction.
    request: the instruction without options and budget.
    options: (name, value) pairs; the name is '' if not given.
    budget: in dollars; ``price_upper`` of the published environment.
    """

    id: str
    asin: str
    instruction: str
    request: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = ()
    budget: float = NO_BUDGET
    type: str = ""
    digest: str = field(default="", compare=False)

    def tidy(self) -> Goal:
        """This goal with its texts cleaned and cut, as the product's are."""
        request = tidy(self.request, MAX_NAME_LENGTH)
        options = tuple((tidy(name, MAX_OPTION_LENGTH), tidy_option(value)) for name, value in self.options)
        instruction = self.instruction
        if (request, options) != (self.request, self.options):
            # Human instructions state the options in their own words.
            if self.instruction == instruction_text(self.request, self.options, self.budget):
                options_in_text = options
            else:
                options_in_text = ()
            instruction = instruction_text(request, options_in_text, self.budget)
        return replace(
            self,
            instruction=instruction,
            request=request,
            options=options,
            attributes=tidy_all(self.attributes, MAX_NAME_LENGTH),
            type=tidy(self.type, MAX_NAME_LENGTH),
        )


def instruction_text(request: str, options: Iterable[tuple[str, str]], budget: float) -> str:
    """A request followed by its options and its budget."""
    options_text = ", and ".join(f"{name}: {value}" for name, value in options)
    if budget == NO_BUDGET:
        limit = ""
    else:
        limit = f", and price lower than {budget:.2f} dollars"
    return f"{request}{' with ' + options_text if options_text else ''}{limit}"


def price_of(product: Product, rng: random.Random) -> float:
    """The price that counts: uniform in a range, 100 dollars when missing."""
    if not product.prices:
        return MISSING_PRICE
    if len(product.prices) == 1:
        return product.prices[0]
    return rng.uniform(*product.prices)


def product_rng(asin: str, seed: int) -> random.Random:
    """The product's own random numbers: the same in every process, and independent of the other products."""
    return random.Random(f"webshop:{seed}:{asin}")


def budget_for(price: float, rng: random.Random) -> tuple[float, str]:
    """The larger of two of the next four multiples of ten above ``price``, and its text in the instruction.

    From 980 dollars on, fewer than two multiples below 1,000 remain: there is no budget and no text.
    """
    larger_budgets = [budget for budget in BUDGETS if budget > price][:4]
    if len(larger_budgets) < 2:
        return NO_BUDGET, ""
    budget = max(rng.sample(larger_budgets, 2))
    return budget, instruction_text("", (), budget)


def synthetic_goals(
    product: Product, instruction: Instruction, price: float, rng: random.Random, counts: Counter[str] | None = None
) -> Iterator[Goal]:
    """One goal for each combination of the product's option values (names sorted), all with the same budget.

    An option without values leaves no combination, so there is no goal. Of more than a thousand combinations, a
    thousand are drawn, and the product is counted in ``counts`` under ``products_with_too_many_options``.
    """
    budget, _ = budget_for(price, rng)
    names = sorted(product.options)
    for n, values in _combinations([product.options[name] for name in names], rng, counts):
        options = tuple(zip(names, values, strict=True))
        yield Goal(
            id=f"{product.asin}-s{n}",
            asin=product.asin,
            instruction=instruction_text(instruction.text, options, budget),
            request=instruction.text,
            attributes=instruction.attributes,
            options=options,
            budget=budget,
            type=product.category,
        )


def _combinations(
    values: list[tuple[str, ...]], rng: random.Random, counts: Counter[str] | None
) -> Iterator[tuple[int, tuple[str, ...]]]:
    number = math.prod(map(len, values))
    if number <= MAX_COMBINATIONS:
        yield from enumerate(itertools.product(*values))
        return
    if counts is not None:
        counts["products_with_too_many_options"] += 1
    numbers: set[int] = set()
    while len(numbers) < MAX_COMBINATIONS:
        numbers.add(rng.randrange(number))
    for n in sorted(numbers):
        # n in the mixed radix of the numbers of choices: the n-th combination of itertools.product.
        quotient = n
        combination = []
        for choices in reversed(values):
            quotient, i = divmod(quotient, len(choices))
            combination.append(choices[i])
        yield n, tuple(reversed(combination))


def human_goals(
    product: Product, instructions: Iterable[Instruction], price: float, rng: random.Random
) -> Iterator[Goal]:
    """One goal for each human instruction that names attributes, each with its own budget."""
    for n, instruction in enumerate(instructions):
        if not instruction.attributes:  # cannot be scored
            continue
        budget, budget_text = budget_for(price, rng)
        request = instruction.text.strip(".")
        yield Goal(
            id=f"{product.asin}-h{n}",
            asin=product.asin,
            instruction=f"{request}{budget_text}",
            request=request,
            attributes=instruction.attributes,
            options=instruction.options,
            budget=budget,
            type=product.category,
        )


def digest_of(goal: Goal, catalogue: str) -> str:
    """The SHA-256 (16 hex digits) of the goal's content and its catalogue."""
    content = [catalogue, goal.asin, goal.instruction, goal.attributes, goal.options, goal.budget]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def solvable_goals(goals: Iterable[Goal], unsolvable_ids: set[str], counts: Counter[str]) -> list[Goal]:
    """The ``goals``, cleaned, that can be solved.

    Leaves out goals with an id in ``unsolvable_ids``, goals with an option that has no label to click or without
    attributes, and goals with the same words as another.
    """
    solvable = []
    for goal in map(Goal.tidy, goals):
        if not all(value for _, value in goal.options) or not goal.attributes:
            counts["goals_that_name_nothing"] += 1
        elif goal.id in unsolvable_ids:
            counts["goals_out_of_reach"] += 1
        else:
            solvable.append(goal)
    return unique_goals(solvable, counts)


def unique_goals(goals: Iterable[Goal], counts: Counter[str]) -> list[Goal]:
    """The first goal of each instruction: the same words must not be in two splits."""
    goal_by_text: dict[str, Goal] = {}
    for goal in goals:
        if goal_by_text.setdefault(" ".join(goal.instruction.lower().split()), goal) is not goal:
            counts["goals_asked_twice"] += 1
    return list(goal_by_text.values())


def split_goals(goals: list[Goal]) -> dict[str, list[Goal]]:
    """``goals`` shuffled and split: test 0-499, validation 500-1499, train from 1500.

    Below 3,000 goals, a sixth is for test, a third for validation and half for training.
    """
    goals = list(goals)
    random.Random(SHUFFLE_SEED).shuffle(goals)
    if len(goals) >= OFFICIAL_FROM:
        test = TEST_SIZE
        end = TEST_SIZE + VALIDATION_SIZE
    else:
        test = len(goals) // 6
        end = test + len(goals) // 3
    return {"test": goals[:test], "validation": goals[test:end], "train": goals[end:]}
