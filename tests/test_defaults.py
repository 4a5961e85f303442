"""What is drawn at first has the scale that is said, and what nobody chose has the value that is said."""

import dataclasses

import numpy as np
import pytest

from minitransformer.attention import ATTENTIONS, EluFeatures
from minitransformer.door import form_of
from minitransformer.models import BERT, EncoderDecoder, LanguageModel, SequenceModel
from minitransformer.positions import TUPE, DeBERTa, LearnedPositions, Shaw, T5Bias
from minitransformer.pullback import tree_get, tree_size
from minitransformer.training.choices import Training
from minitransformer.training.optimiser import AdamW
from minitransformer.training.schedule import Cosine, Noam

LARGE = {"vocabulary": 3000, "width": 64, "depth": 1, "heads": 2}


@pytest.mark.parametrize(
    ("layer", "path", "deviation"),
    [
        (LanguageModel(**LARGE), "E", 1 / 8),
        (EncoderDecoder(**LARGE), "E", 1 / 8),
        (BERT(**LARGE, types=50), "E", 0.02),
        (BERT(**LARGE, types=50), "types", 0.02),
        (BERT(**LARGE), "positions.table", 0.02),
        (SequenceModel(**LARGE, outputs=50), "head.W", 1 / 8),
        (LearnedPositions(64, 100), "table", 0.02),
        (TUPE(64, 16, 100, buckets=100, distance=200), "bias", 0.02),
        (TUPE(64, 16, 100), "table", 0.02),
        (DeBERTa(64, 2, 100), "P", 0.02),
        (Shaw(64, 50), "a_k", 0.02),
        (Shaw(64, 50), "a_v", 0.02),
        (T5Bias(50, 100, 200), "table", 0.02),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_tables_start_with_the_deviation_that_is_said(layer, path, deviation):
    drawn = tree_get(layer.init(np.random.default_rng(0)), path)
    assert drawn.size > 1000
    assert abs(drawn.std() / deviation - 1) < 0.1
    assert abs(drawn.mean()) < 0.1 * deviation


def test_projections_keep_the_variance_of_a_row():
    rng = np.random.default_rng(0)
    params = LanguageModel(width=256, depth=1, heads=2).init(rng).stack.blocks[0]
    X = rng.standard_normal((500, 256))
    for W in (params.attention.W_q, params.attention.W_k, params.attention.W_v, params.attention.W_o):
        assert abs((X @ W).std() - 1) < 0.05
        assert abs(W).max() <= np.sqrt(3 / 256)
    F = np.maximum(X @ params.ffn.W_1, 0)
    assert abs((F @ params.ffn.W_2).std() - 1) < 0.1


def fields(model):
    return {f.name: getattr(model, f.name) for f in dataclasses.fields(model)}


def test_what_a_model_is_if_nothing_is_chosen():
    """Defaults are promises: records and checkpoints are of them."""
    shared = {
        "hidden": None,
        "attention": "softmax",
        "positions": "sinusoidal",
        "groups": None,
        "order": "pre",
        "dropout": 0.0,
    }
    of_sequences = {
        "vocabulary": 256,
        "context": 128,
        "width": 128,
        "depth": 4,
        "heads": 4,
        "norm": "layer",
        "eps": 1e-5,
    }
    rest = {"outputs": None, "embedding": "scaled", "types": 1, "reversible": False}
    rest |= {"memory": 0, "universal": "no", "ponder": 0.01}
    assert fields(SequenceModel()) == shared | of_sequences | rest | {"activation": "relu", "causal": False}
    assert fields(LanguageModel()) == shared | of_sequences | rest | {"activation": "gelu_tanh", "causal": True}
    assert fields(EncoderDecoder(9)) == shared | {
        **{"vocabulary": 9, "longest": 64, "width": 64, "depth": 2, "heads": 4},
        **{"norm": "layer", "activation": "relu"},
    }
    assert all(block.eps == 1e-5 for block in (*EncoderDecoder(9).encoder.blocks, *EncoderDecoder(9).decoder.blocks))
    assert EncoderDecoder(9).encoder.blocks[0].ffn.hidden == 256


def test_the_sizes_of_models_that_everybody_knows():
    """BERT-Base without its pooler; a block is 12 D² + 13 D, and twice D more for the last norm."""
    assert tree_size(form_of(BERT())) == 108_891_648
    D = 128
    assert tree_size(form_of(LanguageModel())) == 256 * D + 4 * (12 * D * D + 13 * D) + 2 * D


USUAL = {
    "softmax": {"pattern": None, "page": None},
    "compressed": {"stride": 4, "convolution": "full", "null": True},
    "linformer": {"k": 64, "sharing": "headwise"},
    "nystrom": {"landmarks": 64, "taps": 65, "steps": 6},
    "fnet": {},
    "local": {"block": 64},
    "window": {"radius": 32, "step": 1, "globals_": 0},
    "sinks": {"first": 4, "last": 64},
    "strided": {"stride": 16, "part": "both"},
    "fixed": {"block": 16, "columns": 1, "part": "both"},
    "longformer": {"radius": 32, "dilation": 1, "globals_": 1},
    "etc": {"radius": 32, "globals_": 8, "clip": 16},
    "bigbird": {"window": 1, "globals_": 1, "random": 3, "seed": 0, "block": 64, "extra": 0},
    "span": {"limit": None, "ramp": 32, "penalty": 2e-6},
    "reformer": {"rounds": 2, "buckets": 8, "chunk": 32, "seed": 0},
    "routing": {"clusters": 8, "window": None, "decay": 0.999},
    "sinkhorn": {"block": 32, "iterations": 8, "temperature": 1.0, "noise": False, "cut": None},
    "moba": {"block": 16, "chosen": 3},
    "nsa": {"block": 16, "chosen": 4, "window": 32},
    "indexer": {"chosen": 32, "small": 2, "narrow": 8, "weight": 1.0},
    "smoother": {"similarity": "gaussian"},
    "linear": {"features": EluFeatures()},
    "taylor": {"degree": 2},
    "performer": {"kind": "positive", "rows": None, "orthogonal": True, "same_length": False, "redraw": 1000},
    "cosformer": {},
    "dpfp": {"nu": 1},
    "delta": {},
    "retnet": {},
    "gla": {"rank": 16, "root": 16},
    "ssd": {},
    "gated-delta": {"channelwise": False},
    "forgetting": {},
}


def test_what_an_attention_is_if_nothing_is_chosen():
    sizes = {"width", "heads", "d", "longest", "scores", "rotate"}  # filled in by the model
    assert list(USUAL) == list(ATTENTIONS)
    for name, kind in ATTENTIONS.items():
        options = {f.name: f.default for f in dataclasses.fields(kind) if f.name not in sizes}
        assert options == USUAL[name], name


def test_what_a_training_is_if_nothing_is_chosen():
    assert (AdamW().betas, AdamW().eps, AdamW().weight_decay) == ((0.9, 0.99), 1e-8, 0.01)
    training = Training(10, 4, Cosine(1e-3, 10))
    assert (training.clip, training.parts, training.seed, training.look_every, training.save_every) == (
        1,
        4,
        0,
        100,
        100,
    )
    assert (Cosine(1.0, 10).warmup, Cosine(1.0, 10).floor) == (0, 0)
    assert (Noam(8).warmup, Noam(8).factor) == (4000, 1)
