"""Two claims about positions that an experiment can answer (the record is drawn in chapter 06)."""

from minitransformer.figures import length_extrapolation, which_position


def test_E13_relative_positions_are_not_better_at_everything():
    """Borealis II, after figure 4.

    printed  On BERT's tasks "relative position embeddings generally perform better than absolute position
             embeddings".
    wrong    It depends on the task. Our small readers with learned relative positions find more spans than with
             absolute ones, and do not answer more often what comes first.
    holds    The paper behind the figure says so: better in span prediction, while learned absolute ones do better in
             classification.
    """
    grid = which_position.data()
    absolute, relative = (grid.kinds.index(kind) for kind in ("absolute", "relative"))
    learned = grid.forms.index("learned")
    order, span = (grid.right[task][:, learned].mean(-1) for task in ("order", "span"))
    assert span[relative] > span[absolute]
    assert not order[relative] > order[absolute] + 0.01


def test_E65_sinusoids_do_not_generalise_to_lengths_that_were_never_seen():
    """From GRU to attention, on sinusoids.

    printed  They are used because of "the property that it can generalize to lengths not seen during training".
    wrong    They can be computed there, but our models that have learned from 64 bytes at a time need more than twice
             the bits at 128 and 256.
    holds    It was a hypothesis of the paper. Models that see offsets, as ALiBi, need hardly more than before.
    """
    found = length_extrapolation.data()
    sinusoidal, alibi = (found.mean("text", name) for name in ("sinusoidal", "alibi"))
    assert sinusoidal[1] > 2 * sinusoidal[0]
    assert sinusoidal[2] > 2 * sinusoidal[0]
    assert alibi[2] < 1.05 * alibi[0]
