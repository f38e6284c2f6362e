"""PDDL is read in bounded time, with errors that name the place."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.envs.alfworld.native.formulas import Atom, GameError, Junction, Match, Quantified, TypeScan, cases, plan
from gagpo.envs.alfworld.native.pddl import nested, read_domain, read_problem
from tests.envs.alfworld import native_den

DOMAIN = native_den.DOMAIN
PROBLEM = native_den.PROBLEM


def test_nested_lists_are_lower_case_and_without_comments():
    assert nested("(Define (a ?X) ; (\n B-c)") == ["define", ["a", "?x"], "b-c"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected"),
        ("\n\n(a))", "line 3: nothing may follow"),
        (") (", "line 1: expected"),
        ("(a\n(b)", "line 2: the text ends inside 1 open"),
        ("(a) b", "nothing may follow"),
        ("(a\n caf\u00e9)", "line 2: a character that is not ASCII"),
        ("(" * 1000, "line 1: more than 100 nested"),
    ],
)
def test_a_broken_list_is_refused_with_its_line(text, message):
    with pytest.raises(GameError, match=message):
        nested(text)


def test_types_know_all_their_supertypes():
    types = read_domain(DOMAIN).types
    assert types["toy"] == ("object", "thing") and types["object"] == ()


def test_a_problem_has_typed_objects_facts_and_a_goal():
    problem = read_problem(PROBLEM, read_domain(DOMAIN))
    assert problem.objects["hall_bar_1"] == "place"
    assert ("lit", "hall_bar_1") in problem.facts
    assert isinstance(problem.goal, Junction) and len(problem.goal.parts) == 3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(lit hall_bar_1)", "(bright hall_bar_1)", "unknown predicate in \\(bright hall_bar_1\\)"),
        ("(lit hall_bar_1)", "(lit)", "0 arguments, not 1"),
        ("(lit hall_bar_1)", "(lit cellar)", "unknown object cellar"),
        ("(lit hall_bar_1)", "(lit (hall_bar_1))", "unknown object"),
        ("(lit hall_bar_1)", "(lit lit)", "unknown object lit"),
        ("(lit hall_bar_1)", "((lit))", "unknown predicate"),
        ("(lit hall_bar_1)", "lit", ":init: expected"),
        ("anvil_bar_1 - thing", "anvil_bar_1 - nothing", "unknown type nothing"),
        ("anvil_bar_1 - thing", "anvil_bar_1 -", "no type after '-'"),
        ("anvil_bar_1 - thing", "ball_bar_1 - thing", "ball_bar_1 is defined twice"),
        ("(:domain den)", "(:domain house)", "the problem is for domain"),
        ("(:goal", "(:aim", "there is no :goal"),
        ("(clean ?x)", "(shiny ?x)", ":goal: unknown predicate shiny"),
        ("(clean ?x)", "(clean ?z)", ":goal: unknown name \\?z"),
        ("(clean ?x)", "(clean ball)", ":goal: unknown name ball"),
        ("(clean ?x)", "(not)", ":goal: not takes 1 arguments"),
        ("(clean ?x)", "()", ":goal: expected a condition"),
    ],
)
def test_a_broken_problem_is_refused_with_its_place(old, new, message):
    assert old in PROBLEM
    with pytest.raises(GameError, match=message):
        read_problem(PROBLEM.replace(old, new, 1), read_domain(DOMAIN))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(lit ?p))))", "(bright ?p))))", "action flip: unknown predicate bright"),
        (":effect (seen hall_bar_1)", ":effekt (seen hall_bar_1)", "action wait: unknown :effekt"),
        (":effect (seen hall_bar_1)", ":effect (= ?a ?a)", "action wait: .* cannot be an effect"),
        ("(:action wait", "(:action walk", "walk is defined twice"),
        ("(:action wait", "(:derived wait", ":derived is not supported"),
        ("box toy - thing", "box toy - gadget", "unknown supertype gadget"),
        ("(define (domain den)", "(define (domain)", "expected \\(domain NAME\\)"),
    ],
)
def test_a_broken_domain_is_refused_with_its_place(old, new, message):
    assert old in DOMAIN
    with pytest.raises(GameError, match=message):
        read_domain(DOMAIN.replace(old, new, 1))


@pytest.mark.parametrize(
    "text",
    [
        "(define (domain d) (:types " + " ".join(f"t{i} - t{i + 1}" for i in range(30_000)) + "))",
        "(define (domain d) " + "(:action a) " * 100_000 + ")",
        "(define (domain d) (:predicates (p)) (:action a :precondition (and "
        + "(or (p) (p)) " * 50_000
        + ") :effect (p)))",
        "(" * 2_000_000,
        "(a " * 90 + ")" * 200,
    ],
)
def test_hostile_text_ends_in_an_error_within_seconds(text):
    started = time.monotonic()
    with pytest.raises(GameError):
        domain = read_domain(text)
        for action in domain.actions.values():
            cases(action.precondition)
    assert time.monotonic() - started < 20


A, B, C = Atom("a", ("?x",)), Atom("b", ("?x",)), Atom("c", ("?y",))


def test_conditions_become_alternatives_with_quantifiers_in_front():
    results = cases(Junction(True, (A, Junction(False, (B, Quantified(False, (("?y", "t"),), C))))))
    assert [(case.positive, case.variables) for case in results] == [((A, B), ()), ((A, C), (("?y", "t"),))]


names = st.sampled_from("pqr")


@st.composite
def formulas(draw, depth=3):
    """Conditions over three propositions, and their value under an assignment."""
    if depth == 0 or draw(st.booleans()):
        return Atom(draw(names), (), draw(st.booleans()))
    segments = draw(st.lists(formulas(depth=depth - 1), max_size=3))
    return Junction(draw(st.booleans()), tuple(segments))


def value(formula, true):
    if isinstance(formula, Atom):
        return (formula.predicate in true) != formula.negated
    return (all if formula.conjunctive else any)(value(segment, true) for segment in formula.parts)


@settings(deadline=None)
@given(formulas(), st.sets(names))
def test_alternatives_are_true_exactly_when_the_condition_is(formula, true):
    alternatives = [
        all(atom.predicate in true for atom in case.positive)
        and not any(atom.predicate in true for atom in case.negative)
        for case in cases(formula)
    ]
    assert any(alternatives) == value(formula, true)


def test_lookups_begin_with_checks_then_follow_what_is_known():
    location, inside, type_name = Atom("place", ("?r", "?l")), Atom("in", ("?o", "?r")), Atom("kind", ("?r", "sink"))
    variables = [("?r", "t"), ("?l", "t"), ("?o", "t"), ("?z", "t")]
    steps = plan([inside, type_name, location], variables, {"?l"}, frozenset({"in"}))
    assert [step.predicate if isinstance(step, Match) else step for step in steps] == [
        "place",
        "kind",
        "in",
        TypeScan("?z", "t"),
    ]
