"""Graph convolution: every node becomes a fixed average of the nodes that it sees, and one matrix is learned.

    Y = P X W + b,     P = N^{−1/2} M N^{−1/2}  or  P = N⁻¹ M,     N = diag(Σ_j M_ij)

M (n, n) has a 1 where i sees j, and loops if each node is to see itself. N⁻¹ M is attention whose weights are known beforehand.
"""

from typing import Literal, NamedTuple

import numpy as np

from minitransformer.arrays import as_one_axis, uniform
from minitransformer.checks import frozen, refuse_dtype
from minitransformer.functional import LinearPullback, linear, loops_in
from minitransformer.pullback import Pullback
from minitransformer.related.graph import Edges, fitting
from minitransformer.typing import Array, Float, checked

Scaling = Literal["symmetric", "rows"]


@checked
def edge_weights(edges: Edges, scaling: Scaling, dtype: type = np.float64) -> Array:
    """P_ij of each edge, (E,): 1/√(N_i N_j), or 1/N_i. A source that sees nobody itself counts as if it saw one node.

    raises   ValueError for edges that lead out of their lists, TypeError for another dtype than float32 or float64
    """
    refuse_dtype(dtype)
    edges = fitting(edges, edges.nodes)
    N = np.maximum(edges.degrees, 1).astype(np.float64)
    i, j = edges.destinations, edges.sources
    return (1 / np.sqrt(N[i] * N[j]) if scaling == "symmetric" else 1 / N[i]).astype(dtype)


def segment_sums(X: Array, starts: Array) -> Array:
    """Sums of neighbouring rows, (E, …) to (n, …): row i is that of X[starts[i] : starts[i + 1]], zeros if there are none."""
    Y = np.zeros((len(starts) - 1, *X.shape[1:]), X.dtype)
    some = np.flatnonzero(np.diff(starts))
    if some.size:
        Y[some] = np.add.reduceat(X, starts[some].astype(np.intp, copy=False), axis=0)
    return Y


def _sums(X: Array, weights: Array, starts: Array, order: Array, ends: Array) -> Array:
    """y_i = Σ w_e x_end(e) over the edges order[starts[i] : starts[i + 1]], for each sample."""
    rows = as_one_axis(X, 0, -2)
    if loops := loops_in("edges"):
        return loops.sums(rows, weights, starts, order, ends).reshape(X.shape)
    Y = np.empty_like(rows)
    for x, y in zip(rows, Y, strict=True):
        y[:] = segment_sums(weights[order, None] * x[ends[order]], starts)
    return Y.reshape(X.shape)


class PropagatePullback(Pullback):
    """Y = P X, so dX = Pᵀ dY: along the same edges, the other way."""

    weights: Array
    edges: Edges

    def __call__(self, dY: Array) -> Array:
        edges = self.edges
        return _sums(dY, self.weights, edges.column_starts, edges.by_source, edges.destinations)


@checked
def propagate(
    X: Float[Array, "*batch n D"], edges: Edges, *, scaling: Scaling = "symmetric"
) -> tuple[Float[Array, "*batch n D"], PropagatePullback]:
    """Every row becomes an average of the rows that its node sees.

        Y = N^{−1/2} M N^{−1/2} X    (scaling "symmetric"),        Y = N⁻¹ M X    ("rows")

    source   Kipf and Welling 2017; Borealis II fig. 13b. The authors' own PyTorch code has the second
    cost     O(E D) time, O(n D) memory. Never looks at a pair without an edge
    returns  Y and a pullback: dX = pullback(dY)
    raises   TypeError for a wrong shape or dtype, ValueError for edges between another number of nodes
    """
    edges = fitting(edges, X.shape[-2])
    weights = edge_weights(edges, scaling, X.dtype.type)
    Y = _sums(X, weights, edges.row_starts, np.arange(edges.number), edges.sources)
    return Y, PropagatePullback(weights, edges)


class GraphConvolutionParams(NamedTuple):
    """W (inputs, width) and b (width,)."""

    W: Array
    b: Array


class GraphConvolutionPullback(Pullback):
    """Y = P (X W) + 1 b: first back along the edges, then as a linear layer; b is added to every row."""

    linear: LinearPullback
    propagated: PropagatePullback

    def __call__(self, dY: Array) -> tuple[GraphConvolutionParams, Array]:
        dX, dW = self.linear(self.propagated(dY))
        return GraphConvolutionParams(dW, as_one_axis(dY, 0, -1).sum(0)), dX


@frozen
class GraphConvolution:
    """A linear layer, and then the average over neighbours: Y = P X W + b.

    inputs, width    of the rows of X and Y
    scaling          P = N^{−1/2} M N^{−1/2} ("symmetric"), or N⁻¹ M ("rows")
    source           Kipf and Welling 2017; Borealis II fig. 13b
    cost             O(n inputs width + E width)
    """

    inputs: int
    width: int
    scaling: Scaling = "symmetric"

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> GraphConvolutionParams:
        """W keeps the variance of a row; b zero."""
        return GraphConvolutionParams(uniform(rng, (self.inputs, self.width), dtype), np.zeros(self.width, dtype))

    @checked
    def __call__(
        self, params: GraphConvolutionParams, X: Float[Array, "*batch n {self.inputs}"], edges: Edges
    ) -> tuple[Float[Array, "*batch n {self.width}"], GraphConvolutionPullback]:
        """Pullback: dY to (dparams, dX)."""
        XW, back = linear(X, params.W)
        Y, propagated = propagate(XW, edges, scaling=self.scaling)
        return Y + params.b, GraphConvolutionPullback(back, propagated)
