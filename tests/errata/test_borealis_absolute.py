"""Where Borealis II slips about absolute positions, all explained in chapter 04: what is printed fails, ours holds."""

import numpy as np
import pytest

from minitransformer.errata.borealis import falls_until
from minitransformer.measurements.position_probes import order_error
from minitransformer.models import LanguageModel
from minitransformer.models.bert import BERT
from minitransformer.positions import sinusoids


def test_E4_monotonic_up_to_where_depends_on_the_width():
    """Borealis II, caption of figure 2.

    printed  Dot products of the sinusoids of figure 1a fall; "this is monotonic for the first 51 entries".
    wrong    For how long depends on D, which is not said: 5 at D = 64, 43 at 512 and 768, 68 at 1024. No even D up to
             2000 gives 49 to 52, in either layout.
    holds    The offset at which the sum of the cosines stops falling is a function of D.
    """
    found = {width: falls_until(width) for width in (64, 128, 256, 512, 768, 1024)}
    assert found == {64: 5, 128: 11, 256: 24, 512: 43, 768: 43, 1024: 68}
    for width in range(2, 2001, 2):
        for layout in ("interleaved", "halves"):
            assert falls_until(width, layout=layout) not in (49, 50, 51, 52)
    assert falls_until(512, layout="halves") == 43
    assert falls_until(1024, layout="halves") == 68

    # and the dot products of the rows themselves say so too
    for width, until in found.items():
        table = sinusoids(100, width)
        steps = np.diff(table[0] @ table.T)
        assert (steps[:until] < 0).all()
        assert steps[until] >= 0


def test_E5_it_is_the_rank_that_leaves_room_for_words():
    """After (4): "D is usually greater than the maximum sequence length I (e.g., BERT used D=1024, I=512)", so that words
    can live outside the subspace of the positions.

    BERT-Base has D = 768, and models with long contexts have many more positions than channels. The argument does not
    need D > I: the rows of the table span far fewer than min(D, I) directions, because all slow channels are alike.
    """
    assert BERT().width == 768
    for n in (512, 4096):
        sizes = np.linalg.svd(sinusoids(n, 768), compute_uv=False)
        rank = int((sizes > 1e-6).sum())
        if n == 512:
            assert rank == 151
        else:
            assert 200 < rank < 500 < n  # more positions than channels, and still room for words


def test_E6_gpt_2_is_a_decoder():
    """Learned embeddings: "adopted by subsequent encoder models like BERT and GPT-2".

    In an encoder every token sees all others; in GPT-2, as in our LanguageModel, none sees what comes after it.
    """
    rng = np.random.default_rng(6)
    tokens = rng.integers(0, 9, 6)
    changed = np.append(tokens[:-1], (tokens[-1] + 1) % 9)

    gpt = LanguageModel(vocabulary=9, context=6, width=8, depth=2, heads=2, positions="learned")
    params = gpt.init(rng, np.float64)
    assert np.array_equal(gpt(params, tokens)[0][:-1], gpt(params, changed)[0][:-1])

    bert = BERT(vocabulary=9, context=6, width=8, depth=2, heads=2, hidden=16)
    weights = bert.init(rng, np.float64)
    before, after = (bert(weights, t)[0][:-1] for t in (tokens, changed))
    assert (np.abs(before - after).max(1) > 1e-4).all()


def test_E7_order_is_classified():
    """Borealis II, below figure 3.

    printed  "regressing pairs of position embeddings to predict relative position"
    wrong    A linear regression of b − a makes an error of 0 on sinusoids, because b and a can each be read off; the
             published error of the sinusoids is above 0, and so is ours.
    holds    A logistic regression of whether b > a; its number is the fraction of wrong answers.
    """
    rng = np.random.default_rng(7)
    table = sinusoids(128, 64)
    a, b = rng.integers(0, 128, (2, 512))
    pairs = np.c_[table[a], table[b], np.ones(512)]
    theta, *_ = np.linalg.lstsq(pairs[:400], (b - a)[:400], rcond=None)
    as_printed = np.abs(np.round(pairs[400:] @ theta) - (b - a)[400:]).mean()
    assert as_printed == 0
    assert 0 < order_error(table, rng) < 0.1


def test_E12_the_base_stands_in_equation_3():
    """Caption of figure 4: "the base of the angular frequency 10000 is replaced with a learned value (see equation 2)".

    Equation (2) says that attention does not see the order, and has no base. It is (3) that changes with it.
    """
    assert np.abs(sinusoids(8, 6) - sinusoids(8, 6, base=500.0)).max() > 0.1
    np.testing.assert_allclose(sinusoids(8, 6)[:, 2], np.sin(np.arange(8) * 10000 ** (-2 / 6)), rtol=0, atol=1e-15)
    rng = np.random.default_rng(12)
    with pytest.raises(TypeError, match="base"):
        LanguageModel(vocabulary=9, context=6, width=8, depth=1, heads=2, base=500.0).init(rng)
