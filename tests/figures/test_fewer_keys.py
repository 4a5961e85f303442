"""What chapter 07 says of a BERT's heads with fewer keys."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from minitransformer import experiments
from minitransformer.figures import attention_rank, fewer_keys


@pytest.fixture(scope="module")
def fewer():
    return fewer_keys.data()


def test_the_order_of_the_untrained(fewer):
    """Best, landmarks, means of neighbours, one mean of all; the random projection is the worst."""
    best, landmarks, neighbours, mean = (fewer.untrained[method] for method in fewer_keys.METHODS)
    assert (best < landmarks).all()
    assert (landmarks < neighbours).all()
    assert (neighbours < mean).all()
    assert (fewer.untrained["random"] > mean).all()
    assert fewer.untrained["random"].max() > 1.5
    assert best.max() < 0.21
    assert landmarks[3:].max() < 0.27


def test_with_32_a_random_projection_is_worse_than_saying_nothing():
    assert (attention_rank.data().errors["random, 32"] > 1).all()


def test_what_is_fitted_to_one_text_is_lost_on_another(fewer):
    assert fewer.fitted["fitted"].max() < 0.13
    assert (fewer.fitted["fitted"] < fewer.fitted["start"] / 3).all()
    assert (fewer.fitted["other"] > fewer.fitted["before"]).all()
    assert (fewer.fitted["other"] < fewer.fitted["mean"] + 0.04).all()


def test_what_is_fitted_to_many_texts_holds_on_others_in_the_first_layers(fewer):
    gained = fewer.many["before"] - fewer.many["other"]
    assert gained[:4].mean() > 0.01
    assert gained[4:].mean() < 0
    assert np.abs(gained).max() < 0.15
    assert (fewer.many["other"] < fewer.fitted["other"] - 0.05).all()


def test_with_k_fixed_the_error_grows_with_n():
    rows = [(trial.n, result) for trial, result in experiments.load("learned_projections") if trial.block is None]
    fitted = [result["fitted"] for _, result in rows]
    assert [n for n, _ in rows] == [64, 128, 256, 512, 1024]
    assert (np.diff(fitted) > 0).all()
    assert fitted[0] < 0.05
    assert fitted[-1] > 0.3


def test_the_figure(fewer):
    left, right = fewer_keys.draw(fewer).axes
    assert [line.get_label() for line in left.lines] == list(fewer_keys.METHODS.values())
    assert [len(line.get_xdata()) for line in (*left.lines, *right.lines)] == [6] * 8
    looks = {line.get_label(): (to_hex(line.get_color()), line.get_marker()) for line in (*left.lines, *right.lines)}
    assert looks["means of neighbours"] == looks["others, before the fit"], "which are means of neighbours, too"
    drawn = [y for line in (*left.lines, *right.lines) for y in line.get_ydata()]
    assert left.get_ylim()[1] > max(drawn)
