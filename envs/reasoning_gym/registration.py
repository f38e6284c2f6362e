"""What this folder offers to the rest of the package."""

from importlib.util import find_spec

from gymnasium.envs.registration import EnvSpec

from gagpo.base.extras import pip_install
from gagpo.base.nearest import hint
from gagpo.envs.offers import EnvironmentOffer

PACKAGE = "reasoning_gym"


def _family(env_id: str) -> EnvSpec:
    """The registration of ``reasoning_gym:NAME``, a family of generated problems."""
    from gagpo.envs.lookup import UnknownEnvironment
    from gagpo.envs.reasoning_gym.env import families

    name = env_id.partition(":")[2]
    if find_spec(PACKAGE) is None:
        raise UnknownEnvironment(
            "needs the package reasoning-gym",
            where=f"environment {env_id!r}",
            advice=pip_install("gagpo[reasoning-gym]"),
        )
    if name not in families():
        raise UnknownEnvironment("unknown family", where=f"environment {env_id!r}", advice=hint(name, families()))
    return EnvSpec(
        f"reasoning_gym/{name}",
        "gagpo.envs.reasoning_gym.env:ReasoningGymEnv",
        order_enforce=False,
        disable_env_checker=True,
        kwargs={"family": name},
    )


def _problem() -> str:
    if find_spec(PACKAGE):
        return ""
    return f"the package {PACKAGE} is not installed: {pip_install('gagpo[reasoning-gym]')}"


OFFER = EnvironmentOffer(
    resolvers={f"{PACKAGE}:": _family},
    examples={f"{PACKAGE}:NAME": "such as reasoning_gym:leg_counting; one answer to a generated problem"},
    package=PACKAGE,
    problem=_problem,
)
