"""Graph attention among the tokens of a text: the graph is a window of chapter 08, or all pairs, and a mask takes edges away.

Replaces the whole of attention (it is a mixer): there is no W_o, and scores are added where plain attention multiplies.
"""

import functools
from typing import Any

import numpy as np

from minitransformer.arrays import as_one_axis
from minitransformer.attention.cache.keys_values import KeysValues
from minitransformer.attention.dot_product import attend_to_buffer
from minitransformer.attention.projected import Projected, Projection
from minitransformer.attention.sparse.window import Window
from minitransformer.checks import frozen
from minitransformer.functional import LinearPullback, linear
from minitransformer.pullback import Pullback, Tree
from minitransformer.ranges import NonNegative
from minitransformer.related.edge_attention import additive_attention, additive_edge_attention, leaky_relu
from minitransformer.related.graph import Edges, edges_of_mask
from minitransformer.related.graph_attention import GAT, GATv2
from minitransformer.related.graph_convolution import GraphConvolution, GraphConvolutionParams
from minitransformer.typing import Array, Bool, Float, checked


@functools.lru_cache(maxsize=16)
def edges_of_text(n: int, radius: int | None, causal: bool) -> Edges:
    """Tokens that see those at most `radius` away, or all; if causal, none that comes later."""
    if radius is None:
        return edges_of_mask(np.tri(n, k=0 if causal else n, dtype=bool))
    return edges_of_mask(Window(radius).graph(n, causal=causal).A)


class AmongTokens(Projected):
    """The base of graph attention and graph convolution among tokens: their edges, and how they decode."""

    width: int
    radius: int | None
    stage = "all of them"
    unplaced = "knows the edges of a graph, and no positions"
    cost = "O(edges)"

    def edges(self, X: Array, causal: bool) -> Edges:
        """The edges of a text as long as X."""
        return edges_of_text(X.shape[-2], self.radius, causal)

    def _output(self, params: Any) -> tuple[None, Array]:
        return None, params.b

    def attend_to_last(self, Q: Array, K: Array, V: Array, a: Array, state: Any) -> tuple[Array, KeysValues]:
        """Heads of new tokens after those in the state, and the longer state. Without channels, a (H, 0), all scores are zero."""
        new = K, V[..., :0] if V is K else V  # the keys of GATv2 are its values, too, and are kept once
        state = KeysValues.of(*new) if state is None else state.extended(*new)
        n, m = Q.shape[-2], state.length
        near = m if self.radius is None else min(m, n + self.radius)  # what any of these tokens sees
        room, mask = state.K if V is K else state.V, None
        keys, values = (rows[..., m - near : m, :] for rows in (state.K, room))
        if n == 1:  # it sees them all, and S is a bias of scores that are zero
            if a.size == 0:
                return np.full((1, near), 1 / near, V.dtype) @ values, state
            S = (leaky_relu(Q + keys) @ a[..., None])[..., 0]
            return attend_to_buffer(Q[..., :0], keys[..., :0], room if near == m else values, near, S), state
        if self.radius is not None:
            i, j = np.arange(near - n, near)[:, None], np.arange(near)
            mask = Window(self.radius).sees(i, j, near, causal=True)
        return additive_attention(Q, keys, values, a, causal=True, mask=mask)[0], state


@frozen
class GraphAttention(AmongTokens):
    """Graph attention (GAT) in a window or among all: a score is LeakyReLU of a number of the one token plus one of the other.

    radius    a token sees those at most this far away; None: all
    dynamic   scores a·LeakyReLU(q_i + k_j), of which every token has an order of its own (GATv2)
    source    Veličković et al. 2018; Brody, Alon and Yahav 2022
    cost      O(n width² + edges width)
    raises    ValueError if the width is not divisible by the heads
    """

    width: int
    heads: int
    radius: NonNegative | None = None
    dynamic: bool = False

    remembers = "values, and what their scores need"

    def __post_init__(self) -> None:
        _ = self._layer  # which says what does not fit

    @functools.cached_property
    def _layer(self) -> GAT | GATv2:
        return (GATv2 if self.dynamic else GAT)(self.width, self.width, self.heads)

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> Tree:
        """The parameters of GAT or GATv2, for rows of this width."""
        return self._layer.init(rng, dtype)

    @checked
    def __call__(
        self, params: Any, X: Float[Array, "*batch n {self.width}"], *, causal: bool = False,
        mask: Bool[Array, "..."] | None = None, rng: Any = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], Pullback]:  # fmt: skip
        """Pullback: dY to (dparams, dX)."""
        return self._layer(params, X, self.edges(X, causal), mask=mask)

    def projections(self, params: Any) -> list[Projection]:
        """V, or the Q and K of GATv2, in heads."""
        return [Projection(W, None, self.heads, self.width // self.heads) for W in self._layer.maps(params)]

    def _go_on(self, params: Any, arrays: list[Array], state: Any) -> tuple[Array, KeysValues]:
        """O(m width) for one token."""
        return self.attend_to_last(*self._layer.parts(params, *arrays), state)


class GraphMeanPullback(Pullback):
    """Y = P (X W) + 1 b, and P X W has the gradient of attention whose scores are zero."""

    linear: LinearPullback
    attention: Pullback

    def __call__(self, dY: Array) -> tuple[GraphConvolutionParams, Array]:
        _, _, dV, _ = self.attention(dY[..., None, :, :])
        dX, dW = self.linear(dV[..., 0, :, :])
        return GraphConvolutionParams(dW, as_one_axis(dY, 0, -1).sum(0)), dX


@frozen
class GraphMean(AmongTokens):
    """A graph convolution among the tokens: Y = N⁻¹ M X W + b, the plain average of those that a token sees.

    It is attention with zero scores: what any attention has to beat.
    radius    a token sees those at most this far away; None: all
    source    Kipf and Welling 2017, with the average of the rows as in their PyTorch code
    cost      O(n width² + edges width)
    """

    width: int
    radius: NonNegative | None = None

    remembers = "values"

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> GraphConvolutionParams:
        """W keeps the variance of a row; b zero."""
        return GraphConvolution(self.width, self.width).init(rng, dtype)

    @checked
    def __call__(
        self, params: GraphConvolutionParams, X: Float[Array, "*batch n {self.width}"], *, causal: bool = False,
        mask: Bool[Array, "..."] | None = None, rng: Any = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], GraphMeanPullback]:  # fmt: skip
        """Pullback: dY to (dparams, dX)."""
        edges = self.edges(X, causal)
        V, back = linear(X, params.W)
        V = V[..., None, :, :]  # one head, all of whose scores are zero
        zero = np.zeros((*V.shape[:-1], 1), V.dtype)
        Y, attention = additive_edge_attention(zero, zero, V, np.ones((1, 1), V.dtype), edges, mask=mask)
        return Y[..., 0, :, :] + params.b, GraphMeanPullback(back, attention)

    def projections(self, params: GraphConvolutionParams) -> list[Projection]:
        """The only projection makes V, as one head."""
        return [Projection(params.W, None, 1, self.width)]

    def _go_on(self, params: GraphConvolutionParams, arrays: list[Array], state: Any) -> tuple[Array, KeysValues]:
        """O(m width) for one token."""
        (V,) = arrays
        nothing = V[..., :0]  # no channels, so that all scores are zero
        return self.attend_to_last(nothing, nothing, V, np.empty((1, 0), V.dtype), state)
