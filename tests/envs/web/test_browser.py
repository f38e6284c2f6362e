"""A real browser: what it reads, what it does, what it cannot reach, and how it ends."""

from __future__ import annotations

import fcntl
import functools
import http.server
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import psutil
import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.envs.tools import CallError
from gagpo.envs.web import driver as drivers
from gagpo.envs.web import supervisor as supervisors
from gagpo.envs.web.actions import Command, parse
from gagpo.envs.web.browser import WINDOW, Browser
from gagpo.envs.web.devtools import DriverDevTools
from gagpo.envs.web.errors import BrowserLost, BrowserMissing, PageBroken, PageHung
from gagpo.envs.web.server import Files, PageRequest, PageResponse
from gagpo.envs.web.supervisor import PREFIX
from tests.envs.web.conftest import needs_browser
from tests.rejections import rejects

pytestmark = needs_browser


def opened(browser, pages):
    browser.open("/", pages)
    return browser.page.text("full", 100)


def text(browser, observation="full", limit=10_000):
    return browser.page.text(observation, limit)


def act(browser, *actions):
    for action in actions:
        browser.do(parse(action))
    return text(browser)


def test_a_page_is_read_as_a_list_of_what_can_be_seen_and_used(show):
    body = """<h1>Shop</h1><p>Two <b>bold</b> words</p>
    <label>search <input name=q value=red></label> <input type=checkbox id=c checked><label for=c>New</label>
    <select aria-label=Size><option>Small<option selected>Large</select>
    <div style="display:none"><button>no</button></div><button style="visibility:hidden">no</button>
    <div style="height:0;overflow:hidden"><button>no</button></div>
    <table><tr><td>one</td><td>two</td></tr></table>
    <i class="star icon" onclick="1" style="float:left;width:9px;height:9px"></i>
    <button aria-label="Buy Now">B</button><button disabled>Wait</button><a href="/x">go</a><a>no link</a>
    <input type=hidden value=secret><div role=dialog aria-label=Hi><p>inside</p></div>"""
    browser = show(body)
    assert text(browser).split("\n") == [
        'heading "Shop"',
        "Two bold words",
        '[1] input "search" = "red"',
        '[2] checkbox "New" (checked)',
        '[3] select "Size" = "Large"',
        "  [4] option Small",
        "  [5] option Large (selected)",
        "table",
        "  one | two",
        "[6] clickable (star icon)",
        '[7] button "Buy Now"',
        '[8] button "Wait" (disabled)',
        '[9] link "go"',
        "no link",
        'dialog "Hi"',
        "  inside",
    ]
    assert text(browser, "interactive").split("\n")[0] == '[1] input "search" = "red"'
    assert "heading" not in text(browser, "interactive")


def test_a_long_page_is_cut_with_marks_and_scrolling_shows_the_rest(show):
    browser = show("".join(f"<p style='margin:0;height:100px'>line {n}</p>" for n in range(50)))
    first = text(browser, limit=100)
    assert first.startswith("line 0\n")
    assert first.endswith("lines below: scroll[down]")
    second = browser.do(parse("scroll[down]")).text("full", 100)
    assert second.startswith("... 6 lines above: scroll[up]\nline 6\n")
    browser.do(parse("scroll[up]"))
    with pytest.raises(CallError, match="cannot be scrolled up"):
        browser.do(parse("scroll[up]"))


def test_actions_do_what_a_person_does(show):
    body = """<form action=/result><input name=q value=old><textarea name=more></textarea>
    <select name=size><option>S<option>M</select><input type=radio name=r value=1><input type=date name=d></form>
    <p id=log></p><script>document.querySelector('form').addEventListener('input', e => log.textContent += e.isTrusted)
    </script>"""
    browser = show(body, result=lambda request: f"got {request.form}")
    output = act(browser, "type[1] red shirt", "type[2] two", "select[5]", "click[6]", "type[7] 2026-02-03")
    assert '[1] input "q" = "red shirt"' in output
    assert "[5] option M (selected)" in output
    assert "truetruefalsetruefalse" in output
    output = act(browser, "type[1] ", "type[1] blue", "press[Enter]")
    format = [("q", "blue"), ("more", "two"), ("size", "M"), ("r", "1"), ("d", "2026-02-03")]
    assert output == f"got {format}"
    assert browser.page.path.startswith("/result?q=blue")
    assert '[1] input "q" = "blue"' in act(browser, "back")
    with pytest.raises(CallError, match="no page to go back to"):
        act(browser, "back", "back")


@pytest.mark.parametrize(
    ("body", "action", "name"),
    [
        ("<button>a</button>", "click[2]", "[2]"),
        ("<button>a</button>", "click[0]", "[0]"),
        ("<button disabled>a</button>", "click[1]", "disabled"),
        ("<button>a</button><div style='position:fixed;inset:0'></div>", "click[1]", "covered"),
        ("<a href=/x style='pointer-events:none'>a</a>", "click[1]", "covered"),
        ("<button>a</button>", "type[1] x", "not a field"),
        ("<input readonly>", "type[1] x", "cannot be changed"),
        ("<input type=date>", "type[1] yesterday", "dates"),
        ("<input type=number>", "type[1] many", "numbers"),
        ("<select><option>a</select>", "click[2]", "select[2]"),
        ("<button>a</button>", "select[1]", "click[1]"),
        ("<select disabled><option>a</select>", "select[2]", "disabled"),
        ("<p>short</p>", "scroll[down]", "scrolled down"),
    ],
)
def test_what_cannot_be_done_says_why_and_changes_nothing(show, body, action, name):
    browser = show(body)
    key = browser.page.key
    with rejects(CallError, name):
        browser.do(parse(action))
    assert browser.read().key == key


def test_an_element_hidden_after_it_was_read_is_not_clicked(show):
    browser = show("<button id=a>a</button><button id=b>b</button>")
    browser.evaluate("a.style.display = 'none', b.remove()")
    for number, reason in ((1, "cannot be seen"), (2, "is not on this page")):
        with pytest.raises(CallError, match=reason):
            browser.do(Command("click", number))


def test_timers_run_in_order_without_waiting_and_the_clock_is_the_same_in_every_visit(show):
    body = """<p id=p></p><script>
    setTimeout(() => { p.textContent += ' late'; }, 900); setTimeout(() => { p.textContent += ' early'; }, 300);
    setTimeout(() => { p.textContent += ' never'; }, 600000);
    p.textContent = [Date.now(), new Date().toISOString(), Math.random(), performance.now()].join(' ');
    Promise.resolve().then(() => { p.textContent += ' promise'; });</script>"""
    texts, begun = [], time.monotonic()
    for _ in range(2):
        texts.append(text(show(body)))
    assert time.monotonic() - begun < 5
    assert texts[0] == texts[1]
    assert texts[0].startswith("1767603600000 2026-01-05T09:00:00.000Z 0.")
    assert texts[0].endswith("promise early late")


def test_a_page_that_changes_for_ever_is_read(show):
    endless = "<p id=p>0</p><script>(function f() { p.textContent++; setTimeout(f, 0); requestAnimationFrame(f); })()"
    assert text(show(f"{endless}</script>"))
    assert text(show("<script>(async () => { for (let i = 0; i < 1e4; i++) await null; })()</script>ok")) == "ok"


def test_dialogs_pop_ups_and_downloads_are_answered_and_told(show):
    body = """<button onclick="alert('Hello'); this.textContent = confirm('Sure?') + prompt('Name?', 'Ann')">a</button>
    <button onclick="window.open('/other')">b</button><a href=/other target=_blank>c</a>
    <a href="data:text/plain,x" download>d</a><a href=/file.zip>e</a>"""
    zipped = PageResponse(b"PK", "application/zip")
    browser = show(body, **{"other": "the other page", "file.zip": zipped})
    act(browser, "click[1]")
    assert browser.page.notes == (
        "The page said: Hello",
        "The page asked: Sure? (answered: OK)",
        "The page asked: Name? (answered: Ann)",
    )
    assert '[1] button "trueAnn" (focused)' in text(browser)
    act(browser, "click[2]")
    assert browser.page.notes == ("A pop-up was blocked: /other",)
    act(browser, "click[4]")
    assert browser.page.notes == ("A download was blocked.",)
    assert act(browser, "click[3]") == "the other page"


def test_a_link_to_a_missing_page_can_be_left(show):
    browser = show("<a href=/nothing>a</a>")
    act(browser, "click[1]")
    assert '[1] link "a"' in act(browser, "back")


def test_going_back_to_the_same_address_does_not_wait(show):
    browser = show("<button onclick='history.pushState(1, \"\", location.href); this.textContent = 2'>1</button>")
    act(browser, "click[1]")
    begun = time.monotonic()
    assert '[1] button "2"' in act(browser, "back")
    assert time.monotonic() - begun < browser.timeout / 2
    with pytest.raises(CallError, match="no page to go back to"):
        act(browser, "back")


def test_a_page_that_asks_whether_to_leave_is_left(show):
    body = """<input><a href=/next>a</a><script>
    addEventListener('beforeunload', (event) => { event.preventDefault(); event.returnValue = 'stay'; });</script>"""
    browser = show(body, next="the next page")
    act(browser, "type[1] x")  # a page may ask only those who used it
    assert act(browser, "click[2]") == "the next page"
    browser = show(body, next="the next page")
    act(browser, "type[1] x")
    assert text(show("another visit")) == "another visit"


def test_the_window_has_the_same_size_with_every_browser(show):
    assert show("x").evaluate("[innerWidth, innerHeight, devicePixelRatio]") == [*WINDOW, 1]


@pytest.mark.slow  # only time can tell that no page will come
def test_a_link_that_is_answered_without_a_page_leaves_this_one(show):
    browser = show("<a href=/empty>b</a>", empty=PageResponse(b"", status=204))
    assert '[1] link "b"' in act(browser, "click[1]")


class _Secret(http.server.BaseHTTPRequestHandler):
    reached = 0

    def do_GET(self):
        type(self).reached += 1
        self.send_response(200)
        self.send_header("Access-Control-Allow-Origin", "*")
        self.end_headers()

    def log_message(self, *values):
        pass


def test_only_its_own_server_can_be_reached(show):
    with http.server.HTTPServer(("127.0.0.1", 0), _Secret) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        port = other.server_address[1]
        body = f"""<a href="http://127.0.0.1:{port}/">a</a><a href="file:///etc/passwd">b</a>
        <a href="http://example.com/">c</a><img src="http://127.0.0.1:{port}/x.png">
        <iframe src="http://localhost:{port}/"></iframe>"""
        browser = show(body)
        for action, name in (
            ("click[1]", f"http://127.0.0.1:{port}"),
            ("click[2]", "file:"),
            ("click[3]", "http://ex"),
        ):
            assert '[1] link "a"' in act(browser, action)
            assert browser.page.notes[0].startswith(name)
        for url in (f"http://127.0.0.1:{port}/", f"http://[::1]:{port}/", "http://example.com/", "file:///etc/passwd"):
            fetched = f"fetch('{url}', {{mode: 'no-cors'}}).then(() => 'reached', () => 'not')"
            assert browser.evaluate(fetched) == "not", url
        browser.evaluate(f"location.href = 'http://127.0.0.1:{port}/'; 1")
        other.shutdown()
    assert _Secret.reached == 0


def test_the_page_cannot_reach_the_debugging_port(show):
    browser = show("a")
    port = browser._started.devtools._stream.getpeername()[1]
    target = browser._started.driver.current_window_handle
    for host in ("127.0.0.1", "localhost", "[::1]"):
        fetched = f"fetch('http://{host}:{port}/json', {{mode: 'no-cors'}}).then(() => 'reached', () => 'not')"
        assert browser.evaluate(fetched) == "not"
        connected = f"""new Promise((resolve) => {{
            const socket = new WebSocket('ws://{host}:{port}/devtools/page/{target}');
            socket.onopen = () => resolve('reached'); socket.onerror = () => resolve('not'); }})"""
        assert browser.evaluate(connected) == "not"


STORES = {
    "cookies": ("document.cookie", "document.cookie = 'a=1'"),
    "cookies of another path": ("document.cookie", "document.cookie = 'a=1; path=/visit'"),
    "local storage": ("localStorage.x ?? ''", "localStorage.x = 2"),
    "session storage": ("sessionStorage.x ?? ''", "sessionStorage.x = 2"),
    "session storage of a page that is left": (
        "sessionStorage.x ?? ''",
        "window.addEventListener('pagehide', () => { sessionStorage.x = 2; })",
    ),
    "the window's name": ("window.name", "window.name = 'a'"),
    "databases": (
        "(await indexedDB.databases()).length || ''",
        "await new Promise((done) => { indexedDB.open('a').onsuccess = done; })",
    ),
    "caches": ("(await caches.keys()).join()", "await caches.open('a')"),
    "a worker's cache": (
        "(await caches.keys()).join()",
        "await new Promise((done) => { new Worker('/worker.js').onmessage = done; })",
    ),
    "a frame": (
        "(await caches.keys()).join()",
        "const frame = document.body.appendChild(document.createElement('iframe')); frame.src = '/frame';"
        "await new Promise((done) => { frame.onload = done; }); await frame.contentWindow.done;",
    ),
    "files": (
        "(await Array.fromAsync((await navigator.storage.getDirectory()).keys())).join()",
        "await (await navigator.storage.getDirectory()).getFileHandle('a', {create: true})",
    ),
    "a service worker": (
        "navigator.serviceWorker.controller ? 'here' : ''",
        "await navigator.serviceWorker.register('/service.js'); await navigator.serviceWorker.ready",
    ),
    "history": (
        "JSON.stringify(navigation.entries().map((entry) => entry.url).filter((url) => url.includes('secret')))"
        ".slice(2)",
        "history.pushState(1, '', '/secret'); history.pushState(2, '', '/')",
    ),
}
"""For each store: an expression for what it has, '' for nothing, and a script that stores something."""


@pytest.mark.parametrize("helps", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize("store", STORES)
def test_a_visit_leaves_nothing_to_the_next(shared_browser, monkeypatch, store, helps):
    send = shared_browser.command
    if not helps:  # some versions of the browser leave session storage there
        monkeypatch.setattr(shared_browser, "command", lambda name, **values: "Data" in name or send(name, **values))
    output, stores = STORES[store]
    script = f"<p id=p></p><script type=module>p.textContent = `[${{{output}}}]`; {stores}; document.title = 1</script>"
    bodies = {
        "/worker.js": "caches.open('a').then(() => postMessage(1))",
        "/frame": "<script>window.done = caches.open('a')</script>",
        "/service.js": "addEventListener('install', () => skipWaiting());"
        "addEventListener('activate', (event) => event.waitUntil(clients.claim()))",
    }

    def pages(request):
        type_name = "text/javascript" if request.path.endswith(".js") else "text/html"
        return PageResponse(bodies.get(request.path, f"<!doctype html><body>{script}").encode(), type_name)

    for _ in range(3):
        shared_browser.open("/visit", pages)
        deadline = time.monotonic() + 10
        while not shared_browser.evaluate("document.title") and time.monotonic() < deadline:
            shared_browser.read()  # the browser's other processes answer when they do
        shared_browser.read()
        assert text(shared_browser) == "[]"


def test_a_browser_that_keeps_what_was_stored_is_replaced(own_browser):
    pages = lambda request: PageResponse(b"<script>localStorage.x = 1</script>")  # noqa: E731
    own_browser.open("/", pages)
    first = own_browser._started
    own_browser.evaluate("Storage.prototype.clear = 0")
    send = own_browser.evaluate
    own_browser.evaluate = lambda text: send("['cookies']") if "forget" in text else send(text)
    own_browser.open("/", pages)
    assert own_browser._started is not first and not own_browser.page.unclean


@pytest.mark.parametrize(
    ("version", "accepted"), [("156.0.8078.108", True), ("121.0", True), ("120.9", False), ("", False)]
)
def test_a_browser_that_is_too_old_is_refused(version, accepted):
    with nullcontext() if accepted else rejects(BrowserMissing, "Chromium 121"):
        drivers.require_version(version, "/usr/bin/chromium")


@pytest.mark.slow
def test_an_old_browser_is_refused_when_it_starts(monkeypatch):
    monkeypatch.setattr(drivers, "OLDEST", 100_000)
    children = psutil.Process().children()
    with rejects(BrowserMissing, "Chromium 100000", " of /"):
        Browser().open("/", lambda request: PageResponse(b""))
    assert psutil.Process().children() == children


def test_the_installed_browser_says_its_version(monkeypatch):
    assert "Chrom" in drivers.installed_version()
    monkeypatch.setattr(drivers, "find_programs", lambda: ("/bin/echo", ""))
    with rejects(BrowserMissing, "Chromium 121"):
        drivers.installed_version()


def test_the_key_changes_with_what_can_be_seen_typed_or_will_happen(show):
    body = "<input><p id=p>x</p><input type=hidden id=h>"
    browser = show(body)
    keys = [browser.page.key]
    for change in (
        "p.textContent = 'y'",
        "document.querySelector('input').value = 'v'",
        "h.value = 'w'",
        "setTimeout(() => {}, 50000)",
        "history.replaceState(null, '', '/elsewhere')",
    ):
        browser.evaluate(f"{change}, 1")
        keys.append(browser.read().key)
    assert len(set(keys)) == len(keys)
    assert show(body).page.key == keys[0]


def test_files_outside_of_the_folder_are_not_served(tmp_path):
    (tmp_path / "secret.html").write_text("secret")
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("hello")
    (site / "link.html").symlink_to(tmp_path / "secret.html")
    (site / "data.bin").write_bytes(b"x")
    files = Files(site)
    assert files(PageRequest("GET", "/", [])).body == b"hello"
    assert files(PageRequest("GET", "/data.bin", [])).status == 415
    for path in ("/../secret.html", "/link.html", "//etc/passwd", "/%2e%2e/secret.html", "/\0", "/a" * 5000):
        assert files(PageRequest("GET", path, [])).status == 404, path


def processes(browser):
    """The browser's process, its driver and all others below the supervisor."""
    started = psutil.Process(browser._started.driver.capabilities["goog:processID"])
    supervisor = started.parent().parent()
    return supervisor, [supervisor, *supervisor.children(recursive=True)]


@pytest.fixture
def own_browser():
    browser = Browser(timeout=2.0)
    yield browser
    browser.close()


HANGING = PageResponse(b"<button onclick='for (;;) ;'>a</button>")


@pytest.mark.slow
def test_a_page_that_hangs_is_ended_at_the_deadline_and_the_next_one_starts(own_browser):
    own_browser.open("/", lambda request: HANGING)
    _, all_processes = processes(own_browser)
    begun = time.monotonic()
    with rejects(PageHung, "page / ", "2 s"):
        act(own_browser, "click[1]")
    assert time.monotonic() - begun < 15
    assert not psutil.wait_procs(all_processes, timeout=10)[1]
    assert opened(own_browser, lambda request: PageResponse(b"hello")) == "hello"


@pytest.mark.slow
@pytest.mark.parametrize("body", [b"<script>for (;;) ;</script>", b"<script>fetch('/x')</script><img src=/slow>"])
def test_a_page_that_hangs_while_it_loads_is_ended_at_the_deadline(own_browser, body):
    answered = threading.Event()

    def pages(request):
        if request.path != "/":
            answered.wait(30)
        return PageResponse(body)

    with pytest.raises(PageHung):
        own_browser.open("/", pages)
    answered.set()


@pytest.mark.slow
def test_an_error_names_the_page_that_hangs_or_breaks_and_not_the_one_before(own_browser):
    bodies = {"/": b"<a href=/loop>a</a><a href=/broken>b</a>", "/loop": b"<script>for (;;) ;</script>"}
    bodies["/broken"] = b"<p>x</p><script>Array.from = () => { throw new Error('no') }</script>"
    for action, error in (("click[1]", PageHung), ("click[2]", PageBroken)):
        own_browser.open("/", lambda request: PageResponse(bodies.get(request.path, b"")))
        with pytest.raises(error, match=f"the page {['/loop', '/broken'][error is PageBroken]} "):
            act(own_browser, action)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["browser", "driver", "supervisor", "page"])
def test_a_killed_browser_is_an_error_and_the_next_visit_starts_another(own_browser, victim):
    own_browser.open("/", lambda request: PageResponse(b"hello"))
    supervisor, all_processes = processes(own_browser)
    started = psutil.Process(own_browser._started.driver.capabilities["goog:processID"])
    if victim != "page":
        {"browser": started, "driver": started.parent(), "supervisor": supervisor}[victim].kill()
    deadline = time.monotonic() + 20
    with pytest.raises((BrowserLost, PageHung)):
        while time.monotonic() < deadline:  # the driver ends a moment after its supervisor
            own_browser.command("Page.crash" if victim == "page" else "Page.getNavigationHistory")
    assert opened(own_browser, lambda request: PageResponse(b"hello")) == "hello"
    assert not psutil.wait_procs(all_processes, timeout=10)[1]


@pytest.fixture
def short_folder():
    """A folder with a short path: Chromium puts a socket into it, whose path may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        yield Path(folder)


def test_closing_leaves_no_process_and_no_folder(short_folder, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(short_folder))
    browser = Browser()
    browser.open("/", lambda request: PageResponse(b"hello"))
    _, all_processes = processes(browser)
    assert list(short_folder.glob(f"{PREFIX}*"))
    browser.close()
    browser.close()
    assert not psutil.wait_procs(all_processes, timeout=10)[1]
    assert not list(short_folder.iterdir())


def test_where_temporary_folders_have_no_programs_the_driver_sends_the_commands(monkeypatch):
    real = os.access
    monkeypatch.setattr(drivers.os, "access", lambda path, mode: PREFIX not in str(path) and real(path, mode))
    browser = Browser()
    try:
        browser.open("/", lambda request: PageResponse(b"<button onclick='this.textContent = 1'>a</button>"))
        assert isinstance(browser._started.devtools, DriverDevTools)
        assert act(browser, "click[1]") == '[1] button "1" (focused)'
    finally:
        browser.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_owner_takes_its_browser_and_the_folder_along(number, short_folder):
    script = (
        "import time; from gagpo.envs.web.browser import Browser; from gagpo.envs.web.server import PageResponse\n"
        "browser = Browser(); browser.open('/', lambda request: PageResponse(b'hello'))\n"
        "print(browser._started.driver.capabilities['goog:processID'], flush=True); time.sleep(60)"
    )
    variables = {**os.environ, "TMPDIR": str(short_folder)}
    # A process that a shell starts in the background ignores SIGINT, and so do its children, unless it is reset.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables, preexec_fn=heed) as process:
        started = psutil.Process(int(process.stdout.readline()))
        orphans = [started, started.parent(), started.parent().parent(), *started.children(recursive=True)]
        process.send_signal(number)
        process.wait(20)
    assert not psutil.wait_procs(orphans, timeout=15)[1]
    assert not list(short_folder.iterdir())


def test_the_folder_of_a_killed_supervisor_is_removed_by_the_next(tmp_path, monkeypatch):
    abandoned = Path(tempfile.mkdtemp(prefix=PREFIX))
    (abandoned / "owner.lock").touch()
    browser = Browser()
    browser.open("/", lambda request: PageResponse(b"hello"))
    browser.close()
    assert not abandoned.exists()


def test_a_folder_that_a_dying_browser_wrote_into_again_is_removed_by_the_next(monkeypatch, short_folder):
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))
    monkeypatch.setattr(supervisors, "_REMOVE_SECONDS", 0.1)
    folder, lock = supervisors._claim()
    ended = threading.Event()

    def write():
        while not ended.is_set():
            with suppress(OSError):
                (folder / "profile").mkdir(parents=True, exist_ok=True)
                (folder / "profile" / "Preferences").touch()

    browser = threading.Thread(target=write)
    browser.start()
    supervisors._remove(folder)
    ended.set()
    browser.join()
    lock.close()
    (folder / "profile").mkdir(parents=True, exist_ok=True)  # where the last removal was faster
    (folder / supervisors._LOCK).unlink(missing_ok=True)
    alive, held = supervisors._claim()
    supervisors._remove_abandoned()
    assert list(short_folder.iterdir()) == [alive]
    held.close()


def test_a_folder_that_is_removed_before_it_has_a_lock_is_not_used(monkeypatch, short_folder):
    names = [str(short_folder / "removed"), tempfile.mkdtemp(dir=short_folder)]
    monkeypatch.setattr(tempfile, "mkdtemp", lambda prefix: names.pop(0))
    folder, lock = supervisors._claim()
    assert folder.is_dir() and not names
    lock.close()


def test_a_folder_that_another_supervisor_removed_before_it_was_locked_is_not_used(monkeypatch, short_folder):
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))
    claimed = []
    real = fcntl.flock

    def taken_for_abandoned(file, operation):
        if not claimed:
            claimed.append(Path(file.name).parent)
            supervisors._remove_abandoned()
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", taken_for_abandoned)
    folder, lock = supervisors._claim()
    assert not claimed[0].exists() and folder.exists() and folder != claimed[0]
    monkeypatch.setattr(fcntl, "flock", real)
    supervisors._remove_abandoned()
    assert folder.exists()  # it is locked
    lock.close()


@pytest.mark.parametrize(("endings", "opens"), [(2, True), (3, False)])
def test_a_driver_that_ends_before_it_listens_is_started_again(monkeypatch, short_folder, endings, opens):
    """For instance because another process took the port that it chose."""
    program, starts = short_folder / "chromedriver", short_folder / "starts"
    real = drivers.find_programs()
    program.write_text(
        f"#!/bin/sh\necho >> {starts}\n"
        f'if [ $(wc -l < {starts}) -le {endings} ]; then echo "IPv6 port not available. Exiting..."; exit 1; fi\n'
        f'exec {real[1]} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(drivers, "find_programs", lambda: (real[0], str(program)))
    browser = Browser()
    try:
        if opens:
            assert opened(browser, lambda request: PageResponse(b"<p>hello</p>")) == "hello"
        else:
            with rejects(BrowserLost, "status 1", "IPv6"):
                browser.open("/", lambda request: PageResponse(b""))
    finally:
        browser.close()
    assert starts.read_text().count("\n") == min(endings + 1, 3)


@pytest.mark.parametrize("program", ["chromium", "chromedriver"])
def test_a_missing_program_says_what_to_install(monkeypatch, program):
    real = drivers.shutil.which
    hidden = {"chromium", "chromium-browser", "google-chrome"} if program == "chromium" else {program}
    monkeypatch.setattr(drivers.shutil, "which", lambda name: None if name in hidden else real(name))
    with rejects(BrowserMissing, advice="apt-get install chromium chromium-driver"):
        Browser().open("/", lambda request: PageResponse(b""))


def test_a_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "selenium", None)
    with rejects(BrowserMissing, advice="pip install -c constraints.txt -e '.[web]'"):
        Browser().open("/", lambda request: PageResponse(b""))


@pytest.mark.parametrize("grid", ["", "host:4444", "ftp://host", "http://", "http://host:99999", "http://[x"])
def test_a_wrong_address_of_a_grid_is_an_error(grid):
    with rejects(InvalidArgument, key="grid"):
        drivers.check_grid(grid)


def test_a_driver_that_does_not_start_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(drivers, "find_programs", lambda: ("/usr/bin/chromium", "/bin/false ended"))
    with rejects(BrowserLost, "/bin/false ended"):
        Browser().open("/", lambda request: PageResponse(b""))
    monkeypatch.setattr(drivers, "find_programs", lambda: ("/usr/bin/chromium", str(tmp_path)))
    with rejects(BrowserLost, os.strerror(13)):
        Browser().open("/", lambda request: PageResponse(b""))
