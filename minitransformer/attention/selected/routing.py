"""Routing Transformer: centroids call the queries and keys nearest to them together. Replaces the stage "pattern (which pairs)".

    q̂, k̂ = LN(q), LN(k)                         without gain and bias: vectors of length √d
    each centroid μ_c takes the w queries with the largest ⟨q̂, μ_c⟩, and the w keys with the largest ⟨k̂, μ_c⟩
    y_i = mean over the clusters c that took i, and show it a key, of Σ_j A_ij v_j, j in c
    μ_c ← γ μ_c + (1 − γ) · mean of the q̂ and k̂ nearest to it, brought back to the length √d

No gradient moves the centroids: they follow the tokens, as in k-means, after each step of the optimiser.
"""

from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import as_one_axis, must_broadcast, one_dtype, refuse_more_queries
from minitransformer.attention.attend import FormedPullback, attend_formed
from minitransformer.attention.core import Core
from minitransformer.attention.dot_product import dot_product_attention
from minitransformer.attention.selected.gathered import (
    at_pairs,
    of_pairs,
    only_those_there,
    rows_at,
    sum_rows,
    who_is_there,
)
from minitransformer.checks import frozen
from minitransformer.functional import layer_norm, softmax
from minitransformer.positions.encoding import OffsetBias, ScoreEncoding
from minitransformer.pullback import NoParams, Pullback, Tree
from minitransformer.ranges import Part
from minitransformer.typing import Array, Bool, Float, checked


class Normed(Pullback):
    """Back through LN without gain and bias, of which nothing is learned."""

    norm: Pullback

    def __call__(self, dX: Array) -> Array:
        return self.norm(dX)[0]


def normed(X: Array) -> tuple[Array, Normed]:
    """(x − mean)/√(variance + ε), rows of length √d; and a pullback."""
    d = X.shape[-1]
    Y, norm = layer_norm(X, np.ones(d, X.dtype), np.zeros(d, X.dtype))
    return Y, Normed(norm)


def refuse_narrow(d: int) -> None:
    """Raise ValueError for heads that are too narrow for a norm to leave a direction."""
    if d < 3:
        raise ValueError(
            f"d: the width of a head, {d}, should be at least 3: of two numbers a layer norm only leaves which is larger, "
            "so most tokens would be equally near to a centroid"
        )


def members(nearness: Array, there: Array, window: int) -> Array:
    """The positions of the `window` rows nearest to each centroid, rising, (…, clusters, w); n where there are fewer.

    nearness   (…, clusters, n); of equally near rows the first are taken
    """
    n = nearness.shape[-1]
    nearness = np.where(there[..., None, :], nearness, -np.inf)
    index = np.argsort(-nearness, -1, kind="stable")[..., :window]
    return np.sort(np.where(np.take_along_axis(nearness, index, -1) == -np.inf, n, index), -1)


class RoutingPullback(Pullback):
    """Who is in which cluster is constant, and so is the number of clusters over which a row is averaged.

    Each row's gradient goes, divided by that number, to the clusters that took it, back through attention there, and is
    summed over them; then through the norms of queries and of keys.
    """

    q: Normed
    k: Normed
    attention: Pullback
    queries: Array
    keys: Array
    share: Array
    Q: Array  # normed, as the centroids see them
    K: Array
    near_q: Array
    near_k: Array
    there: Array

    def __call__(self, dY: Array) -> tuple[Any, ...]:
        if isinstance(self.attention, FormedPullback):
            dparams, dQ, dK, dV = self.attention(dY)
            return dparams, self.q(dQ), self.k(dK), dV
        dO = rows_at(dY, self.queries) * self.share[..., None]
        dQ, dK, dV = self.attention(dO)
        m = self.K.shape[-2]
        dQ = self.q(sum_rows(dQ, self.queries, dY.shape[-2]))
        return dQ, self.k(sum_rows(dK, self.keys, m)), sum_rows(dV, self.keys, m)


class InClustersPullback(Pullback):
    """A = Σ_c share_c A^c, each A^c a softmax of its own over the pairs of cluster c: dA^c = share_c dA, and dS sums the dS^c."""

    A: Array
    softmax: Pullback
    clusters: "InClusters"

    def __call__(self, dA: Array) -> Array:
        dA_c = self.clusters.take(dA) * self.clusters.share[..., None]
        return self.clusters.put(self.softmax(dA_c), dA.shape)


class InClusters(NamedTuple):
    """From the matrix of all scores to that of all weights, in the place of softmax.

    pairs   i m + j for each query and key of a cluster, (*batch, clusters, w, w); n m for nobody
    sees    which of these pairs count
    share   how much a cluster counts for each of its queries, (*batch, clusters, w)
    """

    pairs: Array
    sees: Array
    share: Array

    def __call__(self, S: Array, *, mask: Array | None) -> tuple[Array, InClustersPullback]:
        """A (*batch, n, m). What a mask hides is not among the pairs."""
        A_c, back = softmax(self.take(S), mask=self.sees)
        A = self.put(A_c * self.share[..., None], S.shape)
        return A, InClustersPullback(A, back, self)

    def take(self, S: Array) -> Array:
        """The numbers of the pairs of each cluster: (*batch, n, m) to (*batch, clusters, w, w)."""
        return rows_at(as_one_axis(S, -2)[..., None], as_one_axis(self.pairs, -2))[..., 0].reshape(self.pairs.shape)

    def put(self, A_c: Array, shape: tuple[int, ...]) -> Array:
        """The gradient of `take`: each pair gets the sum over the clusters that hold it, in a matrix of this shape."""
        rows = as_one_axis(A_c, -2)[..., None]
        return sum_rows(rows, as_one_axis(self.pairs, -2), shape[-2] * shape[-1]).reshape(shape)


@checked
def routing_attention(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*batch m d"],
    V: Float[Array, "*batch m dv"],
    *,
    centroids: Float[Array, "*shared clusters d"],
    window: int,
    causal: bool = False,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
    encoding: OffsetBias | ScoreEncoding | None = None,
    params: Any = None,
) -> tuple[Float[Array, "*batch n dv"], RoutingPullback]:
    """Attention within clusters: each centroid takes the queries and the keys that are nearest to it.

        y_i = 1/|C_i| Σ_{c ∈ C_i} Σ_{j ∈ c} softmax_j(scale · ⟨q̂_i, k̂_j⟩) v_j,      C_i: clusters that took i and show it a key

    A query that no centroid took, or that sees no key in its clusters, gives zeros.

    centroids   μ, one set for all samples, or with batch axes in front that broadcast, such as (H, clusters, d)
    window      w: how many each takes; the paper's is n/clusters
    causal      query i sees keys j ≤ i only, by their true positions, not by their ranks in the cluster. **What is seen is
                causal, whether it is seen is not**: a later token can push an earlier one out of its cluster. See `Routing`
    mask        True where query i sees key j. A token that no query sees is in no cluster, and gives zeros
    scale       1/√d by default; none can be given beside an encoding
    encoding    an encoding of positions in the scores of q̂ and k̂, and params, its parameters
    source      Named in Borealis II; Roy, Saffar, Vaswani and Grangier 2020. Their code divides by the number of clusters + 0.01
    cost        O(n clusters d + clusters · w² d) time: O(n √n d) with √n clusters of √n; O(n m d) with an encoding
    returns     Y and a pullback: dQ, dK, dV = pullback(dY), after dparams if there is an encoding
    raises      TypeError for a wrong shape or dtype, or a rotary encoding; ValueError for n > m, no window, d < 3, a mask that
                does not fit, or a scale beside an encoding
    """
    if scale is not None and encoding is not None:
        raise ValueError("scale: none can be given beside an encoding")
    one_dtype(Q=Q, K=K, V=V, centroids=centroids)
    must_broadcast(centroids, (*Q.shape[:-2], *centroids.shape[-2:]), "centroids", "the heads of the queries")
    *batch, n, _ = Q.shape
    m = K.shape[-2]
    refuse_more_queries(n, m)
    refuse_narrow(Q.shape[-1])
    mask, there = who_is_there(mask, (*batch, n, m))
    Q, K, V = only_those_there(there, Q, K, V)
    (Q, q), (K, k) = normed(Q), normed(K)
    near_q, near_k = ((X @ centroids.mT).mT for X in (Q, K))
    queries = members(near_q, there[..., m - n :], window)
    keys = members(near_k, there, window)
    i, j = queries[..., None], keys[..., None, :]
    sees = (i < n) & (j < m) & at_pairs(mask, (*batch, n, m), i, j)
    if causal:
        sees &= j <= i + (m - n)
    answers = sees.any(-1).astype(Q.dtype)
    number = sum_rows(answers[..., None], queries, n)[..., 0]
    share = answers / np.maximum(of_pairs(number, queries[..., None])[..., 0], 1)
    attention: Pullback
    if encoding is None:
        members_of_each = rows_at(Q, queries), rows_at(K, keys), rows_at(V, keys)
        found, attention = dot_product_attention(*members_of_each, mask=sees, scale=scale)
        Y = sum_rows(found * share[..., None], queries, n)
    else:
        in_clusters = InClusters(np.where((i < n) & (j < m), i * m + j, n * m), sees, share)
        Y, attention = attend_formed(encoding, params, Q, K, V, causal=causal, normalise=in_clusters)
    return Y, RoutingPullback(q, k, attention, queries, keys, share, Q, K, near_q, near_k, there)


# --------------------------------------------------------------------------------------------- the core


class RoutingParams(NamedTuple):
    """Centroids (H, clusters, d), of length √d each, that no gradient moves; and the parameters of an encoding of positions."""

    centroids: Array
    encoding: Tree = NoParams()


class Seen(NamedTuple):
    """What the centroids follow: the sum of the queries and keys nearest to each, (H, clusters, d), and how many they were."""

    sums: Array
    counts: Array


class RoutingCorePullback(Pullback):
    """dY to (dparams, dQ, dK, dV); the centroids get None."""

    attention: RoutingPullback

    def __call__(self, dY: Array) -> tuple[RoutingParams, Array, Array, Array]:
        *dencoding, dQ, dK, dV = self.attention(dY)
        return RoutingParams(None, *dencoding), dQ, dK, dV  # type: ignore[arg-type]


@frozen
class Routing(Core):
    """Each centroid calls together the queries and keys nearest to it, and moves towards those nearer to it than to others.

    heads, d, longest   filled in by the model; d is at least 3
    clusters            centroids of each head
    window              how many queries, and keys, each takes; longest/clusters if None
    decay               γ of the moving average
    encoding            of positions in the scores; a model puts its own there

    Causal in its values only: a later token can take the place of an earlier one in a cluster, and so change what others
    see of the past. So in training the pattern holds a little of what comes next. A token that no centroid took gets zeros:
    let layers or heads with a window stand beside it, attention=("window", "routing").
    Equal tokens are equally near to a centroid, but for rounding: which of them it takes may then differ between tiers.

    source   Named in Borealis II; Roy, Saffar, Vaswani and Grangier 2020, γ = 0.999. Their formula adds sums to a
             centroid; here, as in their code, it is a mean, which does not depend on the size of the batch.
             In their decoders the keys are the queries; here they are not
    cost     O(n clusters d + clusters · window² d) time, O(n² d) with an encoding
    raises   TypeError for a rotary encoding
    """

    heads: int
    d: int
    longest: int
    clusters: int = 8
    window: int | None = None
    decay: Part = 0.999
    encoding: OffsetBias | ScoreEncoding | None = None

    encoding_at = "encoding."
    stage = "pattern"
    cost = "O(n clusters + n window)"
    remembers = None
    looks_ahead = True
    moves = True
    untrained = ("centroids",)

    def __post_init__(self) -> None:
        refuse_narrow(self.d)

    @property
    def taken(self) -> int:
        """w, how many tokens a cluster takes."""
        return -(-self.longest // self.clusters) if self.window is None else self.window

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> RoutingParams:
        """Centroids in random directions, and the parameters of the encoding."""
        centroids = of_length(rng.standard_normal((self.heads, self.clusters, self.d))).astype(dtype)
        return RoutingParams(centroids, super().init(rng, dtype))

    def __call__(
        self, params: RoutingParams, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = False,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, RoutingCorePullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV), without a gradient for the centroids."""
        options: dict[str, Any] = {"centroids": params.centroids, "window": self.taken}
        options |= {"encoding": self.encoding, "params": params.encoding}
        Y, attention = routing_attention(Q, K, V, causal=causal, mask=mask, **options)
        return Y, RoutingCorePullback(attention)

    def observe(self, pullback: Pullback) -> Seen:
        """The sums of queries and keys by their nearest centroid."""
        known = pullback.attention
        sums: Any = 0
        counts: Any = 0
        for X, near in ((known.Q, known.near_q), (known.K, known.near_k)):
            there = known.there[..., known.there.shape[-1] - X.shape[-2] :, None]
            nearest = (near.mT.argmax(-1)[..., None] == np.arange(self.clusters)) & there
            one_hot = as_one_axis(nearest.astype(X.dtype), 0, -3)
            sums = sums + (one_hot.mT @ as_one_axis(X, 0, -3)).sum(0)
            counts = counts + one_hot.sum((0, 2))
        return Seen(sums, counts)

    def after_step(self, params: RoutingParams, observed: Seen, rng: np.random.Generator) -> RoutingParams:
        """The parameters with each centroid moved a little towards the mean of the rows nearest to it, if there were any."""
        old = params.centroids
        counts = observed.counts[..., None]
        mean = observed.sums / np.maximum(counts, 1e-30)  # fewer than one: an average over the parts of a batch
        moved = of_length(self.decay * old + (1 - self.decay) * mean)
        return params._replace(centroids=np.where(counts > 0, moved, old).astype(old.dtype))


def of_length(X: Array) -> Array:
    """The rows of X, each scaled to length √d."""
    return X / np.maximum(np.sqrt((X**2).mean(-1, keepdims=True)), 1e-30)
