"""What the caption of fig_same_word claims, and that the scores it draws are those that attention uses."""

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.attention import attend
from minitransformer.figures import same_word
from minitransformer.figures.same_word import CLIP, ENCODINGS
from minitransformer.figures.style import COLUMN
from minitransformer.functional import softmax
from minitransformer.gather_scatter import by_offset
from minitransformer.measurements.position_scores import (
    THRESHOLD,
    scores_of,
    varies_along_diagonals,
    with_some_parameters,
)
from minitransformer.positions import ALiBi, NoParams, NoPositions, RoPE
from minitransformer.positions.rope_scaling import YaRN

PLACES = ("added sinusoids (8)", "TUPE (9)")


@pytest.fixture(scope="module")
def d():
    return same_word.data().scores


OTHERS = {"RoPE in halves, YaRN": RoPE(same_word.WIDTH, layout="halves", scaling=YaRN(4.0, 8))}


@pytest.mark.parametrize("name", ENCODINGS | OTHERS)
def test_the_scores_are_those_of_the_attention_itself(name):
    encoding, rng = (ENCODINGS | OTHERS)[name], np.random.default_rng(3)
    heads = getattr(encoding, "heads", 1)
    Q, K, V = rng.standard_normal((3, 2, heads, 9, same_word.WIDTH))
    params = with_some_parameters(encoding, rng)
    with mt.backend("numpy"):
        _, pullback = attend(encoding, params, Q, K, V)
    S = scores_of(encoding, params, Q, K)
    np.testing.assert_allclose(softmax(S)[0], pullback.A, atol=1e-12)
    np.testing.assert_allclose(scores_of(encoding, params, Q[..., -4:, :], K), S[..., -4:, :], atol=1e-12)


def test_all_but_three_are_functions_of_the_offset(d):
    striped = {name for name, S in d.items() if varies_along_diagonals(S) < 1e-12}
    assert set(d) - striped == {*PLACES, next(name for name in d if name.startswith("FIRE"))}
    assert len(d) == 12


def test_fire_has_stripes_up_to_its_threshold_and_squeezes_them_beyond(d):
    S = next(S for name, S in d.items() if name.startswith("FIRE"))
    assert varies_along_diagonals(S[: THRESHOLD + 1, : THRESHOLD + 1]) < 1e-12
    below = np.diagonal(S, -10)[THRESHOLD - 10 :]
    assert (np.diff(below) > 0).all()  # the same distance costs less and less


def test_cls_of_tupe_is_treated_alike_from_every_place(d):
    S = d["TUPE (9)"]
    assert np.ptp(S[0]) < 1e-12
    assert np.ptp(S[1:, 0]) < 1e-12
    assert np.ptp(S[1:, 1:]) > 1


@pytest.mark.parametrize("name", [f"Shaw (10), c = {CLIP}", f"a factor (12), c = {CLIP}", f"DeBERTa (13), c = {CLIP}"])
def test_clipped_ones_do_not_change_outside_of_the_band(d, name):
    S = d[name]
    i, j = np.indices(S.shape)
    for side in (j - i >= CLIP, i - j >= CLIP):
        assert np.ptp(S[side]) < 1e-12
    assert np.ptp(S) > 0.5


def test_stripes_of_t5_get_broader(d):
    row = d["T5 (11)"][-1][::-1]  # from offset 0 backwards
    changes = np.flatnonzero(np.abs(np.diff(row)) > 1e-9)
    widths = np.diff([-1, *changes])
    assert (widths[:8] == 1).all()
    assert (np.diff(widths[8:]) >= 0).all()
    assert widths.max() >= 8


def test_sinusoids_and_turns_do_not_fall_off(d):
    for name in ("Transformer-XL", "TENER", "RoPE"):
        far = [np.ptp(np.array([np.diagonal(S, o)[0] for o in range(24, 48)])) for S in (d[name], d[name].T)]
        assert min(far) > 0.2 * np.ptp(d[name])


def test_curves_fall_with_the_distance(d):
    for name in ("ALiBi, slope 1/2", "KERPLE, logarithm"):
        S = d[name]
        np.testing.assert_allclose(S, S.T, atol=1e-12)
        assert (np.diff(S[0]) < 0).all()
    np.testing.assert_allclose(np.diff(d["ALiBi, slope 1/2"][0]), -0.5)


def test_it_refuses_what_has_no_scores():
    with pytest.raises(TypeError, match="NoPositions: no scores known"):
        scores_of(NoPositions(4), None, *np.zeros((2, 1, 3, 4)))


def test_varies_along_diagonals():
    S = np.arange(9.0).reshape(3, 3)
    assert varies_along_diagonals(S) == pytest.approx(1)  # 0, 4, 8
    assert varies_along_diagonals(np.stack([S.T[::-1] * 0, S])) == pytest.approx(1)
    bias, _ = ALiBi(1).bias(NoParams(), 3, 3, causal=False)
    assert varies_along_diagonals(by_offset(bias, 3, 3)) == 0


def test_it_draws_eight_with_their_ranges(d):
    fig = same_word.draw(same_word.SameWord(d))
    panels = [ax for ax in fig.axes if ax.images]
    told = [ax.texts[-1].get_text().replace("added\n", "added ").split("\n") for ax in panels]
    assert [name for name, *_ in told] == [x.split(",")[0] for x in same_word.DRAWN]
    for ax, (name, *_, numbers) in zip(panels, told, strict=True):
        S = next(S for found, S in d.items() if found.split(",")[0] == name)
        assert numbers == f"{S.min():.1f} … {S.max():.1f}".replace("-", "−")
        np.testing.assert_array_equal(ax.images[0].get_array(), S)


def test_the_threshold_of_fire_stands_at_its_row(d):
    fig = same_word.draw(same_word.SameWord(d))
    (mark,) = (text for ax in fig.axes for text in ax.texts if "n₀" in text.get_text())
    assert mark.get_text() == f"– n₀ = {THRESHOLD}"
    assert mark.get_position()[1] == THRESHOLD
    assert any(text.get_text().startswith("FIRE") for text in mark.axes.texts)


def test_it_fits_on_a_screen(d):
    width, height = same_word.draw(same_word.SameWord(d)).get_size_inches()
    assert min(COLUMN, 72 * width) * height / width <= 1000
