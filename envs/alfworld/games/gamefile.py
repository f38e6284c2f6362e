"""The files of a game, ``game.tw-pddl`` and ``traj_data.json``, in the layout of released games."""

from __future__ import annotations

import json
from dataclasses import dataclass

from gagpo.envs.alfworld.games.package_data import PackageData
from gagpo.envs.alfworld.games.scenes import Scenario, walkthrough
from gagpo.envs.alfworld.games.text_style import plan_with_put, with_put
from gagpo.envs.alfworld.names import mangle

GAME = "game.tw-pddl"
TRAJECTORY = "traj_data.json"
UNKNOWN_GOAL = "UNKNOWN GOAL"


@dataclass(frozen=True)
class GameFiles:
    """folder: relative to the split. game, trajectory: contents of the two files. plan: commands that win the game."""

    folder: str
    game: str
    trajectory: str
    plan: tuple[str, ...]


def render(package: PackageData, problem: Scenario, trial: str, puts: bool = False, located: bool = False) -> GameFiles:
    """The files of ``problem``.

    trial: name of the folder below the goal's (letters, digits, underscores).
    puts: "put O in/on R" instead of "move O to R"; with ``located`` also "You arrive at loc 12." instead of "at R".
    """
    plan = walkthrough(package, problem)
    grammar = package.grammar
    if puts:
        plan = plan_with_put(plan)
        grammar = with_put(grammar, located)
    game = {
        "pddl_domain": package.domain,
        "grammar": grammar.replace(UNKNOWN_GOAL, problem.text),
        "pddl_problem": pddl_problem(package, problem),
        "solvable": True,
        "walkthrough": plan,
    }
    scene = problem.layout.scene
    trajectory = {
        "task_id": trial,
        "task_type": problem.task_type,
        "pddl_params": {
            "object_target": problem.object_type,
            "parent_target": problem.target,
            "toggle_target": problem.toggle,
            "mrecep_target": "",
            "object_sliced": False,
        },
        "scene": {"floor_plan": f"FloorPlan{scene}", "scene_num": scene},
        "turk_annotations": {"anns": [{"task_desc": problem.text, "high_descs": []}]},
    }
    goal = f"{problem.task_type}-{problem.object_type}-None-{problem.toggle or problem.target}-{scene}"
    return GameFiles(f"{goal}/{trial}", json.dumps(game), json.dumps(trajectory, indent=1), tuple(plan))


def pddl_problem(package: PackageData, problem: Scenario) -> str:
    """The problem in PDDL. Split and index do not enter: equal texts are equal problems."""
    layout = problem.layout
    place_types = sorted(layout.types)
    thing_types = sorted({thing.type for thing in problem.things})
    places = {place.id: place for place in layout.receptacles}
    location_of = {place.id: mangle(layout.locations[place.location]) for place in layout.receptacles}
    objects = ["agent1 - agent"]
    objects += [f"{kind}Type - rtype" for kind in place_types]
    objects += [f"{kind}Type - otype" for kind in thing_types]
    objects += sorted(f"{mangle(thing.id)} - object" for thing in problem.things)
    objects += sorted(f"{mangle(place)} - receptacle" for place in places)
    objects += sorted(f"{mangle(location)} - location" for location in layout.locations)

    facts = [f"(receptacleType {mangle(place.id)} {place.type}Type)" for place in layout.receptacles]
    facts += [f"(objectType {mangle(thing.id)} {thing.type}Type)" for thing in problem.things]
    facts += [
        f"(canContain {place}Type {thing}Type)"
        for place in place_types
        for thing in thing_types
        if thing in package.contains.get(place, ())
    ]
    lamps = package.abilities["toggleable"]
    facts += [f"(pickupable {mangle(thing.id)})" for thing in problem.things if thing.type not in lamps]
    facts += [f"(isReceptacleObject {mangle(thing.id)})" for thing in problem.things if thing.type in package.vessels]
    facts += [f"(openable {mangle(place.id)})" for place in layout.receptacles if place.type in package.openable]
    facts.append(f"(atLocation agent1 {mangle(layout.locations[0])})")
    for ability in sorted(package.abilities):
        capable_types = package.abilities[ability]
        facts += [f"({ability} {mangle(thing.id)})" for thing in problem.things if thing.type in capable_types]
    facts += [f"(inReceptacle {mangle(thing.id)} {mangle(thing.place)})" for thing in problem.things]
    facts += [f"(objectAtLocation {mangle(thing.id)} {location_of[thing.place]})" for thing in problem.things]
    facts += [f"(receptacleAtLocation {mangle(place)} {location_of[place]})" for place in places]

    goal = package.goals[problem.task_type][0]
    goal = goal.format(obj=problem.object_type, recep=problem.target, toggle=problem.toggle)
    join_lines = "\n        ".join
    return (
        f"(define (problem plan_{layout.scene})\n    (:domain alfred)\n"
        f"    (:objects\n        {join_lines(objects)}\n    )\n"
        f"    (:init\n        {join_lines(facts)}\n    )\n{goal}"
    )
