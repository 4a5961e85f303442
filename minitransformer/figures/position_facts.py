"""A table of all encodings of positions, made by asking the code: nothing in it is typed."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from minitransformer.backend import backend
from minitransformer.figures.same_word import scores_of, varies_along_diagonals, with_some_parameters
from minitransformer.positions import AT_EMBEDDING, IN_ATTENTION, Encoding, ScoreEncoding
from minitransformer.pullback import Tree, tree_items
from minitransformer.typing import Array


class Facts(NamedTuple):
    """What is known of one encoding, in a model of a given size.

    acts_on       the stages that it changes
    numbers       how many it learns, in all layers together
    shared        the parameters that all layers have in common
    offset_only   whether scores of a sentence of one word are a function of j − i
    longer        whether it can be called on one token more than the model was made for
    fused         whether scores are made tile by tile; if not, the n × n matrix is formed
    """

    name: str
    acts_on: tuple[str, ...]
    numbers: int
    shared: tuple[str, ...]
    offset_only: bool
    longer: bool
    fused: bool


def data(*, width: int = 64, heads: int = 4, longest: int = 128, layers: int = 6, seed: int = 0) -> list[Facts]:
    """The facts of every encoding that a model can be given by name."""
    rng = np.random.default_rng(seed)
    found = []
    with backend("numpy"):  # the tier that keeps A
        for name, added in AT_EMBEDDING.items():
            if name != "none":
                found.append(_of_added(name, added(width, longest), rng, width, longest))
        for name, make in IN_ATTENTION.items():
            e = make(width, heads, longest)
            found.append(_of_attention(name, e, rng, heads, width // heads, longest, layers))
    return found


def _of_added(name: str, added: Any, rng: np.random.Generator, width: int, longest: int) -> Facts:
    X = np.tile(rng.standard_normal(width), (longest + 1, 1))
    params = added.init(rng, np.float64)
    Y, _ = added(params, X[:longest])
    offset_only = varies_along_diagonals(Y @ Y.T) < 1e-9
    return Facts(name, ("embeddings",), _count(params), (), offset_only, _runs(added, params, X), True)


def _of_attention(
    name: str, e: Encoding, rng: np.random.Generator, heads: int, d: int, longest: int, layers: int
) -> Facts:
    words = np.tile(rng.standard_normal((2, heads, 1, d)), (1, 1, longest + 1, 1))  # q and k, the same for all
    V = rng.standard_normal((heads, longest + 1, d))
    initial, params = e.init(rng, np.float64), with_some_parameters(e, rng)
    parts = initial._asdict().items()
    Y, pullback = e(params, *words[:, :, :longest], V[:, :longest])
    plain = np.allclose(Y, pullback.A @ V[:, :longest])  # values are averaged as they are
    return Facts(
        name,
        tuple(stage for stage in e.acts_on if stage != "values" or not plain),
        sum(_count(value) * (1 if part in e.shared else layers) for part, value in parts),
        tuple(part for part, value in parts if part in e.shared and value is not None),
        varies_along_diagonals(scores_of(e, params, *words[:, :, :longest])) < 1e-9,
        _runs(e, params, *words, V),
        not isinstance(e, ScoreEncoding),
    )


def _count(params: Tree) -> int:
    return sum(np.size(leaf) for _, leaf in tree_items(params) if leaf is not None)


def _runs(call: Callable, *inputs: Tree | Array) -> bool:
    try:
        call(*inputs)
    except ValueError:
        return False
    return True


def table(facts: list[Facts], longest: int = 128) -> str:
    """The facts as lines of text."""
    longer = f"{longest + 1}?"
    lines = [f"{'':28} {'acts on':17} numbers  j−i only  {longer:5}  fused  shared by all layers"]
    for f in facts:
        only, more, fused = ("yes" if flag else "no" for flag in (f.offset_only, f.longer, f.fused))
        acts_on, shared = " and ".join(f.acts_on), ", ".join(f.shared)
        lines.append(f"{f.name:28} {acts_on:17} {f.numbers:7,}  {only:8}  {more:5}  {fused:5}  {shared}".rstrip())
    return "\n".join(lines)
