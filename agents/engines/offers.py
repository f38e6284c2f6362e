"""What a folder of an engine offers: the object ``OFFER`` of its ``registration.py``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gagpo.base.offers import offers

PACKAGE = "gagpo.agents.engines"


@dataclass(frozen=True)
class EngineOffer:
    """What one folder offers.

    engines: ``module:Name`` of the class of options, by the engine's name.
    package: the module that its engines need.
    distributions: installed packages whose versions a run records.
    serves: whether its engines sample at servers.
    renamed_options: new names of options by engine and old name.
    """

    engines: Mapping[str, str]
    package: str
    distributions: tuple[str, ...] = ()
    serves: bool = False
    renamed_options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def engine_offers() -> list[EngineOffer]:
    """The offers of all folders."""
    return list(offers(PACKAGE).values())


def distributions() -> tuple[str, ...]:
    """Installed packages of all offers whose versions a run records."""
    return tuple(name for offer in engine_offers() for name in offer.distributions)


def serving_engine() -> str:
    """How a config chooses an engine that samples at servers, for advice; a placeholder where no folder offers one."""
    names = (name for offer in engine_offers() if offer.serves for name in offer.engines)
    return f"engine={next(names, 'module:Name')}"
