"""The errata of the Aalto thesis, measured: one function for each that has consequences, named after its number."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from minitransformer.attention import Fixed, Graph, Local, RandomKeys, Strided, dot_product_attention, scores
from minitransformer.attention.compressed import linformer_attention
from minitransformer.attention.linear import positive_features
from minitransformer.attention.selected import adaptive_span_attention, lsh_attention
from minitransformer.attention.selected.reformer import sort_in_rounds
from minitransformer.errata.reading import Reading, queries_keys_values, relative_error
from minitransformer.functional import softmax
from minitransformer.models import LanguageModel
from minitransformer.models.universal import HaltingParams
from minitransformer.positions import sinusoids
from minitransformer.pullback import Tree, random_like, tree_map

SIZES: dict[str, Any] = {"vocabulary": 40, "context": 4, "width": 12, "depth": 2, "heads": 2, "hidden": 10}


def e45() -> Reading:
    """Scores of 256 products, divided by 256 and by 16."""
    rng = np.random.default_rng(45)
    d, keys = 256, 64
    Q, K, V = rng.standard_normal((200, 1, d)), *rng.standard_normal((2, 200, keys, d))
    said, meant = scores(Q, K, scale=1 / d)[0], scores(Q, K)[0]
    numbers = {"d": d, "printed": float(said.std()), "meant": float(meant.std())}
    return Reading(numbers, relative_error(softmax(said)[0] @ V, softmax(meant)[0] @ V))


def e46() -> Reading:
    """A row with scores 2 ln 2 and −ln 2 for two visible keys, and two hidden ones; and what a mask of zeros does to 64 words."""
    S = np.log(2) * np.array([[2.0, -1.0, 3.0, 3.0]])
    visible = np.array([[True, True, False, False]])
    printed = softmax(np.where(visible, S, 0.0))[0]
    n = 64
    Q, K, V = queries_keys_values(np.random.default_rng(46), n, 16)
    near = Local(8)(n, n, causal=False).mask
    A = softmax(np.where(near, scores(Q, K)[0], 0.0))[0]
    meant, _ = dot_product_attention(Q, K, V, mask=near)
    numbers = {"row": float(printed[~visible].sum()), "blocks": float(np.where(near, 0, A).sum(1).mean()), "n": n}
    return Reading(numbers, relative_error(A @ V, meant))


def e47() -> Reading:
    """The pairs of twelve tokens in blocks of four: with brackets that are no floors, with N the length, and as meant."""
    n, B = 12, 4
    i, j = np.arange(n)[:, None], np.arange(n)
    meant = Local(B)(n, n, causal=False).mask.sum()
    return Reading({"brackets": (j / B == i / B).sum(), "length": (j // n == i // n).sum(), "meant": meant})


def e48() -> Reading:
    """Pairs of 30 tokens that two steps of the printed mixture do not connect; and those of the paper's two patterns."""
    n, stride = 30, 5
    i, j = np.arange(n)[:, None], np.arange(n)
    near, far = i // stride == j // stride, (i - j) % stride == 0
    ahead = np.triu(near | far, 1).sum()
    everything = np.tri(n) > 0
    both = (near | far) & everything

    def missed(first: np.ndarray, second: np.ndarray) -> int:
        return int((everything & ~(first @ second)).sum())

    strided = [Strided(stride, part)(n, n, causal=True).mask for part in ("near", "far")]
    fixed = [Fixed(stride, 1, part)(n, n, causal=True).mask for part in ("near", "far")]
    meant = missed(*strided) + missed(fixed[0] | fixed[1], fixed[0])
    numbers = {"ahead": ahead, "missed": missed(both, both), "of": everything.sum(), "meant": meant}
    return Reading(numbers)


def e49() -> Reading:
    """Pairs of 256 tokens in blocks of eight."""
    n, B = 256, 8
    return Reading({"n": n, "B": B, "printed": B**2, "meant": Local(B)(n, n, causal=False).mask.sum()})


def e50() -> Reading:
    """The largest of 64 weights of a learned span at d = 256, undivided and divided by 16."""
    rng = np.random.default_rng(50)
    d, n = 256, 65
    Q, K, V = rng.standard_normal((3, 8, 1, n, d))
    z = np.array([float(n)])
    (printed, p), (meant, m) = (adaptive_span_attention(Q, K, V, z, scale=scale) for scale in (1.0, None))
    largest = [float(pullback.A[:, 0, -1].max(-1).mean()) for pullback in (p, m)]
    return Reading({"d": d, "printed": largest[0], "meant": largest[1]}, relative_error(printed, meant))


def e52() -> Reading:
    """Pairs of ten tokens, seven of them in one bucket, in chunks of two: by either rule in words, and as computed."""
    bucket = np.array([0, 0, 0, 0, 0, 0, 0, 1, 1, 1])
    known = sort_in_rounds(bucket[None], 2, causal=False)
    others = np.eye(10) == 0
    apart = abs(bucket[:, None] - bucket)
    same, adjacent = ((apart <= most) & others for most in (0, 1))
    return Reading({"same": same.sum(), "adjacent": adjacent.sum(), "meant": known.sees.sum()})


def e53() -> Reading:
    """The weight of a token on itself where queries are keys, of length one as keys: without the exclusion, and with it."""
    rng = np.random.default_rng(53)
    Q, V = 8 * rng.standard_normal((2, 1, 1, 32, 16))
    meant, pullback = lsh_attention(Q, V, rotations=rng.standard_normal((8, 16, 1)), chunk=32)
    K = Q / np.linalg.norm(Q, axis=-1, keepdims=True)
    A = softmax(scores(Q, K)[0])[0]
    itself = [float(np.diagonal(weights, axis1=-2, axis2=-1).mean()) for weights in (A, pullback.A)]
    return Reading({"printed": itself[0], "meant": itself[1]}, relative_error(A @ V, meant))


def e54() -> Reading:
    """The product without a transpose, where k = d by accident."""
    rng = np.random.default_rng(54)
    n, d = 7, 4
    Q, K, V = queries_keys_values(rng, n, d)
    E, F = rng.standard_normal((2, d, n))
    printed = softmax(Q @ (E @ K) / math.sqrt(d))[0] @ (F @ V)
    error = relative_error(printed, linformer_attention(Q, K, V, E, F)[0])
    return Reading({"error": error}, error)


def some(model: LanguageModel) -> Tree:
    """Random parameters, not too large."""
    rng = np.random.default_rng(1)
    return tree_map(lambda a: 0.6 * a, random_like(model.init(rng, np.float64), rng))


def e57() -> Reading:
    """Rows of a table of absolute positions in two segments; and the gradient with a memory, beside that of the whole text."""
    absolute = np.concatenate([sinusoids(4, 12)] * 2)
    model = LanguageModel(**SIZES, stack="transformer-xl:memory=8", positions="transformer-xl")
    params, text = some(model), np.arange(8)[None]
    dY = np.random.default_rng(2).standard_normal((1, 8, 40))
    whole, of_all = replace(model, stack="plain")(params, text)
    a, first = model(params, text[:, :4])
    b, second = model(params, text[:, 4:], memory=first.stack.memory)
    cut, full = (
        gradient.stack.blocks[0].attention.W_v
        for gradient in (tree_map(np.add, first(dY[:, :4]), second(dY[:, 4:])), of_all(dY))
    )
    numbers = {
        "rows": float(np.abs(absolute[:4] - absolute[4:]).max()),
        "values": relative_error(np.concatenate([a, b], 1), whole),
        "gradient": relative_error(cut, full),
    }
    return Reading(numbers)


def e58() -> Reading:
    """Steps of twelve tokens: as printed, and where each may halt."""
    printed = LanguageModel(**{**SIZES, "depth": 6}, stack="universal:halting=fixed", order="post")
    meant = replace(printed, stack="universal:halting=accumulated")
    tokens = np.arange(12)[None] * 3
    params = some(meant)
    halting = HaltingParams(params.stack.halting.w, np.full(1, -0.3))
    all_alike = printed(some(printed), tokens)[1].stack.N
    each = meant(params._replace(stack=params.stack._replace(halting=halting)), tokens)[1].stack.N
    numbers = {"printed": len(np.unique(all_alike)), "all": all_alike.max(), "low": each.min(), "high": each.max()}
    return Reading(numbers)


def e59() -> Reading:
    """Mean path between 120 tokens that see their neighbours and three random keys: the same for all, and each its own."""
    n = 120
    own = RandomKeys(3)(n, n, causal=False).mask
    window = np.abs(np.arange(n)[:, None] - np.arange(n)) <= 1
    same = np.broadcast_to(own[0], (n, n))
    printed, meant = (Graph(window | keys).average_path() for keys in (same, own))
    return Reading({"printed": printed, "meant": meant})


def e77() -> Reading:
    """Many draws of positive features: the mean estimate of the exponentials, and that of softmax, beside what they estimate."""
    rng = np.random.default_rng(77)
    n, d, directions, draws = 8, 4, 8, 8000
    a, b = 0.5 * rng.standard_normal((2, n, d)) / d**0.25
    exponentials = np.exp(a @ b.T)
    U = np.zeros((draws, n, n))
    for estimate in U:
        W = rng.standard_normal((directions, d))
        estimate[:] = positive_features(a, W)[0] @ positive_features(b, W)[0].T
    before = relative_error(U.mean(0), exponentials)
    after = relative_error((U / U.sum(-1, keepdims=True)).mean(0), softmax(a @ b.T)[0])
    return Reading({"directions": directions, "n": n, "d": d, "before": before, "after": after})


def e78() -> Reading:
    """How far the output of LSH attention moves with its random matrix, and with its queries, which are the keys."""
    rng = np.random.default_rng(78)
    Q, V = rng.standard_normal((2, 1, 32, 8))
    R = rng.standard_normal((2, 8, 2))
    Y, _ = lsh_attention(Q, V, rotations=R, chunk=8)
    step = 1e-6
    by_R, _ = lsh_attention(Q, V, rotations=R + step * rng.standard_normal(R.shape), chunk=8)
    by_Q, _ = lsh_attention(Q + step * rng.standard_normal(Q.shape), V, rotations=R, chunk=8)
    return Reading({"moved": float(np.abs(by_R - Y).max()), "queries": float(np.abs(by_Q - Y).max()) / step})
