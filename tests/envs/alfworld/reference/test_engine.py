"""TextWorld as the reference engine: its cache changes no text, it has no side effects and runs no code of games."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("textworld")
if sys.version_info >= (3, 13):
    pytest.skip("TextWorld needs locals() as they were before PEP 667", allow_module_level=True)

from gagpo.envs.alfworld.engine import BrokenGame
from gagpo.envs.alfworld.games.catalogue import TASK_TYPES
from gagpo.envs.alfworld.games.generate import files_of
from gagpo.envs.alfworld.reference.engine import TextWorldEngine
from tests.rejections import rejects

pytestmark = pytest.mark.textworld


@pytest.fixture(scope="module")
def engine():
    engine = TextWorldEngine()
    yield engine
    engine.close()


def game(tmp_path: Path, task_type: str = TASK_TYPES[0], size: str = "small", index: int = 0, **changes: str) -> Path:
    content = json.loads(files_of(size, 0, ("train", task_type, index)).game) | changes
    path = tmp_path / "game.tw-pddl"
    path.write_text(json.dumps(content))
    return path


def test_remembering_changes_no_text(tmp_path: Path) -> None:
    path = game(tmp_path, TASK_TYPES[3])
    plan = files_of("small", 0, ("train", TASK_TYPES[3], 0)).plan
    commands = ["look", "inventory", "help", "", "GO TO fridge 1", *plan, "look"]
    transcripts = []
    for memoise in (False, True):
        engine = TextWorldEngine(memoise=memoise)
        transcripts.append([engine.reset(path), *map(engine.step, commands), engine.reset(path)])
        engine.close()
    assert transcripts[0] == transcripts[1]
    assert transcripts[0][-2].won


def test_the_state_key_is_the_state(engine, tmp_path: Path) -> None:
    start = engine.reset(game(tmp_path))
    assert engine.step("help").state == start.state
    assert engine.step("nonsense").state == start.state
    observed = {start.state}
    plan = files_of("small", 0, ("train", TASK_TYPES[0], 0)).plan
    for command in plan:
        observed.add(engine.step(command).state)
    assert len(observed) == len(plan) + 1
    take = next(command for command in plan if command.startswith("take"))
    assert engine.reset(game(tmp_path)).state == start.state
    before = None
    for command in plan[: plan.index(take)]:
        before = engine.step(command).state
    _, item, number, _, *location = take.split()
    assert engine.step(take).state != before
    assert engine.step(f"move {item} {number} to {' '.join(location)}").state == before
    assert engine.reset(game(tmp_path, index=1)).state != start.state


@pytest.mark.parametrize(("size", "steps"), [("small", 120), ("full", 30)])
def test_equal_keys_mean_equal_scenes(engine, tmp_path: Path, size: str, steps: int) -> None:
    rng = np.random.default_rng(0)
    scene = engine.reset(game(tmp_path, TASK_TYPES[2], size))
    scenes: dict[str, set[tuple[str, ...]]] = {}
    for _ in range(steps):
        # Handling things makes states meet again; wandering off does not.
        handling = [c for c in scene.admissible_commands if c.split()[0] in ("take", "move", "open", "close", "clean")]
        scene = engine.step(str(rng.choice(handling or scene.admissible_commands)))
        output = (engine.step("look").observation, engine.step("inventory").observation, *scene.admissible_commands)
        scenes.setdefault(scene.state, set()).add(output)
    assert all(len(output) == 1 for output in scenes.values())
    assert 2 < len(scenes) < steps


def test_the_process_is_left_as_it_was(engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fast_downward

    monkeypatch.setattr(sys, "argv", ["mine", "--own"])
    out, translate = sys.stdout, fast_downward.pddl2sas
    engine.reset(game(tmp_path))
    engine.step("look")
    assert (sys.argv, sys.stdout, fast_downward.pddl2sas) == (["mine", "--own"], out, translate)


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('pathlib').Path(%r).touch()",
        "r.__class__.__name__ + str(open(%r, 'w'))",
        "open(%r, 'w').name",
    ],
)
def test_a_grammar_runs_no_code(engine, tmp_path: Path, expression: str) -> None:
    evidence = tmp_path / "evidence"
    code = expression % str(evidence)
    grammar = json.loads(files_of("small", 0, ("train", TASK_TYPES[0], 0)).game)["grammar"]
    task = grammar[grammar.index("Your task is to: ") :].split('"', 1)[0]
    for bad in (
        grammar.replace(task, "Your task is to: {" + code + "}."),
        grammar.replace("You close the {r.name}.", "You close the {" + code + "}."),
        grammar.replace('template :: "open {r}"', 'template :: "open {' + code + '}"'),
    ):
        assert bad != grammar
        with pytest.raises(BrokenGame):
            engine.reset(game(tmp_path, grammar=bad))
    assert not evidence.exists()


def test_what_cannot_be_loaded_is_named_and_the_next_game_is_played(engine, tmp_path: Path) -> None:
    with rejects(BrokenGame, where="game.tw-pddl"):
        engine.reset(game(tmp_path, pddl_problem="(define (problem x)"))
    with pytest.raises(RuntimeError, match="reset"):
        engine.step("look")
    engine.reset(game(tmp_path))
