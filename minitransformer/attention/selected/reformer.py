"""Reformer: a query looks only at keys that fall into its bucket of a random hash. Replaces the stage "pattern (which pairs)".

    h(x) = argmax [x R; −x R]                            vectors at a small angle probably share a bucket
    sort by (bucket, position), cut into chunks          a bucket now stands together, or nearly so
    a query looks at its chunk and the one before it     at the keys of its bucket, but not at its own
    several rounds, each with an R of its own            what one round has cut apart another one sees

Queries are the keys, but of norm one: k_j = q_j/√(‖q_j‖² + 10⁻⁶ d), which has a value at q_j = 0 too. The reversible layers of
the same paper are in `models/reversible.py`.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np

from minitransformer.arrays import as_one_axis, one_dtype, refuse_other_lengths
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.attend import attend
from minitransformer.attention.core import Core
from minitransformer.attention.delta_rule import unit
from minitransformer.attention.merge import merge, partial_attention
from minitransformer.attention.selected.gathered import at_pairs, of_pairs, only_those_there, rows_at, who_is_there
from minitransformer.checks import frozen
from minitransformer.positions.encoding import Encoding
from minitransformer.pullback import NoParams, Pullback, Tree
from minitransformer.ranges import Iterations, Range, Seed
from minitransformer.typing import Array, Bool, Float, Int, checked


def hash_buckets(
    X: Float[Array, "*batch n d"], rotations: Float[Array, "rounds d half"]
) -> Int[Array, "rounds *batch n"]:
    """The bucket of each row in each round: h(x) = argmax [x R; −x R], 0 … b − 1 with b = 2 · half, whatever the length of x."""
    turned = X @ rotations.reshape(len(rotations), *(1,) * (X.ndim - 2), *rotations.shape[1:])
    return np.concatenate([turned, -turned], -1).argmax(-1)


class Sorted(NamedTuple):
    """Which position stands at which place after sorting, and which pairs are seen; the first axis of all is the round.

    order    the position of each place, −1 where the last chunk is not full, (rounds, *batch, chunks, chunk)
    place    the place of each position, (rounds, *batch, n)
    sees     whether a query of a chunk sees a key of the chunk before it or of its own, (…, chunks, chunk, 2 · chunk)
    """

    order: Array
    place: Array
    sees: Array

    def sort(self, X: Array) -> Array:
        """(rounds or 1, *batch, n, w) to (rounds, *batch, chunks, chunk, w), with zeros at places without a position."""
        return np.where(self.order[..., None] < 0, X.dtype.type(0), rows_at(X, self.order))

    def unsort(self, X: Array) -> Array:
        """(rounds, *batch, chunks, chunk, w) to (rounds, *batch, n, w): each place has one position, so also the gradient."""
        return rows_at(as_one_axis(X, -3, -1), self.place[..., None, :])[..., 0, :, :]

    def of_all_pairs(self, X: Array) -> Array:
        """Numbers of queries and the keys that their chunks see, X (rounds, *batch, n, 2 · chunk), as matrices (*batch, n, n).

        A pair that several rounds look at gets the sum.
        """
        j = look_one_back(self.order[..., None], -1)[..., 0]
        columns = np.take_along_axis(j, self.place[..., None] // self.order.shape[-1], -2)
        whole = np.zeros((*self.place.shape, self.place.shape[-1] + 1), X.dtype)  # the last column is nobody's
        np.put_along_axis(whole, columns, X, -1)
        return whole[..., :-1].sum(0)


def look_one_back(X: Array, empty: Any = 0) -> Array:
    """Each chunk behind the one before it, (…, chunks, chunk, w) to (…, chunks, 2 · chunk, w); `empty` before the first."""
    before = np.concatenate([np.full_like(X[..., :1, :, :], empty), X[..., :-1, :, :]], -3)
    return np.concatenate([before, X], -2)


def sum_of_both_looks(dX: Array) -> Array:
    """The gradient of `look_one_back`: a chunk was looked at by itself and by the next."""
    chunk = dX.shape[-2] // 2
    own = dX[..., chunk:, :].copy()
    own[..., :-1, :, :] += dX[..., 1:, :chunk, :]
    return own


def sort_in_rounds(
    buckets: Array, chunk: int, *, causal: bool, mask: Array | None = None, other_buckets: bool = False
) -> Sorted:
    """Sorting and chunks of all rounds for the buckets (rounds, *batch, n), and the pairs that each round sees first.

    A pair is left to the first round that sees it; the paper lets all N_ij rounds see it and subtracts ln N_ij, which is the
    same sum. A query sees itself only if no round shows it anything else: the paper's penalty of 10⁵ on that score, after
    which exp is 0 unless it stands alone.
    mask    (*batch, n, n), or None. A token that no query sees is sorted to the end, and takes no part.
    """
    rounds, *batch, n = buckets.shape
    mask, there = who_is_there(mask, (*batch, n, n))
    buckets = np.where(there, buckets, buckets.max(initial=0) + 1)
    order = np.argsort(buckets, -1, kind="stable")
    place = np.argsort(order, -1)
    chunks = -(-n // chunk)
    order = np.concatenate([order, np.full((rounds, *batch, chunks * chunk - n), -1)], -1)
    order = order.reshape(rounds, *batch, chunks, chunk)
    i, j = order[..., None], look_one_back(order[..., None], -1).swapaxes(-1, -2)
    sees = (i >= 0) & (j >= 0) & of_pairs(there, i) & of_pairs(there, j) & at_pairs(mask, (*batch, n, n), i, j)
    if causal:
        sees &= j <= i
    itself, sees = sees & (i == j), sees & (i != j)

    def meet(by: int, r: int) -> Array:
        """Whether round `by`, too, brings the pairs of round r together: j in i's chunk or the one before, and in its bucket."""
        ahead = of_pairs(place[by] // chunk, i[r]) - of_pairs(place[by] // chunk, j[r])
        near = (ahead == 0) | (ahead == 1)
        return near if other_buckets else near & (of_pairs(buckets[by], i[r]) == of_pairs(buckets[by], j[r]))

    for r in range(rounds):
        sees[r] &= meet(r, r)
        for earlier in range(r):
            sees[r] &= ~meet(earlier, r)
    found: Any = np.take_along_axis(as_one_axis(sees.any(-1), -2), place, -1).any(0)
    sees[0] |= itself[0] & ~of_pairs(found, i[0])
    return Sorted(order, place, sees)


class LSHPullback(Pullback):
    """Who is in which bucket is constant. Each row goes back to its position, the rounds are summed, and a query that is a
    key as well gets both: dq = dq_as_query + (I − k kᵀ) dk / √(‖q‖² + 10⁻⁶ d).
    """

    sorted: Sorted
    key: Pullback
    attention: Pullback
    rounds: Pullback

    @property
    def A(self) -> Array:  # noqa: N802
        """The weights of all pairs, (*batch, n, n): those of each round times its share in the whole."""
        return self.sorted.of_all_pairs(self.sorted.unsort(self.attention.A) * self.rounds.w[..., None])

    def __call__(self, dY: Array) -> tuple[Array, Array]:
        dO, dL = self.rounds((dY, dY.dtype.type(0)))
        chunks = self.sorted.sort(np.concatenate([dO, dL[..., None]], -1))
        dQ, dK, dV = self.attention((chunks[..., :-1], chunks[..., -1]))
        dQ, dK, dV = (self.sorted.unsort(X).sum(0) for X in (dQ, sum_of_both_looks(dK), sum_of_both_looks(dV)))
        return dQ + self.key(dK), dV


class DenseLSHPullback(AroundAttention):
    """As `LSHPullback`, of one softmax over the pairs of all rounds."""

    key: Pullback
    attention: Pullback

    def __call__(self, dY: Array) -> tuple[Tree, Array, Array]:
        dparams, dQ, dK, dV = self.attention(dY)
        return dparams, dQ + self.key(dK), dV


@checked
def lsh_attention(
    Q: Float[Array, "*batch n d"],
    V: Float[Array, "*batch n dv"],
    *,
    rotations: Float[Array, "rounds d half"],
    chunk: int = 64,
    causal: bool = False,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
    other_buckets: bool = False,
    encoding: Encoding | None = None,
    params: Any = None,
) -> tuple[Float[Array, "*batch n dv"], LSHPullback | DenseLSHPullback]:
    """Attention over the pairs that some round of hashing puts side by side, softmax over all of them together.

        y_i = Σ_{j ∈ P_i} exp(S_ij − L_i) v_j,    S_ij = scale · ⟨q_i, k_j⟩,    P_i = ∪_r P_i^r without i
        k_j = q_j/√(‖q_j‖² + 10⁻⁶ d)

    P_i^r holds the j of i's bucket that stand, sorted by (bucket, position), in i's chunk or the one before. Before the
    first chunk is nothing. A query that sees nobody else sees itself.

    rotations      R of each round, normal numbers; b = 2 · half buckets
    causal         query i sees keys j ≤ i only, by their true positions. **What is seen is causal, whether it is seen is not**:
                   where a chunk ends depends on how many tokens, later ones too, fall into the buckets before. See `Reformer`
    mask           True where query i sees key j. A token that no query sees takes no part, and gives zeros
    scale          1/√d by default, as in the attention that this stands for. The authors' code makes keys of norm √d and
                   divides them by √d: keys of norm one and no further scale, scale=1.0. Both are in use; they differ by √d
    other_buckets  True lets a chunk see all keys of the two chunks, whatever their bucket, as the authors' code does
    encoding       of positions in the scores, with its params: the pairs of all rounds are then those of one matrix
    source         Aalto (9) and the text after it; Kitaev, Kaiser and Levskaya 2020
    cost           O(rounds · n (chunk · (d + rounds) + ln n)) time, O(rounds · n · chunk) memory for the pairs; O(n² d) and O(n²)
                   with an encoding
    returns        Y and a pullback: dQ, dV = pullback(dY), after dparams if there is an encoding
    raises         TypeError for a wrong shape or dtype, ValueError for chunk < 1, empty rotations or a mask that does not fit
    """
    one_dtype(Q=Q, V=V, rotations=rotations)
    if not rotations.size:
        raise ValueError(
            f"rotations: shape {rotations.shape}; a hash needs at least one round, one channel and one direction"
        )
    mask, there = who_is_there(mask, (*Q.shape[:-1], Q.shape[-2]))
    Q, V = only_those_there(there, Q, V)
    known = sort_in_rounds(hash_buckets(Q, rotations), chunk, causal=causal, mask=mask, other_buckets=other_buckets)
    K, key = unit(Q)
    if encoding is not None:
        pairs = known.of_all_pairs(known.unsort(known.sees)) > 0
        Y, whole = attend(encoding, params, Q, K, V, causal=causal, mask=pairs, scale=scale)
        return Y, DenseLSHPullback(key, whole)
    sorted_Q, *looks = (known.sort(X[None]) for X in (Q, K, V))
    (chunks, L), attention = partial_attention(sorted_Q, *map(look_one_back, looks), mask=known.sees, scale=scale)
    (Y, _), rounds = merge(known.unsort(chunks), known.unsort(L[..., None])[..., 0])
    return Y, LSHPullback(known, key, attention, rounds)


# --------------------------------------------------------------------------------------------- the core


class ReformerPullback(AroundAttention):
    """Nothing is learned but the encoding's parameters, and keys were made of queries: dQ has both, and dK is zero."""

    attention: LSHPullback | DenseLSHPullback

    def __call__(self, dY: Array) -> tuple[Tree, Array, Array, Array]:
        *dparams, dQ, dV = self.attention(dY)
        return *(dparams or [NoParams()]), dQ, np.zeros_like(dQ), dV


@frozen
class Reformer(Core):
    """Hashes queries, which are the keys, into buckets, sorts, and attends within chunks; in several rounds.

    rounds, buckets, chunk   of the hash; b is even. In the paper b = 2n/chunk, so that a bucket is half a chunk
    seed                     of the rotations where no generator is given; with one, each forward pass draws its own
    encoding                 of positions in the scores; a model puts its own there

    Causal in its values only: a query takes nothing from later tokens, but later tokens change which earlier ones it sees,
    for they take places in the sorted order. So in training the pattern holds a little of what comes next, which is not
    there when the model writes; and then it reads the whole text again for each token.

    source   Aalto (9); Kitaev, Kaiser and Levskaya 2020
    cost     O(rounds · n (chunk · d + ln n)) time, O(n² d) with an encoding
    """

    rounds: Iterations = 2
    buckets: Annotated[int, Range("even, half of them for x R and half for −x R", lambda b: b > 0 and b % 2 == 0)] = 8
    chunk: int = 32
    seed: Seed = 0
    encoding: Encoding | None = None

    stage = "pattern"
    cost = "O(rounds n (chunk + ln n))"
    remembers = None
    looks_ahead = True
    needs = "queries are the keys"
    queries_are_keys = True

    def __call__(
        self, params: Tree, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = False,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, ReformerPullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV), where dK is zero: K is not looked at. Raises ValueError if m ≠ n."""
        refuse_other_lengths(Q, K, "queries are the keys")
        rng = np.random.default_rng(self.seed) if rng is None else rng
        rotations = rng.standard_normal((self.rounds, Q.shape[-1], self.buckets // 2)).astype(Q.dtype)
        options: dict[str, Any] = {"rotations": rotations, "chunk": self.chunk, "causal": causal, "mask": mask}
        Y, attention = lsh_attention(Q, V, **options, encoding=self.encoding, params=params)
        return Y, ReformerPullback(attention)
