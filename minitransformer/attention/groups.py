"""Grouped-query attention from parameters that exist already: heads of keys and values are pooled, or copied again.

A cache holds keys and values, so with G of them in place of H it is H/G times smaller. A model that was trained with H is
converted by the mean of the heads that are to share one, and then trained a little more; the other way nothing is lost: every
head of a group gets a copy.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from minitransformer.attention.multi_head import MultiHeadParams
from minitransformer.pullback import Tree
from minitransformer.ranges import so_many
from minitransformer.typing import Array, checked


@checked
def mean_pool_heads(params: Tree, heads: int, groups: int) -> Tree:
    """A tree of parameters in which every multi-head attention has `groups` heads of keys and values: means of neighbours.

    All other arrays are those of the old tree, not copies of them.
    heads    H, of queries
    groups   G, must divide the number of heads of keys and values there are
    source   Ainslie et al. 2023, who go on training for a twentieth of the steps
    raises   ValueError if G does not divide the heads of keys, or if the columns of W_q can't be divided into H heads, or those
             of W_k into heads that H can share; for an attention without W_q or W_k, or one whose heads of values share queries
             and keys
    """

    def pooled(W: Array) -> Array:
        if W.shape[-2] % groups:
            raise ValueError(f"groups: {so_many(W.shape[-2], 'head')} of keys can't be divided into {groups} groups")
        return W.reshape(*W.shape[:-2], groups, W.shape[-2] // groups, W.shape[-1]).mean(-2)

    return _in_each_attention(params, heads, pooled)


@checked
def repeat_heads(params: Tree, heads: int) -> Tree:
    """The same function with a key and a value for each of H heads: the heads of a group get copies of what they share.

    All other arrays are those of the old tree, not copies of them.
    heads    H, of queries
    raises   ValueError as `mean_pool_heads`
    """
    return _in_each_attention(params, heads, lambda W: np.repeat(W, heads // W.shape[-2], -2))


def _in_each_attention(tree: Tree, heads: int, change: Callable[[Array], Array]) -> Tree:
    """The tree, with `change` applied to W_k, W_v and their biases in every MultiHeadParams, as (…, heads of keys, d)."""
    if isinstance(tree, MultiHeadParams):
        if tree.W_q is None or tree.W_k is None:
            raise ValueError("params: an attention without W_q or W_k has no heads of keys that others could share")
        width = tree.W_q.shape[-1]
        if width != tree.W_o.shape[-2]:
            raise ValueError("params: where heads of values share queries and keys, they can't share keys and values")
        if width % heads:
            raise ValueError(f"heads: W_q has {so_many(width, 'column')}, which can't be divided into {heads} heads")
        d, columns = width // heads, tree.W_k.shape[-1]
        if columns % d or heads % (columns // d):
            raise ValueError(
                f"heads: W_k has {so_many(columns, 'column')}, which {so_many(heads, 'head')} of width {d} can't share"
            )

        def each(W: Any) -> Any:
            if W is None:
                return None
            changed = change(W.reshape(*W.shape[:-1], -1, d))
            return changed.reshape(*W.shape[:-1], -1)

        return tree._replace(W_k=each(tree.W_k), W_v=each(tree.W_v), b_k=each(tree.b_k), b_v=each(tree.b_v))
    if isinstance(tree, dict):
        return {name: _in_each_attention(part, heads, change) for name, part in tree.items()}
    if isinstance(tree, (tuple, list)):
        parts = [_in_each_attention(part, heads, change) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree
