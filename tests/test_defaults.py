"""What is drawn at first has the scale that is said, and what nobody chose has the value that is said."""

import importlib
import inspect
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from minitransformer.attention import ATTENTIONS, GLA, GatedDelta, attention_of
from minitransformer.checks import form_of
from minitransformer.machine import peak_memory
from minitransformer.models import BERT, EncoderDecoder, LanguageModel, SequenceModel
from minitransformer.positions import AT_EMBEDDING, IN_ATTENTION, TUPE, DeBERTa, LearnedPositions, Shaw, T5Bias, place
from minitransformer.pullback import tree_get, tree_size
from minitransformer.training import defaults
from tests.test_checks import ROOMS, SHORT

DEFAULTS = Path(__file__).with_name("defaults.txt")
LARGE = {"vocabulary": 3000, "width": 64, "depth": 1, "heads": 2}


@pytest.mark.parametrize(
    ("layer", "path", "deviation"),
    [
        (LanguageModel(**LARGE), "E", 1 / 8),
        (EncoderDecoder(**LARGE), "E", 1 / 8),
        (BERT(**LARGE, embedding="normed:types=50"), "E", 0.02),
        (BERT(**LARGE, embedding="normed:types=50"), "types", 0.02),
        (BERT(**LARGE), "positions.table", 0.02),
        (SequenceModel(**LARGE, outputs=50), "head.W", 1 / 8),
        (LearnedPositions(64, 100), "table", 0.02),
        (TUPE(64, 16, 100, buckets=100, distance=200), "bias", 0.02),
        (TUPE(64, 16, 100), "table", 0.02),
        (DeBERTa(64, 2, 100), "P", 0.02),
        (Shaw(64, 50), "a_k", 0.02),
        (Shaw(64, 50), "a_v", 0.02),
        (T5Bias(50, 100, 200), "table", 0.02),
        (GatedDelta(8, 16, channelwise=True), "W", 1 / 4),
        (GLA(8, 16), "W", 1 / 4),
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


def test_the_form_of_a_large_model_takes_no_memory():
    large = BERT(depth=2, vocabulary=100_000, embedding="plain")
    with peak_memory() as peak:
        assert tree_size(form_of(large)) > 90_000_000
        assert peak() < 5_000_000


def test_the_sizes_of_models_that_everybody_knows():
    """BERT-Base without its pooler; a block is 12 D² + 13 D, and twice D more for the last norm."""
    assert tree_size(form_of(BERT())) == 108_891_648
    D = 128
    assert tree_size(form_of(LanguageModel())) == 256 * D + 4 * (12 * D * D + 13 * D) + 2 * D


# ------------------------------------------------------------------------------- what nobody chose


def _offered(room):
    """Functions, classes and their methods in a room of the book, by name."""
    module = importlib.import_module(f"minitransformer.{room}")
    for name in getattr(module, "__all__", vars(module)):
        thing = getattr(module, name)
        if name.startswith("_") or not getattr(thing, "__module__", "").startswith("minitransformer."):
            continue
        yield name, thing
        for method, f in vars(thing).items() if inspect.isclass(thing) else ():
            if inspect.isfunction(f) and (method == "__call__" or not method.startswith("_")):
                yield f"{name}.{method}", f


def _defaults():
    for room in (*ROOMS, "training.choices", "training.optimiser", "training.schedule", "training.objective"):
        for name, thing in _offered(room):
            with suppress(ValueError):  # Python does not know the signatures of its own classes
                parameters = inspect.signature(inspect.unwrap(thing)).parameters.values()
                chosen = {
                    p.name: p.default for p in parameters if p.default is not p.empty and p.kind != p.POSITIONAL_ONLY
                }
                if chosen:
                    yield f"{name}({', '.join(f'{key}={value!r}' for key, value in chosen.items())})\n"
    for name in ATTENTIONS:
        yield f"attention={name!r}: {attention_of(name, SHORT)}\n"
    for name in (*AT_EMBEDDING, *IN_ATTENTION):
        placed = place(name, width=8, heads=2, longest=8)
        yield f"positions={name!r}: {placed.in_attention or placed.at_embedding}\n"
    for what, chosen in (("text", defaults.TEXT), ("dates", defaults.DATES)):
        yield f"minitransformer train, {what}: {', '.join(f'{key}={value!r}' for key, value in chosen.items())}\n"


def test_what_nobody_chose_is_what_is_said():
    """Defaults are promises: records and checkpoints are of them. `python -m tests.test_defaults` writes them anew."""
    assert sorted(set(_defaults())) == DEFAULTS.read_text("utf-8").splitlines(keepends=True)


def test_parts_of_models_take_the_defaults_of_the_model():
    model = EncoderDecoder(9)
    assert all(block._norm.eps == 1e-5 for block in (*model.encoder.blocks, *model.decoder.blocks))
    assert model.encoder.blocks[0].ffn.hidden == 256


if __name__ == "__main__":
    DEFAULTS.write_text("".join(sorted(set(_defaults()))), "utf-8")
