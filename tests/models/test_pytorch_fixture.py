"""The same weights in PyTorch: values and gradients of every layer that both have.

`data/pytorch_layers.npz` holds what PyTorch computed, once, in float64 (data/README.md says how); PyTorch itself is
not needed here. A second implementation is the best oracle there is: the loss of a wrong layer also falls.
"""

import json
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import functional, tree_items
from minitransformer.attention import MultiHeadAttention, MultiHeadParams, dot_product_attention
from minitransformer.models import Block, BlockParams, FeedForwardParams, NormParams, Stack, StackParams

PATH = Path(__file__).parent / "data" / "pytorch_layers.npz"

# -------------------------------------------------------------------------- weights, from their names to ours
# PyTorch keeps a matrix as (out, in) and multiplies x Wᵀ; and the three projections of attention in one matrix.


def multi_head(w, name=""):
    q, k, v = np.split(w[name + "in_proj_weight"].T, 3, axis=1)
    o = w[name + "out_proj.weight"].T
    if name + "in_proj_bias" not in w:
        return MultiHeadParams(q, k, v, o)
    return MultiHeadParams(q, k, v, o, *np.split(w[name + "in_proj_bias"], 3), w[name + "out_proj.bias"])


def norm(w, name):
    return NormParams(w[name + ".weight"], w[name + ".bias"])


def block(w, name=""):
    ffn = FeedForwardParams(
        w[name + "linear1.weight"].T, w[name + "linear1.bias"], w[name + "linear2.weight"].T, w[name + "linear2.bias"]
    )
    attention = multi_head(w, name + "self_attn.")
    if name + "norm3.weight" not in w:
        return BlockParams(norm(w, name + "norm1"), attention, norm(w, name + "norm2"), ffn)
    cross = norm(w, name + "norm2"), multi_head(w, name + "multihead_attn.")
    return BlockParams(norm(w, name + "norm1"), attention, norm(w, name + "norm3"), ffn, *cross)


def stack(w):
    depth = 1 + max(int(name.split(".")[1]) for name in w if name.startswith("layers."))
    return StackParams(tuple(block(w, f"layers.{k}.") for k in range(depth)), norm(w, "norm"))


# ----------------------------------------------------------------------------------- our side of each case


def ours(case, stored):
    """The function of a case, its arguments, and how PyTorch's gradients are called among ours."""
    x, w, masks = stored["in"], stored.get("param", {}), stored.get("mask", {})
    eps, heads = float(stored["eps"]), int(stored["heads"])
    mask, causal = masks.get("mask"), "causal" in case
    kind, *rest = case.split()

    if kind in ("layer_norm", "rms_norm"):
        return partial(getattr(functional, kind), eps=eps), (x["X"], *w.values()), list
    if kind in ("relu", "gelu", "gelu_tanh", "softmax", "linear", "embedding"):
        return getattr(functional, kind), (*x.values(), *w.values()), list
    if kind == "cross_entropy":
        return partial(functional.cross_entropy, mask=masks["kept"]), (x["logits"], x["targets"]), list
    if kind == "sdpa":
        scale = 0.3 if rest == ["scale"] else None
        return partial(dot_product_attention, mask=mask, causal=causal, scale=scale), (x["Q"], x["K"], x["V"]), list
    if kind == "mha":
        layer = MultiHeadAttention(x["X"].shape[-1], heads, bias="bias" not in rest)
        function = partial(layer if rest[0] == "self" else layer.cross, mask=mask, causal=causal)
        return function, (multi_head(w), *x.values()), multi_head

    stacked = "stack" in rest
    order, ffn = ("pre", "gelu") if stacked else rest
    hidden = next(a.shape[0] for name, a in w.items() if name.endswith("linear1.weight"))
    cross = kind == "decoder"
    layer = Block.of(x["X"].shape[-1], heads, hidden, order, f"layer:eps={eps}", ffn, cross=cross)
    layer, convert = (Stack((layer,) * 2), stack) if stacked else (layer, block)
    options = {"Z_mask": mask, "causal": True} if cross else {"mask": mask, "causal": causal}
    return partial(layer, **options), (convert(w), *x.values()), convert


def distance(a, b):
    """Largest difference, relative to the largest entry (or to 1: gradients of b_k are zero)."""
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    return np.abs(a - b).max() / max(np.abs(b).max(), 1)


def largest_distance(case, stored):
    """Over the value and all gradients; their names too."""
    function, args, convert = ours(case, stored)
    Y, pullback = function(*args)
    grads = pullback(np.asarray(stored["dY"]["Y"]))
    theirs = dict(stored["grad"])
    inputs = [theirs.pop(name) for name in stored["in"] if name in theirs]
    expected = (*inputs, *theirs.values()) if convert is list else (convert(theirs), *inputs)
    found = dict(tree_items(grads if isinstance(grads, tuple) else (grads,)))
    wanted = dict(tree_items(expected))
    assert found.keys() == wanted.keys()
    distances = {"Y": distance(np.asarray(Y), stored["out"]["Y"])}
    if "A" in stored["out"]:
        distances["A"] = distance(pullback.A, stored["out"]["A"])
    return distances | {name: distance(found[name], wanted[name]) for name in wanted}


# ------------------------------------------------------------------------------------------------ the tests


@cache
def load():
    """case -> kind -> name -> array. The arrays lie one behind another in one long row, for a smaller file."""
    with np.load(PATH) as file:
        numbers, index = file["numbers"], json.loads(str(file["index"]))
        common = {"eps": file["eps"], "heads": file["heads"]}
    cases, start = {}, 0
    for key, shape, dtype in index:
        case, kind, name = key.split("|")
        stop = start + int(np.prod(shape))
        cases.setdefault(case, dict(common)).setdefault(kind, {})[name] = (
            numbers[start:stop].reshape(shape).astype(dtype)
        )
        start = stop
    return cases


CASES = list(load())


@pytest.mark.each_pair
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_pytorch(case, tier):
    distances = largest_distance(case, load()[case])
    assert max(distances.values()) < 1e-12, distances


def test_the_fixture_has_what_it_should():
    """Both kinds of attention, encoder and decoder blocks in both orders with both activations, and the functions."""
    kinds = {case.split()[0] for case in CASES}
    assert kinds >= {"layer_norm", "rms_norm", "gelu", "gelu_tanh", "cross_entropy", "embedding", "sdpa", "mha"}
    for kind in ("encoder", "decoder"):
        for order in ("pre", "post"):
            for activation in ("relu", "gelu"):
                assert f"{kind} {order} {activation}" in CASES
    assert PATH.stat().st_size < 100_000


def test_the_comparison_can_fail():
    """A wrong mask, a wrong ε, one gradient swapped for another: each of them is seen."""
    stored = load()["encoder pre relu"]
    for wrong in (
        stored | {"mask": {}},
        stored | {"eps": 0.02},
        stored | {"grad": stored["grad"] | {"norm1.weight": stored["grad"]["norm2.weight"]}},
    ):
        with mt.backend("numpy"):
            assert max(largest_distance("encoder pre relu", wrong).values()) > 1e-3
