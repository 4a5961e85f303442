"""What the caption says of the three branches."""

import numpy as np

from minitransformer.figures import three_views
from minitransformer.figures.three_views import BLOCK, CHOSEN, WINDOW


def test_each_branch_sees_what_the_chapter_says():
    compressed, chosen, window, together = three_views.data().values()
    n = len(compressed)
    np.testing.assert_allclose(together, (compressed + chosen + window) / 3)
    for i in range(n):
        complete = (i + 1) // BLOCK * BLOCK
        np.testing.assert_array_equal(np.flatnonzero(compressed[i]), np.arange(complete))
        of_blocks = compressed[i].reshape(-1, BLOCK)
        np.testing.assert_allclose(of_blocks, of_blocks[:, :1].repeat(BLOCK, 1))
        blocks = set(np.flatnonzero(chosen[i]) // BLOCK)
        assert blocks >= {0, i // BLOCK, max(i // BLOCK - 1, 0)}
        assert len(blocks) == min(CHOSEN, i // BLOCK + 1)
        np.testing.assert_array_equal(np.flatnonzero(window[i]), np.arange(max(0, i - WINDOW + 1), i + 1))
