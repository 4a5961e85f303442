"""The command: what it prints, how it ends, and one clear line where it can't."""

import contextlib
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from minitransformer import __version__, figures
from minitransformer.book import book, equations
from minitransformer.cli import command as cli
from minitransformer.terminal import columns


def command(*args, **environment):
    return subprocess.run(
        [sys.executable, "-m", "minitransformer", *args], capture_output=True, text=True, env=os.environ | environment
    )


def test_it_is_a_module_and_a_script(root):
    run = command("--help")
    assert run.returncode == 0
    for name in ("book", "figures", "train", "generate", "equations", "doctor"):
        assert name in run.stdout


@pytest.mark.parametrize("args", [("nothing",), ("equations", "--check", "--markdown"), ("book", "--chek")])
def test_a_wrong_call_ends_with_2_and_the_usage(args, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(args)
    assert end.value.code == 2
    assert "usage: minitransformer" in capsys.readouterr().err


def test_an_option_too_many_is_told_with_the_usage_of_its_command(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "mine.txt", "--foo"])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("usage: minitransformer train ")
    assert said.endswith("minitransformer train: error: unrecognized arguments: --foo\n")


def test_who_asks_for_nothing_gets_the_help(capsys):
    helps = []
    for args in ((), ("--help",)):
        with pytest.raises(SystemExit) as end:
            cli.main(args)
        assert end.value.code == 0
        helps.append(capsys.readouterr().out)
    assert helps[0] == helps[1]
    assert re.search(r"train +train a model\n", helps[0])


def test_it_tells_its_version(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"minitransformer {__version__}\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("attentions", "bigbrid"), "minitransformer: attention: no 'bigbrid'; near it: bigbird; there are "),
        (("attentions", "BigBird:block=3"), "no 'BigBird'; near it: bigbird; there are "),
        (("positions", "alibbi"), "positions: no 'alibbi'; near it: alibi; there are "),
        (("experiment", "four_attention"), "no experiment 'four_attention'; near it: four_attentions"),
        (("figures", "scale_by_sqrt"), "no figure scale_by_sqrt; near it: scale_by_sqrt_d"),
    ],
)
def test_of_a_mistyped_name_the_nearest_comes_first(args, said, capsys):
    assert cli.main(args) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mistyped", "said"),
    [
        ("whichh", "no command 'whichh'; near it: which; there are book, "),
        ("nothing", "no command 'nothing'; there are book, "),
    ],
)
def test_of_a_mistyped_command_too(mistyped, said, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([mistyped, "--n", "16k"])
    assert end.value.code == 2
    assert f"minitransformer: error: {said}" in capsys.readouterr().err


def test_two_dashes_as_a_value_are_a_wrong_call(capsys):
    """... of any option of any command; Python 3.11 lets them fall, and then misses them. Newer ones take them as a value."""
    (commands,) = (action for action in cli.parser()._actions if action.dest == "command")
    for name, command in commands.choices.items():
        needed = ["x" for action in command._actions if not action.option_strings and action.nargs is None]
        for option in (action.option_strings[-1] for action in command._actions if action.option_strings):
            with contextlib.suppress(SystemExit):
                cli.parsed([name, *needed, f"{option}=--"])
                continue
            assert "usage: minitransformer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (ValueError("text: empty"), "minitransformer: text: empty\n", 1),
        (FileNotFoundError(2, "No such file", "x.txt"), "minitransformer: x.txt: No such file", 1),
        (book.BookError("02, cell 1: x"), "minitransformer: 02, cell 1: x\n", 1),
        (KeyboardInterrupt(), "\nminitransformer: interrupted\n", 130),
    ],
)
def test_trouble_is_one_line_and_a_code(error, line, code, monkeypatch, capsys):
    def fail(*_):
        raise error

    monkeypatch.setattr(equations, "load", fail)
    assert cli.main(["equations"]) == code
    assert capsys.readouterr().err.startswith(line)


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(equations, "load", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["equations"])


def test_a_reader_who_closes_the_pipe_is_no_error():
    run = subprocess.run(
        f"{sys.executable} -m minitransformer equations --markdown | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert run.stdout.startswith("| source |")
    assert run.stderr == ""


def test_equations_are_printed_and_checked(capsys, monkeypatch):
    assert cli.main(["equations"]) == 0
    said = capsys.readouterr().out
    assert "Borealis II" in said
    assert max(map(len, said.splitlines())) <= columns()
    monkeypatch.setattr(equations, "check", lambda root: ["borealis-1: no figure fig_x"])
    assert cli.main(["equations", "--check"]) == 1
    assert "borealis-1: no figure fig_x" in capsys.readouterr().out


def test_readme_is_brought_up_to_date(tmp_path, monkeypatch):
    (tmp_path / "README.md").write_text("old")
    monkeypatch.setattr(book, "repository", lambda: tmp_path)
    monkeypatch.setattr(equations, "readme", lambda root: "new")
    assert cli.main(["equations", "--readme"]) == 0
    assert (tmp_path / "README.md").read_text() == "new"
    monkeypatch.setattr("minitransformer.files.write", None)  # it may lie where nothing can be written
    assert cli.main(["equations", "--readme"]) == 0


def test_check_lists_what_is_stale(monkeypatch, capsys):
    monkeypatch.setattr(book, "check", lambda root, names: [])
    assert cli.main(["book", "--check"]) == 0
    monkeypatch.setattr(book, "check", lambda root, names: [f"{names[0]}, cell 1: changed"])
    assert cli.main(["book", "--check", "02"]) == 1
    assert "02, cell 1: changed" in capsys.readouterr().out


def test_figures_are_drawn_without_their_notebooks(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINITRANSFORMER_FIGURES", str(tmp_path))
    assert cli.main(["figures", "scale_by_sqrt_d"]) == 0
    assert "<svg" in (tmp_path / "fig_scale_by_sqrt_d.svg").read_text()
    (tmp_path / "fig_scale_by_sqrt_d.png").touch()  # its notebook keeps it as PNG
    assert cli.main(["figures", "scale_by_sqrt_d"]) == 0
    assert (tmp_path / "fig_scale_by_sqrt_d.png").read_bytes().startswith(b"\x89PNG")
    assert cli.main(["figures", "no_such"]) == 1
    assert "no figure no_such; there are" in capsys.readouterr().err


def test_outside_a_repository_figures_say_where_they_are(tmp_path, monkeypatch, capsys):
    """They lie in the folder that one stands in."""
    monkeypatch.delenv("MINITRANSFORMER_FIGURES", raising=False)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["figures", "scale_by_sqrt_d"]) == 0
    assert (tmp_path / "fig_scale_by_sqrt_d.svg").is_file()
    assert capsys.readouterr().out.startswith(f"{tmp_path}:\nfig_scale_by_sqrt_d.svg ")


def test_every_module_of_figures_draws():
    assert {"scale_by_sqrt_d", "difference_step"} <= set(figures.modules())
    assert "style" not in figures.modules()


def test_every_command_stands_on_the_line_of_its_text(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli.parser().format_help().splitlines()
    for name in ("experiment", "attentions", "doctor"):
        assert [len(line.split()) > 2 for line in lines if line.split()[:1] == [name]] == [True]


def test_the_grid_takes_no_name(capsys):
    assert cli.main(["positions", "rope", "--grid"]) == 1
    assert capsys.readouterr().err == "minitransformer: rope --grid: the grid is of all positions, and takes no name\n"


def test_renew_needs_the_name_of_an_experiment(capsys):
    assert cli.main(["experiment", "--renew"]) == 1
    assert capsys.readouterr().err == "minitransformer: --renew: of which experiment? It takes a name, or --all\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["which_cost", "--make", "../x"],
            "make '../x' should be a name of small letters, digits and hyphens, such as zen-4",
        ),
        (["which_cost", "--make", ""], "make '' should be a name of small letters, digits and hyphens, such as zen-4"),
        (["which", "--make", "m3"], "make m3: of which experiment? Times of several makes are kept of which_cost"),
        (["--make", "m3"], "make m3: of which experiment? Times of several makes are kept of which_cost"),
    ],
)
def test_a_make_of_processor_has_a_name_and_an_experiment_that_is_timed(capsys, words, said):
    assert cli.main(["experiment", *words]) == 1
    assert capsys.readouterr().err == f"minitransformer: {said}\n"


@pytest.mark.parametrize("given", ["0", "-1", "1.5", "two"])
def test_workers_are_counted(capsys, given):
    with pytest.raises(SystemExit):
        cli.main(["experiment", "token_before", f"--workers={given}"])
    assert f"argument --workers: {given} should be a whole number, at least 1\n" in capsys.readouterr().err


def test_an_experiment_that_lacks_nothing_says_so(capsys):
    """... and of three files of TLS one alone is a mistake."""
    assert cli.main(["experiment", "token_before"]) == 0
    assert capsys.readouterr().out.endswith(
        "token_before.json: complete, nothing to run; --renew runs all trials again\n"
    )
    assert cli.main(["experiment", "which_rope"]) == 0  # of every attention that is registered
    assert capsys.readouterr().out.endswith(
        "all trials again; --import FILE.py brings an attention of yours, with trials of its own\n"
    )
    assert cli.main(["experiment", "token_before", "--tls-cert", "mine.pem"]) == 1
    assert "--tls-ca-file, --tls-cert and --tls-key are needed together" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["attentions", "sigmoid"], ["stacks", "looped"], ["train", "--positions", "slopes", "--steps=1"]]
)
def test_a_name_that_nobody_knows_may_come_from_a_file(words, capsys, tmp_path):
    """What a reader has registered in a file of theirs is there with --import, and unknown without it."""
    assert cli.main(words) == 1
    assert capsys.readouterr().err.endswith("; --import FILE.py brings one of your own\n")
    file = tmp_path / f"nothing_for_{words[0]}.py"
    file.write_text("", encoding="utf-8")
    assert cli.main([*words, "--import", str(file)]) == 1
    assert "--import" not in capsys.readouterr().err, "it was brought, and the name is not in it"


def test_a_figure_that_needs_what_its_notebook_has_is_left_to_it(monkeypatch, capsys):
    monkeypatch.setattr(figures, "modules", lambda: {"mine": SimpleNamespace(data=lambda trained, seed=0: None)})
    assert cli.main(["figures"]) == 0
    said = capsys.readouterr().out.splitlines()[1]
    assert " ".join(said.split()) == "mine needs trained: only its notebook can draw it"
