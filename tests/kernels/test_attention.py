"""The compiled loops give what the definition gives: values, gradients and weights, for every shape and every mask."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitransformer as mt
from minitransformer.attention import causal_mask, dot_product_attention
from minitransformer.attention.dot_product import attend_to_buffer
from minitransformer.backend import available
from tests.kernels.promises import assert_any_number_of_threads, peaks_of

kernels = pytest.importorskip("minitransformer.kernels.attention")
pytestmark = pytest.mark.skipif("numba" not in available(), reason="needs Numba")

TOLERANCE = {"float32": 5e-6, "float64": 2e-14}


@pytest.fixture(autouse=True, params=["numba", "micro", "few"])
def tier(request, monkeypatch):
    """Tiles for a single query too, in both tiers; and the loop for a few queries, for as many as there are, in parts of keys."""
    name = "numba" if request.param == "few" else request.param
    if name not in available():
        pytest.skip(f"this machine has no tier {name!r}")
    monkeypatch.setattr(kernels, "FEW", 10**9 if request.param == "few" else 0)
    if request.param == "few":
        monkeypatch.setattr(kernels, "LONG", 0)
        monkeypatch.setattr(kernels, "PART", 8)
    with mt.backend(name):
        yield


def random_inputs(seed=0, batch=(2, 3), n=7, m=9, d=5, dv=4, dtype="float32"):
    """Q, K, V and dY."""
    rng = np.random.default_rng(seed)
    shapes = (n, d), (m, d), (m, dv), (n, dv)
    return tuple(rng.standard_normal((*batch, *shape)).astype(dtype) for shape in shapes)


def everything(tier, Q, K, V, dY, **options):
    """Y, A, dQ, dK, dV and, of a bias and a sink, dbias and dsink, of one tier; None is the tier that is under test."""
    with mt.backend(tier):
        Y, pullback = dot_product_attention(Q, K, V, **options)
        names = ["Y", "A", "dQ", "dK", "dV"] + ["dbias"] * ("bias" in options) + ["dsink"] * ("sink" in options)
        return dict(zip(names, (Y, pullback.A, *pullback(dY)), strict=True))


def assert_tiers_agree(Q, K, V, dY, **options):
    exact = {name: x.astype("float64") if name in ("bias", "sink") else x for name, x in options.items()}
    want = everything("numpy", *(X.astype("float64") for X in (Q, K, V, dY)), **exact)
    have = everything(None, Q, K, V, dY, **options)
    # a score s is known to about s · 2⁻²⁴, and so is the logarithm of a weight
    longest = [np.linalg.norm(X, axis=-1).max(initial=0) for X in (Q, K)]
    largest = longest[0] * longest[1] * abs(options.get("scale") or Q.shape[-1] ** -0.5 if Q.shape[-1] else 0)
    tolerance = TOLERANCE[str(Q.dtype)] * max(1, largest / 16)
    for name, w in want.items():
        h = have[name]
        assert h.shape == w.shape, name
        assert h.dtype == Q.dtype, name
        assert np.isfinite(h).all(), name
        error = np.abs(h - w).max(initial=0) / (1 + np.abs(w).max(initial=0))
        assert error <= tolerance, f"{name} differs by {error:.2g}"


# ----------------------------------------------------------------------------------------------- agreement


lengths = st.integers(0, 70) | st.sampled_from([1, 1, 63, 64, 65, 128, 130, 200])
widths = st.integers(1, 9) | st.sampled_from([0, 13, 16, 32, 65])


@st.composite
def masks(draw, shape):
    """A mask that broadcasts to a shape: any of its axes may be 1, leading ones may be missing, whole rows be False."""
    own = [draw(st.sampled_from([s, s, 1])) for s in shape]
    own = own[draw(st.integers(0, len(own) - 1)) :]
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    mask = np.asarray(rng.random(own) < draw(st.sampled_from([0, 0.1, 0.5, 0.9, 1])))
    if own and draw(st.booleans()):
        mask &= rng.random((*own[:-1], 1)) < 0.7  # some queries see nothing
    if draw(st.booleans()):
        mask = np.broadcast_to(mask, shape[len(shape) - draw(st.integers(len(own), len(shape))) :])
    return mask


@st.composite
def problems(draw):
    batch = tuple(draw(st.lists(st.integers(1, 3) | st.sampled_from([2, 2, 0]), max_size=3)))
    n, m = draw(lengths), draw(lengths | st.none())
    m = n if m is None else m
    arrays = random_inputs(
        draw(st.integers(0, 99)), batch, n, m, draw(widths), draw(widths), draw(st.sampled_from(["float32", "float64"]))
    )
    mask = draw(st.none() | masks((*batch, n, m)))
    options = {}
    if draw(st.booleans()):
        own = [draw(st.sampled_from([s, 1])) for s in batch][draw(st.integers(0, len(batch))) :]
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        options["bias"] = rng.standard_normal((*own, max(n + m - 1, 0))).astype(arrays[0].dtype)
    if draw(st.booleans()):
        own = batch[draw(st.integers(0, len(batch))) :]
        options["sink"] = np.asarray(3 * np.random.default_rng(7).standard_normal(own), arrays[0].dtype)
    if draw(st.booleans()):
        options["cap"] = draw(st.sampled_from([0.5, 3, 50.0, 1e4]))
    if batch and batch[-1] and draw(st.booleans()):  # neighbouring heads share their keys and values
        step = draw(st.sampled_from([s for s in (1, 2, 3) if batch[-1] % s == 0]))
        Q, K, V, dY = arrays
        arrays = Q, K[..., ::step, :, :], V[..., ::step, :, :], dY
    scale = draw(st.sampled_from([None, 1, -0.3, 0.0, 2.5]))
    return arrays, options | {"causal": draw(st.booleans()), "mask": mask, "scale": scale}


@given(problems())
def test_the_tiers_agree(problem):
    arrays, options = problem
    before = [a.copy() for a in arrays]
    mask_before = None if options["mask"] is None else options["mask"].copy()
    assert_tiers_agree(*arrays, **options)
    for old, new in zip(before, arrays, strict=True):
        np.testing.assert_array_equal(old, new)
    if mask_before is not None:
        np.testing.assert_array_equal(mask_before, options["mask"])


@pytest.mark.each_pair
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "m"), [(130, 130), (200, 130), (130, 200), (64, 64), (129, 1), (1, 129), (191, 320)])
def test_several_tiles(n, m, causal, dtype):
    assert_tiers_agree(*random_inputs(1, (2,), n, m, 24, 19, dtype), causal=causal)


@pytest.mark.parametrize("causal", [False, True])
def test_every_way_to_broadcast_a_mask(causal):
    batch, n, m = (2, 3), 70, 67
    arrays = random_inputs(2, batch, n, m)
    rng = np.random.default_rng(3)
    for kept in np.ndindex(2, 2, 2, 2):
        shape = [s if k else 1 for s, k in zip((*batch, n, m), kept, strict=True)]
        mask = rng.random(shape) < 0.7
        assert_tiers_agree(*arrays, causal=causal, mask=mask)
        assert_tiers_agree(*arrays, causal=causal, mask=np.broadcast_to(mask, (*batch, n, m)))
        assert_tiers_agree(*arrays, causal=causal, mask=np.asfortranarray(mask))
        while mask.ndim > 1 and mask.shape[0] == 1:
            mask = mask[0, ...]
            assert_tiers_agree(*arrays, causal=causal, mask=mask)


def test_many_heads_one_head_and_several_batch_axes_are_cut_differently_but_agree():
    for batch in [(), (1,), (17,), (2, 2, 2), (5, 1, 2)]:
        assert_tiers_agree(*random_inputs(4, batch, 150, 210), causal=True)


def test_arrays_in_any_memory_order_and_read_only():
    Q, K, V, dY = random_inputs(5, (2, 3), 12, 16, 8, 4)
    want = everything("numpy", Q, K, V, dY)
    fortran = [np.asfortranarray(a) for a in (Q, K, V, dY)]
    strided = [np.repeat(a, 2, axis=-1)[..., ::2] for a in (Q, K, V, dY)]
    frozen = [a.copy() for a in (Q, K, V, dY)]
    for a in frozen:
        a.flags.writeable = False
    for arrays in (fortran, strided, frozen):
        have = everything(None, *arrays)
        for name, w in want.items():
            np.testing.assert_allclose(have[name], w, atol=5e-6, err_msg=name)


def test_a_gradient_is_written_row_by_row_whatever_the_order_of_the_arguments():
    Q, K, V, dY = (np.asfortranarray(a) for a in random_inputs(5))
    for grad in dot_product_attention(Q, K, V)[1](dY):
        assert grad.flags.c_contiguous


# ----------------------------------------------------------------------------------------------- gradients


def test_the_pullback_remembers_what_the_equation_needs_and_no_matrix():
    Q, K, V, _ = random_inputs(7, (2,), 100, 90)
    mask = np.random.default_rng(0).random((100, 90)) < 0.5
    Y, pullback = dot_product_attention(Q, K, V, mask=mask, scale=0.5)
    assert pullback._fields == ("Q", "K", "V", "Y", "L", "scale", "causal", "mask", "bias", "pattern", "sink", "cap")
    assert pullback.Q is Q
    assert pullback.K is K
    assert pullback.V is V
    assert np.shares_memory(pullback.Y, Y)
    assert np.array_equal(pullback.mask, mask)
    assert not np.shares_memory(pullback.mask, mask)  # a caller may go on with it
    assert pullback.scale == np.float32(0.5)
    assert pullback.causal is False
    S = np.where(mask, 0.5 * Q @ K.mT, -np.inf)
    np.testing.assert_allclose(pullback.L, np.log(np.exp(S).sum(-1)), rtol=1e-5)


def test_a_gradient_of_another_shape_is_refused():
    Q, K, V, dY = random_inputs(8, (2,), 4, 4, 4, 4)
    _, pullback = dot_product_attention(Q, K, V)
    with pytest.raises(ValueError, match=r"dY: shape \(4, 2, 4\) should be that of Y, \(2, 4, 4\)"):
        pullback(dY.transpose(1, 0, 2))


@pytest.mark.parametrize("shape", [(2, 5, 9), (8,), (3, 2, 3, 7, 9), (7, 1, 1)])
def test_a_mask_that_does_not_fit_is_the_same_error_in_both_tiers(shape):
    Q, K, V, _ = random_inputs()
    said = set()
    for tier in ("numpy", None):
        with mt.backend(tier), pytest.raises(ValueError, match=r"^mask: shape .* does not broadcast") as error:
            dot_product_attention(Q, K, V, mask=np.ones(shape, bool))
        said.add(str(error.value))
    assert len(said) == 1


# ------------------------------------------------------------------------------------------ masked rows


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_query_that_sees_no_key_gives_zeros_and_no_gradient(dtype):
    Q, K, V, dY = random_inputs(9, (2, 3), 70, 130, dtype=dtype)
    mask = np.random.default_rng(0).random((2, 1, 70, 130)) < 0.5
    blind = [0, 5, 63, 64, 69]
    mask[:, :, blind] = False
    mask[1] = False  # and a whole sample
    mask[0, :, 30, :64] = False  # and a query whose first tile is dark
    have = everything(None, Q, K, V, dY, mask=mask)
    for name, a in have.items():
        assert np.isfinite(a).all(), name
        assert not a[1].any(), name
    for name in ("Y", "dQ", "A"):
        assert not have[name][:, :, blind].any(), name
    assert have["Y"][0, :, 30].any()
    assert_tiers_agree(Q, K, V, dY, mask=mask)


def test_a_key_that_no_query_sees_gets_no_gradient():
    Q, K, V, dY = random_inputs(10, (2,), 66, 66)
    mask = np.ones((2, 1, 66), bool)
    mask[0, :, 20:] = False
    have = everything(None, Q, K, V, dY, mask=mask, causal=True)
    assert not have["dK"][0, 20:].any()
    assert not have["dV"][0, 20:].any()
    assert have["dK"][1, 20:].any()


def test_more_queries_than_keys_leave_the_first_queries_without_any_when_causal():
    Q, K, V, dY = random_inputs(11, (2,), 200, 70)
    have = everything(None, Q, K, V, dY, causal=True)
    assert not have["Y"][:, :130].any()
    assert not have["dQ"][:, :130].any()
    assert have["Y"][:, 130:].all()


@pytest.mark.parametrize("size", [10.0, 1e3])
def test_large_scores(size):
    Q, K, V, dY = random_inputs(12, (2,), 40, 50)
    largest = size * np.abs(Q @ K.mT).max()
    want = everything("numpy", size * Q, K, V, dY, scale=1.0)
    have = everything(None, size * Q, K, V, dY, scale=1.0)
    for name, w in want.items():  # a score s is known to about s · 2⁻²³, and so is the logarithm of a weight
        atol = 4 * largest * 2**-23 * (1 + np.abs(w).max())
        np.testing.assert_allclose(have[name], w, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("size", [1e18, 1e36])
def test_scores_so_large_that_one_key_takes_all(size):
    Q, K, V, dY = random_inputs(12, (2,), 40, 50)
    have = everything(None, np.float32(size) * Q, K, V, dY, scale=1.0)
    winner = (Q @ K.mT).argmax(-1)
    np.testing.assert_array_equal(have["Y"], np.take_along_axis(V, winner[..., None], -2))
    for name, a in have.items():
        assert np.isfinite(a).all(), name


def test_faint_weights_make_no_subnormal_numbers():
    """On them a processor takes ten times longer, or more; the attention of a trained model would be full of them."""
    _, _, V, dY = random_inputs(m=200, n=70)
    Q = np.ones((2, 3, 70, 1), "float32")
    K = -np.linspace(0, 126 * np.log(2), 200, dtype="float32")[:, None] * np.ones((2, 3, 1, 1), "float32")
    dY *= np.float32(2.0**-26)  # as small as in a training; the weights go from 1 down to 2⁻¹²⁶
    want = everything("numpy", Q, K, V, dY, scale=1)
    have = everything(None, Q, K, V, dY, scale=1)

    def subnormal(X):
        return (X != 0) & (np.abs(X) < np.finfo("float32").tiny)

    assert subnormal(want["dK"]).any(), "else there is nothing to be tested"
    for name in ("Y", "dQ", "dK", "dV"):
        assert not subnormal(have[name]).any(), name
        np.testing.assert_allclose(have[name], want[name], rtol=1e-4, atol=2e-6 * np.abs(want[name]).max())


def test_a_nan_is_not_swept_under_the_carpet():
    Q, K, V, _ = random_inputs(13, (2,), 70, 70)
    Q[0, 3, 1] = np.nan
    Y, _ = dot_product_attention(Q, K, V, causal=True)
    assert np.isnan(Y[0, 3]).all()
    assert np.isfinite(Y[0, :3]).all()
    assert np.isfinite(Y[0, 4:]).all()
    assert np.isfinite(Y[1]).all()


# -------------------------------------------------------------------------------- what does not change Y


def test_the_future_does_not_change_a_bit_of_the_past():
    Q, K, V, _ = random_inputs(14, (2,), 140, 140)
    Y, _ = dot_product_attention(Q, K, V, causal=True)
    for t in (1, 63, 64, 100, 139):
        changed = [a.copy() for a in (Q, K, V)]
        for a in changed:
            a[:, t] += 100
        Z, _ = dot_product_attention(*changed, causal=True)
        np.testing.assert_array_equal(Z[:, :t], Y[:, :t])
        assert (Z[:, t] != Y[:, t]).any()


def test_the_same_bits_with_any_number_of_threads():
    assert_any_number_of_threads(partial(everything, None, causal=True), random_inputs(16, (3,), 300, 300))


def test_an_explicit_causal_mask_is_the_same_as_causal():
    Q, K, V, dY = random_inputs(17, (2,), 100, 150)
    a = everything(None, Q, K, V, dY, causal=True)
    b = everything(None, Q, K, V, dY, mask=causal_mask(100, 150))
    for name in a:
        np.testing.assert_allclose(a[name], b[name], atol=1e-6, err_msg=name)


# ------------------------------------------------------------------------------------------------- memory


def test_memory_is_linear_in_the_length():
    def masked(Q, K, V):
        return dot_product_attention(Q, K, V, causal=True, mask=np.ones((1, K.shape[-2]), bool))

    small, large = peaks_of(masked, lambda n: random_inputs(18, (8,), n, n, 8, 8))
    assert large < 2.3 * small
    assert large < 8 * 4096 * 4096 * 4 / 16  # a sixteenth of the matrices of the eight heads


# --------------------------------------------------------------------------------------------- generation


@pytest.mark.each_pair
@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.parametrize(("own", "shared"), [((2, 4), (2, 4)), ((2, 4), (2, 2)), ((), ())])
@pytest.mark.parametrize("extra", [False, True])
def test_attention_to_a_buffer_is_attention_to_its_first_rows(n, own, shared, extra):
    rng, m = np.random.default_rng(17), 9
    Q = rng.standard_normal((*own, n, 8)).astype("float32")
    K, V = (rng.standard_normal((*shared, 20, width)).astype("float32") for width in (8, 6))
    K[..., m:, :] = V[..., m:, :] = np.nan
    bias = rng.standard_normal((*own[-1:], n + m - 1)).astype("float32") if extra else None
    mask = np.arange(m) > 2 if extra else None
    have = attend_to_buffer(Q, K, V, m, bias, mask)
    want, _ = dot_product_attention(Q, K[..., :m, :], V[..., :m, :], bias, causal=True, mask=mask)
    np.testing.assert_allclose(have, want, atol=1e-6)
    with mt.backend("numpy"):
        np.testing.assert_allclose(have, attend_to_buffer(Q, K, V, m, bias, mask), atol=1e-6)


def test_few_queries_do_not_read_what_the_mask_hides(monkeypatch):
    monkeypatch.setattr(kernels, "FEW", 4)
    Q, K, V, _ = random_inputs(18, (2,), 3, 200)
    mask = np.zeros((2, 3, 200), bool)
    mask[:, :, 150:] = np.random.default_rng(0).random((2, 3, 50)) < 0.5
    unseen = ~mask.any(1)
    want, _ = dot_product_attention(Q, K, V, mask=mask)
    K[unseen] = V[unseen] = np.nan
    have, _ = dot_product_attention(Q, K, V, mask=mask)
    np.testing.assert_array_equal(have, want)
