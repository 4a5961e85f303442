"""The claims of the caption of fig_block_diagram."""

import pytest

from minitransformer.figures import block_diagram


@pytest.fixture(scope="module")
def data():
    return block_diagram.data()


@pytest.mark.parametrize("order", ["pre", "post"])
def test_what_is_drawn_is_the_block(data, order):
    assert data.error[order] < 1e-12
    assert sorted(data.shapes[order]) == ["attention", "attention_norm", "ffn", "ffn_norm"]


def test_every_box_takes_and_gives_the_same_shape_so_that_it_can_be_added(data):
    for shapes in data.shapes.values():
        assert all(before == after == "(n, D)" for before, _, after in shapes.values())
        assert shapes["attention"][1] == "(H, n, n)"
        assert shapes["ffn"][1] == "(n, 4D)"


def test_only_in_post_norm_does_a_norm_stand_on_the_stream():
    behind = {order: [name for _, names in steps for name in names] for order, steps in block_diagram.STEPS.items()}
    assert behind == {"pre": [], "post": ["attention_norm", "ffn_norm"]}


def test_the_figure_names_every_box_and_both_sums(data):
    for ax in block_diagram.draw(data).axes:
        drawn = [text.get_text() for text in ax.texts]
        assert drawn.count("layer norm") == drawn.count("+") == 2
        assert "attention\nA (H, n, n)" in drawn
        assert "feed-forward\nhidden (n, 4D)" in drawn
