"""What this folder offers to the rest of the package."""

from importlib.util import find_spec

from gymnasium.envs.registration import EnvSpec

from gagpo.base.extras import pip_install
from gagpo.base.registry import import_from_here
from gagpo.envs.offers import EnvironmentOffer

PACKAGE = "textarena"


def _game(env_id: str) -> EnvSpec:
    """The registration of ``textarena:NAME``."""
    from gagpo.envs.lookup import with_seeds

    name = env_id.partition(":")[2]
    import_from_here(PACKAGE)
    return with_seeds(EnvSpec(f"textarena/{name}", "gagpo.envs.textarena.env:Game", kwargs={"game": name}))


def _problem() -> str:
    return "" if find_spec(PACKAGE) else f"the package {PACKAGE} is not installed: {pip_install(PACKAGE)}"


OFFER = EnvironmentOffer(
    resolvers={f"{PACKAGE}:": _game},
    examples={f"{PACKAGE}:NAME": "such as textarena:GuessTheNumber-v0; single-player games"},
    package=PACKAGE,
    problem=_problem,
)
