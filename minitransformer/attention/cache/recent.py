"""The keys and values of the first few tokens and of the last ones: all that attention has to remember if it sees no others.

A ring buffer of w rows, in which token t overwrites row t mod w, is all that a window needs. But an older state, from which
somebody goes on in another way, would find its keys overwritten. So here new tokens are appended until the room is full; then
those that are still seen move to the front of new room. For a window that copies one row for each token, on average, and the
memory stays constant.
"""

from typing import NamedTuple

import numpy as np

from minitransformer.attention.cache.keys_values import claim, must_follow, writeable
from minitransformer.marks import DecodingState
from minitransformer.typing import Array


class Kept(NamedTuple):
    """How many positions a causal query can see at most: the `first` of the text, and the `last` ones, its own among them."""

    first: int
    last: int


def positions(first: int, end: int, length: int) -> Array:
    """The position in the text of each of `end` rows, rising: the first rows are the first tokens, the others the last ones."""
    rows = np.arange(end)
    return np.where(rows < first, rows, rows + length - end)


class Recent(DecodingState):
    """The first `end` rows of two arrays with room for more, (*batch, G, room, d) and (*batch, G, room, dv).

    length    of the text so far, most of which may be forgotten
    kept      how many positions at the start and at the end can be seen again
    written   how far the room is filled, in a list that all states with these arrays share (as in KeysValues)
    """

    K: Array
    V: Array
    length: int
    end: int
    kept: Kept
    written: list[int]

    many = ("K", "V")
    same = ("kept",)

    @classmethod
    def of(cls, K: Array, V: Array, kept: Kept) -> "Recent":
        """The state after the first tokens."""
        return cls(K, V, K.shape[-2], K.shape[-2], kept, [-1])._moved(0)

    @property
    def positions(self) -> Array:
        """The position in the text of each row."""
        return positions(self.kept.first, self.end, self.length)

    @property
    def keys(self) -> Array:
        """K of the rows that the next query may see, (*batch, G, at most first + last − 1, d)."""
        return self._seen(self.K)

    @property
    def values(self) -> Array:
        """V of the rows that the next query may see."""
        return self._seen(self.V)

    def _seen(self, X: Array) -> Array:
        first, last = self.kept.first, self.kept.last - 1
        if self.end <= first + last:
            return X[..., : self.end, :]
        return np.concatenate([X[..., :first, :], X[..., self.end - last : self.end, :]], -2)

    def _moved(self, n: int) -> "Recent":
        """The rows that are still seen, in new arrays with n more taken, and as many free: `last` at most, but 64 at least."""
        keys, values = self.keys, self.values
        used = keys.shape[-2]
        room = used + n + max(min(used + n, self.kept.last), 64)
        K, V = (np.zeros((*X.shape[:-2], room, X.shape[-1]), X.dtype) for X in (keys, values))
        K[..., :used, :], V[..., :used, :] = keys, values
        return Recent(K, V, self.length, used, self.kept, [used + n])

    def must_fit(self) -> None:
        """Raise ValueError unless there are as many rows as the next query may see, and all are written."""
        seen, room = min(self.length, self.kept.first + self.kept.last - 1), self.K.shape[-2]
        if not seen <= self.end <= min(self.length, room, *self.written) or room != self.V.shape[-2]:
            shapes = f"{self.K.shape} and {self.V.shape}, filled to {self.written}"
            raise ValueError(f"state: {self.end} of length {self.length} do not fit room of {shapes}")

    def with_room(self, n: int) -> "Recent":
        """A state that is longer by n positions, whose keys and values the caller writes to its last n rows."""
        fits = self.end + n <= self.K.shape[-2] and writeable(self.K, self.V)
        if not fits or not claim(self.written, self.end, self.end + n):
            self = self._moved(n)
        return Recent(self.K, self.V, self.length + n, self.end + n, self.kept, self.written)

    def extended(self, K: Array, V: Array) -> "Recent":
        """The state after these n more positions: O(first + last + n) rows are copied at most, however long the text is."""
        must_follow(K, V, self.K, self.V)
        longer = self.with_room(n := K.shape[-2])
        rows = slice(longer.end - n, longer.end)
        longer.K[..., rows, :], longer.V[..., rows, :] = K, V
        return longer
