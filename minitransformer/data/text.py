"""Text to learn from. Bytes are the vocabulary: 256 tokens, no tokenizer, any language.

The default is the documentation that every Python carries in `pydoc_data.topics`, split by topic; `read_text` takes
any UTF-8 file of yours. A topic often quotes another word for word (`for` stands inside `compound`), so a third of the
held-out bytes also stand in the training text. `copied` finds them, and losses are reported with and without.
"""

import codecs
import hashlib
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from minitransformer.arrays import row_of_integers
from minitransformer.ranges import so_many
from minitransformer.typing import Array, checked

BYTES = 256
LONGEST_CHANCE = 64  # the same 64 bytes twice are no accident
PIECE = 2**20  # bytes that are looked at together where a text may be long
SAMPLE = 2**21, 2**17  # bytes of the two parts of a sample; those of the default text are shorter
PASSAGES = 16  # of a sample


class Text(NamedTuple):
    """Bytes to train on and bytes to be judged by, with what names them in a record."""

    train: Array  # (n,) uint8
    held_out: Array  # (m,) uint8
    name: str
    sha256: str  # of the training bytes followed by the held-out ones


@checked
def python_docs() -> Text:
    """The help texts of this Python, 0.47 MB of English with examples; a tenth of the topics are held out.

    Held out are the topics for which the CRC-32 of the name ends in the digit 2. The rule looks at nothing but the
    name, so a topic stays on its side when another Python adds or drops some. How hard a held-out set is depends on
    what it shares with the rest: a 6-gram model needs 1.1 to 2.5 bits per byte on the ten digits. 2 lies in the middle.
    """
    from pydoc_data.topics import topics  # half a megabyte, which few programs need

    sides: tuple[list[str], list[str]] = ([], [])
    for name in sorted(topics):
        sides[zlib.crc32(name.encode()) % 10 == 2].append(topics[name].strip() + "\n\n\n")
    train, held_out = ("".join(side).encode() for side in sides)
    return _text(train + held_out, len(train), "pydoc_data.topics")


@checked
def read_text(path: str | Path) -> Text:
    """A UTF-8 file of your own; its last tenth is held out.

    raises   OSError if it can't be read; ValueError if it is empty or not UTF-8, with the offset of the first bad byte
    """
    path = Path(path)
    if path.is_char_device():
        raise ValueError(f"{path}: a device has no end, and so no last tenth")
    data = path.read_bytes()
    if not data or data.isspace():
        raise ValueError(f"{path}: the text is empty")
    _refuse_other_than_utf8(data, path)
    return _text(data, len(data) - len(data) // 10, path.name)


def _refuse_other_than_utf8(data: bytes, path: Path) -> None:
    """Raise ValueError unless it is UTF-8; decoded in pieces, because as a str a text can take four times the memory."""
    start = 0
    while start < len(data):
        piece = data[start : start + PIECE]
        try:
            start += codecs.utf_8_decode(piece, "strict", start + PIECE >= len(data))[1]
        except UnicodeDecodeError as error:
            bad = f"byte 0x{piece[error.start]:02x} at offset {start + error.start}"
            raise ValueError(f"{path}: not UTF-8 ({bad}: {error.reason})") from None


def _text(data: bytes, cut: int, name: str) -> Text:
    tokens = np.frombuffer(data, np.uint8)
    return Text(tokens[:cut], tokens[cut:], name, hashlib.sha256(data).hexdigest())


@checked
def sample(text: Text, context: int) -> Text:
    """The sample by which a long text is judged: passages of both parts, evenly spread, longer than the context of a model.

    Together they are 2 MiB to count n-grams in, and an eighth of one to be judged by; a part that has no more than
    that is its own sample. Name and hash are those of the whole.
    """
    train, held_out = (_spread(part, size, context) for part, size in zip(text[:2], SAMPLE, strict=True))
    return text._replace(train=train, held_out=held_out)


def _spread(tokens: Array, size: int, context: int) -> Array:
    """PASSAGES passages, evenly spread over a text: `size` tokens together, or more if each has to be longer than the context.

    All of the text if it has no more than that.
    """
    row_of_integers(tokens, "text")
    length = max(size // PASSAGES, context + 1)
    if len(tokens) <= length * PASSAGES:
        return tokens
    starts = np.linspace(0, len(tokens) - length, PASSAGES).astype(int)
    return tokens[starts[:, None] + np.arange(length)].reshape(-1)


@checked
def batch(tokens: Array, context: int, size: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """`size` passages of `context` tokens from random places, and the same one token later: inputs and targets.

    raises   ValueError if the text has not even context + 1 tokens
    """
    long_enough(tokens, context)
    return passages(tokens, rng.integers(0, len(tokens) - context, size), context)


@checked
def window_starts(tokens: Array, context: int, stride: int | None = None) -> Array:
    """Full windows that cover a text begin here, each `stride` tokens after the last, and the last one ends with the text.

    In an overlap the earlier window counts, so with stride = context/2 (the default) every token after the first window
    is predicted from at least half a context.
    raises   ValueError if the text has not even context + 1 tokens, or for a stride outside 1 … context
    """
    long_enough(tokens, context)
    stride = max(context // 2, 1) if stride is None else stride
    if not 1 <= stride <= context:
        raise ValueError(f"stride: {stride} is not within 1 … {context}, the context")
    last = len(tokens) - context - 1
    return np.append(np.arange(0, last, stride), last)


@checked
def counted(starts: Array, context: int) -> Array:
    """Which targets of these windows count, (w, context): each token but the first of the text does, exactly once."""
    row_of_integers(starts, "starts")
    before = np.append(0, starts[:-1] + context)  # here an earlier window has counted
    return starts[:, None] + np.arange(context) >= before[:, None]


@checked
def passages(tokens: Array, starts: Array, context: int) -> tuple[Array, Array]:
    """`context` tokens from each start, and the same one token later: inputs and targets, (starts, context) int64 each.

    raises   ValueError for a text or starts that are no one-dimensional arrays of integers, and for a start too near the end
    """
    long_enough(tokens, context)
    row_of_integers(starts, "starts")
    if starts.size and not (0 <= starts.min() and starts.max() < len(tokens) - context):
        raise ValueError(f"starts: {starts.min()} … {starts.max()} is not within 0 … {len(tokens) - context - 1}")
    both = tokens[starts.astype(int)[:, None] + np.arange(context + 1)].astype(np.int64)
    return both[:, :-1], both[:, 1:]


@checked
def long_enough(tokens: Array, context: int, name: str = "tokens") -> None:
    """Raise ValueError unless a window of `context` tokens and the one after it fit into the text, a row of integers."""
    row_of_integers(tokens, name)
    if len(tokens) <= context:
        raise ValueError(
            f"{name}: {so_many(len(tokens), 'byte')}, too short for a context of {context}, which needs {context + 1}"
        )


@checked
def copied(text: Array, source: Array) -> Array:
    """True for each byte of `text` that lies in a passage of 64 bytes which also stands, word for word, in `source`."""
    row_of_integers(text, "text")
    row_of_integers(source, "source")
    wanted, slots = _fingerprints(text), np.zeros(2**22, bool)
    there = np.zeros(len(wanted), bool)
    slots[wanted >> np.uint64(42)] = True
    for start in range(0, max(len(source), 1), PIECE):  # a piece ends with the passage that begins in its last byte
        found = _fingerprints(source[start : start + PIECE + LONGEST_CHANCE - 1])
        found = found[slots[found >> np.uint64(42)]]  # the others need not be sorted
        there |= np.isin(wanted, found, kind="sort")  # NumPy 2.0.0 fails at tables of uint64
    covered = np.zeros(len(text) + 1, np.int64)
    starts = np.flatnonzero(there)
    np.add.at(covered, starts, 1)
    np.add.at(covered, starts + LONGEST_CHANCE, -1)
    return covered[:-1].cumsum() > 0


def _fingerprints(text: Array) -> Array:
    """A 64-bit number for each passage of 64 bytes: the polynomial Σ byte · Bʲ modulo 2⁶⁴, by doubling."""
    number, base, length = text.astype(np.uint64) + np.uint64(1), 0x9E3779B97F4A7C15, 1
    while length < LONGEST_CHANCE:
        number = number[:-length] * np.uint64(base) + number[length:] if len(number) > length else number[:0]
        base, length = base * base % 2**64, 2 * length
    return number


@checked
def decode(tokens: Array | list) -> str:
    """Bytes as text; what is not UTF-8, such as half a letter at the end of a sample, shows as �.

    raises   TypeError for what are no whole numbers, ValueError for one that is no byte
    """
    values = np.asarray(tokens)
    if values.size and values.dtype.kind not in "iu":
        raise TypeError(f"tokens: {values.dtype} should be whole numbers, 0 … {BYTES - 1}")
    if values.size and not (0 <= values.min() and values.max() < BYTES):
        raise ValueError(f"tokens: {values.min()} … {values.max()} is not within 0 … {BYTES - 1}")
    return values.astype(np.uint8).tobytes().decode("utf-8", errors="replace")


@checked
def encode(text: str) -> Array:
    """Text as tokens: its UTF-8 bytes, (n,) int64."""
    return np.frombuffer(text.encode("utf8", "surrogateescape"), np.uint8).astype(np.int64)  # as a terminal gave them
