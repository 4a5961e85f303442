"""Reformer's hash: how likely two vectors are to share a bucket, and who sees whom once tokens are sorted by bucket."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention.selected.reformer import hash_buckets, sort_in_rounds
from minitransformer.figures.interaction_matrices import squares
from minitransformer.figures.style import figure, merged
from minitransformer.typing import Array

DRAWS = 20_000


class HashCollisions(NamedTuple):
    """Angles in degrees; the share of draws with one bucket, by the number of buckets; and one round on a few tokens.

    order    (n,) the positions, sorted
    bucket   (n,) of each position
    sees     (n, n) by position
    """

    angles: Array
    shares: dict[int, Array]
    order: Array
    bucket: Array
    sees: Array
    chunk: int


def collision(angle: Array, buckets: int) -> Array:
    """The probability of one bucket for two vectors, 2 or 4 buckets: each of the halves has to agree on a sign."""
    return (1 - angle / np.pi) ** (buckets // 2)


def shares(angles: Array, buckets: int, rng: np.random.Generator, d: int = 16) -> Array:
    """How often two vectors at each angle fall into one bucket."""
    pairs = np.zeros((len(angles), 2, d))
    pairs[:, 0, 0] = 1
    pairs[:, 1, :2] = np.stack([np.cos(angles), np.sin(angles)], -1)
    rotations = np.split(rng.standard_normal((DRAWS, d, buckets // 2)), 20)  # in less memory
    found = np.concatenate([hash_buckets(pairs, some) for some in rotations])
    return (found[..., 0] == found[..., 1]).mean(0)


def one_round(bucket: Array, chunk: int, *, causal: bool, other_buckets: bool = False) -> tuple[Array, Array]:
    """The sorted positions, and who sees whom by position, read off the chunks of the code."""
    known = sort_in_rounds(bucket[None], chunk, causal=causal, other_buckets=other_buckets)
    sees = np.zeros((len(bucket), len(bucket)), bool)
    for c, a, side in zip(*np.nonzero(known.sees[0]), strict=True):
        sees[known.order[0, c, a], known.order[0, c - 1 + side // chunk, side % chunk]] = True
    order = known.order[0].ravel()
    return order[order >= 0], sees


def data(n: int = 24, chunk: int = 3, seed: int = 3) -> HashCollisions:
    """Four buckets for n random tokens of width 8."""
    rng = np.random.default_rng(seed)
    angles = np.arange(0, 181, 15)
    found = {b: shares(np.radians(angles), b, rng) for b in (2, 4, 16)}
    bucket = hash_buckets(rng.standard_normal((n, 8)), rng.standard_normal((1, 8, 2)))[0]
    order, sees = one_round(bucket, chunk, causal=True)
    return HashCollisions(angles, found, order, bucket, sees, chunk)


def draw(data: HashCollisions) -> Figure:
    """Above formula (lines) and draws (marks); below one causal round, by position and sorted, colours are buckets."""
    fig, grid = figure(2, 2, width=10, height=9.5, height_ratios=(1, 1.3))
    axes = (merged(fig, grid[0]), *grid[1])
    fine = np.linspace(0, 180, 181)
    for (buckets, found), marker in zip(data.shares.items(), "o^s", strict=True):
        label = f"{buckets} buckets"
        (line,) = axes[0].plot(data.angles, found, marker, linestyle="none", markersize=9, label=label)
        if buckets <= 4:
            axes[0].plot(fine, collision(np.radians(fine), buckets), "-", color=line.get_color())
    axes[0].set(xlabel="angle in degrees", xticks=(0, 45, 90, 135, 180))
    axes[0].set(ylabel="share in one bucket", yticks=(0, 0.5, 1))
    axes[0].legend()
    n, by_bucket = len(data.bucket), np.ix_(data.order, data.order)
    kinds = np.where(data.sees, data.bucket[:, None], 0)
    squares(axes[1], data.sees, "by position", kinds)
    squares(axes[2], data.sees[by_bucket], "sorted by bucket", kinds[by_bucket])
    for edge in np.arange(data.chunk, n, data.chunk) + 0.5:
        axes[2].axhline(edge, color="0.75", linewidth=1, linestyle="-")
        axes[2].axvline(edge, color="0.75", linewidth=1, linestyle="-")
    for bucket in np.unique(data.bucket):
        first, last = (np.flatnonzero(data.bucket[data.order] == bucket) + 1)[[0, -1]]
        right = first < n / 2
        place = (last + 1.5 if right else first - 1.5, (first + last) / 2)
        name, ground = f"bucket {bucket + 1 - data.bucket.min()}", {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes[2].text(*place, name, ha="left" if right else "right", va="center", bbox=ground)
    for ax in axes[1:]:
        ax.set(xticks=(1, n // 2, n), yticks=(1, n // 2, n), ylabel="query", xlabel="key")
    return fig
