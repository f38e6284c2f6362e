"""How long prompts, responses and episodes are: bounded by settings, measured in a run, or guessed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gagpo.base.errors import InvalidArgument
from gagpo.settings import EnvironmentSettings, RunSettings

MEASURED = ("mean_turns", "response_tokens", "tokens_per_second")  # metrics of a run that take the place of guesses
GUESSED_TURNS, GUESSED_RESPONSE = 0.5, 0.25  # share of the upper bounds that a usual episode, a usual response takes


@dataclass(frozen=True)
class Guess:
    """What the settings cannot say.

    prompt: tokens that a turn adds to what is read.
    turns: of a usual episode; None takes half of the most.
    response: tokens of a usual response; None takes a quarter of the limit.
    tokens_per_second: response tokens of a whole iteration; None where unknown.
    """

    prompt: int = 300
    turns: float | None = None
    response: float | None = None
    tokens_per_second: float | None = None

    def usual(self, settings: RunSettings) -> tuple[float, float]:
        """Turns of a usual episode, and tokens of a usual response."""
        turns = self.turns or max(1.0, GUESSED_TURNS * most_turns(settings))
        return turns, self.response or max(1.0, GUESSED_RESPONSE * settings.longest_response)


DEFAULT_GUESS = Guess()


def most_turns(settings: RunSettings) -> int:
    """Most turns of an episode in any environment: of its arguments, else its default; the environment itself is not made."""
    return max(_most_turns(env.environment) for env in settings.all_environments)


def _most_turns(environment: EnvironmentSettings) -> int:
    from gymnasium.envs.registration import load_env_creator

    from gagpo.envs.lookup import find_spec

    spec = find_spec(environment.id)
    given = {**spec.kwargs, **environment.kwargs}.get("max_turns")
    if given is None and spec.entry_point is not None:
        creator = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
        parameter = inspect.signature(creator).parameters.get("max_turns")
        given = None if parameter is None else parameter.default
    return given if isinstance(given, int) and given > 0 else 50


def row_tokens(settings: RunSettings, prompt: int, turns: float, response: float, context: int) -> int:
    """Tokens of a usual row: a turn with its window of earlier ones, or the whole conversation."""
    history = settings.context.history
    shown = turns if history == "full" else min(turns, 1 + int(history))
    return int(min(context, prompt * shown + response * (shown - 1) + settings.longest_response))


def guess_from(rows: Sequence[Mapping[str, float]], guess: Guess) -> Guess:
    """The guess with what a run's metrics measured in place of what was not stated: the mean of its last ten rows."""
    last = rows[-10:]
    if not last:
        raise InvalidArgument("the run has no finished iteration to measure")
    mean = {name: sum(float(row[name]) for row in last) / len(last) for name in MEASURED}
    return Guess(
        guess.prompt,
        guess.turns or mean["mean_turns"],
        guess.response or mean["response_tokens"],
        guess.tokens_per_second or mean["tokens_per_second"],
    )
