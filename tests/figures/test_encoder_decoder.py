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


def test_two_thirds_of_an_encoder_block_are_its_feed_forward_network(data):
    assert data.encoder["ffn"] / sum(data.encoder.values()) == pytest.approx(2 / 3, abs=0.01)
    assert data.decoder["cross"] == data.decoder["attention"]
