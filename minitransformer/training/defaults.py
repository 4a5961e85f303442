"""What `minitransformer train` chooses where its reader does not, for a text and for dates."""

from typing import Any

TEXT: dict[str, Any] = {
    "width": 128, "depth": 4, "heads": 4, "context": 128, "batch": 4, "steps": 2400, "lr": 6e-3, "seed": 0,
    "attention": "softmax:norm=rms", "positions": "rope", "groups": None, "ffn": "swiglu", "stack": "plain",
}  # fmt: skip
DATES: dict[str, Any] = {
    "width": 64, "depth": 2, "heads": 4, "batch": 32, "steps": 1200, "lr": 5e-3, "seed": 0,
    "attention": "softmax", "positions": "sinusoidal", "groups": None, "ffn": "relu",
}  # fmt: skip
