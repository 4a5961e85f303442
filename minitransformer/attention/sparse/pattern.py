"""Which pairs (i, j) softmax attention looks at, whatever the length: a rule, and from it a mask, a list of tiles and a graph.

    pattern(n, m, causal=…)          the tiles that the compiled loops walk through; `.mask` of them is a boolean matrix
    pattern.sees(i, j, m, causal=…)  the rule itself, for any positions
    pattern.graph(n)                 tokens as nodes, with an edge where one sees another (graph.py)

    a | b        the pairs that one rule or the other allows
    a & b        the pairs that both allow; with a & Causal(), those of a that are not ahead
    EachHead     a rule of its own for each head

If attention is causal, what is ahead is left out, and row i must not depend on how many tokens follow: a token that is
written sees what it saw in training.
"""

import functools
from typing import Any, ClassVar, Literal

import numpy as np

from minitransformer.attention.block_sparse import (
    TILE,
    BlockPattern,
    block_pattern,
    block_sparse_attention,
    one_pattern,
    pairs_seen,
    settled,
)
from minitransformer.attention.cache.recent import Kept, positions
from minitransformer.attention.sparse.graph import Graph
from minitransformer.checks import frozen
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Bool, Float, checked

SHORT = 256  # rows of a state, at most, that are copied so that no mask is needed


class Pattern:
    """A rule for pairs. Called with the number of queries and of keys, it returns the list of tiles, which is cached.

    A subclass says who sees whom (`sees`), and perhaps which tiles can be left out unasked (`near`).

    cost     of n tokens, for the table of `minitransformer attentions`
    causal   as in `attention/core.py`
    prefix   tokens that a model puts in front of the sequence
    kept     which positions decoding has to keep; None if any may be looked at again
    """

    cost: ClassVar[str] = "O(n²)"
    causal: ClassVar[Literal["either", "always", "never"]] = "either"
    prefix: ClassVar[int] = 0
    kept: ClassVar[Kept | None] = None

    @property
    def of_heads(self) -> "tuple[Pattern, ...]":
        """The rule of each head; one for all of them, here itself."""
        return (self,)

    @property
    def rules(self) -> int:
        """How many rules there are, without making them."""
        return len(self.of_heads)

    def sees(self, i: Array, j: Array, m: int, *, causal: bool) -> Array:
        """Whether query i sees key j, of m positions; i (…, 1) and j (1, …). Keys ahead need not be left out, also if causal.

        Returns an array (…, …), or (H, …, …) where each head has a rule of its own.
        """
        if self.of_heads == (self,):
            raise TypeError(f"{type(self).__name__} does not say who sees whom")
        shape = np.broadcast_shapes(i.shape, j.shape)
        return np.stack([np.broadcast_to(rule.sees(i, j, m, causal=causal), shape) for rule in self.of_heads])

    def near(self, t: Array, k: Array, m: int, *, causal: bool) -> Array:
        """Whether any query of tile t may see a key of tile k; t (…, 1) and k (1, …). True is always allowed, and costs time."""
        return np.ones(np.broadcast_shapes(t.shape, k.shape), bool)

    def must_be_hashable(self) -> None:
        """Raise a TypeError that names the fields unless this pattern is hashable: its tiles are cached under it."""
        try:
            hash(self)
        except TypeError as error:
            odd = [name for name, field in vars(self).items() if getattr(field, "__hash__", None) is None]
            raise TypeError(
                f"{type(self).__name__}: its tiles are cached, so its fields should be hashable: tuples in place of "
                f"arrays, lists and dicts; {', '.join(odd) or 'a part'} is not ({error})"
            ) from None

    def last_rows(self, n: int, m: int, length: int) -> Array | slice:
        """Which of the m rows of a state the last n of all queries see: a mask; or the last rows, if that is all that one sees.

        It is cached, since all layers of a model ask for the same. Rows with others before them are few: they may be copied.
        """
        return _last_rows(self, n, m, length)

    def __call__(self, n: int, m: int, *, causal: bool) -> BlockPattern:
        """The tiles for n queries at the last n of m positions: one list, or one for each head."""
        self.must_be_hashable()
        return _tiles(self, n, m, causal)

    @checked
    def attend(
        self,
        Q: Float[Array, "*batch n d"],
        K: Float[Array, "*shared m d"],
        V: Float[Array, "*shared m dv"],
        *,
        causal: bool,
        mask: Bool[Array, "..."] | None,
        **options: Any,
    ) -> tuple[Float[Array, "*batch n dv"], Pullback]:
        """Attention to the pairs of the rule, and dQ, dK, dV = pullback(dY): by tiles, unless a rule knows better.

        options   sink and cap, as in `block_sparse_attention`
        """
        tiles = self(Q.shape[-2], K.shape[-2], causal=causal)
        return block_sparse_attention(Q, K, V, tiles, causal=causal, mask=mask, **options)

    def graph(self, n: int, *, causal: bool = False) -> Graph:
        """Tokens 0 … n − 1, and an edge from i to j where i sees j; with a rule for each head, where any head does."""
        mask = self(n, n, causal=causal).mask
        return Graph(np.asarray(mask if mask.ndim == 2 else mask.any(0)))

    def __or__(self, other: "Pattern") -> "Pattern":
        return Union((*_parts(self, Union), *_parts(other, Union)))

    def __and__(self, other: "Pattern") -> "Pattern":
        return Intersection((*_parts(self, Intersection), *_parts(other, Intersection)))


@functools.lru_cache(maxsize=64)
def _tiles(pattern: Pattern, n: int, m: int, causal: bool) -> BlockPattern:
    heads = pattern.of_heads
    if heads != (pattern,):
        return settled(one_pattern([_tiles(rule, n, m, causal) for rule in heads]))
    first = m - n  # position of a query: tiles of queries need not begin where tiles of keys do
    t, k = np.arange(-(-n // TILE))[:, None], np.arange(-(-m // TILE))[None]
    upper = np.minimum(first + t * TILE + TILE - 1, m - 1) // TILE
    near = pattern.near((first + t * TILE) // TILE, k, m, causal=causal) | pattern.near(upper, k, m, causal=causal)

    def sees(i: Array, j: Array) -> Array:
        """Of the m positions alone: in a last tile that is not full, the last position stands for those behind it."""
        return pattern.sees(np.minimum(i, m - 1), np.minimum(j, m - 1), m, causal=causal)

    return settled(block_pattern(n, m, sees, near, causal=causal))


@functools.lru_cache(maxsize=16)
def _last_rows(pattern: Pattern, n: int, m: int, length: int) -> Array | slice:
    first = 0 if pattern.kept is None else pattern.kept.first
    j = positions(first, m, length)
    mask = pairs_seen(pattern.sees(j[m - n :, None], j[None], length, causal=True), n, m, heads=True)
    start = m - np.count_nonzero(mask)
    few = start == 0 or m - start <= SHORT
    return slice(start, m) if few and mask.shape == (1, m) and mask[0, start:].all() else mask


# ---------------------------------------------------------------------------------------------- algebra


def _parts(pattern: Pattern, kind: type) -> tuple[Pattern, ...]:
    """The parts of a pattern of this kind, so that (a | b) | c has three; of any other, the pattern itself."""
    return pattern.patterns if isinstance(pattern, kind) else (pattern,)  # type: ignore[attr-defined]


@frozen
class Combined(Pattern):
    """Several patterns made one, by `join`. Those that have a rule for each head must have equally many heads."""

    patterns: tuple[Pattern, ...]
    cost = "that of its parts"
    join: ClassVar[Any] = np.logical_or

    def __post_init__(self) -> None:
        heads = {pattern.rules for pattern in self.patterns} - {1}
        if not self.patterns or len(heads) > 1:
            raise ValueError(
                f"patterns: there should be at least one, all for equally many heads, got {sorted(heads) or 'none'}"
            )

    @property
    def causal(self) -> Literal["either", "always", "never"]:  # type: ignore[override]
        """Whether they can be causal together: "always" or "never" if one of them says so."""
        can = {pattern.causal for pattern in self.patterns} - {"either"}
        if len(can) > 1:
            raise ValueError("patterns: one is always causal, another never")
        return can.pop() if can else "either"

    @property
    def prefix(self) -> int:  # type: ignore[override]
        """The most tokens in front of the text that any of them wants."""
        return max(pattern.prefix for pattern in self.patterns)

    @property
    def rules(self) -> int:
        """How many rules there are: the most that any of them has."""
        return max(pattern.rules for pattern in self.patterns)

    @property
    def of_heads(self) -> tuple[Pattern, ...]:
        """The rule of each head, if one of them has such; else itself."""
        if self.rules == 1:
            return (self,)
        own = [p.of_heads * self.rules if p.rules == 1 else p.of_heads for p in self.patterns]
        return tuple(type(self)(rules) for rules in zip(*own, strict=True))

    @property
    def kept(self) -> Kept | None:  # type: ignore[override]
        """Enough for each of them; None if one needs all positions."""
        kept = [pattern.kept for pattern in self.patterns]
        if None in kept:
            return None
        return Kept(max(k.first for k in kept if k), max(k.last for k in kept if k))

    def sees(self, i: Array, j: Array, m: int, *, causal: bool) -> Array:
        """Whether the rules, joined, let query i see key j."""
        if self.rules > 1:
            return super().sees(i, j, m, causal=causal)
        return functools.reduce(self.join, (rule.sees(i, j, m, causal=causal) for rule in self.patterns))

    def near(self, t: Array, k: Array, m: int, *, causal: bool) -> Array:
        """Which tiles the rules, joined, may need."""
        return functools.reduce(self.join, (rule.near(t, k, m, causal=causal) for rule in self.patterns))


@frozen
class Union(Combined):
    """The pairs that at least one of the rules allows. One that two of them allow counts once."""


@frozen
class Intersection(Combined):
    """The pairs that all of the rules allow."""

    join = np.logical_and

    @property
    def kept(self) -> Kept | None:  # type: ignore[override]
        """What the one that keeps least has to keep; None if all of them need all positions."""
        return min((k for pattern in self.patterns if (k := pattern.kept)), key=sum, default=None)


@frozen
class Causal(Pattern):
    """j ≤ i: dense attention that does not look ahead. `Window(5) & Causal()` is causal also in a model that is not."""

    def sees(self, i: Array, j: Array, m: int, *, causal: bool) -> Array:
        """True where key j does not lie ahead of query i."""
        return j <= i

    def near(self, t: Array, k: Array, m: int, *, causal: bool) -> Array:
        """Which tiles do not lie ahead of a query."""
        return k <= t


@frozen
class EachHead(Combined):
    """A pattern of its own for each head, as many as the layer has."""

    cost = "that of its heads"
    sees = Pattern.sees  # of each head, one after another

    def __post_init__(self) -> None:
        if not self.patterns or any(pattern.rules > 1 for pattern in self.patterns):
            raise ValueError("patterns: there should be at least one, each with one rule")

    @property
    def rules(self) -> int:
        """How many rules there are: one for each head."""
        return len(self.patterns)

    @property
    def of_heads(self) -> tuple[Pattern, ...]:
        """The pattern of each head. They keep equally many keys, and each looks at its own."""
        return self.patterns
