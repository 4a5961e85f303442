"""Whether a training fits into this machine: a rough count, before anything is made."""

from typing import Any

from minitransformer.machine import memory

BYTES = 4  # of a float32
COPIES = 4  # of the parameters: they, their gradient, and AdamW's two averages
WIDE = 12  # a block has 12 D² parameters, in W_q, W_k, W_v, W_o and two layers of 4 D, and at least 12 D numbers for each token


def needed(c: dict[str, Any]) -> int:
    """Bytes that a training with these choices takes at least, roughly."""
    parameters = c["depth"] * (WIDE * c["width"] ** 2 + WIDE * c["width"])
    activations = c["batch"] * c.get("context", 1) * c["depth"] * WIDE * c["width"]
    return BYTES * (COPIES * parameters + activations)


def refuse_too_large(c: dict[str, Any]) -> None:
    """Raise MemoryError for a training that can't fit."""
    there = memory()
    if there is not None and needed(c) > there:
        sizes = ", ".join(f"{name} {c[name]}" for name in ("width", "depth", "batch", "context") if name in c)
        raise MemoryError(
            f"{sizes}: that takes about {needed(c) / 2**30:.3g} GiB, and this machine has {there / 2**30:.3g}"
        )
