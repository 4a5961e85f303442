"""What the experiments of chapter 14 ask, and how they judge."""

from dataclasses import replace

import numpy as np
import pytest

from minitransformer import experiments
from minitransformer.experiments import dictionary_lookup, node_classes


def test_a_query_has_the_word_of_one_key_and_has_to_give_its_value():
    """Weights that are 1 where the words are the same find every value, and no query knows one by itself."""
    k = 5
    X, values = dictionary_lookup.dictionaries(k, 20, np.random.default_rng(0))
    edges = dictionary_lookup.graph(k)
    words, told = X[..., :k], X[..., k:]
    assert (told[:, :k] == 0).all()
    A = edges.mask * (words @ words.mT)  # a product of two words is 1 if they are the same
    np.testing.assert_array_equal(A.sum(-1), np.broadcast_to(np.arange(2 * k) < k, A.shape[:-1]))
    np.testing.assert_array_equal((A @ told)[:, :k].argmax(-1), values)
    assert edges.mask[:k, k:].all()
    assert edges.number == k * k
    assert len(np.unique(values)) == k


@pytest.mark.parametrize("data", node_classes.DATA)
@pytest.mark.parametrize("kind", node_classes.KINDS)
def test_without_a_graph_a_node_sees_itself_alone(data, kind):
    found, edges = node_classes.graph_of(node_classes.Trial(data, kind, 0))
    n = len(found.labels)
    mask = np.eye(n, dtype=bool)
    if kind != "no graph":
        i, j = found.links.T
        mask[i, j] = mask[j, i] = True
    np.testing.assert_array_equal(edges.mask, mask)


@pytest.mark.parametrize("data", node_classes.DATA)
def test_it_is_the_nodes_whose_class_is_not_given_that_are_judged(data, monkeypatch):
    trial = node_classes.Trial(data, "gcn", 0, steps=0)
    found, _ = node_classes.graph_of(trial)
    known, classes = node_classes.given(trial, found), len(found.classes)
    assert (np.bincount(found.labels[known], minlength=classes) == (1 if data == "karate club" else 4)).all()
    for right, where in ((1, ~known), (0, known)):  # the classes of these are found, and those of all others are not
        said = np.eye(classes)[np.where(where, found.labels, (found.labels + 1) % classes)]
        monkeypatch.setattr(node_classes, "logits", lambda *_, said=said: (said, None, None))
        assert node_classes.run(trial) == {"right": right}


def test_the_known_topics_are_the_same_for_all_kinds_and_others_for_another_seed():
    trial = node_classes.Trial("Python topics", "gat", 3)
    data, _ = node_classes.graph_of(trial)
    for kind in node_classes.KINDS:
        np.testing.assert_array_equal(
            node_classes.given(replace(trial, kind=kind), data), node_classes.given(trial, data)
        )
    assert (node_classes.given(replace(trial, seed=4), data) != node_classes.given(trial, data)).any()


def test_what_chapter_14_says_of_heads_with_an_order_each():
    right = {}
    for trial, result in experiments.load("dictionary_lookup"):
        right.setdefault((trial.kind, trial.k), []).append(result["right"])
    assert min(right["gat, 8 heads", 4]) > 0.99
    assert max(right["gat, 8 heads", 8]) < 0.7
    assert max(right["gat, 8 heads", 16]) < 0.35
