"""What all encodings inside attention have to promise alike: gradients, masks, shared keys, a cache of keys, memory, dtypes."""

from functools import partial

import numpy as np
import pytest

from minitransformer import backend, check_pullback, random_like
from minitransformer.attention import MultiHeadAttention, SoftmaxAttention, attend
from minitransformer.positions import ALiBi, DeBERTa, Multiplicative, RoPE, Shaw, TransformerXLPositions
from minitransformer.positions.encoding import ScoreEncoding
from minitransformer.positions.fire import FIRE
from minitransformer.positions.grid import GridScalars
from minitransformer.positions.kerple import KerpleLog, KerplePower, KerpleWeighted
from minitransformer.positions.relative_sinusoids import TENER
from minitransformer.positions.rope_scaling import NTK, PositionInterpolation, YaRN
from minitransformer.positions.sinusoidal_keys import SinusoidalKeys
from minitransformer.positions.t5 import OffsetScalars, T5Bias
from minitransformer.positions.tupe import TUPE
from minitransformer.pullback import tree_leaves, tree_map
from tests.peaks import peak

H, n, m, d, dv = 3, 5, 7, 4, 2
OF_HEADS = {  # learned, for so many heads
    "T5": T5Bias(H, buckets=8, distance=6),
    "scalars": OffsetScalars(H, longest=11),
    "grid": GridScalars(H, longest=9, columns=4),
    "KERPLE log": KerpleLog(H),
    "KERPLE power": KerplePower(H),
    "KERPLE weighted": KerpleWeighted(H),
    "FIRE": FIRE(H, hidden=6),
    "TUPE-A": TUPE(H * d, H, longest=9, cls=False),
    "TUPE-A, [CLS]": TUPE(H * d, H, longest=9),
    "TUPE-R": TUPE(H * d, H, longest=9, cls=False, buckets=8, distance=5),
    "TUPE-R, [CLS]": TUPE(H * d, H, longest=9, buckets=8, distance=5),
}
ENCODINGS = OF_HEADS | {
    "ALiBi": ALiBi(H),
    "Shaw": Shaw(d, 2, values=False),
    "sinusoids": SinusoidalKeys(d),
    "sinusoids, learned": SinusoidalKeys(d, learn=True),
    **{kind: Multiplicative(d, 2, kind) for kind in ("M1", "M2", "M3", "M4")},
    "Transformer-XL": TransformerXLPositions(H * d, H),
    "TENER": TENER(H, d),
    "TENER, unscaled": TENER(H, d, scale=None),
    "DeBERTa": DeBERTa(H * d, H, 4),
    "DeBERTa, its code": DeBERTa(H * d, H, 3, index="code"),
    "DeBERTa, buckets": DeBERTa(H * d, H, 6, index="code", buckets=4),
    "DeBERTa, fewer buckets": DeBERTa(H * d, H, 6, buckets=5),
    "DeBERTa, c2p": DeBERTa(H * d, H, 3, terms=("c2p",)),
    "DeBERTa, p2c": DeBERTa(H * d, H, 3, terms=("p2c",)),
    "RoPE": RoPE(d),
    "RoPE, halves": RoPE(d, layout="halves"),
    "RoPE, in part": RoPE(d, base=50.0, part=2),
    "RoPE, pairs of the head": RoPE(d, base=50.0, part=2, pairs_of="head"),
    "RoPE, interpolated": RoPE(d, scaling=PositionInterpolation(2.0)),
    "RoPE, NTK": RoPE(d, scaling=NTK(3.0), layout="halves"),
    "RoPE, YaRN": RoPE(d, scaling=YaRN(4.0, 100)),
}
every_encoding = pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)
of_heads = pytest.mark.parametrize("encoding", OF_HEADS.values(), ids=OF_HEADS)
of_offsets = pytest.mark.parametrize(
    "name", [name for name in ENCODINGS if not name.startswith(("grid", "FIRE", "TUPE"))]
)


def parameters(encoding, rng):
    """Random parameters at which everything that is learned can be seen to matter."""
    params = random_like(encoding.init(rng, np.float64), rng)
    if isinstance(encoding, (KerpleLog, KerplePower, KerpleWeighted)):
        return tree_map(lambda x: 0.1 + np.abs(x) % 1.8, params)  # inside the bounds
    if isinstance(encoding, FIRE):  # some positions before |L| and some beyond, and every unit with its kink in [0, 1]
        kinks = np.linspace(0.05, 0.9, encoding.hidden)
        return params._replace(L_mult=np.array([-3.4 / 512]), b_1=-params.W_1[0] * kinks)
    return params


def zero(encoding):
    """What adds one number to every score of a head, as the b_2 of FIRE: softmax does not see it."""
    return [f"params.{name}" for name in encoding.unseen]


@every_encoding
@pytest.mark.parametrize("causal", [False, True])
def test_gradients(encoding, Q, K, V, mask, causal, rng):
    check_pullback(
        partial(attend, encoding, causal=causal, mask=mask), parameters(encoding, rng), Q, K, V, zero=zero(encoding)
    )


@every_encoding
def test_gradients_of_as_many_queries_as_keys(encoding, K, V, rng):
    """Where TUPE's [CLS] is among the queries too."""
    Q = rng.standard_normal(K.shape)
    check_pullback(partial(attend, encoding), parameters(encoding, rng), Q, K, V, zero=zero(encoding))


@every_encoding
def test_gradients_with_keys_that_heads_share(encoding, Q, K, V, rng):
    params = parameters(encoding, rng)
    check_pullback(partial(attend, encoding), params, Q, K[:, :1], V[:, :1], zero=zero(encoding))
    Y, _ = attend(encoding, params, Q, K[:, :1], V[:, :1])
    repeated, _ = attend(encoding, params, Q, np.repeat(K[:, :1], H, 1), np.repeat(V[:, :1], H, 1))
    np.testing.assert_allclose(Y, repeated, rtol=0, atol=1e-13)


@every_encoding
def test_a_query_that_sees_no_key(encoding, Q, K, V, mask, rng):
    """Gives zeros, and gets no gradient."""
    Y, pullback = attend(encoding, parameters(encoding, rng), Q, K, V, mask=mask)
    np.testing.assert_array_equal(Y[0, 1, 2], 0)
    _, dQ, _, _ = pullback(rng.standard_normal(Y.shape))
    np.testing.assert_array_equal(dQ[0, 1, 2], 0)
    np.testing.assert_allclose(pullback.A.sum(-1), mask.any(-1), rtol=0, atol=1e-13)


@every_encoding
def test_positions_matter(encoding, K, V, rng):
    """Keys in another order are attended to in another way: without positions, the output would be the same."""
    Q, order = rng.standard_normal(K.shape), [3, 1, 0, 2, 6, 5, 4]
    params = parameters(encoding, rng)
    Y, _ = attend(encoding, params, Q, K, V)
    other, _ = attend(encoding, params, Q, K[..., order, :], V[..., order, :])
    assert np.abs(Y - other).max() > 0.05


@every_encoding
def test_one_row_from_a_cache_is_the_last_row(encoding, K, V, rng):
    """Generation: a query alone, at the last position so far, sees what it would see among all."""
    Q, params = rng.standard_normal(K.shape), parameters(encoding, rng)
    Y, _ = attend(encoding, params, Q, K, V, causal=True)
    for i in range(m):
        one, _ = attend(encoding, params, Q[..., i : i + 1, :], K[..., : i + 1, :], V[..., : i + 1, :], causal=True)
        np.testing.assert_allclose(one[..., 0, :], Y[..., i, :], rtol=0, atol=1e-12)


@every_encoding
def test_later_tokens_are_not_seen(encoding, K, V, rng):
    """With `causal`, what changes at position 4 leaves the bits before it as they were."""
    Q, params = rng.standard_normal(K.shape), parameters(encoding, rng)
    Y, _ = attend(encoding, params, Q, K, V, causal=True)
    Q[..., 4, :], K[..., 4, :], V[..., 4, :] = 1, 2, 3
    changed, _ = attend(encoding, params, Q, K, V, causal=True)
    np.testing.assert_array_equal(Y[..., :4, :], changed[..., :4, :])
    assert (Y[..., 4:, :] != changed[..., 4:, :]).any()


@of_offsets
def test_words_in_front_move_nothing(name, K, V, rng):
    """Padding that nobody sees shifts every position by its length. Offsets stay, and so does the output."""
    encoding, Q = ENCODINGS[name], rng.standard_normal(K.shape)
    params, front = parameters(encoding, rng), [rng.standard_normal((2, H, 4, w)) for w in (d, d, dv)]
    longer = [np.concatenate(pair, -2) for pair in zip(front, (Q, K, V), strict=True)]
    shifted, _ = attend(encoding, params, *longer, mask=np.arange(4 + m) >= 4)
    np.testing.assert_allclose(shifted[..., 4:, :], attend(encoding, params, Q, K, V)[0], rtol=0, atol=1e-13)


@pytest.mark.parametrize("encoding", [
    DeBERTa(64, 1, 64), TransformerXLPositions(64, 1), Shaw(64, 8), *(Multiplicative(64, 8, k) for k in ("M1", "M2", "M3", "M4")),
], ids=str)  # fmt: skip
def test_no_array_of_pairs_and_features(encoding, rng):
    """n · n · d numbers would be 64 MiB here; forward and backward stay far below."""
    Q, K, V = rng.standard_normal((3, 1, 512, 64)).astype(np.float32)
    params = encoding.init(rng)
    with backend("numpy"):  # nothing is compiled while memory is counted
        assert peak(lambda: attend(encoding, params, Q, K, V)[1](Q)) < 24 * 512 * 512 * 4


@every_encoding
def test_in_a_layer(encoding, rng):
    """Trained with, saved with and generated with the projections of a layer."""
    attention = MultiHeadAttention(H * d, H, core=SoftmaxAttention(encoding=encoding))
    params = attention.init(rng, np.float64)._replace(core=parameters(encoding, rng))
    X = rng.standard_normal((2, m, H * d))
    Y, pullback = attention(params, X, causal=True)
    dparams, _ = pullback(Y)
    assert type(dparams.core) is type(params.core)
    start, state = attention.step(params, X[:, :4])
    last, _ = attention.step(params, X[:, 4:], state)
    np.testing.assert_allclose(np.concatenate([start, last], 1), Y, rtol=0, atol=1e-12)


@every_encoding
def test_float32_stays(encoding, Q, K, V, rng):
    """Also that of `init`, whose default it is."""
    params = encoding.init(rng)
    Y, pullback = attend(encoding, params, *(M.astype(np.float32) for M in (Q, K, V)))
    assert {x.dtype for x in (*tree_leaves(params), Y, *tree_leaves(pullback(Y)))} == {np.dtype(np.float32)}
    assert all(x.dtype == np.float64 for x in tree_leaves(encoding.init(rng, np.float64)))


@of_heads
def test_refused_at_the_call(encoding, Q, K, V, rng):
    params = encoding.init(rng, np.float64)
    with pytest.raises(ValueError, match="Q: 7 queries for 5 keys"):
        attend(encoding, params, K, Q, Q)
    with pytest.raises(ValueError, match=r"does not broadcast|should be \(…, 3, n, d\)"):
        attend(encoding, params, Q[:, :1], K[:, :1], V[:, :1])


@every_encoding
def test_heads_of_another_number_or_width_are_refused_in_the_same_words(encoding, Q, K, V, rng):
    params = encoding.init(rng, np.float64)
    if hasattr(encoding, "heads"):
        with pytest.raises(ValueError, match=r"^Q: shape \(2, 2, 5, 4\) should be \(…, 3, n, d\), with 3 heads$"):
            attend(encoding, params, Q[:, :2], K[:, :2], V[:, :2])
    if isinstance(encoding, ScoreEncoding) and not isinstance(encoding, (FIRE, GridScalars, KerpleWeighted)):
        for narrow, wide in ((Q[..., :2], K[..., :2]), (np.tile(Q, 2), np.tile(K, 2))):
            width = narrow.shape[-1]
            with pytest.raises(
                ValueError, match=rf"^Q: heads of width {width}, but the positions are for heads of width 4$"
            ):
                attend(encoding, params, narrow, wide, V)


LEARNED = [name for name, encoding in ENCODINGS.items() if tree_leaves(encoding.init(np.random.default_rng(0)))]


@pytest.mark.parametrize("name", LEARNED)
def test_parameters_of_another_dtype_are_refused(name, Q, K, V, rng):
    encoding = ENCODINGS[name]
    with pytest.raises(TypeError, match=r"\bQ\b.*: should have one dtype, got (?=.*\bfloat64).*\bfloat32"):
        attend(encoding, encoding.init(rng), Q, K, V)


def test_what_a_stack_shares():
    """T5 and TUPE have one table for all layers; KERPLE and FIRE learn one in each."""
    assert ENCODINGS["T5"].shared == ENCODINGS["scalars"].shared == ("table",)
    assert ENCODINGS["TUPE-R"].shared == ("table", "gamma", "beta", "U_q", "U_k", "theta", "bias")
    assert all(ENCODINGS[name].shared == () for name in ("KERPLE log", "KERPLE power", "KERPLE weighted", "FIRE"))


def test_scales_of_the_papers():
    """None stands for 1/√d."""
    assert ENCODINGS["T5"].scale == ENCODINGS["scalars"].scale == 1
    assert ENCODINGS["TUPE-A"].scale == pytest.approx(1 / np.sqrt(2 * d))
    assert all(ENCODINGS[name].scale is None for name in ("grid", "KERPLE log", "KERPLE weighted", "FIRE"))


@of_heads
def test_keys_of_other_heads_are_refused_by_their_axes(encoding, Q, K, V, rng):
    with pytest.raises(
        TypeError, match=r"K'?: batch axes \(2, 2\) should be those of Q, \(2, 3\), or end in a divisor"
    ):
        attend(encoding, parameters(encoding, rng), Q, K[:, :2], V[:, :2])
