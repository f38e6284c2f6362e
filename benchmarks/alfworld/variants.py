"""Games changed in the ways that released games differ from generated ones, for comparing engines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from gagpo.envs.alfworld.engine import GameData, read_game
from gagpo.envs.alfworld.games.text_style import plan_with_put, with_put

# Human task descriptions are free text; these hold the marks that text grammars give a meaning to.
TASKS = (
    "put the   mug's lid -- carefully! -- on the counter (the left one), then stop",
    "Pick up the apple; place it in the fridge",
    "heat an egg | put it on the table",
    "// clean the pan & put it away",
    "  move 2 books to the #1 shelf",
    "turn on the lamp, look at the <cd>",
    "get the so-called 'good' knife: it's on the table. Slice the tomato?",
    "pon el plato sucio en el café \u2014 na\u00efve \u5367\u5ba4",
    "place a cup] in [the microwave}",
    'say \\"hello\\" to the mug\\nand heat it\\tup',
)


def _old_verb(game: GameData, number: int) -> None:
    """Releases before 0.4 say "put O in/on R"."""
    game["grammar"] = with_put(game["grammar"])
    game["walkthrough"] = plan_with_put(game.get("walkthrough") or [])


def _human_task(game: GameData, number: int) -> None:
    """Somebody's own words for the task."""
    task = TASKS[number % len(TASKS)]
    game["grammar"] = re.sub(
        r"Your task is to: [^\"]*", lambda _: f"Your task is to: {task}.", game["grammar"], count=1
    )


def _slicing(game: GameData, number: int) -> None:
    """Everything that a knife can lie beside can be sliced, and knives lie about."""
    problem = game["pddl_problem"]
    pairs = re.findall(r"\(objectType ([^\s?()]+) ([^\s?()]+)Type\)", problem)
    facts = [f"(sliceable {name})" for name, kind in pairs if f"(sliceable {name})" not in problem]
    knives = [name for name, kind in pairs if kind in ("Knife", "ButterKnife")]
    if not knives and pairs:
        turned = next((name for name, _ in pairs if f"(pickupable {name})" in problem), pairs[0][0])
        if "ButterKnifeType" not in problem:
            problem = problem.replace("agent1 - agent", "agent1 - agent\n        ButterKnifeType - otype", 1)
        facts.append(f"(objectType {turned} ButterKnifeType)")
    game["pddl_problem"] = problem.replace("(:init", "(:init\n        " + "\n        ".join(facts), 1)


def _crowded(game: GameData, number: int) -> None:
    """All receptacles stand at two places, so that one faces many of them, and what moved shows on the floor."""
    problem = game["pddl_problem"]
    places = re.findall(r"\(receptacleAtLocation ([^\s?()]+) ([^\s?()]+)\)", problem)
    spots = sorted({place for _, place in places})[:2]
    for turn, (receptacle, place) in enumerate(sorted(places)):
        problem = problem.replace(
            f"(receptacleAtLocation {receptacle} {place})",
            f"(receptacleAtLocation {receptacle} {spots[turn % len(spots)]})",
        )
    game["pddl_problem"] = problem


def _states_told(game: GameData, number: int) -> None:
    """A grammar that says more: receptacles with their state, lamps by whether they are on, three lists in one."""
    grammar = game["grammar"]
    grammar = grammar.replace("#overview(r)#", "#overview_with_state(r)#")
    grammar = grammar.replace(
        "There's nothing special about {o.name}.",
        "Nothing about {o.name} ({o.id} of {o.type}), beside [{x.name + '!' | inreceptacle(x:object, y:receptacle)}].",
    )
    grammar = grammar.replace(
        "You turn on the {o.name}.",
        "You use {o.definite} {o.name}, #lamp-state#, of "
        "{t.definite + ' ' + t.id or 'no type' | objecttype(o:object, t:otype)}.",
    )
    grammar = grammar.replace(
        '"list_empty": [',
        '"lamp-state": [{"condition": "ison(o:object)", "rhs": "on"}, '
        '{"condition": "not_ison(o:object)", "rhs": "off"}, {"rhs": "unknown"}],\n            "list_empty": [',
    )
    game["grammar"] = grammar


VARIANTS: dict[str, Callable[[GameData, int], None]] = {
    "as is": lambda game, number: None,
    "old verb": _old_verb,
    "human task": _human_task,
    "slicing": _slicing,
    "crowded": _crowded,
    "states told": _states_told,
}


def write_variant(source: Path, variant: str, target: Path) -> Path:
    """Write the game at ``source`` in ``variant`` to ``target`` and return ``target``."""
    game = read_game(source)
    del game["digest"]
    VARIANTS[variant](game, sum(source.parent.name.encode()))
    target.write_text(json.dumps(game), encoding="utf-8")
    return target
