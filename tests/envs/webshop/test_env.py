import gc
import json
import random

import gymnasium
import psutil
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import gagpo.envs  # noqa: F401 (registers the environments)
from gagpo.envs.tasks import UnknownTask
from gagpo.envs.webshop.env import WebShopEnv, parse_action
from gagpo.envs.webshop.rows import CatalogueError
from tests.envs.webshop.shelf import options, row, run_script, write_files
from tests.rejections import rejects

pytestmark = pytest.mark.usefixtures("shop_data")


def make(**options):
    return gymnasium.make("gagpo/WebShop-v0", **options).unwrapped


def expert_episode(env, task):
    _, info = env.reset(options={"task": task})
    actions, observations = [], []
    while True:
        actions.append(info["expert_action"])
        observation, reward, terminated, truncated, info = env.step(actions[-1])
        observations.append(observation)
        if terminated or truncated:
            return actions, observations, reward, info


def test_gymnasium_accepts_it():
    check_env(make(), skip_render_check=True)


@pytest.mark.parametrize("goals", ["synthetic", "human"])
def test_the_expert_buys_the_goal_product_with_its_options(goals):
    env = make(expert=True, goals=goals)
    for split in env.splits:
        for task in random.Random(0).sample(env.tasks(split).ids, 80):
            actions, _, reward, info = expert_episode(env, task)
            assert (reward, info["success"]) == (1.0, True), task
            assert info["bought"] == env.store.goal(task).asin
            assert len(actions) <= env.max_turns


def test_an_imperfect_buyer_finds_the_product_and_takes_it_as_it_is():
    env = make(expert="imperfect")
    rewards = []
    for task in env.tasks("test").ids[:120]:
        actions, _, reward, info = expert_episode(env, task)
        assert info["bought"] == env.store.goal(task).asin and len(actions) <= 1 + 5 + 1
        options = env.store.goal(task).options
        assert info["success"] == (not options), task
        rewards.append(reward)
    assert 0.3 < sum(rewards) / len(rewards) < 0.95


def test_the_expert_searches_with_words_of_the_instruction_and_clicks_visible_labels():
    env = make(expert=True)
    for task in env.tasks("test").ids[:40]:
        observation, info = env.reset(options={"task": task})
        instruction = env.store.goal(task).instruction.lower()
        while (action := info["expert_action"]) is not None:
            name, argument = parse_action(action)
            if name == "search":
                assert all(word in instruction for word in argument.split())
                assert len(argument.split()) <= 8
            else:
                assert action in info["admissible_actions"]
                assert argument in observation.lower()
            observation, *_, info = env.step(action)


def test_the_expert_finds_its_way_from_anywhere():
    env = make(expert=True, max_turns=40)
    rng = random.Random(3)
    for task in env.tasks("train").ids[:25]:
        _, info = env.reset(options={"task": task})
        for _ in range(12):
            choices = [a for a in info["admissible_actions"] if a != "click[buy now]"] + ["search[red]", "nonsense"]
            *_, info = env.step(rng.choice(choices))
        while info["expert_action"]:
            _, reward, *_, info = env.step(info["expert_action"])
        assert reward == 1.0


def test_a_purchase_reports_the_parts_of_its_reward():
    env = make(expert=True)
    *_, info = expert_episode(env, env.tasks("test").ids[0])
    assert (info["r_type"], info["r_att"], info["r_price"], info["title_score"]) == (1.0, 1.0, 1.0, 1.0)
    assert info["r_option"] in (1.0, None)
    assert info["admissible_actions"] == []


def test_before_the_purchase_there_is_neither_reward_nor_success():
    env = make(expert=True)
    _, info = env.reset(seed=1)
    search = f"search[{env.shop.goal(env.state.task).instruction}]"
    assert info["has_search_bar"] is True and info["admissible_actions"] == [search]
    _, reward, terminated, truncated, info = env.step(info["expert_action"])
    assert (reward, terminated, truncated, info["success"], info["valid"]) == (0.0, False, False, False, True)
    assert info["has_search_bar"] is False and "r_type" not in info
    assert {"click[back to search]", "click[next >]"} <= set(info["admissible_actions"])


@pytest.mark.parametrize(
    "action",
    [
        *(
            "",
            "buy now",
            "click[]",
            "search[]",
            "search[ \n ]",
            "click[nothing]",
            "click[search]",
            "think[hard]",
            "search",
        ),
        *("][", "click[Back to Search] and search[x] !", "<action>search[x]</action>", "\x00", "search[x"),
    ],
)
def test_anything_else_changes_nothing(action):
    env = make()
    before, first = env.reset(seed=2)
    after, reward, terminated, truncated, info = env.step(action)
    assert (after, reward, terminated, truncated) == (before, 0.0, False, False)
    assert info["valid"] is False
    assert info["state"] == first["state"]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.text(max_size=40) | st.text(max_size=20).map("click[{}]".format) | st.text().map("search[{}]".format))
)
def test_no_text_breaks_it(actions):
    env = make(max_turns=100)
    env.reset(seed=0)
    for action in actions:
        observation, reward, terminated, *_ = env.step(action)
        assert env.observation_space.contains(observation)
        if terminated:
            break
        assert reward == 0.0


def test_labels_and_words_ignore_case_and_names_do_not():
    env = make()
    env.reset(seed=0)
    observation, *_, info = env.step("search[USB Cable] please")
    assert info["valid"] and "Page 1" in observation
    *_, info = env.step("click[NEXT >]")
    assert info["valid"]
    for action in ("Search[usb cable]", " search[usb cable]", "CLICK[next >]", "click [next >]", "click[ next > ]"):
        assert env.step(action)[-1]["valid"] is False


def test_after_fifteen_turns_it_is_over():
    env = make()
    env.reset(seed=0)
    for turn in range(1, 16):
        *_, truncated, info = env.step("search[red]")
        assert truncated == (turn == 15)
    assert info["turn"] == 15
    with pytest.raises(ResetNeeded):
        env.step("search[red]")


def test_equal_states_have_equal_keys_and_others_have_not():
    env = make(observation="text_rich")
    env.reset(seed=0)
    *_, first = env.step("search[usb cable]")
    *_, second = env.step("click[next >]")
    *_, third = env.step("click[< prev]")
    assert first["state"] == third["state"] != second["state"]
    *_, again = env.step("search[ USB  cable]")
    assert again["state"] == first["state"]


def test_the_state_key_depends_on_the_task_but_not_on_the_instance():
    env, other = make(), make()
    ids = env.tasks("test").ids
    keys = [env.reset(options={"task": task})[1]["state"] for task in ids[:2]]
    assert keys[0] != keys[1]
    assert other.reset(seed=99, options={"task": ids[0]})[1]["state"] == keys[0]


def test_observation_modes():
    output = {mode: make(observation=mode).reset(seed=4)[0] for mode in ("text", "text_rich")}
    assert output["text"].startswith("WebShop [SEP] Instruction: [SEP] ")
    assert output["text_rich"].endswith("\n[button] Search [button_]\n")
    with rejects(ValueError, "pixels", advice="text, text_rich"):
        make(observation="pixels")


def test_misuse_is_answered_with_advice():
    with rejects(ValueError, "robot", advice="synthetic, human"):
        make(goals="robot")
    with rejects(ValueError, "'dev'"):
        make(split="dev")
    with rejects(ValueError, "'dev'"):
        make().tasks("dev")
    with rejects(UnknownTask, advice="nearest"):
        make().reset(options={"task": "00000-s0"})


def test_results_per_page_shortens_the_observation():
    long, short = make(), make(results_per_page=3)
    for env in (long, short):
        env.reset(seed=0)
    assert len(short.step("search[usb cable]")[0]) < 0.6 * len(long.step("search[usb cable]")[0])


@pytest.mark.parametrize(("goals", "reward"), [("synthetic", 2 / 3), ("human", 1.0)])
def test_x_large_for_large(tmp_path, goals, reward):
    """Human goals, which give no names, take it; synthetic ones do not."""
    choices = options(size=["large", "x-large"])
    wish = {"instruction": "x", "instruction_attributes": ["soft"], "instruction_options": ["large"]}
    data = write_files(tmp_path, [row("B1", customization_options=choices)], humans={"B1": [wish]})
    env = WebShopEnv(data=data, goals=goals)
    env.reset(options={"task": "B1-s0" if goals == "synthetic" else "B1-h0"})
    for action in ("search[shirt]", "click[b1]", "click[x-large]"):
        env.step(action)
    assert env.step("click[buy now]")[1] == pytest.approx(reward)


def test_own_files_by_argument_or_by_variable(tmp_path, monkeypatch):
    data = write_files(tmp_path, [row(f"B{n}", f"shirt {n}") for n in range(7)])
    assert len(WebShopEnv(data=data).store) == 7
    assert len(WebShopEnv(data=data / "items_shuffle.json").store) == 7
    with rejects(ValueError, "WebShop", key="data", advice="$WEBSHOP_DATA"):
        WebShopEnv(data="official")  # not the generated shop in silence
    monkeypatch.setenv("WEBSHOP_DATA", str(data))
    assert len(WebShopEnv().store) == len(WebShopEnv(data="official").store) == 7
    monkeypatch.setenv("WEBSHOP_DATA", str(tmp_path / "gone"))
    with rejects(CatalogueError, "no such file", where="gone"):
        WebShopEnv()


def test_without_human_instructions_there_are_no_human_tasks(tmp_path):
    env = WebShopEnv(data=write_files(tmp_path, [row("B1")]), goals="human")
    with rejects(ValueError, "train", key="split", advice="0 human goals"):
        env.reset()


@pytest.mark.slow
def test_memory_stays_flat_over_many_episodes():
    env = make(expert=True, observation="text_rich")
    process, rng, observed = psutil.Process(), random.Random(0), []
    for episode in range(10_001):
        _, info = env.reset(seed=episode)
        env.step(f"search[{rng.random()} {rng.choice('abc')} red]")
        for _ in range(6):
            if not (action := info["expert_action"]):
                break
            *_, info = env.step(action)
        if episode in (4_000, 10_000):
            gc.collect()
            observed.append(process.memory_info().rss)
    assert observed[1] - observed[0] < 10 * 2**20


def test_two_processes_play_the_same_episode(tmp_path):
    script = (
        "import gymnasium, envs, json\n"
        "env = gymnasium.make('gagpo/WebShop-v0', expert=True, split='test').unwrapped\n"
        "told = []\n"
        "for seed in range(3):\n"
        "    observation, info = env.reset(seed=seed)\n"
        "    told.append([observation, info['task'], env.tasks('test').hash])\n"
        "    while info['expert_action']:\n"
        "        *step, info = env.step(info['expert_action']); told.append([step, info['state']])\n"
        "print(json.dumps(told))"
    )
    assert json.loads(run_script(script)) == json.loads(run_script(script))


@pytest.mark.parametrize(
    ("code", "unused"),
    [
        ("pass", ["bm25s", "spacy", "torch"]),
        (
            "gymnasium.make('gagpo/WebShop-v0').reset(seed=0)",
            ["spacy", "torch", "bs4", "jinja2"],
        ),
    ],
)
def test_neither_importing_nor_playing_as_text_loads_web_or_model_libraries(code, unused):
    script = f"import sys, gymnasium, envs; {code}; print([name for name in {unused} if name in sys.modules])"
    assert run_script(script).strip() == "[]"
