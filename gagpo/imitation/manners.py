"""How a model speaks in each world of a run: in its own tokens and chat template, as the world's settings say."""

from __future__ import annotations

from collections.abc import Mapping

from gagpo.agents.agent import Manner
from gagpo.agents.context import Context
from gagpo.agents.prompts import STYLES
from gagpo.envs.base import TextEnv
from gagpo.envs.tools import tools_of
from gagpo.settings import RunSettings


def manners_of(settings: RunSettings, tokenizer: object, environments: Mapping[str, TextEnv]) -> dict[str, Manner]:
    """By the world's name; '' in a run of one. environments: one of each world, to ask what is said of it."""
    found = {}
    for world in settings.worlds:
        chosen, environment = world.context, environments.get(world.name)
        context = Context(
            tokenizer,
            STYLES[chosen.style],
            getattr(environment, "instructions", ""),
            chosen.history,
            chosen.admissible,
            chosen.template,
            tools_of(environment),
            chosen.calls,
        )
        found[world.name] = Manner(context, world.max_tokens)
    return found
