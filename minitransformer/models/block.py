"""The transformer block: attention mixes the tokens, a feed-forward network changes each; both are added to what was there.

    pre-norm     X ← X + F(LN(X))        the residual path is clean from input to output: deep stacks train
    post-norm    X ← LN(X + F(X))        the original paper's order

F is attention first (or another mixer), then the feed-forward network. A decoder block has cross-attention between the two.
"""

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import numpy as np

from minitransformer.attention import Mixer, MultiHeadAttention, Sinks, SoftmaxAttention
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.core import IN_LOOPS, Core
from minitransformer.attention.kernel_attention import FeatureAttention
from minitransformer.attention.linear import DeltaRule
from minitransformer.attention.linear.memory import Memory
from minitransformer.attention.projected import Projected
from minitransformer.attention.selected import AdaptiveSpan
from minitransformer.checks import choose, frozen
from minitransformer.functional import dropout, loops_in
from minitransformer.models.feed_forward import Activation, FeedForward
from minitransformer.models.gated_feed_forward import GATES, Gated, GatedFeedForward
from minitransformer.models.norms import Norm, NormParams, norm_of
from minitransformer.models.subclasses import keeps_up
from minitransformer.positions import OffsetBias, RoPE
from minitransformer.pullback import Layer, Pullback, Tree, of_layer, tree_add
from minitransformer.ranges import Fraction
from minitransformer.registry import OldFieldsRefused
from minitransformer.typing import Array, Bool, Float, checked

Order = Literal["pre", "post"]
FFN = Literal[Activation, Gated, "none"]


def second_half(
    ffn: FFN, width: int, hidden: int | None = None, bias: bool = True
) -> FeedForward | GatedFeedForward | None:
    """What a block does to each token by itself: a plain network with this activation, a gated one, or nothing ("none").

    hidden   4 D if None
    raises   ValueError for an unknown name
    """
    choose("ffn", ffn, FFN)
    hidden = 4 * width if hidden is None else hidden
    if ffn in GATES:
        return GatedFeedForward(width, hidden, ffn, bias)  # type: ignore[arg-type]
    return None if ffn == "none" else FeedForward(width, hidden, ffn, bias)  # type: ignore[arg-type]


class HalfPullback(AroundAttention):
    """F(LN(X)), with dropout: dY to (dnorm, dlayer, dX), and dZ if the layer looked at other rows Z.

    others   1 if the layer looked at other rows, else 0
    before   of the norm of the rows before X, if there were any: they are constants, but the parameters of the norm are not
    """

    norm: Pullback
    layer: Pullback
    dropout: Pullback
    others: int = 0
    before: Pullback | None = None
    inside = "layer"  # if that is attention, A is (*batch, H, n, m)

    def __call__(self, dY: Array) -> tuple[Any, ...]:
        dlayer, dN, *dZ = of_layer(self.layer, self.dropout(dY), self.others)
        dnorm, dX = self.norm(dN)
        if self.before is not None:
            dnorm, dZ = tree_add(dnorm, self.before(*dZ)[0]), []
        return dnorm, dlayer, dX, *dZ


class PreNormPullback(HalfPullback, named=False):
    """Y = X + F(LN(X)): the gradient goes around the half as it is, and through it; the two add up."""

    def __call__(self, dY: Array) -> tuple[Any, ...]:
        dnorm, dlayer, dX, *dZ = super().__call__(dY)
        return dnorm, dlayer, dY + dX, *dZ


class PostNormPullback(AroundAttention):
    """Y = LN(X + F(X)): first back through the norm, then around the layer and through it."""

    layer: Pullback
    dropout: Pullback
    norm: Pullback
    others: int = 0
    inside = "layer"

    def __call__(self, dY: Array) -> tuple[Any, ...]:
        dnorm, dS = self.norm(dY)
        dlayer, dX, *dZ = of_layer(self.layer, self.dropout(dS), self.others)
        return dnorm, dlayer, dS + dX, *dZ


StepPullback = PreNormPullback | PostNormPullback


class BlockParams(NamedTuple):
    """Norm and layer of each step; those of cross-attention stand last, None in a block without."""

    attention_norm: NormParams
    attention: Tree
    ffn_norm: Tree = None
    ffn: Tree = None
    cross_norm: Tree = None
    cross: Tree = None


class BlockPullback(Pullback):
    """Backwards through the steps. `pullback.attention.A` holds the attention matrices."""

    attention: StepPullback
    cross: Any  # a pullback, or None
    ffn: Any

    def __call__(self, dY: Array) -> tuple[Any, ...]:
        dffn_norm, dffn, dX = (None, None, dY) if self.ffn is None else self.ffn(dY)
        dcross_norm, dcross, dX, *dZ = (None, None, dX) if self.cross is None else self.cross(dX)
        dattention_norm, dattention, dX, *_ = self.attention(dX)  # rows before X are constants: what they get ends here
        dparams = BlockParams(dattention_norm, dattention, dffn_norm, dffn, dcross_norm, dcross)
        return dparams, dX, *dZ


@frozen
class Block(OldFieldsRefused):
    """Attention and a feed-forward network, each added to its input. Called with causal=True it can't see ahead.

    attention  what mixes the tokens: multi-head attention around some core, or another mixer (attention/core.py)
    ffn        the feed-forward network, plain or gated; None for a block of the mixer alone
    cross      cross-attention between the two, in the block of a decoder; else None
    order      "pre" or "post": where the norm stands
    norm       "layer", "layer_eps_outside" or "rms", see Norm; with another ε "layer:eps=1e-12"
    dropout    rate at the output of each step, used only when a generator is given
    source     Lecture notes, encoder and decoder block; Aalto 2.1.5; CS224N notes
    cost       O(n D²) time besides attention's own
    """

    attention: Mixer
    ffn: FeedForward | GatedFeedForward | None = None
    cross: MultiHeadAttention | None = None
    order: Order = "pre"
    norm: str = "layer"
    dropout: Fraction = 0.0

    def __post_init__(self) -> None:
        for part in (self.ffn, self.cross):
            if part is not None and part.width != self.width:
                raise ValueError(f"{type(part).__name__}: width {part.width} should be attention's, {self.width}")
        _ = self._norm  # refuses what it can't do

    @classmethod
    def of(
        cls, width: int, heads: int, hidden: int, order: Order = "pre", norm: str = "layer", ffn: FFN = "relu",
        dropout: float = 0.0, *, cross: bool = False,
    ) -> "Block":  # fmt: skip
        """The usual block: dense multi-head attention, then a feed-forward network; with cross-attention or without."""
        attention = MultiHeadAttention(width, heads)
        return cls(attention, second_half(ffn, width, hidden), attention if cross else None, order, norm, dropout)

    @property
    def width(self) -> int:
        """D, the width of the rows."""
        return self.attention.width

    @cached_property
    def _norm(self) -> Norm:
        return norm_of(self.norm, self.width)

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> BlockParams:
        """Parameters of each step that the block has."""
        norm = self._norm.init(rng, dtype)
        params = BlockParams(norm, self.attention.init(rng, dtype))
        if self.ffn is not None:
            params = params._replace(ffn_norm=norm, ffn=self.ffn.init(rng, dtype))
        if self.cross is not None:
            params = params._replace(cross_norm=norm, cross=self.cross.init(rng, dtype))
        return params

    def _half(
        self, norm: NormParams, layer: Layer, params: Tree, X: Array, rng: Any, *, others: int = 0, before: Any = None
    ) -> tuple[Array, HalfPullback]:
        """F(LN(X)), without what goes around it; the layer also looks at LN(before), if there are rows before X."""
        N, norm_pullback = self._norm(norm, X)
        before_pullback = None
        if before is not None:
            before, before_pullback = self._norm(norm, before)
            layer = partial(layer, memory=before)
        F, layer_pullback = layer(params, N)
        F, dropped = dropout(F, self.dropout, rng)
        return F, HalfPullback(norm_pullback, layer_pullback, dropped, others, before_pullback)

    def _step(
        self, norm: NormParams, layer: Layer, params: Tree, X: Array, rng: Any, *, others: int = 0, before: Any = None
    ) -> tuple[Array, StepPullback]:
        """X + F(LN(X)) or LN(X + F(X)). Pullback: dY to (dnorm, dlayer, dX, …)."""
        if self.order == "pre":
            F, half = self._half(norm, layer, params, X, rng, others=others, before=before)
            return X + F, PreNormPullback(*half)
        F, layer_pullback = layer(params, X) if before is None else layer(params, X, memory=before)
        F, dropped = dropout(F, self.dropout, rng)
        Y, norm_pullback = self._norm(norm, X + F)
        return Y, PostNormPullback(layer_pullback, dropped, norm_pullback, others)

    @checked
    def __call__(
        self,
        params: BlockParams,
        X: Float[Array, "*batch n {self.width}"],
        Z: Float[Array, "*batch m {self.width}"] | None = None,
        *,
        causal: bool = False,
        mask: Bool[Array, "..."] | None = None,
        Z_mask: Bool[Array, "..."] | None = None,
        rng: np.random.Generator | None = None,
        before: Float[Array, "*batch b {self.width}"] | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], BlockPullback]:
        """One block. Pullback: dY to (dparams, dX), and dZ in the block of a decoder.

        Z        what cross-attention looks at, the encoder's output
        before   rows that stand before X in the same text: self-attention looks at them, and no gradient goes there
        raises   ValueError for a Z without cross-attention, or the reverse; TypeError for parameters of another form
        """
        if (self.cross is None) != (Z is None):
            has, lacks = ("a Z", "no cross-attention") if self.cross is None else ("cross-attention", "no Z")
            raise ValueError(f"Z: there is {has}, but {lacks}")
        attend = partial(self.attention, causal=causal, mask=mask, rng=rng)
        others = int(before is not None)
        X, attention = self._step(params.attention_norm, attend, params.attention, X, rng, others=others, before=before)
        cross = ffn = None
        if self.cross is not None and Z is not None:
            look = partial(self.cross.cross, Z=Z, mask=Z_mask)
            X, cross = self._step(params.cross_norm, look, params.cross, X, rng, others=1)
        if self.ffn is not None:
            X, ffn = self._step(params.ffn_norm, self.ffn, params.ffn, X, rng)
        return X, BlockPullback(attention, cross, ffn)

    @checked
    def mix(
        self, params: BlockParams, X: Array, *, causal: bool = False, mask: Array | None = None, rng: Any = None
    ) -> tuple[Array, HalfPullback]:
        """The first half by itself, without what goes around it: F(LN(X)), F attention. Pre-norm: X + mix(X) is the step."""
        attend = partial(self.attention, causal=causal, mask=mask, rng=rng)
        return self._half(params.attention_norm, attend, params.attention, X, rng)

    @checked
    def change(self, params: BlockParams, X: Array, *, rng: Any = None) -> tuple[Array, HalfPullback]:
        """The second half by itself: F(LN(X)), F the feed-forward network."""
        if self.ffn is None:
            raise ValueError("ffn: this block is attention alone")
        return self._half(params.ffn_norm, self.ffn, params.ffn, X, rng)

    # ------------------------------------------------- decoding, and which compiled loops can do it

    @property
    def decodes(self) -> bool:
        """Whether its mixer can go on from a state, and no part has a `__call__` that the `step` of its base does not know."""
        core, mixer = getattr(self.attention, "core", None), type(self.attention)
        of_core = core is None or type(core).step is Core.step or keeps_up(type(core), "step", "_last_query", *IN_LOOPS)
        return self.attention.decodes and of_core and keeps_up(mixer, "step", "_go_on") and keeps_up(type(self), "step")

    @cached_property
    def loops_around_core(self) -> bool:
        """Whether loops can do what is around the core: the block is pre-norm, with projections and a feed-forward network."""
        attention = self.attention
        return (
            self.order == "pre"
            and type(self._norm) is Norm
            and self._norm.kind != "layer_eps_outside"
            and self.cross is None
            and type(self.ffn) in (FeedForward, GatedFeedForward)
            and isinstance(attention, Projected)
            and type(attention).step is Projected.step
            and (attention.rotate is None or (type(attention.rotate) is RoPE and attention.rotate.fixed))
        )

    @cached_property
    def one_loop(self) -> bool:
        """Whether one loop can do the whole block on one new token: `loops_around_core`, and its core is one of these.

        Softmax attention without pages and gates, or adaptive spans, with no encoding but a bias; or `Sinks` without an encoding.
        """
        if not (self.loops_around_core and isinstance(self.attention, MultiHeadAttention)):
            return False
        core = self.attention.core
        if type(core) is Sinks:
            return core.rotate is None and core.encoding is None
        if type(core) is AdaptiveSpan or (type(core) is SoftmaxAttention and core.page is None and core.gate is None):
            return core.encoding is None or isinstance(core.encoding, OffsetBias)
        return False

    @cached_property
    def one_loop_with_memory(self) -> bool:
        """Whether one loop may do the whole block: `loops_around_core`, and the core has a memory that loops can read."""
        attention = self.attention
        if not (self.loops_around_core and isinstance(attention, MultiHeadAttention)):
            return False
        steps = FeatureAttention.step, Memory.step, DeltaRule.step
        return (
            type(attention.core).step in steps and attention.core.gate is None and attention._groups == attention.heads
        )

    def by_loops(
        self, params: tuple[BlockParams, ...], X: Array, states: tuple[Any, ...]
    ) -> tuple[Array, Sequence[Any]] | None:
        """One new token through blocks that are all as this one: Y and their longer states; None where no loop can do it."""
        loops = loops_in("one_token") if X.shape[-2] == 1 and self.loops_around_core else None
        if loops is None:
            return None
        done = loops.one_token(self, params, X, states) if self.one_loop and None not in states else None
        return done or loops.around_core(self, params, X, states)

    @checked
    def step(
        self, params: BlockParams, X: Float[Array, "*batch n {self.width}"], state: Any = None
    ) -> tuple[Array, Any]:
        """The causal block on new tokens after those in the state; returns Y and the longer state of its mixer."""
        if done := self.by_loops((params,), X, (state,)):
            return done[0], done[1][0]
        norm, pre = self._norm.value, self.order == "pre"
        F, state = self.attention.step(params.attention, norm(params.attention_norm, X) if pre else X, state)
        X = X + F if pre else norm(params.attention_norm, X + F)
        if self.ffn is None:
            return X, state
        F = self.ffn.value(params.ffn, norm(params.ffn_norm, X) if pre else X)
        return X + F if pre else norm(params.ffn_norm, X + F), state
