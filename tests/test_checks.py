"""What every public function checks before it runs: found by its signature, so a new one is in here by being public."""

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
import re
import typing
from collections import namedtuple

import numpy as np
import pytest

from minitransformer.attention import (
    ATTENTIONS,
    Core,
    KeysValues,
    Mixer,
    MultiHeadAttention,
    SoftmaxAttention,
    Window,
    attend,
    attention_of,
    dot_product_attention,
)
from minitransformer.attention.compressed.memory_compressed import MemoryCompressed
from minitransformer.attention.linear import exponential
from minitransformer.backend import available
from minitransformer.checks import fit, own_indices, refuse_other_numbers
from minitransformer.checks.arrays import ROWS_OF_NOTHING, arrays_where_said, plain
from minitransformer.functional import UnchangedPullback, dropout, layer_norm, linear
from minitransformer.marks import Pullback, the_call
from minitransformer.models import Block, EncoderDecoder, FeedForward, LanguageModel, Norm, generate
from minitransformer.positions import Encoding, place
from minitransformer.positions.registry import AT_EMBEDDING, IN_ATTENTION
from minitransformer.pullback import NoParams, tree_get, tree_items, tree_map, tree_set
from minitransformer.ranges import Degree, Part, bare
from minitransformer.related import GRU, LSTM, CapsuleClassifier, Capsules, edges_of

pytestmark = pytest.mark.each_value

ROOMS = (
    "functional",
    "attention",
    "attention.compressed",
    "attention.sparse",
    "attention.selected",
    "attention.linear",
    "positions",
    "models",
    "related",
    "data.dates",
    "data.digits",
    "data.ngrams",
    "data.position_tasks",
    "data.text",
)
SIZES = {
    **{"n": 3, "m": 5, "d": 4, "dv": 4, "r": 4, "D": 6, "E": 6, "e": 4, "f": 4, "vocabulary": 7, "longest": 6},
    **{"batch": 2, "shared": 2, "own": 2, "heads": 2, "groups": 2, "rounds": 2, "clusters": 2, "parts": 3},
    **{"pairs": 2, "half": 2, "p": 3, "tokens": 6, "k": 3, "s": 2, "keys": 5, "taps": 3, "past": 2, "N": 1, "3": 3},
    **{"rows": 4, "blocks": 2, "steps": 3, "w": 4, "turned": 2, "Hd": 8, "Hdv": 8},
    **{"inputs": 4, "outputs": 3, "width": 4, "height": 5, "classes": 3, "columns": 8, "places": 4},
}


def public():
    """Functions and classes that the rooms of the book offer, and what is checked wherever it stands in them, by name."""
    found = {}
    for room in ROOMS:
        module = importlib.import_module(f"minitransformer.{room}")
        own = [name for name, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__]
        for name in getattr(module, "__all__", own):
            if not name.startswith("_") and hasattr(vars(module)[name], "__module__"):
                other = found.get(name, vars(module)[name]) is not vars(module)[name]  # as two rooms have a `sample`
                found[f"{room}.{name}" if other else name] = vars(module)[name]
        for inner in pkgutil.iter_modules(getattr(module, "__path__", ())):
            inside = importlib.import_module(f"minitransformer.{room}.{inner.name}")
            for name, f in vars(inside).items():
                if inspect.isfunction(f) and hasattr(f, "__wrapped__") and f not in found.values():
                    found[name] = f
    return found.items()


def goes_back(function):
    """Whether it returns a pullback, by its annotation or by its text."""
    function = inspect.unwrap(function)
    returned = str(function.__annotations__.get("return"))
    return ("Pullback" in returned and "Callable" not in returned) or "Pullback(" in inspect.getsource(function)


FUNCTIONS = {name: f for name, f in public() if inspect.isfunction(f) and goes_back(f)}
CLASSES = {name: c for name, c in public() if inspect.isclass(c) and not name.endswith("Pullback")}


def test_whatever_returns_a_pullback_has_a_door():
    assert len(FUNCTIONS) >= 20
    assert len(CLASSES) >= 30
    assert [name for name, f in FUNCTIONS.items() if not hasattr(f, "__wrapped__")] == []
    open_ones = [
        f"{name}.{method}"
        for name, kind in CLASSES.items()
        for method, f in inspect.getmembers(kind, inspect.isfunction)
        if (method == "__call__" or not method.startswith("_")) and goes_back(f) and not hasattr(f, "__wrapped__")
    ]
    assert open_ones == []


def test_every_public_function_has_a_door():
    assert [name for name, f in public() if inspect.isfunction(f) and not hasattr(f, "__wrapped__")] == []


# --------------------------------------------------------------------------------- arguments by signature


def array(annotation, rng, dtype, owner=None):
    """An array of the shape that an annotation such as Float[Array, "*batch n d"] asks for."""
    for part in getattr(annotation, "__args__", (annotation,)):
        if hasattr(part, "dim_str"):
            names = part.dim_str.replace("*", "").replace("...", "n").split()
            shape = [eval(name[1:-1], {"self": owner}) if name[0] == "{" else SIZES[name] for name in names]
            if part.__name__.startswith("Int"):
                return rng.integers(0, 3, shape)
            return (
                rng.random(shape) < 2 if part.__name__.startswith("Bool") else rng.standard_normal(shape).astype(dtype)
            )
    return None


def arguments(function, rng, dtype=np.float64, owner=None):
    """Arguments by name: an array for each annotation of one, parameters of the layer, and nothing that has a default."""
    found = {}
    for name, parameter in inspect.signature(inspect.unwrap(function)).parameters.items():
        if name == "self" or parameter.default is not inspect.Parameter.empty:
            continue
        if name == "params" and owner is not None:
            found[name] = tree_map(lambda leaf: leaf.astype(dtype), owner.init(rng))
        elif name in (given := OTHER_OF.get(function.__name__, OTHER)):
            found[name] = given[name](dtype) if callable(given[name]) else given[name]
        else:
            found[name] = array(parameter.annotation, rng, dtype, owner)
    return found


SHORT = {"width": 8, "heads": 2, "d": 4, "longest": 8}
OTHER = {"window": 2, "rate": 0.0, "cap": 2.0, "rng": None, "causal": True, "mask": None}
OTHER |= {"pattern": Window(1)(3, 5, causal=True)}
OTHER["edges"] = edges_of(np.array([[0, 1], [1, 0], [1, 1], [1, 2], [2, 2]]), 3)


def fades(dtype):
    """ln α of a memory."""
    return np.full((SIZES["batch"], SIZES["n"]), -0.1, dtype)


def weights(dtype):
    """Rows that sum to one."""
    r = SIZES["r"]
    return (np.eye(r, dtype=dtype) + np.ones((SIZES["batch"], r, r), dtype)) / dtype(r + 1)


def kernels(dtype):
    """One for each head, as loops take it."""
    return np.random.default_rng(1).standard_normal((SIZES["heads"], SIZES["taps"], 1)).astype(dtype)


OTHER_OF = {
    "attend": {"encoding": None, "params": NoParams()},
    "depthwise_convolution": {"A": kernels},
    "gated_delta_rule": {"log_decay": fades},
    "gated_linear_attention": {"log_decay": fades},
    "pseudo_inverse": {"A": weights},
    "bigbird_attention": {"block": 1, "drawn": np.array([[[3], [4], [1], [1]]] * 2)},
    "pieces": {"side": 2, "stride": 1},
    "pooled_attention": {"block": 2, "window": 2},
    "chosen_rows_attention": {"window": 2, "chosen": np.array([[[0, 1, -1], [1, -1, -1], [-1, 0, 1]]] * 2)},
    "cosformer_attention": {"longest": 8},
    "cosformer_features": {"longest": 8},
    "kernel_smoother": {"similarity": lambda dtype: exponential},
    "ring_attention": {"owners": [np.array([0, 2]), np.array([1])]},
}


def layers():
    """One of each that has parameters, by name."""
    for name in (
        *ATTENTIONS,
        "softmax:sink=learned,norm=rms,gate=element",
        "gated-delta:taps=2",
        "ssd:taps=2",
        "pooled:chosen=2,block=2",
    ):
        part = attention_of(name, SHORT)
        yield f"attention {name}", part if isinstance(part, Mixer) else MultiHeadAttention(8, 2, core=part)
    for name in {**AT_EMBEDDING, **IN_ATTENTION}:
        placed = place(name, width=8, heads=2, longest=8)
        yield f"positions {name}", placed.in_attention or placed.at_embedding
    yield "feed forward", FeedForward(8, 3)
    yield "norm", Norm(8)
    yield "block", Block.of(8, 2, 7)
    yield "language model", LanguageModel(7, 8, 8, 1, 2)
    yield "model with a memory", LanguageModel(7, 8, 8, 1, 2, positions="rope", stack="transformer-xl:memory=4")
    yield "model of one block", LanguageModel(7, 8, 8, 2, 2, stack="universal")
    yield "translator", EncoderDecoder(7, 8, 8, 1, 2)
    yield "GRU", GRU(4, 8)
    yield "LSTM", LSTM(4, 8)
    yield "capsules", Capsules(4, 3, 4, 2)
    yield "capsule classifier", CapsuleClassifier(3, 5, 2, 1, 2, 3, 4)


CALLS = {name: (f, None) for name, f in FUNCTIONS.items()}
CALLS |= {name: (attend if isinstance(layer, Encoding) else type(layer).__call__, layer) for name, layer in layers()}


def call(name, dtype=np.float32, **others):
    """Y, pullback and the arguments, of one call."""
    function, owner = CALLS[name]
    given = {**arguments(function, np.random.default_rng(0), dtype, owner), **others}
    if getattr(owner, "causal", "") == "always":
        given["causal"] = True
    if owner is not None:
        given["encoding" if function is attend else "self"] = owner
    Y, pullback = function(**given)
    given.pop("self", None)
    return Y, pullback, given


every = pytest.mark.parametrize("name", CALLS)


# ------------------------------------------------------------------------------------------ on the way out


def same(a, b):
    return all(
        np.array_equal(x, y, equal_nan=True) for (_, x), (_, y) in zip(tree_items(a), tree_items(b), strict=True)
    )


def ones(Y):
    return tree_map(np.ones_like, Y)


@every
def test_a_value_can_not_be_changed_under_its_pullback(name, tier):
    Y, pullback, _ = call(name)
    for _, part in tree_items(Y):
        if isinstance(part, np.ndarray):
            with pytest.raises(ValueError, match="read-only"):
                part += 1
    assert type(pullback).__name__.endswith("Pullback")
    again = pickle.loads(pickle.dumps(pullback))
    assert same(again(ones(Y)), pullback(ones(Y)))


@every
def test_a_gradient_comes_in_the_form_of_its_value(name, tier):
    """What has another dtype, order or byte order is brought to it; what has another shape, or is no number, is refused.

    Of a value that has several parts each part is asked.
    """
    Y, pullback, _ = call(name)
    rng = np.random.default_rng(1)
    dY = tree_map(lambda part: rng.standard_normal(part.shape).astype(part.dtype), Y)
    want = pullback(dY)
    copies = [pickle.loads(pickle.dumps(pullback))]
    copies += [pullback._replace()] if hasattr(pullback, "_fields") else []
    if isinstance(Y, tuple):
        assert same(pullback(list(dY)), want)
        for bad in (dY[0], dY[:1], (*dY, dY[0]), None, 1.0):
            for known in (pullback, *copies):
                with pytest.raises(ValueError, match=rf"dY: .* should be a tuple of {len(Y)}, as Y is"):
                    known(bad)
    for path, part in tree_items(Y):
        where, d = f"[{path}]" if path else "", tree_get(dY, path)

        def of(other, pullback=pullback, path=path):
            return pullback(tree_set(dY, path, other))

        for form in (d.astype(np.float64), d.astype(part.dtype.newbyteorder()), d.tolist()):
            assert same(of(form), want)
        for form in (np.repeat(d, 2, -1)[..., ::2], np.asfortranarray(d)) if part.ndim else ():  # sums in another order
            for (entry, found), (_, wanted) in zip(tree_items(of(form)), tree_items(want), strict=True):
                atol = 1e-5 * max(1, np.abs(wanted).max(initial=0))
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=atol, err_msg=entry)
        assert same(of(np.ones(part.shape, int)), of(np.ones_like(part)))
        for bad in (np.ones((*part.shape, 1)), np.ones((2, *part.shape)), *((d[..., :1], d[0]) if part.ndim else ())):
            if bad.shape != part.shape:
                for known in (pullback, *copies):
                    message = rf"dY{re.escape(where)}: shape .* should be that of Y{re.escape(where)}"
                    with pytest.raises(ValueError, match=message):
                        of(bad, known)
        for bad in (d * 1j, d.astype(object), d > 0, np.ma.masked_array(d)):
            with pytest.raises(TypeError, match=re.escape(f"dY{where}: ")):
                of(bad)
    assert same(pullback(dY), want)


HIDING = [name for name, (f, _) in CALLS.items() if {"K", "V", "mask"} <= set(inspect.signature(f).parameters)]


@pytest.mark.parametrize("name", HIDING)
def test_what_a_mask_hides_reaches_nothing(name, tier):
    """A key that no query sees, and its value: be they NaN or infinite, neither the value nor a gradient is another one."""
    _, _, given = call(name, np.float64)
    m, found = given["K"].shape[-2], []
    assert m == given["V"].shape[-2]
    for what in (9.0, np.nan, np.inf):
        K, V = given["K"].copy(), given["V"].copy()
        K[..., 1, :] = V[..., 1, :] = what
        with np.errstate(invalid="ignore"):  # ∞ − ∞, in a score that is hidden
            Y, pullback, _ = call(name, np.float64, K=K, V=V, mask=np.arange(m)[None] != 1)
            rng = np.random.default_rng(1)
            dY = tree_map(lambda part, rng=rng: rng.standard_normal(part.shape), Y)
            found.append(dict(tree_items({"Y": Y, "gradients": pullback(dY)})))
    for other in found[1:]:
        for path, array in found[0].items():
            np.testing.assert_allclose(other[path], array, atol=1e-12, err_msg=path)


def test_the_copy_of_a_mask_that_is_repeated_is_one_row():
    """Ten thousand samples may share a mask, which is no reason to have it ten thousand times."""
    row = np.arange(5) != 1
    mask = np.broadcast_to(row, (10**4, 3, 5))
    own = own_indices(mask)
    row[:] = False
    assert own.shape == mask.shape
    assert own.strides[:2] == (0, 0)
    assert (own == (np.arange(5) != 1)).all()


def test_there_are_many_that_hide():
    assert len(HIDING) >= 15


def indices(name, given):
    """The arguments that hold tokens, masks, labels, owners or a pattern; with a mask wherever one may be given."""
    function = inspect.unwrap(CALLS[name][0])
    found = {key: value for key, value in given.items() if key != "params"}
    if "mask" in (asked := inspect.signature(function).parameters):
        rows = next(found[key] for key in ("K", "C", "X", "V", "S", "R", "logits", "Z_2") if key in found)
        mask = array(asked["mask"].annotation, np.random.default_rng(0), bool)
        found["mask"] = (
            np.ones((1, rows.shape[-1 if "S" in found else -2]), bool) if mask is None or mask.ndim < 2 else mask
        )
        if name == "cross_entropy":
            found["mask"] = np.ones(found["targets"].shape, bool)
    lengths = asked.get("lengths")
    if lengths is not None:
        found["lengths"] = np.full(SIZES["batch"], 2)
    leaves = {
        key: [leaf for _, leaf in tree_items(value) if isinstance(leaf, np.ndarray)] for key, value in found.items()
    }
    return {key: found[key] for key in found if any(leaf.dtype.kind in "biu" for leaf in leaves[key])}


@every
def test_what_is_changed_between_the_passes_changes_nothing(name, tier):
    """Tokens, masks, labels, owners and patterns belong to the caller, who may write something else into them."""
    _, _, given = call(name)
    held = copy.deepcopy(indices(name, given))
    Y, pullback, _ = call(name, **copy.deepcopy(held))
    want = pullback(ones(Y))
    _, pullback, _ = call(name, **held)
    for _, leaf in tree_items(held):
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biu" and leaf.flags.writeable:
            leaf[...] = ~leaf if leaf.dtype == bool else 10**6
    assert same(pullback(ones(Y)), want)


# ------------------------------------------------------------------------------------------- on the way in


@pytest.mark.parametrize("name", [name for name, (f, _) in CALLS.items() if "*" in str(inspect.signature(f))])
def test_nothing_in_more_rows_than_memory_is_refused_at_once(name):
    """A loop through 2⁴⁰ samples of no row would never end."""
    _, _, given = call(name)
    for key, value in given.items():
        dims = getattr(inspect.signature(inspect.unwrap(CALLS[name][0])).parameters[key].annotation, "dim_str", "")
        if "*" in dims and isinstance(value, np.ndarray) and value.ndim > 1:
            with pytest.raises(ValueError, match=rf"^{key}: shape .* is empty"):
                call(name, **{key: np.zeros((2**40, *[0] * (value.ndim - 1)), value.dtype)})


@pytest.mark.parametrize("k", range(3))
def test_each_leaf_has_to_be_of_one_of_the_two_kinds_of_numbers(k):
    leaves = [np.ones(2, np.float32), np.ones(2), np.ones(2)]
    refuse_other_numbers(leaves, "x")
    leaves[k] = np.ones(2, np.int32)
    with pytest.raises(TypeError, match=rf"^x\.{k}: int32 should be an array of float32 or float64$"):
        refuse_other_numbers(leaves, "x")


def test_a_named_tuple_has_arrays_where_its_class_says_so():
    class Two(typing.NamedTuple):
        a: np.ndarray
        b: np.ndarray | None = None

    arrays_where_said({"first": [Two(np.ones(1))]}, "x")
    for wrong, said in (
        (Two([1.0]), "a: should be an array, is list"),
        (Two(np.ones(1), 2), "b: should be an array, is int"),
    ):
        with pytest.raises(TypeError, match=rf"^x\.first\.0\.{said}$"):
            arrays_where_said({"first": [wrong]}, "x")


def test_nothing_in_as_many_rows_as_loops_go_through_in_a_moment_is_taken():
    plain("X", np.zeros((3, ROWS_OF_NOTHING // 4, 0)))
    plain("X", np.zeros((ROWS_OF_NOTHING, 0)))
    with pytest.raises(ValueError, match=r"^X: shape .* is empty, and should have 16777216 rows at most$"):
        plain("X", np.zeros((ROWS_OF_NOTHING + 1, 0)))


@every
def test_arrays_of_another_kind_are_refused_by_name(name):
    _, _, given = call(name)
    for key, value in given.items():
        if isinstance(value, np.ndarray):
            for bad in (value.astype(value.dtype.newbyteorder()), np.ma.masked_array(value)):
                if bad.dtype.itemsize > 1 or isinstance(bad, np.ma.MaskedArray):
                    with pytest.raises(TypeError, match=key):
                        call(name, **{key: bad})


@every
def test_a_mixture_of_float32_and_float64_is_refused_by_name(name):
    """NumPy would quietly go on in float64. (The angles of a rotation are brought to what they turn.)"""
    _, _, given = call(name)
    floats = [key for key, value in given.items() if isinstance(value, np.ndarray) and value.dtype == np.float32]
    for key in floats if len(floats) + len(list(tree_items(given.get("params", ())))) > 1 else ():
        if name == "rotate":
            assert call(name, **{key: given[key].astype(np.float64)})[0].dtype == (
                np.float64 if key == "X" else np.float32
            )
            continue
        with pytest.raises(TypeError, match=rf"\b{key}\b"):
            call(name, **{key: given[key].astype(np.float64)})


@pytest.mark.parametrize("name", [name for name, (_, owner) in CALLS.items() if owner is not None])
def test_parameters_of_another_form_are_refused_by_path(name, tier):
    _, _, given = call(name)
    params = given["params"]
    for path, leaf in tree_items(params):
        others = [np.concatenate([leaf, leaf]), leaf[..., None], leaf.astype(int), leaf.astype(complex), leaf.tolist()]
        if len(list(tree_items(params))) > 1:
            others.append(leaf.astype(np.float64))
        for other in others:
            with pytest.raises(TypeError, match=path if other is not others[-1] else "params"):
                call(name, params=tree_set(params, path, other))
    for other in (tuple(params), (), None, "params") if tuple(params) else ("params",):
        with pytest.raises(TypeError, match="params"):
            call(name, params=other)


def turned(tree):
    """The same tree, the names of each dict in the opposite order."""
    if isinstance(tree, dict):
        return {name: turned(part) for name, part in reversed(tree.items())}
    if isinstance(tree, (tuple, list)):
        parts = [turned(part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree


def test_what_a_function_hands_through_can_still_be_written_to():
    """Y is a view that nobody may change; an argument that comes back as Y stays as it was in its owner's hands."""
    X = np.ones((2, 3))
    Y, _ = dropout(X, 0.5, None)
    assert np.shares_memory(X, Y)
    assert not Y.flags.writeable
    assert X.flags.writeable


@pytest.mark.parametrize("name", [name for name, (_, owner) in CALLS.items() if owner is not None])
def test_names_of_parameters_may_come_in_any_order(name, tier):
    """As they do from a file: the same values, gradients and steps; a name more or less is refused by path."""
    layer = CALLS[name][1]
    Y, pullback, given = call(name)
    params = given["params"]
    Z, other, _ = call(name, params=turned(params))
    assert same(Y, Z)
    want = dict(tree_items(pullback(ones(Y))))
    for path, found in tree_items(other(ones(Y))):
        assert np.array_equal(found, want.pop(path)), path
    assert want == {}
    if name in STEPS:
        new = np.ones((1, 2), int) if name in MODELS else np.ones((1, 2, 8), np.float32)
        assert same(layer.step(turned(params), new)[0], layer.step(params, new)[0])
    for path in {path.rpartition(".")[0] for path, _ in tree_items(params)}:
        part = tree_get(params, path)
        if isinstance(part, dict):
            key, leaf = next(iter(part.items()))
            for odd, said in (
                ({k: v for k, v in part.items() if k != key}, f"{key}: is missing"),
                ({**part, "odd": leaf}, "odd: is no part of it"),
            ):
                with pytest.raises(TypeError, match=rf"^{re.escape(f'params.{path}.{said}')}"):
                    call(name, params=tree_set(params, path, odd))
        elif hasattr(part, "_asdict") and part:
            with pytest.raises(
                TypeError, match=rf"^params{re.escape('.' + path if path else '')}: should be .*, is dict"
            ):
                call(name, params=tree_set(params, path, part._asdict()))


def views(array):
    """The same numbers in other places of memory."""
    yield np.asfortranarray(array)
    yield np.ascontiguousarray(array[..., ::-1])[..., ::-1]
    yield np.repeat(array, 2, -1)[..., ::2] if array.ndim else array
    still = array.copy()
    still.flags.writeable = False
    yield still


@every
def test_it_does_not_matter_how_an_array_lies_in_memory(name, tier):
    Y, _, given = call(name)
    for key, value in given.items():
        for path, leaf in tree_items(value):
            for other in views(leaf) if isinstance(leaf, np.ndarray) else ():
                Z, _, _ = call(name, **{key: tree_set(value, path, other) if path else other})
                for (_, z), (_, y) in zip(tree_items(Z), tree_items(Y), strict=True):
                    np.testing.assert_allclose(z, y, rtol=1e-5, atol=1e-6, err_msg=f"{key} {path}")


def sizes():
    """The sizes that each call has, by its signature."""
    for name, (function, _) in CALLS.items():
        parameters = inspect.signature(inspect.unwrap(function)).parameters.values()
        asked = set(re.findall(r"\w+", " ".join(str(p.annotation) for p in parameters)))
        yield from ((name, size) for size in SIZES if size in asked)


@pytest.mark.parametrize(("name", "size"), list(sizes()))
def test_of_nothing_comes_nothing_or_a_reason(name, tier, size, monkeypatch):
    """A size of zero gives an array, of zeros (or ln 0) where there is something, or an error that names what is wrong."""
    monkeypatch.setitem(SIZES, size, 0)
    try:
        Y, pullback, _ = call(name)
    except (TypeError, ValueError) as error:
        named, numpys = ": " in str(error), ("operands", "matmul", "reshape", "argmax", "axis")
        if "parameter '" in str(error) or (named and not any(word in str(error) for word in numpys)):
            return
        raise
    assert all(np.isfinite(part).all() or (part == -np.inf).all() for _, part in tree_items(Y))
    grads = pullback(ones(Y))
    assert all(np.isfinite(leaf).all() for _, leaf in tree_items(grads) if isinstance(leaf, np.ndarray))


def of_one_sample(given, function):
    """Arguments without the axes that a star stands for in the signature."""
    for key, parameter in inspect.signature(inspect.unwrap(function)).parameters.items():
        dims = next(
            (
                p.dim_str
                for p in (parameter.annotation, *typing.get_args(parameter.annotation))
                if hasattr(p, "dim_str")
            ),
            "",
        )
        if key in given and isinstance(given[key], np.ndarray):
            axis = [k for k, name in enumerate(dims.split()) if name[0] == "*"]
            given[key] = given[key][..., *(0 if k in axis else slice(None) for k in range(given[key].ndim))]
    return given


@every
def test_one_sample_needs_no_axis_of_its_own(name, tier):
    """Where heads stand on that axis, or another argument has it too, the error names who wants it."""
    _, _, given = call(name)
    try:
        Y, pullback, _ = call(name, **of_one_sample(given, CALLS[name][0]))
    except (TypeError, ValueError) as error:
        if re.match(r"(parameter '\w+'|\w+): shape ", str(error)):
            return
        raise
    assert all(np.isfinite(leaf).all() for _, leaf in tree_items(pullback(ones(Y))) if isinstance(leaf, np.ndarray))


def test_what_is_missing_and_what_is_too_much():
    layer = MultiHeadAttention(6, 2)
    form = layer.init(np.random.default_rng(0))
    fit(form, form)
    for params, message in (
        (form._replace(W_k=None), r"params\.W_k: should be an array \(6, 6\), is None"),
        (form._replace(streams=form), r"params\.streams: should be None, is MultiHeadParams"),
        (form._replace(core=(form.W_q,)), r"params\.core: should be NoParams, is tuple of 1"),
        (form._replace(W_o={"a": 1}), r"params\.W_o: should be an array \(6, 6\), is dict of 1"),
    ):
        with pytest.raises(TypeError, match=message):
            fit(params, form)


MODELS = ("language model", "model with a memory", "model of one block")
STEPS = {name: layer for name, layer in layers() if hasattr(layer, "step") and getattr(layer, "decodes", True)}


def after_a_step(name):
    """A layer, its parameters, three tokens of two samples, or rows, and the state that these have left."""
    layer, rng = STEPS[name], np.random.default_rng(0)
    params = layer.init(rng)
    new = rng.integers(0, 7, (2, 3)) if name in MODELS else rng.standard_normal((2, 3, 8)).astype(np.float32)
    return layer, params, new, layer.step(params, new)[1]


@pytest.mark.parametrize("name", dict(layers()))
def test_parameters_are_drawn_by_a_generator_as_floats(name):
    """Where nothing is drawn, too."""
    layer, rng = dict(layers())[name], np.random.default_rng(0)
    with pytest.raises(TypeError, match=r"^rng: 0 should be a generator, such as np\.random\.default_rng\(0\)$"):
        layer.init(0)
    for dtype, called in ((np.int64, "int64"), (np.float16, "float16"), ("float32", "float32"), (rng, ".*")):
        with pytest.raises(TypeError, match=rf"^dtype: {called} should be np\.float32 or np\.float64$"):
            layer.init(rng, dtype)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_has_a_door_too(name, tier):
    """Parameters and new tokens that don't fit are refused, also after a step that did."""
    layer, params, new, state = after_a_step(name)
    layer.step(params, new[:, :1], state)
    for path, leaf in tree_items(params):
        with pytest.raises(TypeError, match=rf"params\.{path}: "):
            layer.step(tree_set(params, path, np.concatenate([leaf, leaf])), new[:, :1], state)
    for wrong in (new[..., :1], new.astype(bool)):
        if wrong.shape[-1] == 1 and name in MODELS:
            continue
        with pytest.raises(TypeError, match=r"parameter 'X'|tokens: bool should be int64"):
            layer.step(params, wrong, state)
    with pytest.raises(TypeError, match="params"):
        layer.step(params[:-1], new, state)


@pytest.mark.parametrize("name", STEPS)
def test_a_state_goes_back_to_who_has_left_it(name, tier):
    """To the same layer, with the same samples; that of another has other numbers in the same places, or other places."""
    layer, params, new, state = after_a_step(name)
    copy.deepcopy(layer).step(params, new, state)  # an equal one is the same
    again = pickle.loads(pickle.dumps(state))
    assert same(layer.step(params, new, again)[0], layer.step(params, new, state)[0])
    with pytest.raises(ValueError, match=r"state: belongs to a batch \(2,\), should be that of \(1,\)"):
        layer.step(params, new[:1], state)
    for other, theirs in STEPS.items():
        if other != name and (other in MODELS) == (name in MODELS) and theirs != layer:
            with pytest.raises(ValueError, match=r"state: comes from another"):
                theirs.step(theirs.init(np.random.default_rng(0)), new, state)


@pytest.mark.parametrize("name", STEPS)
def test_a_state_of_another_kind_is_refused_by_name(name, tier):
    """What is none, and what another kind of layer has left, by whatever way it has come."""
    layer, params, new, left = after_a_step(name)
    for other in (3, "state", [1], {}, params, object(), new):
        with pytest.raises(TypeError, match=r"states?: |parameter 'states?'"):
            layer.step(params, new, other)
    for theirs in STEPS.values():
        tokens = np.ones((2, 3), int) if isinstance(theirs, LanguageModel) else np.ones((2, 3, 8), np.float32)
        state = theirs.step(theirs.init(np.random.default_rng(0)), tokens)[1]
        if theirs != layer:
            with pytest.raises((TypeError, ValueError), match=r"states?: |parameter 'states?'"):
                layer.step(params, new, pickle.loads(pickle.dumps(state)))
        if kinds(state) != kinds(left):
            with pytest.raises(TypeError, match=r"^states?[.\w]*: should be .*, is "):
                layer.step(params, new, by_hand(state))


def by_hand(state, rename=str):
    """The same state, and nobody knows who has left it; perhaps under other names."""
    if not isinstance(state, tuple):
        return state
    parts, kind = [by_hand(part, rename) for part in state], type(state)
    if not hasattr(kind, "_fields"):
        return kind(parts)
    return (kind if rename is str else namedtuple(kind.__name__, map(rename, kind._fields)))(*parts)


@pytest.mark.parametrize("name", STEPS)
def test_a_state_made_by_hand_has_the_parts_of_one_that_was_left(name, tier):
    """Under the same names, in the same order; then it goes on as that one does."""
    layer, params, new, left = after_a_step(name)
    want = layer.step(params, new, left)[0]
    assert same(layer.step(params, new, by_hand(left))[0], want)
    named, rest = type(left), tuple(left)
    others = [by_hand(left, "{}_".format), rest if hasattr(named, "_fields") else (*rest, rest[0])]
    if hasattr(named, "_fields"):
        others += [by_hand(left)._replace(**{field: object()}) for field in named._fields]
    for other in others:
        with pytest.raises(TypeError, match=r"^states?[.\w]*: should be .*, is |parameter 'states?'"):
            layer.step(params, new, other)
        with pytest.raises(TypeError, match=r"^states?[.\w]*: should be .*, is |parameter 'states?'"):
            layer.step(params, new, state=other) if "state" in inspect.signature(layer.step).parameters else layer.step(
                params, new, states=other
            )


def kinds(state):
    """The types of a state and of its parts."""
    return (type(state).__name__, *map(kinds, state)) if isinstance(state, tuple) else type(state).__name__


def test_a_state_that_was_made_by_hand_has_to_fit():
    rng = np.random.default_rng(0)
    K = rng.standard_normal((2, 2, 3, 4)).astype(np.float32)
    for other in (K[:1], K[:, :1], K[..., :2], K.astype(np.float64)):
        with pytest.raises(ValueError, match=r"^state\.K: float\d\d \(.*\) should be float32 \(2, 2, any, 4\)"):
            SoftmaxAttention().step(NoParams(), K, K, K, state=KeysValues.of(other, other))
    _, left = SoftmaxAttention().step(NoParams(), K, K, K, state=None)
    changes = {"V": left.V[..., :3, :]}, {"length": -1, "written": [-1]}, {"length": 10**5}, {"length": 4}
    for changed in changes:  # after 3 positions nobody has written the fourth
        with pytest.raises(ValueError, match=r"does not fit room of|state.length: -1 should be at least 0"):
            SoftmaxAttention().step(NoParams(), *[K[:, :, :1]] * 3, state=left._replace(**changed))
    with pytest.raises(ValueError, match=r"state: belongs to a batch \(2, 2\), should be that of \(1, 2\)"):
        SoftmaxAttention().step(NoParams(), *[K[:1]] * 3, state=left._replace(length=2))


@pytest.mark.parametrize("name", STEPS)
def test_a_state_with_another_field_is_looked_at_as_one_made_by_hand(name, tier):
    """Its mark says who has left it, and nothing of what was put there since."""
    layer, params, new, left = after_a_step(name)
    if hasattr(left, "_replace"):
        assert same(layer.step(params, new, left._replace())[0], layer.step(params, new, left)[0])
    for field in getattr(left, "_fields", ()):
        for changed in (left._replace(**{field: object()}), copy.copy(left._replace(**{field: "3"}))):
            with pytest.raises(TypeError, match=rf"^states?\.{field}: should be .*, is "):
                layer.step(params, new, changed)


def test_the_parts_of_a_state_have_to_fit_each_other(tier):
    """They are what loops go by: how many rows there are is not asked there."""
    K = np.random.default_rng(0).standard_normal((2, 2, 9, 4)).astype(np.float32)
    one = [K[:, :, :1]] * 3
    core = SoftmaxAttention(Window(2))
    _, left = core.step(NoParams(), K, K, K, state=None)
    for changed in (
        {"V": left.V[..., :0, :]},
        {"K": left.K[..., :2, :]},
        {"end": -1},
        {"end": 1},  # the next query sees two of them
        {"end": 10**5},
        {"length": 0},
        {"length": 10, "end": 10},
    ):
        with pytest.raises(ValueError, match=r"do not fit room of|state.end: -1 should be at least 0"):
            core.step(NoParams(), *one, state=left._replace(**changed))
    _, other = SoftmaxAttention(Window(1)).step(NoParams(), K, K, K, state=None)
    with pytest.raises(ValueError, match=r"^state\.kept: Kept\(first=0, last=2\) should be Kept\(first=0, last=3\)"):
        core.step(NoParams(), *one, state=by_hand(other))
    for name, part in (
        *(("nsa:block=2", "means"), ("moba:block=2", "means"), ("indexer", "small")),
        ("compressed:stride=2", "blocks"),
    ):
        core = attention_of(name, SHORT)
        params, streams = core.init(np.random.default_rng(0)), []
        streams = [np.ones((2, 2, 9, columns), np.float32) for columns in core.streams.values()]
        _, left = core.step(params, K, K, K, *streams, state=None)
        other = core.step(params, K, K, K, *streams, state=left)[1]
        with pytest.raises(ValueError, match=r"^state: .* do not belong to 9 positions"):
            core.step(
                params, *one, *(X[:, :, :1] for X in streams), state=left._replace(**{part: getattr(other, part)})
            )
        short = getattr(left, part)._replace(K=getattr(left, part).K[..., :1, :])
        with pytest.raises(ValueError, match=r"^state: length \d does not fit room of"):
            core.step(params, *one, *(X[:, :, :1] for X in streams), state=left._replace(**{part: short}))


@pytest.mark.parametrize("name", STEPS)
def test_a_state_counts_what_is_there(name, tier):
    """No number is below 0; and what a state says of its own length is compared with what it has."""
    layer, params, new, left = after_a_step(name)
    for field in getattr(left, "_fields", ()):
        if isinstance(getattr(left, field), int):
            with pytest.raises(ValueError, match=rf"^states?\.{field}: -1 should be at least 0"):
                layer.step(params, new, left._replace(**{field: -1}))


def test_a_state_that_says_it_is_longer_than_it_is(tier):
    rng = np.random.default_rng(0)
    X, tokens = rng.standard_normal((1, 5, 8)).astype(np.float32), rng.integers(0, 7, (1, 5))
    for kind, said in (
        (SoftmaxAttention(page=4), r"^state: length \d does not fit 2 pages of \d"),
        (MemoryCompressed(2, 4, stride=2), r"^state: blocks and keys of 5 positions do not belong to \d positions"),
    ):
        layer = MultiHeadAttention(8, 2, core=kind)
        params = layer.init(rng)
        _, left = layer.step(params, X)
        for wrong in ({"length": 6}, {"length": 9}, {"size": 5}):
            if wrong.keys() <= left._asdict().keys():
                with pytest.raises(ValueError, match=said):
                    layer.step(params, X, left._replace(**wrong))
    model = LanguageModel(7, 16, 8, 1, 2, attention="reformer")
    _, left = model.step(model.init(rng), tokens)
    with pytest.raises(ValueError, match=r"^state: its tokens should be 9, as its length is, are 5"):
        model.step(model.init(rng), tokens, left._replace(length=9))
    model = LanguageModel(7, 16, 8, 2, 2, positions="transformer-xl", stack="transformer-xl:memory=4")
    params = model.init(rng)
    _, left = model.step(params, tokens)
    with pytest.raises(ValueError, match=r"^states\.place: 99 should be from 0 to 16, a segment"):
        model.step(params, tokens, left._replace(blocks=left.blocks._replace(place=99)))
    short = left.blocks.blocks[0]._replace(length=4)
    for wrong in ({"place": 6}, {"place": 0}, {"blocks": (short, *left.blocks.blocks[1:])}):
        with pytest.raises(
            ValueError, match=r"^states\.blocks: memories of length .* should have one length from 0 to 4 in all blocks"
        ):
            model.step(params, tokens, left._replace(blocks=left.blocks._replace(**wrong)))


@pytest.mark.parametrize("name", STEPS)
def test_arrays_of_a_state_have_the_dtype_and_shape_of_those_that_were_left(name, tier):
    """NumPy would repeat one sample for all, and loops would be compiled for another dtype, or could not be."""
    layer, params, new, left = after_a_step(name)
    for where, X in tree_items(left):
        if isinstance(X, np.ndarray):
            for other in (X.astype(np.float16), X.astype(complex), X[:1]):
                if X.dtype.kind == "i" and len(other) == len(X):
                    continue
                wrong = by_hand(tree_map(lambda part, X=X, other=other: other if part is X else part, left))
                with pytest.raises(ValueError, match=rf"^states?\.{where}: .* should be "):
                    layer.step(params, new, wrong)


@pytest.mark.parametrize("stack", ["plain", "universal", "reversible"])
@pytest.mark.parametrize("attention", ["softmax", "window", "linear", "moba:block=2", "reformer"])
def test_a_model_and_its_blocks_have_read_the_same_text(attention, stack, tier):
    """By its length the new tokens are placed."""
    model = LanguageModel(7, 16, 8, 2, 2, attention=attention, stack=stack)
    params, tokens = model.init(np.random.default_rng(0)), np.arange(5)
    _, left = model.step(params, tokens)
    for length in (0, 4, 6, 10**12, np.int64(5)):
        with pytest.raises((ValueError, TypeError), match=r"^state\.(blocks: 5|length: )|^state: its tokens"):
            model.step(params, tokens, left._replace(length=length))
    if left.blocks is not None:
        _, longer = model.step(params, tokens, left)
        with pytest.raises(ValueError, match=r"^state\.blocks: 10 tokens do not belong to state\.length, 5"):
            model.step(params, tokens, left._replace(blocks=longer.blocks))


@pytest.mark.parametrize("core", [SoftmaxAttention(), SoftmaxAttention(Window(2)), SoftmaxAttention(page=4)])
def test_a_state_that_can_not_be_written_is_copied(core, tier):
    """As one is that was mapped from a file."""

    def still(state):
        if isinstance(state, np.ndarray):
            state = state.copy()
            state.flags.writeable = False
            return state
        return tree_map(still, state) if isinstance(state, tuple) else state

    rng = np.random.default_rng(0)
    layer = MultiHeadAttention(8, 2, core=core)
    params, X = layer.init(rng), rng.standard_normal((1, 7, 8)).astype(np.float32)
    _, left = layer.step(params, X[:, :5])
    kept = still(left)
    for n in (1, 2):
        want, _ = layer.step(params, X[:, 5 : 5 + n], left)
        np.testing.assert_allclose(layer.step(params, X[:, 5 : 5 + n], kept)[0], want, rtol=1e-5, atol=1e-6)


def test_keys_in_pages_are_a_state_like_any_other():
    rng = np.random.default_rng(0)
    layer = MultiHeadAttention(8, 2, core=SoftmaxAttention(page=4))
    params, X = layer.init(rng), rng.standard_normal((1, 7, 8)).astype(np.float32)
    _, state = layer.step(params, X[:, :5])
    Y, _ = layer.step(params, X[:, 5:], state)
    np.testing.assert_allclose(Y, layer(params, X, causal=True)[0][:, 5:], rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"state: belongs to a batch \(1,\), should be that of \(2,\)"):
        layer.step(params, np.repeat(X, 2, 0), state)


def test_generating_has_a_door_too():
    model, rng = LanguageModel(7, 8, 8, 1, 2), np.random.default_rng(0)
    params = model.init(rng)
    assert len(generate(model, params, np.array([1]), 3, rng=rng)) == 3
    with pytest.raises(TypeError, match=r"params\.E: shape \(14, 8\) should be \(7, 8\)"):
        generate(model, params._replace(E=np.concatenate([params.E] * 2)), np.array([1]), 3, rng=rng)


def test_a_layer_may_hold_an_array():
    """Nothing is remembered of it, and its check is as it is."""

    @dataclasses.dataclass(frozen=True)
    class Fixed(Core):
        table: np.ndarray

        def init(self, rng, dtype=np.float32):
            return np.zeros(3, dtype)

        def __call__(self, params, Q, K, V, *streams, causal=False, mask=None, rng=None):
            return V[..., -Q.shape[-2] :, :] + self.table, UnchangedPullback()

    layer = MultiHeadAttention(8, 2, core=Fixed(np.ones(4, np.float32)))
    params = layer.init(np.random.default_rng(0))
    X = np.ones((1, 3, 8), np.float32)
    assert layer(params, X)[0].shape == (1, 3, 8)
    with pytest.raises(TypeError, match=r"params\.core: shape \(4,\) should be \(3,\)"):
        layer(params._replace(core=np.ones(4, np.float32)), X)
    _, state = layer.step(params, X)
    assert layer.step(params, X, state)[0].shape == (1, 3, 8)
    with pytest.raises(ValueError, match=r"state: comes from another MultiHeadAttention"):
        MultiHeadAttention(8, 2, core=Fixed(np.ones(4, np.float32))).step(params, X, state)


def test_only_the_outermost_call_has_a_door():
    """What a function makes of other functions is not asked again, and it may change what it has made."""
    from minitransformer.typing import Array, Float, checked

    @checked
    def twice(X: Float[Array, "n D"], W: Float[Array, "D D"]):
        Y, pullback = linear(X, W)
        Y += Y
        return Y, pullback

    X, W = np.ones((2, 3)), np.ones((3, 3))
    Y, pullback = twice(X, W)
    assert (Y == 6).all()
    with pytest.raises(ValueError, match="read-only"):
        Y += 1
    assert (pullback(np.ones((2, 3)))[0] == 3).all()


@pytest.mark.parametrize("cut", ["K", "V"])
def test_what_a_core_of_the_reader_calls_has_a_door(cut, tier):
    """A loop would read behind the end of fewer values than keys. In a layer, alone, and in its pullback."""

    class WrongPullback(Pullback):
        Q: np.ndarray

        def __call__(self, dY):
            return NoParams(), *dot_product_attention(self.Q, self.Q, self.Q[..., :2, :])[1](dY)

    @dataclasses.dataclass(frozen=True)
    class Wrong(Core):
        forward: bool = True

        def init(self, rng, dtype=np.float32):
            return NoParams()

        def __call__(self, params, Q, K, V, *streams, causal=False, mask=None, rng=None):
            given = {"K": K, "V": V} | ({cut: V[..., :2, :].copy()} if self.forward else {})
            return dot_product_attention(Q, **given)[0], WrongPullback(Q)

    layer, X = MultiHeadAttention(8, 2, core=Wrong()), np.ones((1, 70, 8), np.float32)
    params, heads = layer.init(np.random.default_rng(0)), np.ones((1, 2, 70, 4), np.float32)
    for call_it in (
        lambda: layer(params, X),
        lambda: Wrong()(NoParams(), heads, heads, heads),
        lambda: layer.step(params, X),
    ):
        with pytest.raises(TypeError, match="parameter 'V'"):
            call_it()
    layer = MultiHeadAttention(8, 2, core=Wrong(forward=False))
    Y, pullback = layer(layer.init(np.random.default_rng(0)), X)
    with pytest.raises(TypeError, match="parameter 'V'"):
        pullback(Y)
    assert not the_call.inside
    with pytest.raises(TypeError, match="parameter 'V'"):
        dot_product_attention(heads, heads, heads[..., :2, :])


@pytest.mark.skipif(len(available()) == 1, reason="needs Numba")
def test_a_value_from_the_door_goes_into_the_next_loop_without_a_copy():
    X = np.ones((70, 64), np.float32)
    Y, _ = linear(X, np.ones((64, 64), np.float32))
    _, pullback = layer_norm(Y, X[0], X[0])
    assert any(np.shares_memory(leaf, Y) for _, leaf in tree_items(pullback)) or not isinstance(pullback[0], np.ndarray)


# ----------------------------------------------------------------------------------------------- choices


CHOSEN = {type(thing): thing for _, layer in layers() for thing in (layer, *vars(layer).values())}
CHOSEN = {kind: thing for kind, thing in CHOSEN.items() if dataclasses.is_dataclass(kind)}


@pytest.mark.parametrize("kind", CHOSEN, ids=lambda kind: kind.__name__)
def test_every_field_is_asked_for_its_type(kind):
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        wrong = [] if hint is typing.Any else [object(), (object(),)]
        if hint in (int, int | None):
            wrong += ["3", 2.5, True, [4], np.float64(2)]
        if hint in (float, float | None):
            wrong += ["3", True, 1j]
        for value in wrong:
            with pytest.raises(TypeError, match=f"^{field.name}: "):
                dataclasses.replace(CHOSEN[kind], **{field.name: value})
        if hint in (int, float, int | None, float | None) and field.name != "seed":
            for value in (10**30, -(10**400), *([np.nan, -1e39, 1e39] if hint in (float, float | None) else [])):
                with pytest.raises(ValueError, match=f"^{field.name}: .* should be a number"):
                    dataclasses.replace(CHOSEN[kind], **{field.name: value})
        if field.name in AT_MOST:
            with pytest.raises(ValueError, match=f"^{field.name}: .* should be a number up to {AT_MOST[field.name]}"):
                dataclasses.replace(CHOSEN[kind], **{field.name: 2 * AT_MOST[field.name]})
        for value in out_of_range(field.name, hint):
            with pytest.raises(ValueError, match=field.name):
                dataclasses.replace(CHOSEN[kind], **{field.name: value})
        if typing.get_origin(hint) is typing.Literal:
            with pytest.raises(ValueError, match=f"^{field.name}: no 'sideways'; there are "):
                dataclasses.replace(CHOSEN[kind], **{field.name: "sideways"})


# Work grows with these, also where there is little in the arrays.
AT_MOST = {"degree": 2**6, "nu": 2**10, "iterations": 2**10, "rounds": 2**10, "steps": 2**20, "count": 2**20}
ANY_SIGN = {"first", "offset", "scale", "magnitude", "sink"}
CAN_BE_ZERO = {
    "layer",
    "number",
    "extra",
    "n",
    "m",
    "part",
    "steps",
    "warmup",
    "outputs",
    "seed",
    "radius",
    "global_tokens",
    "window",
    "random",
    "clip",
    "memory",
    "ponder",
    "count",
}


def out_of_range(name, hint):
    """Numbers that nothing of this name can be."""
    if hint in (int, int | None, float, float | None) and name not in ANY_SIGN:
        yield from (-1, -3)
    if hint in (float, float | None) and name not in ANY_SIGN:
        yield -0.5
    if hint in (int, int | None) and name not in ANY_SIGN | CAN_BE_ZERO:
        yield 0


NUMBERS = [
    (name, parameter.name, hint)
    for name, f in public()
    if inspect.isfunction(f)
    for parameter in inspect.signature(f).parameters.values()
    if (hint := bare(parameter.annotation)) in (int, int | None, float, float | None)
]


@pytest.mark.parametrize(("function", "parameter", "hint"), NUMBERS)
def test_every_number_that_a_function_takes_is_asked_for_its_range(function, parameter, hint):
    """By name, and before anything else is looked at."""
    f = dict(public())[function]
    others = dict.fromkeys(inspect.signature(f).parameters)
    often = (2 * AT_MOST[parameter], 2**31) if parameter in AT_MOST else ()
    for value in (*out_of_range(parameter, hint), *often, *((np.nan, np.inf, 1e39) if "float" in str(hint) else ())):
        with pytest.raises(ValueError, match=f"^{parameter}: "):
            f(**{**others, parameter: value})


def test_every_choice_of_the_book_is_asked():
    assert len(CHOSEN) >= 25
    for name, kind in CLASSES.items():
        if dataclasses.is_dataclass(kind):
            assert kind.__post_init__.__qualname__ == "frozen.<locals>.look", name


def test_help_says_a_range_in_words():
    assert repr(Part) == "typing.Annotated[float, in [0, 1]]"
    assert repr(Degree) == "typing.Annotated[int, at least 1, up to 64]"
    assert "dropout: Annotated[float, in [0, 1)]" in str(inspect.signature(LanguageModel)).replace("typing.", "")
