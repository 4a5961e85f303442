"""The command `minitransformer`: what it can do, and one clear line where it can't."""

import argparse
import inspect
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from minitransformer import __version__, files, terminal
from minitransformer.cli.train import add_generate, add_train, generate, train
from minitransformer.kept_loops import keep_somewhere
from minitransformer.registry import UnknownName, instead

# All else is imported by the commands that need it: `minitransformer --help` should not wait

COMPUTE = ("book", "figures", "exercises", "experiment", "train", "generate", "compile", "which")  # they need the loops
IMPORT = ("attentions", "positions", "stacks", "experiment", "train", "generate", "look", "which")  # they take --import
TLS = {  # for a scheduler at tls://…, unless Dask's own configuration names these files
    "ca_file": "certificate of the authority that has signed the scheduler's",
    "cert": "certificate of this machine",
    "key": "its private key",
}


def run_book(args: argparse.Namespace) -> int:
    """Run notebooks and keep what they give, or compare it with what was kept; or copy them without their outputs."""
    from minitransformer.book import book, navigation

    root = book.repository()
    if args.blank is not None:
        if not args.blank:
            raise ValueError("--blank '': should be the folder that the copy goes to")
        for path in navigation.blank(root, book.choose(root, args.names), Path(args.blank)):
            print(path)
        return 0
    with terminal.ctrl_c_raises():
        if not args.check:
            book.write(root, args.names)
            return 0
        stale = book.check(root, args.names)
    print("\n  ".join(["Not what the notebooks give now:", *stale]) if stale else "All up to date.")
    return bool(stale)


def mark_exercises(args: argparse.Namespace) -> int:
    """Run notebooks, as many at a time as there are cores, each in a process of its own and in its folder, and print which of
    their exercises are right, which are not yet, and which wait for an answer. Their code runs with your permissions: run it on
    a machine that has nothing to lose.
    """
    from minitransformer.book import marking

    with terminal.ctrl_c_raises():
        marking.report(args.files, partial(print, flush=True), args.csv)
    return 0


def draw_figures(args: argparse.Namespace) -> int:
    """Draw the figures anew, without their notebooks."""
    from minitransformer import figures

    modules = figures.modules()
    if unknown := [name for name in args.names if name not in modules]:
        raise ValueError(f"no figure {', '.join(unknown)}; {instead(unknown[0], modules)}")
    print(f"{figures.folder().resolve()}:", flush=True)  # outside a repository it is the folder that one stands in
    for name in args.names or modules:
        needs = [p.name for p in inspect.signature(modules[name].data).parameters.values() if p.default is p.empty]
        if needs:
            print(f"{name:<32} needs {', '.join(needs)}: only its notebook can draw it")
            continue
        start = time.monotonic()
        kept_as = "png" if (figures.folder() / f"fig_{name}.png").is_file() else "svg"  # as its notebook keeps it
        drawn = figures.save(modules[name].draw(modules[name].data()), name, format=kept_as)
        print(f"{drawn.path.name:<32} {time.monotonic() - start:>6.1f} s", flush=True)
    return 0


def run_experiment(args: argparse.Namespace) -> int:
    """Run the trials that a record lacks, on the cores of this machine or on a cluster; without names, list what there is."""
    from minitransformer import experiments
    from minitransformer.experiments.run import listed, missing, other_processor, run

    records = experiments.folder(args.make, args.names)
    if not (args.names or args.all):
        if args.renew:
            raise ValueError("--renew: of which experiment? It takes a name, or --all")
        print("\n".join(map(listed, experiments.modules().values())))
        return 0
    tls = {name: getattr(args, f"tls_{name}") for name in TLS}
    if any(tls.values()) and not all(tls.values()):
        raise ValueError("--tls-ca-file, --tls-cert and --tls-key are needed together")
    for module in [experiments.find(name) for name in args.names or experiments.modules()]:
        if args.make is not None and args.scheduler is None and (other := other_processor(module, records)):
            raise ValueError(
                f"--make {args.make}: its times are of another processor, {other}; give yours a name of its own"
            )
        complete = not args.renew and missing(module, records) == 0
        with terminal.ctrl_c_raises():
            path = run(
                module,
                scheduler=args.scheduler,
                tls=tls if all(tls.values()) else None,
                workers=args.workers,
                renew=args.renew,
                records=records,
                bring=args.brought,
            )
        own = getattr(module, "GROWS", False) and not args.brought
        said = "; --import FILE.py brings an attention of yours, with trials of its own" * own
        print(f"{path}{f': complete, nothing to run; --renew runs all trials again{said}' * complete}")
    return 0


def attentions(args: argparse.Namespace) -> int:
    """List the kinds of attention that a model can be given by name, or describe one of them in full."""
    from minitransformer.cli import catalogue

    print(catalogue.attentions(args.name))
    if args.name is None:
        print("", catalogue.measured(), sep="\n")
    return 0


def positions(args: argparse.Namespace) -> int:
    """List the encodings of positions that a model can be given by name, or describe one of them in full; with --grid, show
    which attention takes which.
    """
    from minitransformer.cli import catalogue

    if args.grid and args.name is not None:
        raise ValueError(f"{args.name} --grid: the grid is of all positions, and takes no name")
    print(catalogue.grid() if args.grid else catalogue.encodings(args.name))
    return 0


def stacks(args: argparse.Namespace) -> int:
    """List the ways in which a model can put its blocks together, or describe one of them in full."""
    from minitransformer.cli import catalogue

    print(catalogue.stacks(args.name))
    return 0


def which(args: argparse.Namespace) -> int:
    """Print which kinds of attention can read n tokens as you need it, what they cost here, and what they have learned. A line
    below the table explains each column.
    """
    from minitransformer.book.which import answer, length

    asked = {name: getattr(args, name) for name in ("causal", "decode", "both_sides", "backward", "measure")}
    for line in answer(length(args.n), **asked):
        print(line, flush=True)
    return 0


def look(args: argparse.Namespace) -> int:
    """Draw what every head of a model that `minitransformer train` has written looks at, in a text of yours."""
    from minitransformer.figures.look import heads, write_heads

    drawn = heads(args.checkpoint, args.text)
    out = args.out or args.checkpoint.with_name(f"{args.checkpoint.stem}_heads.svg")
    write_heads(drawn, out)
    print(out)
    return 0


def compile_all(args: argparse.Namespace) -> int:
    """Compile the loops that are not compiled yet, on all cores: one to two minutes on two; then no chapter waits for them.
    Loops of older sources, which nothing reads any more, are removed.
    """
    from minitransformer.book.compile_loops import compile_loops

    with terminal.ctrl_c_raises():
        compile_loops()
    return 0


def show_equations(args: argparse.Namespace) -> int:
    """Print the equation map, check it and the list of errata, or bring README's table of chapters up to date."""
    from minitransformer.book import book, equations, errata

    if args.check:
        root = book.repository()
        problems = equations.check(root) + errata.check(root)
        if equations.readme(root) != (root / "README.md").read_text(encoding="utf-8"):
            problems.append("README.md: its table of chapters is old: run `minitransformer equations --readme`")
        print("\n".join(problems) if problems else f"{len(equations.load())} rows, no gap.")
        return bool(problems)
    if args.readme:
        path, text = book.repository() / "README.md", equations.readme(book.repository())
        if path.read_text(encoding="utf-8") != text:  # else nothing needs to be writable
            files.write(path, text)
        return 0
    rows = equations.load()
    print(equations.markdown(rows) if args.markdown else equations.table(rows))
    return 0


def make_site(args: argparse.Namespace) -> int:
    """Make web pages of the chapters, from the outputs that are committed, and of everything that they link to."""
    from minitransformer.book import book
    from minitransformer.cli import site

    root = book.repository()
    out = args.out or root / "_site"
    with terminal.ctrl_c_raises():
        site.build(root, out, single=args.single)
    print(out / "index.html")
    if args.serve:
        with site.server(out) as server:
            print(f"http://127.0.0.1:{server.server_port}, until Ctrl-C", flush=True)
            server.serve_forever()
    return 0


def examine(args: argparse.Namespace) -> int:
    """Print what the machine has, and what to do where something is missing."""
    from minitransformer.book.doctor import report

    print(report())
    return 0


class _Help(argparse.HelpFormatter):
    """Counts a command with its indentation, so that its text fits beside it."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        self._action_max_length += 2


def _positive(text: str) -> int:
    with suppress(ValueError):
        if (number := int(text)) >= 1:
            return number
    raise argparse.ArgumentTypeError(f"{text} should be a whole number, at least 1")


def _command(commands: Any, name: str, text: str, run: Any) -> argparse.ArgumentParser:
    """A command that is helped by this text, described by the docstring of what runs it, and run by that."""
    command = commands.add_parser(name, help=text, description=run.__doc__)
    command.set_defaults(run=run)
    return command


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    return _parser_and_commands()[0]


def _parser_and_commands() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    top = argparse.ArgumentParser(
        prog="minitransformer", description="The book on attention that runs.", formatter_class=_Help
    )
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="command")

    command = _command(commands, "book", "run the notebooks", run_book)
    command.add_argument("names", nargs="*", help="chapters, such as 02; all by default")
    one = command.add_mutually_exclusive_group()
    one.add_argument("--check", action="store_true", help="compare with what is there, and change nothing")
    one.add_argument("--blank", metavar="FOLDER", help="a copy of your own, with nothing run yet")

    command = _command(commands, "exercises", "mark notebooks", mark_exercises)
    command.add_argument(
        "files", nargs="+", metavar="FILE.ipynb", type=Path, help="notebooks; with several, a table at the end"
    )
    command.add_argument("--csv", metavar="FILE.csv", type=Path, help="also write that table here, for a spreadsheet")

    command = _command(commands, "figures", "draw the figures", draw_figures)
    command.add_argument("names", nargs="*", help="modules of minitransformer.figures; all by default")

    command = _command(commands, "experiment", "run the trials of an experiment", run_experiment)
    command.add_argument("names", nargs="*", help="experiments; without a name they are listed")
    command.add_argument("--all", action="store_true", help="every experiment")
    command.add_argument(
        "--scheduler", metavar="ADDRESS", help="of a Dask cluster (default: the cores of this machine)"
    )
    for name, text in TLS.items():
        command.add_argument(f"--tls-{name.replace('_', '-')}", metavar="FILE", help=text)
    command.add_argument("--workers", type=_positive, help="processes on this machine (default: one for each core)")
    command.add_argument("--renew", action="store_true", help="run all trials again, not only those that are missing")
    command.add_argument("--make", metavar="NAME", help="keep times beside those of the book, as of this processor")

    for name, text, run in (
        ("attentions", "list the kinds of attention", attentions),
        ("positions", "list the encodings of positions", positions),
        ("stacks", "list the ways to stack blocks", stacks),
    ):
        command = _command(commands, name, text, run)
        command.add_argument("name", nargs="?", help="one of them, to describe in full")
        if name == "positions":
            command.add_argument("--grid", action="store_true", help="which attention takes which, and why not")

    command = _command(commands, "which", "say which attention suits a task", which)
    command.add_argument("--n", required=True, metavar="LENGTH", help="tokens to be read at once, such as 16384 or 16k")
    command.add_argument("--causal", action="store_true", help="no token sees what comes after it")
    command.add_argument("--decode", action="store_true", help="causal, and it can go on token by token from a state")
    command.add_argument("--both-sides", action="store_true", help="a token has to see what comes after it, too")
    command.add_argument("--backward", action="store_true", help="compare times that include the backward pass")
    command.add_argument(
        "--no-measure",
        action="store_false",
        dest="measure",
        help="only the record; by default up to a minute of timing",
    )

    add_train(_command(commands, "train", "train a model", train))
    add_generate(_command(commands, "generate", "continue a prompt with a trained model", generate))

    command = _command(commands, "look", "draw the heads of a trained model", look)
    command.add_argument("checkpoint", type=Path, help="a file that `minitransformer train` has written")
    command.add_argument("text", help="what the model reads, such as a sentence; behind -- if it begins with -")
    command.add_argument("--out", type=Path, help=".svg, .png or .pdf (default: NAME_heads.svg beside the checkpoint)")

    _command(commands, "compile", "compile the loops now", compile_all)

    command = _command(commands, "equations", "show the equation map", show_equations)
    one = command.add_mutually_exclusive_group()
    one.add_argument("--check", action="store_true", help="list gaps and dangling names")
    one.add_argument("--markdown", action="store_true", help="as a Markdown table")
    one.add_argument("--readme", action="store_true", help="write README's table of chapters")

    command = _command(commands, "site", "make web pages of the book", make_site)
    command.add_argument("out", nargs="?", metavar="OUT", type=Path, help="the folder (default: _site)")
    command.add_argument(
        "--serve", action="store_true", help="also serve them to a browser of this machine, at port 8000 if it is free"
    )
    command.add_argument("--single", action="store_true", help="all on one page, to be printed")

    _command(commands, "doctor", "check this machine", examine)
    for name in IMPORT:
        text = "a file of yours, run first: it can register an attention, positions or a stack (may be given several times)"
        commands.choices[name].add_argument(
            "--import", dest="imports", action="append", metavar="FILE.py", type=Path, help=text
        )
    return top, dict(commands.choices)


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The parsed arguments; ends the process with 2 and the usage if they make no sense. Without arguments, prints the help."""
    top, commands = _parser_and_commands()
    argv = (sys.argv[1:] if argv is None else argv) or ["--help"]
    first = argv[0]
    if not first.startswith("-") and first not in commands:
        top.error(f"no command {first!r}; {instead(first, commands)}")
    try:
        args, more = top.parse_known_args(argv)
    except ValueError:  # `--out=--`: argparse takes the dashes away, and then misses them
        top.error("-- can't be the value of an option")
    if more:
        commands.get(first, top).error(f"unrecognized arguments: {' '.join(more)}")
    args.given = {word.partition("=")[0] for word in argv}
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 for trouble, 2 for a wrong call, 130 after Ctrl-C.

    A command that has something to tidy up ends after SIGTERM as after Ctrl-C.
    """
    terminal.prepare()
    try:
        with terminal.ctrl_c_ends():
            return _outcome(parsed(argv))
    except KeyboardInterrupt:
        terminal.say("interrupted", before="\n")
        return 130
    finally:
        terminal.finish()


def _brought(paths: Sequence[Path]) -> list[Any]:
    """The reader's files, each of which has been run."""
    if not paths:
        return []
    from minitransformer.extensions import ReaderFile

    brought = [ReaderFile.read(path) for path in paths]
    for file in brought:
        file.bring()
    return brought


def _run(args: argparse.Namespace) -> Any:
    """What the command does; an error in a reader's file becomes a ValueError that names its line."""
    try:
        return args.run(args)
    except Exception as error:
        for told in filter(None, (file.tells(error) for file in args.brought)):
            raise ValueError(told) from error
        raise


def _outcome(args: argparse.Namespace) -> int:
    from minitransformer.book.running import BookError

    try:
        if args.command in COMPUTE and (place := keep_somewhere()):  # known to every process that the command starts
            terminal.say(f"compiled loops can't be kept where they should be, and are in {place}")
        args.brought = _brought(getattr(args, "imports", None) or [])
        code = _run(args) or 0
        sys.stdout.flush()  # now, while trouble can still be told
        return code
    except BrokenPipeError:  # `minitransformer equations | head`
        return 0
    except OSError as error:
        terminal.say(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or error)
    except (BookError, ValueError, ImportError, MemoryError) as error:
        own = isinstance(error, UnknownName) and args.command in IMPORT and not args.brought
        said = str(error) + "; --import FILE.py brings one of your own" * own
        terminal.say(_of_option(said, args.given) or type(error).__name__)
    return 1


def _of_option(said: str, given: set[str]) -> str:
    """An error that begins with the name of an argument, "top_k: …"; with that of the option, "--top-k: …", if it was given."""
    name, colon, rest = said.partition(":")
    option = f"--{name.replace('_', '-')}"
    return f"{option}{colon}{rest}" if option in given else said
