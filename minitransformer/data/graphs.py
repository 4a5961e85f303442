"""Two small graphs of real things, which come with the book: a karate club that split, and the help topics of Python.

Each is a JSON file that anybody can read, and names its source and licence: karate_club.json (Zachary 1977) and
python_topics.json (Python 3.11.7, PSF licence; frozen, because the topics differ from one Python to the next).
"""

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minitransformer.typing import Array


class LabelledGraph(NamedTuple):
    """n nodes of C classes. The arrays are read-only.

    links     (E, 2) int64, each pair once; they have no direction
    X         (n, D) float64, what is known of each node besides its links
    labels    (n,) int64, its class
    """

    names: tuple[str, ...]
    links: Array
    X: Array
    labels: Array
    classes: tuple[str, ...]


def _read(name: str) -> dict[str, Any]:
    return json.loads(Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8"))


def _graph(names: list[str], X: Array, file: dict[str, Any]) -> LabelledGraph:
    links, labels = (np.array(file[key], np.int64) for key in ("links", "labels"))
    for array in (X, links, labels):
        array.setflags(write=False)
    return LabelledGraph(tuple(names), links, X, labels, tuple(file["classes"]))


@functools.cache
def karate_club() -> LabelledGraph:
    """34 members of a karate club, and the 78 pairs that met outside of it; then it split in two.

    Node 0 is the instructor and node 33 the president. X is the identity: nothing is known of a member but who it is.
    source   Zachary 1977
    """
    file = _read("karate_club")
    n = len(file["labels"])
    return _graph([str(i) for i in range(n)], np.eye(n), file)


@functools.cache
def python_topics() -> LabelledGraph:
    """71 texts of Python's help, the 105 links between them ("related help topics"), and 150 of their words.

    X has a row of length one for each text: of ln(1 + how often the word stands in it). The classes are the chapters of the
    documentation from which the texts are, four groups of them.
    """
    file = _read("python_topics")
    X = np.zeros((len(file["labels"]), len(file["words"])))
    for row, counts in zip(X, file["counts"], strict=True):
        row[counts[::2]] = np.log1p(counts[1::2])  # word, how often, next word, …
    return _graph(file["names"], X / np.linalg.norm(X, axis=-1, keepdims=True), file)
