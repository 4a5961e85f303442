"""The keys and values of the tokens seen so far: what softmax attention has to remember while it writes."""

import numpy as np

from minitransformer.marks import DecodingState
from minitransformer.ranges import so_many
from minitransformer.typing import Array


def claim(written: list[int], length: int, now: int) -> bool:
    """Whether the caller may write the rows from `length` to `now`: if the room is filled to `length`, it marks them as taken.

    Of two threads that go on from one state, one takes the number out of the list, and the other finds none.
    """
    try:
        filled = written.pop()
    except IndexError:
        return False
    written.append(now if filled == length else filled)
    return filled == length


def writeable(K: Array, V: Array) -> bool:
    """Whether rows can be written into both; a state that was mapped from a file, say, is copied instead."""
    return K.flags.writeable and V.flags.writeable


def must_follow(K: Array, V: Array, known_keys: Array, known_values: Array) -> None:
    """Raise ValueError for keys and values of other samples, heads, widths or dtypes than those in the state."""
    for new, known in ((K, known_keys), (V, known_values)):
        if (*new.shape[:-2], new.shape[-1], new.dtype) != (*known.shape[:-2], known.shape[-1], known.dtype):
            raise ValueError(f"state: {new.dtype} {new.shape} can't follow {known.dtype} {known.shape}")
    if K.shape[-2] != V.shape[-2]:
        raise ValueError(f"V: {so_many(V.shape[-2], 'value')} for {so_many(K.shape[-2], 'key')} should be as many")


class KeysValues(DecodingState):
    """The first `length` positions of two arrays with room for more, (*batch, G, room, d) and (*batch, G, room, dv).

    written   how far the room is filled, in a list that all states with these arrays share. A state that is not the last
              one written copies before it goes on, so two continuations of one state don't get into each other's way.
    """

    K: Array
    V: Array
    length: int
    written: list[int]

    many = ("K", "V")

    @classmethod
    def of(cls, K: Array, V: Array) -> "KeysValues":
        """The state after the first tokens."""
        return cls(K[..., :0, :], V[..., :0, :], 0, [0]).extended(K, V)

    @property
    def end(self) -> int:
        """How many rows there are: one for each position."""
        return self.length

    @property
    def keys(self) -> Array:
        """K of the positions so far, (*batch, G, length, d)."""
        return self.K[..., : self.length, :]

    @property
    def values(self) -> Array:
        """V of the positions so far, (*batch, G, length, dv)."""
        return self.V[..., : self.length, :]

    def must_fit(self) -> None:
        """Raise ValueError unless there is room for all positions, and all are written."""
        if self.length > min(self.K.shape[-2], *self.written) or self.K.shape[-2] != self.V.shape[-2]:
            shapes = f"{self.K.shape} and {self.V.shape}, filled to {self.written}"
            raise ValueError(f"state: length {self.length} does not fit room of {shapes}")

    def with_room(self, n: int) -> "KeysValues":
        """A state that is longer by n positions, whose keys and values the caller writes.

        The room doubles when it is full, so n positions cost O(n) amortised, however many there are already.
        """
        now = self.length + n
        if now <= self.K.shape[-2] and writeable(self.K, self.V) and claim(self.written, self.length, now):
            return KeysValues(self.K, self.V, now, self.written)
        room = max(2 * now, 64)
        return KeysValues(_wider(self.keys, room), _wider(self.values, room), now, [now])

    def extended(self, K: Array, V: Array) -> "KeysValues":
        """The state after these n more positions. Raises ValueError for keys and values of other samples, heads or widths."""
        must_follow(K, V, self.K, self.V)
        longer = self.with_room(K.shape[-2])
        longer.K[..., self.length : longer.length, :] = K
        longer.V[..., self.length : longer.length, :] = V
        return longer


class WithPast(DecodingState, named=False):
    """A state whose field `past` has the keys and values of all positions so far, in some form."""

    @property
    def length(self) -> int:
        """How many positions there have been so far."""
        return self.past.length


def _wider(X: Array, room: int) -> Array:
    wider = np.zeros((*X.shape[:-2], room, X.shape[-1]), X.dtype)
    wider[..., : X.shape[-2], :] = X
    return wider
