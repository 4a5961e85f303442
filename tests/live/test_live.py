"""Figures that move: their JavaScript computes what the book computes, and what they claim holds."""

import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from minitransformer import live
from minitransformer.attention import Window
from minitransformer.experiments.table import table
from minitransformer.figures import bert_heads
from minitransformer.models.bert_files import BertMissing

MASKS = live.modules()["painted_mask"].data()["masks"]
LINKS = live.modules()["drawn_graph"].data()["links"]
BIASES = live.modules()["drawn_bias"].data()["biases"]
SETTINGS = {
    "temperature": [(64, False, 1.0), (4, True, 0.5), (256, True, 4.0), (256, False, 0.125)],
    "clocks": [(12, 7, 10_000.0), (0, 64, 10.0), (64, 63, 31.622776601683793)],
    "painted_mask": [
        (MASKS["window"], 8, 2),
        (MASKS["strided"], 15, 1),
        (MASKS["window, one global"], 3, 2),
        (MASKS["nothing"], 0, 8),
    ],
    "delta_state": [(5, 1.0), (12, 0.3), (12, 1.9), (0, 1.0)],
    "heads": [(2, 9), (0, 1), (5, 15), (3, 0)],
    "drawn_graph": [
        (LINKS, 0, 3, False),
        (LINKS, 3, 1, True),
        ([*LINKS, [0, 9]], 5, 32, True),
        ([], 7, 4, False),
        (LINKS[:5], 2, 0, True),
    ],
    "gate_plane": [
        ("sigmoid", 0.5, 0.5, 1.0),
        ("relu", -0.25, 0.1, 0.5),
        ("gelu", -1.3, 3.9, 4.0),
        ("gelu", 4.0, -1.0, 4.0),
        ("silu", 1.0, -2.0, 2.0),
        ("none", 0.2, 0.25, 0.25),
    ],
    "time_and_quality": [
        (16384, False, ["recall", "text", "digits", "listops"]),
        (1024, True, ["text"]),
        (65536, True, ["recall", "digits"]),
        (2896, False, ["text", "listops"]),
        (46341, False, ["digits"]),
    ],
    "gates": [
        ([0.9, 0.5, 0.8, 0.9, 0.7, 0.3, 0.9, 0.8], 8),
        ([0.9, 0.5, 0.8], 3),
        ([0.0, 1.0, 0.0, 0.25], 4),
        ([0.8] * 8, 1),
    ],
    "hands": [
        ([True] * 8, 70, -1),
        ([True] * 3 + [False] * 5, 70, -1),
        ([True, False] * 4, 8, 8),
        ([False] * 7 + [True], 71, -8),
        ([False] * 8, 20, 0),
    ],
    "drawn_bias": [
        (BIASES["one back"], 0.0, 6),
        (BIASES["ALiBi, λ = ½"], 1.0, 0),
        (BIASES["KERPLE, logarithm"], 3.0, 9),
        (BIASES["nothing"], 0.0, 4),
    ],
    "fewer_columns": [
        ("at random", 1.0, 6),
        ("neighbours alike", 2.0, 8),
        ("the token before", 8.0, 12),
        ("at random", 0.125, 1),
        ("the token before", 4.0, 24),
    ],
    "buckets": [(8, 2, 40.0), (16, 8, 211.0), (4, 1, 355.0), (2, 3, 0.0)],
    "random_features": [
        ("positive", 64, 1.0),
        ("hyperbolic", 512, 0.3),
        ("trigonometric", 64, 1.0),
        ("trigonometric", 8, 0.5),
    ],
    "reach": [(8, 8, 3, 31), (8, 1, 3, 31), (5, 7, 4, 23), (4, 0, 2, 0)],
    "sources": [
        ("dot product", [0, 1, 2, 0, 5, 4, 5], [0, 1, 2, 3, 4, 5, 6]),
        ("dense", [0, 3, 2, 0, 1, 4, 5], [0, 4, 2, 3, 1, 5, 6]),
        ("random", [0, 3, 2, 0, 1, 4, 4], [0, 4, 2, 3, 1, 5, 6]),
        ("gated", [0, 1, 2, 0, 5, 4, 5], [0, 1, 2, 3, 4, 5, 6]),
    ],
    "descent": [(0.15, 0.1, 2.0, 60), (0.15, 0.1, 12.0, 60), (-1.2, 0.4, 5.0, 3), (0.7, -0.9, 32.0, 0)],
}
MODULES = live.modules()


def test_every_figure_is_tried_at_three_settings_or_more():
    assert set(SETTINGS) == set(MODULES)
    assert all(len(settings) >= 3 for settings in SETTINGS.values())


@pytest.mark.parametrize("name", MODULES)
def test_javascript_and_python_compute_the_same(name, tmp_path):
    if not shutil.which("node"):
        pytest.skip("there is no Node")
    data = MODULES[name].data()
    (tmp_path / "asked.json").write_text(json.dumps({"data": data, "settings": SETTINGS[name]}))
    file = Path(live.__file__).with_name(f"{name}.js")
    node = ["node", Path(__file__).with_name("compute.mjs"), file, tmp_path / "asked.json"]
    told = json.loads(subprocess.run(node, check=True, capture_output=True, text=True, timeout=600).stdout)
    for setting, theirs in zip(SETTINGS[name], told, strict=True):
        for key, ours in MODULES[name].compute(data, *setting).items():
            if ours is None:
                assert theirs[key] is None
            else:
                np.testing.assert_allclose(theirs[key], ours, rtol=0, atol=1e-9, err_msg=f"{key} at {setting}")


@pytest.mark.parametrize("name", MODULES)
def test_a_figure_is_small_and_asks_nobody(name):
    data = MODULES[name].data()
    page = live.html(name, data)
    assert page == live.html(name, MODULES[name].data())
    assert len(page.encode()) < 35_000
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|\bid=|fetch\(|import\(", page)
    assert page.count("</script>") == 2


@pytest.mark.parametrize("name", MODULES)
def test_its_picture_stays_where_scripts_do_not_run(name, tmp_path, monkeypatch):
    monkeypatch.setenv("MINITRANSFORMER_FIGURES", str(tmp_path))
    shown = live.show(name)
    assert shown.still.png.startswith(b"\x89PNG")
    assert len(shown.still.png) * 4 / 3 + len(shown.html.encode()) < 72_000
    assert repr(shown).startswith(MODULES[name].__doc__.splitlines()[0])


# ------------------------------------------------------------------------------------------------ what they claim


def test_an_unknown_figure_is_refused_with_one_that_is_near():
    with pytest.raises(ValueError, match="no figure that moves 'gate'; near it: gates; there are "):
        live.show("gate")


def test_divided_by_root_d_all_widths_see_several_keys():
    module, data = MODULES["temperature"], MODULES["temperature"].data()
    found = {(d, divide): module.compute(data, d, divide, 1.0) for d in module.WIDTHS for divide in (False, True)}
    assert found[256, False]["largest"] > 0.99
    assert found[64, False]["passes"] < 0.2
    assert all(3 < found[d, True]["seen"] < 12 for d in module.WIDTHS)
    seen = [module.compute(data, 64, True, t)["seen"] for t in (0.125, 0.5, 1.0, 2.0, 8.0)]
    assert (np.diff(seen) > 0).all()


def test_clocks_know_only_the_distance():
    module, data = MODULES["clocks"], MODULES["clocks"].data()
    for base in (10.0, 10_000.0):
        first, later = module.compute(data, 3, 9, base), module.compute(data, 53, 59, base)
        np.testing.assert_allclose(first["score"], later["score"], atol=1e-12)
        np.testing.assert_allclose(first["apart"], later["apart"], atol=1e-12)
        scores = [module.compute(data, 0, j, base)["score"] for j in range(65)]
        assert max(scores) == scores[0]


def test_one_global_token_makes_two_layers_enough():
    module, data = MODULES["painted_mask"], MODULES["painted_mask"].data()
    assert module.compute(data, MASKS["window"], 0, 1)["needed"] == module.N - 1
    assert module.compute(data, MASKS["window, one global"], 0, 1)["needed"] == 2
    assert module.compute(data, MASKS["causal window"], 0, 1)["needed"] is None
    assert module.compute(data, MASKS["window"], 8, 2)["reached"] == [6, 7, 8, 9, 10]
    assert Window(1).graph(module.N).edges == module.N - 1


def test_without_one_square_of_the_first_row_or_column_it_takes_three():
    """But not without the corner, and no other square is missed."""
    module, data = MODULES["painted_mask"], MODULES["painted_mask"].data()
    rows = MASKS["window, one global"]
    for i, j in np.ndindex(module.N, module.N):
        painted = [row[:j] + "0" + row[j + 1 :] if k == i else row for k, row in enumerate(rows)]
        needed = module.compute(data, painted, 0, 1)["needed"]
        assert needed == (3 if (i == 0) != (j == 0) else 2)


def test_the_delta_rule_reads_what_it_wrote_last():
    module, data = MODULES["delta_state"], MODULES["delta_state"].data()
    for written in range(1, module.PAIRS + 1):
        found = module.compute(data, written, 1.0)
        assert found["delta_wrong"][-1] < 1e-5  # keys have length one to six digits
        assert np.mean(found["delta_wrong"]) <= np.mean(found["sums_wrong"]) + 1e-12
    assert min(module.compute(data, module.PAIRS, 1.0)["delta_wrong"][:-1]) > 0.01


def test_a_warm_state_goes_to_the_middle_and_a_cold_one_to_a_pattern():
    module, data = MODULES["descent"], MODULES["descent"].data()
    K = np.array(data["patterns"])
    warm, cold = (module.compute(data, *data["start"], beta) for beta in (1.0, 8.0))
    assert np.hypot(warm["x"], warm["y"]) < 0.15
    assert max(warm["weights"]) < 0.3
    assert max(cold["weights"]) > 0.9
    assert np.hypot(*(K - [cold["x"], cold["y"]]).T).min() < 0.05
    for beta in (0.5, 2.0, 8.0):
        energies = [module.compute(data, -0.4, 0.9, beta, steps)["energy"] for steps in range(12)]
        assert (np.diff(energies) <= 1e-12).all()


def test_more_rounds_find_more_by_meeting_more_and_one_misses_what_is_near():
    module, data = MODULES["buckets"], MODULES["buckets"].data()
    for buckets in (2, 4, 8, 16):
        found = module.compute(data, buckets, 1, 40.0)
        assert (np.diff(found["keys_met"]) >= 0).all()
        assert (np.diff(found["weight_found"]) >= -1e-12).all()
        assert (np.array(found["weight_found"]) > np.array(found["keys_met"]) + 0.1).all()
    missed = [module.compute(data, 8, rounds, 40.0)["missed"] for rounds in (1, 2, 3)]
    assert missed == [2, 2, 0]
    assert module.compute(data, 8, 1, 40.0)["met"] == module.compute(data, 8, 2, 40.0)["met"]
    assert module.compute(data, 8, 1, 70.0)["missed"] == 0
    found = module.compute(data, 8, 1, 40.0)
    met, largest = np.array(found["met"], bool), np.argsort(found["weights"])[-8:]
    turn = np.array(data["keys"])
    lost = turn[largest][~met[largest]]  # the nearest that are missed stand beyond one edge
    assert np.abs(lost - 40).max() < np.abs(turn[met] - 40).max()


def test_of_eight_buckets_of_the_plane_four_are_used_in_most_rounds():
    module, data = MODULES["buckets"], MODULES["buckets"].data()
    everywhere, rotations = module.on_circle(np.arange(0, 360, 0.5)), np.array(data["rotations"])
    used = [len(set(row)) for row in module.hash_buckets(everywhere, rotations[:, :, :4]).tolist()]
    assert sorted(used)[:6] == [4] * 6
    assert max(used) <= 8


def test_features_are_near_for_short_queries_and_no_better_than_an_average_for_usual_ones():
    module, data = MODULES["random_features"], MODULES["random_features"].data()
    short, usual = ({kind: module.compute(data, kind, 512, size) for kind in module.KINDS} for size in (0.3, 1.0))
    last = {kind: found["medians"][-1] for kind, found in short.items()}
    assert last["trigonometric"] < last["hyperbolic"] < 0.75 * last["positive"] < 0.05
    for kind in module.KINDS:
        assert (np.diff(short[kind]["medians"]) < 0).all()
        assert min(usual[kind]["medians"]) > 0.95 * usual[kind]["average"]
        assert short[kind]["medians"][-1] < 0.5 * short[kind]["average"]
    for kind in ("hyperbolic", "trigonometric"):  # an error falls as one over the root of R
        more = (np.array(short["positive"]["medians"]) / short[kind]["medians"]) ** 2
        assert 2 < more.min() < more.max() < 3.2
    many = [module.compute(data, "trigonometric", R, 1.0)["negative"] for R in (8, 64, 512)]
    assert 0.25 < min(many) < max(many) < 0.5
    assert usual["positive"]["negative"] == usual["hyperbolic"]["negative"] == 0
    assert min(usual["trigonometric"]["medians"]) > 3


def test_its_numbers_are_normal_though_they_are_bytes():
    module, data = MODULES["random_features"], MODULES["random_features"].data()
    for X in (module.unpacked(data["W"], -1, 16), module.unpacked(data["heads"], 3, -1, 16)):
        assert abs(X.mean()) < 0.05
        assert abs(X.std() - 1) < 0.03
        assert np.abs(X).max() < 4


def test_one_row_of_memory_brings_its_segment_along():
    module, data = MODULES["reach"], MODULES["reach"].data()
    whole, single = module.compute(data, 8, 8, 3, 31), module.compute(data, 8, 1, 3, 31)
    assert (whole["before"], single["before"]) == (24, 17)
    assert module.compute(data, 8, 0, 3, 31)["before"] == 0
    assert whole["learns"] == single["learns"] == [24, 24, 24, 31]
    for setting in [(8, 8, 3, 31), (8, 1, 3, 31), (5, 7, 4, 23), (3, 2, 4, 30), (4, 0, 2, 9)]:
        found, rows = module.compute(data, *setting), module.segments(setting[3] + 1, *setting[:3]).depends
        assert all(
            row[first:].all() and not row[:first].any() for first, row in zip(found["depends"], rows, strict=True)
        )
        assert found["before"] == min(found["formula"], setting[3] // setting[0] * setting[0])


def test_weights_follow_words_or_places():
    module, data = MODULES["sources"], MODULES["sources"].data()
    words, n, same = list(data["sentence"]), len(data["sentence"]), list(range(len(data["sentence"])))
    expected = {"dot product": (n, 0), "dense": (1, n), "random": (0, n), "gated": (n, n)}
    for source, (replaced, swapped) in expected.items():
        for i in range(n):
            for word in set(range(len(data["vocabulary"]))) - {words[i]}:
                now = [word if j == i else words[j] for j in range(n)]
                assert sum(module.compute(data, source, now, same)["changed"]) == replaced
            for j in range(i):
                order = [{i: j, j: i}.get(k, k) for k in same]
                assert sum(module.compute(data, source, [words[k] for k in order], order)["changed"]) == swapped


def test_the_heads_are_those_of_the_record_and_of_the_weights():
    module, record = MODULES["heads"], bert_heads.data()
    A = module.matrices(module.data())
    assert module.data()["tokens"] == record.tokens
    assert np.abs(A[record.best[:, 0], record.best[:, 1]] - record.A).max() < 0.5 / 255 + 1e-4
    assert np.abs(A.sum(-1) - 1).max() < 16 * 0.5 / 255
    try:
        again = module.matrices(module.measured())
    except BertMissing:
        return
    assert np.abs(A - again).max() < 1.01 / 255


def test_it_looks_at_the_animal_from_the_fourth_block_on():
    module, data = MODULES["heads"], MODULES["heads"].data()
    token, cls = data["tokens"].index("it"), data["tokens"].index("[CLS]")
    found = [module.compute(data, block, token) for block in range(6)]
    assert [data["tokens"][f["key"]] for f in found] == ["because", "was", "tired", "animal", "animal", "animal"]
    A = np.array([f["A"] for f in found])
    animal = A[..., data["tokens"].index("animal")]
    assert (animal < A[..., cls]).sum() > 36  # of 72 heads


def test_without_the_edge_between_them_two_groups_stay_different():
    module, data = MODULES["drawn_graph"], MODULES["drawn_graph"].data()
    apart = [link for link in LINKS if tuple(link) != module.BRIDGE]
    for learned in (False, True):
        together, without = (module.compute(data, links, 0, module.LAYERS, learned) for links in (LINKS, apart))
        assert (together["heard"], without["heard"]) == (10, 5)
        assert together["left"][-1] < 0.1
        assert without["left"][-1] == pytest.approx(0.41 if learned else 0.24, abs=0.02)
        assert without["left"][-1] > 0.999 * without["left"][16]
        assert all(np.diff(together["left"]) < 0)
        shares = {}
        for second in itertools.product(range(5), range(5, 10)):
            if second != module.BRIDGE:
                both = module.compute(data, [*LINKS, list(second)], 0, module.LAYERS, learned)
                shares[second] = both["left"][-1] / together["left"][-1]
        assert len(shares) == 24
        assert max(shares.values()) < 0.5
        assert shares[0, 9] < 1 / 20
        assert shares[4, 6] > 1 / 3


def test_a_convolution_counts_and_attention_has_favourites():
    module, data = MODULES["drawn_graph"], MODULES["drawn_graph"].data()
    counts, chosen = (np.array(module.compute(data, LINKS, 0, 1, learned)["weights"]) for learned in (False, True))
    seen = chosen > 0
    np.testing.assert_array_equal(counts > 0, seen)
    np.testing.assert_allclose(np.where(seen, counts * seen.sum(1, keepdims=True), 1), 1)
    assert (chosen.max(1) > 1.3 * counts.max(1)).sum() >= 8
    order = np.argsort(-chosen[:3, :3], axis=1)
    assert (order == [2, 1, 0]).all()  # three who see each other rank each other alike


def test_a_sigmoid_is_nearly_linear_where_the_other_gates_are_not():
    module, data = MODULES["gate_plane"], MODULES["gate_plane"].data()
    for reach in (0.25, 0.5, 1.0):
        linear = {gate: module.compute(data, gate, 0.5, 0.5, reach)["linear"] for gate in data["gates"]}
        assert linear.pop("sigmoid") > 0.92
        assert max(linear.values()) < 0.38
        assert max(linear["gelu"], linear["silu"]) < 0.05 or reach > 0.5
        assert linear["none"] == pytest.approx(0, abs=1e-12)
        assert linear["relu"] == pytest.approx(3 / 8, abs=1e-3)
    linear = [module.compute(data, "sigmoid", 0.5, 0.5, reach)["linear"] for reach in (0.25, 0.5, 1.0, 2.0, 4.0)]
    assert (np.diff(linear) < 0).all()
    assert linear[1] == pytest.approx(0.98, abs=0.005)
    assert linear[-1] == pytest.approx(2 / 3, abs=0.02)
    shut = module.compute(data, "relu", -0.3, 0.7, 1.0)
    assert shut["Y"] == shut["dL"] == shut["dR"] == 0


@pytest.fixture
def read_once(monkeypatch):
    """Every setting of time and quality would read four records anew."""
    found = table().with_better_positions()
    again = SimpleNamespace(with_better_positions=lambda: found)
    monkeypatch.setattr(MODULES["time_and_quality"], "table", lambda: again)
    return found


def test_another_task_makes_another_front(read_once):
    module, data = MODULES["time_and_quality"], MODULES["time_and_quality"].data()
    names = [row["name"] for row in data["rows"]]
    for n in (1024, 4096, 65536):
        for causal in (False, True):
            found = {task: module.compute(data, n, causal, [task]) for task in data["tasks"]}
            fronts = {task: [names[k] for k in one["front"]] for task, one in found.items()}
            fastest = {"lightweight-convolution", "dynamic-convolution", "fnet", "linformer"}
            assert {front[0] for front in fronts.values()} <= fastest
            assert "delta" in fronts["recall"]
            assert not any("softmax" in front for front in fronts.values())
            where = {names[k]: found["text"]["quality"][p] for p, k in enumerate(found["text"]["drawn"])}
            assert where["lightweight-convolution"] > where["delta"] + 0.1
            drawn = module.compute(data, n, causal, data["tasks"])
            assert (np.array(drawn["worst"]) <= drawn["quality"]).all()
            assert (np.array(drawn["best"]) >= drawn["quality"]).all()
            if n > 1024:
                assert all(front[0] == "lightweight-convolution" for front in fronts.values())
                assert [task for task, front in fronts.items() if "delta" not in front] == ["text"]
    apart = {
        task: abs(read_once.rows[name].mean(task) - read_once.rows["delta"].mean(task))
        for task, name in (("recall", "taylor"), ("digits", "lightweight-convolution"))
    }
    assert apart["recall"] < read_once.noise("recall") / 2
    assert apart["digits"] == pytest.approx(0.02, abs=0.005)


@pytest.mark.usefixtures("read_once")
def test_who_is_not_drawn_is_told():
    module, data = MODULES["time_and_quality"], MODULES["time_and_quality"].data()
    able = {causal: sum(row["causal"] or not causal for row in data["rows"]) for causal in (False, True)}
    for n in (1024, 20_000, 65536):
        for causal in (False, True):
            for tasks in (["text"], data["tasks"]):
                found = module.compute(data, n, causal, tasks)
                told = [*found["drawn"], *found["untimed"], *found["unscored"]]
                assert len(told) == len(set(told)) == able[causal]
    assert module.compute(data, 65536, False, ["text"])["untimed"]
    assert module.compute(data, 1024, False, ["text"])["unscored"]


def test_what_a_gate_has_dropped_no_later_gate_brings_back():
    module, data = MODULES["gates"], MODULES["gates"].data()
    n, rng = len(data["gates"]), np.random.default_rng(0)
    for gates in (data["gates"], [0.0] * n, [1.0] * n, *rng.uniform(0, 1, (5, n)).tolist()):
        C = np.array(module.compute(data, gates, n)["weights"])
        assert all((np.diff(C[j:, j]) <= 0).all() for j in range(n + 1))
        np.testing.assert_allclose(C.sum(1), 1)
    begun_anew = np.array(module.compute(data, [0.9, 0.9, 0.9, 0.9, 0.0, 0.9, 0.9, 0.9], n)["weights"])
    assert not begun_anew[5:, :5].any()
    held = module.compute(data, [0.8, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], n)
    assert (held["candidate"], held["largest"]) == (2, 1)
    assert 0.5 < module.compute(data, [0.8, 0.0] + [0.9] * 6, n)["largest"] < 0.55
    assert all(keeps <= 0.9 for keeps in (1 - data["gates"][1], *data["gates"][2:]))  # so all seven have to be moved
    assert np.allclose(
        module.compute(data, data["gates"], 3)["weights"][3][:4], [0.36, 0.04, 0.4, 0.2]
    )  # the chapter's


def test_three_hands_tell_eighty_places_apart():
    module, data = MODULES["hands"], MODULES["hands"].data()

    def found(*hands, query=70):
        return module.compute(data, [f in hands for f in range(8)], query, -1)

    assert all(found(f)["peak"] == 69 for f in range(8))
    assert found(0)["other"] == 69 - 44
    assert found(0)["margin"] < 0.001
    assert found(0, 1)["other"] == 69 - 19
    assert found(0, 1)["margin"] < 0.05
    assert found(0, 1, 2)["margin"] > 0.51
    assert found(*range(8))["margin"] - found(0, 1, 2)["margin"] < 0.001
    assert 0.08 < found(*range(1, 8))["margin"] / found(*range(8))["margin"] < 0.12
    waves = np.cos(np.outer(np.arange(1, 400), module.data()["omega"])).cumsum(1)  # products with later places
    assert 2 - waves[:80, 1].max() < 0.05
    assert 3 - waves[:, 2].max() < 0.05  # three hands are fooled in a text of 400
    assert 4 - waves[:, 3].max() > 0.2


def test_a_drawn_bias_is_known_but_for_a_constant():
    module, data = MODULES["drawn_bias"], MODULES["drawn_bias"].data()
    back = np.array(data["biases"]["one back"])
    found = [module.compute(data, b.tolist(), 0.0, 6) for b in (back, back + 1)]
    np.testing.assert_allclose(found[0]["A"], found[1]["A"], atol=1e-15)
    A = np.array(found[0]["A"])
    assert min(A[i, i - 1] for i in range(1, module.N)) > 0.94
    masked = np.where(np.arange(1 - module.N, module.N) > 0, -6.0, 6.0).tolist()
    assert module.compute(data, masked, 0.0, 6)["ahead"] < 1e-4
    beside = np.where(abs(np.arange(1 - module.N, module.N)) == 1, 6.0, -6.0).tolist()
    A = np.array(module.compute(data, beside, 0.0, 6)["A"])
    assert np.allclose([A[6, 5], A[6, 7]], 0.5, atol=1e-4)
    assert A[0, 1] > 0.99


def test_the_sharp_head_for_the_token_before_is_not_in_few_columns():
    module, data = MODULES["fewer_columns"], MODULES["fewer_columns"].data()
    at = {head: [module.compute(data, head, s, 6) for s in (0.125, 0.5, 1.0, 2.0, 4.0, 8.0)] for head in data["heads"]}
    for found in at.values():
        assert (np.diff([each["best"] for each in found]) > 0).all()  # sharper is harder
        assert (np.diff([each["used"] for each in found]) < 0).all()
        assert all(each["best"] < each["merged"] for each in found)
    at_random, neighbours, before = (found[4]["best"] for found in at.values())
    assert neighbours < 1 / 3 < 0.4 < at_random < 0.5 < 0.8 < before
    for sharpness in (0.5, 1.0, 2.0, 4.0):  # blocks of three cut through the fours that agree
        six, eight = (module.compute(data, "neighbours alike", sharpness, k)["merged"] for k in (6, 8))
        assert six < eight
        assert sharpness != 1 or eight > 2 * six
