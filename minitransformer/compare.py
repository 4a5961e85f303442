"""Do two runs of a notebook agree? Byte for byte where floats allow, and within a tolerance where they do not.

A tag on a cell chooses the rule, for the cell's outputs and for the figures that it writes:

    no tag      text is equal but for numbers that agree to six digits, pictures but for traces
    trained     the cell shows a trained model, in which the last digits of a sum come back as larger differences:
                numbers agree to a hundredth, pictures roughly. Made on another ground (`book.ground`): as `clock`
    clock       the cell shows times: only the structure counts, that is the number and the kinds of its outputs
"""

import base64
import io
import re
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np


class Rule(NamedTuple):
    """How far two outputs may lie apart. What cannot be compared with a tolerance must be equal."""

    numbers: float  # relative error of a number in a text
    drawing: float  # distance of a coordinate in an SVG, in points
    pixels: float  # root mean square distance of the pixels of a PNG, which run from 0 to 255


PLAIN = Rule(numbers=1e-6, drawing=0.01, pixels=2)
TRAINED = Rule(numbers=1e-2, drawing=0.5, pixels=8)
STRUCTURE = None  # a rule, too: anything goes, as long as it is there

NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?")
EMBEDDED = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=\s]+)")  # what imshow leaves in an SVG
SVG_ID = re.compile(r"\b(?:[mph]|image|C[0-9a-f]+_[0-9a-f]+_)[0-9a-f]{10}\b")  # names that are hashes of shapes


def rule_of(tags: list[str], same_ground: bool) -> Rule | None:
    """The rule for a cell with these tags, on the ground that made its outputs or on another."""
    if "clock" in tags or ("trained" in tags and not same_ground):
        return STRUCTURE
    return TRAINED if "trained" in tags else PLAIN


def outputs_differ(old: list[Any], new: list[Any], rule: Rule | None) -> str:
    """In what two lists of outputs of a cell differ, or "" if they agree."""
    kinds = [[_kind(output) for output in outputs] for outputs in (old, new)]
    if kinds[0] != kinds[1]:
        return f"outputs were {_listed(kinds[0])}, are {_listed(kinds[1])}"
    for before, after in zip(old, new, strict=True):
        if before["output_type"] == "stream":
            before, after = ({"data": {"text/plain": output["text"]}} for output in (before, after))
        for mime in before.get("data", {}):
            if difference := data_differ(mime, before["data"][mime], after["data"][mime], rule):
                return difference
    return ""


def _kind(output: Any) -> str:
    return output.get("name") or ", ".join(sorted(output.get("data", {}))) or output["output_type"]


def _listed(kinds: list[str]) -> str:
    return " + ".join(kinds) or "none"


def data_differ(mime: str, old: Any, new: Any, rule: Rule | None) -> str:
    """In what two pieces of data of one kind differ, or "" if they agree."""
    if rule is STRUCTURE or old == new:
        return ""
    if mime == "image/png":
        return _png_differ(_bytes(old), _bytes(new), rule)
    if mime == "image/svg+xml":
        return _svg_differ("".join(old), "".join(new), rule)
    if mime.startswith("text/"):
        return _text_differ("".join(old), "".join(new), lambda a, b: abs(a - b) <= rule.numbers * max(abs(a), abs(b)))
    return f"{mime} changed"


def _bytes(data: str | bytes) -> bytes:
    """The bytes of a picture: a notebook holds them in base64, a file as they are."""
    return base64.b64decode(data) if isinstance(data, str) else data


def _text_differ(old: str, new: str, close: Any) -> str:
    words = [" ".join(NUMBER.sub(" # ", text).split()) for text in (old, new)]
    if words[0] != words[1]:
        return _first_line(old, new)
    for a, b in zip(NUMBER.findall(old), NUMBER.findall(new), strict=True):
        if a != b and not close(float(a), float(b)):
            return f"the number {a} became {b}"
    return ""


def _first_line(old: str, new: str) -> str:
    lines = zip_longest(old.splitlines(), new.splitlines(), fillvalue="")
    a, b = next((pair for pair in lines if pair[0] != pair[1]), ("", ""))
    return f"the line {a[:60]!r} became {b[:60]!r}"


def _svg_differ(old: str, new: str, rule: Rule) -> str:
    for a, b in zip(EMBEDDED.findall(old), EMBEDDED.findall(new), strict=False):
        if difference := _png_differ(_bytes(a), _bytes(b), rule):
            return difference
    old, new = (_numbered(EMBEDDED.sub("", svg)) for svg in (old, new))
    difference = _text_differ(old, new, lambda a, b: abs(a - b) <= rule.drawing)
    return f"the drawing changed ({difference})" if difference else ""


def _numbered(svg: str) -> str:
    """The drawing with its hashed names replaced by the order of their appearance."""
    order: dict[str, str] = {}
    return SVG_ID.sub(lambda name: order.setdefault(name.group(), "name" + "i" * len(order)), svg)


def _png_differ(old: bytes, new: bytes, rule: Rule) -> str:
    from PIL import Image

    a, b = (np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"), np.float64) for data in (old, new))
    if a.shape != b.shape:
        return f"the picture's size was {a.shape[1]} × {a.shape[0]}, is {b.shape[1]} × {b.shape[0]}"
    distance = float(np.sqrt(np.mean((a - b) ** 2)))
    return f"the picture changed (distance {distance:.3g} of 255)" if distance > rule.pixels else ""
