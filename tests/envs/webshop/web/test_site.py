import contextlib
import http.client
import re
import select
import socket
import threading
import time
import urllib.error
import urllib.request
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.envs.webshop.pages import LONGEST_QUERY, Shop
from gagpo.envs.webshop.render import address, html
from gagpo.envs.webshop.web import server
from gagpo.envs.webshop.web.site import LARGEST_REQUEST, Site, make_app, serve_pages
from tests.envs.webshop.shelf import build, generated_store, options, row, shared_root

# No proxy: whatever the surroundings say, this machine is reached directly.
visit = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

HOSTILE = (
    "<script>alert(1)</script> \"quoted\" 'too' & \u202ereversed\u202c עברית \x00\x1b[31m "
    "</bdi></a><img src=x onerror=alert(2)>"
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    choices = options(**{'si"ze<': ["'><script>", "a&b", "50%/100%"], "color": ["#red?x=1", "ж + 木"]})
    rows = [row("B00", HOSTILE, customization_options=choices, full_description=HOSTILE, small_description=[HOSTILE])]
    rows += [row(f"B{n:02d}", f"shirt number {n}") for n in range(1, 25)]
    return Shop(build(tmp_path_factory.mktemp("site"), rows))


@pytest.fixture(scope="module")
def client(shop):
    return make_app(shop).test_client()


def walk(shop, *actions):
    state = shop.start("B00-s0")
    for action in actions:
        state = shop.search(state, action[1:]) if action[0] == "?" else shop.click(state, action)
        assert state is not None, action
    return state


PATHS = {
    "index": (),
    "results": ("?reversed",),
    "second page": ("?shirt", "next >"),
    "no results": ("?zebra",),
    "item": ("?reversed", "b00"),
    "options": ("?reversed", "b00", "'><script>", "ж + 木"),
    "percent": ("?reversed", "b00", "50% | 100%", "#red?x=1"),
    "part": ("?reversed", "b00", "a&b", "description"),
    "done": ("?reversed", "b00", "a&b", "buy now"),
}


@pytest.mark.parametrize("path", PATHS)
def test_the_site_serves_every_page_at_its_own_address(shop, client, path):
    state = walk(shop, *PATHS[path])
    answer = client.get(address(shop, state))
    assert answer.status_code == 200
    assert answer.content_type == "text/html; charset=utf-8"
    assert _Seen.of(answer.text) == [piece.text for piece in shop.page(state).pieces]


class _Seen(HTMLParser):
    """The texts of the elements that carry data-kind; fails on any element the site does not write itself."""

    ALLOWED = frozenset(
        "html head meta title link body main header p h1 h2 bdi form input button nav a ul li section footer".split()  # noqa: SIM905
    )

    def __init__(self):
        super().__init__()
        self.texts, self.inside = [], False

    def handle_starttag(self, tag, attributes):
        assert tag in self.ALLOWED, tag
        assert not any(name.startswith("on") or name == "style" for name, _ in attributes)
        attributes = dict(attributes)
        if attributes.get("data-kind"):
            self.texts.append(attributes.get("data-text", ""))
            self.inside = "data-text" not in attributes

    def handle_endtag(self, tag):
        if tag in ("bdi", "button"):
            self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.texts[-1] += data

    @classmethod
    def of(cls, text):
        parser = cls()
        parser.feed(text)
        return parser.texts


def test_every_link_and_form_leads_to_a_page(shop, client):
    for path in PATHS.values():
        text = client.get(address(shop, walk(shop, *path))).text
        for link in re.findall(r'href="(/shop[^"]*)"', text):
            assert client.get(link.replace("&amp;", "&").replace("&#x27;", "'")).status_code == 200, link


def test_hostile_texts_are_escaped_everywhere(shop, client):
    for path in PATHS.values():
        text = client.get(address(shop, walk(shop, *path))).text
        assert "<script" not in text and "onerror=alert(2)>" not in text.replace("onerror=alert(2)&gt;", "")
        assert "\u202e" not in text and "\x00" not in text and "\x1b" not in text


def test_every_answer_carries_the_safety_headers(client):
    for path in ("/", "/shop/B00-s0", "/nowhere", "/style.css", "/shop/B99-s0"):
        headers = client.get(path).headers
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'self'")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert "Set-Cookie" not in headers


def test_another_spelling_of_an_address_is_redirected(client):
    answer = client.get("/shop/B00-s0/results?q=Shirt++NUMBER")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/shop/B00-s0/results?q=shirt+number&page=1")
    assert client.get("/shop/B00-s0/results?q=").headers["Location"] == "/shop/B00-s0"
    last = client.get("/shop/B00-s0/index?x=1", follow_redirects=True)
    assert (last.status_code, last.request.full_path) == (200, "/shop/B00-s0?")


def test_a_query_is_cut_before_it_is_shown_or_sent_back(client):
    answer = client.get(f"/shop/B00-s0/results?q={'x' * 20_000}")
    assert answer.headers["Location"] == f"/shop/B00-s0/results?q={'x' * LONGEST_QUERY}&page=1"


@pytest.mark.parametrize(
    "path",
    [
        *("/shop", "/shop/", "/shop/..", "/shop/B99-s0", "/shop/B00-s0/item", "/shop/B00-s0/secrets", "/../etc/passwd"),
        *("/shop/B00-s0/results?q=shirt&page=0", "/shop/%2e%2e/%2e%2e", "/shop/B00-s0/done?asin=%00", "/style.css/x"),
        *("/start?split=dev", "/start?goals=human", "/shop/B00-s0/../../x", "/shop/%ff"),
    ],
)
def test_other_addresses_are_answered_with_404_and_no_echo(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert "passwd" not in answer.text


def test_only_reading_is_allowed(client):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.open("/shop/B00-s0", method=method).status_code == 405


def test_a_start_is_a_task_of_the_split(shop, client):
    place = client.get("/start?goals=synthetic&split=validation").headers["Location"]
    assert place.removeprefix("/shop/") in shop.store.tasks("synthetic", "validation")


def test_other_host_names_are_refused(client):
    assert client.get("/", headers={"Host": "rebound.example"}).status_code == 400
    for host in ("localhost:3000", "127.0.0.1:3000", "[::1]:3000", "localhost"):
        assert client.get("/", headers={"Host": host}).status_code == 200
    for host in ("[::1", "localhost.evil.example", "evil@localhost:1@x", "", "["):
        assert client.get("/", headers={"Host": host}).status_code == 400


def test_prices_are_shown_with_two_decimals(shop, client, tmp_path):
    for path in (("?reversed",), ("?reversed", "b00")):
        assert 'data-text="$10.0" dir="auto">$10.00</bdi>' in client.get(address(shop, walk(shop, *path))).text.replace(
            'data-text="Price: $10.0" dir="auto">Price: $10.00', 'data-text="$10.0" dir="auto">$10.00'
        )
    pricing = ("$5.00 - $7.25", "$1,234.50", None)
    prices = Shop(build(tmp_path, [row(f"B{n}", f"shirt {n}", pricing=price) for n, price in enumerate(pricing)]))
    state = prices.search(prices.start("B0-s0"), "shirt")
    shown = re.findall(r'data-text="([^"]*)" dir="auto">([^<]*)<', html(prices, prices.page(state)))
    assert shown == [("$5.0 to $7.25", "$5.00 to $7.25"), ("$1234.5", "$1234.50"), ("$100.0", "$100.00")]


def test_the_last_page_explains_the_score_and_links_to_the_next_task(shop, client):
    text = client.get(address(shop, walk(shop, "?reversed", "b00", "a&b", "buy now"))).text
    lines = re.findall(r"<li>([^<]*)</li>", text)
    assert lines[:2] == ["Kind of product: times 1", "Attributes: 1 of 1"]
    assert re.fullmatch(r"Options: [01] of 2", lines[2]) and lines[3] == "Price within the budget: yes"
    assert lines[4].startswith("Points are added, divided by 4,")
    kind, split = shop.store.place("B00-s0")
    assert f'href="/start?goals={kind}&amp;split={split}">Next task</a>' in text
    following = client.get(f"/start?goals={kind}&split={split}")
    assert following.status_code == 303 and following.headers["Location"].startswith("/shop/")


def test_a_carriage_return_reaches_the_reader_as_one(tmp_path):
    shop = Shop(build(tmp_path, [row("B1", "a\rshirt")]))
    state = shop.search(shop.start("B1-s0"), "shirt")
    assert "a&#13;shirt" in html(shop, shop.page(state))


def test_pages_are_accessible(shop, client):
    for path in PATHS.values():
        text = client.get(address(shop, walk(shop, *path))).text
        assert '<html lang="en">' in text and "<title>" in text and text.count("<h1>") == 1 and text.count("<main") == 1
        assert text.count("<input") == text.count('aria-label="Words to search for"')
        assert text.count("<nav") == len(re.findall(r"<nav[^>]* aria-label=", text))
    assert 'aria-current="true"' in client.get(address(shop, walk(shop, *PATHS["options"]))).text


@pytest.fixture(scope="module")
def site(shop):
    with Site(shop) as site:
        yield site


def test_a_real_server_answers_over_http(site):
    with visit(f"{site.address}/shop/B00-s0", timeout=10) as answer:
        assert answer.status == 200
        assert "waitress" not in str(answer.headers).lower()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_it_can_be_bound_by_name_or_number(shop, host):
    with Site(shop, host=host) as site, visit(f"{site.address}/", timeout=10) as answer:
        assert site.address.startswith("http://127.0.0.1:")
        assert answer.status == 200


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_it_can_be_bound_to_ipv6(shop):
    try:
        site = Site(shop, host="::1")
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with site, visit(f"{site.address}/", timeout=10) as answer:
        assert answer.status == 200


def test_a_host_that_does_not_exist_is_an_error(shop):
    with pytest.raises(OSError, match=r"cannot serve at no-such-host\.invalid port 0"):
        Site(shop, host="no-such-host.invalid")


def test_oversized_requests_are_refused_and_the_site_lives_on(site):
    with pytest.raises(urllib.error.HTTPError) as error:
        visit(f"{site.address}/shop/B00-s0/results?q={'x' * 1_000_000}", timeout=10)
    assert error.value.code in (400, 414, 431)
    connection = http.client.HTTPConnection(urlsplit(site.address).netloc, timeout=10)
    try:
        connection.request("POST", "/", body=b"x" * (2 * LARGEST_REQUEST))
        assert connection.getresponse().status in (400, 405, 413)
    except (BrokenPipeError, ConnectionResetError):
        pass  # refused while still being sent
    finally:
        connection.close()
    with visit(f"{site.address}/", timeout=10) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    "path", ["//evil.example/shop", "/%2f%2fevil.example", "/\\evil.example", "///evil.example/%2e%2e"]
)
def test_no_path_leads_to_another_host(site, path):
    connection = http.client.HTTPConnection(urlsplit(site.address).netloc, timeout=10)
    connection.putrequest("GET", path)
    connection.endheaders()
    answer = connection.getresponse()
    place = urlsplit(answer.headers.get("Location", ""))
    connection.close()
    assert answer.status in (308, 400, 404)
    assert place.netloc in ("", urlsplit(site.address).netloc)


def test_garbage_on_the_wire_does_not_stop_the_site(site):
    port = urlsplit(site.address).port
    for garbage in (b"\x00" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\xff\xfe GET /\r\n\r\n", b""):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(garbage)
    with visit(f"{site.address}/", timeout=10) as answer:
        assert answer.status == 200


def test_slow_visitors_do_not_block_others(shop):
    """500 connections that send a byte now and then, and never a whole request."""
    stop = threading.Event()
    slow = []

    def trickle():
        while not stop.wait(2.0):
            for connection in slow:
                with contextlib.suppress(OSError):
                    connection.send(b"x")

    with Site(shop) as site:
        port = urlsplit(site.address).port
        sender = threading.Thread(target=trickle)
        sender.start()
        try:
            for _ in range(500):
                slow.append(socket.create_connection(("127.0.0.1", port), timeout=5))
                slow[-1].send(b"GET / HTTP/1.1\r\nX: ")
                slow[-1].setblocking(False)
            for _ in range(5):
                with visit(f"{site.address}/", timeout=30) as answer:
                    assert answer.status == 200
        finally:
            stop.set()
            sender.join()
            for connection in slow:
                connection.close()


def test_a_request_that_never_ends_is_ended(shop, monkeypatch):
    monkeypatch.setattr(server, "REQUEST_SECONDS", 1.0)
    with Site(shop) as site, socket.create_connection(("127.0.0.1", urlsplit(site.address).port), timeout=30) as slow:
        slow.send(b"GET / HTTP/1.1\r\nX: ")
        while not select.select([slow], [], [], 0.1)[0]:
            slow.send(b"x")
        with contextlib.suppress(ConnectionResetError):  # what was sent last came too late to be read
            assert slow.recv(1) == b""


def test_closing_frees_the_port_at_once_and_twice_is_fine(shop):
    site = Site(shop)
    port = urlsplit(site.address).port
    idle = socket.create_connection(("127.0.0.1", port), timeout=5)
    started = time.monotonic()
    site.close()
    site.close()
    idle.close()
    assert time.monotonic() - started < 9  # did not wait for the idle visitor's time-out
    with Site(shop, port=port) as again:
        assert urlsplit(again.address).port == port


def test_a_taken_port_is_an_error_with_advice(shop, site):
    with pytest.raises(OSError, match=r"cannot serve at 127\.0\.0\.1 port .*choose another port"):
        Site(shop, port=urlsplit(site.address).port)


def test_serving_pages_prints_the_address_and_stays_until_interrupted(monkeypatch, capsys):
    monkeypatch.setenv("GAGPO_DATA", str(shared_root()))
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)
    seen = []

    def visit_and_leave(site):
        with visit(f"{site.address}/", timeout=10) as answer:
            seen.append(answer.read().decode())
        raise KeyboardInterrupt

    monkeypatch.setattr(Site, "wait", visit_and_leave)
    serve_pages("gagpo/WebShop-v0", {}, port=0)
    assert re.match(r"1000 products\. The shop is open at http://127\.0\.0\.1:\d+/", capsys.readouterr().out)
    assert f"a shop of {len(generated_store())} products" in seen[0]


def test_only_the_webshop_has_pages():
    with pytest.raises(InvalidArgument, match="requires gagpo/WebShop-v0, got 'gagpo/Math-v0'"):
        serve_pages("gagpo/Math-v0", {})
    with pytest.raises(InvalidArgument, match="has no argument 'prodcts'; choose from split"):
        serve_pages("gagpo/WebShop-v0", {"prodcts": 3})
