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
    thing_types = sorted({item.type for item in problem.things})
    receptacles = {receptacle.id: receptacle for receptacle in layout.receptacles}
    location_of = {receptacle.id: mangle(layout.locations[receptacle.location]) for receptacle in layout.receptacles}
    objects = ["agent1 - agent"]
    objects += [f"{type_name}Type - rtype" for type_name in place_types]
    objects += [f"{type_name}Type - otype" for type_name in thing_types]
    objects += sorted(f"{mangle(item.id)} - object" for item in problem.things)
    objects += sorted(f"{mangle(receptacle)} - receptacle" for receptacle in receptacles)
    objects += sorted(f"{mangle(location)} - location" for location in layout.locations)

    facts = [f"(receptacleType {mangle(receptacle.id)} {receptacle.type}Type)" for receptacle in layout.receptacles]
    facts += [f"(objectType {mangle(item.id)} {item.type}Type)" for item in problem.things]
    facts += [
        f"(canContain {receptacle}Type {item}Type)"
        for receptacle in place_types
        for item in thing_types
        if item in package.contains.get(receptacle, ())
    ]
    lamps = package.abilities["toggleable"]
    facts += [f"(pickupable {mangle(item.id)})" for item in problem.things if item.type not in lamps]
    facts += [f"(isReceptacleObject {mangle(item.id)})" for item in problem.things if item.type in package.vessels]
    facts += [
        f"(openable {mangle(receptacle.id)})"
        for receptacle in layout.receptacles
        if receptacle.type in package.openable
    ]
    facts.append(f"(atLocation agent1 {mangle(layout.locations[0])})")
    for ability in sorted(package.abilities):
        capable_types = package.abilities[ability]
        facts += [f"({ability} {mangle(item.id)})" for item in problem.things if item.type in capable_types]
    facts += [f"(inReceptacle {mangle(item.id)} {mangle(item.place)})" for item in problem.things]
    facts += [f"(objectAtLocation {mangle(item.id)} {location_of[item.place]})" for item in problem.things]
    facts += [f"(receptacleAtLocation {mangle(receptacle)} {location_of[receptacle]})" for receptacle in receptacles]

    goal = package.goals[problem.task_type][0]
    goal = goal.format(obj=problem.object_type, recep=problem.target, toggle=problem.toggle)
    join_lines = "\n        ".join
    return (
        f"(define (problem plan_{layout.scene})\n    (:domain alfred)\n"
        f"    (:objects\n        {join_lines(objects)}\n    )\n"
        f"    (:init\n        {join_lines(facts)}\n    )\n{goal}"
    )
