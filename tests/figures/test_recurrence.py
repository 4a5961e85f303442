"""What the captions of the figures on memory, recurrence in depth and partial results claim."""

import numpy as np
import pytest

from minitransformer.figures import pondering, ring_work, segments, universal_block
from minitransformer.models.transformer_xl import reach


def test_segments_of_four():
    """A row sees its segment up to itself and the four rows before it; the gradient stays in the segment."""
    found = segments.data()
    i, j = np.indices(found.looks.shape)
    np.testing.assert_array_equal(found.looks, (j <= i) & (j >= i // 4 * 4 - 4))
    np.testing.assert_array_equal(found.learns, (j <= i) & (j // 4 == i // 4))
    assert found.looks[4:8].sum(1).tolist() == [5, 6, 7, 8]


def test_what_the_last_token_depends_on():
    """Everything from three times four tokens before its segment: here, from the first one."""
    found = segments.data(n=24)
    for height, row in enumerate(found.depends):
        down = segments.LAYERS - height
        first = 20 - reach(down, 4, 4) if down else 23
        assert np.flatnonzero(row).tolist() == list(range(first, 24))
    assert segments.data().depends[0].all()
    segments.draw(segments.data())


def test_a_token_thinks_as_long_as_its_walk():
    """One step for whoever is there already, and one more for each place on the way; it stands at 0 when it halts."""
    found = pondering.data()
    for i, steps in enumerate(found.N):
        place, way = i, 0
        while place:
            place, way = found.leads_to[place], way + 1
        assert steps == way + 1
        assert found.places[steps - 1, i] == 0
        assert not (found.places[: steps - 1, i] == 0).any()
    assert found.N.tolist() == [1, 2, 3, 3, 4, 5, 4, 4, 6, 2]
    np.testing.assert_allclose(found.w.sum(0), 1, rtol=1e-14)
    pondering.draw(found)


def test_the_block_is_what_is_drawn():
    assert universal_block.data().error < 1e-13
    universal_block.draw(universal_block.data())


def test_who_works_when():
    """Contiguous: the first worker is done after one step, the last never waits. Zigzag: all the same, in each step."""
    found = ring_work.data()
    contiguous, striped, zigzag = found.pairs.values()
    assert contiguous[1:, 0].sum() == 0
    assert (contiguous[:, -1] > 0).all()
    assert (zigzag == zigzag[:, :1]).all()
    assert np.ptp(striped, axis=1).max() == 8, "a stripe ahead lacks its diagonal: n/W pairs"
    assert {p.sum() for p in found.pairs.values()} == {32 * 33 // 2}
    assert found.efficiency == pytest.approx({"contiguous": 132 / 228, "striped": 33 / 36, "zigzag": 1})
    last = ring_work.draw(found).axes[3]
    names = "contiguous", "228", "striped", "144", "zigzag", "132"
    assert tuple(text.get_text() for text in last.texts) == names
    assert {bar.get_width() for bar in last.patches[1::2]} == {132}, "all have the same to do"
