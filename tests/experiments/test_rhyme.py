"""The rhyme of chapter 03: the record's is the chapter's, and every training gets below a table of pairs."""

import json

import numpy as np
import pytest

from minitransformer import experiments
from minitransformer.data import text
from minitransformer.experiments import rhyme


def test_the_chapter_has_the_same_rhyme(root):
    cells = json.loads((root / "notebooks" / "03_the_transformer.ipynb").read_text(encoding="utf-8"))["cells"]
    (source,) = (source for source in ("".join(cell["source"]) for cell in cells) if source.startswith("parts = ["))
    namespace = {"text": text, "np": np}
    exec(source, namespace)
    assert text.decode(namespace["rhyme"]) == rhyme.RHYME


def test_a_table_of_pairs_by_hand():
    """Behind an a stands a b or an a, each once; behind a b nothing but an a."""
    assert rhyme.table_of_pairs(text.encode("abaa")) == pytest.approx(2 / 3)


def test_every_training_gets_below_the_table_and_writes_what_it_read():
    for _, result in experiments.load("rhyme"):
        bits = [b for _, b in result["bits"]]
        assert bits[0] > 8
        assert bits[-1] < result["last"] + 0.2 < result["pairs"]
        assert result["written"].startswith(rhyme.PROMPT)
        assert set(result["written"]) <= set(rhyme.RHYME)
