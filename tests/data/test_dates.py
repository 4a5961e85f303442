import calendar
import datetime

import numpy as np
import pytest

from minitransformer.data import dates
from minitransformer.data.dates import (
    BOS,
    CHARACTERS,
    EOS,
    FIRST,
    FORMATS,
    LAST,
    PAD,
    VOCABULARY,
    decode,
    encode,
    held_out_set,
    is_held_out,
    ordinal,
    sample,
    to_sources,
)

EVERY_DAY = [datetime.date.fromordinal(d) for d in range(FIRST.toordinal(), LAST.toordinal() + 1)]


def test_a_date_in_every_format():
    date = datetime.date(2021, 3, 3)
    assert [write(date) for write in FORMATS] == [
        "3 March 2021",
        "03 Mar 2021",
        "March 3, 2021",
        "Mar 3rd, 2021",
        "Wednesday, 3 March 2021",
        "Wed 3 Mar 2021",
        "Wednesday, March 3rd, 2021",
        "the 3rd of March 2021",
        "3 Mar '21",
        "MARCH 3 2021",
        "2021 Mar 3 (Wed)",
        "3/3/2021",
        "3.3.2021",
        "03.03.21",
        "3-MAR-2021",
    ]


def test_no_two_dates_are_written_alike():
    """So the task has a right answer: what is written determines the date, within a format and between formats."""
    meaning = {}
    for date in EVERY_DAY[::3]:
        for write in FORMATS:
            assert meaning.setdefault(write(date), date) == date


def test_names_are_those_of_the_calendar():
    assert dates.MONTHS == tuple(calendar.month_name)
    assert dates.WEEKDAYS == tuple(calendar.day_name)


def test_ordinals():
    assert [ordinal(d) for d in (1, 2, 3, 4, 10, 11, 12, 13, 20, 21, 22, 23, 30, 31)] == (
        ["1st", "2nd", "3rd", "4th", "10th", "11th", "12th", "13th", "20th", "21st", "22nd", "23rd", "30th", "31st"]
    )


def test_text_to_tokens_and_back():
    assert len(set(CHARACTERS)) == len(CHARACTERS) == VOCABULARY - 3
    assert decode(encode(CHARACTERS)) == CHARACTERS
    assert min(encode(CHARACTERS)) == 3
    assert max(encode(CHARACTERS)) == VOCABULARY - 1
    assert decode([BOS, *encode("a"), PAD, *encode("b"), EOS, *encode("c")]) == "ab"


def test_every_date_can_be_encoded():
    for date in EVERY_DAY[::31]:
        for write in FORMATS:
            assert decode(encode(write(date))) == write(date)


def test_what_has_no_token_is_refused():
    with pytest.raises(ValueError, match="no token for 'ä'"):
        encode("März")
    for token in (-1, VOCABULARY):
        with pytest.raises(ValueError, match=f"tokens: {token} is outside the vocabulary 0 … {VOCABULARY - 1}"):
            decode([token])
    with pytest.raises(ValueError, match=r"shape \(1, 3\) should be that of one text"):
        decode(np.array([[*encode("abc")]]))


def test_a_sample_is_padded_and_says_its_lengths():
    batch = sample(50, np.random.default_rng(0))
    assert batch.source.shape == (50, batch.lengths.max())
    assert batch.target.shape == (50, 12)
    assert len(set(batch.lengths)) > 5
    for source, length, written in zip(batch.source, batch.lengths, batch.written, strict=True):
        assert (source[:length] != PAD).all()
        assert (source[length:] == PAD).all()
        assert len(written) == length
    assert (batch.target[:, 0] == BOS).all()
    assert (batch.target[:, -1] == EOS).all()


def test_the_target_is_the_date_that_was_written():
    batch = sample(300, np.random.default_rng(1))
    for written, iso in zip(batch.written, batch.iso, strict=True):
        date = datetime.date.fromisoformat(iso)
        assert written in {write(date) for write in FORMATS}


def test_a_sample_depends_on_the_generator_alone():
    first, again, other = (sample(20, np.random.default_rng(s)) for s in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert first.written != other.written


def test_which_days_there_are():
    """The records are of these: a century, of which every tenth day is held out."""
    assert (FIRST, LAST) == (datetime.date(1950, 1, 1), datetime.date(2049, 12, 31))
    first = next(day for day in EVERY_DAY if is_held_out(day))
    assert [day for day in EVERY_DAY if is_held_out(day)] == EVERY_DAY[EVERY_DAY.index(first) :: 10]
    assert first == datetime.date(1950, 1, 3)


def test_training_and_held_out_dates_are_disjoint():
    rng = np.random.default_rng(0)
    train, held_out = set(sample(3000, rng).iso), set(sample(3000, rng, held_out=True).iso)
    assert not train & held_out
    assert 0.09 < np.mean([is_held_out(date) for date in EVERY_DAY]) < 0.11
    left = [date for date in EVERY_DAY if is_held_out(date)]
    assert {date.weekday() for date in left} == set(range(7))
    assert {(date.month, date.day) for date in left} >= {(m, d) for m in range(1, 13) for d in range(1, 29)}


def test_the_held_out_set_is_the_same_every_time():
    assert held_out_set(10).written == held_out_set(10).written
    assert held_out_set(10).written == held_out_set(10).written[:10]
    assert len(held_out_set().written) == 1000
    assert all(is_held_out(datetime.date.fromisoformat(iso)) for iso in held_out_set(100).iso)


def test_all_formats_are_drawn():
    shapes = {
        "".join("9" if c.isdigit() else c for c in w if not c.islower())
        for w in sample(2000, np.random.default_rng(0)).written
    }
    assert len(shapes) > len(FORMATS)


def test_nothing_can_be_sampled_and_written():
    assert sample(0, np.random.default_rng(0)).source.shape == (0, 0)
    sources, lengths = to_sources(["", "3/3/2021"])
    assert np.array_equal(lengths, [0, 8])
    assert (sources[0] == PAD).all()


def test_every_day_can_be_drawn(monkeypatch):
    monkeypatch.setattr(dates, "LAST", dates.FIRST.replace(day=12))
    drawn = [dates.sample(n, np.random.default_rng(0), held_out=part).iso for n, part in ((400, False), (100, True))]
    assert {*drawn[0], *drawn[1]} == {f"1950-01-{day:02}" for day in range(1, 13)}
