"""Where Borealis slips on attention as memory retrieval: what is printed fails, what we use holds."""

import numpy as np
import pytest

from minitransformer.attention import dot_product_attention
from minitransformer.related import hopfield_attention, hopfield_energy


def rises(read, count=100):
    """In how many of so many random memories the energy of some query grows in one of five updates, by what is fed back."""
    found = 0
    for seed in range(count):
        Q, K, V = np.random.default_rng(seed).standard_normal((3, 6, 4))
        energies = []
        for _ in range(6):
            energies.append(hopfield_energy(Q, K)[0])
            Q = dot_product_attention(Q, K, V if read == "values" else K)[0]
        found += bool((np.diff(energies, axis=0) > 1e-12).any())
    return found


def test_what_is_fed_back_are_the_keys():
    """Figure 15 and its text feed "the output of the attention mechanism back in as a new query". The output is made of values.

    With values of their own, as every transformer has them, the energy grows for some query in 100 of 100 random memories; and
    values of another width are no queries at all. Fed back is the average of the keys, and the values are read at the end.
    """
    assert rises("values") == 100
    assert rises("keys") == 0
    Q, K, V = np.ones((5, 4)), np.ones((6, 4)), np.ones((6, 3))
    Y, _ = dot_product_attention(Q, K, V)
    with pytest.raises(TypeError, match="Q"):
        dot_product_attention(Y, K, V)
    assert hopfield_attention(Q, K, V)[0].shape == (5, 3)
