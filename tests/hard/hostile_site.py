"""A site whose pages do all they can to break what reads them."""

from __future__ import annotations

from typing import Any, ClassVar

from gagpo.envs.tasks import Task
from gagpo.envs.web.actions import Command
from gagpo.envs.web.browser import Browser
from gagpo.envs.web.server import PageResponse
from gagpo.envs.web.source import Standing

_MENU = """<!doctype html><form action=/plain><input name=q><textarea name=t></textarea><input type=date>
<select><option>a<option>b</select><input type=file><button>send</button></form><p id=p></p>"""
PAGES = {
    "plain": """<a href=/plain>again</a><a href=/timers>timers</a><div contenteditable>edit</div>
        <label><input type=radio>r</label>""",
    "dialogs": """<script>let i = 0;
        addEventListener('beforeunload', (event) => { event.preventDefault(); });
        function ask() { alert(p.innerHTML); while (confirm('again?') && i++ < 9); prompt('x'); print(); }</script>
        <button onclick="ask()">a</button><a href=/plain>leave</a>""",
    "windows": """<button onclick="for (let i = 0; i < 50; i++) open('/plain')">a</button>
        <a target=_blank href=/plain>b</a><a href=file:///etc/passwd>c</a><a href=http://127.0.0.1:22/>d</a>
        <a href="javascript:location='/windows'">e</a><a download href="data:text/plain,x">f</a>
        <iframe src=/plain></iframe><a href=/missing>g</a>""",
    "timers": """<script>setInterval(() => p.append('x'), 1);
        (function f() { setTimeout(f, 0); p.textContent++; requestAnimationFrame(() => {}); })();
        Promise.resolve().then(function g() { return Math.random() < .9 && Promise.resolve().then(g); });</script>
        <button onclick="location.reload()">reload</button>""",
    "moving": """<script>let n = 0;
        addEventListener('mousedown', () => { if (++n % 2) document.body.remove(); }, true);
        addEventListener('keyup', () => history.pushState(1, '', '?' + n++));</script><button>a</button>
        <button onclick="document.documentElement.remove()">b</button>
        <button onclick="document.write('<p>new')">c</button>
        <button onclick="location.href = '#' + n++; history.back()">d</button>""",
    "large": """<script>document.title = '\\ud800'.repeat(9999);
        for (let i = 0; i < 800; i++) document.write('<a href=/plain>' + 'w'.repeat(3000) + '</a>');</script>""",
    "odd": """<button aria-label="\u202e\ufeff\u2028 <b>\\x">\U0001f469\u200d\U0001f469</button><marquee>m</marquee>
        <input value="&quot;);alert(1)//"><div onclick=1 style="width:9px;height:9px"></div>
        <svg><a href=/plain><text y=9>t</text></a></svg><script>p.textContent = '\\ud800 \\udfff \\0';
        document.querySelector('input').name = '__proto__';</script>""",
    "liar": """<button onclick="lie()">a</button><script>function lie() {
        Array.from = () => { throw new Error('no'); }; JSON.stringify = () => 'x'; Array.prototype.map = null;
        Element.prototype.getBoundingClientRect = () => ({}); document.querySelectorAll = () => 1;
        window.__gagpo = null; Object.prototype.why = 'covered'; }</script>""",
    "loop": "<button onclick='for (;;) ;'>hang</button><a href=/plain>plain</a>",
}
SLOW = ("large", "loop")
"""Pages that cost seconds."""


class HostileSite:
    """One task a page."""

    splits: ClassVar[tuple[str, ...]] = ("train",)

    def tasks(self, split: str) -> list[Task]:
        return [Task(name, split, digest=name) for name in PAGES]

    def open(self, browser: Browser, task: Task) -> str:
        def pages(request: Any) -> PageResponse:
            name = request.path.strip("/")
            if name == "missing":
                return PageResponse(b"\xff\xfe\x00", "text/html", 500)
            return PageResponse((_MENU + PAGES.get(name, "")).encode("utf-8", "replace"))

        browser.open(f"/{task.id}", pages)
        return "Break this page."

    def outcome(self, browser: Browser) -> Standing:
        return Standing()

    def expert(self, browser: Browser) -> Command | None:
        return None
