"""Where credits are found by name, those of other packages among them; a credit is loaded when it is asked for.

A credit is one class: its fields are its options, its method :meth:`CreditSettings.advantage` computes it. One from
another package is found in any of three ways: ``@register`` on the class, where its module is imported anyway; an entry
point of the group ``gagpo.credits``; or its place, ``module:Class``, in the name's stead (:mod:`gagpo.base.registry`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import BeforeValidator, SerializeAsAny, ValidationError

from gagpo.base.errors import InvalidArgument
from gagpo.base.nearest import hint
from gagpo.base.options import Options, by_name, explain
from gagpo.base.registry import Registry
from gagpo.credit.turns import Turns

Level = Literal["episode", "turn", "token"]
Measure = Literal["", "entropy", "energy"]


class CreditSettings(Options):
    """A credit with its options.

    name: what it is found by. level: what shares one advantage, an ``episode``, a ``turn`` or a ``token``. critic: it
    needs a learned value; such a credit has :meth:`advantage_and_target` in place of :meth:`advantage`. A field ``key``
    says what makes two turns the same state, for the credits that compare states. measure: what the trainer measures of
    the policy for it, before any step: ``entropy`` of each turn, or ``energy`` of each token; see :class:`Turns`.
    """

    level: ClassVar[Level] = "episode"
    critic: ClassVar[bool] = False
    measure: ClassVar[Measure] = ""
    name: str

    @property
    def follows_states(self) -> bool:
        """Whether it reads what a state leads to, so that a key which is no state misleads it."""
        return False

    def advantage(self, turns: Turns) -> np.ndarray:
        """One advantage per turn, float64[N]; per response token, float64[K], where ``level`` is ``token``."""
        raise InvalidArgument(f"credit {self.name} gives none: its class has to have a method advantage(turns)")

    def advantage_and_target(self, turns: Turns, value: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Advantages and what the critic's ``value`` should have been, each one per turn or per response token."""
        raise InvalidArgument(
            f"credit {self.name} has no use for a critic: set critic=null, or write advantage_and_target(turns, value)"
        )


def _check(credit: Any, what: str) -> None:
    if not isinstance(credit, type) or not issubclass(credit, CreditSettings):
        raise InvalidArgument(f"{what} is no credit: it must be a class derived from gagpo.credit.CreditSettings")


CREDITS: Registry[type[CreditSettings]] = Registry(
    "credit",
    "gagpo.credits",
    {
        "gagpo": "gagpo.credit.gagpo:Gagpo",
        "grpo": "gagpo.credit.episode:Grpo",
        "dr_grpo": "gagpo.credit.episode:DrGrpo",
        "rloo": "gagpo.credit.episode:Rloo",
        "reinforce_plus_plus": "gagpo.credit.reinforce:ReinforcePlusPlus",
        "reinforce_baseline": "gagpo.credit.reinforce:ReinforceBaseline",
        "rejection_sampling": "gagpo.credit.episode:RejectionSampling",
        "max_rl": "gagpo.credit.episode:MaxRl",
        "agpo_adaptive": "gagpo.credit.episode:AgpoAdaptive",
        "agpo_asymmetric": "gagpo.credit.episode:AgpoAsymmetric",
        "gigpo": "gagpo.credit.gigpo:Gigpo",
        "g2po": "gagpo.credit.g2po:G2po",
        "empg": "gagpo.credit.empg:Empg",
        "optimal_token_baseline": "gagpo.credit.token_baseline:OptimalTokenBaseline",
        "hgpo": "gagpo.credit.hgpo:Hgpo",
        "graphgpo": "gagpo.credit.graphgpo:Graphgpo",
        "milegpo": "gagpo.credit.graphgpo:Milegpo",
        "empirical_bayes": "gagpo.credit.empirical_bayes:EmpiricalBayes",
        "weighted_sum": "gagpo.credit.weighted_sum:WeightedSum",
        "ppo_token": "gagpo.credit.ppo:PpoToken",
        "ppo_turn": "gagpo.credit.ppo:PpoTurn",
    },
    _check,
)
Some = TypeVar("Some", bound=CreditSettings)


def register(credit: type[Some]) -> type[Some]:
    """Make a credit known by the default of its field ``name``; to be written above the class.

    Raises ValueError where the class is no credit, has no name, or the name is another's.
    """
    _check(credit, "what is registered")
    name = credit.model_fields["name"].default
    if not isinstance(name, str):
        raise InvalidArgument(f'{credit.__qualname__} has no name: give it a field name: str = "..."')
    CREDITS.add(name, credit)
    return credit


def names() -> list[str]:
    """Every credit that has a name, this package's first."""
    return list(CREDITS.known())


def find(name: str) -> type[CreditSettings]:
    """The class of the credit ``name``; ValueError names the nearest credits where there is none of that name."""
    return CREDITS.find(name)


def make(value: Any) -> CreditSettings:
    """A credit from its name or from ``{"name": ..., option: value, ...}``; ValueError says what is wrong with it."""
    if isinstance(value, CreditSettings):
        return value
    value = by_name(value)
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise InvalidArgument(f"a credit is a name, or options with a name among them; {hint('', names())}")
    name = value["name"]
    credit = find(name)
    try:
        return credit.model_validate(dict(value))
    except ValidationError as error:
        raise InvalidArgument(explain(error, credit.model_fields, f"credit {name}")) from None


AnyCredit = Annotated[SerializeAsAny[CreditSettings], BeforeValidator(make)]
"""A field that holds a credit, written as :func:`make` reads it."""
