"""The claims of the caption of fig_norm_order."""

import numpy as np

from minitransformer.figures import norm_order


def test_pre_norm_gives_the_first_block_more_gradient_and_post_norm_less():
    pre, post = (np.median(values, 0) for values in norm_order.data())
    assert 3 < pre[0] < 6  # "four times"
    assert 0.2 < post[0] < 0.5  # "a third"
    assert pre[-1] == post[-1] == 1
