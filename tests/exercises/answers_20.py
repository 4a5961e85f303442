"""Answers to the exercises of chapter 20."""

import numpy as np

from minitransformer.experiments.table import BOTH, FORWARDS, table

found = table()


def moved(never=None):
    lengths = [(found.pays_from(row, FORWARDS) or never, found.pays_from(row, BOTH) or never) for row in found]
    known = [(f, b) for f, b in lengths if f and b]
    return [sum(b < f for f, b in known), sum(b > f for f, b in known)]


def begin_together():
    both = [row for row in found if found.pays_from(row, FORWARDS) and found.pays_from(row, BOTH)]
    return [moved()[0], len(both) - moved()[0]]


def front(passes):
    return lambda time, quality: np.array(
        [
            not any(passes(t - s, q - p) for s, p in zip(time, quality, strict=True))
            for t, q in zip(time, quality, strict=True)
        ]
    )


def noise(scores, ddof=1, means=2, times=2):
    return times * np.sqrt(means * scores.var(1, ddof=ddof).mean() / scores.shape[1])


def first_crossing(n, ratio):
    k = next((k for k, r in enumerate(ratio) if r < 1), None)
    return np.inf if k is None else n[0] if k == 0 else crossing(n, np.log(ratio), k - 1)


def crossing(n, logs, k):
    return n[k] * (n[k + 1] / n[k]) ** (logs[k] / (logs[k] - logs[k + 1]))


def last_crossing(n, ratio, logs=np.log):
    if ratio[-1] >= 1:
        return np.inf
    above = np.flatnonzero(ratio >= 1)
    return crossing(n, logs(ratio), above[-1]) if len(above) else n[0]


def turned(ratio):
    """Logarithms with which the part of the way is that from the other end."""
    k = np.flatnonzero(ratio >= 1)[-1]
    logs = np.log(ratio)
    logs[k : k + 2] = -logs[k + 1], -logs[k]
    return logs


def straight(n, ratio, logs=lambda ratio: ratio - 1):
    if ratio[-1] >= 1:
        return np.inf
    above = np.flatnonzero(ratio >= 1)
    if not len(above):
        return n[0]
    k, y = above[-1], logs(ratio)
    return n[k] + (n[k + 1] - n[k]) * y[k] / (y[k] - y[k + 1])


def factor(name, every=4):
    r = found.ratio(found.rows[name], 65536, BOTH)
    return 1 / (1 / every + (1 - 1 / every) * r)


FACTORS = [factor("delta"), factor("lightweight-convolution")]
RATIOS = np.array([found.ratio(found.rows[name], 65536, BOTH) for name in ("delta", "lightweight-convolution")])

ANSWERS = {
    "20.1": {"wrong": [[2, 20, 2], [2**0.5, 20**0.5, 2**0.5], [2048, 20480, 4096], [2000, 20000, 4000], [2, 20]]},
    "20.2": {"wrong": [[0.625, 0.25], [-0.125, 0.5], [0.375, 0.5], [(0.625 + 2.7 / 2.9) / 2, 0.625], [1.25, 0.5]]},
    "20.3": {
        "right": np.array(["linformer", "dynamic-convolution", "linear"]),
        "wrong": [
            ["compressed", "dynamic-convolution", "linear"],
            ["gmlp", "dynamic-convolution", "linear"],
            ["lightweight-convolution", "dynamic-convolution", "linear"],
            ["linformer", "latent", "linear"],
            ["linformer", "routing", "linear"],
            ["linformer", "dynamic-convolution", "softmax"],
            ["linformer", "dynamic-convolution", "window"],  # whose state does not grow either
            ["linformer", "dynamic-convolution", "retnet"],
            ["linformer", "dynamic-convolution", "gated-delta"],
            ["linformer", "convolution", "linear"],
            "delta",
        ],
    },
    "20.4": {
        "right": moved(),
        "wrong": [
            moved()[::-1],
            moved(never=np.inf),
            begin_together(),
            [moved()[0], len(found.rows)],
            [0, 0],
            moved()[0],
        ],
    },
    "20.5": {"wrong": [1.82, 0.0228, 40 * 0.00234, 40 * 0.0786, 2]},
    "20.6": {
        "right": front(lambda slower, better: slower >= 0 >= better and (slower > 0 or better < 0)),
        "wrong": [
            front(lambda slower, better: slower > 0 > better),
            front(lambda slower, better: slower >= 0 >= better),
            front(lambda slower, better: slower > 0),
            lambda time, quality: ~front(lambda s, b: s >= 0 >= b and (s > 0 or b < 0))(time, quality),
            lambda time, quality: np.flatnonzero(quality == quality.max()),
        ],
    },
    "20.7": {
        "right": noise,
        "wrong": [
            lambda scores: noise(scores, ddof=0),
            lambda scores: noise(scores, means=1),
            lambda scores: noise(scores, times=1),
            lambda scores: 2 * np.sqrt(2 * scores.var(1, ddof=1).mean()),
            lambda scores: 2 * np.sqrt(2 * scores.var(ddof=1) / scores.shape[1]),
            lambda scores: 2 * np.sqrt(2 / scores.shape[1]) * scores.std(1, ddof=1).mean(),
            lambda scores: np.ptp(scores, 1).mean(),
        ],
    },
    "20.8": {
        "right": last_crossing,
        "wrong": [
            first_crossing,
            lambda n, ratio: last_crossing(n, ratio, lambda ratio: ratio - 1),
            straight,
            lambda n, ratio: (
                n[np.flatnonzero(ratio >= 1)[-1]] if ratio[-1] < 1 <= ratio.max() else last_crossing(n, ratio)
            ),
            lambda n, ratio: last_crossing(n, ratio, turned),
            lambda n, ratio: straight(n, ratio, np.log),
            lambda n, ratio: last_crossing(n, np.array([*ratio[:-1], 0.1])),
            lambda n, ratio: (
                n[np.flatnonzero(ratio >= 1)[-1] + 1] if ratio[-1] < 1 <= ratio.max() else last_crossing(n, ratio)
            ),
            lambda n, ratio: np.inf,
        ],
    },
    "20.9": {
        "wrong": [
            [*(1 / np.array(FACTORS)), 11],
            [*(1 / (3 / 4 + RATIOS / 4)), 11],
            [*(1 / 4 + 3 / 4 / RATIOS), 11],
            [*FACTORS, 10],
            [4, 4, 11],
            [*FACTORS, 40],
            [*FACTORS[::-1], 11],
            FACTORS,
        ]
    },
}
