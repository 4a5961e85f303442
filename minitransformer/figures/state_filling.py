"""The state of a decoder that is a recurrent network, as it fills, and its bytes beside those of keys and values."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import elu_features, kernel_attention_step, kernel_state
from minitransformer.experiments.reading_and_writing import size_of
from minitransformer.figures.style import SIGNED, figure, merged, minuses
from minitransformer.models import LanguageModel
from minitransformer.typing import Array

SHOWN = (1, 2, 4, 8)  # tokens after which the state is shown
LENGTHS = (1, 16, 32, 64, 128, 256, 512)


class StateFilling(NamedTuple):
    """S and z after every token, (n, r, dv) and (n, r); bytes of the states of two models after so many tokens."""

    S: Array
    z: Array
    lengths: tuple[int, ...]
    state_bytes: Array
    cache_bytes: Array


def filled(n: int = 8, r: int = 6, dv: int = 5) -> tuple[Array, Array]:
    """S and z after each of n random tokens."""
    rng = np.random.default_rng(11)
    Q, K, V = (rng.standard_normal((n, width)) for width in (r, r, dv))
    FQ, FK = (elu_features(X)[0] for X in (Q, K))
    state, states = kernel_state(FK[:0], V[:0]), []
    for t in range(n):
        _, state = kernel_attention_step(FQ[t : t + 1], FK[t : t + 1], V[t : t + 1], state)
        states.append(state)
    return np.stack([s.S for s in states]), np.stack([s.z for s in states])


def remembered(attention: str, lengths: tuple[int, ...]) -> Array:
    """Bytes that a language model keeps after each of these lengths, in float32; free room for keys and values is not counted."""
    model = LanguageModel(context=max(lengths), attention=attention)
    params, tokens = model.init(np.random.default_rng(0)), np.zeros(max(lengths), np.int64)
    found = []
    for n in lengths:
        _, state = model.step(params, tokens[:n])
        found.append(sum(size_of(block) for block in state.blocks))
    return np.array(found)


def data() -> StateFilling:
    """The state after each of eight tokens, and the bytes of two models of four blocks."""
    return StateFilling(*filled(), LENGTHS, remembered("linear", LENGTHS), remembered("softmax", LENGTHS))


def draw(data: StateFilling) -> Figure:
    """Above the states, z as a separate last column; below the bytes."""
    fig, axes = figure(3, 2, height=10.5, gridspec_kw={"height_ratios": (1, 1, 1.4)})
    largest = max(np.abs(data.S).max(), data.z.max())
    for ax, t in zip(axes[:2].flat, SHOWN, strict=True):
        shown = np.concatenate([data.S[t - 1], np.full((data.S.shape[1], 1), np.nan), data.z[t - 1][:, None]], 1)
        image = ax.imshow(shown, cmap=SIGNED, vmin=-largest, vmax=largest)
        minuses(ax, shown, largest)
        ax.set(title=f"after {t}", xticks=[(data.S.shape[2] - 1) / 2, data.S.shape[2] + 1], yticks=[])
        ax.set_xticklabels(["S", "z"])
        ax.tick_params(length=0)
    for ax in axes[:2, 0]:
        ax.set_ylabel("feature")
    fig.colorbar(image, ax=axes[:2], shrink=0.6, label="entry of S or z")
    below = merged(fig, axes[2])
    below.plot(data.lengths, data.cache_bytes / 1024, "ko-", label="keys and values")
    below.plot(data.lengths, data.state_bytes / 1024, "C0^--", label="S and z")
    below.set(xlabel="tokens", ylabel="remembered, KiB", xscale="log", yscale="log")
    below.legend()
    return fig
