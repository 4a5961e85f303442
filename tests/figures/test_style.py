"""What a notebook shows of a figure: a picture that needs no trust, fits its column, and says in words what it shows."""

import base64
import io
import json
import re

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from minitransformer.figures import figure, folder, norm_order, save, style
from minitransformer.figures.norm_order import NormOrder


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """Draws a line, saves it, and gives the picture, its data and its metadata for a notebook."""
    monkeypatch.setenv("MINITRANSFORMER_FIGURES", str(tmp_path))

    def shown(**options):
        kept_as = options.pop("format", "svg")
        fig, axes = figure(**options)
        axes.plot([0, 1])
        picture = save(fig, "line", format=kept_as)
        data, metadata = picture._repr_mimebundle_()
        return picture, data, metadata["image/png"]

    return shown


@pytest.mark.parametrize(("width", "pixels"), [(5, 360), (10, 720), (16, 848)])
def test_a_picture_is_sharp_and_never_wider_than_its_column(shown, width, pixels):
    picture, data, metadata = shown(width=width, height=3)
    assert base64.b64decode(data["image/png"]) == picture.png
    drawn = Image.open(io.BytesIO(picture.png))
    assert metadata["width"] == pixels
    assert drawn.size == (2 * pixels, pytest.approx(2 * metadata["height"], abs=1))
    assert metadata["height"] == pytest.approx(pixels * 3 / width, abs=1)


def test_a_drawing_stays_a_drawing_in_its_file(shown):
    picture, data, _ = shown()
    assert picture.path.name == "fig_line.svg"
    assert picture.path.read_text(encoding="utf-8").startswith("<?xml")
    assert set(data) == {"image/png"}
    picture, data, _ = shown(format="png")
    assert picture.path.read_bytes() == picture.png


def test_the_same_figure_has_the_same_bytes(shown):
    assert shown()[1] == shown()[1]


def test_a_palette_of_256_colours_looks_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("MINITRANSFORMER_FIGURES", str(tmp_path))
    fig, axes = figure(width=4, height=4)
    axes.imshow(np.random.default_rng(0).normal(size=(20, 20)))
    axes.plot([0, 19], [0, 19])
    small = np.asarray(Image.open(io.BytesIO(save(fig, "map").png)).convert("RGB"), float)  # then all is in its place
    with io.BytesIO() as full:
        fig.savefig(full, format="png", dpi=144)
        want = np.asarray(Image.open(full).convert("RGB"), float)
    assert np.sqrt(((small - want) ** 2).mean()) < 2


def test_its_words_are_those_of_the_module_and_the_function_that_draws(tmp_path, monkeypatch):
    monkeypatch.setenv("MINITRANSFORMER_FIGURES", str(tmp_path))
    drawn = norm_order.draw(NormOrder(np.ones((2, 24)), np.ones((2, 24))))
    picture = save(drawn, "norm_order")
    assert picture.alt.startswith("Where the norm stands decides how much gradient reaches the first block")
    assert picture.alt.endswith(norm_order.draw.__doc__.strip().split()[-1])
    assert repr(picture) == picture._repr_mimebundle_()[1]["image/png"]["alt"] == picture.alt


def test_a_figure_without_words_is_called_by_its_file(tmp_path, monkeypatch):
    monkeypatch.setenv("MINITRANSFORMER_FIGURES", str(tmp_path))
    drawn = {"__name__": "__main__", "__doc__": "Automatically created module", "figure": figure}
    exec("fig, axes = figure()", drawn)
    assert repr(save(drawn["fig"], "line")) == "figures/fig_line.svg"


def test_figures_go_where_the_chapters_expect_them(tmp_path, monkeypatch):
    monkeypatch.delenv("MINITRANSFORMER_FIGURES", raising=False)
    mine = tmp_path / "mine"
    for part in ("notebooks", "mine/figures"):
        (tmp_path / part).mkdir(parents=True)
    monkeypatch.chdir(mine)
    assert folder() == mine / "figures"
    (mine / "figures").rmdir()
    assert folder() == mine
    (tmp_path / "pyproject.toml").touch()
    assert folder() == tmp_path / "figures"


def test_every_figure_of_the_book_shows_without_trust(root):
    """JupyterLab draws no SVG in a notebook that it does not trust, and no picture fits that is wider than its column.

    Each has words of its own for whoever has it read aloud.
    """
    told = []
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        for output in (output for cell in cells for output in cell.get("outputs", [])):
            kinds = set(output.get("data", {}))
            if "data-live=" in "".join(output.get("data", {}).get("text/html", "")):
                continue  # what moves stands beside its still picture, and shows nothing where no script may run
            assert kinds <= {"image/png", "text/plain", "text/markdown"}, path.stem
            if "image/png" in kinds:
                metadata = output["metadata"]["image/png"]
                assert metadata["width"] <= style.COLUMN, path.stem
                assert len(metadata["alt"].split()) > 5, (path.stem, metadata["alt"])
                told.append(metadata["alt"])
    assert len(told) == len(set(told)) == len(list((root / "figures").glob("fig_*")))


def test_lines_differ_in_grey():
    strokes = style.STYLE["axes.prop_cycle"].by_key()["linestyle"]
    assert len(set(strokes)) == len(strokes)


def contrast(colour):
    """How many times lighter than this white is, as WCAG 2 counts; level AA wants 4.5 of letters."""
    channels = np.array(to_rgb(colour))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return 1.05 / (linear @ [0.2126, 0.7152, 0.0722] + 0.05)


def test_letters_in_the_colour_of_a_line_can_be_read(tmp_path, monkeypatch):
    """Each colour of the cycle, by name and by number; some lines are lighter than letters may be."""
    monkeypatch.setenv("MINITRANSFORMER_FIGURES", str(tmp_path))
    lines = style.STYLE["axes.prop_cycle"].by_key()["color"]
    assert min(map(contrast, lines)) < 4.5
    fig, axes = figure()
    words = [axes.text(0, 0, "word", color=colour) for colour in [*lines, *(f"C{k}" for k in range(len(lines)))]]
    save(fig, "words")
    assert min(contrast(word.get_color()) for word in words) >= 4.5


def test_the_colours_of_lines_can_be_seen():
    """Level AA wants 3 of what is no letter: of the cycle's colours, and of FAINT."""
    lines = [*style.STYLE["axes.prop_cycle"].by_key()["color"], style.FAINT]
    assert min(map(contrast, lines)) >= 3


def test_a_minus_stands_in_what_is_clearly_negative():
    Z = np.array([[-3, -0.4, 0], [0.4, -1, 3]])
    _, axes = figure()
    style.minuses(axes, Z, 3)
    assert axes.collections[0].get_offsets().tolist() == [[0, 0], [1, 1]]


def test_where_cells_are_small_a_minus_stands_in_a_square_of_them():
    Z = np.array([[-2, -2, 0, 0], [-2, 1, 0, -1]])
    _, axes = figure()
    style.minuses(axes, Z, 3, side=2)
    assert axes.collections[0].get_offsets().tolist() == [[0.5, 0.5]]


def test_a_colour_means_one_thing_in_all_figures(root):
    """Weights are WEIGHTS and numbers with a sign are SIGNED: no other figure names a map that could be taken for one."""
    others = {"viridis", "cividis", "Greys", "gray_r", "Blues", "Blues_r", "Oranges"}
    for path in (root / "minitransformer" / "figures").glob("*.py"):
        named = set(re.findall(r'(?:cmap=|colormaps\[)"(\w+)"', path.read_text(encoding="utf-8")))
        assert named <= others, (
            f"{path.name} names {named - others}; style.WEIGHTS and style.SIGNED are for weights and signs"
        )


@pytest.mark.parametrize("kept_as", ["svg", "png", "pdf"])
def test_every_format_is_written_and_twice_the_same(shown, kept_as):
    first = shown(format=kept_as)[0].path.read_bytes()
    assert shown(format=kept_as)[0].path.read_bytes() == first


def test_what_can_not_be_saved_is_refused(shown):
    with pytest.raises(ValueError, match="format: no 'gif'; there are svg, png, pdf"):
        shown(format="gif")
    with pytest.raises(ValueError, match=r"name: '\.\./line' should be that of a figure, without a folder"):
        save(figure()[0], "../line")
    with pytest.raises(TypeError, match="fig: 3 should be Figure"):
        save(3, "line")
