import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.envs.webshop.catalogue import Instruction, Product
from gagpo.envs.webshop.goals import (
    MAX_COMBINATIONS,
    NO_BUDGET,
    Goal,
    budget_for,
    digest_of,
    human_goals,
    price_of,
    product_rng,
    split_goals,
    synthetic_goals,
    unique_goals,
)
from tests.envs.webshop.shelf import build, generated_store, options, row, run_script


@settings(deadline=None)
@given(st.floats(0, 2_000), st.integers(0, 10_000))
def test_the_budget_is_one_of_the_later_three_of_the_next_four_tens(price, seed):
    budget, messages = budget_for(price, random.Random(seed))
    if price >= 980:
        assert (budget, messages) == (NO_BUDGET, "")
    else:
        assert budget % 10 == 0
        assert price + 10 < budget <= price + 40
        assert messages == f", and price lower than {budget:.2f} dollars"


def test_all_three_budgets_occur_with_the_odds_of_the_larger_of_two():
    counter = Counter(budget_for(15.0, random.Random(seed))[0] for seed in range(6_000))
    # Of the six pairs from 20, 30, 40, 50 one has 30 as the larger, two have 40, three have 50.
    assert {budget: round(6 * n / 6_000, 1) for budget, n in counter.items()} == pytest.approx(
        {30.0: 1, 40.0: 2, 50.0: 3}, abs=0.2
    )


def test_prices_that_count():
    rng = random.Random(0)
    assert price_of(Product("B1", "x"), rng) == 100.0
    assert price_of(Product("B1", "x", prices=(7.5,)), rng) == 7.5
    ranged = [price_of(Product("B1", "x", prices=(10.0, 20.0)), rng) for _ in range(200)]
    assert 10.0 <= min(ranged) < 11 and 19 < max(ranged) <= 20.0


def test_a_synthetic_instruction_becomes_one_goal_for_each_combination():
    product = Product("B1", "x", options={"size": ("s", "m"), "color": ("red", "blue")}, category="fashion")
    goals = list(synthetic_goals(product, Instruction("find a shirt", ("soft",)), 15.0, random.Random(1)))
    assert [goal.options for goal in goals] == [
        (("color", c), ("size", s)) for c, s in itertools.product(("red", "blue"), ("s", "m"))
    ]
    assert len({goal.budget for goal in goals}) == 1
    price = f", and price lower than {goals[0].budget:.2f} dollars"
    assert goals[1].instruction == f"find a shirt with color: red, and size: m{price}"
    assert [goal.id for goal in goals] == ["B1-s0", "B1-s1", "B1-s2", "B1-s3"]
    assert (goals[0].request, goals[0].type, goals[0].attributes) == ("find a shirt", "fashion", ("soft",))


def test_a_product_without_options_yields_one_goal_without_a_word_of_options():
    (goal,) = synthetic_goals(Product("B1", "x"), Instruction("find it", ("soft",)), 985.0, random.Random(1))
    assert (goal.instruction, goal.options, goal.budget) == ("find it", (), NO_BUDGET)


def test_too_many_combinations_are_sampled_not_enumerated():
    product = Product("B1", "x", options={f"name {n}": tuple(f"value {i}" for i in range(50)) for n in range(8)})
    counts = Counter()
    goals = list(synthetic_goals(product, Instruction("find", ("soft",)), 1.0, product_rng("B1", 0), counts))
    assert len(goals) == len({goal.options for goal in goals}) == MAX_COMBINATIONS
    assert counts == {"products_with_too_many_options": 1}
    again = synthetic_goals(product, Instruction("find", ("soft",)), 1.0, product_rng("B1", 0))
    assert [goal.id for goal in again] == [goal.id for goal in goals]


def test_human_instructions_lose_their_full_stop_and_need_attributes():
    first, remaining = Instruction("Find it.", ("soft",), (("", "red"),)), [("No attributes", ()), ("b", ("x",))]
    instructions = [first, *(Instruction(text, attributes) for text, attributes in remaining)]
    goals = list(human_goals(Product("B1", "x"), instructions, 990.0, random.Random(0)))
    assert [(goal.id, goal.instruction) for goal in goals] == [("B1-h0", "Find it"), ("B1-h2", "b")]
    assert goals[0].options == (("", "red"),)


def numbered(n):
    return [Goal(f"B{i}-s0", f"B{i}", f"find {i}", f"find {i}", ("soft",)) for i in range(n)]


@pytest.mark.parametrize(
    ("n", "test", "validation", "train"),
    [(10_000, 500, 1_000, 8_500), (3_000, 500, 1_000, 1_500), (2_999, 499, 999, 1_501), (60, 10, 20, 30), (2, 0, 0, 2)],
)
def test_splits_are_official_from_3000_goals_on_and_proportional_below(n, test, validation, train):
    splits = split_goals(numbered(n))
    assert [len(splits[name]) for name in ("test", "validation", "train")] == [test, validation, train]
    assert {goal.id for goals in splits.values() for goal in goals} == {goal.id for goal in numbered(n)}


def test_a_goal_asked_twice_is_kept_once():
    counts = Counter()
    goals = [*numbered(3), Goal("B9-s0", "B9", "Find  1", "Find 1", ("soft",))]
    assert unique_goals(goals, counts) == numbered(3)
    assert counts == {"goals_asked_twice": 1}


@pytest.mark.parametrize("kind", ["synthetic", "human"])
def test_no_two_splits_of_a_catalogue_share_a_goal(kind):
    store = generated_store()
    ids, tokens = [], []
    for split in ("train", "validation", "test"):
        ids += store.tasks(kind, split).ids
        tokens += [" ".join(store.goal(task).instruction.lower().split()) for task in store.tasks(kind, split).ids]
    assert len(ids) == store.manifest["goals"][kind] > 1_000
    assert len(set(ids)) == len(ids)
    assert len(set(tokens)) == len(tokens)


def test_goals_do_not_depend_on_the_other_products(tmp_path):
    rows = [row(f"B{i}", f"shirt number {i}", pricing="$10.00 - $90.00") for i in range(20)]
    all_of_them, some = build(tmp_path / "all", rows), build(tmp_path / "some", rows[10:])
    assert all_of_them.goal("B15-s0").instruction == some.goal("B15-s0").instruction
    assert all_of_them.price(15) == some.price(5)


def test_every_process_has_the_same_goals(tmp_path):
    sizes = options(size=["s", "m"])
    rows = [row(f"B{i}", f"shirt {i}", pricing="$10 - $90", customization_options=sizes) for i in range(9)]
    store = build(tmp_path, rows)
    script = (
        "import sys, random; random.seed(int(sys.argv[1])); from pathlib import Path\n"
        "from gagpo.envs.webshop.store import store_for, Store; from gagpo.envs.webshop.catalogue import find_sources\n"
        "from gagpo.envs.webshop.tagger import RuleTagger\n"
        "store = Store(store_for(find_sources(Path(sys.argv[2])), Path(sys.argv[3]), tagger=RuleTagger()))\n"
        "print(*(store.tasks('synthetic', split).hash for split in ('train', 'validation', 'test')))"
    )
    expected = [store.tasks("synthetic", split).hash for split in ("train", "validation", "test")]
    assert run_script(script, 1, tmp_path / "data", tmp_path / "again").split() == expected


def test_digests_differ_between_goals_and_catalogues():
    first, second = numbered(2)
    assert digest_of(first, "a") == digest_of(first, "a") != digest_of(second, "a")
    assert digest_of(first, "a") != digest_of(first, "b")
