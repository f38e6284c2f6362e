"""``exact`` is the published environment; without it pages differ where the published ones mislead."""

import pytest

from gagpo.envs.webshop.env import WebShopEnv
from tests.envs.webshop.shelf import options, row, write_files
from tests.rejections import rejects

pytestmark = pytest.mark.usefixtures("shop_data")


def test_exact_is_the_published_environment_and_nothing_else():
    with rejects(ValueError, "results_per_page=10", "got 3", key="results_per_page"):
        WebShopEnv(exact=True, results_per_page=3)


def test_exact_marks_products_seen_before(tmp_path):
    """By default, a page depends only on its address."""
    data = write_files(tmp_path, [row("B1"), row("B2", "blue shirt")])
    for exact, mark in ((True, "clicked button"), (False, "button")):
        env = WebShopEnv(data=data, exact=exact, observation="text_rich")
        env.reset(seed=0)
        *_, first = env.step("search[shirt]")
        env.step("click[b2]")
        observation, *_, info = env.step("click[< prev]")
        assert f"\n[{mark}] B2 [{mark}_]" in observation and "\n[button] B1 [button_]" in observation
        assert (info["state"] != first["state"]) is exact
        env.step("click[back to search]")
        assert "[clicked" not in env.step("search[shirt]")[0]


def test_only_chosen_options_are_marked_as_clicked(tmp_path):
    """The published marks miss quotes and non-ASCII letters, and mark equal values of other options."""
    choices = options(a=['24" x 36"', "same"], b=["café", "same"])
    data = write_files(tmp_path, [row("B1", customization_options=choices)])
    observed = {}
    for exact in (True, False):
        env = WebShopEnv(data=data, exact=exact, observation="text_rich")
        env.reset(seed=0)
        for action in ("search[shirt]", "click[b1]", 'click[24" x 36"]', "click[café]"):
            observation = env.step(action)[0]
        marks = [observation.count("[clicked button]")]
        marks.append(env.step("click[same]")[0].count("[clicked button] same"))
        observed[exact] = marks
    assert observed == {False: [2, 1], True: [0, 2]}


def test_the_last_page_is_short_unless_exact(tmp_path):
    data = write_files(tmp_path, [row("B1", customization_options=options(b=["x'y"], a=["1"]))])
    ends = {}
    for exact in (True, False):
        env = WebShopEnv(data=data, exact=exact)
        env.reset(seed=0)
        for action in ("search[shirt]", "click[b1]", "click[x'y]", "click[1]", "click[buy now]"):
            ends[exact] = env.step(action)[0]
    assert ends[False] == "Thank you for shopping with us! [SEP] Your score (min 0.0, max 1.0) [SEP] 1.0"
    assert 'Purchased [SEP] asin [SEP] B1 [SEP] options [SEP] {"a": "1", "b": "x\\u0027y"} [SEP] attrs' in ends[True]


def test_labels_with_brackets_are_offered_and_can_be_clicked_unless_exact(tmp_path):
    """The published environment offers labels with brackets, but a click on them does nothing."""
    data = write_files(tmp_path, [row("B1", customization_options=options(size=["x [l]", "s"]))])
    for exact in (True, False):
        env = WebShopEnv(data=data, exact=exact, observation="text_rich")
        env.reset(seed=0)
        env.step("search[shirt]")
        observation, *_, info = env.step("click[b1]")
        assert {"click[x [l]]", "click[s]"} <= set(info["admissible_actions"])
        after, *_, reported = env.step("click[x [l]]")
        assert (reported["valid"], reported["state"] == info["state"], after == observation) == (True, exact, exact)
        assert env.step("click[x [m]]")[-1]["valid"] is False


def test_the_expert_avoids_labels_that_an_exact_shop_cannot_parse(tmp_path):
    choices = options(size=["x [l]", "s"])
    data = write_files(tmp_path, [row("B1", customization_options=choices)])
    env = WebShopEnv(data=data, exact=True, expert=True)
    for split in env.splits:
        for task in env.tasks(split):
            _, info = env.reset(seed=0, options={"task": task.id})
            turns = 0
            while info["expert_action"] is not None:
                assert "[l]" not in info["expert_action"]
                *_, info = env.step(info["expert_action"])
                turns += 1
            assert turns <= 4


def test_exact_searches_with_the_lengths_that_lucene_keeps(tmp_path):
    """The default uses exact lengths, because the suite's models were trained on them."""
    tokens = " ".join(f"word{n}" for n in range(50))
    rows = [row("B1", full_description=f"{tokens} more"), row("B2", "blue cotton shirt", full_description=tokens)]
    data = write_files(tmp_path, rows)
    first = {}
    for exact in (False, True):
        env = WebShopEnv(data=data, exact=exact)
        env.reset(seed=0)
        text = env.step("search[shirt]")[0]
        first[exact] = text.index("B1") < text.index("B2")
    assert first == {
        False: False,
        True: True,
    }  # 55 and 54 words; Lucene stores 54 for both, and equal scores are in catalogue order


def test_long_and_unseen_texts_are_whole_in_exact_only(tmp_path):
    name = "shirt \u202e" + "x" * 2_000
    data = write_files(tmp_path, [row("B1", name)])
    for exact, output in ((True, name), (False, name.replace("\u202e", "")[:1_000])):
        env = WebShopEnv(data=data, exact=exact)
        env.reset(seed=0)
        assert f" [SEP] {output} [SEP] $10.0" in env.step("search[shirt]")[0]
