"""Figures that move: their JavaScript computes what the book computes, and what they claim holds."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from minitransformer import live
from minitransformer.attention import Window
from minitransformer.experiments.table import table
from minitransformer.figures import bert_heads
from minitransformer.models.bert_files import BertMissing

MASKS = live.modules()["painted_mask"].data()["masks"]
LINKS = live.modules()["drawn_graph"].data()["links"]
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
    told = json.loads(subprocess.run(node, check=True, capture_output=True, text=True, timeout=60).stdout)
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
    assert len(shown.still.png) * 4 / 3 + len(shown.html.encode()) < 60_000
    assert repr(shown).startswith(MODULES[name].__doc__.splitlines()[0])


# ------------------------------------------------------------------------------------------------ what they claim


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
        together, without, quicker = (
            module.compute(data, links, 0, module.LAYERS, learned) for links in (LINKS, apart, [*LINKS, [0, 9]])
        )
        assert (together["heard"], without["heard"]) == (10, 5)
        assert together["left"][-1] < 0.1
        assert quicker["left"][-1] < together["left"][-1] / 10
        assert without["left"][-1] == pytest.approx(0.41 if learned else 0.24, abs=0.02)
        assert without["left"][-1] > 0.999 * without["left"][16]
        assert all(np.diff(together["left"]) < 0)


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


def test_another_task_makes_another_front():
    module, data = MODULES["time_and_quality"], MODULES["time_and_quality"].data()
    names = [row["name"] for row in data["rows"]]
    for n in (1024, 4096, 16384, 65536):
        for causal in (False, True):
            found = {task: module.compute(data, n, causal, [task]) for task in data["tasks"]}
            fronts = {task: [names[k] for k in one["front"]] for task, one in found.items()}
            assert all(front[0] == "lightweight-convolution" for front in fronts.values())
            assert {task for task, front in fronts.items() if "delta" in front} == {"recall", "listops"}
            assert not any("softmax" in front for front in fronts.values())
            for task in ("text", "digits"):
                where = {names[k]: found[task]["quality"][p] for p, k in enumerate(found[task]["drawn"])}
                assert where["lightweight-convolution"] > where["delta"] + 0.1
            drawn = module.compute(data, n, causal, data["tasks"])
            assert (np.array(drawn["worst"]) <= drawn["quality"]).all()
            assert (np.array(drawn["best"]) >= drawn["quality"]).all()
    rows = table()
    ahead = rows.rows["taylor"].mean("recall") - rows.rows["delta"].mean("recall")
    assert 0 < ahead < rows.noise("recall") / 5


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
