"""Pullbacks and states are named tuples with a mark, and of the class that stands in the source."""

import copy
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.attention import dot_product_attention
from minitransformer.attention.dot_product import AttentionPullback
from minitransformer.checks import frozen
from minitransformer.functional import SoftmaxPullback, softmax
from minitransformer.marks import DecodingState, Pullback
from minitransformer.models import LanguageModel
from minitransformer.models.sequence_model import Written
from minitransformer.pullback import NoParams
from minitransformer.typing import Array, checked


class Scaled(Pullback):
    """dX = s dY."""

    s: float
    started: bool = False

    def __call__(self, dY):
        return self.s * dY

    @property
    def twice(self):
        return 2 * self.s


class Named(NamedTuple):
    s: float
    started: bool = False


def test_it_is_what_a_named_tuple_is():
    a, b = Scaled(3.0), Named(3.0)
    assert a == b == Scaled(s=3.0, started=False) == (3.0, False)
    assert (Scaled._fields, a._asdict()) == (Named._fields, b._asdict())
    assert repr(a).replace("Scaled", "Named") == repr(b)
    assert (a.twice, a(2.0), hash(a)) == (6.0, 6.0, hash(b))
    match a:
        case Scaled(s, started):
            assert (s, started) == (3.0, False)
    s, started = a
    assert (s, started) == (3.0, False)
    for wrong in (
        lambda: Scaled(),
        lambda: Scaled(1.0, True, 2),
        lambda: Scaled(1.0, other=2),
        lambda: a._replace(t=1),
    ):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(AttributeError):
        a.s = 4.0


def test_a_mark_goes_with_copies_and_no_other_has_it():
    a = Scaled(3.0).marked("by this")
    assert Scaled(3.0).mark is None
    for same in (pickle.loads(pickle.dumps(a)), copy.copy(a), copy.deepcopy(a), a._replace(started=True)):
        assert (type(same), same.mark, same.s) == (Scaled, "by this", 3.0)
    assert a._replace(started=True).started


def test_what_leaves_a_function_is_of_the_class_that_stands_there(rng):
    Q = rng.standard_normal((1, 2, 5, 4))
    with mt.backend("numpy"):
        Y, attention = dot_product_attention(Q, Q, Q)
        weights = softmax(Q)[1]
    assert type(attention) is AttentionPullback
    assert type(weights) is SoftmaxPullback
    assert attention.mark.of == (Y.shape, Y.dtype)
    model = LanguageModel(width=8, heads=2, depth=1)
    _, state = model.step(model.init(rng), np.zeros((1, 3), int))
    assert type(state) is Written
    assert state.mark == (model, (1,))


def test_a_pullback_that_could_not_check_is_refused():
    class Other(NamedTuple):
        s: float

        def __call__(self, dY):
            return self.s * dY

    @checked
    def scaled(X: Array) -> tuple[Array, Other]:
        return 3 * X, Other(3.0)

    with pytest.raises(TypeError, match=r"^Other: should be a subclass of minitransformer\.pullback\.Pullback$"):
        scaled(np.ones(2))


def test_a_state_that_could_not_be_marked_is_refused(rng):
    """In a reader's own layer: without a mark, that of a batch of two would go with a batch of one."""

    class Sum(NamedTuple):
        total: Array

    class OwnState(DecodingState):
        total: Array

    @frozen
    class Totals:
        kind: type

        def init(self, rng, dtype=np.float32):
            return NoParams()

        @checked
        def step(self, params: NoParams, X: Array, state: Any = None) -> tuple[Array, Any]:
            Y = X.cumsum(-2) + (0 if state is None else state.total)
            return Y, self.kind(Y[..., -1:, :])

    X = rng.standard_normal((2, 3, 4))
    with pytest.raises(TypeError, match=r"^Sum: should be a subclass of minitransformer\.marks\.DecodingState$"):
        Totals(Sum).step(NoParams(), X)
    layer = Totals(OwnState)
    _, state = layer.step(NoParams(), X[:, :2])
    assert type(state) is OwnState
    assert layer.step(NoParams(), X[:, 2:], state)[0] == pytest.approx(X.sum(-2, keepdims=True))
    with pytest.raises(ValueError, match=r"state: belongs to a batch \(2,\), should be that of \(1,\)"):
        layer.step(NoParams(), X[:1, 2:], state)
