"""Trees and composition."""

import re
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitransformer as mt
from minitransformer import chain, check_pullback, random_like, residual, tree_bytes, tree_items, tree_map, tree_size
from minitransformer.functional import linear, relu, softmax
from minitransformer.pullback import (
    ChainPullback,
    ResidualPullback,
    first_nonfinite,
    tree_add,
    tree_get,
    tree_leaves,
    tree_set,
)
from minitransformer.training.optimiser import accumulate


class Pair(NamedTuple):
    W: np.ndarray
    b: np.ndarray | None = None


TREE = {"first": Pair(np.ones((2, 3)), np.ones(3)), "blocks": (Pair(np.ones((3, 4))), [np.ones(5), np.ones(())])}

# ---------------------------------------------------------------------------------------------- trees


def test_items_have_readable_paths():
    assert [path for path, _ in tree_items(TREE)] == ["first.W", "first.b", "blocks.0.W", "blocks.1.0", "blocks.1.1"]
    assert next(path for path, _ in tree_items(TREE, "params")) == "params.first.W"
    assert [leaf.size for leaf in tree_leaves(TREE)] == [6, 3, 12, 5, 1]


def test_a_part_at_a_path_and_another_in_its_place():
    """By name, by key or by number; all else stays what it was."""
    for path, leaf in tree_items(TREE):
        assert tree_get(TREE, path) is leaf
        changed = dict(tree_items(tree_set(TREE, path, 7)))
        assert changed.pop(path) == 7
        assert all(changed[other] is tree_get(TREE, other) for other, _ in tree_items(TREE) if other != path)
    assert tree_get(TREE, "") is TREE
    assert tree_set(TREE, "", 7) == 7


def test_none_is_not_a_leaf_and_an_array_is_a_tree():
    assert list(tree_items(None)) == []
    assert [path for path, _ in tree_items(np.ones(3))] == [""]
    assert [path for path, _ in tree_items(np.ones(3), "X")] == ["X"]


def test_map_keeps_types_and_changes_nothing():
    doubled = tree_map(lambda a: 2 * a, TREE)
    assert type(doubled["first"]) is Pair
    assert type(doubled["blocks"]) is tuple
    assert type(doubled["blocks"][1]) is list
    assert doubled["blocks"][0].b is None
    assert all((leaf == 2).all() for leaf in tree_leaves(doubled))
    assert all((leaf == 1).all() for leaf in tree_leaves(TREE))


def test_map_over_several_trees():
    a, b = Pair(np.array(1.0), np.array(2.0)), Pair(np.array(10.0), np.array(20.0))
    assert tree_map(lambda x, y: y - x, a, b) == Pair(9, 18)
    assert tree_add(a, b) == Pair(11, 22)


def test_names_of_a_dict_belong_together_in_any_order():
    a, b = {"W": np.ones(2), "b": np.zeros(1)}, {"b": np.full(1, 5.0), "W": np.full(2, 3.0)}
    assert same(tree_add(a, b), {"W": np.full(2, 4.0), "b": np.full(1, 5.0)})
    assert list(tree_add(b, a)) == ["b", "W"]


def same(a, b):
    return all(p == q and np.array_equal(x, y) for (p, x), (q, y) in zip(tree_items(a), tree_items(b), strict=True))


OF_ANOTHER_FORM = {
    "blocks.1.1": {"first": TREE["first"], "blocks": (TREE["blocks"][0], [np.ones(5)])},
    "blocks.1.2": {"first": TREE["first"], "blocks": (TREE["blocks"][0], [np.ones(5), np.ones(()), np.ones(1)])},
    "blocks": {"first": TREE["first"]},
    "last": {**TREE, "last": np.ones(1)},
    "first.W": {**TREE, "first": {"b": np.ones(3)}},
    "first.c": {**TREE, "first": {"W": np.ones((2, 3)), "b": np.ones(3), "c": np.ones(3)}},
}


@pytest.mark.parametrize("path", OF_ANOTHER_FORM)
def test_a_part_that_only_one_tree_has_is_named(path):
    for trees in ((TREE, OF_ANOTHER_FORM[path]), (OF_ANOTHER_FORM[path], TREE)):
        for function in (tree_add, lambda a, b: accumulate(lambda tree: (0.0, tree), [a, b])):
            with pytest.raises(ValueError, match=rf"^{path}: one of the trees has it, another has not"):
                function(*trees)


LEAVES = st.integers(0, 3).map(lambda n: np.arange(float(n)))
TREES = st.recursive(
    LEAVES | st.none(),
    lambda children: (
        st.lists(children, max_size=3)
        | st.lists(children, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from("abc"), children)
        | st.tuples(children, children).map(lambda pair: Pair(*pair))
    ),
)


@given(TREES)
def test_map_keeps_paths_and_order(tree):
    """Of any tree: same paths in the same order, and every leaf once."""
    seen = []
    mapped = tree_map(lambda leaf: seen.append(leaf) or leaf + 1, tree)
    assert [path for path, _ in tree_items(mapped)] == [path for path, _ in tree_items(tree)]
    assert len(seen) == len(tree_leaves(tree))
    assert all(np.array_equal(new, old + 1) for new, old in zip(tree_leaves(mapped), tree_leaves(tree), strict=True))
    assert tree_size(mapped) == tree_size(tree) == sum(leaf.size for leaf in seen)


def test_size_counts_scalars():
    assert tree_size(TREE) == 6 + 3 + 12 + 5 + 1
    assert tree_size({"a": np.float32(3), "b": np.ones(())}) == 2
    assert tree_size(None) == tree_size(()) == 0


def test_bytes_count_an_array_once():
    a = np.zeros((4, 5))
    assert tree_bytes((a,)) == 160
    assert tree_bytes((a, a)) == 160
    assert tree_bytes((a, a.copy())) == 320
    assert tree_bytes({"a": a.astype(np.float32), "options": 0.5, "nothing": None}) == 80


def test_bytes_of_a_view_are_those_of_its_owner():
    """A view keeps the whole array alive: ten bytes of a megabyte cost a megabyte."""
    a = np.zeros((4, 5))
    assert tree_bytes((a[1:2],)) == 160
    assert tree_bytes((a[0], a[1], a.T, a.reshape(-1)[::2], a)) == 160
    assert tree_bytes((a[1:][1:],)) == 160
    assert tree_bytes((np.broadcast_to(np.zeros(3), (1000, 3)),)) == 24


def test_bytes_of_a_pullback_are_what_backpropagation_remembers(rng):
    X, W = rng.standard_normal((2, 3, 4)), rng.standard_normal((4, 5))
    _, pullback = linear(X, W)
    assert tree_bytes(pullback) == X.nbytes + W.nbytes
    _, pullback = softmax(X)
    assert tree_bytes(pullback) == X.nbytes


def test_random_like_keeps_form_and_type_and_draws_everything():
    tree = Pair(np.zeros((2, 3), np.float32), np.ones(4))
    drawn = random_like(tree, np.random.default_rng(1))
    assert type(drawn) is Pair
    assert drawn.W.shape == (2, 3)
    assert drawn.W.dtype == np.float32
    assert drawn.b.dtype == np.float64
    assert len(np.unique(np.concatenate([drawn.W.ravel(), drawn.b]))) == 10
    assert np.array_equal(drawn.W, random_like(tree, np.random.default_rng(1)).W)
    assert not tree.W.any()


def test_first_nonfinite_is_where_the_trouble_began(rng):
    """X is the input of the second layer, and both its pullback and later ones are full of NaN; the first is named."""
    params = [(rng.standard_normal((3, 3)), rng.standard_normal(3)) for _ in range(3)]
    params[1][0][2, 1] = np.inf

    def layer(p, X):
        Y, pullback = linear(X, *p)
        Z, activation = relu(Y)
        return Z, Both(pullback, activation)

    class Both(NamedTuple):
        linear: object
        relu: object

    with np.errstate(invalid="ignore"):
        _, pullback = chain(layer, layer, layer)(params, rng.standard_normal((4, 3)))
    assert first_nonfinite(pullback) == "1.linear.W"
    assert first_nonfinite(pullback[0]) is None


def test_first_nonfinite_looks_at_floats_only():
    assert first_nonfinite({"tokens": np.arange(3), "mask": np.ones(2, bool), "n": 3, "A": np.ones(2)}) is None
    assert first_nonfinite({"a": np.ones(2), "b": np.array([1, -np.inf]), "c": np.array(np.nan)}) == "b"
    assert first_nonfinite((1.0, float("nan"))) == "1"
    assert first_nonfinite(None) is None


# ---------------------------------------------------------------------------------------- composition


class LayerPullback(NamedTuple):
    inner: object

    def __call__(self, dY):
        dX, dW, db = self.inner(dY)
        return Pair(dW, db), dX


def affine(params, X, *, times=1.0):
    Y, pullback = linear(X.dtype.type(times) * X, params.W, params.b)
    return Y, Scaled(LayerPullback(pullback), X.dtype.type(times))


class Scaled(NamedTuple):
    layer: LayerPullback
    times: float

    def __call__(self, dY):
        dparams, dX = self.layer(dY)
        return dparams, self.times * dX


def pair(D, E):
    """Parameters of a layer: random, and the same ones every time."""
    rng = np.random.default_rng([D, E])
    return Pair(rng.standard_normal((D, E)), rng.standard_normal(E))


X = np.random.default_rng(0).standard_normal((2, 3, 4))


def test_chain_is_one_after_another():
    p, q, r = pair(4, 5), pair(5, 6), pair(6, 7)
    Y, pullback = chain(affine, affine, affine)((p, q, r), X)
    assert np.allclose(Y, ((X @ p.W + p.b) @ q.W + q.b) @ r.W + r.b, rtol=1e-12)
    assert isinstance(pullback, ChainPullback)
    assert len(pullback) == 3
    assert np.array_equal(pullback[0].layer.inner.X, X), "the pullback of the first step comes first"


def test_gradient_of_a_chain():
    check_pullback(chain(affine, affine, affine), (pair(4, 5), pair(5, 6), pair(6, 7)), X)


def test_gradients_of_a_chain_stand_in_the_order_of_its_parameters(rng):
    p, q = pair(4, 5), pair(5, 6)
    (dp, dq), dX = chain(affine, affine)((p, q), X)[1](rng.standard_normal((2, 3, 6)))
    assert dp.W.shape == (4, 5)
    assert dq.W.shape == (5, 6)
    assert dX.shape == X.shape


def test_options_reach_every_layer_of_a_chain():
    p, q = pair(4, 5), pair(5, 6)
    Y, _ = chain(affine, affine)((p, q), X, times=2.0)
    assert np.allclose(Y, 2 * (2 * X @ p.W + p.b) @ q.W + q.b, rtol=1e-12)
    check_pullback(lambda params, X: chain(affine, affine)(params, X, times=2.0), (p, q), X)


def test_the_same_layer_twice_in_a_chain():
    """Nothing is kept in the layer, so the second use does not disturb the first."""
    check_pullback(chain(affine, affine), (pair(4, 4), pair(4, 4)), X)


def test_one_parameter_tree_in_two_places():
    """Shared weights: the gradient is the sum of the two, by `tree_add`."""

    def twice(p, X):
        Y, pullback = chain(affine, affine)((p, p), X)

        def backward(dY):
            (first, second), dX = pullback(dY)
            return tree_add(first, second), dX

        return Y, backward

    check_pullback(twice, pair(4, 4), X)


def test_chain_of_nothing_is_the_identity():
    Y, pullback = chain()((), X)
    assert Y is X
    assert pullback(X) == ((), X)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_chain_with_a_wrong_number_of_parameters(count):
    with pytest.raises(ValueError, match=f"a chain of 2 layers needs 2 parameter trees, got {count}"):
        chain(affine, affine)((pair(4, 4),) * count, X)


def test_what_a_residual_adds_has_the_shape_of_its_input():
    for width in (1, 5):  # NumPy would add one column to all
        with pytest.raises(ValueError, match=rf"residual: the layer makes \(4, {width}\) of X \(4, 6\)"):
            residual(affine)(pair(6, width), np.ones((4, 6)))

    def mean(params, X):
        return X.mean(-2, keepdims=True), None

    with pytest.raises(ValueError, match=r"residual: the layer makes \(1, 6\) of X \(4, 6\)"):  # nor one row
        residual(mean)((), np.ones((4, 6)))


def test_residual_adds_its_input():
    p = pair(4, 4)
    Y, pullback = residual(affine)(p, X)
    assert np.array_equal(Y, X + affine(p, X)[0])
    assert isinstance(pullback, ResidualPullback)
    check_pullback(residual(affine), p, X)
    check_pullback(chain(residual(affine), affine, residual(affine)), (p, pair(4, 5), pair(5, 5)), X)


def test_residual_of_zero_lets_the_gradient_pass(rng):
    dY = rng.standard_normal(X.shape)
    dparams, dX = residual(affine)(Pair(np.zeros((4, 4)), np.zeros(4)), X)[1](dY)
    assert np.array_equal(dX, dY)
    assert np.allclose(dparams.b, dY.sum((0, 1)))


def test_residual_gives_options_on():
    p = pair(4, 4)
    assert np.array_equal(residual(affine)(p, X, times=3.0)[0], X + affine(p, X, times=3.0)[0])


def test_public_names():
    """What a reader calls as mt.…: all of it exists."""
    assert all(hasattr(mt, name) for name in mt.__all__)


def test_a_query_that_sees_no_key_is_no_trouble():
    """The logarithm of a sum without terms is −∞; anything else that is not finite is trouble, also in L."""

    class Softmax(NamedTuple):
        Y: np.ndarray
        L: np.ndarray

    assert first_nonfinite([Softmax(np.zeros(2), np.array([-np.inf, 0.0]))]) is None
    for trouble in (np.nan, np.inf):
        assert first_nonfinite([Softmax(np.zeros(2), np.array([-np.inf, trouble]))]) == "0.L"
    assert first_nonfinite(Softmax(np.array([-np.inf]), np.zeros(1))) == "Y"


def test_no_two_pullbacks_have_one_name(root):
    """A chapter or a debugger prints the name alone."""
    found = Counter(
        name
        for path in (root / "minitransformer").rglob("*.py")
        for name in re.findall(r"^class (\w+Pullback)\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert {name for name, times in found.items() if times > 1} == set()
