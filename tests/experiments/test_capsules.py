"""What the experiment of chapter 13 measures of the routing, where it is known beforehand."""

import numpy as np

from minitransformer.experiments import capsules


def test_in_the_first_round_all_classes_share_a_capsule(monkeypatch):
    """So ten of them are in use, and what is kept of a digit has a row for each of 36 capsules, which sums to one."""
    fresh = capsules.capsules(3).init(np.random.default_rng(0))
    monkeypatch.setattr(capsules, "fit", lambda *_: fresh)
    found = capsules.run(capsules.Trial("3 rounds", 0))
    assert found["sharing"][0] == 10
    assert 1 < found["sharing"][2] < found["sharing"][1] < 10
    kept = np.array(found["kept"])
    assert kept.shape == (len(capsules.KEPT), 3, 36, 10)
    np.testing.assert_allclose(kept.sum(-1), 1, atol=0.006)  # of ten numbers with three decimals
