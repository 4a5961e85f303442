"""Layers of Hopfield networks: gradients, limiting cases, and the published code with the same weights."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.attention import MultiHeadAttention, dot_product_attention, split_heads
from minitransformer.pullback import random_like
from minitransformer.related import AssociationParams, Hopfield, HopfieldAssociation, HopfieldLookup, HopfieldPooling

rng = np.random.default_rng
FOUR = Hopfield(steps=4, beta=0.3)


def some(layer):
    return mt.tree_map(lambda a: 0.5 * a, random_like(layer.init(rng(0), np.float64), rng(1)))


def rows(*shape, seed=2):
    return rng(seed).standard_normal((*shape, 8))


def test_gradients(tier):
    association, pooling = HopfieldAssociation(8, 2, FOUR), HopfieldPooling(8, 2, 3, FOUR)
    lookup, mask = HopfieldLookup(8, 2, 5, FOUR), rng(3).random((2, 1, 1, 7)) < 0.7
    given = some(association), rows(2, 4), rows(2, 7, seed=3), rows(2, 7, seed=4)
    mt.check_pullback(partial(association, mask=mask), *given, entries=5)
    mt.check_pullback(partial(pooling, mask=mask), some(pooling), rows(2, 7), entries=5)
    mt.check_pullback(lookup, some(lookup), rows(2, 7), entries=5)
    mt.check_pullback(lookup, some(lookup), rows(7), entries=5)


def test_of_itself_it_is_multi_head_attention_around_the_core():
    association, X = HopfieldAssociation(8, 2, FOUR), rows(2, 6)
    params, layer = some(association), MultiHeadAttention(8, 2, bias=False, core=FOUR)
    whole = layer.init(rng(0), np.float64)._replace(**params._asdict())
    assert np.allclose(association(params, X, X, X)[0], layer(whole, X)[0], atol=1e-13)


def test_pooling_and_lookup_are_the_association_of_what_they_have_learned():
    """With its steps and its β, which are not those that nobody chooses."""
    X = rows(2, 6)
    pooling, lookup, association = (
        HopfieldPooling(8, 2, 3, FOUR),
        HopfieldLookup(8, 2, 5, FOUR),
        HopfieldAssociation(8, 2, FOUR),
    )
    params = some(pooling)
    R = np.broadcast_to(params.R, (2, 3, 8))
    np.testing.assert_allclose(pooling(params, X)[0], association(params.association, R, X, X)[0], atol=1e-13)
    params = some(lookup)
    Z, T = (np.broadcast_to(table, (2, 5, 8)) for table in (params.Z, params.T))
    np.testing.assert_allclose(lookup(params, X)[0], association(params.association, X, Z, T)[0], atol=1e-13)
    assert (HopfieldPooling(8, 2).count, HopfieldLookup(8, 2).count) == (1, 64)
    drawn = HopfieldLookup(8, 2).init(rng(0))
    assert drawn.T.dtype == np.float32
    assert abs(drawn.T.std() / 0.02 - 1) < 0.1


def test_pooling_does_not_care_for_the_order_nor_for_what_is_hidden():
    layer = HopfieldPooling(8, 2, 3, FOUR)
    params, X = some(layer), rows(2, 7)
    Y, _ = layer(params, X)
    assert Y.shape == (2, 3, 8)
    assert np.allclose(layer(params, X[:, ::-1])[0], Y, atol=1e-12)
    there = np.arange(7) < 5
    X[:, 5:] = np.nan
    assert np.allclose(layer(params, X, mask=there)[0], layer(params, X[:, :5])[0], atol=1e-12)


def test_in_a_lookup_tokens_do_not_see_each_other():
    layer = HopfieldLookup(8, 2, 5, FOUR)
    params, X = some(layer), rows(2, 7)
    Y, _ = layer(params, X)
    for b, i in np.ndindex(2, 7):
        assert np.allclose(layer(params, X[b, i : i + 1])[0], Y[b, i], atol=1e-12)


def test_widths_that_do_not_fit():
    for kind in (HopfieldAssociation, HopfieldPooling, HopfieldLookup):
        with pytest.raises(ValueError, match="width: 8 is not divisible into 3 heads"):
            kind(8, 3)
    empty = HopfieldLookup(8, 2, 0)
    assert not empty(some(empty), rows(2, 3))[0].any()
    pooled, pullback = HopfieldPooling(8, 2, 0)(some(HopfieldPooling(8, 2, 0)), rows(2, 3))
    assert pooled.shape == (2, 0, 8)
    assert pullback(pooled)[0].R.shape == (0, 8)
    layer = HopfieldAssociation(8, 2)
    with pytest.raises(TypeError, match="Z"):
        layer(layer.init(rng(0), np.float64), rows(3), rows(4)[:, :5], rows(4))


# ------------------------------------------------------------------------------------- the published code
#
# data/hopfield_layers.npz holds what hflayers/functional.py of ml-jku/hopfield-layers (commit f56f929, with PyTorch 2.13 in
# float64) computes: hopfield_core_forward with R as its query and Z as key and value, weights W, two heads, a padding mask,
# scaling 0.5, update_steps_eps 1e-30, after update_steps_max 0 and 4; and what comes back if dY is sent into Y, through all
# updates. Their update_steps_max is our steps − 1. "per head A" has scaling = [0.3, 1.1] and update_steps_max 0.


@pytest.fixture(scope="module")
def published():
    with np.load(Path(__file__).with_name("data") / "hopfield_layers.npz") as file:
        return dict(file)


@pytest.mark.parametrize("updates", [0, 4])
def test_values_and_gradients_are_those_of_the_published_code(published, updates, tier):
    layer = HopfieldAssociation(8, 2, Hopfield(steps=updates + 1, beta=0.5, tolerance=1e-30))
    Z = published["Z"]
    Y, pullback = layer(AssociationParams(*published["W"]), published["R"], Z, Z, mask=published["mask"][:, None, None])
    dparams, dR, dZ, dT = pullback(published["dY"])
    found = {"Y": Y, "A": pullback.A, "dR": dR, "dZ": dZ + dT}
    found |= {f"d{name}": array for name, array in dparams._asdict().items()}
    for name, array in found.items():
        assert np.allclose(array, published[f"{updates} {name}"], rtol=0, atol=1e-12), name


def test_their_scaling_for_each_head_goes_to_channels(published):
    """Channel a of every head gets entry a mod H, because the vector is repeated; a head should get one entry."""
    Q, K = (split_heads(published[X] @ published["W"][k], 2) for X, k in (("R", 0), ("Z", 1)))
    beta, options = np.array([0.3, 1.1]), {"scale": 1.0, "mask": published["mask"][:, None, None]}
    heads = dot_product_attention(Q * beta[:, None, None], K, K, **options)[1].A
    channels = dot_product_attention(Q * np.resize(beta, 4), K, K, **options)[1].A
    assert np.allclose(channels, published["per head A"], atol=1e-12)
    assert np.abs(heads - published["per head A"]).max() == pytest.approx(0.63, abs=0.005)
