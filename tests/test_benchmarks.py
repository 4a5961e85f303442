"""The benchmarks tell the truth: ratios, slopes, verdicts, and a small row from end to end in our own process."""

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = str(Path(__file__).resolve().parents[1])
sys.path.insert(0, ROOT)  # `benchmarks` is not part of the package

from benchmarks import report, run, where  # noqa: E402
from benchmarks.picture import draw  # noqa: E402
from benchmarks.rows import BLOCK, Row, bigbird, rows, visible  # noqa: E402
from minitransformer.backend import available  # noqa: E402
from minitransformer.functional import linear  # noqa: E402
from minitransformer.training.optimiser import AdamW  # noqa: E402
from minitransformer.training.parallel import each  # noqa: E402


def result(**changes):
    plain = Row("attention", {"n": 64}, ("fast", "slow"), target=2.0)._asdict()
    samples = {"ours": [1.0, 2.0, 4.0], "fast": [2.5, 5.0, 10.0], "slow": [9.0, 9.0, 9.0]}
    return {**plain, "label": "a row", "unavailable": {}, "differs": [], "samples": samples, **changes}


def test_ratios_are_paired():
    """A round that is ten times slower for both leaves the ratio as it is; unpaired medians would not."""
    ours, peer = np.array([1, 10, 1, 10, 1.0]), np.array([2, 20, 20, 20, 2.0])
    assert report.ratios(peer, ours) == {"median": 2.0, "q1": 2.0, "q3": 2.0}
    assert np.median(peer) / np.median(ours) == 20


def test_quartiles():
    assert report.ratios([1, 2, 3, 4, 5], [1] * 5) == {"median": 3.0, "q1": 2.0, "q3": 4.0}


def test_slope_finds_the_power():
    n = np.array([512, 1024, 4096])
    assert report.slope(n, 3e-9 * n**2) == pytest.approx(2)
    assert report.slope(n, 5e-6 * n) == pytest.approx(1)


def test_the_best_peer_is_the_one_that_counts():
    judged = report.judge(result())
    assert judged["best"] == "fast"
    assert judged["ratios"]["fast"]["median"] == 2.5
    assert judged["met"] is True
    assert report.judge(result(target=2.6))["met"] is False
    assert report.judge(result(target=None))["met"] is None


@pytest.mark.parametrize(
    ("limit", "target"),
    [([0.5, 1.0, 2.0], 2.0), ([1.25, 2.5, 5.0], 1.6), ([2.4, 4.8, 9.6], 1.0)],
    ids=["the wish", "80 % of the limit", "the peer"],
)
def test_a_target_is_no_more_than_the_processor_can_do(limit, target):
    """The best peer takes 2.5, 5 and 10 s: with multiply-adds of half that, a ratio of 2 can't be reached, and 1.6 can."""
    judged = report.judge(result(samples={**result()["samples"], "limit": limit}))
    assert judged["target"] == pytest.approx(target)
    assert report.judge(judged)["target"] == judged["target"]
    ours = [second / (1.01 * target) for second in (2.5, 5.0, 10.0)]
    assert report.judge({**judged, "samples": {**judged["samples"], "ours": ours}})["met"] is True
    assert report.judge({**judged, "samples": {**judged["samples"], "ours": [1.02 * s for s in ours]}})["met"] is False


def test_a_wrong_result_or_a_missing_one_does_not_meet_a_target():
    assert report.judge(result(differs=["fast"]))["met"] is False
    assert report.judge(result(samples={}, unavailable={"ours": "ImportError"}))["met"] is False
    assert report.judge(result(samples={"ours": [1.0]}))["met"] is False


def test_results_are_compared():
    assert report.agree([[1.0, -2.0]], [[1.0, -2.0 + 1e-5]])
    assert not report.agree([[1.0, -2.0]], [[1.0, -2.1]])
    assert not report.agree([[1.0, float("nan")]], [[1.0, 2.0]])
    assert not report.agree([[1.0]], [[1.0, 2.0]])


def test_a_line_hides_nothing():
    line = report.line(report.judge(result()))
    assert "2.50           2.00  met" in line
    for part in ("ours 2000 ms", "fast 5000 ms ×2.50 [2.50, 2.50]", "slow 9000 ms ×4.50"):
        assert part in line
    assert "not met" in report.line(report.judge(result(target=2.6)))
    assert "DIFFER from fast" in report.line(report.judge(result(differs=["fast"])))
    missing = report.line(report.judge(result(samples={}, unavailable={"ours": "ImportError: no name"})))
    assert "ours: not available (ImportError: no name)" in missing
    assert "not met" in missing


def test_slopes_and_picture():
    def at(n):
        row = Row("copy_of_V", {"n": n}, ("fast",), target=1.0)
        samples = {"ours": [1e-6 * n] * 3, "fast": [2e-6 * n] * 3}
        return report.judge(result(**row._asdict(), label=row.label, samples=samples))

    results = [at(n) for n in (64, 128, 256)]
    fits = report.slopes(results)
    assert [(fit["core"], fit["by"]) for fit in fits] == [("copy of V", "ours"), ("copy of V", "fast")]
    assert fits[0]["slope"] == pytest.approx(1)
    assert report.slopes(results[:2]) == []
    record = {"machine": report.machine(), "rows": results, "slopes": fits}
    left, right = draw(record).axes
    assert len(left.get_yticks()) == 3
    assert len(right.lines) == 1


def test_a_busy_machine_is_said_to_be():
    assert report.busy({"load": 0.2, "cores": 2}) == ""
    assert "1.5 on 2 cores" in report.busy({"load": 1.5, "cores": 2})


def test_rows_have_a_label_each_and_the_quick_ones_hold_every_target():
    labels = [row.label for row in rows()]
    assert len(set(labels)) == len(labels)

    def goals(chosen):
        return {(row.work, row.measure, row.ours, row.case.get("backward")) for row in chosen if row.target}

    assert goals(row for row in rows() if row.quick) == goals(rows())


def test_patterns():
    n, sees = 8 * BLOCK, bigbird(8 * BLOCK)
    assert sees[0].all()
    assert sees[:, -1].all()
    assert (sees.sum(1)[1:-1] <= 8).all()
    assert visible("bigbird", n)[3 * BLOCK, :BLOCK].all()
    window = visible("window", n)
    assert window[0, 256]
    assert not window[0, 257]


def test_a_small_row_from_end_to_end(monkeypatch):
    """Our own process only; the row of a peer without an interpreter, and one that can't run, say so."""
    monkeypatch.setenv("MINITRANSFORMER_BACKEND", "numpy")
    team = run.Team(None)
    case = {"n": 32, "H": 1, "d": 8, "causal": True, "backward": True}
    try:
        there = run.measure(Row("attention", case, ("sdpa",), target=1.0), team, seconds=1.0)
        missing = run.measure(Row("no_such_work", {}, (), target=1.0), team, seconds=0.01)
        memory = team["ours"].ask("memory", work="attention", case={**case, "n": 512})
    finally:
        team.close()
    assert len(there["samples"]["ours"]) >= 5
    assert min(there["samples"]["ours"]) > 0
    no_limit = {} if "numba" in available() else {"limit": "ModuleNotFoundError: No module named 'numba'"}
    assert there["unavailable"] == {"sdpa": "no interpreter for the peers"} | no_limit
    assert there["met"] is False
    assert "AttributeError" in missing["unavailable"]["ours"]
    assert memory["results"] == 4
    assert memory["value"] > 512 * 512 * 4  # the attention matrix


def test_the_time_of_a_call_goes_where_it_is_spent():
    """Python alone is Python; the loops of a product are told from those of an optimiser, which call the same room."""
    assert where.shares(lambda: [k * k for k in range(300_000)], 10) == {"Python": 1.0}
    if not available()[1:]:
        pytest.skip("no compiled loops")
    X, W = np.ones((512, 512), np.float32), np.ones((512, 512), np.float32)
    params, optimiser = {"W": np.ones((2000, 2000), np.float32)}, AdamW()
    state = optimiser.init(params)
    found = where.shares(lambda: linear(X, W), 100)
    assert found["products"] > 0.5
    found = where.shares(lambda: list(each(lambda times: [linear(X, W) for _ in range(times)], [20, 0], 2)), 5)
    assert found["products"] > 0.7  # the second thread waits, and counts for nothing
    found = where.shares(lambda: optimiser.update(params, params, state, 1e-3), 10)
    assert found["optimiser"] > 0.5
    told = report.line(report.judge(result(shares={"products": 0.62, "Python": 0.05})))
    assert "of ours products 62%, Python 5%" in told


def test_words_that_no_row_has_are_refused_and_nothing_is_written(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run", "--only", "no such row", "--name", "nothing"])
    with pytest.raises(SystemExit):
        run.main()
    assert "--only 'no such row': no row has a label with all of these words" in capsys.readouterr().err
    assert not (run.HERE / "results" / "nothing.json").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--import", "nowhere.py"], "nowhere.py: No such file or directory"),
        (["--peer-python", "/nowhere/python"], "--peer-python /nowhere/python: there is no such program"),
        (["--seconds", "-1"], "--seconds -1: should be above 0 and below 900"),
        (["--seconds", "nan"], "--seconds nan: should be above 0 and below 900"),
        (["--name", "../mine"], "--name '../mine': should be the name of a file, without a folder"),
    ],
)
def test_what_can_not_be_measured_is_refused_before_anything_is(given, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run", *given, "--only", "no such row"])
    with pytest.raises(SystemExit):
        run.main()
    assert said in capsys.readouterr().err
