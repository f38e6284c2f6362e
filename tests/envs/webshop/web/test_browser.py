"""The shop in a real Chromium: usable without script, and safe whatever the data hold."""

import shutil

import pytest

from gagpo.envs.webshop.pages import DONE, Shop
from gagpo.envs.webshop.render import address
from gagpo.envs.webshop.web.site import Site
from tests.envs.webshop.shelf import build, options, row

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
)
SHOWN = """
return Array.from(document.querySelectorAll('main [data-kind]')).filter(e => e.checkVisibility())
            .map(e => e.dataset.text ?? e.textContent);
"""
NOTHING_RAN = "return window.hacked === undefined && document.querySelectorAll('script, img').length === 0"


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    """Headless Chromium that can reach this machine alone."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    flags = "headless=new no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-sync"
    reach = "host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    profile = f"user-data-dir={tmp_path_factory.mktemp('profile')}"
    options = webdriver.ChromeOptions()
    for flag in (*flags.split(), profile, reach, "window-size=1280,900"):
        options.add_argument(f"--{flag}")
    options.ignore_local_proxy_environment_variables()  # the driver listens on this machine
    chrome = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    chrome.set_page_load_timeout(120)
    yield chrome
    chrome.quit()


def leave(chrome, act, deadline=20.0):
    """Do ``act`` and wait for another address, and for its page: a click returns before either is there."""
    from selenium.webdriver.support.ui import WebDriverWait

    before, old = chrome.current_url, chrome.find_element("css selector", "html")
    act()
    WebDriverWait(chrome, deadline).until(lambda _: chrome.current_url != before)
    WebDriverWait(chrome, deadline).until(lambda _: chrome.find_element("css selector", "html") != old)
    return chrome.current_url


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


def test_hostile_texts_are_shown_and_run_nothing(tmp_path, chrome):
    rows = []
    for n, name in enumerate(HOSTILE_NAMES):
        choices = options(**{name[:60]: [name, f"hostile {n}"], "color": ["Red/Blue", "buy now", "< prev"]})
        fields = {"full_description": name, "small_description": [name, "hostile"], "customization_options": choices}
        rows.append(row(f"B{n}", f"hostile {name}", **fields))
    shop = Shop(build(tmp_path, rows))
    with Site(shop) as site:
        for n in range(len(rows)):
            state = shop.search(shop.start(f"B{n}-s0"), "hostile <script>window.hacked = 1</script>")
            for label in (f"b{n}", f"hostile {n}", "description", "< prev", "features", "< prev", "buy now"):
                chrome.get(f"{site.address}{address(shop, state)}")
                assert chrome.execute_script(NOTHING_RAN)
                shown = chrome.execute_script(SHOWN)
                assert shown == [piece.text for piece in shop.page(state).pieces], label
                state = shop.click(state, label)
            assert state.kind == DONE


def test_the_shop_works_without_script(tmp_path, chrome):
    """A visitor whose browser runs no script searches, chooses, and buys, with the keyboard alone."""
    from selenium.webdriver.common.keys import Keys

    chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        shop = Shop(build(tmp_path, [row("B1", customization_options=options(size=["S", "M"]))]))
        with Site(shop) as site:
            chrome.get(f"{site.address}/")
            leave(chrome, lambda: chrome.find_element("css selector", "button").send_keys(Keys.ENTER))
            leave(chrome, lambda: chrome.switch_to.active_element.send_keys("Red shirt" + Keys.ENTER))
            for label in ("B1", "s", "Buy Now"):
                leave(chrome, lambda label=label: chrome.find_element("link text", label).send_keys(Keys.ENTER))
            assert chrome.find_element("css selector", "h1").text == "Thank you for shopping with us!"
    finally:
        chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
