"""The two graphs that come with the book."""

import numpy as np
import pytest

from minitransformer.data.graphs import karate_club, python_topics


@pytest.mark.parametrize(("read", "n", "links"), [(karate_club, 34, 78), (python_topics, 71, 105)])
def test_each_graph_is_whole(read, n, links):
    graph = read()
    assert len(graph.names) == len(set(graph.names)) == len(graph.labels) == len(graph.X) == n
    assert graph.links.shape == (links, 2)
    assert len({tuple(sorted(pair)) for pair in graph.links.tolist()}) == links
    assert (graph.links[:, 0] != graph.links[:, 1]).all()
    assert set(np.unique(graph.links)) == set(range(n)), "everybody has a link"
    assert set(graph.labels) == set(range(len(graph.classes)))
    for array in (graph.links, graph.X, graph.labels):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_the_club_is_that_of_the_article():
    """The two leaders, who never met, have 16 and 17 friends, and lead the two clubs of 17."""
    club = karate_club()
    degree = np.bincount(club.links.ravel())
    assert (degree[0], degree[33]) == (16, 17)
    assert [0, 33] not in club.links.tolist()
    assert np.bincount(club.labels).tolist() == [17, 17]
    assert (club.labels[0], club.labels[33]) == (0, 1)


def test_topics_are_described_by_their_words():
    topics = python_topics()
    np.testing.assert_allclose(np.linalg.norm(topics.X, axis=1), 1)
    assert {"ASSIGNMENT", "for", "COMPARISON"} <= set(topics.names)
    # ln 2, before the length was one: each text has a word that stands there once
    once = topics.X.min(-1, keepdims=True, where=topics.X > 0, initial=1)
    often = 2 ** (topics.X / once) - 1
    np.testing.assert_allclose(often, often.round(), rtol=0, atol=1e-9)
    assert round(often[topics.names.index("for")].max()) == 9, "of the word suite"
