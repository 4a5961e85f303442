"""The digits are those of their source, and nobody can change them for the next who asks."""

import hashlib

import numpy as np
import pytest

from minitransformer.data.digits import digits


def test_they_are_the_digits_of_the_source():
    """How many there are of each, as UCI's own description says (optdigits.names, test set)."""
    train, held_out = digits()
    images, labels = (np.concatenate(both) for both in zip(train, held_out, strict=True))
    assert images.shape == (1797, 8, 8)
    assert images.dtype == np.float32
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.array_equal(np.unique(images), np.arange(17, dtype=np.float32) / 16)
    counts = (images * 16).astype(np.uint8).tobytes() + labels.astype(np.uint8).tobytes()
    assert hashlib.sha256(counts).hexdigest() == "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"


def test_a_fifth_is_held_out_and_nothing_can_be_written():
    train, held_out = digits()
    assert (len(train.labels), len(held_out.labels)) == (1437, 360)
    with pytest.raises(ValueError, match="read-only"):
        train.images[0, 0, 0] = 2


def test_a_nearest_neighbour_reads_them():
    """Each label stands beside its own image: the nearest image to learn from shows the same digit, nearly always."""
    train, held_out = digits()
    X, Y = (part.images.reshape(-1, 64) for part in (train, held_out))
    nearest = ((Y[:, None] - X) ** 2).sum(-1).argmin(1)
    assert (train.labels[nearest] == held_out.labels).mean() > 0.95
