"""What a folder of environments offers: the object ``OFFER`` of its ``registration.py``.

Everything else asks the functions below, so no folder of environments is named outside itself. Functions of an offer
import the environment's modules when they are called, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gymnasium.envs.registration import EnvSpec

from gagpo.base.findings import Finding
from gagpo.base.offers import offers

PACKAGE = "gagpo.envs"


def _no_problem() -> str:
    return ""


@dataclass(frozen=True)
class EnvironmentOffer:
    """What one folder offers.

    environments: ``module:Class`` by name, such as ``Math-v0``, which is registered as ``gagpo/Math-v0``.
    aliases: ids by their short names.
    resolvers: by the beginning of ids that are not registered one by one: returns the registration.
    examples: such ids for ``gagpo list``, with a description.
    package: whose environments the examples are.
    problem: returns what is missing on this machine, in one line; '' if nothing is.
    renamed_arguments: new names of arguments by id and old name.
    health: checks of ``gagpo doctor`` by name.
    """

    environments: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    resolvers: Mapping[str, Callable[[str], EnvSpec]] = field(default_factory=dict)
    examples: Mapping[str, str] = field(default_factory=dict)
    package: str = "gagpo"
    problem: Callable[[], str] = _no_problem
    renamed_arguments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    health: Mapping[str, Callable[[], Finding]] = field(default_factory=dict)


def environment_offers() -> list[EnvironmentOffer]:
    """The offers of all folders."""
    return list(offers(PACKAGE).values())


def unaliased(env_id: str) -> str:
    """The id that a short name stands for; any other id as it is."""
    return next((offer.aliases[env_id] for offer in environment_offers() if env_id in offer.aliases), env_id)


def resolvers() -> dict[str, Callable[[str], EnvSpec]]:
    """The functions that return registrations, by the beginning of their ids."""
    return {beginning: resolve for offer in environment_offers() for beginning, resolve in offer.resolvers.items()}


def problem_of(env_id: str) -> str:
    """What a registered environment of this package lacks on this machine; '' if nothing."""
    name = env_id.removeprefix("gagpo/")
    return next((offer.problem() for offer in environment_offers() if name in offer.environments), "")


def health_checks() -> dict[str, Callable[[], Finding]]:
    """The checks of ``gagpo doctor`` by name."""
    return {name: check for offer in environment_offers() for name, check in offer.health.items()}


def missing_folder(env_id: str) -> str:
    """Advice for an id that no folder offers, such as one of a folder that was deleted; '' where a folder has its name.

    >>> missing_folder("gagpo/Chess-v0"), missing_folder("chess:Blitz")
    ("gagpo/envs has no folder 'chess', which would offer it", "no folder of gagpo/envs offers ids that begin 'chess:'")
    """
    beginning, colon, address = env_id.partition(":")
    if colon:
        return f"no folder of gagpo/envs offers ids that begin '{beginning}:{'//' if address.startswith('//') else ''}'"
    folder = env_id.removeprefix("gagpo/").partition("-v")[0].lower()
    return (
        ""
        if "/" in folder or folder in offers(PACKAGE)
        else f"gagpo/envs has no folder {folder!r}, which would offer it"
    )
