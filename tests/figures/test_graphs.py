"""What the captions of the figures on graphs claim, and what chapter 14 says of its records."""

import numpy as np

from minitransformer import experiments
from minitransformer.figures import graph_matrices, karate_club, over_smoothing, static_and_dynamic


def test_graph_matrices():
    """The same edges; left symmetric, right not, with rows that sum to one; there the president gets more than an equal share."""
    drawn = graph_matrices.data()
    P, A = drawn.P, drawn.A
    np.testing.assert_array_equal(np.isnan(P), np.isnan(A))
    assert np.isfinite(P).sum() == 2 * 78 + 34
    np.testing.assert_array_equal(P, P.T)
    np.testing.assert_allclose(np.nansum(A, 1), 1, atol=0.02)
    assert np.nanmax(np.abs(A - A.T)) > 0.2
    assert (np.nanmax(A, 1) > np.nanmax(P, 1)).mean() > 0.5
    seen = np.isfinite(A)
    see_him = seen[:, 33] & (np.arange(34) != 33)
    assert A[see_him, 33].mean() > 1.5 * (1 / seen.sum(1))[see_him].mean()
    assert drawn.first == 17
    graph_matrices.draw(drawn)


def test_karate_club():
    """Distances on the page are like those in the graph, nobody hides another, and the drawing is the same in every run."""
    drawn = karate_club.data()
    assert drawn.links.shape == (78, 2)
    far = np.linalg.norm(drawn.places[:, None] - drawn.places, axis=-1)
    i, j = drawn.links.T
    assert far[i, j].mean() < 0.6 * far.mean()
    assert (far + np.eye(34)).min() > 0.15
    assert ((drawn.weights > 0) & (drawn.weights <= 1)).all()
    assert len(karate_club.draw(drawn).axes) == 1


def test_over_smoothing():
    """The average and attention shrink in the end by |λ₂| in every layer, half and half by (1 + |λ₂|)/2."""
    drawn = over_smoothing.data()
    for curve, factor in (
        (drawn.average, drawn.second),
        (drawn.attention, drawn.second),
        (drawn.kept, (1 + drawn.second) / 2),
    ):
        assert curve[0] == 1
        assert (np.diff(curve) < 0).all()
        assert abs(curve[64] / curve[63] - factor) < 0.002
    assert drawn.kept[64] > 10 * drawn.attention[64] > 10 * drawn.average[64]
    assert 30 < drawn.kept[64] / drawn.average[64] < 40
    over_smoothing.draw(drawn)


def test_static_and_dynamic():
    """GAT: every row ranks the columns alike. GATv2: the largest weight of each row is its own key's, and most of all."""
    drawn = static_and_dynamic.data()
    favourite = drawn.static[:, drawn.static.sum(0).argmax()]
    assert (favourite >= drawn.static.max(1) - 0.0011).all()  # the record has three decimals
    assert (drawn.dynamic.argmax(1) == np.arange(8)).all()
    assert drawn.dynamic.diagonal().min() > 0.8
    np.testing.assert_allclose(drawn.dynamic.sum(1), 1, atol=0.01)
    static_and_dynamic.draw(drawn)


def test_what_the_record_of_the_dictionary_says():
    """GATv2 finds all; GAT not much more than one answer for all would, and less with more keys, even with eight heads."""
    right = {}
    for trial, result in experiments.load("dictionary_lookup"):
        right.setdefault((trial.kind, trial.k), []).append(result["right"])
    assert all(len(each) == 3 for each in right.values())
    for k in (4, 8, 16):
        assert min(right["gatv2", k]) > 0.99
        values = np.random.default_rng(0).integers(0, k, (20000, k))
        commonest = np.mean([np.bincount(v).max() for v in values]) / k
        assert commonest < min(right["gat", k])
        assert max(right["gat", k]) < commonest + (0.15 if k == 4 else 0.06)
    assert max(right["gat, 8 heads", 16]) < min(right["gat, 8 heads", 8]) < 0.9


def test_what_the_record_of_the_two_graphs_says():
    """In the club every training with edges beats all without; for the topics no kind with edges is ahead of the one without."""
    right = {}
    for trial, result in experiments.load("node_classes"):
        right.setdefault((trial.data, trial.kind), []).append(result["right"])
    assert all(len(each) == 10 for each in right.values())
    kinds = ("gcn", "gat", "gatv2")
    assert min(min(right["karate club", kind]) for kind in kinds) >= 28 / 32
    assert max(right["karate club", "no graph"]) < 0.65
    means = [np.mean(right["karate club", kind]) for kind in kinds]
    assert min(means) > np.mean(right["karate club", "no graph"]) + 0.3
    assert np.ptp(means) < 1 / 32, "less than one of the 32"
    topics = {kind: np.array(right["Python topics", kind]) for kind in (*kinds, "no graph")}
    assert all(topics[kind].mean() < topics["no graph"].mean() + 0.03 for kind in kinds)
    assert (topics["gat"] > topics["gcn"]).sum() > 5, "in most"
    assert all((topics[kind] > topics["no graph"]).sum() <= 5 for kind in kinds), "not in most"


def test_what_the_record_of_many_edges_says():
    """Memory grows with the edges, and a million of them need less than 1 GiB."""
    found = {(trial.edges, trial.dynamic): result for trial, result in experiments.load("many_edges")}
    for dynamic in (False, True):
        small, large = found[10**5, dynamic], found[10**6, dynamic]
        assert large["edges"] == 10**6
        assert 7 < large["peak"] / small["peak"] < 11
        assert 7 < small["peak"] / found[10**4, dynamic]["peak"] < 11
        assert large["peak"] < 2**30
        assert large["matrices"] > 1000 * large["peak"]
