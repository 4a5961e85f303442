"""A pattern as a graph: tokens are nodes, and an edge leads from i to j where i sees j.

What a token knows after L layers stands at most L edges away, so short paths mean few layers. How fast it mixes
is a matter of the random walk that goes from a token to one of those that it sees.
"""

import numpy as np

from minitransformer.checks import frozen
from minitransformer.typing import Array


@frozen
class Graph:
    """A (n, n), True where i sees j. Whether a token sees itself is left open: its distance to itself is 0 in any case.

    raises   TypeError for what is no boolean matrix, ValueError for one that is not square, or for a token that is not there
    """

    A: Array

    def __post_init__(self) -> None:
        if self.A.dtype != bool:
            raise TypeError(f"A: {self.A.dtype} should be bool")
        if self.A.ndim != 2 or self.A.shape[0] != self.A.shape[1]:
            raise ValueError(f"A: shape {self.A.shape} should be (n, n)")

    def neighbours(self, i: int) -> Array:
        """The tokens that i sees, rising."""
        if not 0 <= i < len(self.A):
            raise ValueError(f"i: {i} should be a token from 0 to {len(self.A) - 1}")
        return np.flatnonzero(self.A[i])

    @property
    def edges(self) -> int:
        """Number of pairs of different tokens of which at least one sees the other."""
        return int(np.triu(self.A | self.A.T, 1).sum())

    def distances(self) -> Array:
        """(n, n): edges on the shortest path from i to j, so the layers after which i knows of j; infinity if there is none.

        cost   O(n³) for each step, in products of matrices, as many as the longest path has edges
        """
        steps = self.A.astype(np.float32)
        D = np.where(np.eye(len(steps), dtype=bool), 0, np.inf)
        reached, length = D == 0, 0
        while True:
            length += 1
            new = (reached.astype(np.float32) @ steps > 0) & ~np.isfinite(D)
            if not new.any():
                return D
            D[new], reached = length, new

    def average_path(self) -> float:
        """Mean of the distances between two different tokens; 0 if there are no two."""
        D = self.distances()
        between = D[~np.eye(len(D), dtype=bool)]
        return float(between.mean()) if between.size else 0.0

    def clustering(self) -> float:
        """The share of pairs of neighbours of a token that are neighbours of each other, averaged over the tokens.

        With edges both ways, and none from a token to itself: Σ_jk A_ij A_jk A_ki / (degree_i (degree_i − 1)).
        """
        A = ((self.A | self.A.T) & ~np.eye(len(self.A), dtype=bool)).astype(float)
        degree = A.sum(-1)
        return float((((A @ A) * A).sum(-1) / np.maximum(degree * (degree - 1), 1)).mean())

    def walk(self) -> Array:
        """P (n, n), rows sum to one: from a token to itself, or to any of those that see it or are seen, equally likely."""
        A = (self.A | self.A.T | np.eye(len(self.A), dtype=bool)).astype(float)
        return A / A.sum(-1, keepdims=True)

    def spectral_gap(self) -> float:
        """1 − |λ₂| of the walk: after t steps its memory of the start has shrunk like |λ₂|^t; about 0 if it is not connected.

        P = D⁻¹ A is similar to the symmetric D^{−1/2} A D^{−1/2}, so its eigenvalues are real; the largest is 1.
        """
        P = self.walk()
        degree = 1 / P.diagonal()  # everybody has a loop: P_ii = 1 / degree of i
        S = np.sqrt(degree)[:, None] * P / np.sqrt(degree)
        sizes = np.sort(np.abs(np.linalg.eigvalsh((S + S.T) / 2)))
        return max(0.0, float(1 - sizes[-2])) if len(sizes) > 1 else 1.0  # rounding may leave a λ₂ above 1
