# ruff: noqa: E501 (the grammar's rules stand on one line each)
"""A small game with PDDL features that ALFWorld's domain lacks: subtypes, "for all", unusual templates."""

import json
from pathlib import Path
from typing import Any

DOMAIN = """
(define (domain den) ; not a household
 (:requirements :adl :typing)
 (:types agent place thing - object  box toy - thing)
 (:constants hall_bar_1 - place)
 (:predicates (at ?a - agent ?p - place) (in ?t - thing ?p - place) (carried ?t - thing) (lit ?p - place)
   (next ?p - place ?q - place) (clean ?t - thing) (seen ?p - place) (heavy ?t - thing) (stacked ?x - thing ?y - thing))
 (:functions (total-cost) - number)
 (:action walk :parameters (?a - agent ?p - place ?q - place)
  :precondition (and (at ?a ?p) (or (next ?p ?q) (next ?q ?p)))
  :effect (and (not (at ?a ?p)) (at ?a ?q) (seen ?q) (increase (total-cost) 1)))
 (:action grab :parameters (?a - agent ?t - thing ?p - place)
  :precondition (and (at ?a ?p) (in ?t ?p) (not (heavy ?t)) (forall (?x - thing) (not (carried ?x)))
    (not (exists (?y - thing) (stacked ?y ?t))))
  :effect (and (carried ?t) (not (in ?t ?p)) (forall (?y - thing) (not (stacked ?t ?y)))))
 (:action drop :parameters (?a - agent ?t - thing ?p - place)
  :precondition (and (at ?a ?p) (carried ?t))
  :effect (and (in ?t ?p) (not (carried ?t)) (when (not (lit ?p)) (not (clean ?t)))))
 (:action stack :parameters (?a - agent ?t - thing ?b - box ?p - place)
  :precondition (and (at ?a ?p) (carried ?t) (in ?b ?p) (not (= ?t ?b)))
  :effect (and (in ?t ?p) (not (carried ?t)) (stacked ?t ?b)))
 (:action flip :parameters (?a - agent ?p - place)
  :precondition (at ?a ?p)
  :effect (and (when (lit ?p) (not (lit ?p))) (when (not (lit ?p)) (lit ?p))))
 (:action sweep :parameters (?a - agent ?p - place)
  :precondition (imply (at ?a ?p) (lit ?p))
  :effect (forall (?t - thing) (when (in ?t ?p) (clean ?t))))
 (:action wait :parameters (?a - agent) :precondition () :effect (seen hall_bar_1))
)
"""

GRAMMAR = '''
# a comment
grammar :: """
{
 "intro": [{"rhs": "Den.\\n\\n  #where#\\n\\n#task#"}],
 "task": [{"rhs": "Your task is to: tidy up."}],
 "where": [
  {"condition": "at(a:agent, p:place) & lit(p:place)", "rhs": "{#spot(a, p)# | at(a:agent, p:place)}"},
  {"condition": "at(a:agent, p:place) & not_lit(p:place)", "rhs": "It went dark here."},
  {"rhs": "It is dark."}
 ],
 "spot(a, p)": [{"rhs": "{p.name}, lit by {a.definite} {a.id}: [{t.indefinite + ' ' + t.name | in(t:object, p:place)}]. {#pair(x, y)# | stacked(x:thing, y:thing)}"}],
 "pair(x, y)": [
  {"condition": "clean(x:thing) & clean(y:thing)", "rhs": "<stray"},
  {"rhs": "({x.name or 'x'} on {y.name if y.type == 'box' else 'it'})"}
 ],
 "list_empty": [{"rhs": "nothing"}], "list_separator": [{"rhs": ", "}], "list_last_separator": [{"rhs": ", and "}]
}
""";
action walk { template :: "walk to {q}"; feedback :: "#arrive#";
  grammar :: """
  # dropped
  {"arrive": [{"condition": "at(a:agent, q:place) & lit(q:place)", "rhs": "At {q.name} you see [{t.name | in(t:thing, q:place)}] and [{b.name | in(b:box, q:place)}]."},
    {"condition": "not_lit(q:place)", "rhs": "It went dark at {q.name}."}, {"rhs": "\\tIt is dark at {q.name}."}]}
  """; }
action grab { template :: "grab {t}"; feedback :: "You hold {t.name}#clean#."; }
action drop { template :: "drop {t}"; feedback :: "You drop {t.name}#clean#, beside [{x.name | in(x:thing, p:place)}]."; }
action stack { template :: "stack {t} on {b}"; feedback :: "{t.name} is on {b.name}: {#pair(x, y)# | stacked(x:thing, y:thing)}"; }
action flip { template :: "flip"; feedback :: "Click. #where#"; }
action sweep { template :: "sweep {p}"; feedback :: "[{t.name | clean(t:thing)}] shine; [{t.name | not_clean(t:thing)}] were clean."; }
action wait { template :: "wait"; feedback :: "   [{#pair(x, y)# | next(x:place, y:place)}] // time passes"; }
grammar :: """{"clean": [{"condition": "clean(t:thing)", "rhs": " (clean)"}, {"condition": "not_clean(t:thing)", "rhs": " (no longer clean)"}, {"rhs": ""}]}""";
'''

PROBLEM = """
(define (problem d) (:domain den)
 (:objects me_bar_1 - agent  attic_bar_1 attic_bar_2 shed_bar_1 - place  crate_bar_1 crate_bar_2 - box
   ball_bar_1 ball_bar_2 doll_minus__bar_1 - toy anvil_bar_1 - thing)
 (:init (= (total-cost) 0) (at me_bar_1 hall_bar_1) (next hall_bar_1 attic_bar_1) (next attic_bar_1 attic_bar_2)
   (next hall_bar_1 shed_bar_1) (lit hall_bar_1) (lit attic_bar_2) (heavy anvil_bar_1)
   (in crate_bar_1 hall_bar_1) (in crate_bar_2 attic_bar_1) (in ball_bar_1 attic_bar_1) (in ball_bar_2 hall_bar_1)
   (in doll_minus__bar_1 shed_bar_1) (in anvil_bar_1 hall_bar_1) (clean ball_bar_2) (clean doll_minus__bar_1))
 (:goal (and (forall (?t - toy) (imply (not (clean ?t)) (in ?t shed_bar_1)))
    (exists (?x - toy) (exists (?y - box) (and (stacked ?x ?y) (clean ?x)))) (at me_bar_1 hall_bar_1)))
 (:metric minimize (total-cost)))
"""


def write(folder: Path, **changes: Any) -> Path:
    """Write the game to a file, with fields replaced by ``changes``."""
    game = {"pddl_domain": DOMAIN, "grammar": GRAMMAR, "pddl_problem": PROBLEM, "solvable": True, "walkthrough": []}
    path = folder / "game.tw-pddl"
    path.write_text(json.dumps(game | changes), encoding="utf-8")
    return path
