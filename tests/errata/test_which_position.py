"""Two claims about positions that an experiment can answer (the record is drawn in chapter 06)."""

from minitransformer.figures import length_extrapolation, which_position


def test_E13_relative_positions_are_not_better_at_everything():
    """Borealis II, after figure 4: relative embeddings "generally" do better. The paper behind the figure says: in span
    prediction, while learned absolute ones do better in classification. In our small models too it depends on the task.
    """
    grid = which_position.data()
    absolute, relative = (grid.kinds.index(kind) for kind in ("absolute", "relative"))
    learned = grid.forms.index("learned")
    order, span = (grid.right[task][:, learned].mean(-1) for task in ("order", "span"))
    assert span[relative] > span[absolute]
    assert not order[relative] > order[absolute] + 0.01


def test_E65_sinusoids_do_not_generalise_to_lengths_that_were_never_seen():
    """From GRU to attention: sinusoids may let a model read sequences longer than any in training. They can be computed
    there, but the model that has learned from 64 bytes at a time needs more than twice the bits at 128 and 256; models that
    see offsets need hardly more than before.
    """
    found = length_extrapolation.data()
    sinusoidal, alibi = (found.mean("text", name) for name in ("sinusoidal", "alibi"))
    assert sinusoidal[1] > 2 * sinusoidal[0]
    assert sinusoidal[2] > 2 * sinusoidal[0]
    assert alibi[2] < 1.05 * alibi[0]
