"""The expert that knows only the instruction: it opens results in order and buys the first that fits."""

import gymnasium
import pytest

import gagpo.envs  # noqa: F401 (registers the environments)
from gagpo.base.errors import InvalidArgument
from gagpo.envs.webshop.pages import ITEM, RESULTS
from tests.rejections import rejects

pytestmark = pytest.mark.usefixtures("shop_data")

CROWDED = {"products": 8000, "max_turns": 15, "split": "validation"}  # where many results look alike


def make(**options):
    return gymnasium.make("gagpo/WebShop-v0", **{**CROWDED, **options}).unwrapped


def episode(env, task):
    """The products that the expert opens in an episode, in order, all that it found, and the end."""
    _, info = env.reset(options={"task": task})
    opened, results, over = [], [], False
    while not over and info["expert_action"]:
        before = env.state
        *_, terminated, truncated, info = env.step(info["expert_action"])
        over = terminated or truncated
        if (before.kind, env.state.kind) == (RESULTS, ITEM):
            opened.append(env.state.product)
            results = env.store.index.search(before.query)
    return opened, results, info


def test_it_buys_a_fitting_product_without_knowing_the_goal():
    env = make(expert_mode="browsing", expert=True)
    ends = [episode(env, task) for task in env.tasks("validation").ids[:30]]
    assert sum(bool(info["success"]) for *_, info in ends) >= 28
    assert any(len(opened) > 2 for opened, *_ in ends)  # it did have to go back


def test_it_opens_the_results_one_after_the_other():
    env = make(expert_mode="browsing", expert=True)
    for task in env.tasks("validation").ids[:40]:
        opened, results, _ = episode(env, task)
        assert opened == list(results[: len(opened)])


def test_the_knowing_expert_opens_only_the_goal_product():
    knowing, browsing = make(expert=True), make(expert_mode="browsing", expert=True)
    counts = [
        (len(episode(knowing, task)[0]), len(episode(browsing, task)[0]))
        for task in knowing.tasks("validation").ids[:40]
    ]
    assert all(item == 1 for item, _ in counts) and any(other > 1 for _, other in counts)


def test_an_imperfect_one_takes_the_first():
    env = make(expert_mode="browsing", expert="imperfect")
    opened, _, info = episode(env, env.tasks("validation").ids[0])
    assert len(opened) == 1 and info["bought"]


def test_the_shopper_is_immaterial():
    assert type(make()).material({}) == type(make()).material({"expert_mode": "browsing"})
    with rejects(InvalidArgument, "oracle", "browsing", "got 'odd'", key="expert_mode"):
        make(expert_mode="odd")
