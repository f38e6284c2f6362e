"""Pages that a small model learns to find and to copy on."""

import itertools

from benchmarks.starters.web_pages import exercises
from gagpo.envs.web.naming import parse_named


def test_the_action_of_an_exercise_is_done_to_its_line_and_every_kind_is_drawn():
    drawn = list(itertools.islice(exercises(3), 400))
    for exercise in drawn:
        if exercise.command is not None:
            assert parse_named(exercise.action, exercise.page.web_page) == exercise.command
            line = exercise.page.web_page.line(exercise.command.number)
            assert line is not None and line.usable
    kinds = {exercise.action.split("[")[0] for exercise in drawn}
    assert kinds == {"click", "type"}
    assert len({exercise.instruction for exercise in drawn}) > 350


def test_what_is_named_stands_on_the_page_or_in_the_instruction():
    for exercise in itertools.islice(exercises(4), 200):
        name = exercise.action.split("[", 1)[1].split("]")[0]
        assert name in str(exercise.page) or f"[{name}]" in str(exercise.page)


def test_a_seed_draws_the_same_exercises():
    first, second = (list(itertools.islice(exercises(7), 20)) for _ in range(2))
    assert [(e.instruction, str(e.page), e.action) for e in first] == [
        (e.instruction, str(e.page), e.action) for e in second
    ]
    episode = first[0].episode(0)
    assert episode.success
    assert episode.turns[0].observation.startswith(first[0].instruction)
