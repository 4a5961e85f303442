"""A pattern is a rule, a mask, a list of tiles and a graph, and all four say the same."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitransformer as mt
from minitransformer.attention import (
    BigBird,
    Causal,
    EachHead,
    Fixed,
    Graph,
    Local,
    Pattern,
    RandomKeys,
    SoftmaxAttention,
    Strided,
    Window,
    block_sparse_attention,
    dot_product_attention,
)
from minitransformer.backend import available
from minitransformer.checks import frozen
from minitransformer.pullback import NoParams

TOLERANCE = {"float32": 5e-6, "float64": 2e-14}
SINGLE = [
    *(
        Window(0),
        Window(5),
        Window(20, global_tokens=3),
        Window(4, dilation=3),
        Window(200),
        Window(2, dilation=5, global_tokens=70),
    ),
    *(
        Strided(1),
        Strided(7),
        Strided(90),
        Strided(7, "near"),
        Strided(150, "near"),
        Strided(7, "far"),
        Strided(150, "far"),
    ),
    *(Local(1), Local(7), Local(64), Local(100), Local(200)),
    *(Fixed(7, 2), Fixed(1), Fixed(150, 3), Fixed(64, 1, "far"), Fixed(150, 9, "far"), Fixed(9, 1, "near")),
    *(
        BigBird(block=8),
        BigBird(0, 1, 2, block=30),
        BigBird(1, 0, 1, 3, 100),
        BigBird(2, 1, 2),
        BigBird(0, 0, 1, 5, 8, 70),
    ),
    *(RandomKeys(2), RandomKeys(2, 3) | Window(1) | Window(0, global_tokens=1)),
    *(Causal(), Window(9) | Strided(11), Window(30) & Strided(4), (Window(2) | Strided(9)) & Causal()),
]
OF_HEADS = [
    *(BigBird(block=8, heads=2), BigBird(block=5, heads=2) & Window(40), BigBird(0, 0, 1, 5, 8, 3, 2)),
    *(Strided(7, "heads", 2), Fixed(9, 2, "heads", 2)),
    EachHead((Window(3), Window(3, dilation=4))),
    EachHead((Strided(5), Causal())) | Window(2),
    EachHead((Window(3), Strided(9))) & EachHead((Causal(), Window(12))),
]
PATTERNS = [*SINGLE, *OF_HEADS]


# ------------------------------------------------------------------------------------------ rule, mask, tiles


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize(("n", "m"), [(1, 1), (70, 70), (130, 130), (65, 150), (1, 200), (150, 65)])
@pytest.mark.parametrize("causal", [False, True])
def test_the_tiles_are_the_rule(pattern, n, m, causal):
    i, j = np.arange(m - n, m)[:, None], np.arange(m)[None]
    rule = pattern.sees(i, j, m, causal=causal) & (j <= i if causal else np.True_)
    np.testing.assert_array_equal(pattern(n, m, causal=causal).mask, np.broadcast_to(rule, (*rule.shape[:-2], n, m)))


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_no_tile_that_holds_a_pair_is_left_out(pattern, causal):
    """Of a pattern with a rule for each head, no tile in which any head sees anything."""
    tiles, i = np.arange(8), np.arange(512)
    rule = pattern.sees(i[:, None], i[None], 512, causal=causal) & (i <= i[:, None] if causal else np.True_)
    held = (rule | np.zeros((512, 512), bool)).reshape(-1, 8, 64, 8, 64).any((0, 2, 4))
    assert (pattern.near(tiles[:, None], tiles[None], 512, causal=causal) >= held).all()


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_a_row_does_not_depend_on_what_follows(pattern):
    """What is written one by one sees what it saw in training: if causal, the last rows of a longer mask."""
    whole = pattern(200, 200, causal=True).mask
    for n in (1, 63, 64, 130):
        np.testing.assert_array_equal(pattern(n, n, causal=True).mask, whole[..., :n, :n])
        np.testing.assert_array_equal(pattern(200 - n, 200, causal=True).mask, whole[..., n:, :])


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_what_is_kept_is_enough(pattern):
    if (kept := pattern.kept) is None:
        return
    i, j = np.arange(200)[:, None], np.arange(200)[None]
    assert not (pattern(200, 200, causal=True).mask & (j >= kept.first) & (i - j >= kept.last)).any()


# ------------------------------------------------------------------------------------------------- the kernel


@given(
    st.sampled_from(PATTERNS),
    st.integers(1, 90) | st.sampled_from([128, 190]),
    st.integers(0, 70) | st.sampled_from([128]),
    st.sampled_from([1, 5, 16, 33]),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from(["numba", "micro"]),
    st.booleans(),
    st.booleans(),
)
def test_attention_over_the_tiles_is_dense_attention_under_the_mask(pattern, n, more, d, dtype, fast, causal, padded):
    """Values and gradients, in every tier, on any shape."""
    if fast not in available():
        return
    rng, m = np.random.default_rng(n), n + more
    Q, K, V, dY = (rng.standard_normal((2, 2, rows, w)).astype(dtype) for rows, w in ((n, d), (m, d), (m, 3), (n, 3)))
    mask = rng.random((2, 1, 1, m)) < 0.8 if padded else None
    tiles = pattern(n, m, causal=causal)
    with mt.backend("numpy"):
        exact = [X.astype("float64") for X in (Q, K, V)]
        both = tiles.mask if mask is None else mask & tiles.mask
        Y, pullback = dot_product_attention(*exact, mask=both, causal=causal)
        want = {"Y": Y} | dict(zip(("dQ", "dK", "dV"), pullback(dY.astype("float64")), strict=True))
    with mt.backend(fast):
        Y, pullback = block_sparse_attention(Q, K, V, tiles, mask=mask, causal=causal)
        have = {"Y": Y} | dict(zip(("dQ", "dK", "dV"), pullback(dY), strict=True))
    for name, w in want.items():
        assert have[name].dtype == dtype
        assert np.abs(have[name] - w).max() <= TOLERANCE[dtype] * (1 + np.abs(w).max()), name


# ---------------------------------------------------------------------------------------------------- algebra


def masks(*patterns, n=100, causal=False):
    return [pattern(n, n, causal=causal).mask for pattern in patterns]


@pytest.mark.parametrize("causal", [False, True])
def test_union_and_intersection_are_those_of_the_masks(causal):
    a, b, c = Window(4), Strided(9), Window(1, dilation=20)
    A, B, C = masks(a, b, c, causal=causal)
    for pattern, mask in ((a | b, A | B), (a & b, A & B), ((a | b) & c, (A | B) & C), (a | b | c, A | B | C)):
        np.testing.assert_array_equal(masks(pattern, causal=causal)[0], mask)
    np.testing.assert_array_equal(masks((a | c) & Causal())[0], masks(a | c, causal=True)[0])
    assert (a | b | c).patterns == (a, b, c)
    assert (a | b) == (a | b)


def test_what_a_combination_keeps_and_puts_in_front():
    assert Window(4).kept == (0, 5)
    assert (Window(4, global_tokens=2) | Window(3, dilation=3)).kept == (2, 10)
    assert (Window(4) | Strided(3)).kept is None
    assert (Window(40) & Strided(3)).kept == (0, 41)
    assert EachHead((Window(4), Window(9))).kept == (0, 10)
    assert Causal().kept is None
    assert (BigBird(extra=2) | BigBird(extra=3)).prefix == 3


def test_heads_that_can_t_be_combined():
    two, three = EachHead((Window(1),) * 2), EachHead((Window(1),) * 3)
    with pytest.raises(ValueError, match="equally many heads"):
        two | three
    with pytest.raises(ValueError, match="each with one rule"):
        EachHead((two, Window(1)))
    with pytest.raises(ValueError, match="patterns"):
        EachHead(())
    with pytest.raises(TypeError, match="does not say who sees whom"):
        Pattern()(3, 3, causal=True)
    Q = np.ones((1, 3, 5, 4))
    with pytest.raises(ValueError, match="lists for 2 heads"):
        SoftmaxAttention(two)(NoParams(), Q, Q, Q, causal=True)


def test_what_looks_back_only_goes_with_what_may_but_not_with_what_never_can():
    always, never = (type("Some", (Window,), {"causal": word})(1) for word in ("always", "never"))
    assert (always | Window(1)).causal == "always"
    assert (Window(1) & never).causal == "never"
    with pytest.raises(ValueError, match="one is always causal, another never"):
        (always | never).causal  # noqa: B018  (a property)


# ------------------------------------------------------------------------------------------------------ graph


def by_search(A):
    """Breadth-first, from every node."""
    D = np.full(A.shape, np.inf)
    for start in range(len(A)):
        D[start, start], queue = 0, [start]
        for i in queue:
            for j in np.flatnonzero(A[i]):
                if D[start, j] == np.inf:
                    D[start, j] = D[start, i] + 1
                    queue.append(j)
    return D


@pytest.mark.parametrize("pattern", SINGLE, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_distances_are_those_of_a_search(pattern, causal):
    graph = pattern.graph(40, causal=causal)
    np.testing.assert_array_equal(graph.distances(), by_search(graph.A))
    np.testing.assert_array_equal(graph.neighbours(7), np.flatnonzero(pattern(40, 40, causal=causal).mask[7]))


@pytest.mark.parametrize("n", [128, 256])
@pytest.mark.parametrize("radius", [2, 8])
def test_the_mean_path_of_a_window_is_a_third_of_the_text_in_steps_of_its_radius(n, radius):
    """Two positions are n/3 apart on average, and the last step is a short one: half a step more, on average."""
    i = np.arange(n)
    assert abs(np.abs(i[:, None] - i).mean() - n / 3) < 0.01
    assert abs(Window(radius).graph(n).average_path() - (n / (3 * radius) + 1 / 2)) < 0.1


def test_a_graph_that_one_knows():
    """A ring of n: paths of ⌈(n − 1)/2⌉ … 1, and walk eigenvalues (1 + 2 cos 2πk/n)/3, as each has a loop beside two edges."""
    n = 11
    away = (np.arange(n)[:, None] - np.arange(n)) % n
    ring = Graph(np.isin(away, (1, n - 1)))
    assert ring.edges == n
    assert ring.average_path() == (1 + 2 + 3 + 4 + 5) * 2 / 10
    assert math.isclose(ring.spectral_gap(), 1 - (1 + 2 * math.cos(2 * math.pi / n)) / 3)
    assert np.allclose(ring.walk().sum(1), 1)
    assert Graph(np.ones((5, 5), bool)).spectral_gap() == pytest.approx(1)
    apart = Graph(np.kron(np.eye(2), np.ones((3, 3))) > 0)
    assert apart.average_path() == np.inf
    assert Graph(np.ones((1, 1), bool)).average_path() == 0
    assert Graph(np.ones((1, 1), bool)).spectral_gap() == 1
    for size in range(2, 9):  # some have a λ₂ that rounding leaves above 1
        assert 0 <= Graph(np.kron(np.eye(2), np.ones((size, size))) > 0).spectral_gap() < 1e-12


def test_what_swings_from_side_to_side_is_not_mixed():
    """Two camps of n, each of which sees the other: the walk has the eigenvalues 1, 1/(n + 1) and −(n − 1)/(n + 1)."""
    n = 5
    camps = Graph(np.kron([[False, True], [True, False]], np.ones((n, n), bool)))
    assert camps.spectral_gap() == pytest.approx(1 - (n - 1) / (n + 1))


@pytest.mark.parametrize(
    ("A", "error", "says"),
    [
        ([[True]], TypeError, r"A: \[\[True\]\] should be ndarray"),
        (np.eye(3), TypeError, "A: float64 should be bool"),
        (np.ones((3, 4), bool), ValueError, r"A: shape \(3, 4\) should be \(n, n\)"),
        (np.ones(3, bool), ValueError, r"A: shape \(3,\) should be \(n, n\)"),
    ],
)
def test_a_graph_is_a_square_matrix_of_true_and_false(A, error, says):
    with pytest.raises(error, match=f"^{says}$"):
        Graph(A)


@pytest.mark.parametrize("i", [-1, 5])
def test_a_token_that_is_not_there_has_no_neighbours(i):
    with pytest.raises(ValueError, match=f"^i: {i} should be a token from 0 to 4$"):
        Graph(np.eye(5, dtype=bool)).neighbours(i)


def test_neighbours_of_neighbours():
    """Five in a row, all of them friends of those up to two away: pairs among the neighbours, counted by hand."""
    assert Window(2).graph(5).clustering() == pytest.approx(np.mean([1, 2 / 3, 3 / 6, 2 / 3, 1]))
    assert Window(1).graph(9).clustering() == 0
    assert Graph(np.ones((4, 4), bool)).clustering() == 1
    one_way = Graph(np.array([[0, 1, 1], [0, 0, 1], [0, 0, 0]], bool))
    assert one_way.clustering() == 1, "whoever looks at whom"
    assert one_way.edges == Graph(one_way.A.T).edges == 3


def test_the_graph_of_heads_is_what_all_of_them_see():
    heads = EachHead((Window(1), Strided(5)))
    np.testing.assert_array_equal(heads.graph(20).A, (Window(1) | Strided(5)).graph(20).A)


@pytest.mark.parametrize(
    "gives", [lambda i, j: 1.0 * (i >= j), lambda i, j: 2 * (i >= j), lambda i, j: np.ones(5, bool)]
)
def test_a_rule_that_gives_no_booleans_is_told_so(gives):
    """An even number would hide the pair: its last bit is 0."""

    @frozen
    class Own(Pattern):
        def sees(self, i, j, m, *, causal):
            return gives(i, j)

    with pytest.raises(TypeError, match=r"^sees: gave \w+ \(.*\), should give booleans for 64 × 64 pairs"):
        Own()(6, 6, causal=True)
    core, K = SoftmaxAttention(Own()), np.ones((1, 6, 4))
    with pytest.raises(TypeError, match=r"^sees: gave"):
        core.step(NoParams(), K, K, K, state=core.step(NoParams(), K, K, K, state=None)[1])


def test_a_pattern_with_an_array_says_that_it_should_be_hashable():
    @frozen
    class Own(Pattern):
        rows: np.ndarray

    said = "^Own: its tiles are cached, so its fields should be hashable: .*; rows is not"
    own = Own(np.ones(3))
    for use in (lambda: own(3, 3, causal=True), lambda: SoftmaxAttention(own), lambda: own.graph(3)):
        with pytest.raises(TypeError, match=said):
            use()
