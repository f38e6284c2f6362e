"""Controllers: what adapts between updates, from rewards, probe rollouts, entropy and KL."""

from gagpo.controllers.agpo import Agpo, AgpoController
from gagpo.controllers.apmpo import Apmpo, ApmpoController
from gagpo.controllers.controllers import Controllers, ControllerSettings
from gagpo.controllers.curriculum import Curriculum
from gagpo.controllers.sampling import DynamicSampling, Overlong, VarianceFilter, overlong_penalty
from gagpo.controllers.signal_rate import SignalRate, SignalRateController
from gagpo.controllers.trust_region import TrustRegion, TrustRegionController

__all__ = [
    "Agpo",
    "AgpoController",
    "Apmpo",
    "ApmpoController",
    "ControllerSettings",
    "Controllers",
    "Curriculum",
    "DynamicSampling",
    "Overlong",
    "SignalRate",
    "SignalRateController",
    "TrustRegion",
    "TrustRegionController",
    "VarianceFilter",
    "overlong_penalty",
]
