"""Multi-head attention: project, split into heads, turn, attend in each, combine.

    head_h = Attention(X W_q,h, Z W_k,h, Z W_v,h),      Y = [head_1 … head_H] W_o + b_o

Two stages may be added, if the core asks for them: queries and keys are normalised before they are turned, q ← g ⊙ q / rms(q),
so that |S| ≤ √d max |g_q g_k| whatever the weights are; and head_h is opened by a gate (output_gate.py). The norm is that of
Henry et al. 2020, with a gain for each channel, as in Qwen3; OLMo 2 normalises all heads of a token together.

The H small projections are the columns of one large one. With Z = X it is self-attention, with Z from elsewhere
(the encoder's output) it is cross-attention. The core says what "Attention" is (core.py).
"""

from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import refuse_indivisible, scale_for, uniform
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.core import Core
from minitransformer.attention.output_gate import OutputGatePullback, output_gate
from minitransformer.attention.projected import Projected, Projection
from minitransformer.attention.softmax import SoftmaxAttention
from minitransformer.checks import frozen
from minitransformer.functional import LinearPullback, linear, rms_norm
from minitransformer.gather_scatter import for_each_head, merge_heads, split_heads, sum_over_heads
from minitransformer.pullback import NoParams, Pullback, Tree, tree_leaves
from minitransformer.ranges import so_many
from minitransformer.typing import Array, Bool, Float, checked

DENSE = SoftmaxAttention()


class ProjectionParams(NamedTuple):
    """Y = X W + b; without b in a model without biases."""

    W: Array
    b: Array | None = None


class Gains(NamedTuple):
    """g_q and g_k, (d,): the factor of each channel of a normalised query and key, the same in all heads."""

    q: Array
    k: Array


class MultiHeadParams(NamedTuple):
    """Projections (D, H·d), output (H·dv, D); biases are None in a model without them.

    With G groups of heads, W_k and W_v are (D, G·d). Of a core with `key_heads`, W_q and W_k are (D, key_heads·d). Where queries
    are the keys, W_k and b_k are None; where there are no queries, W_q and b_q too.
    core      what the core has to learn, with the positions in its scores
    streams   what else is projected from X for it, by name, (D, H·w); and for its gate, if it has one
    gains     of queries and keys that are normalised
    """

    W_q: Array | None
    W_k: Array | None
    W_v: Array
    W_o: Array
    b_q: Array | None = None
    b_k: Array | None = None
    b_v: Array | None = None
    b_o: Array | None = None
    core: Tree = NoParams()
    streams: dict[str, ProjectionParams] | None = None
    gains: Gains | None = None

    @property
    def optional(self) -> tuple[str, ...]:
        """Parts that may be missing: some models have biases, but none of the keys."""
        return "b_q", "b_k", "b_v", "b_o"


class HeadsPullback(Pullback):
    """One projection, split into heads, perhaps normalised and turned: X W + b (*batch, H, n, d). Back to (dX, dW, db, dgain)."""

    projection: LinearPullback
    heads: int
    turn: Pullback | None = None
    norm: Pullback | None = None

    def __call__(self, dheads: Array) -> tuple[Array, Array, Array | None, Array | None]:
        dheads = sum_over_heads(dheads, (*dheads.shape[:-3], self.heads, *dheads.shape[-2:]))
        if self.turn is not None:
            dheads = self.turn(dheads)
        dheads, dgain = (dheads, None) if self.norm is None else self.norm(dheads)
        dX, dW, *db = self.projection(merge_heads(dheads))
        return dX, dW, db[0] if db else None, dgain


class MultiHeadPullback(AroundAttention):
    """Backwards: combine, attend, project. X reaches the output through the queries, Z through keys and values.

    If X is part of Z, as in self-attention, it gets the sum of both.
    heads    H, of values
    before   rows of Z in front of those of X; None if Z is another text
    memory   whether a memory was given, even one without rows
    """

    q: HeadsPullback | None
    k: HeadsPullback | None
    v: HeadsPullback
    streams: dict[str, HeadsPullback]
    core: Pullback
    o: LinearPullback
    heads: int
    before: int | None = None
    memory: bool = False
    gate: OutputGatePullback | None = None
    inside = "core"  # A is (*batch, H, n, m)

    def __call__(self, dY: Array) -> tuple[Any, ...]:
        dheads, dW_o, *db_o = self.o(dY)
        dheads, dgate = split_heads(dheads, self.heads), ()
        if self.gate is not None:
            dheads, *dgate = self.gate(dheads)  # type: ignore[assignment]
        dcore, dQ, dK, dV, *dstreams = self._counted(self.core(dheads))
        dZ, dW_v, db_v, _ = self.v(dV)
        dX = dW_q = db_q = dg_q = dW_k = db_k = dg_k = None
        if self.k is None:
            dQ = dQ + dK
        else:
            dZ_k, dW_k, db_k, dg_k = self.k(dK)
            dZ = dZ_k + dZ
        if self.q is None:
            dX = np.zeros_like(dZ[..., self.before :, :])
        else:
            dX, dW_q, db_q, dg_q = self.q(dQ)
        streams: dict[str, ProjectionParams] = {}
        for (name, stream), d in zip(self.streams.items(), (*dstreams, *dgate), strict=True):
            dX_stream, dW, db, _ = stream(d)
            streams[name] = ProjectionParams(dW, db)
            dX = dX + dX_stream
        biases = db_q, db_k, db_v, db_o[0] if db_o else None
        gains = None if dg_q is None or dg_k is None else Gains(dg_q, dg_k)
        dparams = MultiHeadParams(dW_q, dW_k, dW_v, dW_o, *biases, dcore, streams or None, gains)
        if self.before is None:
            return dparams, dX, dZ
        dX = dX + dZ[..., self.before :, :]
        return (dparams, dX, dZ[..., : self.before, :]) if self.memory else (dparams, dX)

    def _counted(self, found: Any) -> tuple[Any, ...]:
        """The gradients that the core's pullback has given, if there are as many as the core has arguments."""
        names = "params", "Q", "K", "V", *(name for name in self.streams if self.gate is None or name != "gate")
        if isinstance(found, (tuple, list)) and len(found) == len(names):
            return tuple(found)
        count = len(found) if isinstance(found, (tuple, list)) else type(found).__name__
        raise ValueError(
            f"{type(self.core).__name__}: should give {len(names)} gradients, of {', '.join(names)}, and gives {count}; "
            "mt.check_attention says more"
        )


def _as_the_core(name: str) -> Any:
    """A property of the layer that its core decides: what `Part` says of it."""
    return property(lambda self: getattr(self.core, name), doc=f"{name} of the core.")


def _paths_in_the_core(name: str) -> Any:
    """A property of the layer: paths to parameters of its core."""
    return property(lambda self: tuple("core." + path for path in getattr(self.core, name)), doc=f"{name} of the core.")


@frozen
class MultiHeadAttention(Projected):
    """H attentions side by side, each of width d. With d = D/H, the usual one, they cost together what one of width D costs.

    width      D, the width of the rows of X
    heads      H
    bias       whether the projections have one
    core       what happens in each head (core.py)
    rotate     an encoding that turns queries and keys before the core sees them (positions/rope.py); None for none
    groups     G, heads of keys and values; neighbouring heads share them. H by default; 1 is multi-query attention
    head_width d, `head_dim` in published configs; D/H by default. Whatever H d is, W_q is (D, H d) and W_o (H d, D)
    source     Lecture notes, multi-head; Aalto 2.1.4; CS224N notes (H divides the width, not the output: E72).
               Fewer keys than queries: Shazeer 2019 (one), Ainslie et al. 2023 (groups)
    cost       O(n D H d) time besides the core's; 2 (H + G) D d parameters, and (H + 2 G) d + D more with bias: if G = H and
               d = D/H that is 4 D² + 4 D, whatever H is
    raises     ValueError if D is not divisible by H and no d is given, or H by G; for a core, or a rotation, of other heads
    """

    width: int
    heads: int
    bias: bool = True
    core: Core = DENSE
    rotate: Any = None
    groups: int | None = None
    head_width: int | None = None

    def __post_init__(self) -> None:
        if self.head_width is None:
            refuse_indivisible(self.width, self.heads)
        if self.groups is not None and self.heads % self.groups:
            raise ValueError(f"groups: {so_many(self.heads, 'head')} can't be divided into {self.groups} groups")
        for rotate in (self.rotate, self.core.rotate):
            if rotate is not None and (isinstance(rotate, type) or not hasattr(rotate, "turn")):
                raise TypeError(f"rotate: {rotate!r} should turn heads, as RoPE(d={self.d}) does")
        if getattr(self.rotate, "d", self.d) != self.d:
            raise ValueError(f"rotate: {type(self.rotate).__name__} turns heads of width {self.rotate.d}, not {self.d}")
        for part in (self.core, self.core.encoding, self.core.rotate):
            if (heads := getattr(part, "heads", self.heads)) != self.heads:
                raise ValueError(f"core: {type(part).__name__} is for {so_many(heads, 'head')}, not {self.heads}")
            if (d := getattr(part, "d", self.d)) != self.d:
                raise ValueError(f"core: {type(part).__name__} is for heads of width {d}, not {self.d}")
        if self.core.queries_are_keys and self._groups != self.heads:
            raise ValueError(f"groups: in {type(self.core).__name__} queries are the keys, so both have as many heads")
        if self.core.key_heads is not None and self._groups != self.heads:
            raise ValueError(
                f"groups: {type(self.core).__name__} has {so_many(self.core.key_heads, 'head')} of keys of its own"
            )

    @property
    def d(self) -> int:
        """The width of a head."""
        return self.width // self.heads if self.head_width is None else self.head_width

    @property
    def _query_heads(self) -> int:
        return self.heads if self.core.key_heads is None else self.core.key_heads

    @property
    def _key_heads(self) -> int:
        return self._groups if self.core.key_heads is None else self.core.key_heads

    @property
    def _groups(self) -> int:
        return self.heads if self.groups is None else self.groups

    def _streams(self, core: Core) -> dict[str, int]:
        """What a core wants besides queries, keys and values, with their widths; last, what opens the gate."""
        if core.gate is None:
            return core.streams
        return {**core.streams, "gate": 1 if core.gate == "head" else self.d}

    causal = _as_the_core("causal")
    looks_ahead = _as_the_core("looks_ahead")
    prefix = _as_the_core("prefix")
    moves = _as_the_core("moves")
    adds_loss = _as_the_core("adds_loss")
    shared = _paths_in_the_core("shared")
    untrained = _paths_in_the_core("untrained")
    apart = _paths_in_the_core("apart")

    @property
    def decodes(self) -> bool:
        """Whether the core can go on from a state, and a longer text turns the same keys by the same angles."""
        return self.core.decodes and (self.rotate is None or self.rotate.fixed)

    def refuse(self, *, causal: bool) -> None:
        """Raise ValueError for causal=True if the core can't be causal, and for causal=False if it always is."""
        self.core.refuse(causal=causal)

    def observe(self, pullback: Pullback) -> Tree:
        """What the core's `after_step` needs to know of a forward pass."""
        return self.core.observe(pullback.core)

    def after_step(self, params: MultiHeadParams, observed: Tree, rng: np.random.Generator) -> MultiHeadParams:
        """The parameters after an optimiser's step; the core may move its own."""
        return params._replace(core=self.core.after_step(params.core, observed, rng))

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> MultiHeadParams:
        """Projections uniform on ±√(3/rows of W), which keeps the variance of a row; biases zero."""
        D, d = self.width, self.d
        queries, keys, values = (heads * d for heads in (self._query_heads, self._key_heads, self._groups))

        def weights(columns: int, rows: int = D) -> Array:
            return uniform(rng, (rows, columns), dtype)

        def zeros(columns: int) -> Array | None:
            return np.zeros(columns, dtype) if self.bias else None

        W_q, b_q = (weights(queries), zeros(queries)) if self.core.queries else (None, None)
        W_k, b_k = (None, None) if self.core.queries_are_keys else (weights(keys), zeros(keys))
        W_v, W_o = weights(values), weights(D, self.heads * d)
        params = MultiHeadParams(W_q, W_k, W_v, W_o, b_q, b_k, zeros(values), zeros(D))
        if self.core.scale is not None and self.core.scale > scale_for(d):
            # scores that are not divided by √d: W_q starts as much smaller
            params = params._replace(W_q=W_q * dtype(scale_for(d) / self.core.scale))
        streams = {
            name: ProjectionParams(weights(self.heads * w), zeros(self.heads * w))
            for name, w in self._streams(self.core).items()
            if name not in self.core.starts_as
        }
        streams |= {name: self._copy(params, of) for name, of in self.core.starts_as.items()}
        gains = None if self.core.norm is None else Gains(np.ones(d, dtype), np.ones(d, dtype))
        return params._replace(core=self.core.init(rng, dtype), streams=streams or None, gains=gains)

    def _copy(self, params: MultiHeadParams, of: str) -> ProjectionParams:
        """A projection of its own, the same as that of the queries, keys or values; of a group, for each of its heads."""

        def each(W: Array | None) -> Array | None:
            if W is None:
                return None
            groups = W.reshape(*W.shape[:-1], -1, self.d)
            return np.repeat(groups, self.heads // groups.shape[-2], -2).reshape(*W.shape[:-1], -1)

        return ProjectionParams(each(getattr(params, f"W_{of}")), each(getattr(params, f"b_{of}")))  # type: ignore[arg-type]

    @checked
    def __call__(
        self,
        params: MultiHeadParams,
        X: Float[Array, "*batch n {self.width}"],
        *,
        causal: bool = False,
        mask: Bool[Array, "..."] | None = None,
        rng: np.random.Generator | None = None,
        memory: Float[Array, "*batch before {self.width}"] | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], MultiHeadPullback]:
        """Self-attention. Pullback: dY to (dparams, dX), and dmemory if there is a memory.

        mask     True where query i sees key j: (n, m), or with all axes, (*batch, H, n, m), where 1 stands for "all"
        memory   tokens before X that only give keys and values, which come from [memory; X]; queries come from X alone
        """
        if memory is not None and self.core.queries_are_keys:
            raise ValueError(f"memory: in {type(self.core).__name__} queries are the keys, and a memory has no queries")
        Z = X if memory is None else np.concatenate([memory, X], -2)
        Y, pullback = self._attend(self.core, self.rotate, params, X, Z, causal=causal, mask=mask, rng=rng)
        return Y, pullback._replace(before=Z.shape[-2] - X.shape[-2], memory=memory is not None)

    @checked
    def cross(
        self,
        params: MultiHeadParams,
        X: Float[Array, "*batch n {self.width}"],
        Z: Float[Array, "*batch m {self.width}"],
        *,
        causal: bool = False,
        mask: Bool[Array, "..."] | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], MultiHeadPullback]:
        """Cross-attention: queries from X, keys and values from Z; no positions. Pullback: dY to (dparams, dX, dZ).

        softmax(X W_q (Z W_k)ᵀ/√d) Z W_v, dense whatever the core is; the Lecture notes transpose the wrong factor (E31).
        """
        if params.streams is not None or params.gains is not None or tree_leaves(params.core):
            raise ValueError(
                f"cross: {type(self.core).__name__} has parameters or norms that cross-attention, which is dense, leaves out"
            )
        return self._attend(DENSE, None, params, X, Z, causal=causal, mask=mask)

    def _project(
        self, W: Array, b: Array | None, X: Array, heads: int, *, gain: Array | None = None, rotate: Any = None,
        first: int = 0, length: int = 0,
    ) -> tuple[Array, HeadsPullback]:  # fmt: skip
        """X W + b in heads, normalised if there is a gain, and turned as the positions first, first + 1, … of such a text."""
        Y, projection = linear(X, W, b)
        Y, norm, turn = split_heads(Y, heads), None, None
        if gain is not None:
            Y, norm = rms_norm(Y, gain)
        if rotate is not None:
            Y, turn = rotate.turn(Y, first=first, length=length)
        return Y, HeadsPullback(projection, heads, turn, norm=norm)

    def _for_core(self, core: Core, K: Array) -> Array:
        """Keys or values as the core takes them: repeated, if it knows no groups."""
        own = core.groups or core.key_heads is not None
        return K if own else for_each_head(K, (*K.shape[:-3], self.heads))

    def _attend(
        self, core: Core, rotate: Any, params: MultiHeadParams, X: Array, Z: Array, *, causal: bool, mask: Array | None,
        rng: Any = None,
    ) -> tuple[Array, MultiHeadPullback]:  # fmt: skip
        """Project, turn, attend in each head, combine. The n rows of X stand at the last of the m positions of Z."""
        if mask is not None and 2 < mask.ndim <= X.ndim:  # of each sample, or of each head?
            raise ValueError(
                f"mask: shape {mask.shape} should have the axes (n, m), for all, or (batch, heads, n, m): mask[:, None] if there "
                "is one for each sample, mask[None] if for each head"
            )
        n, m = X.shape[-2], Z.shape[-2]
        g_q, g_k = (None, None) if params.gains is None else params.gains
        V, v = self._project(params.W_v, params.b_v, Z, self._groups)
        V = self._for_core(core, V)
        Q, q = V[..., m - n :, :], None
        if params.W_q is not None:
            turn = {"rotate": rotate, "first": m - n, "length": m}
            Q, q = self._project(params.W_q, params.b_q, X, self._query_heads, gain=g_q, **turn)
        K, k = Q, None
        if params.W_k is not None:
            K, k = self._project(params.W_k, params.b_k, Z, self._key_heads, gain=g_k, rotate=rotate, length=m)
            K = self._for_core(core, K)
        own = params.streams or {}
        streams = {name: self._project(own[name].W, own[name].b, X, self.heads) for name in self._streams(core)}
        arrays, gate = [stream for stream, _ in streams.values()], None
        heads, attention = core(params.core, Q, K, V, *arrays[: len(core.streams)], causal=causal, mask=mask, rng=rng)
        if core.gate is not None:
            heads, gate = output_gate(heads, arrays[-1])
        Y, o = linear(merge_heads(heads), params.W_o, params.b_o)
        stream_heads = {name: s for name, (_, s) in streams.items()}
        return Y, MultiHeadPullback(q, k, v, stream_heads, attention, o, self.heads, gate=gate)

    def projections(self, params: MultiHeadParams) -> list[Projection]:
        """How a step projects X: to values, then to queries and to keys where there are such, then to the streams."""
        d, turned, own = self.d, self.rotate is not None, params.streams or {}
        g_q, g_k = (None, None) if params.gains is None else params.gains
        found = [Projection(params.W_v, params.b_v, self._groups, d)]
        if params.W_q is not None:
            found.append(Projection(params.W_q, params.b_q, self._query_heads, d, g_q, turned))
        if params.W_k is not None:
            found.append(Projection(params.W_k, params.b_k, self._key_heads, d, g_k, turned))
        widths = self._streams(self.core)
        return found + [Projection(own[name].W, own[name].b, self.heads, w) for name, w in widths.items()]

    def _output(self, params: MultiHeadParams) -> tuple[Array, Array | None]:
        return params.W_o, params.b_o

    @property
    def mixed(self) -> int:
        """H d, the heads side by side."""
        return self.heads * self.d

    def _go_on(self, params: MultiHeadParams, arrays: list[Array], state: Any) -> tuple[Array, Any]:
        """Y of the heads for new tokens, from the arrays that they were projected to; and the longer state."""
        V, *others = arrays
        Q = V if params.W_q is None else others.pop(0)
        K = Q if params.W_k is None else others.pop(0)
        K, V = (self._for_core(self.core, M) for M in (K, V))
        Y, state = self.core.step(params.core, Q, K, V, *others[: len(self.core.streams)], state=state)
        return Y if self.core.gate is None else output_gate(Y, others[-1])[0], state
