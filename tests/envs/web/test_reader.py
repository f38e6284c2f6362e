"""What a page shows and what can be used on it: shadow roots, disabled fields, and text that cannot be seen."""

from __future__ import annotations

import pytest

from gagpo.envs.tools import CallError
from gagpo.envs.web.actions import Command, parse
from tests.envs.web.conftest import needs_browser

pytestmark = needs_browser
SHADOW = """<x-card>{light}</x-card><p id=out></p><script>
const root = document.querySelector('x-card').attachShadow({{mode: 'open'}});
root.innerHTML = `{shadow}`;
const say = (text) => {{ out.textContent += text + ';'; }};</script>"""


def text(browser):
    return browser.page.text("full", 4000)


def shadow(show, body, light=""):
    return show(SHADOW.format(shadow=body, light=light))


def act(browser, action):
    return browser.do(parse(action))


SHADOWS = {
    "a button": ('<button onclick="say(1)">Buy</button>', "", "click[1]", '[1] button "Buy"', "1;"),
    "a field": (
        '<input placeholder=number oninput="say(this.value)">',
        "",
        "type[1] 7",
        '[1] input "number" = ""',
        "7;",
    ),
    "a link with a listener": ("<a href=#x onclick='say(2)'>More</a>", "", "click[1]", '[1] link "More"', "2;"),
    "a box": ("<label><input type=checkbox onchange='say(3)'>All</label>", "", "click[1]", '[1] checkbox "All"', "3;"),
    "a list": ("<select onchange='say(this.value)'><option>p<option>r</select>", "", "select[3]", "[3] option r", "r;"),
    "a slot": (
        "<slot name=b></slot>",
        '<button slot=b onclick="say(4)">Go</button>',
        "click[1]",
        '[1] button "Go"',
        "4;",
    ),
    "the text of a slot": (
        "<button onclick='say(5)'><slot></slot></button>",
        "Yes",
        "click[1]",
        '[1] button "Yes"',
        "5;",
    ),
    "a slot's own text": ("<button onclick='say(6)'><slot>No</slot></button>", "", "click[1]", '[1] button "No"', "6;"),
    "a nested root": (
        "<x-inner></x-inner><img src=x onerror=\"const r = root.querySelector('x-inner').attachShadow({mode: 'open'});"
        "r.innerHTML = '<button onclick=say(7)>In</button>'\">",
        "",
        "click[1]",
        '[1] button "In"',
        "7;",
    ),
    "a text editor": (
        "<div contenteditable oninput='say(this.textContent)'>x</div>",
        "",
        "type[1] ab",
        "[1] textarea",
        "a;ab;",
    ),
}


@pytest.mark.parametrize("case", SHADOWS.values(), ids=SHADOWS.keys())
def test_what_stands_in_a_shadow_root_can_be_used(show, case):
    body, light, action, line, messages = case
    browser = shadow(show, body, light)
    assert line in text(browser) and "covered" not in text(browser)
    act(browser, action)
    assert browser.evaluate("out.textContent") == messages


def test_a_shadow_root_shows_its_slots_in_place_of_the_children(show):
    browser = shadow(
        show,
        "<h2><slot name=title></slot></h2><slot></slot><slot name=none>nothing</slot>",
        "<span slot=title>Blue lamp</span>, bright<i slot=unknown>lost</i>",
    )
    assert text(browser).splitlines()[:2] == ['heading "Blue lamp"', ", brightnothing"]


def test_a_form_in_a_shadow_root_is_sent(show):
    format = "<form action=/next><input name=q><button>Send</button></form>"
    browser = show(
        f"<x-f><template shadowrootmode=open>{format}</template></x-f>",
        next=lambda request: f"got {dict(request.form)['q']}",
    )
    act(browser, "type[1] red")
    act(browser, "click[2]")
    assert text(browser) == "got red"


def test_a_field_in_a_shadow_root_is_part_of_the_key_and_can_have_the_focus(show):
    browser = shadow(show, "<input>")
    key = browser.page.key
    act(browser, "type[1] a")
    assert "(focused)" in text(browser) and browser.page.key != key


DISABLED = [
    ("<fieldset disabled><select><option>p<option>r</select></fieldset>", "select[3]"),
    ("<fieldset disabled><input></fieldset>", "type[1] x"),
    ("<fieldset disabled><div><button>b</button></div></fieldset>", "click[1]"),
    ("<select><option>p<optgroup label=g disabled><option>r</optgroup></select>", "select[3]"),
    ("<fieldset disabled><textarea></textarea></fieldset>", "type[1] x"),
    ("<label><input type=checkbox style='display:none' disabled>All</label>", "click[1]"),
    ("<x-a><template shadowrootmode=open><fieldset disabled><input></fieldset></template></x-a>", "type[1] x"),
]


@pytest.mark.parametrize(("body", "action"), DISABLED)
def test_a_field_that_is_disabled_from_outside_is_marked_and_keeps_its_value(show, body, action):
    browser = show(body)
    command = parse(action)
    assert "disabled" in browser.page.line(command.number).states
    before = browser.page.lines
    with pytest.raises(CallError, match="is disabled"):
        browser.do(command)
    assert browser.read().lines == before


def test_the_legend_of_a_disabled_group_can_be_used(show):
    browser = show(
        "<fieldset disabled><legend><button onclick=\"document.title='used'\">b</button></legend></fieldset>"
    )
    assert "disabled" not in browser.page.line(1).states
    act(browser, "click[1]")
    assert browser.evaluate("document.title") == "used"


BOX = "overflow:hidden;width:50px;height:20px;position:relative"
UNSEEN = {
    "display": "<p style='display:none'>secret</p>",
    "visibility": "<p style='visibility:hidden'>secret</p>",
    "opacity": "<div style='opacity:0'><p>secret</p></div>",
    "filter": "<p style='filter:opacity(0)'>secret</p>",
    "hidden": "<p hidden>secret</p>",
    "font size": "<p style='font-size:0'>secret</p>",
    "font size outside": "<div style='font-size:0'><b>secret</b></div>",
    "colour": "<p style='color:transparent'>secret</p>",
    "fill colour": "<p style='-webkit-text-fill-color:rgba(9,9,9,0)'>secret</p>",
    "clip path": "<p style='clip-path:inset(100%)'>secret</p>",
    "clip path, half": "<p style='clip-path:inset(50% 0)'>secret</p>",
    "clip path, circle": "<p style='clip-path:circle(0)'>secret</p>",
    "clip path, polygon": "<p style='clip-path:polygon(0 0, 0 0, 0 0)'>secret</p>",
    "clip": "<p style='position:absolute;clip:rect(0,0,0,0)'>secret</p>",
    "scale": "<p style='transform:scale(0)'>secret</p>",
    "scale outside": "<div style='scale:0'><p><i>secret</i></p></div>",
    "no height": "<div style='overflow:hidden;height:0'>secret</div>",
    "one pixel": "<span style='position:absolute;width:1px;height:1px;overflow:hidden'>secret</span>",
    "outside of a part": f"<div style='{BOX}'><p style='position:absolute;left:90px;margin:0'>secret</p></div>",
    "below a part": f"<div style='{BOX}'><br><br><br><p>secret</p></div>",
    "outside of the page": "<p style='position:absolute;left:-999px'>secret</p>",
    "indented": "<div style='text-indent:-999px;overflow:hidden'>secret</div>",
    "details": "<details><summary>more</summary>secret</details>",
    "a heading": "<h1><span style='font-size:0'>secret</span></h1>",
    "a row": "<table><tr><td style='color:transparent'>secret</td></tr></table>",
    "a button": "<button><span style='font-size:0'>secret</span></button>",
    "content": "<p style='content-visibility:hidden;height:9px'>secret</p>",
}
SEEN = {
    "partly clipped": "<p style='clip-path:inset(10% 40%);width:400px;height:20px'>shown</p>",
    "a scrolled list": f"<div style='{BOX};overflow:auto'><br><br><br><p>shown</p></div>",
    "a gradient": "<p style='background:linear-gradient(red,blue);background-clip:text;color:transparent'>shown</p>",
    "an outline": "<p style='color:transparent;-webkit-text-stroke:1px red'>shown</p>",
    "a menu that leaves its part": "<div style='overflow:hidden;height:20px'>"
    "<div style='position:absolute;top:60px'>shown</div></div>",
    "a moved track": f"<div style='{BOX}'><div style='position:absolute;left:-50px;width:40px'>"
    "<p style='position:absolute;left:50px;margin:0'>shown</p></div></div>",
    "a flat box": "<div style='height:0'><p>shown</p></div>",
    "a float": "<div><p style='float:left'>shown</p></div>",
    "turned": "<p style='transform:rotate(10deg);width:80px'>shown</p>",
    "contents": "<div style='display:contents'>shown</div>",
    "large letters": "<div style='font-size:0'><span style='font-size:20px'>shown</span></div>",
    "back to visible": "<div style='color:transparent'><b style='color:red'>shown</b></div>",
    "down the page": "<div style='height:3000px'></div><p>shown</p>",
}


def test_text_that_nobody_can_see_is_not_shown(show):
    output = [name for name, body in UNSEEN.items() if "secret" in text(show(body))]
    assert output == []


def test_text_that_can_be_seen_is_shown(show):
    missing = [name for name, body in SEEN.items() if "shown" not in text(show(body))]
    assert missing == []


def test_typing_presses_keys(show):
    show("")
    body = """<input onkeydown="down.textContent += event.key" onkeypress="press.textContent += event.key"
    onkeyup="up.textContent += event.key" oninput="n.textContent = +n.textContent + 1"><p id=down></p><p id=press></p>
    <p id=up></p><p id=n></p>"""
    browser = show(body)
    act(browser, "type[1] aB.1é漢")
    assert [line.name for line in browser.page.lines if line.role == "text"] == [*["aB.1é漢"] * 3, "6"]
    assert browser.page.line(1).value == "aB.1é漢"
    act(browser, "type[1] x")
    assert browser.page.line(1).value == "x"


def test_every_letter_of_a_keyboard_is_typed_and_none_edits(show):
    letters = "".join(map(chr, range(32, 127)))
    browser = show("<input>")
    browser.do(Command("type", 1, letters))
    assert browser.evaluate("document.querySelector('input').value") == letters
    browser = show("<input value=ab>")
    act(browser, "type[1] ab")
    for key in (".", "'", "(", "-", "$"):  # their codes are not those of Delete, arrows, Insert and Home
        browser.do(parse(f"press[{key}]"))
    assert browser.page.line(1).value == "ab.'(-$"


def test_a_page_that_rejects_a_key_gets_none(show):
    browser = show('<input onkeydown="if (!/[0-9]/.test(event.key)) event.preventDefault()">')
    act(browser, "type[1] a1b2")
    assert browser.page.line(1).value == "12"


def test_a_long_text_with_lines_is_typed_as_it_is(show):
    tokens = "line one\nline\ttwo\n" + "abc " * 200 + "end"
    browser = show("<textarea></textarea><form action=/sent><input></form>", sent="sent")
    browser.do(Command("type", 1, tokens))
    assert browser.evaluate("document.querySelector('textarea').value") == tokens
    browser.do(Command("type", 2, "one\ntwo"))
    assert browser.page.path == "/" and browser.page.line(2).value == "onetwo"


@pytest.mark.parametrize(
    "script", ["document.body.remove()", "document.documentElement.remove()", "document.documentElement.innerHTML = ''"]
)
def test_a_page_without_a_body_is_empty(show, script):
    browser = show(f"<script>onload = () => {{ {script} }}</script>")
    assert browser.page.lines == () and browser.page.can_scroll == (False, False)
    with pytest.raises(CallError, match="cannot be scrolled"):
        act(browser, "scroll[down]")
    assert len(browser.screenshot()) > 100


@pytest.mark.parametrize("address", ["data:text/html,x", "file:///etc/passwd"])
def test_a_link_that_the_browser_refuses_has_a_note_unless_the_page_uses_the_click(show, address):
    browser = show(f'<a href="{address}">a</a><a href="{address}" onclick="return false">b</a>')
    act(browser, "click[1]")
    assert browser.page.notes == (f"{address.partition(':')[0]}: cannot be reached from here.",)
    act(browser, "click[2]")
    assert browser.page.notes == ()
