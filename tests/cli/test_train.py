import os
import re
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from minitransformer import backend, tree_bytes, tree_size
from minitransformer.cli import main, train
from minitransformer.cli.command import parser
from minitransformer.cli.train import CHOICES
from minitransformer.data import text
from minitransformer.data.dates import held_out_set
from minitransformer.data.text import python_docs
from minitransformer.training import recipes
from minitransformer.training.checkpoint import load
from minitransformer.training.loop import TrainingDiverged, advance, start
from minitransformer.training.objective import NextByte, WriteISO
from minitransformer.training.recipes import choices, date_translator, language_model
from minitransformer.training.size import needed

SMALL = ["--width", "8", "--depth", "1", "--heads", "2", "--batch", "4"]
TEXT = "the cat sat on the mat, and that was that. "


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text(TEXT * 60)
    return tmp_path


def refused(capsys, *argv):
    """The command ends with one line on stderr, after the progress bar if there was one; returns the line."""
    code = main([str(a) for a in argv])
    line = re.split(r"[\r\n]", capsys.readouterr().err.strip())[-1]
    assert code == 1
    assert line.startswith("minitransformer: ")
    return line


def run(capsys, *argv):
    assert main([str(a) for a in argv]) == 0
    return capsys.readouterr().out


def test_a_text_is_learned_judged_and_continued(folder, capsys):
    out = run(capsys, "train", "mine.txt", *SMALL, "--context", 8, "--steps", 40, "--lr", 0.02)
    assert "mine.txt: 2,322 bytes to train on, 258 held out" in out
    table = dict(re.findall(r"^(\S+-gram|transformer) +(\d\.\d{3})", out, re.MULTILINE))
    assert list(table) == [*(f"{k}-gram" for k in range(1, 7)), "transformer"]
    assert float(table["transformer"]) < 5
    assert "saved in run.safetensors" in out
    assert load("run.safetensors").state.step == 40

    said = run(capsys, "generate", "run.safetensors", "the cat", "--length", 20)
    assert said.startswith("the cat")
    assert len(said) <= len("the cat") + 20 + 1
    assert said == run(capsys, "generate", "run.safetensors", "the cat", "--length", 20)
    options = ("--temperature", 0, "--top-k", 3, "--top-p", 0.9, "--seed", 5)
    assert run(capsys, "generate", "run.safetensors", "the cat", "--length", 0, *options) == "the cat\n"


def test_what_a_model_makes_up_sends_the_terminal_no_commands(folder, capsys, monkeypatch):
    monkeypatch.setattr(train, "_continue", lambda *_, **__: "the\x1b[2J\x07\tcat\n")
    out = run(capsys, "train", "mine.txt", *SMALL, "--context", 8, "--steps", 1)
    assert "the·[2J·\tcat\n" in out
    assert run(capsys, "generate", "run.safetensors", "the") == "the·[2J·\tcat\n\n"


def test_the_table_says_when_it_is_a_sample(folder, capsys, monkeypatch):
    argv = ("train", "mine.txt", *SMALL, "--context", 8, "--steps", 1)
    assert "sample" not in run(capsys, *argv)
    monkeypatch.setattr(text, "SAMPLE", (640, 160))
    out = run(capsys, *argv, "--out", "other")
    assert "2,322 bytes to train on, 258 held out" in out
    assert "a sample: 160 of the bytes held out, and n-grams that were counted in 640 of the others" in out


def test_dates_are_learned_judged_and_translated(folder, capsys):
    out = run(capsys, "train", "--task", "dates", *SMALL, "--steps", 2)
    assert re.search(r"exact match on 1,000 held-out dates: \d+\.\d%", out)
    assert out.count("wrong: ") > 0
    said = run(capsys, "generate", "run.safetensors", "3 March 2021")
    assert len(said.strip()) <= 11
    said = refused(capsys, "generate", "run.safetensors", "3 March 2021", "--top-k", 3)
    assert "--top-k: this model translates a date" in said
    assert "prompt: there should be a date" in refused(capsys, "generate", "run.safetensors", "")


def test_the_share_of_dates_that_match(capsys):
    wanted = held_out_set().iso
    objective = SimpleNamespace(translate=lambda model, params, written: [*wanted[:122], *["?"] * 877, wanted[-1]])
    train._judge_dates(objective, None, np.ones((3, 4)))
    out = capsys.readouterr().out
    assert "exact match on 1,000 held-out dates: 12.3% (12 parameters)" in out
    assert "wrong" not in out


def test_kinds_of_attention_take_turns(folder, capsys):
    for names, attention in ((("linear",), "linear"), (("linear", "window:radius=3"), ("linear", "window:radius=3"))):
        out = f"{len(names)}.safetensors"
        run(
            capsys,
            "train",
            "mine.txt",
            *SMALL,
            "--context",
            8,
            "--depth",
            2,
            "--steps",
            1,
            "--attention",
            *names,
            "--out",
            out,
        )
        assert load(out).model.attention == attention


def test_a_text_after_the_kinds_of_attention_is_the_text(folder, capsys):
    options = (*SMALL, "--context", 8, "--steps", 1)
    assert "mine.txt: " in run(capsys, "train", *options, "--attention", "linear", "mine.txt")
    assert load("run.safetensors").model.attention == "linear"
    (folder / "window").write_text(TEXT)
    run(capsys, "train", "mine.txt", *options, "--depth", 2, "--out", "2", "--attention", "linear", "window")
    assert load("2").model.attention == ("linear", "window")
    assert "his.txt: No such file" in refused(capsys, "train", *options, "--out", 3, "--attention", "linear", "his.txt")
    line = refused(capsys, "train", *options, "--depth", 2, "--out", 3, "--attention", "linear", "sofmtax:scale=0.5")
    assert "no 'sofmtax'" in line


def test_a_run_is_resumed_with_its_own_choices(folder, capsys):
    argv = ("train", "mine.txt", *SMALL, "--context", 8)
    whole = run(capsys, *argv, "--steps", 6, "--out", "whole")
    half = load("whole")
    assert run(capsys, "train", "mine.txt", "--resume", "--out", "whole") == whole  # nothing was left to do
    assert load("whole").state.losses == half.state.losses
    run(capsys, *argv, "--steps", 6, "--out", "whole", "--resume")  # the same choices once more are no contradiction


def test_a_resumed_run_can_be_extended(folder, capsys):
    """Its steps so far stay; from there on the learning rate is that of the longer run. It can't be cut short."""
    argv = ("train", "mine.txt", *SMALL, "--context", 8, "--lr", 0.02)
    run(capsys, *argv, "--steps", 20)
    short = load("run.safetensors")
    run(capsys, "train", "mine.txt", "--resume", "--steps", 30)
    long = load("run.safetensors")
    assert long.state.step == long.training.steps == long.training.schedule.steps == 30
    assert long.state.losses[:20] == short.state.losses
    assert long.training.schedule.warmup == short.training.schedule.warmup
    assert long.training.schedule(21) > long.training.schedule(29) > 0
    line = refused(capsys, "train", "mine.txt", "--resume", "--steps", 29)
    assert "--steps 29: the run is one of 30; it can be extended, not cut short" in line


@pytest.mark.parametrize("name", CHOICES)
def test_help_says_what_is_usual(name):
    (commands,) = (action for action in parser()._actions if action.dest == "command")
    (action,) = (action for action in commands.choices["train"]._actions if action.dest == name)
    usual = action.help.partition("(default: ")[2]
    assert usual.startswith("as many as heads" if recipes.TEXT[name] is None else str(recipes.TEXT[name]))
    if recipes.DATES.get(name, recipes.TEXT[name]) != recipes.TEXT[name]:
        assert usual.endswith(f"; dates: {recipes.DATES[name]})")


def test_a_model_with_a_memory_reads_on_and_is_resumed(folder, capsys):
    """Trained on streams, judged on all that is held out, resumed with what it remembered, and it writes beyond its context."""
    argv = (
        "train",
        "mine.txt",
        *SMALL,
        "--context",
        8,
        "--stack",
        "transformer-xl:memory=16",
        "--positions",
        "transformer-xl",
        "--steps",
        40,
    )
    out = run(capsys, *argv, "--lr", 0.02)
    assert re.search(r"^transformer +\d\.\d{3}", out, re.MULTILINE)
    state = load("run.safetensors").state
    assert [rows.shape for rows in state.carried] == [(4, 16, 8)]
    assert main(["train", "mine.txt", "--resume"]) == 0
    again = capsys.readouterr()
    assert again.out == out
    assert "minitransformer: judging the model" in again.err  # one of a memory reads long
    said = run(capsys, "generate", "run.safetensors", "the cat", "--length", 40)
    assert len(said) > 20
    line = refused(capsys, *argv, "--out", "other", "--positions", "sinusoidal")
    assert "sinusoidal does not go with a memory" in line


@pytest.mark.parametrize("stack", ["reversible", "universal:halting=accumulated"])
def test_another_stack_is_trained_and_resumed(folder, capsys, stack):
    argv = ("train", "mine.txt", *SMALL, "--context", 8, "--stack", stack)
    run(capsys, *argv, "--steps", 3)
    run(capsys, *argv, "--steps", 4, "--resume")
    assert load("run.safetensors").model.stack == stack
    line = refused(capsys, "train", "mine.txt", "--resume", "--stack", "plain")
    assert f"--stack plain: the run in run.safetensors was started with {stack}, and can't change it" in line
    line = refused(capsys, "train", "--task", "dates", "--stack", stack, "--out", "other")
    assert "no choice 'stack'" in line


@pytest.mark.parametrize(
    "option", [("--memory", "128"), ("--reversible",), ("--universal", "basic"), ("--ponder", "0.1")]
)
def test_an_option_that_there_was_once_says_what_to_write_now(capsys, option):
    with pytest.raises(SystemExit):
        main(["train", *option])
    assert f"{option[0]}: write --stack " in capsys.readouterr().err


def test_a_folder_is_no_checkpoint(folder, capsys):
    (folder / "there").mkdir()
    for more in ((), ("--resume",)):
        said = refused(capsys, "train", "mine.txt", *SMALL, "--out", "there", *more)
        assert "--out 'there' is a folder: a checkpoint needs the name of a file" in said
    assert "mine.txt/run" in refused(capsys, "train", "there", "--out", "mine.txt/run")
    assert "there: Is a directory" in refused(capsys, "train", "there")


def test_a_run_is_not_overwritten(folder, capsys):
    (folder / "run.safetensors").write_bytes(b"precious")
    line = refused(capsys, "train", "mine.txt", *SMALL, "--context", 8, "--steps", 1)
    assert line == "minitransformer: run.safetensors is there already: --resume goes on with it, --out starts another"
    assert (folder / "run.safetensors").read_bytes() == b"precious"


def test_what_a_resumed_run_can_not_change(folder, capsys):
    run(capsys, "train", "mine.txt", *SMALL, "--context", 8, "--steps", 2)
    line = refused(capsys, "train", "mine.txt", "--resume", "--width", 16)
    assert "--width 16: the run in run.safetensors was started with 8, and can't change it" in line
    (folder / "mine.txt").write_text(TEXT * 61)
    line = refused(capsys, "train", "mine.txt", "--resume")
    assert re.search(r"run.safetensors: trained on mine.txt \(sha256 .*…\), and this is mine.txt \(sha256", line)
    line = refused(capsys, "train", "--task", "dates", "--resume")
    assert "--task dates: the run in run.safetensors is of the task text" in line


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "new.txt: No such file or directory"),
        (b"", "new.txt: the text is empty"),
        (b"abc\xff", "new.txt: not UTF-8 (byte 0xff at offset 3"),
        (b"abc" * 20, "new.txt, training part: 54 bytes, too short for a context of 128, which needs 129"),
        (b"abc" * 200, "new.txt, held-out part: 60 bytes, too short for a context of 128, which needs 129"),
    ],
)
def test_a_text_that_can_not_be_learned_from(folder, capsys, content, message):
    if content is not None:
        (folder / "new.txt").write_bytes(content)
    assert message in refused(capsys, "train", "new.txt", "--context", 128)
    assert not (folder / "run.safetensors").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--heads", 3), "not divisible into 3 heads"),
        (("--steps", 0), "minitransformer: --steps: 0 should be at least 1"),
        (("--batch", 0), "batch: 0"),
        (("--context", 0), "context"),
        (("--task", "dates", "--context", 8), "no choice 'context' for dates; there are width"),
        (("--seed", -1), "seed: -1 should be at least 0"),
        (("--lr", "nan"), "lr: nan should be a number"),
        (("--lr", -1), "lr: -1.0 should be above 0"),
        (("--out", "none/run.safetensors"), "none/run.safetensors: the checkpoint can't be written: No such file"),
        (("--out", "mine.txt/run"), "mine.txt/run: the checkpoint can't be written: Not a directory"),
        (("--width", 0), "width: 0 should be at least 1"),
        (("--heads", 0), "heads: 0 should be at least 1"),
        (("--heads", -1), "heads: -1 should be at least 1"),
        (("--groups", 0), "groups: 0 should be at least 1"),
        (("--steps", -5), "steps: -5 should be at least 1"),
        (("--depth", -1), "depth: -1 should be at least 1"),
        (("--depth", 10**9), "width 8, depth 1000000000, batch 4, context 8: that takes about"),
        (("--width", 10**9), "width 1000000000"),
        (("--batch", 10**9), "batch 1000000000"),
        (("--context", 10**9), "context 1000000000"),
        (("--attention", "nonsense"), "attention: no 'nonsense'; there are"),
        (("--positions", "nonsense"), "positions: no 'nonsense'; there are"),
        (("--resume",), "run.safetensors: there is no such file; --resume goes on with the one that --out names"),
        (("--out", ""), "--out '.' is a folder: a checkpoint needs the name of a file"),
        (("--out", "mine.txt/.."), "is a folder: a checkpoint needs the name of a file"),
    ],
)
def test_what_can_not_be_done(folder, capsys, options, message):
    assert message in refused(capsys, "train", "mine.txt", *SMALL, "--context", 8, "--steps", 2, *options)
    assert not (folder / "run.safetensors").exists()


def test_a_run_that_diverges_says_what_may_help_and_leaves_nothing(folder, capsys):
    argv = ("train", "mine.txt", *SMALL, "--context", 8, "--steps", 40)
    line = refused(capsys, *argv, "--lr", 1e9)
    says = r"minitransformer: step \d+: a NaN or an infinity, first seen in \S+; a smaller --lr than 1e\+09 may help"
    assert re.fullmatch(says, line)
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    run(capsys, *argv, "--steps", 1)


def test_a_resumed_run_that_diverges_keeps_its_file(folder, capsys, monkeypatch):
    run(capsys, "train", "mine.txt", *SMALL, "--context", 8, "--steps", 2, "--lr", 0.02)

    def diverges(*args):
        raise TrainingDiverged(3, "params.E")

    monkeypatch.setattr("minitransformer.training.loop.advance", diverges)
    line = refused(capsys, "train", "mine.txt", "--resume", "--steps", 4)
    assert line.endswith(
        "first seen in params.E; a smaller --lr than 0.02 may help; run.safetensors holds the last steps that were "
        "saved, --out starts another"
    )
    assert load("run.safetensors").state.step == 2


def test_files_of_the_reader_beside_a_checkpoint_stay(folder, capsys):
    """`--out poetry` once took `poetry.lock` away, emptied what a link of that name points to, and wrote over `poetry.part`."""
    for name in ("poetry.lock", "poetry.part", "poetry.new", ".poetry.lock", ".poetry.part"):
        (folder / name).write_text(name)
    (folder / "linked.lock").symlink_to(folder / "mine.txt")
    (folder / "linked.part").symlink_to(folder / "mine.txt")
    before = {path: path.read_text() for path in folder.iterdir()}
    for out in ("poetry", "linked"):
        run(capsys, "train", "mine.txt", *SMALL, "--context", 8, "--steps", 1, "--out", out)
        (folder / out).unlink()
    assert {path: path.read_text() for path in folder.iterdir()} == before


def test_dates_come_from_no_file(folder, capsys):
    assert "takes no file" in refused(capsys, "train", "mine.txt", "--task", "dates")


def test_what_generate_refuses(folder, capsys, monkeypatch):
    assert "nothing: there is no such file" in refused(capsys, "generate", "nothing", "the")
    assert "mine.txt: not a checkpoint" in refused(capsys, "generate", "mine.txt", "the")
    run(capsys, "train", "mine.txt", *SMALL, "--context", 8, "--steps", 1)
    for options, message in (
        (("",), "prompt"),
        (("a", "--temperature", -1), "temperature"),
        (("a", "--top-k", 0), "minitransformer: --top-k: 0 should be at least 1"),
        (("a", "--top-p=2"), "minitransformer: --top-p: 2.0 should be in (0, 1]"),
        (("a", "--length", -1), "length: -1"),
        (("a", "--seed", -1), "seed: -1 should be at least 0"),
        (("a", "--length", 10**9), "length: 1000000000 should be within 0 … 1000000"),
    ):
        assert message in refused(capsys, "generate", "run.safetensors", *options)
    monkeypatch.setattr(backend, "_current", None)
    monkeypatch.setenv("MINITRANSFORMER_BACKEND", "foo")
    said = refused(capsys, "generate", "run.safetensors", "a")
    assert said.startswith("minitransformer: MINITRANSFORMER_BACKEND: no tier 'foo'; there are ")


def test_a_prompt_of_any_bytes_is_continued(folder, capsys):
    run(capsys, "train", "mine.txt", *SMALL, "--context", 8, "--steps", 1)
    assert run(capsys, "generate", "run.safetensors", os.fsdecode(b"\xff\xfe"), "--length", 3)


def test_ctrl_c_says_where_the_run_is(folder):
    process = begun(["train", "mine.txt", *SMALL, "--context", "8", "--steps", "100000"], folder)
    process.send_signal(signal.SIGINT)
    stderr, step = process.communicate()[1].decode(), reached(folder)
    assert process.returncode == 130
    assert step >= 1
    assert stderr.endswith(
        f"minitransformer: interrupted after step {step}; the run so far is in run.safetensors; --resume goes on\n"
    )


def test_ctrl_c_leaves_what_a_model_has_written(folder, capsys, monkeypatch):
    run(capsys, "train", "mine.txt", *SMALL, "--context", 8, "--steps", 1)
    drawn = iter(b" sat\x07")

    def draw(P, rng):
        for token in drawn:
            return token
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("minitransformer.models.generate"), "draw", draw)
    every = "--top-k", "256"  # whoever leaves tokens out draws one at a time
    assert main(["generate", "run.safetensors", "the cat", "--length", "100000", *every]) == 130
    assert capsys.readouterr() == ("the cat sat·\n", "minitransformer: interrupted after 5 of 100000 bytes\n")


def test_the_choices_of_a_recipe_can_be_read_back():
    wish = {"width": 16, "depth": 3, "heads": 2, "context": 32, "batch": 8, "steps": 50, "lr": 0.01, "seed": 7}
    wish |= {"attention": ("linear", "softmax"), "positions": "rope", "groups": 1, "ffn": "swiglu"}
    assert choices(*language_model(**wish)) == {**wish, "stack": "plain"}
    for stack in ("transformer-xl:memory=40", "reversible", "universal:halting=accumulated"):
        other = {**wish, "attention": "softmax", "stack": stack}
        assert choices(*language_model(**other)) == other
    wish.pop("context")
    assert choices(*date_translator(**wish)) == wish


@pytest.mark.parametrize("batch", [1, 3, 6, 8])
def test_any_batch_can_be_cut_into_parts(batch):
    _, training = language_model(batch=batch)
    assert training.batch == batch
    assert batch % training.parts == 0


def test_an_unknown_choice_is_refused():
    with pytest.raises(ValueError, match="no choice 'witdh'"):
        language_model(witdh=3)
    with pytest.raises(ValueError, match="no choice 'context'"):
        date_translator(context=3)


@pytest.mark.parametrize("argv", [("train",), ("train", "--task", "dates"), ("generate", "run", "The ")])
def test_the_defaults_of_the_options(argv):
    defaults = vars(parser().parse_args(argv))
    for name in ("command", "run", "checkpoint", "prompt"):
        defaults.pop(name, None)
    given = {name: value for name, value in defaults.items() if value is not None}
    if argv[0] == "train":
        task = argv[-1] if len(argv) > 1 else "text"
        assert given == {"task": task, "out": Path("run.safetensors"), "resume": False}  # the rest is the recipe's
    else:
        assert given == {"length": 400, "temperature": 0.8, "seed": 0}


def test_the_default_recipe_fits_the_default_text():
    """A step of it, as `minitransformer train` makes 2400."""
    model, training = language_model()
    objective = NextByte(python_docs(), model.context)
    assert len(objective.text.held_out) > model.context
    assert model.vocabulary == np.iinfo(np.uint8).max + 1
    assert choices(model, training) == recipes.TEXT
    assert (training.steps, training.batch, training.schedule.warmup) == (2400, 4, 240)
    state = advance(model, objective, training, start(model, training))
    assert tree_size(state.params) == 826_536
    # Nothing is known yet: 8 bits, and what random logits add. The text is that of this Python.
    assert 7 < state.losses[0] < 10


def test_the_default_recipe_for_dates_makes_a_step():
    model, training = date_translator()
    assert choices(model, training) == recipes.DATES
    assert (training.steps, training.batch, training.schedule.warmup) == (1200, 32, 120)
    state = advance(model, WriteISO(), training, start(model, training))
    assert 5 < state.losses[0] < 8  # of 64 characters and three marks


def test_the_count_by_hand():
    """Two layers of width 3 have 12 · 9 + 12 · 3 numbers each, four times over; 5 · 7 tokens leave 12 · 3 in each layer."""
    assert needed({"width": 3, "depth": 2, "batch": 5, "context": 7}) == 4 * (4 * 288 + 5 * 7 * 2 * 36)
    assert needed({"width": 3, "depth": 2, "batch": 5}) == 4 * (4 * 288 + 5 * 2 * 36)


def test_a_model_is_counted_before_it_is_made():
    """Within a factor of two, for the default: its parameters four times over, and what a step remembers."""
    model, training = language_model()
    objective, params = NextByte(python_docs(), model.context), model.init(np.random.default_rng(0))
    _, pullback = objective.loss(model, params, objective.batch(training.batch, np.random.default_rng(0)))
    assert 0.5 < needed(recipes.TEXT) / (4 * tree_bytes(params) + tree_bytes(pullback)) < 2


def reached(folder):
    """The step at which the run that is on disk stands; −1 if there is none."""
    place = folder / "run.safetensors"
    return load(place).state.step if place.exists() else -1


def begun(argv, folder, after=0):
    """A training that has kept a step behind `after`. (Its bar says nothing in a pipe for a minute.)"""
    process = subprocess.Popen([sys.executable, "-m", "minitransformer", *argv], stderr=subprocess.PIPE, cwd=folder)
    while reached(folder) <= after:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    return process


def test_two_trainings_do_not_share_a_checkpoint(folder, capsys):
    """The second one ends with one line; the first one goes on, and can be started again when it is gone."""
    argv = ["train", "mine.txt", *SMALL, "--context", "8", "--steps", "100000"]
    first = begun(argv, folder)
    for more in ([], ["--resume"]):
        line = refused(capsys, *argv, *more)
        assert line == "minitransformer: run.safetensors: another training is writing it"
    assert first.poll() is None
    first.kill()
    first.communicate()
    third = begun([*argv, "--resume"], folder, reached(folder))
    third.kill()
    third.communicate()
