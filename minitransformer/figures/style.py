"""One look for all figures: legible at half size, in grey, and on a dark page; same input, same bytes."""

import io
import os
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from minitransformer import files

STYLE = {
    "figure.facecolor": "white",  # opaque, for dark pages
    "figure.dpi": 100,
    "savefig.dpi": 110,
    "font.size": 18,  # 9 at half the size, on a phone; nothing in a figure is smaller
    "axes.titlesize": 18,
    "axes.labelsize": 18,
    "xtick.labelsize": 18,
    "ytick.labelsize": 18,
    "legend.fontsize": 18,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": mpl.cycler(
        color=["#20639b", "#c8553d", "#3b8554", "#8a5a9e", "#b8860b", "#555555"],
        linestyle=["-", "--", "-.", ":", "-", "--"],
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
    """A figure in the style of the book and its axes (one, or an array of them), `width` × `height` inches."""
    mpl.rcParams.update(STYLE)
    fig = Figure(figsize=(width, height), layout="constrained")
    return fig, fig.subplots(rows, columns, **options)


class Picture(NamedTuple):
    """A saved figure, which a notebook shows as it was written."""

    path: Path

    def __repr__(self) -> str:
        return f"figures/{self.path.name}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        if self.path.suffix == ".svg":
            return {"image/svg+xml": self.path.read_text()}
        return {"image/png": self.path.read_bytes()}


def folder() -> Path:
    """Where figures are written: MINITRANSFORMER_FIGURES, or the `figures` folder beside `notebooks`, or right here."""
    if "MINITRANSFORMER_FIGURES" in os.environ:
        return Path(os.environ["MINITRANSFORMER_FIGURES"])
    here = Path.cwd()
    for place in (here, *here.parents):
        if (place / "notebooks").is_dir() and (place / "pyproject.toml").is_file():
            return place / "figures"
    return here


def save(fig: Figure, name: str, *, format: str = "svg") -> Picture:
    """Write `fig_<name>.svg` (or .png, for what would be a heavy SVG). The picture says which Matplotlib drew it."""
    path = folder() / f"fig_{name}.{format}"
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn_by = f"Matplotlib {mpl.__version__}"
    metadata = {"Date": None, "Creator": drawn_by} if format == "svg" else {"Software": drawn_by}
    with mpl.rc_context(STYLE), io.BytesIO() as content:
        fig.savefig(content, format=format, metadata=metadata)
        files.write(path, content.getvalue())
    return Picture(path)
