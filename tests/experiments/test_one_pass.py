"""What chapter 09 says of models that are judged with and without what comes later."""

import numpy as np

from minitransformer import experiments


def test_that_there_is_a_future_matters_to_routing_and_which_does_not():
    for trial, result in experiments.load("one_pass"):
        once, alone, false = (np.array(result[way]) for way in ("one pass", "byte by byte", "false future"))
        assert len(once) == 32
        if trial.attention.startswith("window"):
            assert np.array_equal(once, alone)
            assert np.array_equal(once, false)
        elif trial.attention.startswith("reformer"):  # no hindsight to speak of: six chances to be beyond two errors
            for other in (alone, false):
                assert abs((other - once).mean()) < 3 * (other - once).std() / 32**0.5 + 1e-4
                assert abs((other - once).mean()) < 0.005
        else:
            assert (alone - once).mean() < -2 * (alone - once).std() / 32**0.5
            assert abs((false - once).mean()) < 2 * (false - once).std() / 32**0.5
            assert abs((false - once).mean()) < 0.5 * (once - alone).mean()
