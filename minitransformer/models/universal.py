"""The Universal Transformer: one block, over and over, and every token may stop when it has thought long enough.

    A^t = LN(Z^t + SelfAttention(Z^t)),     Z^t = H^{t−1} + P^t                     t = 1 … T
    H^t = LN(A^t + Transition(A^t))
    P^t[i, 2f] = sin ω_f i + sin ω_f t,     P^t[i, 2f+1] = cos ω_f i + cos ω_f t     position, and number of the step

With adaptive computation time, token i halts at its step N_i, and what it says is an average of its states:

    p^t = σ(⟨z^t, w⟩ + b)                  N = the first step at which Σ_{t ≤ N} p^t > 1 − ε, T at the latest
    w^t = p^t  for t < N,   w^N = R = 1 − Σ_{t < N} p^t,   0 after it             the weights sum to one
    Y = Σ_t w^t H^t                        accumulated, as Graves has it
    Y^t = w^t H^t + (1 − w^t) Y^{t−1}      basic, as the authors' program has it
    loss + λ · mean(N + R)                 the ponder cost

A token that has halted still goes on: its state is transformed further, and that is what others look at. Only what it says
has come to rest. So p does not depend on who has halted, and neither does any state.
"""

import functools
from typing import Any, Literal, NamedTuple

import numpy as np

from minitransformer.arrays import one_dtype
from minitransformer.checks import frozen
from minitransformer.functional import affine, sigmoid
from minitransformer.marks import DecodingState
from minitransformer.models.block import BlockParams, BlockPullback
from minitransformer.models.norms import NormParams
from minitransformer.models.stack import Stack
from minitransformer.positions import sinusoids
from minitransformer.positions.absolute import must_be_even
from minitransformer.pullback import Pullback, tree_add
from minitransformer.ranges import NonNegativeNumber
from minitransformer.typing import Array, Bool, Float, checked

Halting = Literal["fixed", "basic", "accumulated"]


class HaltingPullback(Pullback):
    """w^t = p^t before the last step, and R = 1 − Σ p^t there, so dp^t = dw^t − (dw^N + dR), and 0 from step N on.

    N jumps, and has no gradient.
    """

    N: Array
    steps: int

    def __call__(self, gradients: tuple[Array, Array]) -> Array:
        dw, dR = gradients
        last = self.N[None] - 1
        dlast = np.take_along_axis(dw, last, 0) + dR
        return np.where(_numbered(self.steps, self.N) < last, dw - dlast, dw.dtype.type(0))


def _numbered(steps: int, like: Array) -> Array:
    """0 … steps − 1, along an axis in front of those of an array."""
    return np.arange(steps).reshape(steps, *(1,) * like.ndim)


@checked
def halting(
    p: Float[Array, "steps *batch"], *, eps: NonNegativeNumber = 0.01
) -> tuple[tuple[Float[Array, "steps *batch"], Float[Array, "*batch"]], Any]:
    """How much each step counts: p until their sum would pass 1 − ε, then what is left of one.

        w^t = p^t for t < N,   w^N = R = 1 − Σ_{t < N} p^t

    source   Graves 2016, for each position by itself as in Dehghani et al. 2018. A token that is still running at the last step
    halts there; the authors' program leaves the sum of the weights below one
    returns  (w, R) and a pullback: dp = pullback((dw, dR)); `pullback.N` is the number of steps of each
    raises   ValueError for no step
    """
    if not len(p):
        raise ValueError(f"p: shape {p.shape} should have at least one step")
    total = np.cumsum(p, 0)
    halted = total > 1 - eps
    halted[-1:] = True
    N = np.asarray(halted.argmax(0) + 1)
    before = np.concatenate([np.zeros_like(p[:1]), total[:-1]])
    last = N[None] - 1
    left = np.take_along_axis(1 - before, last, 0)
    t = _numbered(len(p), N)
    w = np.where(t < last, p, np.where(t == last, left, p.dtype.type(0)))
    return (w, left[0, ...]), HaltingPullback(N, len(p))


class CombinePullback(Pullback):
    """accumulated: dw^t = ⟨dY, H^t⟩.  basic, from the last step to the first: dw^t = ⟨dY^t, H^t − Y^{t−1}⟩,
    dY^{t−1} = (1 − w^t) dY^t.  In both dH^t = w^t dY^t.
    """

    w: Array
    H: Array
    before: Array | None  # Y^{t−1}, in the rule "basic"

    def __call__(self, dY: Array) -> tuple[Array, Array]:
        if self.before is None:
            return np.vecdot(self.H, dY), self.w[..., None] * dY
        dw, dH = np.empty_like(self.w), np.empty_like(self.H)
        for t in reversed(range(len(self.w))):
            dw[t] = np.vecdot(self.H[t] - self.before[t], dY)
            dH[t] = self.w[t, ..., None] * dY
            dY = (1 - self.w[t, ..., None]) * dY
        return dw, dH


@checked
def combine(
    w: Float[Array, "steps *batch"],
    H: Float[Array, "steps *batch D"],
    *,
    rule: Literal["basic", "accumulated"] = "accumulated",
) -> tuple[Float[Array, "*batch D"], CombinePullback]:
    """The output of a token, combined from its states.

        accumulated   Y = Σ_t w^t H^t
        basic         Y^t = w^t H^t + (1 − w^t) Y^{t−1}, that is Y = Σ_t w^t Π_{s > t} (1 − w^s) H^t

    The two differ: with weights 1/2, 1/4, 1/4, the second gives 9/32, 6/32, 8/32, which sum to 23/32; the last
    step has the same weight in both. Pullback: dY to (dw, dH).
    """
    one_dtype(w=w, H=H)
    if rule == "accumulated":
        return (w[..., None] * H).sum(0), CombinePullback(w, H, None)
    Y, before = np.zeros_like(H[0]), []
    for weight, state in zip(w[..., None], H, strict=True):
        before.append(Y)
        Y = weight * state + (1 - weight) * Y
    return Y, CombinePullback(w, H, np.stack(before))


# --------------------------------------------------------------------------------------------- the stack


class HaltingParams(NamedTuple):
    """What decides whether to halt: w (D,) and b (1,)."""

    w: Array
    b: Array


class UniversalParams(NamedTuple):
    """One block for all steps; what halts, if anything does; and the last norm, None in a post-norm stack."""

    block: BlockParams
    halting: HaltingParams | None
    norm: NormParams | None


class Step(NamedTuple):
    """One step: the rows Z that the block was given, the block's pullback, and that of p, if there is one."""

    Z: Array
    block: BlockPullback
    p: Pullback | None


class UniversalPullback(Pullback):
    """Backwards through the steps; the gradients of the block that was used in all of them add up.

    The loss has λ · mean(R) in it, and λ · mean(N), which has no gradient: every R gets λ · dadded / (number of tokens).

    there   the tokens that are no padding, for which the mean is taken; None for all
    """

    steps: tuple[Step, ...]
    combine: CombinePullback | None
    halting: HaltingPullback | None
    params: HaltingParams | None
    norm: Pullback | None
    ponder: float
    there: Array | None
    added: float = 0.0
    dadded: float = 0.0

    @property
    def blocks(self) -> tuple[BlockPullback, ...]:
        """The block's pullback in each step."""
        return tuple(step.block for step in self.steps)

    @property
    def N(self) -> Array:  # noqa: N802
        """After how many steps each token has halted, (*batch, n)."""
        return np.full(self.steps[0].Z.shape[:-1], len(self.steps)) if self.halting is None else self.halting.N

    def __call__(self, dY: Array) -> tuple[UniversalParams, Array]:
        dnorm, dY = self.norm(dY) if self.norm else (None, dY)
        dH: Any
        dp: Any
        if self.combine is None or self.halting is None:
            dH, dp = [*(np.zeros_like(dY) for _ in self.steps[1:]), dY], [None] * len(self.steps)
        else:
            dw, dH = self.combine(dY)
            dp = self.halting((dw, self._dR(dw)))
        dblocks, dhaltings, dX = [], [], np.zeros_like(dY)
        for step, dstate, dhalt in zip(reversed(self.steps), reversed(dH), reversed(dp), strict=True):
            dblock, dX = step.block(dstate + dX)
            dblocks.append(dblock)
            if step.p is not None and self.params is not None:
                dlogit = step.p(dhalt)
                dX = dX + dlogit[..., None] * self.params.w
                dw_ = (dlogit[..., None] * step.Z).reshape(-1, step.Z.shape[-1]).sum(0)
                dhaltings.append(HaltingParams(dw_, dlogit.sum(keepdims=True).reshape(1)))
        dhalting = functools.reduce(tree_add, dhaltings) if dhaltings else None
        return UniversalParams(functools.reduce(tree_add, dblocks), dhalting, dnorm), dX

    def _dR(self, dw: Array) -> Array:  # noqa: N802
        count = dw[0].size if self.there is None else self.there.sum()
        dR = np.full(dw.shape[1:], self.ponder * self.dadded / max(count, 1), dw.dtype)
        return dR if self.there is None else np.where(self.there, dR, dw.dtype.type(0))


class Thinking(DecodingState):
    """What decoding keeps of `length` tokens: the block's state in each step. All steps are done for each token, for one that
    comes later may look at it for longer.
    """

    length: int
    blocks: tuple[Any, ...]

    as_long = ("blocks",)


@frozen
class UniversalStack(Stack):
    """One block, used T times at most; T is the number of `blocks`, which are all the same.

    halting  "fixed": always T steps. "basic" or "accumulated": adaptive computation time, combined in this way
    ponder   λ, the price of a step; the loss gets λ · mean(N + R)
    eps      ε
    places   whether P^t also says where a token stands, besides how often it was transformed
    source   Aalto (18), (19) and figure 11; Dehghani et al. 2018; halting is mentioned there, without an equation (E58).
             (18) and (19) are post-norm blocks; a pre-norm one gets the same P^t
    cost     T times that of a block; parameters of one block and D + 1
    raises   ValueError for an odd width; for blocks that differ, have cross-attention, or attention that wants rows in front,
             or that is moved after a step
    """

    halting: Halting = "basic"
    ponder: NonNegativeNumber = 0.01
    eps: NonNegativeNumber = 0.01
    places: bool = True

    takes = "a block that is the same in every layer, without tokens in front"

    def __post_init__(self) -> None:
        super().__post_init__()
        must_be_even(self.width)
        cross, moves = self.blocks[0].cross is not None, self.blocks[0].attention.moves
        if len(set(self.blocks)) > 1:
            raise ValueError("blocks: a Universal Transformer has one block, and these differ")
        if cross or self.prefix or moves:
            why = (
                "cross-attention" if cross else "tokens in front" if self.prefix else "parameters that after_step moves"
            )
            raise ValueError(f"blocks: the block of a Universal Transformer can't have {why}")

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> UniversalParams:  # type: ignore[override]
        """Parameters of one block. b starts at 1: where ⟨z, w⟩ = 0, p is 0.73, and two steps are enough."""
        block = self.blocks[0].init(rng, dtype)
        norm = self.blocks[0]._norm.init(rng, dtype) if self.blocks[0].order == "pre" else None
        if self.halting == "fixed":
            return UniversalParams(block, None, norm)
        w = rng.standard_normal(self.width) / np.sqrt(self.width)
        return UniversalParams(block, HaltingParams(w.astype(dtype), np.ones(1, dtype)), norm)

    def signal(self, n: int, t: int, *, first: int = 0) -> Array:
        """P^t of n tokens from position `first` on, (n, D), or (1, D) if it does not say where."""
        P = sinusoids(1, self.width, first=t)
        return P + sinusoids(n, self.width, first=first) if self.places else P

    def _with_signal(self, X: Array, t: int, first: int = 0) -> Array:
        return X + self.signal(X.shape[-2], t, first=first).astype(X.dtype)

    @checked
    def __call__(  # type: ignore[override]
        self,
        params: UniversalParams,
        X: Float[Array, "*batch n {self.width}"],
        *,
        causal: bool = False,
        mask: Bool[Array, "..."] | None = None,
        rng: np.random.Generator | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], UniversalPullback]:
        """Pullback: dY to (dparams, dX). When all have halted nothing is computed any more, since it would not count."""
        steps, states, p = [], [], []
        for t in range(1, self.depth + 1):
            Z, p_pullback = self._with_signal(X, t), None
            if params.halting is not None:
                p_t, p_pullback = sigmoid(affine(Z, *params.halting))
                p.append(p_t)
            X, block = self.blocks[0](params.block, Z, causal=causal, mask=mask, rng=rng)
            steps.append(Step(Z, block, p_pullback))
            states.append(X)
            if p and (np.cumsum(p, 0)[-1] > 1 - self.eps).all():
                break
        if params.halting is None:
            Y, norm = self._last_norm(params, X)  # type: ignore[arg-type]
            return Y, UniversalPullback(tuple(steps), None, None, None, norm, self.ponder, None)
        (w, R), halted = halting(np.stack(p), eps=self.eps)
        X, combined = combine(w, np.stack(states), rule=self.halting)  # type: ignore[arg-type]
        Y, norm = self._last_norm(params, X)  # type: ignore[arg-type]
        there = _who_is_there(mask, X)
        cost = (halted.N + R) if there is None else (halted.N + R)[there]
        added = self.ponder * float(cost.mean()) if cost.size else 0.0
        return Y, UniversalPullback(
            tuple(steps), combined, halted, params.halting, norm, self.ponder, there, added=added
        )

    @checked
    def step(  # type: ignore[override]
        self, params: UniversalParams, X: Float[Array, "*batch n {self.width}"], states: Thinking | None = None
    ) -> tuple[Array, Any]:
        """New tokens after those in the state: T steps for each, and the state keeps the keys and values of every step."""
        states = Thinking(0, (None,) * self.depth) if states is None else states
        longer, p, rows = [], [], []
        n = X.shape[-2]
        for t, state in enumerate(states.blocks, start=1):
            Z = self._with_signal(X, t, states.length)
            if params.halting is not None:
                p.append(sigmoid(affine(Z, *params.halting))[0])
            X, state = self.blocks[0].step(params.block, Z, state)
            longer.append(state)
            rows.append(X)
        if params.halting is not None:
            (w, _), _ = halting(np.stack(p), eps=self.eps)
            X, _ = combine(w, np.stack(rows), rule=self.halting)  # type: ignore[arg-type]
        Y, _ = self._last_norm(params, X)  # type: ignore[arg-type]
        return Y, Thinking(states.length + n, tuple(longer))

    @property
    def untrained(self) -> tuple[str, ...]:
        """Paths of the block's parameters that no gradient moves."""
        return tuple(f"block.attention.{path}" for path in self.blocks[0].attention.untrained)

    @property
    def adds_loss(self) -> bool:
        """Whether a loss is added: the ponder cost, or one of its attention."""
        return self.halting != "fixed" or super().adds_loss


def _who_is_there(mask: Array | None, X: Array) -> Array | None:
    """Which tokens are no padding, (*batch, n), if the mask is of keys alone."""
    if mask is None or mask.ndim != X.ndim + 1 or mask.shape[-3:-1] != (1, 1):
        return None
    return np.broadcast_to(mask[..., 0, 0, :], X.shape[:-1])
