"""Every figure can be read at half its size, on a phone or from the last row, and has at most two panels side by side."""

import re
from xml.etree import ElementTree

import pytest

from minitransformer.figures import figure, save

SVG = "{http://www.w3.org/2000/svg}"
SMALLEST = 18  # points at full size
ON_A_PHONE = 9  # pixels, where a figure is as wide as a page of 375


def sizes(svg):
    """Font sizes in points: Matplotlib draws letters 100 points high, and scales them."""
    return [100 * float(scale) for scale in re.findall(r"scale\((0?\.\d+) -0?\.\d+\)", svg)]


def test_letters_are_large_enough(root):
    drawings = sorted((root / "figures").glob("*.svg"))
    assert drawings
    found = {path.name: min(sizes(path.read_text(encoding="utf-8")), default=None) for path in drawings}
    assert {name: size for name, size in found.items() if size is None or size < SMALLEST - 0.01} == {}


def test_letters_are_large_enough_on_a_phone(root):
    for path in sorted((root / "figures").glob("*.svg")):
        svg = path.read_text(encoding="utf-8")
        width = float(re.search(r'width="([\d.]+)pt"', svg)[1])
        assert min(sizes(svg)) * 375 / width >= ON_A_PHONE, path.name


@pytest.mark.parametrize("size", [9, 18])
def test_sizes_are_read_off_a_drawing(size, tmp_path, monkeypatch):
    monkeypatch.setenv("MINITRANSFORMER_FIGURES", str(tmp_path))
    fig, axes = figure()
    axes.set_title("small", fontsize=size)
    assert min(sizes(save(fig, "letters").path.read_text())) == pytest.approx(size)


# ------------------------------------------------------------------------------------- panels side by side


def panels(svg):
    """The places (left, right, top, bottom) of the panels of a drawing, without colour bars, from the path that frames them."""
    found = []
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        if re.fullmatch(r"axes_\d+", group.get("id", "")):
            frame = next((path for path in group.iter(f"{SVG}path") if path.get("d")), None)
            numbers = (
                [float(x) for x in re.findall(r"-?[\d.]+(?:e-?\d+)?", frame.get("d"))] if frame is not None else []
            )
            if numbers:
                found.append((min(numbers[::2]), max(numbers[::2]), min(numbers[1::2]), max(numbers[1::2])))
    return [(left, right, top, bottom) for left, right, top, bottom in found if right - left > 45]


def side_by_side(svg):
    """The largest number of panels that one horizontal line crosses."""
    found = panels(svg)
    return max((sum(top < (t + b) / 2 < bottom for *_, top, bottom in found) for *_, t, b in found), default=0)


def test_at_most_two_panels_stand_side_by_side(root):
    rows = {
        path.name: side_by_side(path.read_text(encoding="utf-8"))
        for path in sorted((root / "figures").glob("*.svg"))
        if path.name != "fig_live_clocks.svg"  # four dials of one clock
    }
    assert {name: row for name, row in rows.items() if row > 2} == {}
    assert sum(row == 2 for row in rows.values()) > 20


@pytest.mark.parametrize(("grid", "row"), [((1, 3), 3), ((2, 2), 2), ((3, 1), 1)])
def test_panels_are_counted(grid, row, tmp_path, monkeypatch):
    monkeypatch.setenv("MINITRANSFORMER_FIGURES", str(tmp_path))
    fig, axes = figure(*grid)
    image = axes.flat[0].imshow([[0, 1]])
    fig.colorbar(image, ax=axes, ticks=())
    assert side_by_side(save(fig, "panels").path.read_text()) == row
