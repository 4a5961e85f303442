"""A cache of keys and values in pages: room is given out a page at a time, and texts that begin alike share their pages.

A buffer that grows has to be moved when it is full, and half of it may be empty. Pages of a fixed size are never moved, and a
text wastes less than one page. Its block table says which pages it has, in the order of the text; where they are in memory
does not matter, because what queries find in them can be joined in any order (flash.py).

To continue one text in several ways, only the table is copied. A page that is full is never written again; one that is
half full is copied by the second of two who want to go on in it.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import must_be_for_heads, one_dtype, refuse_more_queries, scale_for
from minitransformer.attention.cache.keys_values import claim, must_follow, writeable
from minitransformer.attention.flash import find, finish, join, nothing_found
from minitransformer.checks import fits
from minitransformer.gather_scatter import for_each_head
from minitransformer.marks import DecodingState
from minitransformer.ranges import PositiveNumber, so_many
from minitransformer.typing import Array, Float, checked


class Page(NamedTuple):
    """Room for some positions, (*batch, G, size, d) and (*batch, G, size, dv); `written[0]` of them are taken."""

    K: Array
    V: Array
    written: list[int]


class Paged(DecodingState):
    """The keys and values of `length` positions, in pages of one size. Like KeysValues it is never changed, only continued."""

    pages: tuple[Page, ...]
    length: int
    size: int

    many = ("pages",)  # as many as the text needs; a step that begins one may leave fewer

    @classmethod
    def of(cls, K: Array, V: Array, size: int) -> "Paged":
        """The state after the first tokens. Raises ValueError for a size below 1."""
        if size < 1:
            raise ValueError(f"size: {size} should be at least 1")
        rooms = (np.zeros((*X.shape[:-2], size, X.shape[-1]), X.dtype) for X in (K, V))
        return cls((Page(next(rooms), next(rooms), [0]),), 0, size).extended(K, V)

    @property
    def keys(self) -> Array:
        """K of the positions so far, (*batch, G, length, d), copied together."""
        return np.concatenate([page.K for page in self.pages], -2)[..., : self.length, :]

    @property
    def values(self) -> Array:
        """V of the positions so far."""
        return np.concatenate([page.V for page in self.pages], -2)[..., : self.length, :]

    @property
    def waste(self) -> int:
        """How many more positions fit into the pages: fewer than one page holds, or a whole page if nothing is written yet."""
        return len(self.pages) * self.size - self.length

    def parts(self) -> Iterator[tuple[Array, Array, Array]]:
        """Page by page: the positions in it, their keys and their values."""
        for k, page in enumerate(self.pages):
            used = min(self.length - k * self.size, self.size)
            yield k * self.size + np.arange(used), page.K[..., :used, :], page.V[..., :used, :]

    def must_fit(self) -> None:
        """Raise ValueError unless the last position is in the last page, and written there."""
        last, before = self.pages[-1], (len(self.pages) - 1) * self.size
        if not 0 <= self.length - before <= min(self.size, *last.written) or self.size != last.K.shape[-2]:
            pages = so_many(len(self.pages), "page")
            raise ValueError(f"state: length {self.length} does not fit {pages} of {self.size}")

    def extended(self, K: Array, V: Array) -> "Paged":
        """The state after these n more positions; one page at most is copied. ValueError for keys of other samples or heads."""
        last = self.pages[-1]
        must_follow(K, V, last.K, last.V)
        pages, length = list(self.pages), self.length
        while K.shape[-2]:
            at = length - (len(pages) - 1) * self.size  # in the last page
            if at == self.size:
                pages.append(Page(np.zeros_like(last.K), np.zeros_like(last.V), [0]))
                at = 0
            n = min(self.size - at, K.shape[-2])
            free = writeable(pages[-1].K, pages[-1].V)
            if not free or not claim(pages[-1].written, at, at + n):  # another state has gone on in this page
                pages[-1] = Page(pages[-1].K.copy(), pages[-1].V.copy(), [at + n])
            pages[-1].K[..., at : at + n, :], pages[-1].V[..., at : at + n, :] = K[..., :n, :], V[..., :n, :]
            K, V, length = K[..., n:, :], V[..., n:, :], length + n
        return Paged(tuple(pages), length, self.size)


@checked
def block_tables(*states: Paged) -> list[list[int]]:
    """For each state the numbers of its pages, in the order of its text. What two states share has one number."""
    numbers: dict[int, int] = {}
    return [[numbers.setdefault(id(page.K), len(numbers)) for page in state.pages] for state in states]


def _refuse_other_pages(state: Paged) -> None:
    """Raise ValueError unless all pages have the size, samples, heads and widths of the first."""
    kinds = [[(X.dtype, *X.shape) for X in page[:2]] for page in state.pages]
    K, V = kinds[0] if kinds else ((), ())
    if len(K) < 4 or K[-2] != state.size or K[:-1] != V[:-1] or any(own != [K, V] for own in kinds):
        raise ValueError(f"state: pages should be (…, heads, {state.size}, d) and (…, dv) of one dtype, got {kinds}")


@checked
def paged_attention(
    Q: Float[Array, "*batch heads n d"],
    state: Paged,
    scale: float | None = None,
    order: Any = None,
    sink: Float[Array, "*own"] | None = None,
    cap: PositiveNumber | None = None,
) -> Array:
    """Causal attention of the last queries to all positions of a state, page by page: Y alone; there is no backward pass.

    Q       (*batch, H, n, d), the last n positions; heads share the keys of their group
    others  as in `dot_product_attention`
    order   in which the pages are read; Y is the same to rounding. A page that is not in it is not read
    cost    O(n m d) time; the pages are not copied into one array
    raises  TypeError for another dtype than that of the pages, or an order that is not of integers; ValueError for other samples,
            heads or widths, more queries than positions, an order that names a page twice or one that is not there, and pages
            that differ from each other
    """
    _refuse_other_pages(state)
    K, n = state.pages[0].K, Q.shape[-2]
    one_dtype(Q=Q, K=K, sink=sink)
    if sink is not None:
        must_be_for_heads(sink, Q.shape[:-2], "sink")
    refuse_more_queries(n, state.length)
    if (*Q.shape[:-3], Q.shape[-1]) != (*K.shape[:-3], K.shape[-1]) or not K.shape[-3] or Q.shape[-3] % K.shape[-3]:
        raise ValueError(f"Q: shape {Q.shape} does not fit keys of {K.shape}")
    scale = scale_for(Q.shape[-1], scale)
    i = state.length - n + np.arange(n)
    parts, found = list(state.parts()), nothing_found(Q, state.pages[0].V, sink)
    order = range(len(parts)) if order is None else order
    turns = list(order) if np.iterable(order) else None
    if turns is None or not all(fits(k, int) for k in turns):
        raise TypeError(f"order: {order!r} should be integers, one for each page that is read")
    if len(set(turns)) < len(turns) or not set(turns) <= set(range(len(parts))):
        raise ValueError(f"order: {turns} should name each of {so_many(len(parts), 'page')} once at most")
    for k in turns:
        j, K, V = parts[k]
        mask = None if n == 1 else i[:, None] >= j
        K, V = (for_each_head(X, Q.shape[:-2]) for X in (K, V))
        found = join(found, find(Q, K, V, mask, scale, cap))
    return finish(found)[0]
