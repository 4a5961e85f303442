"""The rules for what does not fit: it is refused, with an error that names it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from minitransformer.attention import Core
from minitransformer.attention.core import Part
from minitransformer.backend import backend
from minitransformer.contract.parts import can, heads_for, mixer, refused, rows, sizes_of, some
from minitransformer.pullback import tree_leaves, tree_map
from minitransformer.typing import Array

SIGNED = " (X: Float[Array, '*batch n {self.width}'] in its signature refuses it; see minitransformer/typing.py)"


def refuses(part: Part) -> None:
    """It refuses X of another width or of integers, parameters of another dtype, a wrong mask, a `causal` that it can't have."""
    layer, causal = mixer(part), not can(part, False)
    params, X = some(layer), rows(part, 2, 5)

    def call(X: Array, causal: bool = causal, **options: Any) -> Callable[[], Any]:
        return lambda: layer(params, X, causal=causal, **options)

    said = f"X of width {layer.width - 1} instead of {layer.width}{SIGNED * (layer is part)}"
    refused(call(X[..., :-1]), said, kinds=TypeError)
    refused(call(np.ones(X.shape, int)), "X of whole numbers", kinds=TypeError)
    if tree_leaves(params):  # a layer with nothing to learn takes either
        refused(call(X.astype(np.float32)), "X in float32, parameters in float64", kinds=TypeError)
    said = "a mask for 4 keys of 5 (call must_broadcast, in minitransformer/arrays.py)"
    refused(call(X, mask=np.ones((2, 1, 1, 4), bool)), said, "mask", ValueError)
    if not can(part, not causal):
        said = f"causal={not causal}, with causal = {part.causal!r} in its class (self.refuse(causal=causal) does it)"
        refused(call(X, not causal), said, "causal", ValueError)


def refuses_other_heads(core: Core, *, tier: str) -> None:
    """A core that is called without a mixer refuses heads that don't fit, before a loop that checks no index reads them."""
    with backend(tier):
        params, arrays, causal = some(core), heads_for(core, 9), not can(core, False)

        def call(*arrays: Any, mask: Any = None) -> Callable[[], Any]:
            return lambda: core(params, *arrays, causal=causal, mask=mask, rng=None)

        def step(*arrays: Any) -> Callable[[], Any]:
            return lambda: core.step(params, *arrays, state=None)

        call(*arrays)()
        names = ["Q", "K", "V", *core.streams]
        for k, (name, X) in enumerate(zip(names, arrays, strict=True)):
            for what, other in _other_heads(k, X):
                given = [other if i == k else A for i, A in enumerate(arrays)]
                refused(call(*given), f"{name} {what}")
                if core.decodes:
                    refused(step(*given), f"step, {name} {what}")
        if core.decodes:
            refused(step(arrays[0][:, :, :5], *arrays[1:]), "step, 5 new queries for 9 new keys")
        H = sizes_of(core)[1]
        for mask in (np.ones((9, 9), int), np.ones((9, 8), bool), np.ones((3, 2, H, 9, 9), bool)):
            refused(call(*arrays, mask=mask), f"a mask {mask.dtype} {mask.shape}, for 9 tokens", "mask")
        if any(leaf.dtype.kind == "f" for leaf in tree_leaves(params)):
            other = tree_map(lambda leaf: leaf.astype(np.float32) if leaf.dtype.kind == "f" else leaf, params)
            refused(
                lambda: core(other, *arrays, causal=causal, mask=None, rng=None), "parameters in float32 beside float64"
            )
        for what, few in (("too few", arrays[:-1]), ("too many", [*arrays, arrays[-1]])):
            refused(call(*few), f"{what} arrays")


def _other_heads(k: int, X: Array) -> list[tuple[str, Any]]:
    """What could be given instead of the k-th of Q, K, V and the streams, and does not fit the others."""
    wrong = [
        ("of one sample for two", X[:1]),
        ("of another number of heads", X[:, :1] if X.shape[1] > 1 else X[:, :0]),
        ("without samples and heads", X[0, 0]),
        ("in float32 beside float64", X.astype(np.float32)),
        ("of whole numbers", X.astype(int)),
        ("as a list", X.tolist()),
    ]
    if k != 0:  # fewer queries will do, and groups of heads
        wrong += [
            ("of 5 tokens for 9", X[:, :, :5]),
            ("of twice as many heads", np.repeat(X, 2, 1)),
            ("of twice as many tokens", np.repeat(X, 2, 2)),
        ]
    if k != 2:  # in most cores values may have a width of their own
        wrong += [("of width 0", X[..., :0]), ("of twice the width", np.repeat(X, 2, 3))]
    return wrong
