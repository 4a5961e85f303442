"""Rotary positions: queries and keys are turned, by an angle that grows with their position.

    q_i → R_i q_i,   k_j → R_j k_j,        ⟨R_i q_i, R_j k_j⟩ = ⟨q_i, R_{j−i} k_j⟩

R_i turns each pair of channels (x_a, x_b) by the angle ω_f i, fast in the first pair and slowly in the last. Turning
changes no length, and the angle between two turned vectors depends on the difference of their positions only. It is the
M_o that moves a sinusoid (Borealis II (4)), applied to content.
"""

import functools
import reprlib
from typing import Literal

import numpy as np

from minitransformer.checks import fits, frozen
from minitransformer.functional import loops_in
from minitransformer.positions.absolute import Layout
from minitransformer.positions.encoding import Encoding
from minitransformer.positions.rope_scaling import Scaling, rope_frequencies
from minitransformer.pullback import Pullback
from minitransformer.ranges import NonNegative, PositiveNumber
from minitransformer.typing import Array, Float, checked


def _pairs(count: int, layout: Layout) -> tuple[slice, slice]:
    """Where the first and the second channels of `count` pairs stand."""
    if layout == "interleaved":
        return slice(0, 2 * count, 2), slice(1, 2 * count, 2)
    return slice(0, count), slice(count, 2 * count)


def _turn(X: Array, cos: Array, sin: Array, layout: Layout) -> Array:
    """Each pair of channels (x_a, x_b) as (x_a cos − x_b sin, x_a sin + x_b cos); channels beyond the pairs as they are."""
    if X.ndim < 2 or cos.shape[-2] not in (1, X.shape[-2]) or 2 * cos.shape[-1] > X.shape[-1]:
        raise ValueError(f"X: shape {X.shape} does not fit angles of {cos.shape[-2]} rows and {cos.shape[-1]} pairs")
    if loops := loops_in("pointwise"):
        return loops.turn(X, cos, sin, layout == "interleaved")
    a, b = _pairs(cos.shape[-1], layout)
    Y = X.copy()
    Y[..., a] = X[..., a] * cos - X[..., b] * sin
    Y[..., b] = X[..., a] * sin + X[..., b] * cos
    return Y


def _cos_and_sin(angles: Array, magnitude: float, dtype: np.dtype) -> tuple[Array, Array]:
    cos, sin = ((magnitude * g(angles)).astype(dtype, copy=False) for g in (np.cos, np.sin))
    return cos, sin


class RotatePullback(Pullback):
    """The transpose of a rotation turns by the opposite angle: so dX is dY, turned back, and times the same magnitude."""

    cos: Array
    sin: Array
    layout: Layout

    def __call__(self, dY: Array) -> Array:
        return _turn(dY, self.cos, -self.sin, self.layout)


@checked
def rotate(
    X: Float[Array, "*batch n d"],
    *,
    angles: Float[Array, "n pairs"],
    layout: Layout = "interleaved",
    magnitude: float = 1.0,
) -> tuple[Float[Array, "*batch n d"], RotatePullback]:
    """Turn the pairs of channels of row i by the angles of row i.

        y_a = x_a cos φ_if − x_b sin φ_if
        y_b = x_a sin φ_if + x_b cos φ_if

    layout      interleaved: pair f is channels 2f and 2f + 1;  halves: channels f and pairs + f
    magnitude   the factor of the channels that are turned, for YaRN
    cost        O(n d). Channels beyond the pairs are left as they are.
    raises      ValueError for more pairs than channels, or another layout
    """
    if 2 * angles.shape[-1] > X.shape[-1]:
        raise ValueError(f"angles: {angles.shape[-1]} pairs do not fit into {X.shape[-1]} channels")
    cos, sin = _cos_and_sin(angles, magnitude, X.dtype)
    return _turn(X, cos, sin, layout), RotatePullback(cos, sin, layout)


@checked
def change_layout(W: Array, d: int, *, to: Layout, part: NonNegative | None = None) -> Array:
    """Columns of W_q, W_k, b_q or b_k in the order that the other layout needs: the same model, in its other form.

    W       (…, H d), and each head is permuted for itself; also Q or K, (…, d)
    to      the layout of the result; W is in the other one
    part    channels that are turned, if not all; None too if their pairs are those of the head
    raises  ValueError for columns that are no heads of width d, a part that is odd or above d, or another layout
    """
    turned = d if part is None else part
    if not W.ndim or turned % 2 or not 0 <= turned <= d or W.shape[-1] % d:
        raise ValueError(f"W: shape {W.shape} should be (…, H · {d}), of which {turned} channels are turned in pairs")
    first, second = _pairs(turned // 2, "interleaved")
    channels = np.arange(d)
    order = np.concatenate([channels[first], channels[second], channels[turned:]])
    if to != "halves":
        order = np.argsort(order)  # the inverse permutation
    return W.reshape(*W.shape[:-1], W.shape[-1] // d, d)[..., order].reshape(W.shape)


@functools.lru_cache(maxsize=64)
def _table(rope: "RoPE", length: int, dtype: np.dtype) -> tuple[Array, Array]:
    """cos φ_if and sin φ_if for every position of a text, times the magnitude."""
    cos, sin = _cos_and_sin(*rope.angles(length), dtype)
    cos.flags.writeable = sin.flags.writeable = False
    return cos, sin


@frozen
class RoPE(Encoding):
    """Attention with turned queries and keys; values are not turned.

    d         width of a head
    base      ω_f = base^(−2f/d); the last pair turns once in 2π · base^(1 − 2/d) positions
    layout    "interleaved" as in the paper, GPT-J and Llama's own files, or "halves" as in Llama's files for
              huggingface/transformers: `change_layout` goes from one to the other
    part      channels that are turned, an even number; the others say nothing about positions. None for all; 0 is no positions
    scaling   for longer texts than in training (rope_scaling.py); its magnitude multiplies all pairs, also those that stand still
    pairs_of  "part": the first channels are turned like a head as wide as `part`, and ω_f = base^(−2f/part), as in Qwen3-Next.
              "head": the first part/2 pairs of the whole head turn, with ω_f = base^(−2f/d), and the slower ones stand
              still, as in Gemma 4 ("proportional" in its files); in halves the pair f is channels f and d/2 + f
    source    Su et al. 2021; the two kinds of parts as in `modeling_rope_utils.py` in huggingface/transformers
    cost      O((n + m) d) besides attention itself, in the tiles of the compiled loops. Can be causal.
    raises    ValueError for an odd number of channels, or more than there are; TypeError for an object that is no scaling
    """

    d: int
    base: PositiveNumber = 10000.0
    layout: Layout = "interleaved"
    part: NonNegative | None = None
    scaling: Scaling | None = None
    pairs_of: Literal["part", "head"] = "part"

    acts_on = ("queries and keys",)

    def __post_init__(self) -> None:
        name, turned, least = ("d", self.d, 2) if self.part is None else ("part", self.part, 0)
        if turned < least or turned % 2 or turned > self.d:
            wanted = f"{name} should be even, and from {least} to {self.d}"
            wanted = wanted if self.d > 1 else "a head should be 2 wide at least"
            raise ValueError(f"{name}: {turned} of {self.d} channels can't be turned in pairs; {wanted}")
        if self._width % 2:
            why = f"as part={self.part} with pairs_of={self.pairs_of!r} needs them"
            raise ValueError(f"d: {self.d} channels are no whole pairs, {why}")
        if self.base <= 1:
            raise ValueError(f"base: {self.base} should be more than 1, so that frequencies fall")
        if self.scaling is not None:
            self._refuse_other_scaling(self._width // 2)

    @property
    def _width(self) -> int:
        """Of the head, or of the part that is turned like one."""
        return self.part if self.part and self.pairs_of == "part" else self.d

    def _refuse_other_scaling(self, pairs: int) -> None:
        """A scaling itself refuses what it can't do, by a ValueError; what is no scaling at all is refused here."""
        why = f"should give ({pairs} frequencies, a magnitude) for (d, base, length), as NTK(2.0) does"
        try:
            given = self.scaling(2 * pairs, self.base, 1)  # type: ignore[misc]
        except (TypeError, AttributeError) as error:
            raise TypeError(f"scaling: {reprlib.repr(self.scaling)} {why}, but says: {error}") from error
        if not fits(given, tuple[np.ndarray, float]) or given[0].shape != (pairs,) or given[0].dtype.kind != "f":
            raise TypeError(f"scaling: {reprlib.repr(self.scaling)} {why}, not {reprlib.repr(given)}")

    def angles(self, m: int) -> tuple[Array, float]:
        """φ_if = ω_f i for the positions 0 … m − 1, (m, pairs) in float64, and the magnitude."""
        if self.scaling is None:
            frequencies, magnitude = rope_frequencies(self._width, self.base), 1.0
        else:
            frequencies, magnitude = self.scaling(self._width, self.base, m)
        if self.part is not None:  # of the part's own pairs, all turn
            frequencies = np.where(np.arange(len(frequencies)) < self.part // 2, frequencies, 0)
        return np.arange(m)[:, None] * frequencies, magnitude

    @property
    def fixed(self) -> bool:
        """Whether a position is turned by the same angles in texts of all lengths, so that turned keys can be kept."""
        return self.scaling is None or getattr(self.scaling, "fixed", False)

    def table(self, length: int, dtype: np.dtype) -> tuple[Array, Array]:
        """cos and sin of the first `length` positions or more, (room, pairs), if angles are `fixed`: it serves many lengths."""
        return _table(self, max(64, 1 << (length - 1).bit_length()), dtype)

    def _refuse_other_widths(self, X: Array) -> None:
        if X.ndim < 2 or X.shape[-1] != self.d or X.dtype.kind != "f":
            raise ValueError(f"X: {X.dtype} {X.shape} should be numbers of the shape (*batch, n, {self.d})")

    def turn(self, X: Array, *, first: NonNegative = 0, length: int) -> tuple[Array, RotatePullback]:
        """Rows of X (*batch, n, d) turned as the positions first, first + 1, … of a text of this length."""
        self._refuse_other_widths(X)
        if not 0 <= first <= length - X.shape[-2]:
            raise ValueError(f"first: {X.shape[-2]} rows from position {first} are not within a text of {length}")
        tables = self.table(length, X.dtype) if self.fixed else _table(self, length, X.dtype)
        cos, sin = (table[first : first + X.shape[-2]] for table in tables)
        return _turn(X, cos, sin, self.layout), RotatePullback(cos, sin, self.layout)

    def earlier(self, K: Array, by: int) -> Array:
        """Turned rows K, turned further as if each had stood `by` positions earlier: R_{t−s} = R_{−s} R_t."""
        self._refuse_other_widths(K)
        angles = -self.angles(by + 1)[0][by:]
        return _turn(K, *_cos_and_sin(angles, 1.0, K.dtype), self.layout)
