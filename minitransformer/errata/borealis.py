"""The errata of Borealis II, measured: one function for each that has consequences, named after its number."""

import math

import numpy as np

from minitransformer import experiments
from minitransformer.attention import attend, dot_product_attention, elu_features, kernel_attention, scores
from minitransformer.attention.compressed import compress, memory_compressed_attention
from minitransformer.data.long_range_arena import ARENA
from minitransformer.errata.reading import Reading, largest_weight, mean_of, queries_keys_values, relative_error
from minitransformer.functional import softmax
from minitransformer.measurements.position_probes import order_error
from minitransformer.positions import sinusoids, t5_buckets
from minitransformer.positions.absolute import Layout, angular_frequencies
from minitransformer.positions.deberta import DeBERTa, DeBERTaParams
from minitransformer.positions.shaw import Shaw, ShawParams
from minitransformer.positions.t5 import OffsetScalarParams, OffsetScalars
from minitransformer.related import GMLP, GMLPParams, convolve_with_heads, dynamic_convolution, hopfield_energy
from minitransformer.typing import Array

LARGE = 60.0  # a score next to which others are as good as −∞


def e1() -> Reading:
    """Scores of 64 products, as they are and divided by √64."""
    n, d = 64, 64
    Q, K, V = queries_keys_values(np.random.default_rng(1), n, d)
    printed, meant = scores(Q, K, scale=1.0)[0], scores(Q, K)[0]
    numbers = {"d": d, "factor": math.sqrt(d), "printed": largest_weight(printed), "meant": largest_weight(meant)}
    return Reading(numbers, relative_error(softmax(printed)[0] @ V, dot_product_attention(Q, K, V)[0]))


def falls_until(width: int, *, layout: Layout = "interleaved", within: int = 150) -> int:
    """The first offset o at which Σ_f cos(ω_f o) is not larger than at o + 1: there it stops falling. Or `within`."""
    profile = np.cos(angular_frequencies(width, layout=layout) * np.arange(within + 1)[:, None]).sum(1)
    return int(np.argmax(np.append(np.diff(profile), 0) >= 0))


def e4() -> Reading:
    """Where the products of sinusoids stop falling, for some widths and for all up to 2,000."""
    some = {f"d{width}": falls_until(width) for width in (64, 512, 1024)}
    widths = range(2, 2001, 2)
    near = sum(49 <= falls_until(width, within=54) <= 52 for width in widths)
    return Reading({**some, "near": near, "widths": len(widths)})


def e7() -> Reading:
    """The distance of two sinusoids, regressed; and their order, classified."""
    rng = np.random.default_rng(7)
    table = sinusoids(128, 32)
    a, b = rng.integers(0, len(table), (2, 512))
    pairs = np.c_[table[a], table[b], np.ones(512)]
    theta, *_ = np.linalg.lstsq(pairs[:400], (b - a)[:400], rcond=None)
    regressed = np.abs(np.round(pairs[400:] @ theta) - (b - a)[400:]).mean()
    return Reading({"regressed": float(regressed), "classified": order_error(table, rng)})


def e8() -> Reading:
    """A head that wants the word before, with a vector for each distance and with one for each offset."""
    rng = np.random.default_rng(8)
    n, d = 9, 4
    Q, V, K = *rng.standard_normal((2, n, d)), np.zeros((n, d))  # what is said has no part in it
    Q[:, 0] = 1  # a feature that all queries have
    offset = np.arange(1 - n, n)  # j − i
    before, either = np.zeros((2, 2 * n - 1, d))
    before[offset == -1, 0] = either[abs(offset) == 1, 0] = LARGE
    encoding = Shaw(d, n - 1, values=False)
    Y, meant = attend(encoding, ShawParams(before), Q, K, V)
    Y_either, printed = attend(encoding, ShawParams(either), Q, K, V)
    inner = [float(np.diagonal(p.A, -1)[:-1].mean()) for p in (printed, meant)]
    return Reading({"printed": inner[0], "meant": inner[1]}, relative_error(Y_either, Y))


def e9() -> Reading:
    """The same head with a number for each distance and with one for each offset; and how many numbers T5 has."""
    rng = np.random.default_rng(9)
    n, d = 9, 4
    zeros, V = np.zeros((1, n, d)), rng.standard_normal((1, n, d))
    offset = np.arange(1 - n, n)
    encoding = OffsetScalars(heads=1, longest=n)

    def head(wanted: Array) -> tuple[Array, float]:
        Y, pullback = attend(encoding, OffsetScalarParams(np.where(wanted, LARGE, 0.0)[None]), zeros, zeros, V)
        return Y, float(np.diagonal(pullback.A[0], -1)[:-1].mean())

    (Y_either, printed), (Y, meant) = head(abs(offset) == 1), head(offset == -1)
    all_offsets = np.arange(-511, 512)
    buckets = len(set(t5_buckets(all_offsets, causal=False)))
    numbers = {"printed": printed, "meant": meant, "offsets": len(all_offsets), "buckets": buckets}
    return Reading(numbers, relative_error(Y_either, Y))


def e11() -> Reading:
    """Three products of 64 terms, undivided and divided by √(3 · 64)."""
    rng = np.random.default_rng(11)
    n, D = 64, 64
    encoding = DeBERTa(D, 1, n)
    params = DeBERTaParams(rng.standard_normal((2 * n, D)), *rng.standard_normal((2, D, D)) / math.sqrt(D))
    Q, K, V = queries_keys_values(rng, 1, n, D)
    S, _ = encoding.scores(params, Q, K)
    printed = S / encoding.scale
    numbers = {"printed": largest_weight(printed), "meant": largest_weight(S)}
    return Reading(numbers, relative_error(softmax(printed)[0] @ V, attend(encoding, params, Q, K, V)[0]))


def e13() -> Reading:
    """Learned positions, absolute and relative, in the two tasks of the record of chapter 06."""
    record = experiments.load("positions")

    def right(task: str, positions: str) -> float:
        return mean_of(r["scores"][0] for trial, r in record if (trial.task, trial.positions) == (task, positions))

    kinds = {"absolute": "learned", "relative": "relative keys"}
    return Reading({f"{kind}_{task}": right(task, kinds[kind]) for kind in kinds for task in ("order", "span")})


def e14() -> Reading:
    """How much of what a convolution of three vectors gives is no weighted sum of the three."""
    rng = np.random.default_rng(14)
    s, d = 3, 8
    X, theta = rng.standard_normal((1, s, d)), rng.standard_normal((1, s, d, d))
    block = compress(X, theta)[0][0, 0]
    weights, *_ = np.linalg.lstsq(X[0].T, block, rcond=None)  # the best s numbers
    nearest = X[0].T @ weights
    return Reading({"outside": relative_error(nearest, block), "s": s, "d": d}, relative_error(nearest, block))


def e17() -> Reading:
    """The recurrence of (20) with the key of one token j throughout."""
    rng = np.random.default_rng(17)
    n, r, dv = 6, 4, 3
    FQ, FK = (elu_features(rng.standard_normal((n, r)))[0] for _ in range(2))
    V = rng.standard_normal((n, dv))
    one_key = np.broadcast_to(FK[:1], FK.shape)  # any j: what it is cancels
    S, z, printed = np.zeros((r, dv)), np.zeros(r), []
    for i in range(n):
        S, z = S + np.outer(one_key[i], V[i]), z + one_key[i]
        printed.append(FQ[i] @ S / (FQ[i] @ z))
    average = V.cumsum(0) / np.arange(1, n + 1)[:, None]
    meant, _ = kernel_attention(FQ, FK, V, causal=True)
    numbers = {"from_average": relative_error(np.array(printed), average), "error": relative_error(average, meant)}
    return Reading(numbers, numbers["error"])


def e21() -> Reading:
    """The weights of one token of a dynamic convolution, when all others are exchanged."""
    rng = np.random.default_rng(21)
    n, i = 9, 4
    X, W = rng.standard_normal((n, 6)), rng.standard_normal((6, 2, 5))
    others = rng.standard_normal((n, 6))
    others[i] = X[i]
    (Y, before), (Z, after) = dynamic_convolution(X, W), dynamic_convolution(others, W)
    weights = float(np.abs(after.weights[i] - before.weights[i]).max())
    return Reading({"others": n - 1, "weights": weights, "output": relative_error(Z[i], Y[i])})


def shifted(X: Array, wanted: Array) -> Array:
    """softmax(Π) X, where Π is large at the wanted pairs."""
    return softmax(np.where(wanted, LARGE, 0.0))[0] @ X


def e22() -> Reading:
    """6, 12, 18, 24, 30 moved down by one, with a number for each distance and with one for each offset."""
    X = 6.0 * np.arange(1, 6)[:, None]
    i, j = np.arange(5)[:, None], np.arange(5)
    printed, meant = shifted(X, abs(i - j) == 1), shifted(X, i - j == 1)
    numbers = {"second": X[1, 0], "printed": printed[1, 0], "meant": meant[1, 0]}
    return Reading(numbers, relative_error(printed[1:], meant[1:]))


def e23() -> Reading:
    """The same rows moved by the offset 1, beside a shift that leaves its first row empty."""
    X = 6.0 * np.arange(1, 6)[:, None]
    i, j = np.arange(5)[:, None], np.arange(5)
    Y, shift = shifted(X, i - j == 1), np.vstack([[[0.0]], X[:-1]])
    numbers = {"border": Y[0, 0], "rest": float(np.abs(Y[1:] - shift[1:]).max())}
    return Reading(numbers, relative_error(Y, shift))


def e24() -> Reading:
    """How much of a convolution with a matrix for each offset no kernel of one number for each can make."""
    rng = np.random.default_rng(24)
    n, D, H = 9, 2, 3
    X, blocks = rng.standard_normal((n, D)), rng.standard_normal((H, D, D))
    full = convolve_with_heads(X, blocks, (n,))[1:-1]
    shifts = np.stack([X[2:], X[1:-1], X[:-2]], -1).reshape(-1, H)
    best, *_ = np.linalg.lstsq(shifts, full.reshape(-1), rcond=None)
    missed = relative_error(shifts @ best, full.reshape(-1))
    return Reading({"missed": missed, "printed": H, "meant": H * D * D}, missed)


def e25() -> Reading:
    """A gated MLP whose mixing matrix is zero, as printed and as published; and how large the published gate can be."""
    rng = np.random.default_rng(25)
    n = 9
    X = rng.standard_normal((n, 2))
    paper, source = GMLP(2, n), GMLP(2, n, "source")
    drawn = paper.init(rng, np.float64)
    printed, _ = source(GMLPParams(drawn.U_1, drawn.U_2, 0 * drawn.M, drawn.V), X)
    meant, _ = paper(drawn._replace(M=0 * drawn.M), X)
    gate = paper(drawn._replace(M=rng.standard_normal((n, n))), X)[1].gate.G
    numbers = {"printed": float(np.abs(printed).max()), "low": float(gate.min()), "high": float(gate.max())}
    return Reading(numbers, relative_error(printed, meant))


def e26() -> Reading:
    """Three rows of the table of the Long Range Arena."""
    linear, performer, dense = (ARENA[name] for name in ("linear", "performer", "softmax"))
    ahead = sum(b > a for a, b in zip(linear, performer, strict=True))
    of_linear, of_performer, of_dense = (float(np.mean(row)) for row in (linear, performer, dense))
    behind = of_dense - of_performer
    return Reading({"ahead": of_performer - of_linear, "tasks": ahead, "of": len(linear), "behind": behind})


def e73() -> Reading:
    """Random memories with values of their own: is the energy of some query larger after an update?"""
    grown, settled = 0, 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        Q, K, V = rng.standard_normal((5, 4)), *rng.standard_normal((2, 7, 4))
        for back in (V, K):
            xi, energies = Q, [hopfield_energy(Q, K)[0]]
            for _ in range(5):
                xi = softmax(xi @ K.T / math.sqrt(4))[0] @ back
                energies.append(hopfield_energy(xi, K)[0])
            grows = bool((np.diff(energies, axis=0) > 1e-12).any())
            grown, settled = grown + (grows and back is V), settled + (grows and back is K)
    return Reading({"printed": grown, "meant": settled, "of": 100})


def e75() -> Reading:
    """Entries of the matrix of memory-compressed attention, for a text and for one four times as long."""
    entries = []
    for n in (64, 256):
        Q, K, V = queries_keys_values(np.random.default_rng(75), 1, n, 4)
        theta = np.full((1, 4, 4), 1 / 4)  # the mean of four neighbours
        entries.append(memory_compressed_attention(Q, K, V, theta, theta)[1].A.size)
    short, long = entries
    return Reading({"short": short, "long": long, "times": long / short})
