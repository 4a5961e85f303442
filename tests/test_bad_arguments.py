"""Whatever is given to a public function comes to an answer, or to an error of the book that names an argument.

Every public function and every layer, found as in test_checks.py, is called as it should be but for one argument, which is
one of those below. A new function is in here by being public; what it is called with, its signature says, or USUAL.
"""

import datetime
import inspect
import math
import random
import re
import signal

import numpy as np
import pytest

from minitransformer.attention import KernelState, MultiHeadAttention, Paged, Window
from minitransformer.backend import available
from minitransformer.data import ngrams
from minitransformer.data.text import Text
from minitransformer.models import BERT, LanguageModel
from minitransformer.positions import Encoding
from minitransformer.pullback import tree_items, tree_map
from minitransformer.ranges import bare
from tests.test_checks import CALLS, arguments, ones, public

pytestmark = pytest.mark.each_value

MODEL, HEADS, READER = LanguageModel(7, 8, 8, 1, 2), MultiHeadAttention(8, 2), BERT(7, 8, 8, 1, 2, hidden=8)
RNG = np.random.default_rng(0)
BYTES, X = np.arange(200, dtype=np.uint8), np.ones((2, 2, 3, 4), np.float32)
OWNERS, PATTERN = [np.array([0, 2]), np.array([1])], Window(1)(3, 5, causal=True)
SIGNS = np.float32([[1, -1, 1], [-1, -1, 1], [1, 1, 1], [1, -1, -1]])
DAY = datetime.date(2001, 2, 3)
USUAL = {
    "alibi_slopes": {"heads": 2},
    "angular_frequencies": {"width": 8},
    "attention_of": {"attention": "softmax", "sizes": {"width": 8, "heads": 2, "d": 4, "longest": 8}},
    "batch": {"tokens": BYTES, "context": 4, "size": 2, "rng": RNG},
    "bits_per_byte": {"model": ngrams.fit(BYTES, 2), "text": BYTES},
    "block_pattern": {"n": 3, "m": 5, "sees": lambda i, j: j <= i},
    "cache_bytes": {"layers": [None, Window(1)], "n": 5, "groups": 2, "d": 4},
    "cached_tokens": {"pattern": Window(1), "n": 5},
    "causal_mask": {"n": 3},
    "change_layout": {"W": np.ones((3, 8)), "d": 4, "to": "halves"},
    "classical_recall": {"W": np.float32([[0, 1, -1], [1, 0, 2], [-1, 2, 0]]), "s": SIGNS[:2]},
    "contiguous": {"n": 5, "workers": 2},
    "convolution_from_heads": {"kernel": np.ones(3, np.float32), "shape": (3,)},
    "convolve_with_heads": {"X": X[0], "kernel": np.ones(3, np.float32), "shape": (3,)},
    "copied": {"text": BYTES, "source": BYTES},
    "copy": {"size": 2, "n": 30, "rng": RNG},
    "counted": {"starts": np.array([0, 4]), "context": 4},
    "data.text.decode": {"tokens": BYTES[:90]},
    "data.text.encode": {"text": "a text"},
    "data.text.sample": {"text": Text(BYTES, BYTES, "bytes", ""), "context": 4},
    "deberta_buckets": {"distance": np.arange(5), "buckets": 4, "longest": 8},
    "decode": {"tokens": np.array([1, 4, 5, 2])},
    "dense_recall": {"X": SIGNS, "s": SIGNS[:2]},
    "distribution": {"model": ngrams.fit(BYTES, 2), "context": b"a"},
    "edge_weights": {"scaling": "symmetric"},
    "edges_of": {"pairs": np.array([[0, 1], [1, 1], [2, 0]]), "nodes": 3},
    "edges_of_mask": {"mask": np.eye(3, dtype=bool)},
    "efficiency": {"pairs": np.ones((2, 2), int)},
    "encode": {"text": "May 1"},
    "first_lambda": {"layer": 1},
    "fit": {"train": BYTES, "order": 2},
    "gated_delta_step": {"log_decay": np.full((2, 3), -0.1, np.float32)},
    "gated_linear_step": {"log_decay": np.full((2, 3), -0.1, np.float32)},
    "gaussian_rows": {"rng": RNG, "shape": (3, 4)},
    "generate": {"model": MODEL, "params": MODEL.init(RNG), "prompt": np.array([1, 2]), "steps": 2, "rng": RNG},
    "grid_offsets": {"n": 3, "m": 5, "columns": 2, "rows": 3},
    "hebbian": {"X": SIGNS},
    "induction": {"size": 2, "n": 30, "rng": RNG},
    "is_held_out": {"date": DAY},
    "kernel_attention_step": {"state": KernelState(np.zeros((2, 4, 4), np.float32), np.zeros((2, 4), np.float32), 0)},
    "listops": {"count": 2, "n": 20, "rng": RNG},
    "long_enough": {"tokens": BYTES, "context": 4},
    "mean_pool_heads": {"params": HEADS.init(RNG), "heads": 2, "groups": 1},
    "normed": {"X": X, "gamma": X[0, 0, 0], "beta": X[0, 0, 0], "eps": 1e-5},
    "offsets": {"n": 3, "m": 5},
    "one_pattern": {"patterns": [PATTERN, PATTERN]},
    "order": {"size": 2, "n": 30, "rng": RNG},
    "ordinal": {"day": 3},
    "orthogonal_rows": {"rng": RNG, "shape": (3, 4)},
    "padding_mask": {"lengths": np.array([2, 3]), "m": 3},
    "paged_attention": {"Q": X, "state": Paged.of(X, X, 2)},
    "passages": {"tokens": BYTES, "starts": np.array([0, 4]), "context": 4},
    "place": {"positions": "rope", "width": 8, "heads": 2, "longest": 8},
    "probabilities": {"model": ngrams.fit(BYTES, 2), "text": BYTES},
    "reach": {"layers": 3, "segment": 4, "memory": 3},
    "read": {"model": MODEL, "params": MODEL.init(RNG), "tokens": np.array([1, 2])},
    "refuse_unknown": {"tokens": np.array([1, 2]), "vocabulary": 7},
    "read_text": {"path": __file__},
    "repeat_heads": {"params": HEADS.init(RNG), "heads": 2},
    "retention_decays": {"heads": 2},
    "rope_frequencies": {"d": 4},
    "rungs": {"inputs": 4, "width": 8, "heads": 2, "longest": 8, "hidden": 8},
    "sample": {"count": 2, "rng": RNG},
    "sentence_embeddings": {
        "model": READER,
        "params": READER.init(RNG),
        "tokenizer": lambda texts: (np.ones((len(texts), 3), int), np.full(len(texts), 3)),
        "sentences": ["one", "two"],
    },
    "shift_matrix": {"width": 8, "offset": 1},
    "sinusoids": {"n": 3, "width": 8},
    "span": {"size": 2, "n": 30, "rng": RNG},
    "split_heads": {"heads": 2},
    "striped": {"n": 5, "workers": 2},
    "t5_buckets": {"offsets": np.arange(5), "causal": True},
    "to_batch": {"pairs": [("May 1", DAY)]},
    "to_sources": {"texts": ["May 1"]},
    "widened": {"X": X, "width": 6},
    "value_of": {"tokens": np.array([10, 3, 4, 12])},
    "window_starts": {"tokens": BYTES, "context": 4},
    "work": {"owners": OWNERS},
    "zigzag": {"n": 5, "workers": 2},
}
EVERY = {name: (f, None) for name, f in public() if inspect.isfunction(f) and name not in CALLS} | CALLS


class Other(np.ndarray):
    """Computes as any array does, until somebody changes that."""


def filled(number):
    """Another number in one place, and in all."""

    def of(A):
        if A.dtype.kind == ("f" if isinstance(number, float) else "i") and A.size:
            one = A.copy()
            one.flat[0] = number
            yield from (one, np.full_like(A, number))

    return of


def emptied(A):
    yield from (np.take(A, [], axis) for axis in range(A.ndim))


def huge(A):
    for axis in range(A.ndim) if A.ndim > 1 else ():
        yield np.zeros([2**40 if k == axis else 0 for k in range(A.ndim)], A.dtype)


def still(A):
    A = A.copy()
    A.flags.writeable = False
    yield A


THE_SAME = {  # numbers in another place of memory
    "as columns": lambda A: [np.asfortranarray(A)],
    "backwards": lambda A: [np.ascontiguousarray(A[..., ::-1])[..., ::-1]],
    "with gaps": lambda A: [np.repeat(A, 2, -1)[..., ::2]],
    "read-only": still,
}
KINDS = {
    **{kind: lambda A, kind=kind: [A.astype(kind)] for kind in ("float16", "longdouble", "complex64", "int64", "bool")},
    "objects": lambda A: [A.astype(object)],
    "the other float": lambda A: [A.astype("f4" if A.dtype == "f8" else "f8")] if A.dtype.kind == "f" else [],
    "other bytes": lambda A: [A.astype(A.dtype.newbyteorder())],
    "masked": lambda A: [np.ma.masked_array(A, A == A)],
    "another class": lambda A: [A.view(Other)],
    "one number": lambda A: [A[(0,) * A.ndim], np.array(3, A.dtype), 3] if A.size else [],
    "an axis more": lambda A: [A[None], A[..., None]],
    "an axis less": lambda A: [A[0]] if len(A) else [],
    "other sizes": lambda A: [np.take(A, [0], k) for k in range(A.ndim)] if A.size else [],
    "an empty axis": emptied,
    "nothing in many rows": huge,
    "no array": lambda A: [A.tolist(), None, "text", object(), {}],
    "not a number": filled(math.nan),
    "infinite": filled(-math.inf),
    "largest": filled(3e38),
    "negative": filled(-1),
    "far away": filled(2**62),
    **THE_SAME,
}
AT_THE_DOOR = {
    "float16",
    "longdouble",
    "complex64",
    "objects",
    "masked",
    "nothing in many rows",
}  # loops never see them
TRIED = [(kind, tier) for kind in KINDS for tier in (available()[-1:] if kind in AT_THE_DOOR else available())]
WHOLE = (-1, 0, True, 1, 2**31, 2**63, 10**400, 1.5, "3", None, np.int64(2), np.float64(2), [3], np.array(2))
REAL = (math.nan, math.inf, -math.inf, 1e39, 0, -1, True, "x", 1j, None, np.float32(0.5), [0.5], 10**400, 1e-320)
THINGS = (
    None,
    1,
    -1,
    2**70,
    1.5,
    "x",
    object(),
    [],
    (),
    {},
    b"x",
    np.ones(3),
    np.ones((1, 1, 1, 1, 1, 1), bool),
    np.array(True),
)
GENERATORS = (None, 3, np.random.RandomState(0), np.random.Generator(np.random.MT19937(0)), np.random)
OPTIONS = {int: WHOLE, float: REAL, bool: (*THINGS, 0, np.True_)}


def options(hint):
    """What may be given in place of something that is no array."""
    hint = bare(hint)
    for kind, values in OPTIONS.items():
        if hint in (kind, kind | None):
            return values
    return GENERATORS if "Generator" in str(hint) else THINGS


def usual(name):
    """Arguments by name, as they should be."""
    function, owner = EVERY[name]
    parameters = inspect.signature(inspect.unwrap(function)).parameters
    given = dict(USUAL.get(name, {}))
    if set(parameters) - set(given) - {"self"} and "model" not in given and name != "block_tables":
        rest = {key: p for key, p in parameters.items() if p.default is p.empty and key not in given}
        if rest and not (set(rest) == {"params"} and owner is None):
            given = arguments(function, np.random.default_rng(0), np.float32, owner) | given
    return given | ({"causal": True} if getattr(owner, "causal", "") == "always" else {})


REFUSED = "refused"


class TooLong(BaseException):
    """Nothing that anybody catches."""


def late(*_):
    raise TooLong


def answer(name, given):
    """What the function says, and its gradients; or the error of the book."""
    function, owner = EVERY[name]
    names = {
        *inspect.signature(inspect.unwrap(function)).parameters,
        *given,
        *(vars(owner) if owner else ()),
        "state",
        "attention",
    }
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    try:
        with np.errstate(all="ignore"):
            own = "encoding" if isinstance(owner, Encoding) else "self"
            said = function(**{**given, **({} if owner is None else {own: owner})})
            back = isinstance(said, tuple) and len(said) == 2 and isinstance(said[1], tuple) and callable(said[1])
            return (said[0], said[1](ones(said[0]))) if back else said
    except (TypeError, ValueError) as error:
        first = re.match(r"\w+", str(error))
        named = first and first.group() in names and re.match(r"[\w.\[\]]+(, [\w.]+)*: ", str(error))
        if not named and "parameter '" not in str(error):
            raise AssertionError(f"an error that names no argument: {error}") from error
        return REFUSED
    except FileNotFoundError:
        return REFUSED  # a folder or a file
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(("kind", "tier"), TRIED, indirect=["tier"])
@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("block_tables", "from_safetensors")])
def test_an_array_of_any_kind_is_answered_or_refused_by_name(name, kind, tier):
    given = usual(name)
    want = answer(name, given)
    assert want is not REFUSED, "what it is called with usually"
    for key, value in given.items():
        for path, leaf in tree_items({key: value}):
            if not isinstance(leaf, np.ndarray) or leaf.ndim == 0 or (key == "params" and kind not in THE_SAME):
                continue  # what parameters have to be is asked in test_checks.py
            for other in KINDS[kind](leaf):
                found = answer(name, {**given, **replaced({key: value}, path, other)})
                if kind in THE_SAME and value is leaf and not any("rng" in k or "Rng" in k for k in given):
                    assert near(found, want), f"{key} {kind}"


def replaced(tree, path, leaf):
    """The same tree with another leaf, where a leaf may be anything."""
    seen = iter([p for p, _ in tree_items(tree)])
    return tree_map(lambda old: leaf if next(seen) == path else old, tree)


def near(found, want):
    pairs = zip(tree_items({"": found}), tree_items({"": want}), strict=True)
    return all(
        np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True) for (_, a), (_, b) in pairs if isinstance(b, np.ndarray)
    )


@pytest.mark.parametrize("name", [name for name in EVERY if name != "block_tables"])
def test_an_option_of_any_kind_is_answered_or_refused_by_name(name, thinned):
    given, wrong = usual(name), {}
    for key, parameter in inspect.signature(inspect.unwrap(EVERY[name][0])).parameters.items():
        known = isinstance(given.get(key), (np.ndarray, *(() if key == "model" else (tuple,))))
        if key not in ("self", "params", "order") and not known and parameter.kind is not parameter.VAR_POSITIONAL:
            wrong |= {(key, k): value for k, value in enumerate(options(parameter.annotation))}
    rows = random.Random(name).sample(sorted(wrong), len(wrong))  # thinned, they are other ones for each function
    for key, k in thinned(rows):
        answer(name, {**given, key: wrong[key, k]})
