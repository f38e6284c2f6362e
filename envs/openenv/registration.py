"""What this folder offers to the rest of the package."""

from gymnasium.envs.registration import EnvSpec

from gagpo.envs.offers import EnvironmentOffer


def _server(env_id: str) -> EnvSpec:
    """The environment on one OpenEnv server, or on several with commas between their addresses."""
    return EnvSpec(
        "gagpo/OpenEnv-v0",
        "gagpo.envs.openenv.env:RemoteEnv",
        order_enforce=False,
        disable_env_checker=True,
        kwargs={"url": env_id},
    )


OFFER = EnvironmentOffer(resolvers={"http://": _server, "https://": _server})
