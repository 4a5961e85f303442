"""A soft cap: no score can be larger than c. Stands between the stages `scores` and `normalise`.

    S_ij → c tanh(S_ij / c)

A small score stays what it was, S (1 − (S/c)²/3 + …), and a large one, which would give one key all the weight, stops at ±c.
What hides a pair comes afterwards: a −∞ under a cap would be −c, and the hidden key would be seen.
"""

import numpy as np

from minitransformer.functional import PointwisePullback
from minitransformer.ranges import PositiveNumber
from minitransformer.typing import Array, Float, checked


@checked
def soft_cap(S: Float[Array, "*batch m"], cap: PositiveNumber) -> tuple[Float[Array, "*batch m"], PointwisePullback]:
    """c tanh(S/c), entry by entry. With T = tanh(S/c), δT = (1 − T²) δS/c, so dS = (1 − T²) dY.

    source   Bello et al. 2016, for a pointer network; Gemma 2, with c = 50
    raises   ValueError for a cap that is not above 0
    """
    T = np.tanh(S / S.dtype.type(cap))
    return S.dtype.type(cap) * T, PointwisePullback(1 - T * T)
