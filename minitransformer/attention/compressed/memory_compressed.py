"""Memory-compressed attention: s keys become one, and so do their values, by a convolution as long as its stride.

    k̄_b = Σ_t k_{bs+t} θ_t,   v̄_b = Σ_t v_{bs+t} θ′_t,   t = 0 … s − 1
    Y   = softmax(scale · Q K̄ᵀ) V̄

The matrix is (n, m/s), not (n, m). It changes the stage `project`: keys and values are fewer, and what follows stays as it is.
θ_t is a matrix (d, d), or with depthwise convolution a vector that weighs each channel by itself; a "learned weighted
average" of neighbours, as Borealis II has it, is the latter (E14).
"""

from typing import Any, Literal, NamedTuple

import numpy as np

from minitransformer.arrays import as_one_axis, from_blocks, in_blocks, one_dtype
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.block_sparse import BlockPattern, block_sparse_attention, complete_blocks
from minitransformer.attention.cache.keys_values import KeysValues
from minitransformer.attention.core import Core, ParamsFirstPullback, seen_keys, where_seen
from minitransformer.attention.dot_product import attend_to_buffer, dot_product_attention
from minitransformer.checks import frozen
from minitransformer.functional import LinearPullback, linear
from minitransformer.gather_scatter import unbroadcast
from minitransformer.marks import DecodingState
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Bool, Float, checked


class CompressPullback(Pullback):
    """x̄_b = Σ_t x_{bs+t} θ_t gives dx_{bs+t} = dx̄_b θ_tᵀ, a transposed convolution, and dθ_t = Σ_b x_{bs+t}ᵀ dx̄_b.

    Depthwise, each product is one of numbers: dx_{bs+t} = dx̄_b ⊙ θ_t and dθ_t = Σ_b x_{bs+t} ⊙ dx̄_b.
    """

    blocks: Array
    theta: Array
    m: int

    def __call__(self, dY: Array) -> tuple[Array, Array]:
        if self.theta.ndim == 3:
            dY = dY[..., None, :]
            dblocks, dtheta = dY * self.theta[:, None], unbroadcast((self.blocks * dY).sum(-3), self.theta.shape)
        else:
            X, W = as_one_axis(self.blocks, -2), as_one_axis(self.theta, 1, 3)
            heads = range(len(W))
            both = [LinearPullback(X[..., h, :, :], W[h], None)(dY[..., h, :, :]) for h in heads]
            dblocks = np.stack([dX for dX, _ in both], -3).reshape(self.blocks.shape)
            dtheta = np.stack([dW for _, dW in both])
        return from_blocks(dblocks, self.m), dtheta.reshape(self.theta.shape)


@checked
def compress(
    X: Float[Array, "*batch heads m d"], theta: Float[Array, "heads s d *e"], name: str = "theta"
) -> tuple[Float[Array, "*batch heads blocks d"], CompressPullback]:
    """A convolution whose stride is as long as its kernel: x̄_b = Σ_t x_{bs+t} θ_t, one row for each s.

    theta    (H, s, d, d), or (H, s, d) for each channel by itself; every head has its own
    cost     O(m d²), or O(m d). A last block that is not full counts zeros for what it lacks
    returns  X̄ with ⌈m/s⌉ rows and a pullback: dX, dtheta = pullback(dX̄)
    raises   TypeError for a wrong shape or dtype
    """
    one_dtype(X=X, theta=theta)
    s, d, *full = theta.shape[1:]
    if 0 in theta.shape[:2] or (full and full != [d]):
        raise TypeError(f"{name}: shape {theta.shape} should be (H, s, d) or (H, s, d, d), with H and s at least 1")
    blocks = in_blocks(X, s)
    if full:
        flat, W = as_one_axis(blocks, -2), as_one_axis(theta, 1, 3)
        Y = np.stack([linear(flat[..., h, :, :], W[h])[0] for h in range(len(W))], -3)
    else:
        Y = (blocks * theta[:, None]).sum(-2)
    return Y, CompressPullback(blocks, theta, X.shape[-2])


class MemoryCompressedPullback(AroundAttention):
    """Attention to the blocks, then each convolution backwards. What is hidden was zero, and gets zero.

    The null key and value stand in front of the blocks in every sample: dnull is the sum of their rows. A holds the weights of
    the blocks, (*batch, H, n, ⌈m/s⌉), with that of the null in front.
    """

    attention: Pullback
    k: CompressPullback
    v: CompressPullback
    seen: Array | None
    null: bool

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        dQ, dK_bar, dV_bar = self.attention(dY)
        dK, dtheta_k = self.k(dK_bar[..., self.null :, :])
        dV, dtheta_v = self.v(dV_bar[..., self.null :, :])
        gradients = dQ, where_seen(self.seen, dK), where_seen(self.seen, dV), dtheta_k, dtheta_v
        if not self.null:
            return gradients
        dnulls = [unbroadcast(dX[..., 0, :], (*dX.shape[-3:-2], dX.shape[-1])) for dX in (dK_bar, dV_bar)]
        return *gradients, *dnulls


def _with_null(X: Array, null: Array | None) -> Array:
    if null is None:
        return X
    return np.concatenate([np.broadcast_to(null[:, None], (*X.shape[:-2], 1, X.shape[-1])), X], -2)


def _attend(
    Q: Array, K: Array, V: Array, complete: BlockPattern | None, sees: Array | None = None,
    null_k: Array | None = None, null_v: Array | None = None, scale: float | None = None,
) -> tuple[Array, Pullback]:  # fmt: skip
    """Attention to the blocks: `complete` says which are over for each query, `sees` hides more; nothing hides the null key."""
    if sees is not None and null_k is not None:
        sees = np.concatenate([np.ones((*sees.shape[:-1], 1), bool), sees], -1)
    K, V = _with_null(K, null_k), _with_null(V, null_v)
    if complete is None:
        return dot_product_attention(Q, K, V, mask=sees, scale=scale)
    return block_sparse_attention(Q, K, V, complete, mask=sees, scale=scale)


@checked
def memory_compressed_attention(
    Q: Float[Array, "*batch heads n d"],
    K: Float[Array, "*batch heads m d"],
    V: Float[Array, "*batch heads m dv"],
    theta_k: Float[Array, "heads s d *e"],
    theta_v: Float[Array, "heads s dv *f"],
    null_k: Float[Array, "heads d"] | None = None,
    null_v: Float[Array, "heads dv"] | None = None,
    *,
    causal: bool = False,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
) -> tuple[Float[Array, "*batch heads n dv"], MemoryCompressedPullback]:
    """Attention to blocks of s keys, each made into one.

        Y = softmax(scale · Q (θ_k ⊛ K)ᵀ) (θ_v ⊛ V)

    theta    the kernels, (H, s, d, d) or for each channel by itself (H, s, d), and for the values the same with dv
    null     a key and a value that stand for no position; every query sees them, and nothing else where all keys are hidden
    causal   query i sees the blocks that are complete, whose last position is at most i: none, for the first s − 1 queries
    mask     True where a key is there, (…, 1, m); what is hidden counts as zero, and a block with nothing in it is not seen
    scale    1/√d by default, which the printed equation lacks (E1)
    source   Borealis II (14), figure 5; Liu et al. 2018
    cost     O(n m d / s) time: still quadratic, with a smaller factor; half of it if causal. O(n + m) memory, in the tier "numpy"
             O(n m / s). Can be causal
    returns  Y and a pullback: dQ, dK, dV, dtheta_k, dtheta_v = pullback(dY), then dnull_k and dnull_v if they are given
    raises   TypeError for a wrong shape or dtype, or half of a null; ValueError for a mask that hides pairs
    """
    one_dtype(Q=Q, K=K, V=V, theta_k=theta_k, theta_v=theta_v, null_k=null_k, null_v=null_v)
    if (null_k is None) != (null_v is None):
        raise TypeError("null_k, null_v: a null has a key and a value")
    seen = seen_keys(mask, Q, K, "a block of keys")
    K_bar, k = compress(where_seen(seen, K), theta_k, "theta_k")
    V_bar, v = compress(where_seen(seen, V), theta_v, "theta_v")
    n, m, count, s = Q.shape[-2], K.shape[-2], K_bar.shape[-2], theta_k.shape[1]
    sees: Any = None
    if seen is not None:
        there = in_blocks(np.broadcast_to(seen, (*seen.shape[:-2], m, 1)), s)
        sees = there.any(-2).mT
    complete = complete_blocks(m - n, n, count, s, null_k is not None) if causal else None
    Y, attention = _attend(Q, K_bar, V_bar, complete, sees, null_k, null_v, scale)
    return Y, MemoryCompressedPullback(attention, k, v, seen, null_k is not None)


# --------------------------------------------------------------------------------------------- the core


class MemoryCompressedParams(NamedTuple):
    """Kernels (H, s, d) or (H, s, d, d), and the null key and value (H, d), or None."""

    theta_k: Array
    theta_v: Array
    null_k: Array | None = None
    null_v: Array | None = None


class MemoryCompressedState(DecodingState):
    """What is left of `length` positions: the complete blocks, compressed, and K and V of the at most s − 1 tokens after them.

    If there is a null, it stands in front of the blocks.
    """

    blocks: KeysValues
    K: Array
    V: Array
    length: int

    many = ("K", "V")


@frozen
class MemoryCompressed(Core):
    """Attention to blocks of keys, each made into one by a convolution.

    stride       s, keys in a block
    convolution  "full", which mixes the channels of a head, or "depthwise", one number for each
    null         whether there is a key that every query sees; without it, causal queries before the first complete block see
                 nothing, and give zeros
    source       Borealis II (14); Liu et al. 2018
    cost         O(n²/s); decoding keeps length/s blocks and up to s − 1 keys and values that wait. Can be causal
    raises       ValueError for a stride below 1
    """

    heads: int
    d: int
    stride: int = 4
    convolution: Literal["full", "depthwise"] = "full"
    null: bool = True

    stage = "project"
    one_width = True  # both kernels are for d channels
    unplaced = "makes one key of each block, and that stands nowhere"
    cost = "O(n²/stride)"
    remembers = "keys and values of blocks, a few of tokens"

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> MemoryCompressedParams:
        """Every block starts as the average of its keys, the null as zeros."""
        one = np.ones(self.d, dtype) if self.convolution == "depthwise" else np.eye(self.d, dtype=dtype)
        theta = np.tile(one / dtype(self.stride), (self.heads, self.stride, *(1,) * one.ndim))
        null = np.zeros((self.heads, self.d), dtype) if self.null else None
        return MemoryCompressedParams(theta, theta, null, null)

    def __call__(
        self, params: MemoryCompressedParams, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = False,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, ParamsFirstPullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV)."""
        Y, attention = memory_compressed_attention(Q, K, V, *params, causal=causal, mask=mask)
        return Y, ParamsFirstPullback(attention, MemoryCompressedParams)

    def step(
        self, params: MemoryCompressedParams, Q: Array, K: Array, V: Array, *streams: Array,
        state: MemoryCompressedState | None = None,
    ) -> tuple[Array, MemoryCompressedState]:  # fmt: skip
        """O(d m/s) for one new token after m: a block is made once, when it is complete."""
        if state is None:
            no_K, no_V = (np.zeros_like(X[..., :0, :]) for X in (K, V))
            nulls = _with_null(no_K, params.null_k), _with_null(no_V, params.null_v)
            state = MemoryCompressedState(KeysValues.of(*nulls), no_K, no_V, 0)
        there = (state.blocks.length - self.null) * self.stride + state.K.shape[-2]
        if state.length != there or state.V.shape[-2] != state.K.shape[-2]:
            raise ValueError(f"state: blocks and keys of {there} positions do not belong to {state.length} positions")
        K, V = np.concatenate([state.K, K], -2), np.concatenate([state.V, V], -2)
        over = K.shape[-2] // self.stride * self.stride
        blocks, n = state.blocks, Q.shape[-2]
        if over:
            K_bar, _ = compress(K[..., :over, :], params.theta_k)
            V_bar, _ = compress(V[..., :over, :], params.theta_v)
            blocks = blocks.extended(K_bar, V_bar)
            K, V = K[..., over:, :].copy(), V[..., over:, :].copy()
        if n == 1:  # sees them all
            Y = attend_to_buffer(Q, blocks.K, blocks.V, blocks.length)
        else:
            complete = complete_blocks(state.length, n, blocks.length - self.null, self.stride, self.null)
            Y, _ = _attend(Q, blocks.keys, blocks.values, complete)
        return Y, MemoryCompressedState(blocks, K, V, state.length + n)
