"""Two runs agree where they should, and a change that matters is found."""

import base64
import io

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from minitransformer.compare import PLAIN, STRUCTURE, TRAINED, data_differ, outputs_differ, rule_of


def stream(text):
    return [{"output_type": "stream", "name": "stdout", "text": text}]


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(buffer, "png")
    return base64.b64encode(buffer.getvalue()).decode()


def svg(shift=0.0, image=0):
    """A drawing with a clipped line and an embedded picture: names in it are hashes of shapes."""
    figure = Figure(figsize=(2, 2))
    axes = figure.subplots()
    axes.plot([0, 1, 2], [0, 1 + shift, 0], marker="o")
    axes.imshow(np.full((2, 2), image), vmin=0, vmax=255, extent=(0, 1, 0, 1))
    axes.set(xlim=(0, 2), ylim=(0, 2), aspect="auto")
    axes.set_position([0.1, 0.1, 0.8, 0.8 + shift / 100])
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("old", "new", "rule", "differ"),
    [
        ("loss 0.25, 3 steps", "loss 0.25, 3 steps", PLAIN, False),
        ("loss 0.25", "loss 0.2500000001", PLAIN, False),
        ("loss 0.25", "loss 0.251", PLAIN, True),
        ("loss 0.25", "loss 0.251", TRAINED, False),
        ("loss 0.25", "loss 0.26", TRAINED, True),
        ("3 heads", "4 heads", TRAINED, True),
        ("[ 9.99999999]", "[10.00000000]", PLAIN, False),  # a number that became wider moves its neighbours
        ("error 1e-9", "error 1e-7", PLAIN, True),
        ("a < b: True", "a < b: False", TRAINED, True),
        ("loss nan", "loss 0.5", TRAINED, True),
        ("the cat", "the dog", TRAINED, True),
        ("the cat 1", "the dog 2", STRUCTURE, False),
    ],
)
def test_text(old, new, rule, differ):
    assert bool(outputs_differ(stream(old), stream(new), rule)) == differ


@pytest.mark.parametrize("rule", [PLAIN, TRAINED, STRUCTURE])
def test_another_number_or_kind_of_outputs_is_found_by_every_rule(rule):
    shown = [{"output_type": "execute_result", "data": {"text/plain": "1"}, "metadata": {}}]
    error = [{"output_type": "stream", "name": "stderr", "text": "1"}]
    assert outputs_differ(stream("1"), [], rule)
    assert outputs_differ(stream("1"), stream("1") + shown, rule)
    assert outputs_differ(stream("1"), shown, rule)
    assert outputs_differ(stream("1"), error, rule)
    assert not outputs_differ([], [], rule)


@pytest.mark.parametrize(("change", "plain", "trained"), [(1, False, False), (6, True, False), (40, True, True)])
def test_png_is_compared_by_its_pixels(change, plain, trained):
    grey = np.full((8, 9, 3), 100)
    old, new = png(grey), png(grey + change)
    assert old != new
    assert bool(data_differ("image/png", old, new, PLAIN)) == plain
    assert bool(data_differ("image/png", old, new, TRAINED)) == trained


def test_png_of_another_size_is_found():
    assert "size" in data_differ("image/png", png(np.zeros((8, 9))), png(np.zeros((9, 8))), TRAINED)


def test_svg_is_compared_by_its_coordinates():
    old, moved, traces = svg(), svg(0.1), svg(1e-5)
    assert old != traces  # other coordinates, and so other names
    assert not data_differ("image/svg+xml", old, traces, PLAIN)
    assert data_differ("image/svg+xml", old, moved, PLAIN)


def test_pictures_within_an_svg_are_compared_by_their_pixels():
    assert data_differ("image/svg+xml", svg(image=10), svg(image=200), PLAIN)


def test_svg_with_another_label_is_found():
    digit = '<use xlink:href="#DejaVuSans-{}"/>'
    assert data_differ("image/svg+xml", digit.format(14), digit.format(15), TRAINED)


def test_the_tag_and_the_ground_choose_the_rule():
    assert rule_of([], True) == rule_of(["eq-borealis-1"], False) == PLAIN
    assert rule_of(["trained"], True) == TRAINED
    assert rule_of(["trained"], False) is STRUCTURE
    assert rule_of(["clock"], True) is STRUCTURE
