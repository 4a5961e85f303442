"""What the captions of chapters 11 and 12 claim of their records."""

import numpy as np
from matplotlib.colors import to_hex

from minitransformer import experiments
from minitransformer.experiments.many_pairs import ATTENTIONS, KEYS, PAIRS, VALUES
from minitransformer.experiments.parity import ATTENTIONS as COUNTING
from minitransformer.experiments.parity import PLACES
from minitransformer.experiments.short_convolution import MODELS, InTwoTokens
from minitransformer.experiments.thinking_longer import STEPS
from minitransformer.figures import many_pairs, memory_paths, reading_and_writing, recall, thinking_longer

MEMORIES = ("linear", "retnet", "gla", "delta", "gated-delta")


def test_which_memory_recalls_most_and_which_replaces_worst():
    """With sinusoids."""
    every, _, rewritten = (of["sinusoidal"] for of in many_pairs.data()[:3])
    right = {name: shares.mean(0) for name, shares in every.items()}
    for name in MEMORIES[:-1]:
        assert (right[name] < right["gated-delta"]).all(), name
        middle = every[name][:, 1:4], every["gated-delta"][:, 1:4]  # 8, 16 and 24 pairs
        assert (middle[0].max(0) < middle[1].min(0)).all(), name
    assert (right["softmax"] > right["gated-delta"] - 0.01).all()
    assert right["softmax"][-1] > right["gated-delta"][-1] + 0.01
    for name in (*MEMORIES, "softmax", "window:radius=8"):
        if name != "retnet":
            assert rewritten["retnet"][:, 0].max() < rewritten[name][:, 0].min(), name
        if name in MEMORIES and name != "retnet":
            worst, other = (rewritten[kind][:, :4] for kind in ("retnet", name))  # up to 24 pairs
            assert (worst.max(0) < other.min(0)).all(), name
            assert rewritten["retnet"][:, -1].mean() < rewritten[name][:, -1].mean(), name
    gained = right["delta"] - right["linear"]
    assert (np.abs(gained) < 0.05).all()
    assert (gained < 0.015).all(), "a correction alone gains next to nothing here"


def test_without_positions_what_only_adds_tosses_a_coin():
    _, once, rewritten = (of["none"] for of in many_pairs.data()[:3])
    for name in ("softmax", "linear"):
        np.testing.assert_allclose(rewritten[name].mean(0), 0.5, atol=0.02)
        assert once[name].min() > 0.93
    assert np.isclose(rewritten["window:radius=8"][:, 0].mean(), 0.5, atol=0.02), "with four pairs the window, too"
    for name in MEMORIES[1:]:
        known = rewritten[name].mean(0)
        assert known.min() > (0.58 if name == "retnet" else 0.87), name
        assert known[-1] > 0.86, name


def test_which_memory_is_best_is_a_matter_of_positions():
    most = {
        at: {name: shares[:, -1].mean() for name, shares in of.items()} for at, of in many_pairs.data().right.items()
    }
    for name in MEMORIES[1:]:
        assert most["none"][name] > most["sinusoidal"][name] + 0.02, name
    assert max(MEMORIES, key=most["none"].get) == "gated-delta"
    for name in ("gla", "retnet"):
        assert most["rope"][name] > most["rope"]["gated-delta"], name
    assert most["rope"]["linear"] < most["rope"]["delta"] - 0.1 < most["rope"]["gated-delta"] - 0.15


def test_the_controls_and_the_picture_of_pairs():
    found = many_pairs.data()
    assert all(shares.shape == (3, len(PAIRS)) for of in found.right.values() for shares in of.values())
    assert found.right["sinusoidal"]["softmax"].min() > 0.96
    assert found.once["sinusoidal"]["window:radius=8"][:, -1].max() < 2 / VALUES
    parameters = [result["parameters"] for _, result in experiments.load("many_pairs")]
    assert max(parameters) < 1.05 * min(parameters)
    drawn = many_pairs.draw(found)
    assert [len(ax.containers) for ax in drawn.axes] == [len(ATTENTIONS)] * 4
    assert [ax.get_title() for ax in drawn.axes][2:] == ["rewritten, with sinusoids", "rewritten, without positions"]


def test_some_trainings_think_longer_about_what_is_harder():
    found = thinking_longer.data()
    cheap, dear, blocks = found.steps[0.001], found.steps[0.01], found.steps[-1.0]
    longer = cheap[:, 8] - cheap[:, 1] > 1.5
    short = np.concatenate([cheap[~longer], dear])
    assert longer.any(), "a model can learn to think longer about what is harder"
    assert (short[:, 8] - short[:, 1] < 0.5).all()
    assert (np.diff(cheap[longer][:, 1:9]) > 0).all()
    assert short[:, :9].max() < 3.5
    assert dear[:, :9].max() < 3
    rights, halting = found.right, max(found.right[price][:, 5].max() for price in (0.001, 0.01))
    for control, worst in ((blocks, rights[-1.0]), (found.steps[0.0], rights[0.0])):
        assert (control[:, :9] == STEPS).all()
        assert np.nanmin(worst) > 0.99 > halting
    parameters = {trial.ponder: result["parameters"] for trial, result in experiments.load("thinking_longer")}
    assert 7.5 < parameters[-1.0] / parameters[0.0] < 8
    assert all(share[:, 8].min() == 1 for share in rights.values())
    assert longer.all() or rights[0.001][~longer][:, 5].mean() < rights[0.001][longer][:, 5].mean()
    steps, right = thinking_longer.draw(found).axes
    assert len(steps.lines) == len(right.lines) == 12
    assert len({text.get_color() for text in steps.texts}) == len(found.steps), (
        "each has its name, in a colour of its own"
    )


def test_reading_on_is_faster_the_more_so_the_longer_the_past():
    """... and less so than the count of rows has it, which is what a prediction sees, where that is long."""
    record = experiments.load("evaluation_reuse")
    seen = np.array([trial.sees for trial in record.trials])
    ratios = np.array([result["with memory"] / result["sliding"] for result in record.results])
    assert (ratios[1:] > 1.2 * ratios[:-1]).all()
    assert ratios[0] > 20
    assert (ratios < seen)[1:].all()
    assert ratios[0] < 1.5 * seen[0]


def test_a_memory_writes_as_fast_behind_a_long_text_and_reads_in_bounded_room():
    found = reading_and_writing.data()
    assert found.lengths[0] == 64
    assert found.lengths[-1] == 65536
    for name in ("linear", "gated-delta"):
        assert found.writing[name].max() < 1.7 * found.writing[name].min(), "flat, over a thousandfold length"
        assert found.reading[name][-1] < 1.5 * 4 * found.reading[name][-2], "a straight line"
        assert found.MB[name][-1] < 1.02 * found.MB[name][-2]
        assert len(set(found.state[name])) == 1
        assert found.writing["softmax"][-1] > 5 * found.writing[name].max()
        assert found.reading["softmax"][-1] > 3 * found.reading[name][-1]
    short = [[taken[name][0] for name in taken] for taken in (found.reading, found.writing)]
    assert next(iter(found.reading)) == "softmax"
    assert any(softmax < max(memories) for softmax, *memories in short), "it is not the slowest everywhere"
    assert found.writing["softmax"][0] < 1.5 * found.writing["linear"][0], "its keys and values are few"
    assert found.writing["softmax"][-1] > 10 * found.writing["softmax"][0]
    assert found.state["softmax"][-1] == 65536 * 2 * 128 * 4 * 2
    assert found.reading["softmax"][-1] > 1.6 * 4 * found.reading["softmax"][-2], "it bends upwards"
    assert (np.diff(found.MB["softmax"]) > 0).all()
    read, write = reading_and_writing.draw(found).axes
    assert len(read.lines) == len(write.lines) == 3


def test_a_rule_has_one_colour_in_all_figures_of_the_chapter():
    lines = (
        reading_and_writing.draw(reading_and_writing.data()).axes[0].lines + recall.draw(recall.data()).axes[0].lines
    )
    pairs, paths = many_pairs.draw(many_pairs.data()), memory_paths.draw(memory_paths.data())
    named = [(line.get_label(), line.get_color()) for line in lines]
    named += [(bars.get_label(), bars[0].get_color()) for ax in pairs.axes for bars in ax.containers]
    named += [(text.get_text(), text.get_color()) for ax in paths.axes for text in ax.texts]
    same, colours = {"sum": "linear", "decay 0.8": "retnet"}, {}
    for name, color in named:
        colours.setdefault(same.get(name, name), set()).add(to_hex(color))
    rules = [colours[name] for name in ("softmax", *MEMORIES)]
    assert [len(of_one) for of_one in rules] == [1] * 6
    assert len(set.union(*rules)) == 6


def test_two_taps_tie_a_value_to_the_key_beside_it():
    """Without them, or with one, a block has right what the commonest value of the text has; so have two of the memory."""
    rng = np.random.default_rng(0)
    record = list(experiments.load("short_convolution"))
    for pairs in (4, 8, 16):
        right = {name: [found[f"{pairs} pairs"] for trial, found in record if trial.model == name] for name in MODELS}
        often = np.mean([np.bincount(text).max() for text in rng.integers(0, VALUES, (2000, pairs))]) / pairs
        for name in ("gated-delta", "one tap", "two blocks", "softmax"):
            assert max(right[name]) < often + 0.02, name
        assert min(*right["two taps"], *right["four taps"]) > 0.95
        assert abs(np.mean(right["two taps"]) - np.mean(right["four taps"])) < 0.01
        assert max(right["softmax, two blocks"]) > 0.985
    parameters = {trial.model: found["parameters"] for trial, found in record}
    assert parameters["two taps"] == parameters["gated-delta"] + 3 * 32 * 2


def test_the_task_in_two_tokens():
    task = InTwoTokens(5)
    batch = task.of(4, 50, np.random.default_rng(0))
    assert batch.tokens.shape == (50, 12)
    assert task.longest == 15
    for row, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        value = {key: said - KEYS for key, said in zip(row[:8:2], row[1:8:2], strict=True)}
        assert sorted(row[8:]) == sorted(value)
        assert [value[key] for key in row[8:]] == targets
        assert max(row[:8:2]) < KEYS <= min(row[1:8:2])
        assert max(row) < task.vocabulary


def test_a_reach_of_two_counts_and_nothing_else_does():
    record, within = experiments.load("parity"), {}
    for trial, found in record:
        trained, longer, longest = (found[f"bits {first} to {last}"] for first, last in PLACES)
        if trial.attention.endswith("reach=2"):
            assert trained > 0.99, trial
            assert longer > 0.98, trial
            assert longest > 0.6, trial
        else:
            assert trained < 0.8, trial
            assert 0.48 < longer < 0.52, trial  # of 8,000 guesses
            assert 0.49 < longest < 0.51, trial  # of 38,400
        within.setdefault(trial.attention, []).append(trained)
    for name, shares in within.items():
        assert (np.mean(shares) > 0.58) == ("delta" in name), name
    far = [found["bits 65 to 256"] for trial, found in record if trial.attention.endswith("reach=2")]
    assert len(far) == 6
    assert max(far) > 0.99
    assert len(list(record)) == 3 * len(COUNTING)
