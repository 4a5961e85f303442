"""The claims of the caption of fig_encoder_decoder."""

import pytest

from minitransformer.figures import encoder_decoder


@pytest.fixture(scope="module")
def data():
    return encoder_decoder.data()


def test_every_decoder_block_sends_a_gradient_back_and_the_encoder_gets_their_sum(data):
    assert len(data.sent_back) == data.depth
    assert (data.sent_back > 1).all()
    assert data.sum == pytest.approx(data.received, rel=1e-12)


def test_the_numbers_in_the_boxes_add_up_to_the_model(data):
    blocks = data.depth * (sum(data.encoder.values()) + sum(data.decoder.values()))
    assert data.table + blocks + 2 * data.last_norm == data.whole


def test_two_thirds_of_an_encoder_block_are_its_feed_forward_network(data):
    assert data.encoder["ffn"] / sum(data.encoder.values()) == pytest.approx(2 / 3, abs=0.01)
    assert data.decoder["cross"] == data.decoder["attention"]


def test_every_part_stands_in_the_figure_with_its_norm_and_its_sum(data):
    (ax,) = encoder_decoder.draw(data).axes
    drawn = [text.get_text() for text in ax.texts]
    for name, part in (("attention", "attention"), ("causal attention", "attention"), ("cross-attention", "cross")):
        assert drawn.count(f"{name}  {data.decoder[part]:,}") == 1
    assert drawn.count(f"feed-forward  {data.encoder['ffn']:,}") == 2
    assert drawn.count("+") == 5
    assert drawn.count(f"norm  {data.last_norm}") == 7  # one for each sum, and one at the top of each stack
