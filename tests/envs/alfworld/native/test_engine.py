"""The native engine on a small game, without ALFWorld and TextWorld."""

import hashlib
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gagpo.envs.alfworld.engine import BrokenGame, Scene
from gagpo.envs.alfworld.native.engine import GameCache, NativeEngine
from tests.envs.alfworld import native_den

START = [
    "flip", "grab ball 1", "grab crate 2", "sweep attic 1", "sweep attic 2", "sweep hall 1", "sweep shed 1", "wait",
    "walk to attic 2", "walk to shed 1",
]  # fmt: skip


@pytest.fixture
def den(tmp_path):
    return native_den.write(tmp_path)


def play(engine: NativeEngine, game: Path, *commands: str) -> list[Scene]:
    return [engine.reset(game), *[engine.step(command) for command in commands]]


def test_a_game_begins_with_its_intro_and_its_commands(den):
    (scene,) = play(NativeEngine(), den)
    # Two paths in the type hierarchy lead to a box, so TextWorld lists crates twice.
    assert scene.observation == (
        "Den.\n\n  hall 1, lit by the me_bar_1: a crate 2, a anvil 1, a ball 1, a crate 2, and a ball 1. "
        "\n\nYour task is to: tidy up."
    )
    assert scene.admissible_commands == START
    assert (scene.won, scene.done, scene.score) == (False, False, 0)


def test_effects_follow_their_conditions(den):
    commands = ["walk to attic 2", "flip", "grab ball 2", "drop ball 2", "sweep shed 1", "walk to hall 1", "flip"]
    scenes = play(NativeEngine(), den, *commands)
    assert [scene.observation for scene in scenes[1:]] == [
        "It is dark at attic 2.",
        "Click. It went dark here.",  # the text applies both effects, the removal last
        "You hold ball 2.",
        "You drop ball 2, beside crate 1, and ball 2.",
        "anvil 1, crate 2, crate 1, ball 2, ball 1, and doll_minus_ 1 shine",  # read up to the stray mark
        "At hall 1 you see anvil 1, crate 2, and ball 1 and crate 2.",
        "Click. It went dark here.",
    ]


def test_one_object_is_held_at_a_time_and_supports_cannot_be_taken(den):
    scenes = play(NativeEngine(), den, "grab ball 1", "stack ball 1 on crate 2")
    assert not any(command.startswith("grab") for command in scenes[1].admissible_commands)
    assert "grab crate 2" not in scenes[2].admissible_commands
    assert "grab ball 1" in scenes[2].admissible_commands


def test_an_inadmissible_command_changes_nothing(den):
    engine = NativeEngine()
    start = engine.reset(den)
    for command in ("", "  ", "Flip", "flip flip", "grab anvil 1", "看", "x" * 5000, "flip\x00", "{t}", "#where#"):
        scene = engine.step(command)
        assert scene == Scene("Nothing happens.", START, state=start.state)
    assert engine.step(" \t flip \n").observation == "Click. It went dark here."


def test_the_game_is_won_and_lost_again_by_its_goal(den):
    plan = ["sweep attic 2", "grab ball 1", "stack ball 1 on crate 2", "walk to shed 1", "flip", "walk to hall 1"]
    scenes = play(NativeEngine(), den, *plan)
    assert [scene.won for scene in scenes] == [False, False, False, True, False, False, True]
    assert [scene.done for scene in scenes] == [scene.won for scene in scenes]
    assert [scene.score for scene in scenes] == [int(scene.won) for scene in scenes]


def test_the_state_key_tells_states_apart_and_comes_back_with_them(den):
    engine = NativeEngine()
    start, walked, back, waited = (s.state for s in play(engine, den, "walk to shed 1", "walk to hall 1", "wait"))
    assert start == back == waited != walked
    assert engine.reset(den).state == start


def test_scenes_do_not_change_when_play_goes_on(den):
    engine = NativeEngine()
    first = engine.reset(den)
    first.admissible_commands.clear()
    assert engine.step("nonsense").admissible_commands == START
    assert engine.reset(den).admissible_commands == START


def numbered_games(root: Path, count: int) -> list[Path]:
    games = []
    for number in range(count):
        folder = root / str(number)
        folder.mkdir()
        games.append(native_den.write(folder, grammar=native_den.GRAMMAR.replace("tidy up", f"tidy up {number}")))
    return games


def test_one_engine_plays_many_games_in_turn_and_drops_the_oldest(tmp_path):
    engine = NativeEngine(GameCache(size=2))
    games = numbered_games(tmp_path, 4)
    for _ in range(2):
        for number, game in enumerate(games):
            assert engine.reset(game).observation.endswith(f"Your task is to: tidy up {number}.")
    retained = [engine.games.start(game) for game in games[2:]]
    assert [engine.games.start(game) is position for game, position in zip(games[2:], retained, strict=True)] == [
        True
    ] * 2
    assert len({id(position.game.logic) for position in retained}) == 1
    assert (
        engine.games.start(games[0]) is not engine.games.start(games[1]) and engine.games.start(games[2]) != retained[0]
    )


def test_a_changed_file_is_read_again(den):
    engine = NativeEngine()
    engine.reset(den)
    native_den.write(den.parent, grammar=native_den.GRAMMAR.replace("Den.", "A cosy den."))
    assert engine.reset(den).observation.startswith("A cosy den.")


def test_closing_twice_is_harmless_and_a_step_needs_a_game(den):
    engine = NativeEngine()
    with pytest.raises(RuntimeError, match="reset"):
        engine.step("look")
    engine.reset(den)
    engine.close()
    engine.close()
    with pytest.raises(RuntimeError, match="reset"):
        engine.step("look")


def transcript(game: Path) -> str:
    """Digest of all texts, commands and keys of 400 random steps."""
    engine = NativeEngine()
    rng = random.Random(5)
    scene = engine.reset(game)
    digest = hashlib.sha256()
    for _ in range(400):
        digest.update(json.dumps([scene.observation, scene.admissible_commands, scene.won, scene.state]).encode())
        scene = engine.step(rng.choice(scene.admissible_commands))
    return digest.hexdigest()[:16]


TRANSCRIPT = "31094b26cf5185b0"


def test_texts_and_keys_are_the_same_in_every_process_and_python(den):
    code = (
        f"import sys; sys.path[:0] = {[*sys.path]!r}\n"
        f"import tests.envs.alfworld.native.test_engine as t\nprint(t.transcript(t.Path({str(den)!r})))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": "1"}, capture_output=True, text=True,
        timeout=60, check=True, cwd=Path(__file__).parents[4],
    )  # fmt: skip
    assert run.stdout.strip() == TRANSCRIPT
    assert transcript(den) == TRANSCRIPT


# Games that cannot be played ------------------------------------------------------------------------------------------


def refused(path: Path) -> str:
    with pytest.raises(BrokenGame) as error:
        NativeEngine().reset(path)
    message = str(error.value)
    assert message.startswith(str(path)) and "\n" not in message and len(message) < 500
    return message


def test_broken_files_are_refused_with_file_and_place(den, tmp_path):
    content = den.read_text()
    den.write_text(content[: len(content) // 2])
    assert "line 1, column" in refused(den)
    den.write_text("[" * 4_000_000)
    assert "nested too deeply" in refused(den)
    with den.open("wb") as file:
        file.truncate(50_000_000)
    assert "50000000 bytes" in refused(den)
    assert "cannot be read" in refused(tmp_path / "none.tw-pddl")


@pytest.mark.parametrize(
    ("field", "old", "new", "message"),
    [
        ("pddl_problem", "(:goal", "(:gaol", "pddl_problem: there is no :goal"),
        ("pddl_problem", "(lit attic_bar_2)", "(bright attic_bar_2)", "pddl_problem: :init: unknown predicate"),
        ("pddl_domain", "(lit ?p))))", "(bright ?p))))", "pddl_domain: action flip: unknown predicate bright"),
        ("pddl_domain", "(define", "(" * 4_000_000, "pddl_domain: line 2: more than 100 nested"),
        ("grammar", '"rhs": "Den.', '"rhs": "#intro#', "grammar: circular rules: intro -> intro"),
        ("grammar", '" (clean)"', '"#clean#"', "grammar: circular rules: clean -> clean"),
        ("grammar", "#arrive#", "#arive#", "there is no rule arive"),
        ("grammar", "action wait", "action weight", "there is no action wait"),
        ("grammar", "{t.name}#clean#.", "{__import__('os').abort()}", "is not allowed"),
        ("grammar", "{t.name}#clean#.", "{t.name.format(t)}", "is not allowed"),
        ("grammar", "{t.name}#clean#.", "{s.name}", "action grab: expression 's.name': unknown name s"),
        ("grammar", "clean(t:thing)", "clean(t:thong)", "unknown type thong"),
        ("grammar", '"walk to {q}"', '"[{t.name | carried(t:thing)}]"', "the command depends on facts that change"),
    ],
)
def test_broken_texts_are_refused_with_file_and_place(den, field, old, new, message):
    texts = {"pddl_problem": native_den.PROBLEM, "pddl_domain": native_den.DOMAIN, "grammar": native_den.GRAMMAR}
    assert old in texts[field]
    native_den.write(den.parent, **{field: texts[field].replace(old, new, 1)})
    assert message in refused(den)


def test_rules_that_multiply_are_refused_when_compiled_or_rendered(den):
    doubling = ", ".join(f'"r{i}": [{{"rhs": "#r{i + 1}##r{i + 1}#"}}]' for i in range(40))
    grammar = (
        native_den.GRAMMAR + f'grammar :: """{{"where": [{{"rhs": "#r0#"}}], {doubling}, "r40": [{{"rhs": "x"}}]}}""";'
    )
    native_den.write(den.parent, grammar=grammar)
    assert "parts" in refused(den)
    nested = "".join(f'"r{i}": [{{"rhs": "{{#r{i + 1}# | in(t{i}:thing, p:place)}}"}}], ' for i in range(12))
    grammar = (
        native_den.GRAMMAR + f'grammar :: """{{"where": [{{"rhs": "#r0#"}}], {nested} "r12": [{{"rhs": "x"}}]}}""";'
    )
    toys = [f"toy_bar_{i}" for i in range(60)]
    problem = native_den.PROBLEM.replace("ball_bar_1 ball_bar_2", f"ball_bar_1 ball_bar_2 {' '.join(toys)}")
    problem = problem.replace("(:init", "(:init" + "".join(f"(in {toy} hall_bar_1)" for toy in toys))
    native_den.write(den.parent, grammar=grammar, pddl_problem=problem)
    assert "the game is too large" in refused(den)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the process's memory from /proc")
@pytest.mark.slow
def test_memory_stays_flat_over_ten_thousand_episodes(tmp_path):
    games = numbered_games(tmp_path, 6)
    engine = NativeEngine(GameCache(size=4))
    rng = random.Random(0)
    for episode in range(10_000):
        # Every fifth episode makes the engine drop a game and compile another.
        scene = engine.reset(games[(episode // 5) % 6])
        for _ in range(3):
            scene = engine.step(rng.choice(scene.admissible_commands))
        if episode == 2_000:
            before = resident_bytes()
    assert resident_bytes() - before < 4_000_000


@pytest.mark.parametrize("field", ["pddl_problem", "pddl_domain", "grammar"])
def test_a_garbled_game_is_refused_or_played_but_never_crashes(den, field):
    text = {"pddl_problem": native_den.PROBLEM, "pddl_domain": native_den.DOMAIN, "grammar": native_den.GRAMMAR}[field]
    matches = re.findall(r"\w+|\s+|[^\w\s]", text)
    rng = random.Random(field)
    refusals = 0
    for _ in range(250):
        garbled = list(matches)
        for _ in range(rng.choice((1, 2, 4))):
            at, other = rng.randrange(len(matches)), rng.randrange(len(matches))
            garbled[at], garbled[other] = rng.choice([(garbled[other], garbled[at]), ("", garbled[other])])
        native_den.write(den.parent, **{field: "".join(garbled)})
        engine = NativeEngine()
        try:
            scene = engine.reset(den)
            for _ in range(10):
                scene = engine.step(rng.choice(scene.admissible_commands or ["wait"]))
        except BrokenGame:
            refusals += 1
    assert refusals > 25
