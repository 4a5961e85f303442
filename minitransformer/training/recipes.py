"""The two trainings of `minitransformer train`, a language model on bytes and a translator of dates; and the experiments' own.

Every choice has a default that suits two cores and a few minutes; steps are counted, not timed, so that a run can be
repeated to the last bit.
"""

import math
from typing import Any

from minitransformer.backend import current
from minitransformer.checks import choose
from minitransformer.data import dates
from minitransformer.models import EncoderDecoder, LanguageModel
from minitransformer.models.gated_feed_forward import GATES
from minitransformer.pullback import Tree
from minitransformer.ranges import PositiveNumber
from minitransformer.training.choices import Training
from minitransformer.training.defaults import DATES, TEXT
from minitransformer.training.loop import train
from minitransformer.training.objective import Objective
from minitransformer.training.schedule import Cosine
from minitransformer.training.size import refuse_too_large

OF_MODEL = ("width", "depth", "heads", "attention", "positions", "groups", "ffn")
OF_TEXT = ("context", "stack")
PARTS = 2  # of a batch, side by side
LARGE = 2048  # tokens of a batch


def language_model(**choices: Any) -> tuple[LanguageModel, Training]:
    """Model and training for a text; the choices are those of `TEXT`."""
    c = _with(TEXT, choices)
    refuse_too_large(c)
    chosen = {name: c[name] for name in (*OF_TEXT, *OF_MODEL)}
    return LanguageModel(**chosen, hidden=_hidden(c)), _training(c)


def date_translator(**choices: Any) -> tuple[EncoderDecoder, Training]:
    """Model and training for dates; the choices are those of `DATES`."""
    c = _with(DATES, choices)
    refuse_too_large(c)
    model = EncoderDecoder(dates.VOCABULARY, **{name: c[name] for name in OF_MODEL})
    return model, _training(c)


def _hidden(c: dict[str, Any]) -> int | None:
    """The usual width of a plain network; of a gated one, two thirds of it: three matrices in place of two, as many numbers."""
    return 8 * c["width"] // 3 if c["ffn"] in GATES else None


def _with(defaults: dict[str, Any], choices: dict[str, Any]) -> dict[str, Any]:
    """The defaults with these choices in their place. Raises ValueError for a name that has no default."""
    for name in choices:
        if name not in defaults:
            task = "dates" if defaults is DATES else "a text"
            raise ValueError(f"no choice {name!r} for {task}; there are {', '.join(defaults)}")
    return {**defaults, **choices}


def _training(c: dict[str, Any]) -> Training:
    choose("lr", c["lr"], PositiveNumber)  # which the schedule would call its peak
    schedule = Cosine(c["lr"], c["steps"], warmup=c["steps"] // 10)
    tokens = c["batch"] * c.get("context", dates.ISO_LENGTH)
    return Training(c["steps"], c["batch"], schedule, parts=parts_of(c["batch"], tokens), seed=c["seed"])


def usual_training(steps: int, batch: int, rate: float, seed: int, *, warmup: int | None = None) -> Training:
    """The training of most experiments: the rate rises for a tenth of the steps, or for `warmup`, and then falls to zero.

    It takes one core, and looks at held-out data once, at the end.
    """
    schedule = Cosine(rate, steps, warmup=steps // 10 if warmup is None else warmup)
    return Training(steps, batch, schedule, parts=1, seed=seed, look_every=steps)


def usually_trained(model: Any, objective: Objective, steps: int, batch: int, rate: float, seed: int) -> Tree:
    """The parameters of a model after the `usual_training` with these choices."""
    return train(model, objective, usual_training(steps, batch, rate, seed), progress=False).params


def parts_of(batch: int, tokens: int) -> int:
    """Into how many parts a batch of this many texts, with this many tokens in all, is best cut in this tier.

    Loops of the tier "micro" share the cores by themselves; for what stands between them, a second thread pays in large batches.
    """
    return 1 if current() == "micro" and tokens < LARGE else math.gcd(batch, PARTS)


def choices(model: Any, training: Training) -> dict[str, Any]:
    """The choices that made a model and a training: the inverse of `language_model` and of `date_translator`."""
    sizes = {name: getattr(model, name) for name in (*OF_TEXT, *OF_MODEL) if hasattr(model, name)}
    lr = training.schedule.peak if isinstance(training.schedule, Cosine) else None
    return {**sizes, "batch": training.batch, "steps": training.steps, "lr": lr, "seed": training.seed}
