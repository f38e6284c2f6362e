"""Where credits are found by name, those of other packages among them; a credit is loaded when it is asked for.

A credit is one class: its fields are its options, its method :meth:`CreditSettings.advantage` computes it. One from
another package is found in any of three ways: ``@register`` on the class, where its module is imported anyway; an entry
point of the group ``gagpo.credits``; or its place, ``module:Class``, in the name's stead.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import BeforeValidator, SerializeAsAny, ValidationError

from gagpo.credit.turns import Turns
from gagpo.envs.errors import InvalidArgument
from gagpo.options import Options, by_name, explain, nearest

Level = Literal["episode", "turn", "token"]
Option = bool | int | float | str | None

ENTRY_POINTS = "gagpo.credits"

OURS = {
    "gagpo": "gagpo.credit.gagpo:Gagpo",
    "grpo": "gagpo.credit.episode:Grpo",
    "dr_grpo": "gagpo.credit.episode:DrGrpo",
    "rloo": "gagpo.credit.episode:Rloo",
    "reinforce_plus_plus": "gagpo.credit.reinforce:ReinforcePlusPlus",
    "reinforce_baseline": "gagpo.credit.reinforce:ReinforceBaseline",
    "agpo_adaptive": "gagpo.credit.agpo:AgpoAdaptive",
    "agpo_asymmetric": "gagpo.credit.agpo:AgpoAsymmetric",
    "gigpo": "gagpo.credit.gigpo:Gigpo",
    "hgpo": "gagpo.credit.hgpo:Hgpo",
    "graphgpo": "gagpo.credit.graphgpo:Graphgpo",
    "milegpo": "gagpo.credit.milegpo:Milegpo",
    "ppo_token": "gagpo.credit.ppo:PpoToken",
    "ppo_turn": "gagpo.credit.ppo:PpoTurn",
}
"""Place of each credit of this package."""


class CreditSettings(Options):
    """A credit with its options.

    name: what it is found by. level: what shares one advantage, an ``episode``, a ``turn`` or a ``token``. critic: it
    needs a learned value; such a credit has :meth:`advantage_and_target` in place of :meth:`advantage`. A field ``key``
    says what makes two turns the same state, for the credits that compare states.
    """

    level: ClassVar[Level] = "episode"
    critic: ClassVar[bool] = False
    name: str

    def advantage(self, turns: Turns) -> np.ndarray:
        """One advantage per turn, float64[N]; per response token, float64[K], where ``level`` is ``token``."""
        raise NotImplementedError(f"credit {self.name} has no method advantage")

    def advantage_and_target(self, turns: Turns, value: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Advantages and what the critic's ``value`` should have been, each one per turn or per response token."""
        raise NotImplementedError(f"credit {self.name} has no use for a critic")


Some = TypeVar("Some", bound=CreditSettings)
_registered: dict[str, type[CreditSettings]] = {}


def register(credit: type[Some]) -> type[Some]:
    """Make a credit known by the default of its field ``name``; to be written above the class.

    Raises ValueError where the class is no credit, has no name, or the name is another's.
    """
    _check(credit, "what is registered")
    name = credit.model_fields["name"].default
    if not isinstance(name, str):
        raise InvalidArgument(f'{credit.__qualname__} has no name: give it a field name: str = "..."')
    known = _registered.get(name)
    place = f"{credit.__module__}:{credit.__qualname__}"
    if name in OURS or (known is not None and f"{known.__module__}:{known.__qualname__}" != place):
        raise InvalidArgument(f"there is a credit {name!r} already: choose another name for {place}")
    _registered[name] = credit
    return credit


def names() -> list[str]:
    """Every credit that has a name, this package's first."""
    found = {**OURS, **_registered, **{point.name: point for point in entry_points(group=ENTRY_POINTS)}}
    return list(found)


def find(name: str) -> type[CreditSettings]:
    """The class of the credit ``name``; ValueError names the nearest credits where there is none of that name."""
    if name in _registered:
        return _registered[name]
    if name in OURS:
        return _load(OURS[name])
    for point in entry_points(group=ENTRY_POINTS, name=name):
        return _load(point.value)
    if ":" in name:
        return _load(name)
    raise InvalidArgument(f"there is no credit {name!r}; {nearest(name, names())}")


def function_of(name: str) -> Callable[..., np.ndarray]:
    """The credit ``name`` as a function of turns and, as keywords, its options."""
    credit = find(name)

    def advantage(turns: Turns, **options: Option) -> np.ndarray:
        return credit.model_validate(options).advantage(turns)

    advantage.__doc__ = credit.__doc__
    return advantage


def make(value: Any) -> CreditSettings:
    """A credit from its name or from ``{"name": ..., option: value, ...}``; ValueError says what is wrong with it."""
    if isinstance(value, CreditSettings):
        return value
    value = by_name(value)
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise InvalidArgument(f"a credit is a name, or options with a name among them; {nearest('', names())}")
    name = value["name"]
    credit = find(name)
    try:
        return credit.model_validate(dict(value))
    except ValidationError as error:
        raise InvalidArgument(explain(error, credit, f"credit {name}")) from None


AnyCredit = Annotated[SerializeAsAny[CreditSettings], BeforeValidator(make)]
"""A field that holds a credit, written as :func:`make` reads it."""


def _load(place: str) -> type[CreditSettings]:
    module, _, attribute = place.partition(":")
    try:
        credit: type[CreditSettings] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(f"credit {place} cannot be loaded: {error}") from None
    _check(credit, place)
    return credit


def _check(credit: Any, what: str) -> None:
    if not isinstance(credit, type) or not issubclass(credit, CreditSettings):
        raise InvalidArgument(f"{what} is no credit: it must be a class derived from gagpo.credit.CreditSettings")
