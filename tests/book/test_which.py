"""`minitransformer which`: what it asks, what it prints, and what it refuses."""

import re

import numpy as np
import pytest

from minitransformer import cli
from minitransformer.attention.registry import ATTENTIONS
from minitransformer.attention.softmax import softmax_attention
from minitransformer.backend import available
from minitransformer.book import which
from minitransformer.book.which import answer, length
from minitransformer.experiments import which_cost
from minitransformer.experiments.table import NOT_YET, Row, can, table


@pytest.mark.parametrize(("text", "n"), [("16k", 16384), ("1K", 1024), ("65536", 65536), (" 5000 ", 5000)])
def test_lengths_are_read_as_people_write_them(text, n):
    assert length(text) == n


@pytest.mark.parametrize("text", ["", "k", "16m", "1.5k", "-4k", "1e4", "many", "0", "1023", "128k", "9" * 30])
def test_other_lengths_are_refused_in_words(text, capsys):
    with pytest.raises(ValueError, match=r"^n: .*tokens"):
        length(text)
    assert cli.main(["which", f"--n={text}"]) == 1
    assert capsys.readouterr().err.startswith("minitransformer: --n: ")


def test_k_and_m_are_powers_of_1024():
    for text, n in (("0k", 0), ("65k", 66560), ("1m", 1048576), ("2M", 2097152)):
        with pytest.raises(ValueError, match=rf"^n: {n} is outside what was measured"):
            length(text)


def names_in(lines):
    """The kinds that have a line of their own."""
    return [line.split()[0] for line in lines if line.split() and line.split()[0] in ATTENTIONS]


@pytest.mark.parametrize("text", ["1M", "1000000000", "0"])
def test_a_number_is_called_one_even_if_it_was_not_measured(text):
    with pytest.raises(ValueError, match=r"^n: \d+ is outside what was measured"):
        length(text)


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"causal": True, "decode": True, "backward": True}, {"both_sides": True}]
)
@pytest.mark.parametrize("n", [1024, 16384, 65536])
def test_the_lines_are_those_of_the_rows_that_fit_and_not_too_wide(n, options, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = list(answer(n, measure=False, **options))
    assert max(len(line) for line in lines if line[:8].strip() not in which.COLUMN) <= 80
    what = 1 if options.get("backward") else 0
    fitting = table().fitting(n, what, **{name: options[name] for name in options if name != "backward"})
    assert sorted(names_in(lines)) == sorted(row.name for row in fitting)
    measured = [line for line in lines if names_in([line]) and NOT_YET not in line]
    shown = [float(line[23:32]) for line in measured]
    assert len(shown) == sum(row.at(n, what) is not None for row in fitting)
    assert shown == sorted(shown)
    ratios = {row.name: table().ratio(row, n, what) for row in fitting}
    assert shown == pytest.approx([ratios[name] for name in names_in(measured)], rel=0.06), "of two digits"
    head = next(line for line in lines if "of dense " in line and "MiB" in line)
    explained = [line[:8].strip() for line in lines if len(line) > 10 and line[8:10] == "  "]
    assert head.split() == " ".join(name for name in explained if name in which.COLUMN).split()
    assert "is noise." in " ".join(line.strip() for line in lines)


def test_what_was_learned_is_with_the_better_positions_and_the_noise_is_of_the_same_table(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    chosen, lines = table().with_better_positions(), list(answer(1024, measure=False))
    for name in ("softmax", "linear", "lightweight-convolution", "linformer"):
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        means = [chosen.rows[name].mean(task) for task in chosen.tasks]
        assert line.split()[-len(means) :] == ["—" if mean is None else f"{mean:.2f}" for mean in means]
    said = " ".join(line.strip() for line in lines)
    assert "or RoPE or none where that was tried and is better for the kind and the task" in said
    assert all(f"{chosen.noise(task):.2f} for {task}" in said for task in chosen.tasks)


def test_what_is_too_slow_or_too_large_is_named(capsys):
    assert cli.main(["which", "--n", "64k", "--no-measure"]) == 0
    printed = capsys.readouterr().out
    rows = printed.splitlines()
    assert "gmlp" not in names_in(rows)
    assert "gmlp" in " ".join(line for line in rows if "more than" in line.lower() or line.startswith("  "))


def test_nobody_is_left_out_who_could_not_do_it_anyway():
    lines = " ".join(line.strip() for line in answer(65536, both_sides=True, measure=False))
    named = ", ".join(re.findall(r"Left out, .*?: ([-a-z0-9, ]+)\.", lines)).split(", ")
    assert "latent" in named
    assert [name for name in named if not can(table().rows[name], both_sides=True)] == []


def test_what_was_asked_stands_first():
    for asked, said in (({"causal": True}, "causal"), ({"decode": True}, "causal, writing from a state")):
        assert next(answer(4096, measure=False, **asked)).startswith(f"4,096 tokens, {said}, forwards: ")


def test_a_kind_that_decodes_says_what_it_keeps(capsys):
    assert cli.main(["which", "--n=16k", "--causal", "--decode", "--no-measure"]) == 0
    printed = capsys.readouterr().out
    assert "Keeps keys and values: " in printed
    assert not any(line.startswith("Keeps ") for line in answer(16384, causal=True, measure=False))
    assert "linformer" not in printed


def test_who_has_to_see_both_sides_is_told_no_kind_that_looks_back_only(capsys):
    assert cli.main(["which", "--n=4k", "--both-sides", "--no-measure"]) == 0
    named = names_in(capsys.readouterr().out.splitlines())
    assert {"linformer", "softmax", "window"} <= set(named)
    assert not {"delta", "gla", "sinks", "nsa"} & set(named)
    assert cli.main(["which", "--n=4k", "--both-sides", "--causal"]) == 1
    assert "both sides" in capsys.readouterr().err


def test_a_kind_without_rows_in_the_record_says_so(monkeypatch):
    monkeypatch.setitem(ATTENTIONS, "mine", softmax_attention)
    (line,) = [line for line in answer(4096, measure=False) if line.startswith("mine")]
    assert NOT_YET in line


def test_times_are_written_in_what_suits_them():
    assert [which._time(seconds) for seconds in (12.34, 1.0, 0.0567, 0.0001234)] == [
        "12.3 s",
        "1.0 s",
        "56.7 ms",
        "0.123 ms",
    ]


class Ticks:
    """A clock by which nothing takes time but what is said to."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.mark.skipif("numba" not in available(), reason="it measures compiled loops")
def test_what_would_not_fit_into_the_minute_is_not_measured(monkeypatch):
    ticks = Ticks()
    monkeypatch.setattr(which, "time", ticks)
    clock = which.Clock(1024, 0)
    dense = table().rows["softmax"]
    assert clock.seconds(dense) > 0
    ticks.now = which.MINUTE
    assert clock.seconds(dense) is None


@pytest.mark.skipif("numba" not in available(), reason="it measures compiled loops")
@pytest.mark.parametrize("name", ["softmax", "fnet"])
def test_a_kind_that_is_not_on_record_is_measured_all_the_same(name):
    """Causal, if it can be."""
    clock = which.Clock(1024, 1)
    seconds = clock.seconds(Row(name, table().rows[name].part))
    assert np.isfinite(seconds)
    assert seconds > 0


@pytest.mark.parametrize(("minute", "seconds"), [(63.0, None), (65.0, 2.5)])
def test_the_time_of_a_kind_that_is_not_on_record_is_guessed_by_the_square(minute, seconds, monkeypatch):
    """2 s for a text of a quarter, so 32 for the whole, forwards and again in turns with dense attention: 64 s in all."""
    spent = iter([0.75, 0.5, 0.75, 9.0, 2.0])  # dense attention three times, and the kind twice: the first compiles
    monkeypatch.setattr(which, "time", Ticks())
    monkeypatch.setattr(which_cost, "layer", lambda *_: lambda: lambda: None)
    monkeypatch.setattr(which_cost, "spent", lambda _: (None, next(spent)))
    monkeypatch.setattr(which_cost, "in_rounds", lambda *_: [(1.5, 2.5)])
    clock = which.Clock(4 * which_cost.LENGTHS[0], 1, minute)
    assert clock.seconds(Row("fnet", table().rows["fnet"].part)) == seconds
