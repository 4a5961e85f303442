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
