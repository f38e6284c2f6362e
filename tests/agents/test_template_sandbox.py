"""Templates that are not trusted: bounded in time and memory, and the same text for the same fields."""

import resource
import time

import pytest

from gagpo.agents import template_sandbox
from gagpo.agents.prompts import find_prompt
from gagpo.agents.templates import check, fill
from gagpo.base.errors import InvalidArgument
from tests.rejections import rejects

DOUBLED = "{% set ns = namespace(x=START) %}{% for i in range(64) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}BODY" + 3 * "{% endfor %}"
LONG = "{% set x = 'x' %}" + 19 * "{% set x = x ~ x %}"  # 2**19 characters


def doubled(start, step):
    return DOUBLED.replace("START", start).replace("STEP", step)


LARGE = {
    "nested loops": LOOPS.replace("BODY", ""),
    "nested loops that write": LOOPS.replace("BODY", "x" * 50_000),
    "a captured loop": "{% set x %}" + LOOPS.replace("BODY", "{{ a }}") + "{% endset %}",
    "a long scan": LONG + LOOPS.replace("BODY", "{% if 'y' in x %}{% endif %}"),
    "texts by ~": doubled("'x'", "ns.x ~ ns.x"),
    "texts by +": doubled("'x'", "ns.x + ns.x"),
    "texts by join": doubled("'x'", "[ns.x, ns.x] | join(ns.x)"),
    "texts by a method": doubled("'x'", "ns.x.join([ns.x, ns.x])"),
    "texts by replace": doubled("'xx'", "ns.x | replace('x', ns.x)"),
    "texts by the method replace": doubled("'xx'", "ns.x.replace('', ns.x)"),
    "texts by a capture": "{% set ns = namespace(x='x') %}{% for i in range(64) %}{% set y %}{{ ns.x }}{{ ns.x }}"
    "{% endset %}{% set ns.x = y %}{% endfor %}",
    "lists by +": doubled("[1]", "ns.x + ns.x"),
    "nested lists": doubled("[1]", "[ns.x, ns.x]"),
    "nested tuples": doubled("1", "(ns.x, ns.x)"),
    "nested dicts": doubled("1", "{'a': ns.x, 'b': ns.x}"),
    "nested namespaces": doubled("1", "namespace(a=ns.x, b=ns.x)"),
    "nested dict calls": doubled("1", "dict(a=ns.x, b=ns.x)"),
    "compared lists": doubled("[1]", "[ns.x, ns.x]").replace("{{ ns.x }}", "{{ ns.x == ns.x }}"),
    "a list within itself": "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ [ns] }}",
    "batch": "{{ [1] | batch(1000000000, 'x') | list }}",
    "slice": "{{ [1] | slice(1000000000) | list }}",
    "indent": "{{ 'a' | indent(1000000000, true) }}",
    "a repeated test": LONG + "{{ range(99999) | select('in', x.split('x')[:90000]) | list }}",
    "a slow search": LONG + "{{ ('y' ~ x) in x.rsplit(x[:200000] ~ 'y' ~ x[:200000]) }}",
    "long characters": LONG + "{{ x | trim('y' ~ x) }}",
    "round": "{{ 1.5 | round(1000000000, 'ceil') }}",
    "tojson": "{{ [[1]] | tojson(1000000000) }}",
    "format": "{{ '%1000000000d' % 1 }}",
    "the method format": "{{ '{:1000000000}'.format(1) }}",
    "a stored method": "{% set f = 'a'.ljust %}{{ f(1000000000) }}",
    "center": "{{ 'a'.center(1000000000) }}",
    "expandtabs": "{{ '\t'.expandtabs(1000000000) }}",
    "a mapped filter": "{{ ['a'] | map('indent', 1000000000, true) | join }}",
    "a power": "{{ 10 ** 1000000000 }}",
    "lists by *": "{{ [1] * 1000000000 }}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive loops": "{% for x in [[1]] recursive %}{{ loop(x) }}{% endfor %}",
}  # fmt: skip


@pytest.mark.parametrize("template", LARGE.values(), ids=LARGE)
def test_time_and_memory_are_bounded(monkeypatch, template):
    monkeypatch.setattr(template_sandbox, "MOST_SECONDS", 0.5)  # reached by the long scan only
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.thread_time()
    with pytest.raises(InvalidArgument):
        fill(template)
    assert time.thread_time() - begin < 2.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB


DEEP = {
    "parentheses": "{{ " + 3000 * "(" + "observation" + 3000 * ")" + " }}",
    "lists": "{{ " + 3000 * "[" + "observation" + 3000 * "]" + " }}",
    "conditions": 3000 * "{% if observation %}" + "{{ observation }}" + 3000 * "{% endif %}",
    "loops": 150 * "{% for x in observation %}" + "{{ observation }}" + 150 * "{% endfor %}",
    "filters": "{{ observation" + 3000 * "|upper" + " }}",
    "attributes": "{{ observation" + 3000 * ".a" + " }}",
    "negations": "{{ " + 3000 * "not " + "observation }}",
    "sums": "{{ observation" + 3000 * " + observation" + " }}",
    "length": "{{ observation }}" + "x" * 200_000,
}


@pytest.mark.parametrize("template", DEEP.values(), ids=DEEP)
@pytest.mark.parametrize("key", ["first", "system"])
def test_deep_and_long_prompts_are_refused_by_file_and_key(tmp_path, key, template):
    (tmp_path / "mine.yaml").write_text(f"{key}: '{template}'\n")
    with rejects(InvalidArgument, key, key=key, where="mine.yaml") as error:
        find_prompt(str(tmp_path / "mine.yaml"))
    assert len(str(error.value)) < 500 and "\n" not in str(error.value)


@pytest.mark.parametrize("value", [3000 * "[" + 3000 * "]", 3000 * "{a: " + "1" + 3000 * "}"], ids=["lists", "maps"])
def test_a_deeply_nested_value_is_refused_by_file(tmp_path, value):
    (tmp_path / "mine.yaml").write_text(f"first: {value}\n")
    with rejects(InvalidArgument, "mine.yaml", "YAML", "nested"):
        find_prompt(str(tmp_path / "mine.yaml"))


RANDOM = {
    "{{ [1, 2] | random }}": ("'random'",),
    "{{ lipsum() }}": ("'lipsum'",),
    "{{ observation.upper }}": ("builtin_function_or_method",),
    "{{ [range] }}": ("type function",),
    "{{ actions | map('upper') }}": ("generator", "| list or | join"),
    "{{ cycler(1) }}": ("Cycler",),
    "{{ range | upper }}": ("type function",),
    "{{ 'a' ~ joiner }}": ("type type",),
    "{{ namespace() | string }}": ("Namespace",),
}


@pytest.mark.parametrize("template", RANDOM, ids=range(len(RANDOM)))
def test_nothing_differs_between_runs(template):
    with rejects(InvalidArgument, *RANDOM[template]):
        check(template, ("observation", "actions"))
        fill(template, observation="a", actions=["b"])


RIGHT = {
    "{% for a in actions %}{{ loop.index }}/{{ loop.length }} {{ a }}{{ ';' if not loop.last }}{% endfor %}":
    "1/2 b;2/2 c",
    "{% set n = namespace(i=0) %}{% for a in actions %}{% set n.i = n.i + 2 %}{% endfor %}{{ n.i }}": "4",
    "{{ observation | replace('a', 'x') | upper | truncate(2000) }} {{ actions | length }}": "X 2",
    "{{ actions | map('upper') | join(' | ') }}": "B | C",
    "{{ turns | map(attribute='x') | join('+') }} {{ turns | join('-', attribute='x') }}": "1+2 1-2",
    "{% for k, v in {'p': 1, 'q': (2, 3)}.items() %}{{ k ~ '=' ~ v }};{% endfor %}": "p=1;q=(2, 3);",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}": "aba",
    "{{ observation.split('a')[0] or 'none' }} {{ ', '.join(actions) }} {{ 7 % 4 }} {{ 3 * 2 }}": "none b, c 3 6",
    "{% set x %}{{ observation }}!{% endset %}{{ x | default('y') }} {{ z is defined }}": "a! False",
    "{{ actions }} {{ [1] | tojson }} {{ 1.25 | round(1) }} {{ 'a\nb' | indent(2) }}": "['b', 'c'] [1] 1.2 a\n  b",
    "{% for row in actions | batch(2) %}{{ row | join }}{% else %}none{% endfor %}": "bc",
    "{{ actions[1:] | first }}{{ actions | sort(reverse=true) | list | first }}{{ range(3) | sum }}": "cc3",
}  # fmt: skip


@pytest.mark.parametrize("template", RIGHT, ids=range(len(RIGHT)))
def test_what_prompts_need_is_available(template):
    assert fill(template, observation="a", actions=["b", "c"], turns=[{"x": 1}, {"x": 2}]) == RIGHT[template]


def test_a_prompt_costs_little():
    """A window of 50 turns of 2,000 characters is filled within milliseconds."""
    prompt = find_prompt("think-act")

    class Shown:
        observation, response, action = "x" * 2000, "y", "z"

    begin = time.thread_time()
    prompt.window_text("", [Shown()] * 50, "o", ["a"] * 100, 50)
    assert time.thread_time() - begin < 0.5
