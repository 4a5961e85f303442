"""Two runs agree where they should, and a change that matters is found."""

import base64
import io
import itertools

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from minitransformer.book.output_comparison import data_differ, drawn_by, outputs_differ
from minitransformer.figures import figure, save


def stream(text):
    return [{"output_type": "stream", "name": "stdout", "text": text}]


def png(pixels, *, palette=False):
    buffer = io.BytesIO()
    picture = Image.fromarray(np.asarray(pixels, np.uint8))
    (picture.quantize() if palette else picture).save(buffer, "png")
    return base64.b64encode(buffer.getvalue()).decode()


def svg(shift=0.0, image=0):
    """A drawing with a clipped line and an embedded picture: names in it are hashes of shapes."""
    figure = Figure(figsize=(2, 2))
    axes = figure.subplots()
    axes.plot([0, 1, 2], [0, 1 + shift, 0], marker="o")
    axes.imshow(np.full((2, 2), image), vmin=0, vmax=255, extent=(0, 1, 0, 1))
    axes.set(xlim=(0, 2), ylim=(0, 2), aspect="auto")
    axes.set_position([0.1, 0.1, 0.8, 0.803 + shift / 100])  # the embedded picture does not end where pixels do
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("old", "new", "differ"),
    [
        ("loss 0.25, 3 steps", "loss 0.25, 3 steps", False),
        ("loss 0.25", "loss 0.2500000001", False),
        ("loss 0.25", "loss 0.26", False),  # 0.25499 and 0.25501
        ("loss 0.25", "loss 0.24", False),
        ("loss 0.25", "loss 0.27", True),
        ("loss 0.250", "loss 0.252", True),
        ("loss 0.25", "loss 0.251", False),
        ("loss 1.25e-03", "loss 1.26e-03", False),
        ("loss 1.25e-03", "loss 1.27e-03", True),
        ("error 1e-9", "error 1e-7", True),
        ("error 2e-16", "error 5e-16", True),
        ("3 heads", "4 heads", True),
        ("0.98 of 127", "0.98 of 128", True),
        ("norm 1.23456789", "norm 1.23456800", False),  # the seventh digit
        ("norm 1.23456789", "norm 1.23457289", True),
        ("norm 1.23456789", "norm 1.23456889", False),
        ("norm 1.23456789", "norm 1.23456939", True),
        ("[ 9.99999999]", "[10.00000000]", False),  # a number that became wider moves its neighbours
        ("name    3", "name  3", True),
        ("a\nb", "a b", True),
        ("a < b: True", "a < b: False", True),
        ("loss nan", "loss 0.5", True),
        ("the cat", "the dog", True),
    ],
)
def test_text(old, new, differ):
    assert bool(outputs_differ(stream(old), stream(new))) == differ


def test_another_number_or_kind_of_outputs_is_found():
    shown = [{"output_type": "execute_result", "data": {"text/plain": "1"}, "metadata": {}}]
    error = [{"output_type": "stream", "name": "stderr", "text": "1"}]
    assert outputs_differ(stream("a\nb"), stream("c\nb")) == "the line 'a' became 'c'"
    assert outputs_differ(stream("a\nb"), stream("a")) == "the line 'b' became ''"
    assert outputs_differ(stream("1"), [])
    assert outputs_differ(stream("1"), stream("1") + shown)
    assert outputs_differ(stream("1"), shown)
    assert outputs_differ(stream("1"), error)
    assert not outputs_differ([], [])


@pytest.mark.parametrize(("change", "differ"), [(1, False), (2, False), (3, True), (6, True)])
def test_png_is_compared_by_its_pixels(change, differ):
    grey = np.full((8, 9, 3), 100)
    old, new = png(grey), png(grey + change)
    assert old != new
    assert bool(data_differ("image/png", old, new)) == differ
    assert bool(data_differ("image/png", base64.b64decode(old), base64.b64decode(new))) == differ


def test_only_two_palettes_may_move_their_colours():
    grey = np.full((8, 9, 3), 100)
    for first, second in itertools.product((True, False), repeat=2):
        differ = data_differ("image/png", png(grey, palette=first), png(grey + 6, palette=second))
        assert bool(differ) == (not (first and second))


def test_what_one_pixel_does_to_a_palette_is_no_change(tmp_path, monkeypatch):
    """A palette is chosen from all pixels: a trace of noise moves many colours a little, and no line."""
    monkeypatch.setenv("MINITRANSFORMER_FIGURES", str(tmp_path))
    rng = np.random.default_rng(0)
    values, trace = rng.normal(size=(40, 40)), np.zeros((40, 40))
    trace[::9, ::7] = 0.02

    def drawn(values, end):
        fig, axes = figure(width=5, height=5)
        axes.imshow(values, vmin=-3, vmax=3)
        axes.plot([0, 39], [0, end], "w")
        return save(fig, "map").png

    old = drawn(values, 39)
    assert old != drawn(values + trace, 39)
    assert not data_differ("image/png", old, drawn(values + trace, 39))
    assert data_differ("image/png", old, drawn(values, 37))
    assert data_differ("image/png", old, drawn(values + 0.3, 39))


def test_a_picture_that_is_shown_larger_is_found():
    old, new = (
        [{"output_type": "display_data", "data": {"image/png": png(np.zeros((8, 9)))}, "metadata": {"image/png": size}}]
        for size in ({"width": 9}, {"width": 18})
    )
    assert outputs_differ(old, new)
    assert not outputs_differ(old, old)


def test_png_of_another_size_is_found():
    assert "size" in data_differ("image/png", png(np.zeros((8, 9))), png(np.zeros((9, 8))))


def test_svg_is_compared_by_its_coordinates():
    old, moved, traces = svg(), svg(0.1), svg(1e-5)
    assert old != traces  # other coordinates, and so other names
    assert not data_differ("image/svg+xml", old, traces)
    assert data_differ("image/svg+xml", old, moved)


def test_pictures_within_an_svg_are_compared_by_their_pixels():
    assert data_differ("image/svg+xml", svg(image=10), svg(image=200))


def test_spaces_are_no_part_of_a_drawing():
    assert not data_differ("image/svg+xml", '<path d="M 1 2"/>', '<path d="M 1  2"/>\n')


def test_svg_with_another_label_is_found():
    digit = '<use xlink:href="#DejaVuSans-{}"/>'
    assert data_differ("image/svg+xml", digit.format(14), digit.format(15))


@pytest.mark.parametrize("format", ["svg", "png"])
def test_pictures_of_another_matplotlib_are_not_compared(format, tmp_path, monkeypatch):
    monkeypatch.setenv("MINITRANSFORMER_FIGURES", str(tmp_path))

    def drawn(height):
        fig, axes = figure()
        axes.plot([0, height])
        return save(fig, "line", format=format).path.read_bytes()

    mime = {"svg": "image/svg+xml", "png": "image/png"}[format]
    flat, steep = drawn(0), drawn(1)
    assert drawn_by(flat).startswith(b"Matplotlib ")
    assert data_differ(mime, flat, steep)
    monkeypatch.setattr("matplotlib.__version__", "3.0.0")
    assert not data_differ(mime, flat, drawn(1))
    nobody = steep.replace(b"Matplotlib ", b"Matpl0tlib ")
    assert not drawn_by(nobody)
    if format == "svg":  # a PNG has a checksum
        assert data_differ(mime, flat, nobody)
