"""One's own model, opened: a picture for each head, and one line where there is nothing to be drawn."""

from itertools import pairwise

import numpy as np
import pytest

from minitransformer import cli
from minitransformer.figures.look import LONGEST, draw_heads, heads
from minitransformer.models import LanguageModel
from minitransformer.training.checkpoint import Checkpoint, save
from minitransformer.training.loop import start
from minitransformer.training.recipes import date_translator, language_model


def saved(path, model, training, task="text"):
    save(path, Checkpoint(model, training, start(model, training), {"task": task}))
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.safetensors"


def made(path, **choices):
    _, training = language_model(steps=2)
    return saved(path, LanguageModel(context=16, width=8, depth=2, heads=2, **choices), training)


@pytest.mark.parametrize(
    "choices", [{}, {"attention": "window"}, {"attention": "linear"}, {"stack": "universal:halting=fixed"}]
)
def test_each_head_has_its_matrix_and_its_picture(path, choices):
    """Rows sum to one and look back only; the bytes of the text stand beside them."""
    found = heads(made(path, **choices), "a é\nb")
    assert found.signs == ["a", "·", "c3", "a9", "0a", "b"]
    assert [A.shape for A in found.A] == [(2, 6, 6)] * 2
    for A in found.A:
        assert np.allclose(A.sum(-1), 1, atol=1e-5)
        assert not np.triu(A, 1).any()
    fig = draw_heads(found)
    assert [ax.get_title() for ax in fig.axes] == [f"block {b}, head {h}" for b in (1, 2) for h in (1, 2)]
    for ax, A in zip(fig.axes, [A for block in found.A for A in block], strict=True):
        assert np.array_equal(ax.images[0].get_array(), A)
        assert [label.get_text() for label in ax.get_yticklabels()] == found.signs


def test_the_bytes_of_other_scripts_are_told_apart_and_do_not_overlap(path):
    found = heads(made(path), "日本")
    assert found.signs == ["e6", "97", "a5", "e6", "9c", "ac"]
    fig = draw_heads(found)
    fig.draw_without_rendering()
    for ax in fig.axes:
        boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
        assert len(boxes) == 6
        assert all(one.x1 <= next_.x0 for one, next_ in pairwise(boxes))


def test_a_long_text_is_drawn_without_its_bytes(path):
    fig = draw_heads(heads(made(path), "x" * 100))
    assert len(fig.axes[0].get_yticks()) == 0


def test_what_can_not_be_looked_into(path, tmp_path, capsys):
    def refused(*argv):
        assert cli.main(["look", *map(str, argv)]) == 1
        return capsys.readouterr().err

    assert "there is no such file" in refused(path, "a")
    assert ".: can't be read: Is a directory" in refused(".", "a")
    made(path)
    assert "a text of 0 bytes: 1 … 200 can be drawn" in refused(path, "")
    assert f"a text of {LONGEST + 1} bytes" in refused(path, "x" * (LONGEST + 1))
    learned = made(path, positions="learned")
    assert "minitransformer: a text of 17 bytes: this model can read 16 at once" in refused(learned, "x" * 17)
    assert "a.txt: should end in .svg, .png or .pdf" in refused(path, "a", "--out", tmp_path / "a.txt")
    mixed = {"attention": ("softmax", "gla"), "positions": "none"}
    for choices, who, why in (
        ({"stack": "reversible"}, "its blocks keep", "\n"),
        ({"attention": "gla"}, "block 1 keeps", ": MemoryPullback has no A ("),
        (mixed, "block 2 keeps", ": MemoryPullback has no A ("),
    ):
        assert f"{who} no attention matrix that could be drawn{why}" in refused(made(path, **choices), "a")
    model, training = date_translator(width=8, depth=1, heads=2, steps=2)
    assert "a model of dates; only models of a text can be looked into" in refused(
        saved(path, model, training, "dates"), "a"
    )
    assert sorted(found.name for found in tmp_path.iterdir()) == [path.name]


@pytest.mark.parametrize(("kind", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_ending_says_which_kind_of_picture(path, tmp_path, kind, begins):
    out = tmp_path / f"mine.{kind}"
    assert cli.main(["look", str(made(path)), "ab", "--out", str(out)]) == 0
    assert out.read_bytes().startswith(begins)
