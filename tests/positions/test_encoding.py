"""What all encodings inside attention have in common."""

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.attention import attend
from minitransformer.checks import frozen
from minitransformer.models import LanguageModel
from minitransformer.positions import (
    FIRE,
    IN_ATTENTION,
    ALiBi,
    Encoding,
    OffsetBias,
    RoPE,
    ScoreEncoding,
    Shaw,
    offsets,
)


def test_offsets_of_the_last_queries():
    """Row o of a bias is for the offset j − i of true positions: the 2 queries of 5 positions stand at 3 and 4."""
    n, m = 2, 5
    for i in range(n):
        assert [offsets(n, m)[j - i + n - 1] for j in range(m)] == [j - (i + m - n) for j in range(m)]


@pytest.mark.parametrize("encoding", [ALiBi(2), Shaw(4, 3), RoPE(4)])
def test_more_queries_than_keys_are_refused(encoding):
    Q, K = np.zeros((2, 5, 4)), np.zeros((2, 3, 4))
    with pytest.raises(ValueError, match="Q: 5 queries for 3 keys"):
        attend(encoding, encoding.init(np.random.default_rng(0), np.float64), Q, K, K)


def test_a_cores_scale_is_that_of_its_encoding_and_no_other():
    Q = np.zeros((2, 3, 4))
    params = Shaw(4, 3).init(np.random.default_rng(0), np.float64)
    with pytest.raises(ValueError, match="scale: Shaw has a scale of its own"):
        attend(Shaw(4, 3), params, Q, Q, Q, scale=1.0)


def test_an_encoding_that_gives_nothing_or_too_little_is_refused():
    class Bias(OffsetBias):
        pass

    class Short(OffsetBias):
        def bias(self, params, n, m, *, causal):
            return np.zeros((1, n + m - 2)), lambda dbias: params

    class Scores(ScoreEncoding):
        pass

    Q = np.zeros((1, 3, 4))
    for encoding, lacks in ((Bias(), "bias"), (Scores(), "scores")):
        with pytest.raises(TypeError, match=f"has no {lacks}"):
            attend(encoding, Encoding().init(np.random.default_rng(0)), Q, Q, Q)
    with pytest.raises(ValueError, match=r"Short\.bias: should give an array \(heads, 5\).*; it gives shape \(1, 4\)"):
        attend(Short(), Encoding().init(np.random.default_rng(0)), Q, Q, Q)


@pytest.mark.parametrize("attention", ["softmax", "window:radius=3", "span:limit=5"])
def test_a_field_called_bias_makes_no_bias_of_scores(attention, tier):
    """It was asked for a number for each offset, since it has something of that name, when the model wrote."""

    @frozen
    class Shifted(FIRE):
        bias: float = 0.0

    if "shifted" not in IN_ATTENTION:
        mt.register("shifted", Shifted)
    try:
        model = LanguageModel(20, 16, 12, 2, 2, 8, attention=attention, positions="shifted:bias=0.5")
    finally:
        del IN_ATTENTION["shifted"]
    params, tokens = model.init(np.random.default_rng(0), np.float64), np.arange(8)[None]
    whole, _ = model(params, tokens)
    state, said = None, []
    for t in range(8):
        row, state = model.step(params, tokens[:, t : t + 1], state)
        said.append(row[:, 0])
    np.testing.assert_allclose(np.stack(said, 1), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("encoding", [ALiBi(2), Shaw(4, 3)])
def test_no_tokens(encoding):
    Q = np.zeros((2, 0, 4))
    Y, pullback = attend(encoding, encoding.init(np.random.default_rng(0), np.float64), Q, Q, Q)
    assert Y.shape == (2, 0, 4)
    assert [d.shape for d in pullback(Y)[1:]] == [Q.shape] * 3
