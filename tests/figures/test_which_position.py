"""The record of the grid: absolute and relative, learned, fixed, and with learned frequencies."""

from minitransformer.figures import which_position
from minitransformer.training.position_study import Trial


def test_the_record_is_complete():
    data = which_position.data()
    assert data.kinds == ("absolute", "relative")
    assert data.forms == ("learned", "sinusoids", "learned frequencies")
    for task, right in data.right.items():
        assert right.shape == (2, 3, len(which_position.SEEDS[task]))
        assert ((right >= 0) & (right <= 1)).all()
    assert len(which_position.draw(data).axes) == 2


def test_a_record_survives_writing_and_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(which_position, "RECORD", tmp_path / "positions.json")
    assert which_position.load() == {"trials": [], "circumstances": {}}
    trials = [Trial("copy", "rope", 0, {16: 0.5, 32: None})]
    which_position.keep({"trials": trials, "circumstances": {"python": "3"}})
    assert which_position.load() == {"trials": trials, "circumstances": {"python": "3"}}


def test_only_what_is_missing_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(which_position, "RECORD", tmp_path / "positions.json")
    monkeypatch.setattr(which_position, "wanted", lambda: iter([("copy", "rope", 0), ("copy", "alibi", 0)]))
    trained = []

    def trial(task, name, seed):
        trained.append(name)
        return Trial(task, name, seed, {16: 0.12346})

    monkeypatch.setattr(which_position.study, "trial", trial)
    which_position.main(["alibi"])
    which_position.main([])
    which_position.main([])
    assert trained == ["alibi", "rope"]
    assert [t.scores for t in which_position.load()["trials"]] == [{16: 0.1235}] * 2
