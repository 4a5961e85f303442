"""Softmax attention as a core: any scores, any pattern. Dense attention is the core with neither.

S_ij = scale · ⟨q_i, k_j⟩, or what an encoding of positions makes of it       encoding
only the pairs (i, j) of a pattern                                           pattern
Y = softmax(S) V
"""

from typing import Any

import numpy as np

from minitransformer.arrays import FEW
from minitransformer.attention.attend import attend
from minitransformer.attention.cache.keys_values import KeysValues
from minitransformer.attention.cache.pages import Paged, paged_attention
from minitransformer.attention.cache.recent import Kept, Recent
from minitransformer.attention.core import Core
from minitransformer.attention.dot_product import attend_to_buffer
from minitransformer.attention.sparse.pattern import Pattern
from minitransformer.checks import frozen
from minitransformer.pullback import Pullback, Tree
from minitransformer.typing import Array

PIECE = 64  # of a text that is read after another of which most is forgotten


@frozen
class SoftmaxAttention(Core):
    """Every query takes an average of the values, weighted by softmax of its scores; of those that its pattern allows.

    pattern   which pairs (sparse/pattern.py); None for all
    encoding  of positions, which changes the scores (positions/encoding.py); None for scale · ⟨q_i, k_j⟩.
              A model puts its own there: LanguageModel(attention="window", positions="t5")
    page      positions in a page, if decoding keeps keys and values in pages (pages.py); None for one buffer
    cost      O(n² d) for each head; with a pattern, O(pairs of its tiles · d), but O(n²) memory with scores that are formed
    """

    pattern: Pattern | None = None
    encoding: Any = None
    page: int | None = None

    groups = True

    def __post_init__(self) -> None:
        if self.page is not None and self.pattern is not None:
            raise ValueError(f"page: {type(self.pattern).__name__} has a cache of its own")

    @property
    def cost(self) -> str:  # type: ignore[override]
        """That of its pattern."""
        return "O(n²)" if self.pattern is None else self.pattern.cost

    @property
    def causal(self) -> str:  # type: ignore[override]
        """Whether it can be causal is up to its pattern."""
        return "either" if self.pattern is None else self.pattern.causal

    @property
    def prefix(self) -> int:
        """How many tokens its pattern wants in front of the text."""
        return 0 if self.pattern is None else self.pattern.prefix

    @property
    def remembers(self) -> str:  # type: ignore[override]
        """All keys and values, or those that its pattern can still see."""
        if self._kept is None:
            return "keys and values" if self.page is None else f"keys and values, in pages of {self.page}"
        first, last = self._kept
        return f"{f'the first {first} and ' * (first > 0)}the last {last} keys and values"

    @property
    def _kept(self) -> Kept | None:
        """What can be seen again; None for everything, also where the scores need to know how far away it stands."""
        kept = None if self.pattern is None else self.pattern.kept
        near = kept is not None and kept.first == 0 and hasattr(self.encoding, "bias")
        return kept if self.encoding is None or near else None

    def __call__(
        self,
        params: Tree,
        Q: Array,
        K: Array,
        V: Array,
        *streams: Array,
        causal: bool = False,
        mask: Array | None = None,
        rng: Any = None,
    ) -> tuple[Array, Pullback]:
        """Pullback: dY to (dparams, dQ, dK, dV)."""
        pattern = None if self.pattern is None else self.pattern(Q.shape[-2], K.shape[-2], causal=causal)
        return attend(self.encoding, params, Q, K, V, causal=causal, mask=mask, pattern=pattern)

    def step(self, params: Tree, Q: Array, K: Array, V: Array, *streams: Array, state: Any = None) -> tuple[Array, Any]:
        """As any core with keys and values; of a few tokens without a copy, and with a pattern only what it sees is read."""
        n, kept = Q.shape[-2], self._kept
        if self.page is not None:
            state = Paged.of(K, V, self.page) if state is None else state.extended(K, V)
            if n <= FEW and self.encoding is None:
                return paged_attention(Q, state), state
            return self(params, Q, state.keys, state.values, causal=True)[0], state
        if kept is not None and n > PIECE:
            return self._read(params, Q, K, V, state, kept)
        if kept is None and (n > FEW or not (self.encoding is None or hasattr(self.encoding, "bias"))):
            return super().step(params, Q, K, V, state=state)
        if state is not None:
            state = state.extended(K, V)
        elif kept is None:
            state = KeysValues.of(K, V)
        else:
            state = Recent.of(K[..., :0, :], V[..., :0, :], kept).extended(K, V)
        m, j, bias, mask = state.length, np.arange(state.length), None, None
        if kept is not None:
            m, j = state.end, state.positions
        if self.encoding is not None:
            bias = self.encoding.bias(params, n, m, causal=True)[0].astype(Q.dtype, copy=False)
        if self.pattern is not None:
            mask = self.pattern.sees(j[m - n :, None], j[None], state.length, causal=True)
        return attend_to_buffer(Q, state.K, state.V, m, bias, mask, self.scale), state

    def _read(self, params: Tree, Q: Array, K: Array, V: Array, state: Any, kept: Kept) -> tuple[Array, Any]:
        """`step` of a text: as a whole if nothing stands before it, else piece by piece, since the rows are no positions."""
        if state is None:
            Y, _ = self(params, Q, K, V, causal=True)
            return Y, Recent.of(K, V, kept)
        said = []
        for piece in range(0, Q.shape[-2], PIECE):
            Y, state = self.step(params, *(X[..., piece : piece + PIECE, :] for X in (Q, K, V)), state=state)
            said.append(Y)
        return np.concatenate(said, -2), state
