"""The registry of credits, including those of other packages. A credit's module is imported on first use.

A credit of your own is found in one of three ways: by ``@register`` on its class, through the entry point group
``gagpo.credits``, or by ``module:Class`` in place of a name (:mod:`gagpo.base.registry`).

Names lead to modules as texts, so reading a config imports no credit, and a credit's packages (scipy, rapidfuzz) only
load in a run that uses it. Options are the fields of the class itself: a credit of a stranger is written as ours are.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import BeforeValidator, SerializeAsAny

from gagpo.base import renamed
from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options
from gagpo.base.registry import OptionsRegistry
from gagpo.data import Turns

Level = Literal["episode", "turn", "token"]
PolicyMeasure = Literal["", "entropy", "energy"]


class CreditSettings(Options):
    """A credit with its options. Credits that compare states have a field ``state_key``, the definition of a state.

    name: of the credit.
    level: what shares one advantage, an ``episode``, a ``turn`` or a ``token``.
    critic: whether it needs a learned value; it then defines :meth:`advantage_and_target`, not :meth:`advantage`.
    measure: what the trainer measures before the first step, ``entropy`` or ``energy``; see :class:`Turns`.
    """

    level: ClassVar[Level] = "episode"
    critic: ClassVar[bool] = False
    measure: ClassVar[PolicyMeasure] = ""
    name: str

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "key" in cls.model_fields and "state_key" not in cls.model_fields:  # would have no effect
            raise InvalidArgument(
                "field 'key' is renamed to 'state_key'", key="key", where=f"{cls.__module__}:{cls.__name__}"
            )

    @property
    def compares_states(self) -> bool:
        """Whether it compares turns in equal states."""
        return hasattr(self, "state_key")

    @property
    def follows_states(self) -> bool:
        """Whether it uses transitions between states, which a key that does not identify states falsifies."""
        return False

    @property
    def reads_texts(self) -> bool:
        """Whether it compares the texts of observations, ``Turns.text_N``."""
        return False

    def advantage(self, turns: Turns) -> np.ndarray:
        """One advantage per turn, float64[N]; per response token, float64[K], where ``level`` is ``token``."""
        raise InvalidArgument(
            "has no advantage", where=f"credit {self.name}", advice="add a method advantage(turns) to its class"
        )

    def advantage_and_target(self, turns: Turns, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Advantages and the critic's targets, one each per turn or per response token, as is ``value``."""
        raise InvalidArgument(
            "does not use a critic",
            key="critic",
            where=f"credit {self.name}",
            advice="set critic=null, or write advantage_and_target(turns, value)",
        )


CREDITS: OptionsRegistry[CreditSettings] = OptionsRegistry(
    "credit",
    "gagpo.credits",
    {
        "gagpo": "gagpo.credit.gagpo:Gagpo",
        "grpo": "gagpo.credit.episode:Grpo",
        "dr_grpo": "gagpo.credit.episode:DrGrpo",
        "rloo": "gagpo.credit.episode:Rloo",
        "reinforce_plus_plus": "gagpo.credit.reinforce:ReinforcePlusPlus",
        "reinforce_plus_plus_baseline": "gagpo.credit.reinforce:ReinforceBaseline",
        "rejection_sampling": "gagpo.credit.episode:RejectionSampling",
        "maxrl": "gagpo.credit.episode:MaxRl",
        "agpo_adaptive": "gagpo.credit.episode:AgpoAdaptive",
        "agpo_asymmetric": "gagpo.credit.episode:AgpoAsymmetric",
        "gigpo": "gagpo.credit.gigpo:Gigpo",
        "g2po": "gagpo.credit.g2po:G2po",
        "empg": "gagpo.credit.empg:Empg",
        "optimal_token_baseline": "gagpo.credit.token_baseline:OptimalTokenBaseline",
        "hgpo": "gagpo.credit.hgpo:Hgpo",
        "graphgpo": "gagpo.credit.graphgpo:Graphgpo",
        "milegpo": "gagpo.credit.milegpo:Milegpo",
        "weighted_sum": "gagpo.credit.weighted_sum:WeightedSum",
        "ppo": "gagpo.credit.ppo:PpoToken",
        "ppo_turn": "gagpo.credit.ppo:PpoTurn",
    },
    CreditSettings,
    renamed.PRESETS,
)
Some = TypeVar("Some", bound=CreditSettings)


def register(credit: type[Some]) -> type[Some]:
    """Class decorator: register a credit by the default of its field ``name``.

    Raises:
        InvalidArgument: the class is not a credit, has no name, or the name is taken.
    """
    CREDITS.check(credit, "what is registered")
    name = credit.model_fields["name"].default
    if not isinstance(name, str):
        raise InvalidArgument(
            "has no name", where=f"credit {credit.__qualname__}", advice='give it a field name: str = "..."'
        )
    CREDITS.add(name, credit)
    return credit


AnyCredit = Annotated[SerializeAsAny[CreditSettings], BeforeValidator(CREDITS.make)]
"""A field that holds a credit, written as :meth:`OptionsRegistry.make` reads it."""
