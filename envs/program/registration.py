"""What this folder offers to the rest of the package."""

from gagpo.envs.offers import EnvironmentOffer

OFFER = EnvironmentOffer(
    environments={"Program-v0": "gagpo.envs.program.env:ProgramEnv"},
    renamed_arguments={"gagpo/Program-v0": {"seconds": "timeout"}},
)
