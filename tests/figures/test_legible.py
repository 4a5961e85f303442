"""Every figure can be read at half its size: on a phone, or from the last row."""

import re

import pytest

from minitransformer.figures import figure, save
from minitransformer.figures.style import COLUMN

SMALLEST = 18  # points at full size
ON_THE_PAGE = 16  # pixels, in a column of JupyterLab


def sizes(svg):
    """Font sizes in points: Matplotlib draws letters 100 points high, and scales them."""
    return [100 * float(scale) for scale in re.findall(r"scale\((0?\.\d+) -0?\.\d+\)", svg)]


def test_letters_are_large_enough(root):
    drawings = sorted((root / "figures").glob("*.svg"))
    assert drawings
    found = {path.name: min(sizes(path.read_text(encoding="utf-8")), default=None) for path in drawings}
    assert {name: size for name, size in found.items() if size is None or size < SMALLEST - 0.01} == {}


def test_letters_are_large_enough_in_a_column(root):
    for path in sorted((root / "figures").glob("*.svg")):
        svg = path.read_text(encoding="utf-8")
        width = float(re.search(r'width="([\d.]+)pt"', svg)[1])
        assert min(sizes(svg)) * min(1, COLUMN / width) > ON_THE_PAGE, path.name


@pytest.mark.parametrize("size", [9, 18])
def test_sizes_are_read_off_a_drawing(size, tmp_path, monkeypatch):
    monkeypatch.setenv("MINITRANSFORMER_FIGURES", str(tmp_path))
    fig, axes = figure()
    axes.set_title("small", fontsize=size)
    assert min(sizes(save(fig, "letters").path.read_text())) == pytest.approx(size)
