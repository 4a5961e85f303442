"""Every experiment: its record is whole and of today's trials, and its first steps still run and give what a record holds."""

import itertools
import json
import re
from dataclasses import fields, is_dataclass, replace
from types import SimpleNamespace

import pytest

from minitransformer import cli, experiments
from minitransformer.backend import available
from minitransformer.data import text
from minitransformer.experiments.run import other_processor
from minitransformer.machine import circumstances
from minitransformer.models.bert_files import BertMissing

NAMES = list(experiments.modules())
SMALLER = {"segment_memory", "thinking_longer", "training_text"}  # in a test they have a smaller model, too
PLAIN = (bool, int, float, str, type(None))


def plain(value):
    return all(map(plain, value)) if isinstance(value, tuple) else isinstance(value, PLAIN)


@pytest.mark.parametrize("name", NAMES)
def test_trials_are_plain_and_all_different(name):
    module = experiments.find(name)
    trials = list(module.trials())
    assert trials
    assert len(set(trials)) == len(trials)
    assert is_dataclass(module.Trial)
    assert all(plain(getattr(trial, field.name)) for trial in trials for field in fields(trial))
    assert module.__doc__.splitlines()[0].endswith(("?", "."))


@pytest.mark.parametrize("name", NAMES)
def test_the_record_is_whole_small_and_names_its_machine(name):
    record = experiments.load(name)  # refuses other trials than those of today
    assert len(record.results) == len(record.trials)
    assert re.search(r"\d cores?, tier (numpy|numba|micro)", record.made_on)
    assert len(record.made_on) <= 88
    path = experiments.record.RECORDS / f"{name}.json"
    assert path.stat().st_size < 300_000


@pytest.mark.parametrize("make", experiments.makes("which_cost"))
def test_times_of_each_make_are_a_whole_record_of_the_same_trials(make):
    record = experiments.load("which_cost", make)
    assert set(record.trials) <= set(experiments.load("which_cost").trials)
    assert {tuple(result) for _, result in record} == {("n", "seconds", "yardsticks", "MB", "stopped")}
    path = experiments.folder(make, ["which_cost"]) / "which_cost.json"
    assert path.stat().st_size < 300_000


@pytest.fixture
def makes(tmp_path, monkeypatch):
    """The folder of the records of other makes of processor, for this test."""
    for module in (experiments, experiments.record):
        monkeypatch.setattr(module, "MAKES", tmp_path)
    return tmp_path


def test_times_of_another_make_of_processor_stand_beside_those_of_the_book(makes):
    book = experiments.load("which_cost")
    (makes / "abacus").mkdir()
    experiments.record.write(makes / "abacus/which_cost.json", "which_cost", book.of(book.trials[:1]))
    own = experiments.find("which_cost").MAKE
    assert experiments.makes("which_cost") == [own, "abacus"]
    assert experiments.load("which_cost", "abacus").trials == book.trials[:1]
    assert experiments.load("which_cost", own) == book


def test_the_make_of_the_record_itself_has_no_second_record(makes):
    assert experiments.folder(experiments.find("which_cost").MAKE, ["which_cost"]) == experiments.record.RECORDS
    assert experiments.folder(None, []) == experiments.record.RECORDS
    assert experiments.folder("abacus", ["which_cost"]) == makes / "abacus"


def test_who_misses_the_record_of_a_make_is_told_the_command_of_that_make(makes):
    command = "minitransformer experiment which_cost --make abacus"
    with pytest.raises(ValueError, match=f"there is no such record; `{command}` makes it"):
        experiments.load("which_cost", "abacus")
    (makes / "abacus").mkdir()
    (makes / "abacus/which_cost.json").write_text("{}")
    with pytest.raises(ValueError, match=f"`{command} --renew` makes it anew"):
        experiments.load("which_cost", "abacus")


def test_times_of_one_make_are_not_taken_for_those_of_another_processor(makes, capsys):
    """A whole record was "complete, nothing to run" on any processor, and one that lacked trials got some of each."""
    book = experiments.load("which_cost")
    (makes / "abacus").mkdir()
    path, command = makes / "abacus/which_cost.json", ["experiment", "which_cost", "--make", "abacus"]
    here = circumstances()
    old = {name: here[name] for name in here if name != "make"}
    for about, code in ((here, 0), (old, 0), ({**here, "machine": "Abacus", "make": "beads 10"}, 1)):
        record = replace(book, machines=[about] * len(book.trials))
        experiments.record.write(path, "which_cost", record)
        assert cli.main(command) == code
    says = "--make abacus: its times are of another processor, Abacus (beads 10); give yours a name of its own"
    assert capsys.readouterr().err == f"minitransformer: {says}\n"
    path.write_text("{}")
    assert not other_processor(experiments.find("which_cost"), path.parent)  # `--renew` makes it anew


@pytest.mark.parametrize("make", ["", "Zen 4", "../zen", "zen-", "zen\n"])
def test_a_make_is_a_plain_name(make):
    with pytest.raises(ValueError, match="should be a name of small letters"):
        experiments.load("which_cost", make)


@pytest.mark.parametrize("names", [[], ["which"], ["which", "which_cost"]])
def test_only_times_are_kept_for_several_makes(names):
    with pytest.raises(ValueError, match="of which experiment"):
        experiments.folder("abacus", names)


@pytest.mark.parametrize("name", NAMES)
def test_the_first_steps_give_what_a_record_holds(name, monkeypatch):
    """... of the first trial, and of one more for each other list of what is kept: weights of one network, say.

    Few bytes are held out: what is judged here is no model, but the form of what is kept.
    """
    if name == "speed" and "numba" not in available():
        pytest.skip("it measures compiled loops")
    module, record, whole = experiments.find(name), experiments.load(name), text.python_docs()
    few = whole._replace(held_out=whole.held_out[:4000])
    for place in (text, module):
        monkeypatch.setattr(place, "python_docs", lambda: few, raising=False)
    for k in {tuple(result): k for k, result in reversed(list(enumerate(record.results)))}.values():
        try:
            result = module.run(replace(record.trials[k], **module.IN_A_TEST))
        except BertMissing as missing:
            pytest.skip(str(missing))
        found, kept = json.loads(json.dumps(result, allow_nan=False)), record.results[k]
        assert {key: type(value) for key, value in found.items()} == {key: type(value) for key, value in kept.items()}
        if name not in SMALLER:
            assert found.get("parameters") == kept.get("parameters"), "the model is the one that was trained"


def test_tokens_per_second_are_tokens_over_seconds(monkeypatch):
    """By a clock that goes on by one whenever it is looked at: two steps of four samples of 256 tokens."""
    module = experiments.find("four_attentions")
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    assert module.run(replace(module.trials()[0], **module.IN_A_TEST))["trained per second"] == 2 * 4 * 256


def test_an_unknown_experiment_is_refused_by_name():
    with pytest.raises(ValueError, match="no experiment 'dice'; there are "):
        experiments.load("dice")
