"""One look for all figures: legible at half size, in grey, and on a dark page; same input, same bytes."""

import base64
import io
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from minitransformer import files
from minitransformer.checks import choose

COLUMN = 848  # pixels that JupyterLab leaves for an output in a window of 1,280
SHARPNESS = 2  # pixels of the picture for one of the page, as many screens have
COLOURS = 256  # in a picture's palette, which makes it less than half as heavy

# colours of lines in which letters would be too light on white, and a bit darker
LETTERS = {"#c8553d": "#c14e36", "#3b8554": "#37804f", "#b8860b": "#8f6608"}

WEIGHTS = "Blues"  # of attention and of gates: white is none, and the darker, the larger
FAINT = "0.55"  # the lightest grey of a line that says something: white is 3.3 times lighter; what is paler only separates things
SIGNED = "RdBu"  # numbers around zero: white is zero, blue positive, red negative (in grey see `minuses`)

STYLE = {
    "figure.facecolor": "white",  # opaque, for dark pages
    "figure.dpi": 100,
    "savefig.dpi": 110,
    "font.size": 18,  # points, so 9 at half the size; no letter in a figure of the book is smaller
    "axes.titlesize": 18,
    "axes.labelsize": 18,
    "xtick.labelsize": 18,
    "ytick.labelsize": 18,
    "legend.fontsize": 18,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": mpl.cycler(
        color=["#20639b", "#c8553d", "#3b8554", "#8a5a9e", "#b8860b", "#555555"],
        linestyle=["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (7, 2))],
    ),
    "lines.linewidth": 2.6,
    "legend.frameon": False,
    "image.cmap": "viridis",
    "image.interpolation": "nearest",
    "svg.fonttype": "path",  # looks the same whatever fonts the reader has
    "svg.hashsalt": "minitransformer",  # same ids in every run
    "mathtext.fontset": "dejavusans",
}


def figure(
    rows: int = 1, columns: int = 1, *, width: float = 10.0, height: float = 4.5, **options: Any
) -> tuple[Figure, Any]:
    """A figure in the style of the book and its axes (one, or an array of them), `width` × `height` inches.

    At most 10.4 inches wide, letters have 9 pixels or more on a phone.

    What the calling module and function say about themselves goes with it, as its alternative text.
    """
    mpl.rcParams.update(STYLE)
    fig = Figure(figsize=(width, height), layout="constrained")
    fig.set_label(_told_by(sys._getframe(1)))
    return fig, fig.subplots(rows, columns, **options)


def merged(fig: Figure, panels: Any) -> Any:
    """Replace a row of panels by one panel as wide as all of them, and return it."""
    row = panels[0].get_subplotspec().rowspan.start
    for ax in panels:
        ax.remove()
    return fig.add_subplot(panels[0].get_gridspec()[row, :])


def outer_labels(axes: Any, x: str, y: str) -> None:
    """Name the axes of a grid of panels once: y beside those on the left, x below those of the last row."""
    for ax in axes[:, 0]:
        ax.set_ylabel(y)
    for ax in axes[-1]:
        ax.set_xlabel(x)


def weights_and_hatches(ax: Any, A: Any, hidden: Any, *, most: float = 1.0) -> Any:
    """Draw weights A (n, m) in the colours of WEIGHTS, `most` and more the darkest, and hatch the pairs that are hidden.

    The n queries are the last n of the m positions, which are counted from 1. Returns the image, for a bar of colours.
    """
    n, m = A.shape
    hatches = {"facecolor": "white", "edgecolor": FAINT, "hatch": "////", "linewidth": 0, "zorder": -1}
    ax.add_patch(Rectangle((0.5, m - n + 0.5), m, n, **hatches))  # seen where nothing is drawn
    edges = (0.5, m + 0.5, m + 0.5, m - n + 0.5)
    image = ax.imshow(np.ma.masked_where(hidden, A), cmap=WEIGHTS, vmin=0, vmax=most, extent=edges)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return image


def minuses(ax: Any, Z: Any, top: float, *, side: int = 1) -> None:
    """A minus in each cell of a picture of Z that is clearly negative, below −top / 6: in grey, red and blue are the same.

    Where cells are too small for it, in each square of side × side cells whose mean is.
    """
    rows, columns = len(Z) // side, Z.shape[1] // side
    means = Z[: rows * side, : columns * side].reshape(rows, side, columns, side).mean((1, 3))
    i, j = np.nonzero(means < -top / 6)
    colours = np.where(means[i, j] < -0.6 * top, "white", "0.25")
    middle = (side - 1) / 2
    ax.scatter(side * j + middle, side * i + middle, marker="_", s=90, linewidths=2, c=colours)


def plain_ticks(ax: Any, *, x: Any = None, y: Any = None) -> None:
    """Ticks of logarithmic axes at these numbers alone, which stand there in digits, and not as powers of ten."""
    for axis, numbers in ((ax.xaxis, x), (ax.yaxis, y)):
        if numbers is not None:
            axis.set_ticks(numbers, labels=[f"{number:g}" for number in numbers])
    ax.minorticks_off()


def _told_by(caller: FrameType) -> str:
    """The docstrings of the module and of the function that draws, in one line: the subject, and where to look for what."""
    if caller.f_globals.get("__name__") == "__main__":  # a notebook: its docstring is IPython's
        return ""
    told = caller.f_globals.get("__doc__"), getattr(caller.f_globals.get(caller.f_code.co_name), "__doc__", None)
    return " ".join(" ".join(text.split()) for text in told if text)


class Picture(NamedTuple):
    """A saved figure, as a notebook shows it: a PNG, because an SVG is not drawn in a notebook that nobody trusts yet.

    size    (width, height) on the page, in pixels; the PNG has twice as many
    alt     what it shows, for who can't see it; it is also all that a terminal shows
    """

    path: Path
    png: bytes
    size: tuple[int, int]
    alt: str

    def __repr__(self) -> str:
        return self.alt or f"figures/{self.path.name}"

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        width, height = self.size
        shown = base64.b64encode(self.png).decode()  # JupyterLite does not turn bytes into text
        return {"image/png": shown}, {"image/png": {"width": width, "height": height, "alt": repr(self)}}


def folder() -> Path:
    """Where figures are written: MINITRANSFORMER_FIGURES, or `figures` right here, or the one beside `notebooks`, or here."""
    if "MINITRANSFORMER_FIGURES" in os.environ:
        return Path(os.environ["MINITRANSFORMER_FIGURES"])
    here = Path.cwd()
    if (here / "figures").is_dir():  # beside a reader's own copy of the chapters
        return here / "figures"
    for place in (here, *here.parents):
        if (place / "notebooks").is_dir() and (place / "pyproject.toml").is_file():
            return place / "figures"
    return here


def save(fig: Figure, name: str, *, format: str = "svg") -> Picture:
    """Write `fig_<name>.svg`, or .png, for what would be a heavy SVG, or .pdf, for a paper. It says which Matplotlib drew it.

    raises   TypeError for what is no figure; ValueError for a name with a folder in it, or another format
    """
    choose("fig", fig, Figure)
    if not isinstance(name, str) or Path(name).name != name:
        raise ValueError(f"name: {name!r} should be that of a figure, without a folder")
    if format not in ("svg", "png", "pdf"):
        raise ValueError(f"format: no {format!r}; there are svg, png, pdf")
    path = folder() / f"fig_{name}.{format}"
    path.parent.mkdir(parents=True, exist_ok=True)
    for text in fig.findobj(Text):
        text.set_color(LETTERS.get(to_hex(text.get_color()), text.get_color()))
    if format != "png":
        made = "Date" if format == "svg" else "CreationDate"
        with mpl.rc_context(STYLE), io.BytesIO() as content:
            fig.savefig(content, format=format, metadata={made: None, "Creator": _drawn_by()})
            files.write(path, content.getvalue())
        fig.set_layout_engine("none")  # the picture has its parts where the drawing has them
    png, size = _png(fig)
    if format == "png":
        files.write(path, png)
    return Picture(path, png, size, fig.get_label())


def _png(fig: Figure) -> tuple[bytes, tuple[int, int]]:
    """The figure for a page, and its size there: a point is a pixel, but never wider than a column."""
    from PIL import Image, PngImagePlugin

    width = fig.get_figwidth()
    shown = min(round(72 * width), COLUMN)
    content, small, note = io.BytesIO(), io.BytesIO(), PngImagePlugin.PngInfo()
    with mpl.rc_context(STYLE):
        fig.savefig(content, format="png", dpi=SHARPNESS * shown / width)
    note.add_text("Software", _drawn_by())
    picture = Image.open(content).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    picture.save(small, format="png", optimize=True, pnginfo=note)
    return small.getvalue(), (shown, round(picture.height / SHARPNESS))


def _drawn_by() -> str:
    return f"Matplotlib {mpl.__version__}"
