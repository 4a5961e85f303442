"""The table of all attentions: what its rows are made of, and what the records show, with margins."""

import re
from dataclasses import replace

import numpy as np
import pytest

from minitransformer.attention.registry import ATTENTIONS
from minitransformer.attention.softmax import softmax_attention
from minitransformer.backend import available
from minitransformer.checker import check_pullback
from minitransformer.data.listops import FILL, listops
from minitransformer.experiments import find, load, which, which_cost, which_rope, which_without
from minitransformer.experiments.record import Record
from minitransformer.experiments.table import BOTH, FORWARDS, Row, Table, can, table
from minitransformer.experiments.which import BAG, KEYS, PAIRS, TASKS, VALUES, Batch, Trial
from minitransformer.functional import cross_entropy
from minitransformer.pullback import tree_map


@pytest.fixture(scope="module")
def found():
    return table()


@pytest.fixture(scope="module", params=["zen-4", "zen-4-avx2", "zen-5", "emerald-rapids"])
def measured(request):
    """The table with the times of one make of processor of the book; a reader's own may show what it likes."""
    return table(request.param)


# -------------------------------------------------------------------------------------------- the trials


def test_every_registered_attention_has_its_trials():
    names = {(trial.name, trial.task) for trial in which.trials()}
    assert {name for name, task in names if task == "recall"} == {*ATTENTIONS, BAG}
    assert ("linformer", "text") not in names
    assert {trial.attention for trial in which_cost.trials()} == set(ATTENTIONS)
    assert len([trial for trial in which_cost.trials() if not trial.causal and trial.attention == "softmax"]) == 1


@pytest.mark.parametrize("name", TASKS)
def test_all_models_of_a_task_learn_as_many_numbers(name):
    """... to within the width of one hidden unit of the feed-forward networks."""
    task = TASKS[name]
    sizes = {
        trial.attention: which.learned(which.model_of(trial.attention, task))
        for trial in which.trials()
        if trial.task == name and trial.seed == 0
    }
    unit = which.DEPTH * (2 * which.WIDTH + 1)
    assert all(abs(size - sizes["softmax"]) <= unit for size in sizes.values()), sizes


def test_other_positions_are_tried_with_the_models_of_whatever_has_queries_and_keys():
    """As many numbers are learned, and nothing but the positions is another."""
    trials = which_rope.trials()
    names = {trial.name for trial in trials}
    assert trials == [trial for trial in which.trials() if trial.name in names]  # in every task, with every seed
    assert not names & {BAG, "fnet", "gmlp", "gat", "gcn", "latent", "pooled", "lightweight-convolution"}
    assert {"softmax", "window", "linear", "delta", "synthesizer"} < names
    for name in ("softmax", "gla", "linformer:k=8"):
        before, after = (which.model_of(name, TASKS["digits"], place) for place in ("sinusoidal", "rope"))
        assert which.learned(before) == which.learned(after)
        assert (before.positions, after.positions) == ("sinusoidal", "rope")
        assert (before.hidden, before.causal) == (after.hidden, after.causal)


def test_a_trial_with_other_positions_trains_a_model_that_turns_its_queries_and_keys(monkeypatch):
    monkeypatch.setattr(which, "trained", lambda model, trial: {"positions": model.positions, "of": trial})
    trial = Trial("window:radius=4", "text", 1, 500)
    assert which_rope.run(trial) == {"positions": "rope", "of": trial}
    assert which.run(trial) == {"positions": "sinusoidal", "of": trial}


def test_what_tells_earlier_from_later_itself_is_tried_without_positions(monkeypatch):
    """One causal layer without positions: if two tokens change places, the last row of these is another, and not of others."""
    trials = which_without.trials()
    assert set(trials) < set(which.trials())
    names = {trial.name for trial in trials}
    assert len(trials) == 12 * len(names) == 108
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, TASKS["recall"].vocabulary, (1, 64))
    swapped = tokens.copy()
    swapped[:, [60, 61]] = tokens[:, [61, 60]]
    for name in (*names, "softmax", "linear", "taylor"):
        model = replace(which.model_of(name, TASKS["recall"], "none"), depth=1)
        params = model.init(np.random.default_rng(1), np.float64)
        if name == "gmlp":  # at first it does nothing but let its half pass
            params = tree_map(lambda p: p + rng.normal(0, 0.1, p.shape), params)
        rows = [model(params, each)[0][:, -1] for each in (tokens, swapped)]
        assert (np.abs(rows[0] - rows[1]).max() > 1e-4) == (name in names), name
    monkeypatch.setattr(which, "trained", lambda model, trial: {"positions": model.positions, "of": trial})
    assert which_without.run(trials[-1]) == {"positions": "none", "of": trials[-1]}


def test_a_question_of_recall_has_one_answer_and_it_stands_there():
    tokens, targets = TASKS["recall"].batch(50, np.random.default_rng(0))
    for row, values in zip(tokens, targets, strict=True):
        pairs = dict(divmod(int(token), VALUES) for token in row[:-PAIRS] if token < KEYS * VALUES)
        assert len(pairs) == PAIRS
        assert [pairs[int(token) - KEYS * VALUES] for token in row[-PAIRS:]] == values.tolist()
    assert set(targets.flat) == set(range(VALUES))
    assert set(tokens[:, -PAIRS:].flat) == set(range(KEYS * VALUES, KEYS * VALUES + KEYS))


def test_answers_are_means_of_all_tokens_or_the_last_ones():
    rng, task = np.random.default_rng(0), TASKS["digits"]
    logits = rng.standard_normal((3, 5, 4))
    for targets in (np.array([0, 3, 1]), np.array([[0, 1], [2, 3], [1, 1]])):

        def loss(logits, targets=targets):
            return task.loss(lambda *_, rng: (logits, lambda dlogits: dlogits), None, Batch(None, targets))

        check_pullback(loss, logits)
        assert loss(logits)[0] == cross_entropy(task.answers(logits, targets), targets)[0]


def test_each_held_out_answer_counts_once():
    """The 360 pictures are read 50 at a time: whoever knows the last ten alone has ten of them right."""
    task = TASKS["digits"]
    _, labels = task.held_out()
    said = iter(np.eye(10)[(labels + (np.arange(360) < 350)) % 10])
    share = task.judge(lambda _, tokens: (np.stack([next(said) for _ in tokens])[:, None], None), None)
    assert share == 10 / 360


def test_the_bag_of_tokens_sees_no_order():
    """In a task of classes: any order of the tokens gives the same answer, and its tables stay as they are."""
    model = which.model_of(BAG, TASKS["listops"])
    assert len(model.untrained) == which.DEPTH
    params = which.even(model.init(np.random.default_rng(0)))
    tokens = listops(4, 20, np.random.default_rng(0)).tokens
    shuffled = np.random.default_rng(1).permuted(tokens, axis=1)
    assert (tokens != FILL).any()
    np.testing.assert_allclose(model(params, tokens)[0].mean(1), model(params, shuffled)[0].mean(1), atol=1e-5)


def test_a_training_that_diverges_is_kept_as_such(monkeypatch):
    trial = Trial("softmax", "digits", 0, 2)

    def diverges(*_, **__):
        raise which.TrainingDiverged(1, "logits")

    monkeypatch.setattr(which, "train", diverges)
    assert which.run(trial)["diverged"] == 1
    assert which.run(trial)["score"] == TASKS["digits"].chance


# -------------------------------------------------------------------------------------------- the rows


def row_of(name, times, *, scores=None, part="softmax"):
    """A row with these times of the yardstick, the same forwards and with the way back."""
    cost = {n: which_cost.Cost([t, t], [t, t], [1.0, 1.0]) for n, t in times.items()}
    return Row(name, which.attention_of(part, which.EXAMPLE), cost, "", scores or {})


def made_up(**rows):
    dense = row_of("softmax", {1024: 1.0, 4096: 16.0, 16384: 256.0}, scores={"recall": (0.9, 0.9, 0.9)})
    bag = Row(BAG, dense.part, scores={"recall": (0.1, 0.1, 0.1)})
    return Table({"softmax": dense, **rows}, dense, bag, "a machine")


def test_times_between_lengths_lie_on_a_straight_line_in_logarithms():
    dense = made_up().rows["softmax"]
    assert dense.at(2048, BOTH) == pytest.approx(4.0)
    assert dense.at(512, BOTH) is None
    assert dense.at(65536, BOTH) is None
    assert dense.slope(BOTH) == pytest.approx(2.0)


def test_where_a_kind_begins_to_pay():
    linear = row_of("linear", {1024: 2.0, 4096: 8.0, 16384: 32.0}, part="linear")
    found = made_up(
        linear=linear, slow=row_of("slow", {1024: 0.5, 4096: 20.0}), fast=row_of("fast", {1024: 0.5, 4096: 2})
    )
    assert found.pays_from(linear, BOTH) == pytest.approx(2048)  # 2 n against n²
    assert found.pays_from(found.rows["slow"], BOTH) is None  # once faster, and slower in the end
    assert found.pays_from(found.rows["fast"], BOTH) == 1024
    assert found.ratio(linear, 16384, BOTH) == pytest.approx(1 / 8)


def test_shares_run_from_the_bag_to_the_best_and_the_front_only_climbs():
    rows = {
        name: row_of(name, {1024: time, 4096: time}, scores={"recall": (score,) * 3})
        for name, time, score in (("best", 3.0, 0.9), ("quick", 0.5, 0.5), ("poor", 0.7, 0.3), ("bag like", 0.1, 0.1))
    }
    found = made_up(**rows)
    assert found.share(rows["best"], "recall") == pytest.approx(1)
    assert found.quality(rows["quick"]) == pytest.approx(0.5)
    front = found.front(list(rows.values()), 1024, BOTH)
    assert [row.name for row in front] == ["bag like", "quick", "best"]


def test_a_kind_gets_the_better_positions_in_each_task_and_what_has_one_try_keeps_it(found):
    turned, bare, chosen = found.with_rope(), found.without_positions(), found.with_better_positions()
    for name, row in found.rows.items():
        tried = row, turned.rows[name], bare.rows[name]
        for task in row.scores:
            assert chosen.rows[name].mean(task) == (min if task == "text" else max)(of.mean(task) for of in tried)
            assert chosen.rows[name].scores[task] in [of.scores[task] for of in tried]
        assert {tuple(of.rows[name].cost) for of in (turned, bare, chosen)} == {tuple(row.cost)}
    assert turned.rows["gmlp"] == found.rows["gmlp"] != bare.rows["gmlp"]
    for name in ("latent", "gat"):
        assert turned.rows[name] == bare.rows[name] == chosen.rows[name] == found.rows[name]
    (seeds,) = {
        tuple(
            result["score"] for trial, result in load("which_rope") if (trial.name, trial.task) == ("softmax", "text")
        )
    }
    assert turned.rows["softmax"].scores["text"] == seeds


def test_what_was_run_with_sinusoids_alone_keeps_its_scores(monkeypatch, found):
    monkeypatch.setitem(found.rows, "mine", row_of("mine", {}, scores={"recall": (0.2, 0.3, 0.4)}))
    assert found.with_better_positions().rows["mine"].scores == {"recall": (0.2, 0.3, 0.4)}


@pytest.mark.parametrize(
    ("asked", "inside", "outside"),
    [
        ({"causal": False, "decode": False}, {"softmax", "linformer", "reformer", "delta"}, set()),
        ({"causal": True, "decode": False}, {"softmax", "reformer", "delta"}, {"linformer", "fnet", "longformer"}),
        ({"causal": True, "decode": True}, {"softmax", "delta", "sinks"}, {"linformer", "reformer", "routing"}),
        ({"causal": False, "decode": True}, {"softmax", "delta"}, {"linformer", "reformer"}),
    ],
)
def test_which_rows_can_do_it(found, asked, inside, outside):
    names = {row.name for row in found if can(row, **asked)}
    assert inside <= names
    assert not outside & names
    fitting = [row.name for row in found.fitting(16384, **asked)]
    assert set(fitting) <= names


def test_what_was_registered_later_is_not_measured_yet(monkeypatch):
    before = table()
    monkeypatch.setitem(ATTENTIONS, "mine", softmax_attention)
    after = table()
    mine = after.rows["mine"]
    assert (mine.cost, mine.scores) == ({}, {})
    assert after.quality(mine) is None
    assert after.fitting(16384)[-1].name == "mine"  # nobody knows how fast it is
    assert set(after.rows) - set(before.rows) == {"mine"}
    assert load("which").trials == load("which").of(list(which.trials())).trials
    assert any(trial.attention == "mine" for trial in which.trials())  # to be run by `experiment which`


def test_rows_of_a_record_that_nobody_asks_for_any_more_are_left_out():
    record = Record([1, 2, 3], [{"a": 1}, {"a": 2}, {"a": 3}], [{}, {}, {}], [None, None, None])
    assert record.of([3, 1]).trials == [1, 3]
    assert record.of([4]).trials == []
    assert find("which").GROWS


def test_stages_are_those_of_attention(found):
    stages = {"none", "project", "scores", "pattern", "normalise", "aggregate", "all of them"}
    assert {stage for row in found for stage in row.part.stage.split(", ") if stage} <= stages
    assert found.rows["softmax"].part.stage == "none"
    assert found.rows["window"].part.stage == "pattern"


# -------------------------------------------------------------------------------------------- the clock


@pytest.mark.skipif("numba" not in available(), reason="it measures compiled loops")
def test_a_measurement_is_of_this_kind_at_this_length():
    cost = which_cost.measure("linear", 2048, True, rounds=1)
    assert all(both > forwards > 0 for forwards, both in (cost.seconds, cost.MB))
    assert cost.MB[1] > 3 * 2048 * which_cost.WIDTH * 4 / 2**20  # at the least Q, K and V


@pytest.mark.parametrize(("rounds", "done"), [(1, 1), (2, 2), (9, 2)])
def test_rounds_end_with_the_one_in_which_they_took_too_long(rounds, done, monkeypatch):
    of = []
    takes = {"work": (1.0, which_cost.LONG / 2), "yardstick": (2.0, which_cost.LONG)}
    monkeypatch.setattr(which_cost, "spent", lambda work: of.append(work) or takes[work])
    seconds, ratios = which_cost.in_rounds("work", "yardstick", rounds)
    assert of == [*["yardstick"] * 5, "work"] * done
    assert tuple(seconds) == takes["work"]
    assert list(ratios) == [0.5, 0.5]


def test_it_stops_before_it_takes_too_long_or_too_much_room():
    two = {"seconds": [[0.1, 0.2], [0.4, 0.8]], "MB": [[1, 1], [4, 4]]}
    assert which_cost.too_much({"seconds": [], "MB": []}) == ""
    assert which_cost.too_much(two) == ""
    assert which_cost.too_much(two | {"seconds": [[0.1, 0.2], [1.0, 2.0]]}) == "time"
    assert which_cost.too_much(two | {"MB": [[1, 100], [16, 1600]]}) == "memory"
    assert which_cost.too_much({"seconds": [[1.0, 2.0]], "MB": [[1, 1]]}) == "time"  # with the square, for all we know


# -------------------------------------------------------------------------------------------- the records


def test_times_are_of_passes_that_go_back_too(measured):
    rows = [row for row in measured if row.cost]
    assert len(rows) > 30
    for row in rows:
        assert all(cost.seconds[BOTH] > cost.seconds[FORWARDS] > 0 for cost in row.cost.values()), row.name
        assert list(row.cost) == list(which_cost.LENGTHS[: len(row.cost)])


def test_powers_of_n_are_those_that_the_formulas_state(measured):
    slope = {row.name: row.slope(BOTH) for row in measured if row.cost}
    assert 1.75 < slope["softmax"] < 2.25
    assert all(1.5 < slope[name] < 2.5 for name in ("differential", "latent", "smoother", "forgetting"))
    assert all(0.8 < slope[name] < 1.3 for name in ("window", "local", "linear", "delta", "retnet", "gla", "linformer"))
    assert all(1.25 < slope[name] < 1.8 for name in {"fixed", "routing"} & set(slope))


def test_whoever_promises_less_work_than_all_pairs_does_less_of_it_from_some_length_on(measured):
    """A formula without n² gains on dense attention, and has passed it by 64k, or nearly where it ends before that."""
    for row in measured:
        power, promised = row.slope(BOTH), row.part.cost
        if power is None or "n²" in promised or "edges" in promised:
            continue
        assert power < (1.45 if row.name not in which_cost.GROWING else 1.75), f"{row.name}: n to the power of {power}"
        ratios = [measured.ratio(row, n, BOTH) for n in row.cost]
        assert ratios[-1] < min(ratios[0] / 2, 0.8 if 65536 in row.cost else 1.2), row.name
    assert all(
        measured.ratio(measured.rows[name], 16384, BOTH) > 0.7 for name in ("differential", "latent", "smoother")
    )


def test_where_multiply_adds_are_slower_others_pay_no_later():
    """Zen 4 takes twice the time for those, of which dense attention consists, and less than that for all else."""
    zen_4, zen_5 = table("zen-4"), table("zen-5")
    names = [row.name for row in zen_5 if row.cost]
    assert not {"pooled", "reformer", "fixed"} & set(names)  # another processor; slower code
    begins = {name: [of.pays_from(of.rows[name], BOTH) or np.inf for of in (zen_4, zen_5)] for name in names}
    assert all(early <= 1.05 * late for early, late in begins.values()), begins
    assert 2 * begins["routing"][0] < begins["routing"][1]
    assert begins["indexer"][0] < 8192 < begins["indexer"][1]


def test_vectors_half_as_wide_change_little_on_a_core_that_takes_as_long_for_two_of_them_as_for_a_wide_one():
    wide, narrow = table("zen-4"), table("zen-4-avx2")
    dense = [of.rows["softmax"].cost for of in (wide, narrow)]
    assert all(1 < dense[1][n].seconds[BOTH] / dense[0][n].seconds[BOTH] < 1.2 for n in dense[0])
    begins = {row.name: [of.pays_from(of.rows[row.name], BOTH) for of in (wide, narrow)] for row in wide}
    assert all((one is None) == (other is None) for one, other in begins.values()), "whoever pays there pays here"
    assert all(1 / 1.4 < one / other < 1.4 for one, other in begins.values() if one)


def test_the_lengths_from_which_a_kind_pays_in_words(measured):
    words = {row.name: measured.paying(row) for row in measured}
    assert words["linear"] == "from 1,024 tokens on"
    assert words["gat"].startswith("never, up to ")
    one = r"(never, up to \d+,\d+|from \d+,\d+ tokens on)"
    assert re.fullmatch(rf"{one}|forwards {one}; with the backward pass {one}", words["routing"])
    assert measured.paying(Row("new", measured.rows["linear"].part)) == "not measured yet"


def test_a_window_remembers_as_much_as_dense_attention_in_a_training_step(measured):
    dense, window = (measured.rows[name].megabytes(16384, BOTH) for name in ("softmax", "window"))
    assert window == pytest.approx(dense, rel=0.1)


def test_recall_wants_a_comparison_with_everything_that_was_written(found):
    noise, bag = found.noise("recall"), found.bag.mean("recall")
    for name in ("softmax", "smoother", "linear", "taylor", "delta"):
        assert found.rows[name].mean("recall") > bag + 3 * noise
    for name in ("window", "local", "sinks", "lightweight-convolution", "fnet", "synthesizer"):
        assert found.rows[name].mean("recall") < bag + noise


def test_no_training_diverged_and_all_models_of_a_task_are_of_a_size():
    sizes = {}
    for trial, result in load("which"):
        assert result["diverged"] == 0
        sizes.setdefault(trial.task, []).append(result["parameters"])
    assert "recall" in sizes
    assert all(max(some) - min(some) <= 2 * which.DEPTH * (2 * which.WIDTH + 1) for some in sizes.values())


def test_a_text_is_learned_first_by_what_knows_its_neighbours(found):
    noise, dense = found.noise("text"), found.rows["softmax"].mean("text")
    assert dense < found.bag.mean("text") - noise
    for name in ("window", "lightweight-convolution", "dynamic-convolution", "gla", "delta", "gated-delta", "latent"):
        assert found.rows[name].mean("text") < dense - 2 * noise
    for name in ("linear", "taylor", "dpfp", "performer"):
        assert found.rows[name].mean("text") > dense + noise
    assert all(row.mean("text") is None for row in found if row.part.causal == "never")


def test_pictures_in_one_frame_are_learned_first_by_what_weighs_by_place(found):
    edge = found.rows["softmax"].mean("digits") + 2 * found.noise("digits")
    assert min(found.rows[name].mean("digits") for name in ("gmlp", "linformer", "synthesizer")) > edge


def test_in_recall_two_kinds_are_ahead_of_dense_attention_in_each_run_though_within_the_noise(found):
    dense, noise = found.rows["softmax"], found.noise("recall")
    for name in ("taylor", "delta"):
        assert min(found.rows[name].scores["recall"]) > max(dense.scores["recall"])
        assert found.rows[name].mean("recall") - dense.mean("recall") < noise


def test_the_delta_rule_leads_in_quality_by_less_than_one_and_a_half_times_the_noise_and_by_the_digits_alone(found):
    """The share of a task has the noise of the task, divided by the way from the bag to the best."""
    chosen = found.with_better_positions()
    best = {
        task: (min if task == "text" else max)(row.mean(task) for row in chosen if task in row.scores)
        for task in chosen.tasks
    }
    shares = [chosen.noise(task) / abs(best[task] - chosen.bag.mean(task)) for task in chosen.tasks]
    noise = np.linalg.norm(shares) / len(shares)
    assert chosen.noise_of_quality() == pytest.approx(noise)
    delta, gated, smoother, dense = (
        chosen.quality(chosen.rows[name]) for name in ("delta", "gated-delta", "smoother", "softmax")
    )
    assert [delta, gated, smoother, dense] == sorted((chosen.quality(row) for row in chosen), reverse=True)[:4]
    assert noise < delta - dense < 1.5 * noise
    assert delta - gated < noise < delta - smoother
    means = [chosen.rows[name].mean("digits") for name in ("gated-delta", "delta")]
    assert 0 < np.diff(means)[0] < chosen.noise("digits")
    assert smoother - dense < noise / 4
    rest = {task: scores for task, scores in chosen.bag.scores.items() if task != "digits"}
    without = replace(chosen, bag=replace(chosen.bag, scores=rest))
    assert abs(without.quality(without.rows["delta"]) - without.quality(without.rows["softmax"])) < noise / 3


def test_with_rope_dense_attention_is_level_in_the_text_with_what_was_ahead_of_it(found):
    turned, dense = found.with_rope(), found.rows["softmax"].mean("text")
    noise, now = turned.noise("text"), turned.rows["softmax"].mean("text")
    assert dense - now > 8 * noise
    ahead = {name for name, row in turned.rows.items() if (mean := row.mean("text")) and mean < now - noise}
    assert ahead == {"span"}
    for name in ("lightweight-convolution", "dynamic-convolution", "window", "gated-delta", "forgetting"):
        assert abs(turned.rows[name].mean("text") - now) < noise
    assert turned.rows["delta"].mean("text") > now + 2 * noise


def test_with_better_positions_nobody_is_ahead_in_listops_and_two_kinds_by_a_hair_in_recall(found):
    chosen = found.with_better_positions()
    dense = chosen.rows["softmax"]
    ahead = {
        task: {
            name: abs(row.mean(task) - dense.mean(task)) / chosen.noise(task)
            for name, row in chosen.rows.items()
            if task in row.scores and (row.mean(task) - dense.mean(task)) * sign > chosen.noise(task)
        }
        for task, sign in (("recall", 1), ("listops", 1), ("text", -1))
    }
    assert list(ahead["recall"]) == ["taylor", "delta"]
    assert max(ahead["recall"].values()) < 1.2
    assert ahead["listops"] == {}
    assert set(ahead["text"]) == {"span", "lightweight-convolution", "dynamic-convolution"}
    assert min(ahead["text"].values()) > 1.5


def test_without_positions_most_learn_more_of_the_text_and_less_of_the_digits(found):
    bare = found.without_positions()
    names = {trial.name for trial in which_without.trials()}
    assert {name for name, row in bare.rows.items() if row != found.rows[name]} == names
    gains = {task: [bare.rows[n].mean(task) - found.rows[n].mean(task) for n in names] for task in found.tasks}
    noise = {task: found.noise(task) for task in found.tasks}
    assert sum(gain < -noise["text"] for gain in gains["text"]) == 7
    assert max(gains["text"]) < 0
    assert sum(gain < -noise["digits"] for gain in gains["digits"]) == 5
    assert max(gains["digits"]) < noise["digits"]
    assert max(map(abs, gains["listops"])) < noise["listops"]
    assert min(gains["recall"]) > -noise["recall"]
    turned = found.with_rope()
    assert all(turned.rows[n].mean("text") < bare.rows[n].mean("text") for n in which_without.IN_TURN)
    assert {result["diverged"] for result in load("which_without").results} == {0}


def test_what_rope_costs_the_linear_transformer_in_recall_and_gives_in_listops_to_those_that_see_both_sides(found):
    turned = found.with_rope()
    before, after = (of.rows["linear"].mean("recall") for of in (found, turned))
    assert 0.2 < 1 - after / before < 0.3
    gain = {name: turned.rows[name].mean("listops") - row.mean("listops") for name, row in found.rows.items()}
    assert {found.rows[name].causal for name in gain if gain[name] > found.noise("listops")} <= {"yes", "never"}
    assert gain["softmax"] > 1.5 * found.noise("listops")


def test_with_rope_alone_dense_attention_does_not_know_where_in_a_picture_a_pixel_is(found):
    turned, bag = found.with_rope(), found.bag.mean("digits")
    assert turned.rows["softmax"].mean("digits") < bag + found.noise("digits") / 2
    assert found.rows["softmax"].mean("digits") - turned.rows["softmax"].mean("digits") < found.noise("digits")
    for name in ("linformer", "synthesizer", "compressed"):
        assert turned.rows[name].mean("digits") > bag + 4 * found.noise("digits")


def test_no_training_with_rope_diverged():
    assert {result["diverged"] for result in load("which_rope").results} == {0}
