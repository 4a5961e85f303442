"""The modern Hopfield network: an energy that falls, fixed points, and two ways back that agree."""

from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.attention import MultiHeadAttention, causal_mask, dot_product_attention
from minitransformer.pullback import NoParams, tree_bytes
from minitransformer.related import Hopfield, hopfield_attention, hopfield_energy
from tests.pieces import in_pieces


def arrays(seed=0, n=5, m=7, d=4, dv=6, dtype=np.float64):
    """Q, K, V and β of two samples with three heads."""
    rng = np.random.default_rng(seed)
    Q, K, V = (rng.standard_normal((2, 3, *shape)).astype(dtype) for shape in ((n, d), (m, d), (m, dv)))
    return Q, K, V, rng.uniform(0.5, 3, 3).astype(dtype)


def hidden(n, m, seed=1):
    """A mask for each head; one query sees nothing."""
    mask = np.random.default_rng(seed).random((2, 3, n, m)) < 0.7
    mask[0, 0, 0] = False
    return mask


# ---------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_step_is_attention_to_the_last_bit(tier, dtype):
    Q, K, V, _ = arrays(n=70, m=70, dtype=dtype)
    for options in ({}, {"causal": True}, {"mask": hidden(70, 70)}):
        Y, pullback = hopfield_attention(Q, K, V, steps=1, **options)
        Z, attention = dot_product_attention(Q, K, V, **options)
        assert np.array_equal(Y, Z)
        assert Y.dtype == dtype
        for a, b in zip(pullback(np.ones_like(Y)), attention(np.ones_like(Z)), strict=True):
            assert np.array_equal(a, b)


def test_the_energy_never_grows_and_stays_in_its_bounds(tier):
    """For random patterns at any temperature, masks included; E ≤ 2 M² once the state is an average of patterns."""
    for seed in range(20):
        Q, K, _, beta = arrays(seed)
        mask = hidden(5, 7, seed)
        _, pullback = hopfield_attention(Q, K, K, beta, steps=12, tolerance=1e-12, mask=mask)
        energies = [hopfield_energy(xi, K, beta, mask=mask)[0] for xi in pullback.states]
        assert (np.diff(energies, axis=0) <= 1e-12).all()
        assert np.min(energies) >= -1e-12
        assert (np.array(energies[1:]) <= 2 * (K**2).sum(-1).max(-1)[..., None] + 1e-12).all()


def test_a_large_beta_finds_the_nearest_in_one_step_and_a_small_one_the_mean():
    rng = np.random.default_rng(2)
    K = rng.standard_normal((9, 64))
    K /= np.linalg.norm(K, axis=-1, keepdims=True)
    Q = K + 0.05 * rng.standard_normal(K.shape)
    assert np.allclose(hopfield_attention(Q, K, K, 1000.0, steps=1)[0], K, atol=1e-10)
    means, pullback = hopfield_attention(Q, K, K, 1e-3, steps=100)
    assert np.allclose(means, K.mean(0), atol=1e-4)
    assert pullback.settled.all()


def rises(read, count=100):
    """In how many of so many random memories the energy of some query grows in one of five updates, by what is fed back."""
    found = 0
    for seed in range(count):
        Q, K, V = np.random.default_rng(seed).standard_normal((3, 6, 4))
        energies = []
        for _ in range(6):
            energies.append(hopfield_energy(Q, K)[0])
            Q = dot_product_attention(Q, K, V if read == "values" else K)[0]
        found += bool((np.diff(energies, axis=0) > 1e-12).any())
    return found


def test_what_is_fed_back_are_the_keys():
    """Borealis II, figure 15 and the text before it.

    printed  "the output of the attention network should be feed back in as a new query"
    wrong    The output is made of values. With values of their own, as every transformer has them, the energy grows
             for some query in 100 of 100 random memories; values of another width are no queries at all.
    holds    Fed back is the average of the keys, with which it grows in 0; the values are read at the end.
    """
    assert rises("values") == 100
    assert rises("keys") == 0
    Q, K, V = np.ones((5, 4)), np.ones((6, 4)), np.ones((6, 3))
    Y, _ = dot_product_attention(Q, K, V)
    with pytest.raises(TypeError, match=r"parameter 'K': f64\[6,4\] should be .*, where m=6, d=3$"):
        dot_product_attention(Y, K, V)
    assert hopfield_attention(Q, K, V)[0].shape == (5, 3)


# ------------------------------------------------------------------------------------------- when it stops


@pytest.mark.parametrize("tolerance", [1e-1, 1e-2, 1e-4])
def test_a_settled_query_changes_its_weights_by_less_than_the_tolerance(tolerance):
    """√(β⟨Δ, Δ′⟩) is not less than ‖p′ − p‖₁, and consecutive changes never turn by more than a right angle."""
    Q, K, V, beta = arrays(3, n=40)
    with mt.backend("numpy"):
        _, pullback = hopfield_attention(Q, K, V, beta, steps=500, tolerance=tolerance)
    assert pullback.settled.all()
    assert pullback.steps.max() < 500
    assert pullback.steps.min() < pullback.steps.max()
    A = [update.attention.A for update in pullback.updates]
    for t in range(len(A) - 1):
        both = pullback.updates[t].moved & pullback.updates[t + 1].moved
        first, second = (pullback.states[t + k + 1] - pullback.states[t + k] for k in (0, 1))
        inner = beta[:, None] * (first * second).sum(-1)
        change = np.abs(A[t + 1] - A[t]).sum(-1)
        assert (inner[both] >= -1e-14).all()
        assert (change[both] <= np.sqrt(np.maximum(inner[both], 0)) + 1e-7).all()
    for b, h, i in np.ndindex(Q.shape[:-1]):
        last = pullback.steps[b, h, i] - 2  # the number of its last update
        assert np.abs(A[last][b, h, i] - A[last - 1][b, h, i]).sum() <= tolerance + 1e-9
        assert np.array_equal(pullback.states[last + 1][b, h, i], pullback.states[-1][b, h, i])


def test_what_has_not_settled_says_so():
    Q, K, V, _ = arrays()
    for steps in (1, 2, 3):
        _, pullback = hopfield_attention(Q, K, V, 1.0, steps=steps, tolerance=1e-9)
        assert (pullback.steps == steps).all()
        assert not pullback.settled.any()
        _, pullback = Hopfield(steps=steps, tolerance=1e-9)(NoParams(), Q, K, V)
        assert (pullback.steps.shape, pullback.settled.any()) == ((2, 3, 5), False)
    Q[0, 0, 0, 0] = np.nan
    _, pullback = hopfield_attention(Q, K, V, 1.0, steps=200)
    assert not pullback.settled[0, 0, 0]
    assert pullback.settled.sum() == 29


def test_no_sample_and_no_query_depends_on_another(tier):
    Q, K, V, _ = arrays(4, n=9, m=9)
    together, _ = hopfield_attention(Q, K, V, 2.0, steps=50, causal=True)
    for b in range(2):
        alone, _ = hopfield_attention(Q[b], K[b], V[b], 2.0, steps=50, causal=True)
        assert np.allclose(alone, together[b], atol=1e-14)
    part, _ = hopfield_attention(*(X[..., :6, :] for X in (Q, K, V)), 2.0, steps=50, causal=True)
    assert np.allclose(part, together[..., :6, :], atol=1e-14)


# ------------------------------------------------------------------------------------------------ gradients


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("given", [False, True])
def test_unrolled(tier, steps, given):
    Q, K, V, beta = arrays()
    for options in ({}, {"mask": hidden(5, 7)}, {"causal": True}, {"tolerance": 1e-1}):
        f = partial(hopfield_attention, steps=steps, **options)
        mt.check_pullback(f, Q, K, V, *([beta] if given else []), entries=8)
    groups = partial(hopfield_attention, steps=steps)
    mt.check_pullback(groups, Q, K[:, :1], V[:, :1], entries=8)


@pytest.mark.parametrize("seed", range(3))
def test_implicit_is_unrolled_at_the_fixed_point(tier, seed):
    """For queries (both zero), keys, values and β, with masks; and it does what a solve with I − J does."""
    Q, K, V, beta = arrays(seed)
    mask, dY = hidden(5, 7, seed), np.random.default_rng(9).standard_normal((*V.shape[:2], 5, 6))
    options = {"steps": 5000, "tolerance": 1e-13, "mask": mask}
    Y, unrolled = hopfield_attention(Q, K, V, beta, **options)
    Z, implicit = hopfield_attention(Q, K, V, beta, **options, gradient="implicit")
    assert np.array_equal(Y, Z)
    assert implicit.settled.all()
    for a, b in zip(unrolled(dY), implicit(dY), strict=True):
        assert np.abs(b - a).max() < 1e-9 * max(1, np.abs(a).max())
    g, u = implicit.reading(dY)[0], implicit.solve(implicit.reading(dY)[0])
    p = implicit.A
    for b, h, i in np.ndindex(Q.shape[:-1]):
        inner = np.diag(p[b, h, i]) - np.outer(p[b, h, i], p[b, h, i])
        J = beta[h] * K[b, h].T @ inner @ K[b, h]
        assert np.linalg.eigvalsh(J).max() < 1
        assert np.allclose(np.linalg.solve(np.eye(4) - J, g[b, h, i]), u[b, h, i], atol=1e-9)


def test_implicit_against_differences():
    """The derivative of the settled answer itself, beside the zero for the queries."""
    Q, K, V, beta = arrays(5)
    options = {"steps": 5000, "tolerance": 1e-13, "gradient": "implicit"}
    mt.check_pullback(partial(hopfield_attention, **options), Q, K, V, beta, zero=["Q"], entries=8)


def test_implicit_remembers_one_update(tier):
    Q, K, V, _ = arrays(6, n=40, m=40, d=8, dv=8)
    held = {}
    for gradient in ("unrolled", "implicit"):
        for steps in (5, 20):
            made = hopfield_attention(Q, K, V, steps=steps, tolerance=1e-30, gradient=gradient)
            held[gradient, steps] = tree_bytes(made[1])
    assert held["implicit", 5] == held["implicit", 20]
    assert held["unrolled", 20] > 2.5 * held["unrolled", 5]


def test_the_energy_goes_back():
    Q, K, _, beta = arrays()
    for options in ({}, {"mask": hidden(5, 7)}, {"mask": causal_mask(5, 7)}):
        mt.check_pullback(partial(hopfield_energy, **options), Q, K, beta)
        mt.check_pullback(lambda Q, K, o=options: hopfield_energy(Q, K, 2.0, **o), Q, K)


def test_a_pattern_that_no_state_sees_adds_nothing_to_the_energy():
    """Be it NaN: neither to E nor to a gradient."""
    Q, K, _, beta = arrays()
    seen, found = np.arange(7) != 3, []
    for what in (1.0, np.nan, np.inf):
        K[..., 3, :] = what
        E, back = hopfield_energy(Q, K, beta, mask=seen[None])
        with np.errstate(invalid="ignore"):
            found.append([E, *back(np.ones_like(E))])
    for other in found[1:]:
        for one, wanted in zip(other, found[0], strict=True):
            np.testing.assert_allclose(one, wanted, atol=1e-12)
    np.testing.assert_allclose(hopfield_energy(Q, K[..., :0, :])[0], (Q * Q).sum(-1) / 2)
    alone, _ = hopfield_energy(Q, K[..., seen, :], beta)
    np.testing.assert_allclose(found[0][0], alone, atol=1e-12, err_msg="m and M are those of the patterns that it sees")


def test_of_no_queries_there_is_nothing_to_retrieve(tier):
    Q, K, V, _ = arrays(n=0)
    for gradient in ("unrolled", "implicit"):
        Y, back = hopfield_attention(Q, K, V, gradient=gradient)
        assert Y.shape == (2, 3, 0, 6)
        assert [(dX.shape, dX.any()) for dX in back(Y)] == [(X.shape, False) for X in (Q, K, V)]


def test_a_sharp_network_starts_with_the_scores_of_attention():
    """W_q is drawn as much smaller as β is above 1/√d."""
    usual, sharp = (
        MultiHeadAttention(12, 3, core=Hopfield(beta=beta)).init(np.random.default_rng(0), np.float64)
        for beta in (None, 3.0)
    )
    np.testing.assert_allclose(sharp.W_q, usual.W_q / (3 * np.sqrt(4)))
    np.testing.assert_array_equal(sharp.W_k, usual.W_k)


def test_where_an_update_goes_the_energy_has_no_slope():
    """dE/dξ = ξ − Kᵀp: zero at a fixed point."""
    Q, K, V, _ = arrays(7)
    _, pullback = hopfield_attention(Q, K, V, 1.5, steps=3000, tolerance=1e-13)
    E, back = hopfield_energy(pullback.states[-1], K, 1.5)
    assert np.abs(back(np.ones_like(E))[0]).max() < 1e-9


def test_the_unit_step_down_the_energy_is_the_update():
    """ξ − ∂E/∂ξ = Kᵀp: the row "Hopfield" of memory as gradient descent, where it is the query that goes downhill."""
    Q, K, _, beta = arrays(8)
    E, back = hopfield_energy(Q, K, beta)
    update, _ = hopfield_attention(Q, K, K, beta, steps=1)
    assert np.allclose(Q - back(np.ones_like(E))[0], update)


def test_implicit_in_plain_sums():
    """δξ = J δξ + δf: u = (I − J)⁻¹g is sent through one update, query by query."""
    Q, K, V = np.random.default_rng(5).standard_normal((3, 5, 4))
    beta, dY = 0.9, np.random.default_rng(6).standard_normal((5, 4))
    wanted = np.zeros_like(K)
    for q, dy in zip(Q, dY, strict=True):
        xi = q
        for _ in range(1000):
            p = np.exp(beta * K @ xi) / np.exp(beta * K @ xi).sum()
            xi = K.T @ p
        C = np.diag(p) - np.outer(p, p)
        ds = C @ (V @ dy)  # back through the reading, to its scores β⟨k_j, ξ⟩
        u = np.linalg.solve(np.eye(4) - beta * K.T @ C @ K, beta * K.T @ ds)
        wanted += beta * np.outer(ds + C @ (K @ u), xi) + np.outer(p, u)  # an update has K twice
    options = {"steps": 3000, "tolerance": 1e-13, "gradient": "implicit"}
    dQ, dK, _ = hopfield_attention(Q, K, V, beta, **options)[1](dY)
    assert np.allclose(dK, wanted, atol=1e-8)
    assert not dQ.any()


# ------------------------------------------------------------------------------------------------- refusals


def test_the_core_goes_back_as_it_is_told():
    Q, K, V, _ = arrays()
    for gradient in ("unrolled", "implicit"):
        Y, pullback = Hopfield(gradient=gradient)(NoParams(), Q, K, V)
        assert (pullback(Y)[1] == 0).all() == (gradient == "implicit"), (
            "at a fixed point it does not matter where a query was"
        )


@pytest.mark.parametrize(("beta", "tolerance"), [(None, 1e-4), (3.0, 1e-4), (3.0, 0.3), (0.2, 0.05)])
def test_written_token_by_token_it_is_the_same(beta, tolerance, tier):
    """Whatever β and the tolerance are, which say after how many updates a query stands still."""
    core, (Q, K, V, _) = Hopfield(steps=6, tolerance=tolerance, beta=beta), arrays(n=7, m=7)
    want, pullback = core(NoParams(), Q, K, V, causal=True)
    found, _ = in_pieces(core, NoParams(), [Q, K, V], range(8))
    np.testing.assert_allclose(found, want, rtol=1e-10, atol=1e-12)
    assert len(np.unique(pullback.steps)) > 1


def test_what_does_not_fit_is_refused():
    Q, K, V, beta = arrays()
    for wrong, message in {
        "β": (lambda: hopfield_attention(Q, K, V, 0.0), "beta: 0.0 should be above 0"),
        "one β": (lambda: hopfield_attention(Q, K, V, beta * np.array([1, -1, 1])), "beta: -.* should be above 0"),
        "of others": (lambda: hopfield_attention(Q, K, V, beta[:2]), "beta: shape"),
        "tolerance": (lambda: hopfield_attention(Q, K, V, tolerance=0.0), "tolerance: 0.0 should be above 0"),
        "steps": (lambda: hopfield_attention(Q, K, V, steps=0), "steps: 0 should be at least 1"),
        "too few": (lambda: Hopfield(steps=1, gradient="implicit"), "steps: 1 should be at least 2, for an implicit"),
        "as few": (lambda: hopfield_attention(Q, K, V, steps=1, gradient="implicit"), "steps: 1 should be at least 2"),
        "energy": (lambda: hopfield_energy(Q, K, 0.0), "beta: 0.0"),
        "its mask": (lambda: hopfield_energy(Q, K, mask=np.ones((4, 7), bool)), "mask: shape"),
        "mask": (lambda: hopfield_attention(Q, K, V, mask=np.ones((4, 7), bool)), "mask: shape"),
    }.values():
        with pytest.raises(ValueError, match=message):
            wrong()
    with pytest.raises(TypeError, match="K"):
        hopfield_attention(Q, V, V)  # patterns of width 6 for queries of width 4
    for call in (lambda beta: hopfield_attention(Q, K, V, beta), lambda beta: hopfield_energy(Q, K, beta)):
        with pytest.raises(TypeError, match="beta"):
            call(beta.astype(np.float32))
