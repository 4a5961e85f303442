"""Do two runs of a notebook agree? Byte for byte where floats allow, and within a tolerance where they do not.

    text       equal, but for numbers, which may differ in the last place that is printed, or in the seventh digit, and where
               one does, for the spaces, since they line up a table; in a cell that reads a record, which is the same
               everywhere, equal to the last digit
    SVG        equal, but for coordinates within a hundredth of a point
    PNG        pixels within 2 of 255, in the root mean square; with a palette, up to 8 of 255 are not counted
    metadata   equal: they say how large a picture is shown
    pictures of another Matplotlib    draw the same data with other letters and margins: they are not compared

Another processor adds in another order, so the last digits of a sum may differ. Larger differences are reported, also where they
have grown from such digits, as in a training: a chapter prints only what every machine gives.
"""

import base64
import io
import operator
import re
from itertools import zip_longest
from typing import Any

import numpy as np

RELATIVE = 1e-6  # of a number in a text
POINTS = 0.01  # of a coordinate in an SVG
PIXELS = 2.0  # root mean square of their differences
PALETTE = 8.0  # by so much a palette moves a colour: one pixel of another machine can choose all of it anew

NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?")
EMBEDDED = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=\s]+)")  # what imshow leaves in an SVG
SVG_ID = re.compile(r"\b(?:[mph]|image|C[0-9a-f]+_[0-9a-f]+_)[0-9a-f]{10}\b")  # names that are hashes of shapes
DRAWN_BY = re.compile(rb"Matplotlib [\d.]+\w*")  # `figures.save` writes it into every picture


def outputs_differ(old: list[Any], new: list[Any], *, exact: bool = False) -> str:
    """In what two lists of outputs of a cell differ, or "" if they agree; `exact`: numbers in a text to the last digit."""
    kinds = [[_kind(output) for output in outputs] for outputs in (old, new)]
    if kinds[0] != kinds[1]:
        return f"outputs were {_listed(kinds[0])}, are {_listed(kinds[1])}"
    for before, after in zip(old, new, strict=True):
        if before["output_type"] == "stream":
            before, after = ({"data": {"text/plain": output["text"]}} for output in (before, after))
        if before.get("metadata", {}) != after.get("metadata", {}):
            return f"metadata were {before.get('metadata')}, are {after.get('metadata')}"
        for mime in before.get("data", {}):
            if difference := data_differ(mime, before["data"][mime], after["data"][mime], exact=exact):
                return difference
    return ""


def _kind(output: Any) -> str:
    return output.get("name") or ", ".join(sorted(output.get("data", {}))) or output["output_type"]


def _listed(kinds: list[str]) -> str:
    return " + ".join(kinds) or "none"


def data_differ(mime: str, old: Any, new: Any, *, exact: bool = False) -> str:
    """In what two pieces of data of one kind differ, or "" if they agree."""
    if old == new:
        return ""
    if mime.startswith("image/"):
        before, after = (_bytes(data, mime) for data in (old, new))
        if drawn_by(before) and drawn_by(after) and drawn_by(before) != drawn_by(after):
            return ""
        return (_png_differ if mime == "image/png" else _svg_differ)(before, after)
    if mime.startswith("text/"):
        return _text_differ("".join(old), "".join(new), operator.eq if exact else _same_number)
    return f"{mime} changed"


def drawn_by(picture: bytes) -> bytes:
    """The Matplotlib that made a picture, if it says so."""
    found = DRAWN_BY.search(picture)
    return found.group() if found else b""


def _bytes(data: Any, mime: str) -> bytes:
    """The bytes of a picture: a file holds them as they are, a notebook a PNG in base64 and an SVG as text."""
    if isinstance(data, bytes):
        return data
    return base64.b64decode(data) if mime == "image/png" else "".join(data).encode()


def _same_number(a: str, b: str) -> bool:
    """Whether two printed numbers agree: to the seventh digit, or within one unit of the last place of the more exact one."""
    distance, size = abs(float(a) - float(b)), max(abs(float(a)), abs(float(b)))
    return distance <= max(RELATIVE * size, 1.001 * min(_unit(a), _unit(b)))


def _unit(number: str) -> float:
    """The size of one in the last place: 0.01 in 3.14; nothing in an integer, which is exact."""
    mantissa, _, exponent = number.partition("e")
    places = len(mantissa.partition(".")[2])
    return 10.0 ** (int(exponent or 0) - places) if places or exponent else 0.0


def _text_differ(old: str, new: str, close: Any, *, spaces: bool = True) -> str:
    """In what two texts differ: a word, a number that is not `close` to the other, or spaces where all numbers are equal."""
    words = [" ".join(NUMBER.sub(" # ", text).split()) for text in (old, new)]
    numbers = [NUMBER.findall(text) for text in (old, new)]
    if words[0] != words[1] or (spaces and numbers[0] == numbers[1] and old != new):
        return _first_line(old, new)
    for a, b in zip(*numbers, strict=True):
        if a != b and not close(a, b):
            return f"the number {a} became {b}"
    return ""


def _first_line(old: str, new: str) -> str:
    lines = zip_longest(old.splitlines(), new.splitlines(), fillvalue="")
    a, b = next((pair for pair in lines if pair[0] != pair[1]), ("", ""))
    return f"the line {a[:60]!r} became {b[:60]!r}"


def _svg_differ(before: bytes, after: bytes) -> str:
    old, new = before.decode(), after.decode()
    for a, b in zip(EMBEDDED.findall(old), EMBEDDED.findall(new), strict=False):
        if difference := _png_differ(base64.b64decode(a), base64.b64decode(b)):
            return difference
    old, new = (_numbered(EMBEDDED.sub("", svg)) for svg in (old, new))
    difference = _text_differ(old, new, lambda a, b: abs(float(a) - float(b)) <= POINTS, spaces=False)
    return f"the drawing changed ({difference})" if difference else ""


def _numbered(svg: str) -> str:
    """The drawing with its hashed names replaced by the order of their appearance."""
    order: dict[str, str] = {}
    return SVG_ID.sub(lambda name: order.setdefault(name.group(), "name" + "i" * len(order)), svg)


def _png_differ(old: bytes, new: bytes) -> str:
    from PIL import Image

    pictures = [Image.open(io.BytesIO(data)) for data in (old, new)]
    a, b = (np.asarray(picture.convert("RGBA"), np.float64) for picture in pictures)
    if a.shape != b.shape:
        return f"the picture's size was {a.shape[1]} × {a.shape[0]}, is {b.shape[1]} × {b.shape[0]}"
    hidden = PALETTE if all(picture.mode == "P" for picture in pictures) else 0.0
    distance = float(np.sqrt(np.mean(np.maximum(abs(a - b) - hidden, 0) ** 2)))
    return f"the picture changed (distance {distance:.3g} of 255)" if distance > PIXELS else ""
