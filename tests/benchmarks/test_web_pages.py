"""Pages that a small model learns to find and to copy on."""

import itertools

import pytest

pytest.importorskip("gagpo.envs.web")

from benchmarks.starters.web_pages import exercises
from gagpo.envs.web.naming import parse_named, write_named


def test_an_answer_is_done_to_a_usable_line_and_every_kind_is_drawn():
    drawn = list(itertools.islice(exercises(3), 400))
    for exercise in drawn:
        page = exercise.page.web_page
        command = parse_named(exercise.answer, page)
        assert command.number is not None
        line = page.line(command.number)
        assert line is not None and line.usable
        assert write_named(command, page) == exercise.answer
    type_names = {exercise.answer.split("[")[0] for exercise in drawn}
    assert type_names == {"click", "type"}
    assert len({exercise.instruction for exercise in drawn}) > 350


def test_what_is_named_stands_on_the_page_or_in_the_instruction():
    for exercise in itertools.islice(exercises(4), 200):
        name = exercise.answer.split("[", 1)[1].split("]")[0]
        assert name in str(exercise.page) or f"[{name}]" in str(exercise.page)


def test_a_seed_draws_the_same_exercises():
    first, second = (list(itertools.islice(exercises(7), 20)) for _ in range(2))
    assert [(e.instruction, str(e.page), e.answer) for e in first] == [
        (e.instruction, str(e.page), e.answer) for e in second
    ]
    episode = first[0].episode(0)
    assert episode.success
    assert episode.turns[0].observation.startswith(first[0].instruction)
