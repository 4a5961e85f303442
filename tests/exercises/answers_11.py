"""Answers to the exercises of chapter 11."""

import numpy as np


def mask(first=1, last=1, future=0.0):
    def answer(log_alpha):
        alpha, n = np.exp(log_alpha), len(log_alpha)
        L = np.full((n, n), future)
        for i, j in np.ndindex(n, n):
            if j <= i:
                L[i, j] = np.prod(alpha[j + first : i + last])
        return L

    return answer


def by_differences(log_alpha):
    c = log_alpha.cumsum()
    return np.tril(np.exp(c[:, None] - c))


def by_quotients(log_alpha):
    c = np.cumprod(np.exp(log_alpha))
    return np.tril(c[:, None] / c)


def swish(x):
    return x / (1 + np.exp(-x))


def step(turned=False, activated=True, keep="rows"):
    def answer(x, before, theta):
        rows = np.vstack([before, x])
        out = ((theta[::-1] if turned else theta) * rows).sum(0)
        y = swish(out) if activated else out
        return y, {"rows": rows[1:], "all": rows, "said": np.vstack([before, y])[1:], "old": before}[keep]

    return answer


def moving_average(FQ, FK, V, alpha):
    S, total, said = np.zeros((FK.shape[1], V.shape[1])), np.zeros(FK.shape[1]), []
    for q, k, v, a in zip(FQ, FK, V, alpha, strict=True):
        S, total = a * S + (1 - a) * np.outer(k, v), a * total + (1 - a) * k
        said.append(q @ S / (q @ total))
    return np.array(said)


def fading(S_fades=True, z_fades=True, z=True):
    def answer(FQ, FK, V, alpha):
        S, total, said = np.zeros((FK.shape[1], V.shape[1])), np.zeros(FK.shape[1]), []
        for q, k, v, a in zip(FQ, FK, V, alpha, strict=True):
            S = (a if S_fades else 1) * S + np.outer(k, v)
            total = (a if z_fades else 1) * total + k
            said.append(q @ S / (q @ total if z else 1))
        return np.array(said)

    return answer


def retention(
    factor=True, power=1, together=True, causal=True, masked_back=True, scale=1.0, ahead=False, backward="right"
):
    def answer(Q, K, V, gamma):
        i, j = np.ogrid[: Q.shape[-2], : Q.shape[-2]]
        behind = np.abs(i - j) if ahead else i - j if not causal else np.maximum(i - j, 0)
        L = scale * np.where((j <= i) | (not causal), gamma**behind, 0)
        W = L * (Q @ K.swapaxes(-1, -2))

        def pullback(dY):
            P = dY @ V.swapaxes(-1, -2)
            each = P * W * (behind if factor else 1) / gamma**power
            back = L * P if masked_back else P
            dgamma = each.sum().reshape(1) if together else each.sum((-2, -1))
            dQ = back @ K / (2 if backward == "root" else 1)
            dK = (back if backward == "as it is" else back.swapaxes(-1, -2)) @ Q
            return dQ, dK, (W if backward == "values" else W.swapaxes(-1, -2)) @ dY, dgamma

        return W @ V, pullback

    return answer


ANSWERS = {
    "11.1": {
        "wrong": [
            [[1, 1 / 2], [1, 0], [1, 0]],
            [[1, 0], [3 / 4, 0], [1, 0]],
            [[1, 1 / 2], [1 / 2, 0], [1, 0]],
            [[1, 1 / 2], [3 / 4, 0], [3 / 4, 0]],
            [1, 1 / 2],
        ]
    },
    "11.2": {
        "wrong": [
            lambda c: [1, 2],
            lambda c: [1 / c, 2 / c],
            lambda c: [1 / c**2, 1 / c**2],
            lambda c: [c**2, 2 * c**2],
            lambda c: [1 / c**2, 4 / c**2],
            lambda c: 1 / c**2,
        ]
    },
    "11.3": {
        "wrong": [
            lambda c, p: c**p,
            lambda c, p: 1 - c ** (2 * p),
            lambda c, p: c ** (2 * p - 1),
            lambda c, p: c ** (2 * p + 1),
            lambda c, p: c ** (p + 1),
            lambda c, p: (1 - c) ** p,
            22,
        ]
    },
    "11.4": {
        "wrong": [
            lambda m: 2 * np.pi / m,
            lambda m: np.pi / (2 * m),
            lambda m: 180 / m,
            lambda m: np.pi,
            lambda m: [np.pi / m, 0],
            0.6,
        ]
    },
    "11.5": {
        "right": lambda log_alpha: mask()(log_alpha).astype(np.float32),
        "wrong": [
            by_differences,
            by_quotients,
            lambda log_alpha: by_differences(np.maximum(log_alpha, -1e9)),
            mask(first=0),
            mask(first=0, last=0),
            mask(future=1.0),
            lambda log_alpha: mask()(log_alpha).T,
            lambda log_alpha: np.exp(log_alpha),
            lambda log_alpha: np.log(mask()(log_alpha)),
        ],
    },
    "11.6": {
        "right": step(),
        "wrong": [
            step(turned=True),
            step(activated=False),
            step(keep="all"),
            step(keep="said"),
            step(keep="old"),
            lambda x, before, theta: (swish(theta[-1] * x), np.vstack([before, x])[1:]),  # the newest row alone
            lambda x, before, theta: (1 / (1 + np.exp(-(theta * [*before, x]).sum(0))), [*before, x][1:]),
            lambda x, before, theta: x,
        ],
    },
    "11.7": {
        "right": fading(),
        "wrong": [
            fading(z_fades=False),
            fading(S_fades=False, z_fades=False),
            fading(S_fades=False),
            fading(z=False),
            moving_average,
        ],
    },
    "11.8": {"wrong": ["once", "again", "none", 3]},
    "11.9": {
        "right": retention(),
        "wrong": [
            retention(factor=False),
            retention(power=0),
            retention(together=False),
            retention(causal=False),
            retention(masked_back=False),
            retention(causal=False, ahead=True),
            retention(scale=0.5),
            retention(scale=0.8),
            retention(scale=3),
            retention(backward="root"),
            retention(backward="as it is"),
            retention(backward="values"),
            lambda Q, K, V, gamma: V,
        ],
    },
}
