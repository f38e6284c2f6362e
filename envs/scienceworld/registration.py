"""What this folder offers to the rest of the package."""

from gagpo.base.errors import MissingPackage
from gagpo.envs.offers import EnvironmentOffer


def _problem() -> str:
    """Whether the simulator and Java are missing."""
    from gagpo.envs.scienceworld.simulator import simulator_command

    try:
        simulator_command()
    except MissingPackage as error:
        return str(error)
    return ""


OFFER = EnvironmentOffer(
    environments={"ScienceWorld-v0": "gagpo.envs.scienceworld.env:ScienceWorldEnv"},
    aliases={"scienceworld": "gagpo/ScienceWorld-v0"},
    problem=_problem,
)
