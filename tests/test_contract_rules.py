"""`check_attention`: a right core passes, and each of a bank of wrong ones is caught, with a sentence that says what is wrong."""

import math
import re
from typing import Any, NamedTuple

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.arrays import must_broadcast, those_seen
from minitransformer.attention import (
    Core,
    Mixer,
    MultiHeadAttention,
    Pattern,
    SoftmaxAttention,
    Window,
    attend,
    causal_mask,
)
from minitransformer.attention.cache.recent import Kept
from minitransformer.attention.linear import Performer
from minitransformer.attention.selected import Routing
from minitransformer.backend import available, current
from minitransformer.checks import frozen
from minitransformer.contract import (
    HEADS,
    WIDTH,
    AttentionError,
    Broken,
    any_length,
    check,
    encodings_act,
    form_is_kept,
    gradients,
    groups_share_keys,
    later_changes_nothing,
    learns,
    padding_changes_nothing,
    refusals,
    tiers_agree,
)
from minitransformer.contract.parts import enough, refused, sizes_of
from minitransformer.functional import sigmoid
from minitransformer.models import LanguageModel
from minitransformer.positions import FIRE, T5Bias
from minitransformer.pullback import Pullback
from minitransformer.related import Hopfield


class RightPullback(Pullback):
    """That of sigmoid attention, σ(S + b) V."""

    core: "Right"
    Q: np.ndarray
    K: np.ndarray
    V: np.ndarray
    A: np.ndarray

    def __call__(self, dY):
        return self.core.back(self, dY)


@frozen
class Right(Core):
    """σ(Q Kᵀ/√d + b) V, in pieces that can be made wrong one by one."""

    heads: int = 2

    def init(self, rng, dtype=np.float32):
        return np.full(self.heads, -1, dtype)

    def seen(self, Q, K, causal, mask):
        n, m = Q.shape[-2], K.shape[-2]
        seen = np.ones((n, m), bool) if mask is None else must_broadcast(mask, (*Q.shape[:-1], m))
        return seen & causal_mask(n, m) if causal else seen

    def scores(self, Q, K, b):
        return Q @ K.swapaxes(-1, -2) * Q.dtype.type(1 / math.sqrt(Q.shape[-1])) + b[:, None, None]

    def __call__(self, b, Q, K, V, *, causal=False, mask=None, rng=None):
        seen = self.seen(Q, K, causal, mask)
        K, V = those_seen(seen, K, V)
        A = np.where(seen, sigmoid(self.scores(Q, K, b))[0], 0)
        return A @ V, RightPullback(self, Q, K, V, A)

    def dS(self, p, dY):
        return p.A * (1 - p.A) * (dY @ p.V.swapaxes(-1, -2))

    def back(self, p, dY):
        dS = self.dS(p, dY)
        scale = 1 / math.sqrt(p.Q.shape[-1])
        db = dS.sum((-2, -1)).reshape(-1, dS.shape[-3]).sum(0)
        return db, scale * dS @ p.K, scale * dS.swapaxes(-1, -2) @ p.Q, p.A.swapaxes(-1, -2) @ dY


def wrong(rule, says):
    """Note which rule a core breaks, and what should be said."""

    def noted(kind):
        kind.rule, kind.says = rule, says
        return kind

    return noted


FORM = "Y and the gradients have the shapes"
GRADIENT = "Every gradient is the derivative of the value"


@wrong(GRADIENT, r"the pullback says -?\d\S*, the difference quotient -?\d")
class WrongSlope(Right):
    def dS(self, p, dY):
        return p.A * (dY @ p.V.swapaxes(-1, -2))


@wrong(GRADIENT, "params.core.*: the pullback says 0, the difference quotient")
class ZeroGradient(Right):
    def back(self, p, dY):
        db, *rest = super().back(p, dY)
        return np.zeros_like(db), *rest


@wrong(FORM, r"the gradient of params has the shape \(2, 2\) instead of \(2,\)")
class OneForEachSample(Right):
    def back(self, p, dY):
        _, *rest = super().back(p, dY)
        return self.dS(p, dY).sum((-2, -1)), *rest


@wrong(GRADIENT, "the pullback says")
class KeysAndQueriesSwapped(Right):
    def back(self, p, dY):
        db, dQ, dK, dV = super().back(p, dY)
        return db, dK, dQ, dV


@wrong(GRADIENT, "changed by the forward pass")
class ChangesItsParameters(Right):
    def __call__(self, b, Q, K, V, *, causal=False, mask=None, rng=None):
        b += 0.01
        return super().__call__(b, Q, K, V, causal=causal, mask=mask, rng=rng)


@wrong(
    GRADIENT, "the second time|was called a second time|with the same arguments, gave another value|changed an earlier"
)
class RemembersInAList(Right):
    calls = []  # noqa: RUF012

    def scores(self, Q, K, b):
        self.calls.append(1)
        return super().scores(Q, K, b) + 1e-3 * len(self.calls)


@wrong(GRADIENT, "^dY: changed by the pullback$")
class ChangesTheGradient(Right):
    def back(self, p, dY):
        gradients = super().back(p, dY)
        dY *= 2
        return gradients


@wrong(FORM, "^Y is float64, for float32")
class LosesTheDtype(Right):
    def scores(self, Q, K, b):
        return super().scores(Q, K, b) + np.float64(0.5)


@wrong(
    "Where it is causal, what comes later",
    "the future leaks: tokens 40 to 69 were changed, and with them Y of token 39",
)
class LeaksOne(Right):
    def seen(self, Q, K, causal, mask):
        seen = super().seen(Q, K, False, mask)
        n, m = Q.shape[-2], K.shape[-2]
        return seen & (np.arange(m) <= np.arange(n)[:, None] + (m - n) + 1) if causal else seen


@wrong("Where it is causal, what comes later", "the future leaks: .* Y of token 0")
class KnowsTheMean(Right):
    def scores(self, Q, K, b):
        return super().scores(Q, K, b) + 0 * b[:, None, None] + K.mean((-2, -1), keepdims=True).astype(K.dtype)


@wrong("Where a mask hides padding", "the mask is not kept: the padding was changed, and with it Y of token")
class IgnoresTheMask(Right):
    def seen(self, Q, K, causal, mask):
        return super().seen(Q, K, causal, None)


@wrong("Where a mask hides padding", "the padding was changed, and with it Y of token 50, not causal")
class OneTokenIgnoresTheMask(Right):
    def seen(self, Q, K, causal, mask):
        seen = super().seen(Q, K, causal, mask)
        return seen if causal else seen | (np.arange(Q.shape[-2])[:, None] == 50)


@wrong(
    "Where a mask hides padding",
    "the padding counts: where all tokens but 7 are left out instead of masked, Y differs by ",
)
class CountsThePadding(Right):
    """Its scores start at −ln m, of all keys, whether they are hidden or not."""

    def scores(self, Q, K, b):
        return super().scores(Q, K, b) - Q.dtype.type(math.log(max(K.shape[-2], 1)))


@wrong("Samples know nothing of each other", "samples are mixed")
class MixesSamples(Right):
    def __call__(self, b, Q, K, V, *, causal=False, mask=None, rng=None):
        Y, pullback = super().__call__(b, Q, K, V, causal=causal, mask=mask, rng=rng)
        return Y - Y.mean(tuple(range(Y.ndim - 3)), keepdims=True), pullback


@wrong(FORM, "^ValueError: ForgetsToReturn: should return its value and a pullback, .*; it returned NoneType")
class ForgetsToReturn(Right):
    def __call__(self, b, Q, K, V, *, causal=False, mask=None, rng=None):
        super().__call__(b, Q, K, V, causal=causal, mask=mask, rng=rng)


@wrong(
    "What stands in a hidden token",
    r"^nan in K of a token that the mask hides changes the gradient of Q, not causal \(.*those_seen, .* makes zeros of keys and",
)
class KeepsNaN(Right):
    def __call__(self, b, Q, K, V, *, causal=False, mask=None, rng=None):
        A = np.where(self.seen(Q, K, causal, mask), sigmoid(self.scores(Q, K, b))[0], 0)
        return A @ V, RightPullback(self, Q, K, V, A)


@wrong("Where a query sees no key", "where all keys of a sample are hidden, Y is not finite, not causal")
class DividesByNothing(Right):
    """It is divided by one, and by zero where a query sees no key."""

    def __call__(self, b, Q, K, V, *, causal=False, mask=None, rng=None):
        Y, pullback = super().__call__(b, Q, K, V, causal=causal, mask=mask, rng=rng)
        return Y / self.seen(Q, K, causal, mask).any(-1, keepdims=True), pullback


@wrong(
    "What stands in a hidden token",
    r"^nan in Q of a token that the mask hides changes Y of others, not causal \(where_seen, in",
)
class AsksEverybody(Right):
    """What all queries have in common is added to Y, with a weight of zero: nobody sees it until it is NaN."""

    def __call__(self, b, Q, K, V, *, causal=False, mask=None, rng=None):
        Y, pullback = super().__call__(b, Q, K, V, causal=causal, mask=mask, rng=rng)
        return Y + 0 * Q.sum((-2, -1), keepdims=True), pullback


@wrong(GRADIENT, r"the pullback says -?\d\S*, the difference quotient -?\d")
class ForgetsAfterSeven(Right):
    """The gradient of its queries ends with the seventh."""

    def back(self, p, dY):
        db, dQ, dK, dV = super().back(p, dY)
        return db, np.where(np.arange(dQ.shape[-2])[:, None] < 7, dQ, 0), dK, dV


@wrong("Values may have a width of their own", r"^values of width 1 .*: Y has the shape .* says one_width = True\)$")
class StretchesItsValues(Right):
    def __call__(self, b, Q, K, V, *, causal=False, mask=None, rng=None):
        return super().__call__(
            b, Q, K, V + np.zeros_like(V[..., :1]) * K[..., :1, :], causal=causal, mask=mask, rng=rng
        )


@wrong("It works for any length", "f64.2,0,12.")
class WantsTwo(Right):
    def scores(self, Q, K, b):
        return super().scores(Q, K, b) + 0 * K[..., 1:2, :1]


@wrong("Written token by token", r"step differs from the whole: \d+ tokens after \d+, positions \w+, by")
class ForgetsTheLength(Right):
    """Its bias is divided by the number of queries, of which a step has one."""

    def scores(self, Q, K, b):
        return super().scores(Q, K, b / Q.dtype.type(max(Q.shape[-2], 1)))


@wrong("A state is as it was", "a state was changed")
class OneState(Right):
    """All who go on from a state write into the same array."""

    remembers = "keys and values"

    def step(self, b, Q, K, V, *, state=None):
        if state is None:
            room = [np.zeros((*X.shape[:-2], 200, X.shape[-1]), X.dtype) for X in (K, V)]
            state = Room(0, *room)
        first, last = state.length, state.length + Q.shape[-2]
        state.K[..., first:last, :], state.V[..., first:last, :] = K, V
        Y, _ = self(b, Q, state.K[..., :last, :], state.V[..., :last, :], causal=True)
        return Y, state._replace(length=last)


class Room(NamedTuple):
    length: int
    K: np.ndarray
    V: np.ndarray


@wrong(
    "What does not fit is refused",
    r"a mask for 4 keys of 5 \(call must_broadcast, .*\): the error should speak of 'mask'",
)
class LetsTheMaskThrough(Right):
    def seen(self, Q, K, causal, mask):
        seen = np.ones((Q.shape[-2], K.shape[-2]), bool) if mask is None else mask
        return seen & causal_mask(Q.shape[-2], K.shape[-2]) if causal else seen


@wrong("A model with it learns", "not finite|TrainingDiverged|the loss was")
class Explodes(Right):
    def __call__(self, b, Q, K, V, *, causal=False, mask=None, rng=None):
        Y, pullback = super().__call__(b, Q, K, V, causal=causal, mask=mask, rng=rng)
        return Y * Y.dtype.type(np.inf if np.abs(b + 1).max() > 1e-3 and K.dtype == np.float32 else 1), pullback


@wrong("A model with it learns", "after_step does something: it needs moves = True")
class MovesInSecret(Right):
    def after_step(self, params, observed, rng):
        return 0.9 * params


@wrong(GRADIENT, "^Q: changed by the forward pass")
class ScalesItsQueries(Right):
    def __call__(self, b, Q, K, V, *, causal=False, mask=None, rng=None):
        Q *= 2
        return super().__call__(b, Q, K, V, causal=causal, mask=mask, rng=rng)


@wrong("Y and the gradients", r"^TypeError: init: params is 2\.0, and should be an array of the dtype")
class BeginsWithANumber(Right):
    def init(self, rng, dtype=np.float32):
        return 2.0


@wrong("Written token by token", r"^ValueError: zero-size array .*: top = S.max\(-1\); .*pieces=\(0, 80")
class LooksForTheTop(Right):
    """A step may bring no token, and then there is no key."""

    def scores(self, Q, K, b):
        S = super().scores(Q, K, b)
        top = S.max(-1)
        return S + 0 * top[..., None]


class Both(NamedTuple):
    b: np.ndarray
    encoding: Any


class BothPullback(Pullback):
    core: "Placed"
    attention: Pullback
    b: np.ndarray
    Y: np.ndarray

    def __call__(self, dY):
        dencoding, dQ, dK, dV = self.attention(self.b[:, None, None] * dY)
        db = (dY * self.Y).sum((-2, -1)).reshape(-1, len(self.b)).sum(0)
        return Both(db, self.core.of_encoding(dencoding)), dQ, dK, dV


@frozen
class Placed(Core):
    """Softmax attention with a gain b for each head, which takes every encoding."""

    heads: int = 2
    encoding: Any = None

    encoding_at = "encoding."

    def init(self, rng, dtype=np.float32):
        return Both(np.ones(self.heads, dtype), super().init(rng, dtype))

    def __call__(self, params, Q, K, V, *, causal=False, mask=None, rng=None):
        Y, attention = attend(self.encoding, params.encoding, Q, K, V, causal=causal, mask=mask)
        return params.b[:, None, None] * Y, BothPullback(self, attention, params.b, Y)

    def of_encoding(self, dencoding):
        return dencoding


ENCODINGS = "Encodings of positions act in it"


@frozen
@wrong(
    ENCODINGS, "^with positions t5 its parameters are b, encoding.table: among them is no table, where encoding_at = ''"
)
class ForgetsWhere(Placed):
    encoding_at = ""


@frozen
@wrong(ENCODINGS, r"^with positions t5: encoding.table.*the pullback says -?\d\S*, the difference quotient -?\d")
class HalvesItsGradient(Placed):
    def of_encoding(self, dencoding):
        return mt.tree_map(lambda d: d / 2, dencoding)


PAIRS = "The tiles of its pattern, and what it keeps, have the pairs"


@frozen
class Blocks(Pattern):
    """Blocks of 16 that see each other where their distance is 0 or a power of two."""

    def sees(self, i, j, m, *, causal):
        distance = abs(i // 16 - j // 16)
        return distance & (distance - 1) == 0


@wrong(PAIRS, "^sees lets query 149 see key 16 of 150, .* near should be True for t = 2 and k = 0")
class ForgetsTiles(Blocks):
    def near(self, t, k, m, *, causal):
        return abs(t - k) <= 1


@wrong(PAIRS, "^sees lets query 0 see key 512 of 700, .* near should be True for t = 0 and k = 8")
class ForgetsFarTiles(Blocks):
    def near(self, t, k, m, *, causal):
        return abs(t - k) <= 7


@wrong(PAIRS, "^sees says one thing of query \\d+ and key \\d+ of .* depend on i, j, m and causal alone")
class Draws(Blocks):
    def sees(self, i, j, m, *, causal):
        return np.random.default_rng().random((i * j).shape) < 0.5


@wrong(PAIRS, r"^TypeError: sees: gave float64 \(64, 64\), should give booleans")
class GivesWeights(Blocks):
    def sees(self, i, j, m, *, causal):
        return 1.0 * super().sees(i, j, m, causal=causal)


@wrong(PAIRS, "^query 40 sees key 0, and kept says that the first 0 and the last 40 are enough")
class KeepsTooFew(Blocks):
    kept = Kept(0, 40)


@wrong(PAIRS, "^what query 1 sees of 130 tokens is not what it sees of 200, though it is causal")
class CountsFromTheEnd(Blocks):
    def sees(self, i, j, m, *, causal):
        return (m - i) // 4 == (m - j) // 4


@wrong(PAIRS, r"^ValueError: The truth value .* \(sees, line \d+: return i == j or super\(\)\.sees")
class WantsNumbers(Blocks):
    def sees(self, i, j, m, *, causal):
        return i == j or super().sees(i, j, m, causal=causal)


@frozen
class Table(Pattern):
    """Pairs that were drawn once, for as many positions as a model may have."""

    longest: int

    def sees(self, i, j, m, *, causal):
        table = np.random.default_rng(0).random((self.longest, self.longest)) < 0.5
        return table[i, j] | (i == j)


EASILY_MISTAKEN = ("span", "reformer", "hopfield", "performer", "fire")  # at their defaults
WRONG = [*Right.__subclasses__(), *Placed.__subclasses__(), *Blocks.__subclasses__()]


def broken(attention, capsys):
    """The rules that are broken, each with what is said of it."""
    raised = None
    try:
        mt.check_attention(attention)
    except AttentionError as error:
        first, *raised = str(error).splitlines()
        assert re.fullmatch(r"1 of \d+ rules is broken:|(?!1 )\d+ of \d+ rules are broken:", first), first
    lines = capsys.readouterr().out.splitlines()
    found = {line[8:]: lines[k + 1].strip() for k, line in enumerate(lines) if line.startswith("BROKEN")}
    assert raised == (list(found) or None)
    return found


@pytest.mark.parametrize(
    "attention",
    [
        *(
            Right(),
            Placed(),
            "softmax",
            "fnet",
            "pooled",
            "sinkhorn",
            "transformer-xl",
            SoftmaxAttention(encoding=T5Bias(4)),
            Window(3),
            Blocks,
            Table,
        ),
        *("t5:buckets=8", T5Bias, "rope"),
        *(
            pytest.param(same, marks=pytest.mark.full)
            for same in (Right, Right(heads=3), "strided:part=far", T5Bias(4), *EASILY_MISTAKEN)
        ),
    ],
    ids=str,
)
def test_a_right_one_passes(attention, capsys):
    assert broken(attention, capsys) == {}


@pytest.mark.parametrize(
    ("name", "rule", "case"),
    [
        ("span", groups_share_keys, {"causal": True, "groups": 1}),
        ("span:limit=4000", groups_share_keys, {"causal": True, "groups": 1}),
        ("span:ramp=1", encodings_act, {"positions": "transformer-xl"}),
        ("reformer", later_changes_nothing, {"tier": "numpy"}),
        ("hopfield", tiers_agree, {"causal": False, "dtype": np.float32}),
        ("hopfield", groups_share_keys, {"causal": True, "groups": 1}),
        ("performer", learns, {"tier": "numpy"}),
        ("performer:redraw=None", learns, {"tier": "numpy"}),
        ("fire", gradients, {"causal": False, "n": 7, "padded": False}),
    ],
)
def test_a_right_one_is_not_mistaken_for_a_wrong_one(name, rule, case):
    """A hard cut that few tokens don't reach, hashing with room for all, rounding that decides, what is drawn anew later, and a
    sharp bend beside a number that softmax does not see."""
    rule(check._made(name), **case)


def test_who_sees_one_key_only_is_told_that_nothing_can_be_tested():
    with pytest.raises(Broken, match=r"^no query sees more than one key, .* as 'window:radius=9'$"):
        enough(SoftmaxAttention(Window(0)), 7)
    tiers_agree(SoftmaxAttention(Window(0)), causal=False, dtype=np.float32)  # 0, and rounding


@frozen
class OffByALittle(Right):
    """In one gradient, by more than rounding and by less than anybody would see in training."""

    def back(self, p, dY):
        db, *rest = super().back(p, dY)
        return db * (1 + 1e-5), *rest


@frozen
class AnotherInLoops(Hopfield):
    """Its queries are a little longer where loops are compiled."""

    def __call__(self, params, Q, K, V, *streams, causal=False, mask=None, rng=None):
        longer = Q.dtype.type(1 if current() == "numpy" else 1.5)
        return super().__call__(params, longer * Q, K, V, *streams, causal=causal, mask=mask, rng=rng)


@frozen
class NeverDraws(Performer):
    """It counts its steps, and that is all."""

    def after_step(self, params, observed, rng):
        return params._replace(age=params.age + 1)


@frozen
class SaysNothingOfB(FIRE):
    unseen = ()


@frozen
class SaysTooMuch(FIRE):
    unseen = ("b_2", "W_2")


@pytest.mark.parametrize(
    ("part", "rule", "case", "says"),
    [
        (OffByALittle(), gradients, {"causal": False, "n": 7, "padded": False}, r"params\.core.*: the pullback says"),
        pytest.param(
            AnotherInLoops(),
            tiers_agree,
            {"causal": False, "dtype": np.float32},
            r"differs by .* between the tiers numpy and",
            marks=pytest.mark.skipif(len(available()) == 1, reason="there is no other tier"),
        ),
        (
            NeverDraws(2, 6),
            learns,
            {"tier": "numpy"},
            r"in 2,000 calls \['blocks\.0\.attention\.core\.W', .* ask again with a smaller one, as 'performer:redraw=3'",
        ),
        (
            SoftmaxAttention(encoding=SaysNothingOfB(2)),
            gradients,
            {"causal": False, "n": 7, "padded": False},
            r"b_2: every derivative is zero, for 7 to 140 tokens .* name it in `apart` of the core or `unseen` of the encoding",
        ),
        (
            SoftmaxAttention(encoding=SaysTooMuch(2)),
            gradients,
            {"causal": False, "n": 7, "padded": False},
            r"W_2: the gradient should be zero but is",
        ),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_is_allowed_for_those_hides_no_mistake(part, rule, case, says):
    with pytest.raises(Broken, match=says) as told:
        rule(part, **case)
    assert len(str(told.value)) < check.SAID, "nothing is cut off when it is printed"


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_wrong_one_is_caught_and_told(kind, capsys):
    found = broken(kind(), capsys)
    said = {rule: what for rule, what in found.items() if rule.startswith(kind.rule)}
    assert len(said) == 1, found
    (what,) = said.values()
    assert re.search(kind.says, what), what


def test_a_model_says_that_its_core_does_not_say_where_an_encoding_is():
    says = r"attention.core.table: the blocks should share it, and have no such parameter; .*`encoding_at` of a core"
    with pytest.raises(ValueError, match=says):
        LanguageModel(40, 12, 8, 2, 2, attention=ForgetsWhere(), positions="t5").init(np.random.default_rng(0))


def test_a_model_has_the_sizes_that_its_part_asks_for():
    d = WIDTH // HEADS
    assert sizes_of(Right()) == sizes_of(SoftmaxAttention()) == (WIDTH, HEADS)
    assert sizes_of(Right(heads=3)) == (3 * d, 3)
    assert sizes_of(SoftmaxAttention(encoding=T5Bias(4))) == (4 * d, 4)
    assert sizes_of(Routing(3, 8, 20, 4)) == (24, 3)
    assert sizes_of(Twice(10)) == (10, 1)


def test_a_rule_is_tried_in_every_case(monkeypatch):
    tried = []
    for rule in ("any_length", "tiers_agree"):
        monkeypatch.setattr(check, rule, lambda part, **case: tried.append(tuple(case.values())))
    rules = dict(check._rules(Right()))
    rules["It works for any length."]()
    rules["All tiers give the same values and gradients, in float32 and in float64."]()
    dtypes = np.float32, np.float64
    assert tried == [
        *((n,) for n in (1, 2, 63, 64, 65)),
        *((causal, dtype) for causal in (False, True) for dtype in dtypes),
    ]


def test_a_length_at_which_it_fails_is_told():
    """NaN for 64 tokens, and for no other number: of 63, 65 and 1 nothing is said."""

    @frozen
    class FailsAtATile(Right):
        def scores(self, Q, K, b):
            return super().scores(Q, K, b) * Q.dtype.type(np.nan if Q.shape[-2] == 64 else 1)

    for n in (1, 2, 63, 65):
        any_length(FailsAtATile(), n=n)
    with pytest.raises(Broken, match=r"^of 64 tokens, Y is not finite$"):
        any_length(FailsAtATile(), n=64)


def test_who_says_that_it_looks_ahead_has_to():
    @frozen
    class LooksBack(Right):
        looks_ahead = True

    later_changes_nothing(Right(), tier="numpy")
    said = r"^it says that it looks ahead, and with 1120 tokens it does not; .* a smaller one, as 'reformer:chunk=6'$"
    with pytest.raises(Broken, match=said):
        later_changes_nothing(LooksBack(), tier="numpy")


def test_padding_that_gets_a_gradient_is_told():
    """Y is right, and so is every gradient of what is there."""

    @frozen
    class TeachesThePadding(Right):
        def back(self, p, dY):
            *others, dV = super().back(p, dY)
            return *others, dV + dV.dtype.type(1e-3) * (p.A == 0).all(-2)[..., None]

    for causal in (False, True):
        padding_changes_nothing(Right(), causal=causal, tier="numpy")
        with pytest.raises(Broken, match="the mask is not kept in the backward pass: the padding gets a gradient"):
            padding_changes_nothing(TeachesThePadding(), causal=causal, tier="numpy")


def test_a_pullback_with_too_few_gradients_is_told():
    @frozen
    class ForgetsV(Right):
        def back(self, p, dY):
            return super().back(p, dY)[:-1]

    with pytest.raises(Broken, match=r"^the pullback should give 4 gradients, of params, Q, K, V, and gives 3$"):
        form_is_kept(ForgetsV(), causal=False, dtype=np.float32)


def test_everything_that_does_not_fit_is_tried(monkeypatch):
    tried = []
    monkeypatch.setattr(refusals, "refused", lambda call, what, *_, **__: tried.append(what))
    refusals.refuses(Right())
    first = [f"X of width {WIDTH - 1} instead of {WIDTH}", "X of whole numbers", "X in float32, parameters in float64"]
    assert tried == [*first, "a mask for 4 keys of 5 (call must_broadcast, in minitransformer/arrays.py)"]
    tried.clear()
    refusals.refuses_other_heads(Right(), tier="numpy")
    every = ["of one sample for two", "of another number of heads", "without samples and heads"]
    every += ["in float32 beside float64", "of whole numbers", "as a list"]
    keys = ["of 5 tokens for 9", "of twice as many heads", "of twice as many tokens"]
    widths = ["of width 0", "of twice the width"]
    wrong = {"Q": [*every, *widths], "K": [*every, *keys, *widths], "V": [*every, *keys]}
    ways = [f"{way}{name} {what}" for name, faults in wrong.items() for what in faults for way in ("", "step, ")]
    ways += [
        "step, 5 new queries for 9 new keys",
        f"a mask {np.dtype(int)} (9, 9), for 9 tokens",
        "a mask bool (9, 8), for 9 tokens",
        "a mask bool (3, 2, 2, 9, 9), for 9 tokens",
        "parameters in float32 beside float64",
    ]
    assert tried == [*ways, "too few arrays", "too many arrays"]


def test_who_says_that_it_moves_has_to_move():
    """Centroids that no gradient reaches, and that stay as they were drawn; alone, and within heads."""

    @frozen
    class Still(Routing):
        def after_step(self, params, observed, rng):
            return params

    @frozen
    class SaysSo(Right):
        moves = True

    with pytest.raises(Broken, match="it says that after_step moves its parameters, and has no after_step of its own"):
        learns(SaysSo(), tier="numpy")
    sizes = HEADS, WIDTH // HEADS, 160, 4
    heads = [MultiHeadAttention(WIDTH, HEADS, core=core) for core in (SoftmaxAttention(), Routing(*sizes))]
    for right in (Routing(*sizes), *heads):
        learns(right, tier="numpy")
    for still in (Still(*sizes), MultiHeadAttention(WIDTH, HEADS, core=Still(*sizes))):
        with pytest.raises(
            Broken, match=r"it says that after_step moves its parameters, and in 2,000 calls \['blocks.*centroids"
        ):
            learns(still, tier="numpy")


@frozen
class Twice(Mixer):
    """A mixer that takes no mask."""

    width: int

    def __call__(self, params, X, *, causal=False, mask=None, rng=None):
        return 2 * X, TwicePullback(params)


class TwicePullback(Pullback):
    params: object

    def __call__(self, dY):
        return self.params, 2 * dY


def test_what_a_mixer_lets_through_is_told(capsys):
    found = broken(Twice, capsys)
    assert "What does not fit is refused." in found


@frozen
class ForgetsToReturnX(Twice):
    def __call__(self, params, X, *, causal=False, mask=None, rng=None):
        super().__call__(params, X, causal=causal, mask=mask, rng=rng)


def test_a_mixer_that_forgets_to_return_is_told_so_in_every_rule(capsys):
    """By the rules and by the blocks of a model, in the same words: so all but the first are "the same"."""
    found = broken(ForgetsToReturnX, capsys)
    assert found.pop("What does not fit is refused.").startswith("X of width 11 instead of 12 (X: Float[")
    first, *others = found.values()
    assert re.match(
        r"ValueError: ForgetsToReturnX: should return its value and a pullback, .*; it returned NoneType \(", first
    )
    assert len(others) > 5
    assert set(others) == {"the same error as above"}


def test_a_gradient_of_too_few_tokens_would_not_see_what_a_pattern_hides():
    """Of 7 tokens a window of 9 hides nothing; 20 are enough for it, and for one of 32 it takes 70."""
    assert enough(SoftmaxAttention(Window(9)), 7) == 20
    assert enough(SoftmaxAttention(Window(32)), 7) == 70
    assert enough(SoftmaxAttention(Table(30)), 7) == 7
    assert enough(SoftmaxAttention(Window(4000)), 7) == 7


def test_an_error_of_another_kind_than_asked_for_is_told():
    def call():
        raise KeyError("width")

    with pytest.raises(Broken, match=r"^X of width 11: TypeError is asked for, it is KeyError: 'width'$"):
        refused(call, "X of width 11", kinds=TypeError)
    with pytest.raises(Broken, match=r"^X of width 11: TypeError or ValueError is asked for, it is KeyError"):
        refused(call, "X of width 11")


def test_an_error_that_comes_again_is_told_once(capsys):
    @frozen
    class NoSuchName(Right):
        def scores(self, Q, K, b):
            return np.full((7, len(Q)), Q.width)

    first, *others = broken(NoSuchName(), capsys).values()
    assert first.startswith("AttributeError: 'numpy.ndarray' object has no attribute 'width' (scores, line")
    assert first.endswith("; causal=False, dtype=float32)")
    assert set(others) == {"the same error as above"}


def test_what_is_no_attention_is_refused():
    with pytest.raises(ValueError, match="attention: no 'sigmoidal'; there are softmax"):
        mt.check_attention("sigmoidal")
    with pytest.raises(ValueError, match="7 is not a name, nor a core"):
        mt.check_attention(7)
    with pytest.raises(ValueError, match="attention: 'reversible' is a stack, and no part of attention"):
        mt.check_attention("reversible")
    with pytest.raises(
        ValueError, match="attention: 'sinusoidal' is added to the embeddings, and no part of attention"
    ):
        mt.check_attention("sinusoidal")
