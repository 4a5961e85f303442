"""What the captions of the figures on learned sparsity claim."""

import numpy as np
import pytest

from minitransformer.figures import hash_collisions, lost_needle, reversible_memory, sinkhorn_order


@pytest.fixture(scope="module")
def hashed():
    return hash_collisions.data()


def test_draws_follow_the_formula(hashed):
    """Four standard deviations of 20,000 draws, at most; and more buckets collide less, at every angle but the two ends."""
    for buckets in (2, 4):
        p = hash_collisions.collision(np.radians(hashed.angles), buckets)
        spread = np.sqrt(p * (1 - p) / hash_collisions.DRAWS)
        assert (np.abs(hashed.shares[buckets] - p) <= 4 * spread + 1e-12).all()
    two, four, sixteen = hashed.shares.values()
    assert (two >= four).all()
    assert (four >= sixteen).all()
    assert (four[1:6] > sixteen[1:6] + 0.05).all()
    assert sixteen[6] == pytest.approx(1 / 16, abs=0.005), "at a right angle, as by chance"
    assert sixteen[2] > 0.5, "at 30°"


def test_one_round_by_position_and_sorted(hashed):
    """Sorted by bucket and position; a key of the same bucket, in the own chunk or the one before, and not later."""
    n, order, bucket, sees = len(hashed.bucket), hashed.order, hashed.bucket, hashed.sees
    assert order.tolist() == sorted(range(n), key=lambda i: (bucket[i], i))
    chunk = np.argsort(order) // hashed.chunk
    for i in range(n):
        near = {j for j in range(i) if bucket[j] == bucket[i] and chunk[i] - chunk[j] in (0, 1)}
        assert set(np.flatnonzero(sees[i])) == (near or {i})
    first = np.flatnonzero(bucket == 0)
    assert len(first) == 8 > 2 * hashed.chunk
    assert not sees[first[-1], first[0]], "the chunks cut it off"
    hash_collisions.draw(hashed)


def test_a_round_in_which_all_keys_of_two_chunks_are_seen(hashed):
    """Whatever their bucket, but not later; in the first chunk, nobody sees the last one."""
    n, order = len(hashed.bucket), hashed.order
    _, sees = hash_collisions.one_round(hashed.bucket, hashed.chunk, causal=True, other_buckets=True)
    chunk = np.argsort(order) // hashed.chunk
    for i in range(n):
        near = {j for j in range(i) if chunk[i] - chunk[j] in (0, 1)}
        assert set(np.flatnonzero(sees[i])) == (near or {i})
    i, j = np.nonzero(sees)
    assert (hashed.bucket[i] != hashed.bucket[j]).any()


def test_the_panels_show_what_is_seen(hashed):
    by_position, by_bucket, _ = hash_collisions.draw(hashed).axes
    for ax, sees in ((by_position, hashed.sees), (by_bucket, hashed.sees[np.ix_(hashed.order, hashed.order)])):
        (image,) = ax.images
        np.testing.assert_array_equal(~np.ma.getmaskarray(image.get_array()), sees)


def test_sinkhorn_is_slower_when_cold():
    """Row sums come nearer to one with every iteration, the hotter the faster; columns are exact."""
    found = sinkhorn_order.data()
    for off in found.off.values():
        assert (np.diff(off) < 0).all()
    hot, middle, cold = found.off.values()
    assert (hot < middle).all()
    assert (middle < cold).all()
    for P in found.orders.values():
        np.testing.assert_allclose(P.sum(0), 1, rtol=1e-12)
    largest = [P.max(1) for P in found.orders.values()]
    assert largest[0].max() < 0.6, "hot: a mixture in every row"
    assert (largest[-1] > largest[0]).all(), "cold: nearer to an order in every row"
    sinkhorn_order.draw(found)


def test_a_plain_stack_pays_for_each_block_and_a_reversible_one_does_not():
    memory = reversible_memory.data()
    assert len(set(memory.reversible)) == 1
    each = np.diff(memory.plain) / np.diff(memory.depths)
    assert len(set(each)) == 1
    assert memory.reversible[0] >= 2 * 64 * 32 * 8, "two streams of X's size"
    assert memory.reversible[0] < each[0] / 5
    reversible_memory.draw(memory)


def test_what_the_mean_of_a_block_loses():
    """Found as predicted; always in blocks of one, better than blindly in the largest, and less with every size."""
    needle = lost_needle.data()
    spread = np.sqrt(needle.predicted * (1 - needle.predicted) / 3000)
    assert (np.abs(needle.found - needle.predicted) <= 4 * spread + 0.01).all()
    assert needle.found[0] == 1
    assert (np.diff(needle.found) <= 0).all()
    assert needle.found[-1] > 1.5 * lost_needle.READ / lost_needle.KEYS
    assert needle.found[3] < 0.5 < needle.found[2]
    ax = lost_needle.draw(needle).axes[0]
    assert len(ax.get_legend().get_texts()) == len(ax.lines) == 3
