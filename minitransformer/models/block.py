"""The transformer block: attention mixes the tokens, a feed-forward network changes each; both are added to what was there.

    pre-norm     X ← X + F(LN(X))        the residual path is clean from input to output: deep stacks train
    post-norm    X ← LN(X + F(X))        the original paper's order

F is attention first, then the feed-forward network. A decoder block has cross-attention between the two.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from minitransformer.attention import MultiHeadAttention, MultiHeadParams
from minitransformer.attention.multi_head import KeysValues
from minitransformer.functional import dropout
from minitransformer.models.feed_forward import FeedForward, FeedForwardParams
from minitransformer.models.norms import Norm, NormParams
from minitransformer.pullback import Layer, Pullback, Tree
from minitransformer.typing import Array, Bool, Float, checked

Order = Literal["pre", "post"]


class PreNormPullback(NamedTuple):
    """Y = X + F(LN(X)): the gradient goes around the layer as it is, and through it; the two add up."""

    norm: Pullback
    layer: Pullback
    dropout: Pullback

    @property
    def A(self) -> Array:  # noqa: N802
        """The attention matrices, if the layer is attention."""
        return self.layer.A

    def __call__(self, dY: Array) -> tuple[Any, ...]:
        dlayer, dN, *dmemory = self.layer(self.dropout(dY))
        dnorm, dX = self.norm(dN)
        return dnorm, dlayer, dY + dX, *dmemory


class PostNormPullback(NamedTuple):
    """Y = LN(X + F(X)): first back through the norm, then around the layer and through it."""

    layer: Pullback
    dropout: Pullback
    norm: Pullback

    @property
    def A(self) -> Array:  # noqa: N802
        """The attention matrices, if the layer is attention."""
        return self.layer.A

    def __call__(self, dY: Array) -> tuple[Any, ...]:
        dnorm, dS = self.norm(dY)
        dlayer, dX, *dmemory = self.layer(self.dropout(dS))
        return dnorm, dlayer, dS + dX, *dmemory


SublayerPullback = PreNormPullback | PostNormPullback


def sublayer(
    order: Order, norm: Norm, norm_params: NormParams, layer: Layer, params: Tree, X: Array, rate: float, rng: Any
) -> tuple[Array, SublayerPullback]:
    """One residual step: X + F(LN(X)) or LN(X + F(X)), with dropout on F. Pullback: dY to (dnorm, dlayer, dX, …)."""
    if order == "pre":
        N, norm_pullback = norm(norm_params, X)
        F, layer_pullback = layer(params, N)
        F, dropped = dropout(F, rate, rng)
        return X + F, PreNormPullback(norm_pullback, layer_pullback, dropped)
    F, layer_pullback = layer(params, X)
    F, dropped = dropout(F, rate, rng)
    Y, norm_pullback = norm(norm_params, X + F)
    return Y, PostNormPullback(layer_pullback, dropped, norm_pullback)


class BlockParams(NamedTuple):
    """Norm and layer of the two steps; a decoder block's third stands between them."""

    attention_norm: NormParams
    attention: MultiHeadParams
    ffn_norm: NormParams
    ffn: FeedForwardParams
    cross_norm: NormParams | None = None
    cross: MultiHeadParams | None = None


class BlockPullback(NamedTuple):
    """Backwards through the two steps. `pullback.attention.A` holds the attention matrices."""

    attention: SublayerPullback
    ffn: SublayerPullback

    def __call__(self, dY: Array) -> tuple[BlockParams, Array]:
        dffn_norm, dffn, dX = self.ffn(dY)
        dattention_norm, dattention, dX = self.attention(dX)
        return BlockParams(dattention_norm, dattention, dffn_norm, dffn), dX


class DecoderBlockPullback(NamedTuple):
    """Backwards through the three steps: dY to (dparams, dX, dmemory)."""

    attention: SublayerPullback
    cross: SublayerPullback
    ffn: SublayerPullback

    def __call__(self, dY: Array) -> tuple[BlockParams, Array, Array]:
        dffn_norm, dffn, dX = self.ffn(dY)
        dcross_norm, dcross, dX, dmemory = self.cross(dX)
        dattention_norm, dattention, dX = self.attention(dX)
        dparams = BlockParams(dattention_norm, dattention, dffn_norm, dffn, dcross_norm, dcross)
        return dparams, dX, dmemory


@dataclass(frozen=True)
class Block:
    """Self-attention and a feed-forward network, each added to its input. Called with causal=True it can't see ahead.

    order     "pre" or "post": where the norm stands
    dropout   rate at the output of each step, used only when a generator is given
    position  an encoding that acts inside self-attention, or None
    source    Lecture notes, encoder block; Aalto 2.1.5; CS224N notes
    cost      O(n D² + n² D) time
    """

    width: int
    heads: int
    hidden: int
    order: Order = "pre"
    norm: str = "layer"
    eps: float = 1e-5
    activation: str = "relu"
    dropout: float = 0.0
    position: Any = None

    def __post_init__(self) -> None:
        if self.order not in ("pre", "post"):
            raise ValueError(f'order: no {self.order!r}; there are "pre" and "post"')
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: {self.dropout} is not in [0, 1)")
        _ = self._attention, self._ffn, self._norm  # each refuses what it can't do

    @property
    def _attention(self) -> MultiHeadAttention:
        return MultiHeadAttention(self.width, self.heads, position=self.position)

    @property
    def _cross(self) -> MultiHeadAttention:
        return MultiHeadAttention(self.width, self.heads)

    @property
    def _ffn(self) -> FeedForward:
        return FeedForward(self.width, self.hidden, self.activation)  # type: ignore[arg-type]

    @property
    def _norm(self) -> Norm:
        return Norm(self.width, self.norm, self.eps)  # type: ignore[arg-type]

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> BlockParams:
        """Parameters of a block without cross-attention."""
        norm = self._norm.init(rng, dtype)
        return BlockParams(norm, self._attention.init(rng, dtype), norm, self._ffn.init(rng, dtype))

    def init_decoder(self, rng: np.random.Generator, dtype: type = np.float32) -> BlockParams:
        """Parameters of a block with cross-attention."""
        params = self.init(rng, dtype)
        return params._replace(cross_norm=self._norm.init(rng, dtype), cross=self._cross.init(rng, dtype))

    def _step(self, norm: NormParams, layer: Layer, params: Tree, X: Array, rng: Any) -> tuple[Array, SublayerPullback]:
        return sublayer(self.order, self._norm, norm, layer, params, X, self.dropout, rng)

    @checked
    def __call__(
        self,
        params: BlockParams,
        X: Float[Array, "*batch n {self.width}"],
        *,
        causal: bool = False,
        mask: Bool[Array, "..."] | None = None,
        rng: np.random.Generator | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], BlockPullback]:
        """Encoder block, or with causal=True the block of a language model. Pullback: dY to (dparams, dX)."""
        attend = partial(self._attention, causal=causal, mask=mask)
        X, attention = self._step(params.attention_norm, attend, params.attention, X, rng)
        X, ffn = self._step(params.ffn_norm, self._ffn, params.ffn, X, rng)
        return X, BlockPullback(attention, ffn)

    @checked
    def decoder(
        self,
        params: BlockParams,
        X: Float[Array, "*batch n {self.width}"],
        memory: Float[Array, "*batch m {self.width}"],
        *,
        memory_mask: Bool[Array, "..."] | None = None,
        rng: np.random.Generator | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], DecoderBlockPullback]:
        """Decoder block: causal self-attention, cross-attention to the encoder's output, feed-forward network.

        raises   ValueError for the parameters of a block without cross-attention
        """
        if params.cross_norm is None or params.cross is None:
            raise ValueError(
                "params: a decoder block has cross-attention, these (made by `init`) have none; see `init_decoder`"
            )
        X, attention = self._step(
            params.attention_norm, partial(self._attention, causal=True), params.attention, X, rng
        )
        look = partial(self._look, memory=memory, mask=memory_mask)
        X, cross = self._step(params.cross_norm, look, params.cross, X, rng)
        X, ffn = self._step(params.ffn_norm, self._ffn, params.ffn, X, rng)
        return X, DecoderBlockPullback(attention, cross, ffn)

    def _look(self, params: MultiHeadParams, X: Array, *, memory: Array, mask: Array | None) -> tuple[Array, Pullback]:
        return self._cross.cross(params, X, memory, mask=mask)

    def decode(self, params: BlockParams, X: Array, past: KeysValues | None) -> tuple[Array, KeysValues]:
        """The block on new tokens only, given the keys and values of the past; returns Y and the longer past."""
        grown: list[KeysValues] = []

        def attend(p: MultiHeadParams, N: Array) -> tuple[Array, None]:
            Y, kv = self._attention.decode(p, N, past)
            grown.append(kv)
            return Y, None

        X, _ = self._step(params.attention_norm, attend, params.attention, X, None)
        X, _ = self._step(params.ffn_norm, self._ffn, params.ffn, X, None)
        return X, grown[0]
