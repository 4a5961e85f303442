"""How some trainings begin, and which part of a text judges them."""

from types import SimpleNamespace

import numpy as np
import pytest

from minitransformer.data.text import python_docs
from minitransformer.experiments import long_document, position_remedies, spans


def untrained(model, objective, training, state, progress):
    return state


def test_spans_begin_with_half_of_the_context_and_are_told_in_tokens(monkeypatch):
    docs = python_docs()
    monkeypatch.setattr(spans, "python_docs", lambda: docs._replace(held_out=docs.held_out[:2000]))
    monkeypatch.setattr(spans, "train", untrained)
    assert spans.run(spans.Trial(1e-4, 0))["spans"] == [[128.0] * spans.HEADS] * spans.DEPTH


def test_a_whole_manual_is_judged_by_the_half_of_it_that_has_a_half_before_it(monkeypatch):
    bits = np.arange(10.0)
    monkeypatch.setattr(long_document, "NextByte", lambda *_: SimpleNamespace(bits=lambda *_: bits))
    monkeypatch.setattr(long_document, "usually_trained", lambda *_: ())
    found = long_document.run(long_document.Trial("softmax", 128, 0))
    assert (found["bits"], found["judged"]) == (7.0, 5)


@pytest.mark.parametrize("loud", [1, 50])
def test_loud_words_are_so_many_times_as_large_at_the_start(loud, monkeypatch):
    seen = []
    monkeypatch.setattr(position_remedies, "train", untrained)
    monkeypatch.setattr(position_remedies, "score", lambda trained, *_: seen.append(trained.params.E.std()) or 0.0)
    position_remedies.run(position_remedies.Trial("order", "sinusoidal", 0, loud=loud))
    assert seen[0] == pytest.approx(0.02 * loud, rel=0.1)
