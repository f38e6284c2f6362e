"""The shop in a real Chromium: the same as in text, and safe whatever the data hold."""

import random
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium
import psutil
import pytest

import gagpo.envs  # noqa: F401 (registers the environments)
from gagpo.envs.webshop.catalogue import published_value, tidy_option
from gagpo.envs.webshop.env import WebShopEnv
from gagpo.envs.webshop.pages import Shop
from gagpo.envs.webshop.web import browser as browser_module
from gagpo.envs.webshop.web.browser import BrowserMissing, WebShopBrowserEnv, open_browser
from gagpo.envs.webshop.web.site import Site
from tests.envs.webshop.shelf import build, options, row, shared_root, write_files

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not shutil.which("chromedriver"), reason="Chromium's driver is not installed"),
]

HOSTILE_NAMES = (
    "<script>window.hacked = 1</script>",
    "\"><img src=x onerror='window.hacked = 1'>",
    "</bdi></main><h1>taken over</h1>",
    "\u202eright to left\u202c שלום مرحبا \u2066isolated",
    "null \x00 bell \x07 escape \x1b[31m delete \x7f",
    "&lt;b&gt; &amp; {{ 7 * 7 }} ${7 * 7} %s",
    "x" * 1_000_000,
)
QUERIES = (
    "<script>window.hacked = 1</script>",
    "\"'><b>' OR 1=1 --",
    "\x00\x07 bell 😀 שלום \u202eabc",
    "hostile " * 130_000,  # 1 MB
)
NOTHING_RAN = "return window.hacked === undefined && document.querySelectorAll('script, img').length === 0"


@pytest.fixture(autouse=True)
def _data(monkeypatch):
    monkeypatch.setenv("GAGPO_DATA", str(shared_root()))
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Data files whose every text is hostile."""
    rows = []
    for n, name in enumerate(HOSTILE_NAMES):
        choices = options(**{name[:60]: [name, f"hostile {n}"], "color": ["Red/Blue", "buy now", "< prev"]})
        fields = {"full_description": name, "small_description": [name, "hostile"], "customization_options": choices}
        rows.append(row(f"B{n}", f"hostile {name}", **fields))
    rows.append(row("B99", "", full_description="hostile", small_description=[""]))
    return write_files(tmp_path_factory.mktemp("hostile"), rows)


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    chrome = open_browser(tmp_path_factory.mktemp("profile"))
    yield chrome
    chrome.quit()


def test_the_driver_is_spoken_to_past_the_proxy(tmp_path, dead_proxy):
    chrome = open_browser(tmp_path)
    try:
        chrome.get("data:text/html,<title>here</title>")
        assert chrome.title == "here"
    finally:
        chrome.quit()


def leave(chrome, act, deadline=20.0):
    """Do ``act`` and wait for another address, and for its page: a click returns before either is there."""
    from selenium.webdriver.support.ui import WebDriverWait

    before, old = chrome.current_url, chrome.find_element("css selector", "html")
    act()
    WebDriverWait(chrome, deadline).until(lambda _: chrome.current_url != before)
    WebDriverWait(chrome, deadline).until(lambda _: chrome.find_element("css selector", "html") != old)
    return chrome.current_url


def same_episode(text_env, browser_env, seed, rng, wandering):
    """Play both side by side; everything they say must be equal, the infos included. Returns the number of turns."""
    left, right = text_env.reset(seed=seed), browser_env.reset(seed=seed)
    turns = 0
    while True:
        assert left == right
        info = left[-1]
        if len(left) > 2 and (left[2] or left[3]):
            return turns
        action = info["expert_action"]
        if action is None or rng.random() < wandering:
            action = rng.choice(
                [*info["admissible_actions"], "search[ Red <b>Shirt</b> ]", "click[no such thing]", "?"]
            )
        left, right = text_env.step(action), browser_env.step(action)
        turns += 1


def side_by_side(episodes, wandering=0.4, **options):
    text_env = gymnasium.make("gagpo/WebShop-v0", expert=True, **options).unwrapped
    browser_env = gymnasium.make("gagpo/WebShopBrowser-v0", expert=True, **options).unwrapped
    rng = random.Random(7)
    try:
        return [same_episode(text_env, browser_env, seed, rng, wandering) for seed in range(episodes)]
    finally:
        browser_env.close()


@pytest.mark.parametrize(("observation", "episodes"), [("text", 3), ("text_rich", 2), ("url", 1), ("html", 1)])
def test_browser_and_text_say_the_same(observation, episodes):
    assert sum(side_by_side(episodes, observation=observation)) >= 3 * episodes


@pytest.mark.slow
@pytest.mark.parametrize("observation", ["text", "text_rich"])
def test_browser_and_text_say_the_same_for_fifty_episodes(observation):
    assert sum(side_by_side(50, wandering=0.3, observation=observation, split="test")) > 200


def test_hostile_data_are_the_same_in_both_and_run_nothing(hostile):
    text_env = WebShopEnv(data=hostile, expert=True, max_turns=40)
    browser_env = WebShopBrowserEnv(data=hostile, expert=True, max_turns=40)
    tasks = {task.split("-")[0].lower(): task for split in text_env.splits for task in text_env.tasks(split).ids}
    try:
        for n, name in enumerate(HOSTILE_NAMES[:5]):
            task = {"task": tasks[f"b{n}"]}
            assert text_env.reset(options=task) == browser_env.reset(options=task)
            hostile_option = f"click[{tidy_option(published_value(name))}]"
            actions = [
                *([f"search[{query}]" for query in QUERIES] if n == 0 else []),
                *("search[hostile]", f"click[b{n}]", hostile_option, "click[red | blue]"),
                *("click[description]", "click[< prev]", "click[features]", "click[< prev]", "click[buy now]"),
            ]
            for action in actions:
                left, right = text_env.step(action), browser_env.step(action)
                assert left == right, action[:60]
                assert left[-1]["valid"], action[:60]
                assert browser_env._browser.execute_script(NOTHING_RAN)
            assert left[2]
    finally:
        browser_env.close()


def test_bidirectional_text_does_not_reorder_its_neighbours(tmp_path, chrome):
    """The price stands where it stands beside a plain title, and the latin letters of a title run left to right."""
    shop = Shop(
        build(tmp_path, [row("B1", "shirt \u202eabc\u202c"), row("B2", "shirt שלום 12 abc"), row("B3", "shirt abc")])
    )
    with Site(shop) as site:
        chrome.get(f"{site.address}/shop/B1-s0/results?q=shirt&page=1")
        lefts = chrome.execute_script(
            "return Array.from(document.querySelectorAll('.price bdi'), e => e.getBoundingClientRect().left - "
            "e.closest('li').getBoundingClientRect().left)"
        )
        title = chrome.execute_script("return document.querySelector('.card h2 bdi').textContent")
    assert len(set(lefts)) == 1
    assert title == "shirt abc"


def test_back_and_forward_of_the_browser_are_pages_of_the_shop(tmp_path, chrome):
    choices = options(color=["red", "blue"])
    shop = Shop(build(tmp_path, [row("B1", customization_options=choices)]))
    with Site(shop) as site:
        chrome.get(f"{site.address}/shop/B1-s0/results?q=shirt&page=1")
        steps = [chrome.current_url]
        for label in ("B1", "blue", "red"):
            steps.append(leave(chrome, chrome.find_element("link text", label).click))
        for url in steps[2::-1]:
            assert leave(chrome, chrome.back) == url
        for url in steps[1:]:
            assert leave(chrome, chrome.forward) == url
        assert [e.text for e in chrome.find_elements("css selector", "[aria-current]")] == ["red"]
        leave(chrome, chrome.find_element("link text", "Buy Now").click)
        assert "1.0" in chrome.find_element("css selector", ".score").text


def test_a_whole_card_leads_to_its_product_and_a_chosen_option_keeps_the_focus(tmp_path, chrome):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    choices = options(color=["red", "blue", "green"], size=["S", "M"])
    shop = Shop(build(tmp_path, [row("B1", customization_options=choices)]))
    with Site(shop) as site:
        chrome.get(f"{site.address}/shop/B1-s0/results?q=shirt&page=1")
        assert chrome.find_element("css selector", ".card .price").text == "$10.00"
        card = chrome.find_element("css selector", ".card")
        corner = ActionChains(chrome).move_to_element_with_offset(card, card.size["width"] // 2 - 5, 0).click()
        assert "/item?" in leave(chrome, corner.perform)
        leave(chrome, lambda: chrome.find_element("link text", "blue").send_keys(Keys.ENTER))
        assert chrome.switch_to.active_element.text == "blue"
        leave(chrome, lambda: ActionChains(chrome).send_keys(Keys.TAB, Keys.ENTER).perform())
        assert [e.text for e in chrome.find_elements("css selector", "[aria-current]")] == ["green"]
        leave(chrome, chrome.find_element("link text", "Buy Now").click)
        assert chrome.find_elements("css selector", ".breakdown li")
        assert "/shop/" in leave(chrome, chrome.find_element("link text", "Next task").click)


def test_odd_texts_and_choosing_twice_are_the_same_in_both(tmp_path):
    name = " two  blanks\na line\tand\ra\x0cfeed \xa0"
    choices = {
        "Size": [{"value": "Two  Blanks"}, {"value": "s"}, {"value": "s"}],
        "Color": [],
        "": [{"value": "x [l]"}],
    }
    fields = {"full_description": "  ", "small_description": [name, "", "\n"], "pricing": "$5.00 - $7.50"}
    wish = {"instruction": f"find {name}", "instruction_attributes": ["soft"], "instruction_options": ["s"]}
    rows = [row("B1", f"shirt{name}", customization_options=choices, **fields), row("B2", "shirt")]
    data = write_files(tmp_path, rows, humans={"B1": [wish]})
    for observation in ("text", "text_rich"):
        text_env = WebShopEnv(data=data, goals="human", observation=observation, max_turns=40)
        browser_env = WebShopBrowserEnv(data=data, goals="human", observation=observation, max_turns=40)
        try:
            task = {"task": "B1-h0"}
            assert text_env.reset(options=task) == browser_env.reset(options=task)
            for action in (
                *(
                    "search[ ]",
                    "click[next >]",
                    "search[shirt]",
                    "click[b1]",
                    "click[two  blanks]",
                    "click[two  blanks]",
                ),
                *("click[s]", "click[s]", "click[x [l]]", "click[description]", "click[< prev]", "click[features]"),
                *("click[back to search]", "search[shirt]", "click[b1]", "click[buy now]"),
            ):
                left, right = text_env.step(action), browser_env.step(action)
                assert left == right, action
                assert left[-1]["valid"], action
        finally:
            browser_env.close()


def test_the_shop_works_without_script(tmp_path):
    """A visitor whose browser runs no script searches, chooses, and buys, with the keyboard alone."""
    from selenium.webdriver.common.keys import Keys

    chrome = open_browser(tmp_path / "profile")
    try:
        chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
        shop = Shop(build(tmp_path, [row("B1", customization_options=options(size=["S", "M"]))]))
        with Site(shop) as site:
            chrome.get(f"{site.address}/")
            leave(chrome, lambda: chrome.find_element("css selector", "button").send_keys(Keys.ENTER))
            leave(chrome, lambda: chrome.switch_to.active_element.send_keys("Red shirt" + Keys.ENTER))
            for label in ("B1", "s", "Buy Now"):
                leave(chrome, lambda label=label: chrome.find_element("link text", label).send_keys(Keys.ENTER))
            assert chrome.find_element("css selector", "h1").text == "Thank you for shopping with us!"
    finally:
        chrome.quit()


def test_closing_leaves_no_browser_no_profile_no_server(monkeypatch):
    env = gymnasium.make("gagpo/WebShopBrowser-v0").unwrapped
    env.reset(seed=0)
    profile, process, site = Path(env._profile), env._browser.service.process, env._site
    env.close()
    env.close()
    assert not profile.exists()
    assert process.poll() is not None
    assert not site._thread.is_alive()
    env.reset(seed=0)  # and it can be used again
    env.close()


@pytest.mark.parametrize("victim", ["browser", "driver"])
def test_a_crashed_browser_is_replaced_at_the_next_reset(victim):
    env = gymnasium.make("gagpo/WebShopBrowser-v0").unwrapped
    try:
        expected = env.reset(seed=0)
        chrome = psutil.Process(env._browser.capabilities["goog:processID"])
        (chrome if victim == "browser" else psutil.Process(env._browser.service.process.pid)).kill()
        assert env.reset(seed=0) == expected
        gone, _ = psutil.wait_procs([chrome], timeout=10)
        assert gone
    finally:
        env.close()


def test_a_killed_process_takes_its_browser_along():
    script = (
        "import gymnasium, envs, time; env = gymnasium.make('gagpo/WebShopBrowser-v0').unwrapped; env.reset(seed=0)\n"
        "print(env._browser.capabilities['goog:processID'], env._browser.service.process.pid, flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        orphans = [psutil.Process(int(number)) for number in process.stdout.readline().split()]
        assert len(orphans) == 2
        process.kill()
    gone, _ = psutil.wait_procs(orphans, timeout=15)
    assert set(gone) == set(orphans)


def test_a_missing_browser_is_an_error_with_advice(monkeypatch, tmp_path):
    monkeypatch.setattr(browser_module.shutil, "which", lambda name: None)
    with pytest.raises(BrowserMissing, match="apt-get install chromium chromium-driver"):
        open_browser(tmp_path)
