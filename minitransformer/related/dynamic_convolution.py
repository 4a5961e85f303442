"""Lightweight and dynamic convolutions: the weights of a token's neighbours, without a look at the neighbours.

    a_ih = softmax(s_ih),     y_ih = Σ_s a_ihs x_(i − left + s)h,      s = 0 … K − 1

    lightweight    s_ih is a parameter, the same at every token: H K numbers
    dynamic        s_ih = x_i W_h: what token i is says how much it takes from the tokens around it

As in attention a row of weights is positive and sums to one, and one row serves all channels of a head. But it belongs to the K
tokens around i, and no key has a say in it: a score for an offset, where attention has one for a pair.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from minitransformer.arrays import as_one_axis, one_dtype, refuse_indivisible
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.core import seen_tokens, where_seen
from minitransformer.attention.depthwise import depthwise_convolution, taps_before
from minitransformer.attention.projected import Projected, Projection
from minitransformer.checks import frozen
from minitransformer.functional import LinearPullback, dropout, gated, glu, linear, loops_in, softmax
from minitransformer.gather_scatter import unbroadcast
from minitransformer.marks import DecodingState
from minitransformer.pullback import Pullback
from minitransformer.ranges import Fraction, so_many
from minitransformer.typing import Array, Bool, Float, checked

# -------------------------------------------------------------------------------- one softmax, one weighted sum


def taps_there(n: int, taps: int, left: int, mask: Array | None = None, past: int = 0) -> Array:
    """Which taps of each token fall on a token that is there, (n, K), or with a mask (*batch, n, K).

    past   tokens that stand before the n
    """
    batch = () if mask is None else mask.shape[:-1]
    there = np.zeros((*batch, n + taps - 1), bool)
    there[..., left : left + n] = True if mask is None else mask
    there[..., max(0, left - past) : left] = True
    return sliding_window_view(there, taps, axis=-1) if n else np.zeros((*batch, 0, taps), bool)


def as_matrix(weights: Array, n: int, left: int) -> Array:
    """The band that the weights (…, n, H, K) or (H, K) of n tokens are in an attention matrix (…, H, n, n)."""
    if weights.ndim == 2:
        weights = np.broadcast_to(weights, (n, *weights.shape))
    A = np.zeros((*weights.shape[:-3], weights.shape[-2], n, n), weights.dtype)
    for i in range(n):
        for s in range(max(0, left - i), min(weights.shape[-1], n + left - i)):
            A[..., :, i, i - left + s] = weights[..., i, :, s]
    return A


class DroppedPullback(Pullback):
    """Y = Σ_s (a ⊙ m)_s x_(i − left + s), m the taps that are kept:  da = m ⊙ d(a ⊙ m), then back through the softmax."""

    weigh: Pullback
    kept: Array
    convolve: Pullback
    weights: Array
    logits: tuple[int, ...]

    def __call__(self, dY: Array) -> tuple[Array, Array]:
        dX, dweights = self.convolve(dY)
        return dX, unbroadcast(self.weigh(dweights[..., 0] * self.kept), self.logits)


class FusedPullback(Pullback):
    """As `DroppedPullback` where nothing is dropped, by the compiled loop."""

    convolve: Pullback
    logits: tuple[int, ...]

    @property
    def weights(self) -> Array:
        """a, as the softmax in the loop has made it."""
        return self.convolve.A

    def __call__(self, dY: Array) -> tuple[Array, Array]:
        dX, dS = self.convolve(dY)
        return dX, unbroadcast(dS, self.logits)


class Choices(NamedTuple):
    """The arguments that both kinds of convolution have in common: borders, mask, dropped taps, and the tokens before."""

    causal: bool
    renormalise: bool
    mask: Array | None
    drop: float
    rng: Any
    past: int = 0
    before: Array | None = None

    def convolve(self, X: Array, S: Array) -> tuple[Array, "ConvolvedPullback"]:
        """Y (*batch, n, D) of tokens X that are there, by the softmax of S, (H, K) or (*batch, n, H, K)."""
        (n, D), (H, taps), logits = X.shape[-2:], S.shape[-2:], S.shape
        left, dropping = taps_before(taps, self.causal), self.drop > 0 and self.rng is not None
        heads = X.reshape(*X.shape[:-1], H, D // H)
        if self.renormalise:
            there = taps_there(n, taps, left, self.mask, self.past)
            S = np.where(there[..., None, :], S, S.dtype.type(-np.inf))
        back: Pullback
        if S.ndim == heads.ndim and self.before is None and not dropping and (loops := loops_in("convolution")):
            Y, convolve = loops.depthwise(heads, S, left=left, softmax=True)
            back = FusedPullback(convolve, logits)
        else:
            weights, weigh = softmax(S)
            kept = S.dtype.type(1)
            if dropping:
                kept, _ = dropout(np.ones(logits, S.dtype), self.drop, self.rng)
                weights = weights * kept
            Y, convolve = depthwise_convolution(heads, weights[..., None], causal=self.causal, before=self.before)
            back = DroppedPullback(weigh, kept, convolve, weights, logits)
        return Y.reshape(X.shape), ConvolvedPullback(back, left, self.mask, heads.shape)


class ConvolvedPullback(Pullback):
    """`convolve` on rows with the heads side by side; tokens that are not there get no gradient."""

    convolve: Pullback
    left: int
    mask: Array | None
    heads: tuple[int, ...]

    @property
    def weights(self) -> Array:
        """a, (H, K) or (*batch, n, H, K)."""
        return self.convolve.weights

    @property
    def A(self) -> Array:  # noqa: N802
        """The attention matrices that these weights make, (*batch, H, n, n): zero but for a band."""
        A = as_matrix(self.weights, self.heads[-3], self.left)
        A = np.broadcast_to(A, (*self.heads[:-3], *A.shape[-3:]))
        return A if self.mask is None else where_seen(self.mask[..., None, None, :], A)

    def __call__(self, dY: Array) -> tuple[Array, Array]:
        dX, dS = self.convolve(dY.reshape(self.heads))
        return _hide(self.mask, dX.reshape(dY.shape)), dS


def _hide(mask: Array | None, X: Array) -> Array:
    """X (*batch, n, D) with zeros for the tokens that are not there."""
    return where_seen(None if mask is None else mask[..., None], X)


def _fit_heads(X: Array, kernel: Array, name: str) -> None:
    """Refuse a kernel (…, H, K) that does not fit the channels of X."""
    heads, taps = kernel.shape[-2:]
    if taps == 0:
        raise ValueError(f"{name}: no taps, should be at least one")
    if heads == 0 or X.shape[-1] % heads:
        raise ValueError(f"X: {so_many(X.shape[-1], 'channel')} can't be divided into {heads} heads")


@checked
def lightweight_convolution(
    X: Float[Array, "*batch n D"],
    S: Float[Array, "heads taps"],
    *,
    causal: bool = False,
    renormalise: bool = False,
    mask: Bool[Array, "*batch n"] | None = None,
    drop: Fraction = 0.0,
    rng: np.random.Generator | None = None,
) -> tuple[Float[Array, "*batch n D"], Pullback]:
    """Every token becomes a weighted sum of the K around it, by weights that each head has learned for the K offsets.

        a_h = softmax(s_h),   y_ih = Σ_s a_hs x_(i − left + s)h

    X            tokens; head h has the channels h D/H … (h + 1) D/H − 1
    S            logits of the taps
    causal       left = K − 1, the last tap is the token itself; otherwise left = ⌊(K − 1)/2⌋
    renormalise  whether the weights of the taps that fall on a token sum to one; otherwise those of all K taps do, and beyond the
                 borders, and where a token is hidden, there are zeros
    mask         True where a token is there; what is hidden counts as zeros, and gets no gradient
    drop         rate at which taps are dropped (DropConnect), the others divided by 1 − drop; only if there is a generator
    source       Wu et al. 2019, section 3; Borealis II, fig. 12c
    cost         O(n K D) time, O(n D) memory
    returns      Y and a pullback: dX, dS = pullback(dY); `pullback.A` are the matrices of attention that this is
    raises       TypeError for a wrong shape or dtype; ValueError for no taps, or channels that H does not divide
    """
    one_dtype(X=X, S=S)
    _fit_heads(X, S, "S")
    return Choices(causal, renormalise, mask, drop, rng).convolve(_hide(mask, X), S)


class DynamicConvolutionPullback(AroundAttention):
    """x reaches y as a neighbour, and as the one that decides: S = X W, so dW = Xᵀ dS, and dX gets dS Wᵀ more."""

    convolve: ConvolvedPullback
    logits: LinearPullback
    shape: tuple[int, ...]
    inside = "convolve"

    @property
    def weights(self) -> Array:
        """a, (*batch, n, H, K)."""
        return self.convolve.weights

    def __call__(self, dY: Array) -> tuple[Array, Array]:
        dX, dS = self.convolve(dY)
        dX_logits, dW = self.logits(as_one_axis(dS, -2))
        return _hide(self.convolve.mask, dX + dX_logits), dW.reshape(self.shape)


@checked
def dynamic_convolution(
    X: Float[Array, "*batch n D"],
    W: Float[Array, "D heads taps"],
    *,
    causal: bool = False,
    renormalise: bool = False,
    mask: Bool[Array, "*batch n"] | None = None,
    drop: Fraction = 0.0,
    rng: np.random.Generator | None = None,
) -> tuple[Float[Array, "*batch n D"], Pullback]:
    """Every token becomes a weighted sum of the K around it, by weights that it has decided on by itself.

        a_ih = softmax(x_i W_h),   y_ih = Σ_s a_ihs x_(i − left + s)h

    W = 0 gives the average of the K; another token at i changes the weights of its own row, and of no other.
    The arguments are those of `lightweight_convolution`.
    source       Wu et al. 2019, section 4; Borealis II, fig. 12c, where the weights are said to depend on all inputs (E21)
    cost         O(n K D) time, and O(n D H K) for the logits; O(n H K + n D) memory
    returns      Y and a pullback: dX, dW = pullback(dY); `pullback.A` are the matrices of attention that this is
    raises       as `lightweight_convolution`
    """
    return _dynamic(X, W, Choices(causal, renormalise, mask, drop, rng))


def _dynamic(X: Array, W: Array, choices: Choices) -> tuple[Array, DynamicConvolutionPullback]:
    """`dynamic_convolution`, which a block calls with the tokens before, too: they are among the choices."""
    one_dtype(X=X, W=W)
    _fit_heads(X, W, "W")
    X = _hide(choices.mask, X)
    S, logits = linear(X, as_one_axis(W, 1))
    Y, convolve = choices.convolve(X, S.reshape(*S.shape[:-1], *W.shape[1:]))
    return Y, DynamicConvolutionPullback(convolve, logits, W.shape)


# --------------------------------------------------------------------------------------- the block around it


class ConvolutionParams(NamedTuple):
    """The gated linear unit in front, U_1 and U_2 (D, D), what makes the weights, and W_o (D, D) behind.

    kernel   S (H, K) of a lightweight convolution, W (D, H, K) of a dynamic one
    """

    U_1: Array
    U_2: Array
    kernel: Array
    W_o: Array
    b_1: Array
    b_2: Array
    b_o: Array


class ConvolutionPullback(AroundAttention):
    """Out, convolve, gate, backwards. A is what the convolution is as attention, (*batch, H, n, n)."""

    gate: Pullback
    convolve: Pullback
    o: LinearPullback
    seen: Array | None
    inside = "convolve"

    def __call__(self, dY: Array) -> tuple[ConvolutionParams, Array]:
        dC, dW_o, db_o = self.o(dY)
        dV, dkernel = self.convolve(dC)
        dX, dU_1, dU_2, db_1, db_2 = self.gate(dV)
        return ConvolutionParams(dU_1, dU_2, dkernel, dW_o, db_1, db_2, db_o), _hide(self.seen, dX)


class ConvolutionState(DecodingState):
    """The last K − 1 rows that the convolution has seen, (*batch, K − 1, D), zeros before the text, and how long the text is."""

    rows: Array
    length: int


@frozen
class Convolution(Projected):
    """The base of the two blocks: a gate, the convolution, and a linear map."""

    width: int
    heads: int
    taps: int = 7
    renormalise: bool = False
    drop: Fraction = 0.0

    stage = "all of them"
    cost = "O(n)"

    def __post_init__(self) -> None:
        refuse_indivisible(self.width, self.heads)

    @property
    def remembers(self) -> str:  # type: ignore[override]
        """The tokens on which a tap of the next one falls."""
        return "the last token" if self.taps == 2 else f"the last {self.taps - 1} tokens"

    def _kernel(self, rng: np.random.Generator) -> Array:
        raise TypeError(f"{type(self).__name__} does not say what its weights are made of")

    def _convolve(self, V: Array, kernel: Array, choices: Choices) -> tuple[Array, Any]:
        raise TypeError(f"{type(self).__name__} does not say how it convolves")

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> ConvolutionParams:
        """Matrices uniform on ±√(3/D), which keeps the variance of a row, and logits that begin small; biases zero."""
        D, a = self.width, np.sqrt(3 / self.width)
        U_1, U_2, W_o = rng.uniform(-a, a, (3, D, D)).astype(dtype)
        b_1, b_2, b_o = np.zeros((3, D), dtype)
        return ConvolutionParams(U_1, U_2, self._kernel(rng).astype(dtype), W_o, b_1, b_2, b_o)

    def __call__(
        self, params: ConvolutionParams, X: Float[Array, "*batch n {self.width}"], *, causal: bool = False,
        mask: Bool[Array, "..."] | None = None, rng: np.random.Generator | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], ConvolutionPullback]:  # fmt: skip
        """Pullback: dY to (dparams, dX). Raises ValueError for a mask that is not of keys alone, (*batch, 1, 1, n)."""
        seen = seen_tokens(mask, X)
        V, gate = glu(_hide(seen, X), params.U_1, params.U_2, params.b_1, params.b_2)
        choices = Choices(causal, self.renormalise, seen, self.drop, rng)
        C, convolve = self._convolve(V, params.kernel, choices)
        Y, o = linear(C, params.W_o, params.b_o)
        return Y, ConvolutionPullback(gate, convolve, o, seen)

    def projections(self, params: ConvolutionParams) -> list[Projection]:
        """Both halves of the gated linear unit, in rows."""
        return [Projection(W, b, None, self.width) for W, b in ((params.U_1, params.b_1), (params.U_2, params.b_2))]

    def _output(self, params: ConvolutionParams) -> tuple[Array, Array]:
        return params.W_o, params.b_o

    def _go_on(
        self, params: ConvolutionParams, arrays: list[Array], state: ConvolutionState | None
    ) -> tuple[Array, ConvolutionState]:
        """O(K D) for one new token."""
        A, B = arrays
        n, length = A.shape[-2], 0 if state is None else state.length
        before = np.zeros((*A.shape[:-2], self.taps - 1, self.width), A.dtype) if state is None else state.rows
        if n == 1 and not (self.renormalise and length < self.taps - 1) and (loops := loops_in("convolution")):
            C, rows = loops.last_of(A, B, before, params.kernel)
            return C, ConvolutionState(rows, length + 1)
        V, _ = gated(A, B, "sigmoid")
        rows = np.concatenate([before, V], -2)
        heads = before.reshape(*before.shape[:-1], self.heads, self.width // self.heads)
        C, _ = self._convolve(V, params.kernel, Choices(True, self.renormalise, None, 0.0, None, length, heads))
        return C, ConvolutionState(rows[..., n:, :].copy(), length + n)


@frozen
class LightweightConvolution(Convolution):
    """Each head takes a weighted sum of the tokens around, by weights for the offsets that it has learned once.

        C = σ(X U₁ + b₁) ⊙ (X U₂ + b₂),   Y = lightweight_convolution(C, S) W_o + b_o

    taps          K, the number of weights of a head
    renormalise   whether weights that fall beyond the border of the text go to the others
    drop          rate at which taps are dropped in training
    source        Wu et al. 2019
    cost          O(n K D + n D²); 3 D² + H K + 3 D parameters
    """

    def _kernel(self, rng: np.random.Generator) -> Array:
        a = np.sqrt(6 / (self.taps * (self.heads + 1)))
        return rng.uniform(-a, a, (self.heads, self.taps))

    def _convolve(self, V: Array, kernel: Array, choices: Choices) -> tuple[Array, ConvolvedPullback]:
        return choices.convolve(_hide(choices.mask, V), kernel)


@frozen
class DynamicConvolution(Convolution):
    """Each token takes a weighted sum of those around it, by weights for the offsets that it decides on by itself.

        C = σ(X U₁ + b₁) ⊙ (X U₂ + b₂),   Y = dynamic_convolution(C, W) W_o + b_o

    taps, renormalise, drop   as in `LightweightConvolution`; K weights of a token in a head
    source   Wu et al. 2019
    cost     O(n K D + n D H K + n D²); 3 D² + D H K + 3 D parameters
    """

    def _kernel(self, rng: np.random.Generator) -> Array:
        a = np.sqrt(6 / (self.width + self.heads * self.taps))
        return rng.uniform(-a, a, (self.width, self.heads, self.taps))

    def _convolve(self, V: Array, kernel: Array, choices: Choices) -> tuple[Array, DynamicConvolutionPullback]:
        return _dynamic(V, kernel, choices)
