"""The claims of chapter 03 about the record of the default run."""

from minitransformer.figures import training_text


def test_the_record_reaches_two_bits_and_stands_between_the_controls():
    record = training_text.data()
    assert record.final <= 2.0
    assert record.seconds <= 180
    assert record.ngrams[6] < record.final < record.ngrams[3]
    assert record.held_out[-1] < record.held_out[0]
    assert record.machine
