"""A text that is read piece by piece, each step going on from the state of the one before."""

from itertools import pairwise

import numpy as np


def in_pieces(layer, params, given, edges, state=None):
    """What the steps from each edge to the next say, put together, and the last state.

    given   tokens (…, n) or rows (…, n, D) of a layer or a model; of a core the list of what its heads are given
    """
    said = []
    for a, b in pairwise(edges):
        if isinstance(given, list):
            Y, state = layer.step(params, *(X[..., a:b, :] for X in given), state=state)
        else:
            Y, state = layer.step(params, given[..., a:b] if given.dtype.kind == "i" else given[..., a:b, :], state)
        said.append(Y)
    return np.concatenate(said, -2), state
