"""What the captions of chapter 13 claim."""

import numpy as np
import pytest

from minitransformer.figures import content_or_place, hypernetwork, random_synthesizer, routing, weight_sources


def test_figure_11_one_block_for_each_token_and_multiples_of_the_identity():
    found = hypernetwork.data()
    assert np.count_nonzero(found.values) == 3 * 16
    assert np.count_nonzero(found.mixing) == 9 * 4
    for i, j in np.ndindex(3, 3):
        block = slice(4 * i, 4 * i + 4), slice(4 * j, 4 * j + 4)
        assert np.array_equal(found.values[block], (i == j) * found.W.T)
        assert np.array_equal(found.mixing[block], found.A[i, j] * np.eye(4))
    assert (found.mixing >= 0).all()
    np.testing.assert_allclose(found.mixing @ found.values @ found.X.ravel(), found.Y.ravel(), atol=1e-13)


def test_figure_11_draws_a_line_for_each_weight():
    fig = hypernetwork.draw(hypernetwork.data())
    net, (b, c) = next(ax for ax in fig.axes if ax.lines and not ax.images), [ax for ax in fig.axes if ax.images]
    assert len(net.lines) == 48 + 36
    assert all(line.get_path_effects() for line in net.lines)  # a rim, by which the pale ones are seen
    assert [int(ax.images[0].get_array().count()) for ax in (b, c)] == [48, 36]
    assert b.images[0].get_clim() == c.images[0].get_clim(), "one scale"


def test_figure_12_rows_of_a_word_are_the_same_and_columns_only_where_tokens_are_compared():
    found = weight_sources.data()
    words = np.array(found.words)
    for A in (found.dot_product, found.dense):
        np.testing.assert_allclose(A.sum(1), 1, rtol=1e-12)
    for word in ("the", "cat"):
        places = np.flatnonzero(words == word)
        assert len(places) > 1
        for A in (found.dot_product, found.dense):
            assert np.ptp(A[places], axis=0).max() < 1e-12
        assert np.ptp(found.dot_product[:, places], axis=1).max() < 1e-12
        assert np.ptp(found.dense[:, places], axis=1).max() > 0.1
    assert np.abs(found.dense[:, 0] - found.dense[:, 6]).mean() > 0.1  # columns 1 and 7: one can see that they differ
    assert max(found.dot_product.max(), found.dense.max()) < 0.75
    weight_sources.draw(found)


def test_figure_13a_the_same_for_every_text_and_constant_along_diagonals():
    found = random_synthesizer.data()
    for A in (found.random, found.offsets):
        assert np.array_equal(A[0], A[1])
    np.testing.assert_allclose(found.offsets[0], found.t5, rtol=1e-12)
    logs = np.log(found.offsets[0])
    logits = logs - logs[:, :1]  # against the first key: row i has b_(j − i) − b_(−i)
    for i in range(2, 15):
        steps = np.diff(logits[i, 1:])
        np.testing.assert_allclose(steps[1:], np.diff(logits[i - 1, 1:])[:-1], atol=1e-9)
    assert [ax.get_title() for ax in random_synthesizer.draw(found).axes[:2]] == [
        "random",
        "one number for each offset",
    ]


@pytest.fixture(scope="module")
def right():
    return content_or_place.data().right


def test_there_are_three_trainings_of_each(right):
    assert {len(parts) for kinds in right.values() for parts in kinds.values()} == {3}
    assert list(right) == ["content", "place"]
    drawn = content_or_place.draw(content_or_place.data())
    assert [len(ax.collections) for ax in drawn.axes] == [len(kinds) for kinds in right.values()]


def test_by_place_whatever_learns_its_weights_knows_the_answer(right):
    for kind, parts in right["place"].items():
        if kind in ("random, not learned", "bag of tokens"):
            assert parts.max() < 0.6, kind
        else:
            assert parts.min() > 0.97, kind


def test_a_bag_knows_which_values_there_are_but_not_where(right):
    """By place it has as many right as if it said the commonest of the eight values each time; by content more."""
    texts = np.random.default_rng(0).integers(0, 8, (20000, 8))
    commonest = np.mean([np.bincount(values).max() / 8 for values in texts])
    np.testing.assert_allclose(right["place"]["bag of tokens"], commonest, atol=0.01)
    assert right["content"]["bag of tokens"].min() > commonest + 0.1


def test_by_content_only_those_that_compare(right):
    compared = [parts.min() for kind, parts in right["content"].items() if "dot product" in kind]
    others = [parts.max() for kind, parts in right["content"].items() if "dot product" not in kind]
    assert min(compared) > 0.85
    assert max(others) < 0.75
    content = right["content"]
    assert content["dense + dot product"].min() > content["dot product"].max()
    assert content["dense"].min() > content["bag of tokens"].max() > content["random"].max()


def test_routing_divides_each_capsule_and_goes_to_the_right_class():
    found = routing.data()
    for digit, C in found.C.items():
        assert C.shape == (3, 36, 10)
        np.testing.assert_allclose(C.sum(-1), 1, atol=0.006)
        assert (C[0] == 0.1).all()
        shares = C[..., digit].mean(1)
        assert shares.tolist() == sorted(shares)
        if digit in routing.SHOWN:
            assert C[-1].mean(0).argmax() == digit
    routing.draw(found)
