"""A pass that has begun is gone through with: what comes meanwhile is read after it, together."""

import pytest
import simpy

from gagpo.planning.simulate.engine import Device, SimulatedReplica
from gagpo.planning.simulate.rates import Rates


def test_requests_that_come_in_the_middle_of_a_pass_wait_for_its_end():
    clock = simpy.Environment()
    rates = Rates(pass_seconds=1.0, sequence_seconds=0.0, read_seconds=0.0, train_seconds=1.0, environment_seconds=0.0)
    replica = SimulatedReplica(clock, rates, Device(shared=False))
    ended = {}

    def ask(name, at, tokens):
        yield clock.timeout(at)
        yield replica.request(1, tokens)
        ended[name] = float(clock.now)

    clock.process(ask("first", 0.0, 4))  # read in [0, 1], which gives its first token, then a pass for each other
    clock.process(ask("second", 1.25, 1))  # both come within the pass of [1, 2] and are read in [2, 3]
    clock.process(ask("third", 1.5, 1))
    clock.run()
    assert ended == pytest.approx({"second": 3.0, "third": 3.0, "first": 5.0})
    assert replica.passing == pytest.approx(3.0)
