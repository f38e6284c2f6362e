"""One ablation of each paper from the command line: it trains, and its option is the one in force."""

import math

import pytest

from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load

FAST = ["training.iterations=1", "evaluation.before=false", "evaluation.splits=[]"]

ABLATIONS = {
    "GAGPO without its own visit": ["algorithm=gagpo", "algorithm.credit.leave_one_out=true"],
    "GAGPO with outcomes, cut episodes going on": [
        "algorithm=gagpo",
        "algorithm.credit={proxy: outcome, bootstrap_truncated: true, norm: state, scope: batch}",
        "algorithm.ratio_pool=sum",
    ],
    "APMPO, linear exponent": ["algorithm=apmpo", "algorithm.controllers.apmpo={exponent: linear, per: group}"],
    "APMPO's radius alone": [
        "algorithm=apmpo",
        "algorithm.aggregation=sequence_mean",
        "algorithm.controllers.apmpo={exponent: fixed, radius: deviation, symmetric: true}",
    ],
    "AGPO with skewness": [
        "algorithm=agpo_adaptive",
        "algorithm.controllers.agpo.probe=4",
        "algorithm.controllers.agpo.temperature.skewness=0.5",
        "algorithm.controllers.agpo.radius.skewness=0.5",
    ],
    "AGPO's temperature alone": ["algorithm=agpo_adaptive", "algorithm.controllers.agpo={radius: null, probe: 4}"],
    "AGPO, asymmetric, half the penalty": ["algorithm=agpo_asymmetric", "algorithm.credit.bonus=-0.5"],
    "SAPO with one temperature": ["algorithm=sapo", "algorithm.gate.negative=1.0", "training.epochs=2"],
    "DAPO with a short buffer": [
        "algorithm=dapo",
        "algorithm.controllers={overlong: {buffer: 1, factor: 0.5}, dynamic_sampling: {rounds: 2}}",
    ],
    "GRPO with k2": ["algorithm=grpo", "algorithm.kl={coefficient: 0.01, estimator: k2}"],
    "GiGPO by similarity": ["algorithm=gigpo", "algorithm.credit={similarity: 0.95, statistics: turn}"],
    "MileGPO without context": ["algorithm=milegpo", "algorithm.credit.contextual=false"],
    "PPO over turns, product ratio": [
        "algorithm=ppo_turn",
        "algorithm.ratio_pool=sum",
        "algorithm.correction=sequence",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("changes", ABLATIONS.values(), ids=ABLATIONS)
def test_an_ablation_trains_from_the_command_line(inside, corridor, tmp_path, changes):
    config = corridor()
    done = inside("train", config, *changes, *FAST, "name=corridor", "--runs", tmp_path / "runs", "-q")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "corridor"
    (row,) = RunFolder.open(folder).metrics()
    assert all(math.isfinite(row[name]) for name in ("loss", "grad_norm", "entropy"))
    assert (
        load(folder / "config.yaml").algorithm == load(config, changes).algorithm != load(config, changes[:1]).algorithm
    )
