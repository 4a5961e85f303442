"""The two seams at which every kind of attention fits into a model.

    Core     from the queries, keys and values of H heads to their Y      core(params, Q, K, V, …) → Y, pullback
    Mixer    from the tokens X to Y                                       mixer(params, X, …) → Y, pullback

A core is put to work by a mixer that projects X, turns queries and keys if positions ask for it, calls the core, and
combines the heads (multi_head.py). What is no core, because it has no queries or no heads, is a mixer of its own.

Both are frozen dataclasses under a name in a registry (registry.py). A field that is called width, heads, d or longest is filled
in by the model, every other is an option: `LanguageModel(attention="window:radius=32")`.
"""

from itertools import takewhile
from typing import Any, ClassVar, Literal

import numpy as np

from minitransformer.arrays import must_broadcast, one_dtype
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.cache.keys_values import KeysValues
from minitransformer.checks import refuse_init
from minitransformer.gather_scatter import heads_fit, refuse_other_heads
from minitransformer.positions.encoding import Encoding
from minitransformer.pullback import NoParams, Pullback, Tree
from minitransformer.ranges import so_many
from minitransformer.typing import Array, Checked

NO_PAIRS = (
    "sums over the keys before it sees a query, so it has no score for a pair (i, j) that an encoding could change"
)

# Methods of a core with a memory that compiled loops replace, for one token, by what its `for_loops` says
IN_LOOPS = {"prepare", "finish", "phi", "rows"}
# Whoever has one of these beside its `__call__` says how it goes on
STEPS = {"step", "_go_on", "_last_query", *IN_LOOPS}


class Part(Checked):
    """What a core and a mixer say about themselves, and what may change their parameters besides the gradient.

    stage       which stages of attention it replaces, for the table of chapter 20: project, scores, pattern, normalise,
                aggregate, "all of them" or "none"
    cost        of n tokens, for the table of `minitransformer attentions`
    causal      whether later keys are hidden from a query: "either" on request, "always", or "never"
    looks_ahead whether, though causal, it lets later tokens change which of the earlier keys a query sees
    remembers   what decoding keeps of the tokens so far; None if the whole sequence has to be read again for every token
    needs       what else it requires, in words for the table
    shared      paths of parameters that all layers of a stack have in common
    untrained   paths of parameters that no gradient moves; the gradient has None in their place
    apart       paths of parameters that only an added loss moves: dY gives them no gradient
    moves       whether `after_step` does anything
    prefix      how many extra tokens it wants in front of the text; they go through all layers
    adds_loss   whether its pullback has a loss to be added (`added_losses` in pullback.py)
    unplaced    why an encoding of positions can't change its scores: words for the error, and for the grid of `positions`
    """

    stage: ClassVar[str] = ""
    cost: ClassVar[str] = "O(n²)"
    causal: ClassVar[Literal["either", "always", "never"]] = "either"
    looks_ahead: ClassVar[bool] = False
    remembers: ClassVar[str | None] = None
    needs: ClassVar[str] = ""
    unplaced: ClassVar[str] = "has no queries and keys that it could act on"
    shared: ClassVar[tuple[str, ...]] = ()
    untrained: ClassVar[tuple[str, ...]] = ()
    apart: ClassVar[tuple[str, ...]] = ()
    moves: ClassVar[bool] = False
    prefix: ClassVar[int] = 0
    adds_loss: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        """If a subclass has a `__call__` of its own, and inherits a `step` that does not call it, that `step` is refused."""
        super().__init_subclass__(**options)
        if "__call__" in vars(cls) and not STEPS & vars(cls).keys():
            base = next((one for one in cls.__mro__ if "step" in vars(one)), None)
            if base not in (None, Core, Mixer):
                cls.step = _unless_inherited(vars(base)["step"])  # type: ignore[attr-defined]

    @property
    def causal_in_words(self) -> str:
        """Whether it can be causal, in a word or two for a table."""
        if self.looks_ahead:
            return "values only"
        return "yes" if self.causal == "either" else self.causal

    @property
    def decodes(self) -> bool:
        """Whether `step` can go on from a state: if decoding keeps anything of the tokens so far."""
        return self.remembers is not None

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> Tree:
        """The parameters of one layer; without any, NoParams()."""
        refuse_init(rng, dtype)
        return NoParams()

    def observe(self, pullback: Pullback) -> Tree:
        """What `after_step` needs to know of a forward pass; averaged over the parts of a batch, as gradients are."""
        return None

    def after_step(self, params: Tree, observed: Tree, rng: np.random.Generator) -> Tree:
        """The parameters after an optimiser's step, here unchanged; others update averages, redraw features, or clip spans."""
        return params

    def refuse(self, *, causal: bool) -> None:
        """Raise ValueError for causal=True if it can't be causal, and for causal=False if it always is."""
        refuse_causal(self, causal)


def _unless_inherited(of_base: Any) -> Any:
    """The `step` of a base, for the `step` of a subclass to call; whoever inherits it is refused."""

    def step(self: Any, *args: Any, **options: Any) -> Any:
        if type(self).step is step:
            own = type(self).__name__
            raise TypeError(
                f"{own}: its `__call__` is its own, and the `step` that it inherits goes on as its base does; give it one, or "
                "read the whole text again"
            )
        return of_base(self, *args, **options)

    step.inherited = True  # type: ignore[attr-defined]
    return step


def refuse_causal(part: Any, causal: bool) -> None:
    """Raise ValueError for a `causal` that a core, a mixer or a pattern can't have; the error names its class."""
    if part.causal == ("never" if causal else "always"):
        can = "can't be causal" if causal else "is always causal: it reads from left to right"
        raise ValueError(f"attention: {type(part).__name__} {can}")


class Core(Part):
    """From the heads' queries, keys and values to their Y.

        Y, pullback = core(params, Q, K, V, *streams, causal=…, mask=…, rng=…)
        dparams, dQ, dK, dV, *dstreams = pullback(dY)               dparams also where there is nothing to learn

    Q (*batch, H, n, d), K (*batch, H, m, d), V (*batch, H, m, dv). If causal, the n queries are the last n of the m positions.

    mask              True where query i sees key j, broadcast to (*batch, H, n, m)
    rng               for random draws; a core that draws takes a fixed seed if there is none
    encoding          an encoding of positions that changes its scores. A core that scores pairs (i, j) has it as a field, and
                      takes any; `Forgetting` and `Routing` any that is not a rotation
    encoding_at       where its parameters are: "" if they are those of the core, "encoding." if a part of them
    groups            whether K and V may be (*batch, G, m, …), one for each group of neighbouring heads; otherwise the mixer
                      repeats them
    queries           whether it has queries; without them there is no W_q, and it is given V in the place of Q, for the shape
    key_heads         heads of queries and keys, each of which serves H/key_heads neighbouring heads of values; None for H. Then
                      Q and K are (*batch, key_heads, …), V and the streams (*batch, H, …)
    queries_are_keys  whether K is Q, and there is no W_k
    one_width         whether values have to be as wide as keys; otherwise they may have a width of their own
    turns             whether it turns queries and keys itself, by an encoding that is then its field `rotate`; if not, the
                      mixer does, before the core sees them
    streams           what else it wants projected from X: name and width for each head
    starts_as         for some streams, the projection (q, k or v) of which theirs starts as a copy; the others are drawn
    scale             the factor of ⟨q, k⟩ if it is not 1/√d: then W_q is drawn smaller; None for 1/√d
    norm              "rms" if the mixer should bring queries and keys to a root mean square of one, and learn a gain
    gate              "head" or "element" if the mixer should open Y by σ(X W_g), with a number for each head or each channel
    """

    remembers: ClassVar[str | None] = "keys and values"
    unplaced = "has no field `encoding`, which every core has that scores pairs of positions"
    encoding: Encoding | None = None
    encoding_at: ClassVar[str] = ""
    groups: ClassVar[bool] = False
    queries: ClassVar[bool] = True
    key_heads: int | None = None
    queries_are_keys: ClassVar[bool] = False
    one_width: ClassVar[bool] = False
    turns: ClassVar[bool] = False
    rotate: Any = None
    streams: ClassVar[dict[str, int]] = {}
    starts_as: ClassVar[dict[str, str]] = {}
    norm: Literal["rms"] | None = None
    gate: Literal["head", "element"] | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """If a subclass overrides a method that loops replace, its own is called, unless it has a `for_loops` of its own."""
        super().__init_subclass__(**options)
        newer = takewhile(lambda kind: "for_loops" not in vars(kind), cls.__mro__)
        if hasattr(cls, "for_loops") and any(IN_LOOPS & vars(kind).keys() for kind in newer):
            cls.for_loops = lambda self, params, d, first: None

    @property
    def places(self) -> bool:
        """Whether encodings of positions can change its scores."""
        return "encoding" in vars(type(self)).get("__dataclass_fields__", {})

    @property
    def scale(self) -> float | None:
        """The scale that the encoding asks for; None for 1/√d."""
        return None if self.encoding is None else self.encoding.scale

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """The parameters of the encoding that all layers share."""
        return () if self.encoding is None else tuple(self.encoding_at + path for path in self.encoding.shared)

    @property
    def decodes(self) -> bool:
        """Whether `step` can go on from a state: not if a longer text would turn the same keys by other angles."""
        return self.remembers is not None and (self.rotate is None or self.rotate.fixed)

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> Tree:
        """The parameters of the encoding; without one, NoParams()."""
        return NoParams() if self.encoding is None else self.encoding.init(rng, dtype)

    def __call__(
        self, params: Tree, Q: Array, K: Array, V: Array, *streams: Array, causal: bool, mask: Array | None, rng: Any
    ) -> tuple[Array, Pullback]:
        raise TypeError(f"{type(self).__name__} does not say what it computes")

    def fit_heads(
        self, Q: Array, K: Array, V: Array, streams: tuple[Array, ...] = (), mask: Any = None, *, new: bool = False
    ) -> None:
        """Refuse arrays that do not fit together, or do not fit this core, before it runs.

        new      whether these are the new positions of a step, which have as many keys as queries
        raises   TypeError for another dtype than float32 or float64, a mixture of the two, or a mask that is not boolean;
                 ValueError for other shapes than those that `Core` names
        """
        given = {"Q": Q, "K": K, "V": V, **dict(zip(self.streams, streams, strict=False))}
        for name, X in given.items():
            if not isinstance(X, np.ndarray) or X.dtype not in (np.float32, np.float64):
                raise TypeError(f"{name}: {getattr(X, 'dtype', type(X).__name__)} should be float32 or float64")
            if X.ndim < 2:
                raise ValueError(f"{name}: shape {X.shape} should be (*batch, heads, n, d)")
        one_dtype(**given)
        if len(streams) != len(self.streams):
            raise ValueError(f"streams: {len(streams)}, but {type(self).__name__} wants {list(self.streams)}")
        (*heads, n, d), (*known, m, _) = Q.shape, K.shape
        if self.key_heads is not None and V.ndim > 2:
            heads = list(V.shape[:-2])
            known = [*heads[:-1], self.key_heads]
        if new and n != m:
            raise ValueError(f"K: {so_many(m, 'key')}, should be as many as new queries, {n}")
        for part in (self, self.encoding, self.rotate):  # each may have something for each head, or each of d channels
            sizes = {} if part is None else vars(part)
            if "heads" in sizes:
                refuse_other_heads(Q if self.key_heads is None else V, sizes["heads"])
            if d != sizes.get("d", d):
                raise ValueError(f"Q: shape {Q.shape}; this {type(part).__name__} is of width d = {sizes['d']}")
        if self.key_heads is not None:
            wanted = {"Q": (*known, n, d), "K": (*known, m, d), "V": (*heads, m, V.shape[-1])}
        else:
            known = known if self.groups and heads_fit(K, tuple(heads)) else heads
            wanted = {"K": (*known, m, d), "V": (*known, m, V.shape[-1])}
        wanted |= {name: (*heads, n, width) for name, width in self.streams.items()}
        for name, shape in wanted.items():
            if given[name].shape != shape:
                raise ValueError(f"{name}: shape {given[name].shape} should be {shape}, for Q of {Q.shape}")
        if self.one_width and V.shape[-1] != K.shape[-1]:
            raise ValueError(f"V: shape {V.shape} should be as wide as that of K, {K.shape}")
        if mask is not None:
            if not isinstance(mask, np.ndarray) or mask.dtype != bool:
                raise TypeError(f"mask: {getattr(mask, 'dtype', type(mask).__name__)} should be bool")
            must_broadcast(mask, (*heads, n, m))

    def step(self, params: Tree, Q: Array, K: Array, V: Array, *streams: Array, state: Any) -> tuple[Array, Any]:
        """Y of n new positions after those in the state (None before the first), and the longer state.

        Y is the last n rows of causal attention over all positions so far. A state has a `length`, and is not changed. Here it
        holds keys and values, which suits any core whose n queries can be the last of m positions: O(m d) for one new token.
        """
        state = KeysValues.of(K, V) if state is None else state.extended(K, V)
        Y, _ = self(params, Q, state.keys, state.values, *streams, causal=True, mask=None, rng=None)
        return Y, state


class NothingLearnedPullback(AroundAttention):
    """The pullback of a core without parameters: that of its function, with NoParams() in front."""

    attention: Pullback

    def __call__(self, dY: Array) -> tuple[NoParams, Array, Array, Array]:
        return NoParams(), *self.attention(dY)


class ParamsFirstPullback(AroundAttention):
    """The pullback of a core whose function takes parameters behind Q, K and V: their gradients come first, in their class."""

    attention: Pullback
    params: type

    def __call__(self, dY: Array) -> tuple[Tree, Array, Array, Array]:
        dQ, dK, dV, *dparams = self.attention(dY)
        return self.params(*dparams), dQ, dK, dV


class Mixer(Part):
    """From the tokens to what the block adds to them.

    Y, pullback = mixer(params, X, causal=…, mask=…, rng=…)         X and Y (*batch, n, width)
    dparams, dX = pullback(dY)
    """

    width: int

    def __call__(
        self, params: Tree, X: Array, *, causal: bool = False, mask: Array | None = None, rng: Any = None
    ) -> tuple[Array, Pullback]:
        raise TypeError(f"{type(self).__name__} does not say what it computes")

    def step(self, params: Tree, X: Array, state: Any = None) -> tuple[Array, Any]:
        """Y of new tokens after those in the state, as in causal attention over all tokens so far; and the longer state."""
        raise TypeError(f"{type(self).__name__} keeps no state")


def seen_keys(mask: Array | None, Q: Array, K: Array, what: str) -> Array | None:
    """Which keys are there, (…, m, 1), for a core that has no score for a pair; None if all are.

    raises   ValueError for a mask that hides pairs, or does not fit
    """
    if mask is None:
        return None
    must_broadcast(mask, (*Q.shape[:-1], K.shape[-2]))
    if mask.ndim < 2 or mask.shape[-2] != 1:
        raise ValueError(
            f"mask: shape {mask.shape}; {what} has no score for a pair (i, j), so a mask can hide keys, (…, 1, m), not pairs"
        )
    return mask.swapaxes(-1, -2)


def seen_tokens(mask: Array | None, X: Array) -> Array | None:
    """Which tokens of X are there, (*batch, n), for a mixer that has no pairs; None if all are.

    raises   ValueError for a mask that is not of keys alone, (*batch, 1, 1, n)
    """
    if mask is None:
        return None
    shape = (*X.shape[:-2], 1, 1, X.shape[-2])
    must_broadcast(mask, shape, what="the tokens, which are all that it can hide")
    return np.broadcast_to(mask, shape)[..., 0, 0, :]


def where_seen(seen: Array | None, X: Array) -> Array:
    """X with zeros in the rows of keys that are not there, whatever stood in them."""
    return X if seen is None else np.where(seen, X, X.dtype.type(0))


def numbers_where_seen(seen: Array | None, X: Array) -> Array:
    """X (…, n), a number for each token, with zeros for tokens that are not there; seen (…, n, 1), or None if all are."""
    return X if seen is None else where_seen(seen[..., 0], X)
