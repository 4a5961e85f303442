"""The table of chapter 05, one row for each encoding: what each term of a score is, and what the code says of it.

    S_ij · divisor  =  content–content + content–position + position–content + position–position

The terms are typed here, in the letters of the chapter; a test compares them with `terms_of`, which asks the code. All else
in the table is asked of the code.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from minitransformer.attention import attend
from minitransformer.backend import backend
from minitransformer.measurements.position_scores import scores_of, varies_along_diagonals, with_some_parameters
from minitransformer.positions import AT_EMBEDDING, IN_ATTENTION, ScoreEncoding, place
from minitransformer.pullback import Tree, tree_items
from minitransformer.typing import Array

ADDED = ("q·k", "q·π[j]", "π[i]·k", "π[i]·π[j]", "v + π[j]")
WRITTEN = {  # cc, cp, pc, pp, and what is averaged; o = j − i, and [o] means: one for each offset; x[i] is the column of pixel i
    "none": ("q·k", "–", "–", "–", "v"),
    "sinusoidal": ADDED,
    "learned": ADDED,
    "learnable sinusoids": ADDED,
    "tupe": ("q·k", "–", "–", "π[i]·π[j]", "v"),
    "t5": ("q·k", "–", "–", "b[o]", "v"),
    "alibi": ("q·k", "–", "–", "−λ|o|", "v"),
    "kerple": ("q·k", "–", "–", "−p ln(1+λ|o|)", "v"),
    "fire": ("q·k", "–", "–", "net(|o|, [i])", "v"),
    "grid": ("q·k", "–", "–", "π(o, x[i])", "v"),
    "shaw": ("q·k", "q·a[o]", "–", "–", "v + a[o]"),
    "relative keys": ("q·k", "q·a[o]", "–", "–", "v"),
    "relative sinusoids": ("q·k", "q·r[o]", "–", "–", "v"),
    "learnable relative sinusoids": ("q·k", "q·r[o]", "–", "–", "v"),
    "transformer-xl": ("q·k", "q·r[o]", "u·k", "u′·r[o]", "v"),
    "tener": ("q·k", "q·r[o]", "u·k", "u′·r[o]", "v"),
    "deberta": ("q·k", "q·k[o]", "q[o]·k", "–", "v"),
    "multiplicative": ("g[|o|] q·k", "–", "–", "–", "v"),
    "rope": ("q·R[o]k", "–", "–", "–", "v"),
}


class Facts(NamedTuple):
    """What is known of one encoding, in a model of a given size.

    kinds         of its four terms: "nothing", "words", or with positions in them "offset" or "places"
    divisor       of the scores, squared and over d: 1, 2 or 3; 0 where nothing is divided
    values        whether positions are in the values too
    numbers       how many it learns, in all layers together
    shared        the parameters that all layers have in common
    longer        whether it can be called on one token more than the model was made for
    forms_scores  whether it needs the n × n matrix of scores in every tier
    """

    name: str
    kinds: tuple[str, ...]
    divisor: int
    values: bool
    numbers: int
    shared: tuple[str, ...]
    longer: bool
    forms_scores: bool

    @property
    def offset_only(self) -> bool:
        """Whether the scores know of positions only how far apart they are."""
        return "places" not in self.kinds


def terms_of(S: Callable[[Array, Array], Array], Q: Array, K: Array) -> tuple[Array, Array, Array, Array]:
    """cc, cp, pc and pp of any scores S(Q, K) that are linear in each: silence the keys, the queries, both."""
    pp = S(0 * Q, 0 * K)
    cp = S(Q, 0 * K) - pp
    pc = S(0 * Q, K) - pp
    return S(Q, K) - cp - pc - pp, cp, pc, pp


def kind_of(term: Array) -> str:
    """What a term depends on, for a sentence with the same word in all places."""
    size = np.abs(term).max()
    if size < 1e-12:
        return "nothing"
    if np.ptp(term, (-2, -1)).max() < 1e-9 * size:
        return "words"
    return "offset" if varies_along_diagonals(term) < 1e-9 else "places"


def data(*, width: int = 64, heads: int = 4, longest: int = 128, layers: int = 6, seed: int = 0) -> dict[str, Facts]:
    """The facts of every encoding that a model can be given by name."""
    rng = np.random.default_rng(seed)
    found = {}
    with backend("numpy"):  # the tier that keeps A
        for name in AT_EMBEDDING:
            added = place(name, width=width, heads=heads, longest=longest).at_embedding
            found[name] = _of_added(name, added, rng, width, longest)
        for name in IN_ATTENTION:
            e = place(name, width=width, heads=heads, longest=longest).in_attention
            found[name] = _of_attention(name, e, rng, heads, width // heads, longest, layers)
    return found


def _of_added(name: str, added: Any, rng: np.random.Generator, width: int, longest: int) -> Facts:
    """The facts of an encoding that is added to the embeddings, on a text of one word, whose rows only positions tell apart."""
    params = added.init(rng, np.float64)
    X = np.tile(rng.standard_normal(width), (longest + 1, 1))
    W_q, W_k = rng.standard_normal((2, width, width))

    def added_scores(X: Array, Z: Array) -> Array:
        return added(params, X)[0] @ W_q @ (added(params, Z)[0] @ W_k).T

    kinds = tuple(map(kind_of, terms_of(added_scores, X[:longest], X[:longest])))
    values = not np.array_equal(added(params, X[:longest])[0], X[:longest])
    return Facts(name, kinds, 1, values, _count(params), (), runs(added, params, X), False)


def _of_attention(name: str, e: Any, rng: np.random.Generator, heads: int, d: int, longest: int, layers: int) -> Facts:
    """The facts of an encoding inside attention: all queries are equal, and all keys, so that only positions tell them apart."""
    Q, K = words = np.tile(rng.standard_normal((2, heads, 1, d)), (1, 1, longest + 1, 1))  # the same for all
    V = rng.standard_normal((heads, longest + 1, d))
    initial, params = e.init(rng, np.float64), with_some_parameters(e, rng)
    parts = initial._asdict().items()
    Y, pullback = attend(e, params, Q[:, :longest], K[:, :longest], V[:, :longest])
    cc = terms_of(lambda Q, K: scores_of(e, initial, Q, K), Q[:, :1], K[:, :1])[0]
    divisor = (Q[0, 0] @ K[0, 0]) / cc[0, 0, 0]
    return Facts(
        name,
        tuple(map(kind_of, terms_of(lambda Q, K: scores_of(e, params, Q, K), *words[:, :, :longest]))),
        0 if math.isclose(divisor, 1) else round(divisor**2 / d),
        not np.allclose(Y, pullback.A @ V[:, :longest]),
        sum(_count(value) * (1 if part in e.shared else layers) for part, value in parts),
        tuple(part for part, value in parts if part in e.shared and value is not None),
        runs(partial(attend, e), params, *words, V),
        isinstance(e, ScoreEncoding),
    )


def _count(params: Tree) -> int:
    return sum(np.size(leaf) for _, leaf in tree_items(params) if leaf is not None)


def runs(call: Callable, *inputs: Tree | Array) -> bool:
    """Whether it takes these inputs."""
    try:
        call(*inputs)
    except ValueError:
        return False
    return True


def table(facts: dict[str, Facts], names: Sequence[str], new: Sequence[str] = (), longest: int = 128) -> str:
    """The rows of these names as lines of text, with a mark at those that are new."""
    widths = (1, max(map(len, names)), 3, 10, 6, 6, 13, 8, 6, 3, 4, 3)
    head = ("", "", "÷", "cc", "cp", "pc", "pp", "values", "learns", "o?", f"{longest + 1}?", "n²?")
    rows: list[tuple[str, ...]] = [head]
    for name in names:
        f = facts[name]
        yes_no = ["yes" if flag else "no" for flag in (f.offset_only, f.longer, f.forms_scores)]
        if name == "none":
            yes_no[0] = "–"
        divided = ("1", "√d", "√2d", "√3d")[f.divisor]
        rows.append(("→" if name in new else "", name, divided, *WRITTEN[name], f"{f.numbers:>6,}", *yes_no))
    lines = (" ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
