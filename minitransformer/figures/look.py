"""What the heads of one's own trained model look at, in a text of one's own."""

import io
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from minitransformer import files
from minitransformer.attention.around import AroundAttention
from minitransformer.backend import backend
from minitransformer.data.text import encode
from minitransformer.figures.style import STYLE, WEIGHTS, figure, outer_labels
from minitransformer.pullback import Pullback
from minitransformer.training.checkpoint import load
from minitransformer.typing import Array

LONGEST = 200  # bytes of a text; in a longer one, no single byte could be seen
NAMED = 48  # bytes of a text that is still written beside rows and columns


class Heads(Pullback):
    """Attention matrices (heads, n, m) of each block, and the n bytes of the text as they are written beside the rows."""

    A: tuple[Array, ...]
    signs: list[str]


def heads(checkpoint: str | Path, text: str) -> Heads:
    """The attention matrices of a trained model on a text, from the tier that forms every matrix.

    raises   CheckpointError for a file that is none; ValueError for a translator of dates, a text of no bytes, or of more
             than can be drawn or than the model can read, and a model that forms no attention matrix
    """
    model, _, state, about = load(checkpoint)
    if about.get("task") != "text":
        raise ValueError(f"{checkpoint}: a model of {about.get('task')}; only models of a text can be looked into")
    tokens = encode(text)
    if not 0 < len(tokens) <= LONGEST:
        raise ValueError(f"a text of {len(tokens)} bytes: 1 … {LONGEST} can be drawn")
    try:
        with backend("numpy"):
            _, pullback = model(state.params, tokens[None])
    except ValueError as error:
        if len(tokens) <= model.context:
            raise
        raise ValueError(f"a text of {len(tokens)} bytes: this model can read {model.context} at once") from error
    attentions = [getattr(block, "attention", None) for block in getattr(pullback.stack, "blocks", [None])]
    for k, one in enumerate(attentions, 1):
        if not hasattr(one, "A"):
            while isinstance(one, AroundAttention):
                one = getattr(one, one.inside)
            who, why = f"block {k} keeps", f": {type(one).__name__} has no A (*batch, H, n, m)"
            if one is None:
                who, why = "its blocks keep", ""
            raise ValueError(f"{checkpoint}: {who} no attention matrix that could be drawn{why}")
    A = tuple(one.A[0] for one in attentions if one is not None)
    return Heads(A, [_sign(byte) for byte in tokens.tolist()])


def _sign(byte: int) -> str:
    """A byte as it is written beside the rows: a letter of ASCII as it is, a space as ·, any other in two hexadecimal digits."""
    return "·" if byte == 32 else chr(byte) if 32 < byte < 127 else f"{byte:02x}"


def draw_heads(found: Heads) -> Figure:
    """A row of pictures for each block, from the first to the last: byte i looks, at byte j; dark is much weight."""
    rows, columns, n = len(found.A), len(found.A[0]), len(found.signs)
    upright = all(len(sign) == 1 for sign in found.signs)
    fig, axes = figure(rows, columns, width=4.5 * columns, height=4.7 * rows, squeeze=False)
    for (block, head), ax in np.ndenumerate(axes):
        A = found.A[block][head]
        ax.imshow(A, cmap=WEIGHTS, vmin=0, vmax=1, aspect="auto")
        ax.set_title(f"block {block + 1}, head {head + 1}")
        ax.tick_params(length=0, labelsize=min(18, 260 / n))
        ax.set_yticks(range(n), found.signs) if n <= NAMED else ax.set_yticks([])
        ax.set_xticks(range(n), found.signs) if n <= NAMED and A.shape[-1] == n else ax.set_xticks([])
        ax.tick_params(axis="x", rotation=0 if upright else 90)
    outer_labels(axes, "… at $j$", "byte $i$ looks …")
    return fig


def write_heads(found: Heads, path: Path) -> None:
    """Draw into a file whose ending says which kind it is: .svg, .png or .pdf.

    raises   ValueError for another ending
    """
    kind = path.suffix.removeprefix(".").lower()
    if kind not in ("svg", "png", "pdf"):
        raise ValueError(f"{path}: should end in .svg, .png or .pdf")
    with mpl.rc_context(STYLE), io.BytesIO() as content:
        draw_heads(found).savefig(content, format=kind)
        files.write(path, content.getvalue())
