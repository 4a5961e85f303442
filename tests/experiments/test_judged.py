"""How some trainings begin, and which part of a text judges them."""

from types import SimpleNamespace

import numpy as np
import pytest

from minitransformer.data.text import python_docs
from minitransformer.experiments import learned_projections, long_document, position_remedies, spans


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


def test_projections_are_tried_on_passages_that_they_were_not_fitted_to(monkeypatch):
    trial = learned_projections.Trial(1, 4, 2, passages=3)
    monkeypatch.setattr(learned_projections, "load_bert", lambda: (None, None, None))
    monkeypatch.setattr(learned_projections, "passages_of", lambda docs, tokenizer, count, n: np.arange(count)[:, None])
    monkeypatch.setattr(
        learned_projections,
        "heads_of",
        lambda model, params, rows: [
            tuple(np.full((1, 1, 1), 100.0 * block + rows[0, 0]) for _ in range(4)) for block in (0, 1)
        ],
    )
    fitted_to, others = ([K[0, 0, 0] for _, K, _ in of] for of in learned_projections.samples_of(trial))
    assert len(fitted_to) == 3
    assert len(others) == learned_projections.OTHERS
    assert sorted(fitted_to + others) == [100 + k for k in range(11)]  # of the second block, no passage twice


def test_projections_with_a_row_for_each_token_lose_nothing_and_fewer_rows_lose_less_after_training():
    whole = learned_projections.run(learned_projections.Trial(None, 16, 16, steps=1))
    assert (whole["start"], whole["before"], whole["other"]) == (0, None, None)
    fewer = learned_projections.run(learned_projections.Trial(None, 32, 8, steps=100))
    assert 0 < fewer["fitted"] < fewer["start"] - 0.1
