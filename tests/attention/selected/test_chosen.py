"""Lists of chosen keys: the search finds what sorting finds, and attention to a list is dense attention with its mask."""

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback
from minitransformer.attention import dot_product_attention
from minitransformer.attention.selected import NSA, Indexer, MoBA
from minitransformer.attention.selected import chosen as module
from minitransformer.attention.selected.chosen import attend_to_chosen, largest, largest_places, parts
from minitransformer.attention.selected.gathered import rows_at, sum_of_rows
from minitransformer.backend import available
from tests.kernels.promises import assert_any_number_of_threads, peaks_of
from tests.pieces import in_pieces

# ------------------------------------------------------------------------------------------------ the search


def by_sorting(S, k, among):
    """The rule: sort all, of equal ones the first comes first, and take k of those that may be chosen."""
    order = np.argsort(np.where(among, -S, np.inf), -1, kind="stable")[..., :k]
    found = np.zeros(S.shape, bool)
    np.put_along_axis(found, order, True, -1)
    return found & among


def as_matrix(places, m):
    found = np.zeros((*places.shape[:-1], m + 1), bool)
    np.put_along_axis(found, places, True, -1)
    return found[..., :-1]


def test_the_largest_of_each_row():
    S = np.array([[3.0, 1, 3, 2], [0, 0, 0, 0], [1, 2, 3, 4]])
    among = np.array([[True] * 4, [False, True, True, False], [False] * 4])
    np.testing.assert_array_equal(largest(S, 2, among), [[1, 0, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]])
    assert not largest(S, 0, among).any()


@pytest.mark.parametrize("levels", [1, 3, 40, 10**6])
@pytest.mark.parametrize("k", [0, 1, 2, 7, 32, 200])
def test_the_search_finds_what_sorting_finds_bit_for_bit(k, levels, tier):
    """With few levels nearly all scores are ties; with one, all are. Rows that rise, the worst case of a heap; and masks."""
    rng = np.random.default_rng(k)
    n, m = 70, 150
    S = rng.integers(0, levels, (2, n, m)).astype(np.float32) - levels // 2
    S[0, 3], S[1, 3], S[0, 4] = np.arange(m), -np.arange(m), np.where(np.arange(m) % 3, 0.0, -0.0)
    S[0, 5, ::2] = np.inf
    ends = np.minimum(np.arange(n) * 3, m)
    for among in (None, rng.random((2, n, m)) < 0.5, rng.random((2, 1, m)) < 0.1):
        may = (np.arange(m) < ends[:, None]) & (True if among is None else among)
        places = largest_places(S, k, ends, among)
        assert places.shape == (2, n, k)
        assert (np.diff(places, axis=-1) >= 0).all()
        np.testing.assert_array_equal(as_matrix(places, m), by_sorting(S, k, may))


def test_a_score_that_is_no_number_is_chosen_last(tier):
    S = np.array([[np.nan, 1, np.nan, 2, -np.inf]])
    for k, want in ((2, [1, 3]), (3, [0, 1, 3]), (9, [-1, -1, -1, -1, 0, 1, 2, 3, 4])):
        np.testing.assert_array_equal(largest_places(S, k, np.array([5])), [want])


def test_parts_cover_all_queries_once():
    rows = np.arange(1000)
    for size in (0, 1, 2**12, 2**30):
        np.testing.assert_array_equal(np.concatenate([rows[part] for part in parts(1000, size)]), rows)


# --------------------------------------------------------------------------------------- attention to a list

B, H = 2, 4


def arrays(n, m, groups, seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal((B, h, rows, w)).astype(dtype) for h, rows, w in ((H, n, 5), (groups, m, 5), (groups, m, 3))
    ]


def some_lists(heads, n, m, block, seed=1):
    """Three different blocks for each query, or fewer; some queries have chosen none."""
    rng = np.random.default_rng(seed)
    lists = rng.permuted(np.broadcast_to(np.arange(-(-m // block)), (B, heads, n, -(-m // block))), axis=-1)[..., :3]
    lists[rng.random(lists.shape) < 0.2] = -1
    lists[:, :, 2] = -1
    return np.ascontiguousarray(lists)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [None, "keys", "pairs"])
@pytest.mark.parametrize(("n", "m", "block", "groups", "lists_of"), [
    (70, 70, 1, 4, 1), (70, 70, 16, 2, 2), (9, 131, 24, 4, 4), (66, 67, 100, 1, 1), (5, 5, 4, 2, 4),
])  # fmt: skip
def test_a_list_is_dense_attention_with_its_mask(n, m, block, groups, lists_of, masked, causal, tier):
    """Heads share lists, keys, both or neither; the last block is not full; a query may have chosen nothing."""
    Q, K, V = arrays(n, m, groups)
    lists = some_lists(lists_of, n, m, block)
    rng = np.random.default_rng(2)
    mask = {None: None, "keys": rng.random((B, 1, 1, m)) < 0.7, "pairs": rng.random((H, n, m)) < 0.7}[masked]
    sees = np.repeat(np.repeat(as_matrix(lists, -(-m // block)), block, -1)[..., :m], H // lists_of, 1)
    sees = sees if mask is None else sees & mask
    with mt.backend("numpy"):
        want, dense = dot_product_attention(Q, K, V, mask=sees, causal=causal)
        gradients = dense(want)
    Y, pullback = attend_to_chosen(Q, K, V, lists, block, causal=causal, mask=mask, weigh=True)
    np.testing.assert_allclose(Y, want, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(pullback.A, dense.A, rtol=1e-10, atol=1e-13)
    for found, known in zip(pullback(want), gradients, strict=True):
        np.testing.assert_allclose(found, known, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(pullback.blocks, as_matrix(lists, -(-m // block)))
    if block == 1:
        shared = dense.A.reshape(B, lists_of, -1, n, m).sum(2)
        at = np.take_along_axis(shared, np.clip(lists, 0, m - 1), -1)
        np.testing.assert_allclose(pullback.weights, np.where(lists < 0, 0, at), rtol=1e-10, atol=1e-13)


def test_what_is_hidden_is_not_read(tier):
    """NaN in keys and values that nobody has chosen, or that the mask hides."""
    Q, K, V = arrays(20, 20, 2)
    lists, there = some_lists(2, 20, 20, 3), np.arange(20) % 5 != 1
    lists[lists == 4] = -1
    want, known = attend_to_chosen(Q, K, V, lists, 3, causal=False, mask=there[None])
    before = known(want)
    for X in (K, V):
        X[..., ~there, :], X[..., 12:15, :] = np.nan, np.inf
    Y, pullback = attend_to_chosen(Q, K, V, lists, 3, causal=False, mask=there[None])
    np.testing.assert_array_equal(Y, want)
    for a, b in zip(pullback(want), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_definition_in_one_part_and_in_many(monkeypatch):
    Q, K, V = arrays(20, 20, 2)
    lists = some_lists(2, 20, 20, 3)
    with mt.backend("numpy"):
        whole, pullback = attend_to_chosen(Q, K, V, lists, 3, causal=True)
        gradients = pullback(whole)
        monkeypatch.setattr(module, "AT_ONCE", 1)
        Y, pullback = attend_to_chosen(Q, K, V, lists, 3, causal=True)
        np.testing.assert_allclose(Y, whole, rtol=1e-14)
        for a, b in zip(pullback(whole), gradients, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)


@pytest.mark.skipif("numba" not in available(), reason="needs Numba")
@pytest.mark.parametrize("groups", [4, 1])
def test_any_number_of_threads_gives_the_same_bits(groups):
    def everything(Q, K, V, dY):
        Y, pullback = attend_to_chosen(Q, K, V, some_lists(1, 700, 700, 16), 16, causal=True)
        return dict(zip(("Y", "dQ", "dK", "dV"), (Y, *pullback(dY)), strict=True))

    Q, K, V = arrays(700, 700, groups, dtype="float32")
    with mt.backend("numba"):
        assert_any_number_of_threads(everything, (Q, K, V, np.ones((B, H, 700, 3), np.float32)))


def test_memory_grows_with_what_is_chosen(tier):
    """Twice as many tokens need twice the memory, forwards and back; a matrix of all pairs would need four times as much."""

    def inputs(n):
        rng = np.random.default_rng(0)
        Q, K, V, dY = (rng.standard_normal((1, 2, n, 8)).astype("float32") for _ in range(4))
        lists = np.arange(n)[:, None] // 16 - np.arange(3)
        return Q, K, V, np.maximum(lists, -1)[None], dY

    less, more = peaks_of(lambda *arrays: attend_to_chosen(*arrays, 16, causal=True), inputs)
    assert more < 2.2 * less


@pytest.mark.skipif("numba" not in available(), reason="needs Numba")
@pytest.mark.parametrize("name", ["moba", "nsa", "indexer"])
def test_memory_of_the_cores_grows_with_n(name):
    """Neither the matrix of all queries and all blocks is ever there, nor that of the indexer's scores."""
    core = {"moba": MoBA(), "nsa": NSA(), "indexer": Indexer(heads=2, d=8)}[name]
    params = core.init(np.random.default_rng(0))

    def inputs(n):
        *arrays, dY = np.random.default_rng(0).standard_normal((4, 1, 2, n, 8)).astype("float32")
        return *arrays, *[np.ones((1, 2, n, 3), "float32")] * (name == "nsa"), dY

    with mt.backend(available()[-1]):
        less, more = peaks_of(lambda *arrays: core(params, *arrays, causal=True), inputs, (4096, 8192))
    assert more < 2.3 * less


@pytest.mark.parametrize("core", [NSA(), NSA(block=4, chosen=5, window=1), NSA(block=1), MoBA(block=4), MoBA(block=1)])
def test_the_last_query_reads_what_it_reads_in_the_whole_text(core, tier):
    """Also where the list is longer than the text, and where two heads share their keys."""
    rng, groups = np.random.default_rng(0), 2 if core.groups else 4
    Q, K, V, gates = (rng.standard_normal((2, heads, 40, w)) for heads, w in ((4, 8), (groups, 8), (groups, 6), (4, 3)))
    arrays, params = [Q, K, V, gates][: 3 + len(core.streams)], core.init(rng)
    said, state = in_pieces(core, params, arrays, range(41))
    np.testing.assert_allclose(said, core(params, *arrays, causal=True)[0], atol=1e-13)
    assert state.means.values.shape == (2, groups, 40 // core.block, 6 if isinstance(core, NSA) else 0)


def test_rows_that_many_have_chosen():
    rng = np.random.default_rng(0)
    index, X = rng.integers(-1, 6, (2, 7, 4)), rng.standard_normal((2, 6, 3))
    there = (index >= 0)[..., None]
    check_pullback(
        lambda X: (np.where(there, rows_at(X, index), 0), lambda dY: sum_of_rows(np.where(there, dY, 0), index, 6)), X
    )
