"""Softmax attention as a core: any scores, any pattern. Dense attention is the core with none of what follows.

S_ij = scale · ⟨q_i, k_j⟩, or what an encoding of positions makes of it       encoding
S_ij → c tanh(S_ij/c)                                                        cap
only the pairs (i, j) of a pattern                                           pattern
Y = softmax(S) V, and e^b in every denominator                               sink

Two stages stand beside the core, in multi_head.py, and are asked for here: `norm` of queries and keys, and the `gate` of Y.
"""

from typing import Any, Literal, NamedTuple

import numpy as np

from minitransformer.arrays import FEW
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.attend import attend
from minitransformer.attention.cache.keys_values import KeysValues
from minitransformer.attention.cache.pages import Paged, paged_attention
from minitransformer.attention.cache.recent import Kept, Recent
from minitransformer.attention.core import Core, NothingLearnedPullback, refuse_causal
from minitransformer.attention.dot_product import attend_to_buffer
from minitransformer.attention.sink import LearnedSink
from minitransformer.attention.sparse.pattern import Pattern
from minitransformer.checks import frozen
from minitransformer.positions.encoding import Encoding, OffsetBias, bias_for
from minitransformer.pullback import NoParams, Pullback, Tree
from minitransformer.ranges import PositiveNumber
from minitransformer.typing import Array

EVERY_PAIR = Pattern()  # the rule of dense attention: O(n²), causal or not, and all positions are kept
PIECE = 64  # tokens that `_read` takes at a time, after a text of which most is forgotten


class SinkParams(NamedTuple):
    """b (H,); and the parameters of an encoding of positions."""

    sink: Array
    encoding: Tree = NoParams()


class SinkCorePullback(AroundAttention):
    """Attention gives dsink last: it goes among the parameters if the sink is learned, and is dropped if it is a given number."""

    attention: Pullback
    learned: bool

    def __call__(self, dY: Array) -> tuple[Tree, Array, Array, Array]:
        dparams, dQ, dK, dV, dsink = self.attention(dY)
        return SinkParams(dsink, dparams) if self.learned else dparams, dQ, dK, dV


def _as_the_pattern(name: str) -> Any:
    """A property of the core that its pattern decides."""
    return property(lambda core: getattr(core.pattern or EVERY_PAIR, name), doc=f"{name} of the pattern.")


@frozen
class SoftmaxAttention(Core):
    """Every query takes an average of the values that its pattern allows, weighted by softmax of its scores.

    pattern   which pairs (sparse/pattern.py); None for all
    encoding  of positions, which changes the scores (positions/encoding.py); None for scale · ⟨q_i, k_j⟩.
              A model puts its own there: LanguageModel(attention="window", positions="t5")
    page      positions in a page, if decoding keeps keys and values in pages (pages.py); None for one buffer
    sink      b, a score that takes weight and has no value (sink.py): one number; or `LearnedSink`, one for each head,
              which is sink=learned in a text; None for none
    cap       c of S → c tanh(S/c), before anything is hidden (soft_cap.py)
    norm      "rms": queries and keys have a root mean square of one, times a gain, before they are turned (multi_head.py)
    gate      "head" or "element": Y is opened by σ(X W_g), a number for each head, or for each of its channels (output_gate.py)
    cost      O(n² d) for each head; with a pattern, O(pairs of its tiles · d), but O(n²) memory with scores that are formed
    """

    pattern: Pattern | None = None
    encoding: Encoding | None = None
    page: int | None = None
    sink: LearnedSink | float | None = None
    cap: PositiveNumber | None = None
    norm: Literal["rms"] | None = None
    gate: Literal["head", "element"] | None = None

    groups = True

    def __post_init__(self) -> None:
        if self.page is not None and self.pattern is not None:
            raise ValueError(f"page: {type(self.pattern).__name__} has a cache of its own")
        if self.pattern is not None:
            self.pattern.must_be_hashable()

    @property
    def stage(self) -> str:  # type: ignore[override]
        """With a pattern, "pattern"; dense attention replaces no stage, for the others are compared with it."""
        return "none" if self.pattern is None else "pattern"

    cost = _as_the_pattern("cost")
    causal = _as_the_pattern("causal")
    prefix = _as_the_pattern("prefix")

    def refuse(self, *, causal: bool) -> None:
        """Raise ValueError for a `causal` that it can't have; the error names the pattern, if there is one."""
        refuse_causal(self.pattern or self, causal)

    @property
    def remembers(self) -> str:  # type: ignore[override]
        """All keys and values, or those that its pattern can still see."""
        if self._kept is None:
            return "keys and values" if self.page is None else f"keys and values, in pages of {self.page}"
        first, last = self._kept
        if (first, last) == (0, 1):
            return "the last key and its value"
        before = f"the first {first} and " if first else ""
        return f"{before}the last {last} keys and values"

    @property
    def _kept(self) -> Kept | None:
        """How many of the first and of the last positions are enough to remember; None if all are needed.

        With an encoding all are needed, since kept keys would have other offsets than in the text. A bias beside a pattern that
        sees the last keys alone is the exception: those are neighbours, so their offsets are known.
        """
        kept = (self.pattern or EVERY_PAIR).kept
        near = kept is not None and kept.first == 0 and isinstance(self.encoding, OffsetBias)
        return kept if self.encoding is None or near else None

    @property
    def encoding_at(self) -> str:  # type: ignore[override]
        """Where the encoding's parameters are: beside a learned sink, or alone."""
        return "encoding." if isinstance(self.sink, LearnedSink) else ""

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> Tree:
        """The parameters of the encoding, and b of a sink that is learned."""
        own = super().init(rng, dtype)
        return SinkParams(self.sink.init(rng, dtype), own) if isinstance(self.sink, LearnedSink) else own

    def _options(self, params: Tree, Q: Array) -> tuple[Tree, dict[str, Any]]:
        """The parameters of the encoding; and as options of attention, sink and cap where there are such."""
        options: dict[str, Any] = {} if self.cap is None else {"cap": self.cap}
        if isinstance(self.sink, LearnedSink):
            return params.encoding, options | {"sink": params.sink}
        return params, options if self.sink is None else options | {"sink": np.array(self.sink, Q.dtype)}

    def beside_scores(self, params: Tree, n: int, m: int, Q: Array) -> tuple[Array | None, dict[str, Any]]:
        """The bias of an encoding, for n queries that are the last of m positions, (…, n + m − 1); and sink and cap."""
        own, options = self._options(params, Q)
        if self.encoding is None:
            return None, options
        return bias_for(Q, self.encoding, own, n, m, causal=True)[0], options

    def __call__(
        self, params: Tree, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = False,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, Pullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV)."""
        params, options = self._options(params, Q)
        options |= {"causal": causal, "mask": mask}
        if self.encoding is None and self.pattern is not None:
            Y, found = self.pattern.attend(Q, K, V, **options)
            attention: Pullback = NothingLearnedPullback(found)
        else:
            pattern = None if self.pattern is None else self.pattern(Q.shape[-2], K.shape[-2], causal=causal)
            Y, attention = attend(self.encoding, params, Q, K, V, pattern=pattern, **options)
        return Y, attention if self.sink is None else SinkCorePullback(attention, isinstance(self.sink, LearnedSink))

    def step(self, params: Tree, Q: Array, K: Array, V: Array, *streams: Array, state: Any = None) -> tuple[Array, Any]:
        """As any core with keys and values; for a few tokens nothing is copied, and only keys that a pattern sees are read."""
        n, kept = Q.shape[-2], self._kept
        if self.page is not None:
            state = Paged.of(K, V, self.page) if state is None else state.extended(K, V)
            if n <= FEW and self.encoding is None:
                return paged_attention(Q, state, **self._options(params, Q)[1]), state
            return self(params, Q, state.keys, state.values, causal=True)[0], state
        if kept is not None and n > PIECE:
            return self._read(params, Q, K, V, state, kept)
        if kept is None and (n > FEW or not (self.encoding is None or isinstance(self.encoding, OffsetBias))):
            return super().step(params, Q, K, V, state=state)
        if state is not None:
            state = state.extended(K, V)
        elif kept is None:
            state = KeysValues.of(K, V)
        else:
            state = Recent.of(K[..., :0, :], V[..., :0, :], kept).extended(K, V)
        m, K, V, mask = state.end, state.K, state.V, None
        bias, options = self.beside_scores(params, n, m, Q)
        if self.pattern is not None:
            seen = self.pattern.last_rows(n, m, state.length)
            if not isinstance(seen, slice):
                mask = seen
            elif seen.start:
                K, V, m = K[..., seen, :], V[..., seen, :], m - seen.start
                bias = None if bias is None else bias[..., seen]
        return attend_to_buffer(Q, K, V, m, bias, mask, self.scale, **options), state

    def _read(self, params: Tree, Q: Array, K: Array, V: Array, state: Any, kept: Kept) -> tuple[Array, Any]:
        """`step` of a long text: all at once if nothing stands before it, else piece by piece, so that the state stays small."""
        if state is None:
            Y, _ = self(params, Q, K, V, causal=True)
            return Y, Recent.of(K, V, kept)
        found = []
        for piece in range(0, Q.shape[-2], PIECE):
            Y, state = self.step(params, *(X[..., piece : piece + PIECE, :] for X in (Q, K, V)), state=state)
            found.append(Y)
        return np.concatenate(found, -2), state


def softmax_attention(
    heads: int, page: int | None = None, sink: Literal["learned"] | float | None = None, cap: float | None = None,
    norm: Literal["rms"] | None = None, gate: Literal["head", "element"] | None = None,
) -> SoftmaxAttention:  # fmt: skip
    """The core that "softmax:sink=learned,cap=50" names in a model with this many heads: a learned sink has a number b for each.

    raises   ValueError for any word but "learned"
    """
    if isinstance(sink, str) and sink != "learned":
        raise ValueError(f"sink: no {sink!r}; it is 'learned', or a number")
    b = LearnedSink(heads) if isinstance(sink, str) else sink
    return SoftmaxAttention(page=page, sink=b, cap=cap, norm=norm, gate=gate)
