import hashlib
import zlib
from pathlib import Path
from pydoc_data import topics

import numpy as np
import pytest

from minitransformer.data import text as module
from minitransformer.data.text import (
    Text,
    batch,
    copied,
    counted,
    decode,
    encode,
    passages,
    python_docs,
    read_text,
    sample,
    window_starts,
)


@pytest.fixture(scope="module")
def docs():
    return python_docs()


def test_the_documentation_is_split_by_topic(docs):
    held_out = {name for name in topics.topics if zlib.crc32(name.encode()) % 10 == 2}
    assert 0.05 < len(held_out) / len(topics.topics) < 0.15
    train, rest = (bytes(part).decode() for part in (docs.train, docs.held_out))
    for name, topic in topics.topics.items():
        assert topic.strip() in (rest if name in held_out else train)
    assert len(rest) == sum(len(topics.topics[name].strip()) + 3 for name in held_out)


def test_the_documentation_is_text_of_half_a_megabyte(docs):
    assert docs.train.dtype == docs.held_out.dtype == np.uint8
    assert 400_000 < len(docs.train) + len(docs.held_out) < 700_000
    assert 0.08 < len(docs.held_out) / len(docs.train) < 0.25
    assert docs.sha256 == hashlib.sha256(bytes(docs.train) + bytes(docs.held_out)).hexdigest()


def test_a_file_is_cut_at_nine_tenths(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_bytes(("äöü€" * 100).encode())
    text = read_text(path)
    assert text.name == "mine.txt"
    assert bytes(text.train) + bytes(text.held_out) == path.read_bytes()
    assert len(text.held_out) == 900 // 10


def test_another_text_has_another_hash(tmp_path):
    for name, content in (("a", "text " * 50), ("b", "next " * 50)):
        (tmp_path / name).write_text(content)
    assert read_text(tmp_path / "a").sha256 != read_text(tmp_path / "b").sha256


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a device")
def test_a_device_is_refused():
    with pytest.raises(ValueError, match="/dev/zero: a device has no end"):
        read_text("/dev/zero")


@pytest.mark.parametrize("content", [b"", b" \n\n \t"])
def test_an_empty_file_is_refused(tmp_path, content):
    (tmp_path / "empty.txt").write_bytes(content)
    with pytest.raises(ValueError, match=r"empty\.txt: the text is empty"):
        read_text(tmp_path / "empty.txt")


def test_a_file_that_is_not_utf8_is_refused_with_the_offset(tmp_path):
    (tmp_path / "latin1.txt").write_bytes("für".encode() * 7 + "für".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin1\.txt: not UTF-8 \(byte 0xfc at offset 29"):
        read_text(tmp_path / "latin1.txt")


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.txt"):
        read_text(tmp_path / "none.txt")
    with pytest.raises(OSError, match=str(tmp_path)):
        read_text(tmp_path)


def test_a_batch_holds_passages_and_the_same_one_byte_later():
    tokens = np.arange(50, dtype=np.uint8)
    inputs, targets = batch(tokens, 7, 200, np.random.default_rng(0))
    assert inputs.shape == targets.shape == (200, 7)
    assert inputs.dtype == targets.dtype == np.int64
    assert np.array_equal(targets, inputs + 1)
    assert np.array_equal(inputs, inputs[:, :1] + np.arange(7))
    assert set(inputs[:, 0]) == set(range(43))  # every start, the first and the last too


def test_a_batch_depends_on_the_generator_alone():
    tokens = np.arange(100, dtype=np.uint8)
    first, again, other = (batch(tokens, 5, 4, np.random.default_rng(s))[0] for s in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("length", [9, 10, 11, 12, 13, 14, 40, 41])
@pytest.mark.parametrize("stride", [None, 1, 3, 8])
def test_windows_count_every_byte_but_the_first_once(length, stride):
    """And in order: the predictions of bytes 1, 2, 3, … can be compared with an n-gram's, byte by byte."""
    tokens = np.arange(length, dtype=np.uint8)
    starts = window_starts(tokens, 8, stride)
    counts = counted(starts, 8)
    inputs, targets = passages(tokens, starts, 8)
    assert inputs.dtype == targets.dtype == np.int64
    assert np.array_equal(inputs[:, 0], starts)
    assert np.array_equal(targets, inputs + 1)
    assert np.array_equal(targets[counts], np.arange(1, length))
    least = 8 - (4 if stride is None else stride)
    context = np.broadcast_to(np.arange(1, 9), targets.shape)  # bytes that a prediction sees
    assert (context[1:][counts[1:]] > least).all()


@pytest.mark.parametrize(
    "function", [lambda t: window_starts(t, 8), lambda t: batch(t, 8, 2, np.random.default_rng(0))]
)
def test_a_text_shorter_than_the_context_is_refused(function):
    with pytest.raises(ValueError, match="8 bytes, too short for a context of 8, which needs 9"):
        function(np.zeros(8, np.uint8))


@pytest.mark.parametrize("start", [-1, 12, 13])
def test_a_passage_ends_before_the_text_does(start):
    """Of eight tokens and the one after them: the last of 20 begins at 11."""
    tokens = np.arange(20)
    assert passages(tokens, np.array([0, 11]), 8)[1][:, -1].tolist() == [8, 19]
    with pytest.raises(ValueError, match=f"starts: .*{start}.* is not within 0 … 11"):
        passages(tokens, np.array([5, start]), 8)


def test_what_are_no_whole_numbers_is_refused_by_its_name():
    bytes_, odd = np.zeros(90, np.uint8), np.zeros(90)
    for name, call in {
        "text": lambda: module.copied(odd, bytes_),
        "source": lambda: module.copied(bytes_, odd),
        "starts": lambda: counted(odd, 8),
    }.items():
        with pytest.raises(ValueError, match=f"^{name}: should be a one-dimensional array of integers, got float64"):
            call()


def test_the_usual_stride_is_half_the_context_and_at_least_one():
    tokens = np.zeros(9, np.uint8)
    for context, starts in ((1, range(8)), (2, range(7)), (3, range(6)), (4, (0, 2, 4)), (7, (0, 1)), (8, (0,))):
        assert window_starts(tokens, context).tolist() == list(starts)


def test_a_context_or_stride_of_nothing_is_refused():
    with pytest.raises(ValueError, match="context: 0"):
        window_starts(np.zeros(8, np.uint8), 0)
    for stride in (0, 5):
        with pytest.raises(ValueError, match=f"stride: {stride} "):
            window_starts(np.zeros(8, np.uint8), 4, stride)


@pytest.mark.parametrize("piece", [4, 5, 7, 100])
def test_a_file_is_read_in_pieces(tmp_path, monkeypatch, piece):
    """A letter of up to four bytes may lie across the end of one, and the offset of a bad byte is that in the file."""
    monkeypatch.setattr(module, "PIECE", piece)
    good = "aé€🙂".encode() * 5
    (tmp_path / "good").write_bytes(good)
    assert bytes(read_text(tmp_path / "good").train) == good[:45]
    for bad, place, reason in (
        (good + b"\xff" + good, 50, "invalid start byte"),
        (good + "🙂".encode()[:2], 50, "unexpected end of data"),
    ):
        (tmp_path / "bad").write_bytes(bad)
        with pytest.raises(ValueError, match=f"bad: not UTF-8 .byte 0x{bad[place]:02x} at offset {place}: {reason}"):
            read_text(tmp_path / "bad")


@pytest.mark.parametrize("piece", [1, 10, 64, 90, 999, 1000])
def test_copies_are_found_in_a_source_of_several_pieces(monkeypatch, piece):
    rng = np.random.default_rng(0)
    source, text = (rng.integers(0, 256, size).astype(np.uint8) for size in (1000, 500))
    text[100:200], text[400:464] = source[300:400], source[936:]
    whole = copied(text, source)
    monkeypatch.setattr(module, "PIECE", piece)
    assert np.array_equal(copied(text, source), whole)


def test_a_short_text_is_its_own_sample(docs):
    """So nothing changes for the text of the book."""
    small = sample(docs, 128)
    assert small.train is docs.train
    assert small.held_out is docs.held_out


@pytest.mark.parametrize("context", [3, 1000])
def test_a_sample_of_a_long_text_is_evenly_spread_passages(monkeypatch, context):
    monkeypatch.setattr(module, "SAMPLE", (800, 160))
    text = Text(np.arange(50_000), np.arange(20_000), "long", "hash")
    small = sample(text, context)
    for part, whole, size in ((small.train, text.train, 800), (small.held_out, text.held_out, 160)):
        length = max(size // module.PASSAGES, context + 1)
        assert len(part) == length * module.PASSAGES
        starts, within = np.split(part.reshape(module.PASSAGES, length), [1], axis=1)
        assert np.array_equal(within, starts + np.arange(1, length))
        assert starts[0] == 0
        assert part[-1] == whole[-1]
        assert np.ptp(np.diff(starts[:, 0])) <= 1
    assert small[2:] == text[2:]


def test_copied_passages_are_found():
    rng = np.random.default_rng(0)
    source, text = rng.integers(0, 256, 1000).astype(np.uint8), rng.integers(0, 256, 500).astype(np.uint8)
    text[100:200] = source[300:400]  # long enough
    text[300:363] = source[10:73]  # one byte short of 64
    text[400:464] = source[936:]  # exactly 64, at the end
    text[220:284] = source[:64]  # ... and at the beginning
    expected = np.zeros(500, bool)
    expected[100:200] = expected[400:464] = expected[220:284] = True
    np.testing.assert_array_equal(copied(text, source), expected)


@pytest.mark.parametrize("sizes", [(0, 100), (100, 0), (63, 100), (100, 63)])
def test_short_texts_have_no_copies(sizes):
    text, source = (np.full(size, 65, np.uint8) for size in sizes)
    assert np.array_equal(copied(text, source), np.zeros(sizes[0], bool))


def test_a_third_of_the_held_out_documentation_is_copied(docs):
    """The default text leaks, and says so: a topic quotes another."""
    assert 0.2 < copied(docs.held_out, docs.train).mean() < 0.6


def test_text_to_bytes_and_back():
    text = "naïve Σ 🙂"
    assert decode(encode(text)) == text
    assert encode(text).dtype == np.int64
    assert decode(encode("é")[:1]) == "\N{REPLACEMENT CHARACTER}"
    assert encode("a\udcff").tolist() == [97, 255]  # as Python has what a terminal gave it that is no UTF-8


def test_what_is_decoded_may_be_a_list_of_any_whole_numbers():
    """As when a model goes on with a text: NumPy's numbers from the text, Python's from the model."""
    assert module.decode([*module.encode("This "), 105, 115]) == "This is"
    assert module.decode([]) == module.decode(np.zeros(0)) == ""


@pytest.mark.parametrize("tokens", [[65, 256], np.array([65, 256]), np.array([-1])], ids=["list", "array", "negative"])
def test_what_is_no_byte_is_not_decoded(tokens):
    """An array of larger numbers would become other letters, as they are cut to eight bits."""
    with pytest.raises(ValueError, match="is not within 0 … 255"):
        module.decode(tokens)


@pytest.mark.parametrize("tokens", [[65.7], np.array([np.nan]), np.array([65j])], ids=["list", "NaN", "complex"])
def test_what_is_no_whole_number_is_not_decoded(tokens):
    with pytest.raises(TypeError, match="should be whole numbers"):
        module.decode(tokens)
