"""What a table of positions knows: two probes, with the protocol of the paper that proposed them.

Both train something very small on a part of the table and test it on the rest: can a row say where it stands, and can two
rows say which comes first?
"""

import numpy as np

from minitransformer.typing import Array, Bool, Float, checked

FOLDS = 5
STEPS = 50  # of Newton's; ten are enough as a rule


@checked
def position_error(table: Float[Array, "n width"], rng: np.random.Generator) -> float:
    """Mean of |i − î|, where î is read off row i by a linear function fitted to other rows.

        î = round(⟨w, Π_i⟩ + b),     (w, b) = argmin Σ_k (⟨w, Π_k⟩ + b − k)²     over the rows k of four folds of five

    The rows are shuffled first, so the five parts are random. Where a fold has fewer rows than a row has channels, many
    (w, b) fit without an error, and w is the shortest of them.
    source   Wang and Chen 2020, absolute positions (what its code calls mse is this mean of |i − î|)
    cost     O(n² D) for D ≥ n
    raises   ValueError for fewer rows than folds
    """
    order = rng.permutation(len(table))
    guesses = np.empty(len(table))
    for test, train in _folds(len(table)):
        features, mean = table[order[train]], order[train].mean()
        centre = features.mean(0)
        centre += (features - centre).mean(0)  # once more: what rounding left of the mean would count as a direction
        w, *_ = np.linalg.lstsq(features - centre, order[train] - mean, rcond=None)
        guesses[test] = (table[order[test]] - centre) @ w + mean
    return float(np.abs(np.round(guesses) - order).mean())


@checked
def order_error(table: Float[Array, "n width"], rng: np.random.Generator, *, pairs: int = 512) -> float:
    """Fraction of random pairs (a, b) for which a logistic regression on [Π_a ; Π_b] is wrong about b > a.

    Five folds, each judged by the regression that has seen the four others.
    source   Wang and Chen 2020, relative positions. Borealis II calls it regression of the relative position (E7).
    raises   ValueError for fewer pairs than folds
    """
    a, b = rng.integers(0, len(table), (2, pairs))
    features, later = np.concatenate([table[a], table[b]], axis=1), b > a
    wrong = np.empty(pairs, bool)
    for test, train in _folds(pairs):
        w, c = logistic_regression(features[train], later[train])
        wrong[test] = (features[test] @ w + c > 0) != later[test]
    return float(wrong.mean())


def _folds(n: int) -> list[tuple[Array, Array]]:
    """Five parts in a row, the first ones longer by one where 5 does not divide n: indices of each, and of the others."""
    if n < FOLDS:
        raise ValueError(f"{n} are too few for {FOLDS} folds")
    parts = np.array_split(np.arange(n), FOLDS)
    return [(part, np.setdiff1d(np.arange(n), part)) for part in parts]


@checked
def logistic_regression(
    X: Float[Array, "n width"], y: Bool[Array, "n"], *, C: float = 1.0
) -> tuple[Float[Array, "width"], float]:
    """w and c of P(y) = σ(⟨w, x⟩ + c): the minimum of ½‖w‖² + C Σ_k ln(1 + exp(−s_k (⟨w, x_k⟩ + c))),  s_k = ±1.

    The constant c is not pulled to zero. It is what scikit-learn's LogisticRegression minimises, with the same C.
    Found by Newton's steps, halved where a whole one leads uphill: θ ← θ − H⁻¹ g, with p_k the probability of being wrong,

        g = θ° − C Σ_k s_k p_k x_k,     H = 1° + C Σ_k p_k (1 − p_k) x_k x_kᵀ     (°: without the constant)

    cost     O(n r²) for each of some ten steps, r = min(n, D)
    """
    span = np.linalg.qr(X.T.astype(np.float64))[0]  # w is a sum of rows of X, so it lies in their span: (D, r)
    X = np.column_stack([X @ span, np.ones(len(X))])
    s, pulled = np.where(y, 1.0, -1.0), np.append(np.ones(X.shape[1] - 1), 0.0)

    def loss(theta: Array) -> float:
        return 0.5 * (pulled * theta) @ theta + C * np.logaddexp(0, -s * (X @ theta)).sum()

    theta = np.zeros(X.shape[1])
    for _ in range(STEPS):
        p = (1 - np.tanh(s * (X @ theta) / 2)) / 2
        gradient = pulled * theta - C * X.T @ (s * p)
        if np.abs(gradient).max() < 1e-9:
            break
        H = np.diag(pulled) + C * (X.T * (p * (1 - p))) @ X
        step, now = np.linalg.solve(H, gradient), loss(theta)
        while loss(theta - step) > now and np.abs(step).max() > 1e-12:
            step = step / 2
        theta = theta - step
    return span @ theta[:-1], float(theta[-1])
