"""`minitransformer train` and `minitransformer generate`."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minitransformer import terminal
from minitransformer.ranges import so_many
from minitransformer.registry import OLD_FIELDS, written_now
from minitransformer.training.defaults import DATES, TEXT

if TYPE_CHECKING:  # at run time imported by the command that needs it: `minitransformer --help` should not wait
    from minitransformer.training.objective import NextByte, WriteISO

CHOICES = {  # option: type, help
    "steps": (int, "number of updates"),
    "batch": (int, "samples in an update"),
    "lr": (float, "largest learning rate"),
    "seed": (int, "seed of everything random"),
    "width": (int, "D, the width of the model"),
    "depth": (int, "number of blocks"),
    "heads": (int, "attention heads in a block"),
    "groups": (int, "heads of keys and values, if fewer"),
    "attention": (str, "which one: see `minitransformer attentions`; NAME:OPTION=VALUE, or several that take turns"),
    "ffn": (str, "second half of a block: relu, gelu, gelu_tanh; gated glu, reglu, geglu, swiglu, bilinear; or none"),
    "context": (int, "bytes that the model sees (text only)"),
    "stack": (str, "how the blocks are put together: see `minitransformer stacks`; NAME:OPTION=VALUE (text only)"),
    "positions": (str, "how it knows where a byte stands: sinusoidal, learned, rope, rope:base=500, alibi, …"),
}
PROMPT, SAMPLE, TEMPERATURE = "The ", 400, 0.8
EXAMPLES = 8
LONGEST = 10**6  # bytes that are written at once


def add_train(parser: argparse.ArgumentParser) -> None:
    """The options of the command `train`."""
    parser.add_argument("file", nargs="?", type=Path, help="a UTF-8 text; by default the documentation inside Python")
    parser.add_argument(
        "--task", choices=("text", "dates"), default="text", help="next byte, or written dates to ISO dates"
    )
    parser.add_argument("--out", type=Path, default=Path("run.safetensors"), help="checkpoint (default: %(default)s)")
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in the checkpoint; a larger --steps extends it"
    )
    for name, (kind, text) in CHOICES.items():
        form: dict[str, Any] = {"type": kind, "nargs": "+" if name == "attention" else None}
        parser.add_argument(f"--{name}", help=f"{text} ({_usual(name)})", **form)
    for name in OLD_FIELDS:
        if written_now(name, CHOICES):
            parser.add_argument(f"--{name}", nargs="?", action=_Old, help=argparse.SUPPRESS)


class _Old(argparse.Action):
    """An option that the command no longer has: it ends the process, and says what to write instead."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None) -> None:
        parser.error(f"{option}: write --{OLD_FIELDS[self.dest].replace('=', ' ', 1)} instead")


def _usual(name: str) -> str:
    """The default of a choice, and that for dates if it differs."""
    for_text, for_dates = TEXT[name], DATES.get(name, TEXT[name])
    said = "as many as heads" if for_text is None else for_text
    return f"default: {said}" if for_text == for_dates else f"default: {said}; dates: {for_dates}"


def add_generate(parser: argparse.ArgumentParser) -> None:
    """The options of the command `generate`."""
    parser.add_argument("checkpoint", type=Path, help="a file that `minitransformer train` has written")
    parser.add_argument("prompt", help="text to continue, or a date to translate; behind -- if it begins with -")
    parser.add_argument("--length", type=int, default=SAMPLE, help="bytes to write (default: %(default)s)")
    parser.add_argument(
        "--temperature", type=float, default=TEMPERATURE, help="0: always the most probable (default: %(default)s)"
    )
    parser.add_argument("--top-k", type=int, help="draw from the k most probable bytes only")
    parser.add_argument("--top-p", type=float, help="draw from the fewest bytes that reach probability p")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws (default: %(default)s)")


def train(args: argparse.Namespace) -> int:
    """Train a language model on a text, or a translator of dates, and evaluate it on held-out data."""
    from minitransformer.functional import loops_in
    from minitransformer.lazy_import import lazy_import
    from minitransformer.training.checkpoint import alone
    from minitransformer.training.loop import TrainingDiverged, TrainingInterrupted
    from minitransformer.training.loop import train as run
    from minitransformer.training.recipes import choices

    _file_after_attention(args)
    if args.out.name in ("", "..") or args.out.is_dir():
        raise ValueError(f"--out {str(args.out)!r} is a folder: a checkpoint needs the name of a file")
    loops_in("attention"), lazy_import("safetensors.numpy", "a checkpoint")  # imported now, while Ctrl-C simply ends
    try:
        with alone(args.out):
            objective, model, training, state = _go_on(args) if args.resume else _begin(args)
            with terminal.ctrl_c_raises():
                state = run(model, objective, training, state=state, checkpoint=args.out)
    except TrainingInterrupted as interrupted:
        terminal.say(f"{interrupted}; --resume goes on")
        return 130
    except TrainingDiverged as diverged:
        there = f"; {args.out} holds the last steps that were saved, --out starts another" if args.out.exists() else ""
        raise ValueError(
            f"{diverged}; a smaller --lr than {choices(model, training)['lr']:g} may help{there}"
        ) from diverged
    terminal.say("judging the model on what it has not seen ...")  # which takes minutes if it reads on and on
    (_judge_text if args.task == "text" else _judge_dates)(objective, model, state.params)
    print(f"\nsaved in {args.out}")
    return 0


def _file_after_attention(args: argparse.Namespace) -> None:
    """`--attention softmax mine.txt`: argparse takes the text for another kind of attention."""
    from minitransformer.attention.registry import ATTENTIONS

    *others, last = args.attention or [""]
    name = last.partition(":")[0]
    if args.file is None and others and name not in ATTENTIONS and (Path(name).suffix or Path(last).is_file()):
        args.attention, args.file = others, Path(last)


def _begin(args: argparse.Namespace) -> tuple[Any, Any, Any, None]:
    """A new run: objective, model, training, and no state yet."""
    from minitransformer.training.recipes import date_translator, language_model

    if args.out.exists():
        raise ValueError(f"{args.out} is there already: --resume goes on with it, --out starts another")
    model, training = (language_model if args.task == "text" else date_translator)(**_wanted(args))
    return _objective(args, model), model, training, None


def _go_on(args: argparse.Namespace) -> tuple[Any, Any, Any, Any]:
    """The run in the checkpoint, if it is of this task, on this text, and with these choices."""
    from minitransformer.training.checkpoint import load, refuse_other_data
    from minitransformer.training.recipes import choices

    if not args.out.exists():
        raise ValueError(f"{args.out}: there is no such file; --resume goes on with the one that --out names")
    found = load(args.out)
    if found.data.get("task") != args.task:
        raise ValueError(f"--task {args.task}: the run in {args.out} is of the task {found.data.get('task')}")
    wanted, known = _wanted(args), choices(found.model, found.training)
    training = _extended(found.training, wanted.pop("steps", found.training.steps))
    for name, value in wanted.items():
        if known.get(name) != value:
            raise ValueError(
                f"--{name} {value}: the run in {args.out} was started with {known.get(name)}, and can't change it"
            )
    objective = _objective(args, found.model)
    refuse_other_data(args.out, found, objective.data)
    return objective, found.model, training, found.state


def _extended(training: Any, steps: int) -> Any:
    """The same choices for more steps. From here on the rate is that of a run as long, with the same warm-up."""
    from minitransformer.training.schedule import Cosine

    if steps < training.steps:
        raise ValueError(f"--steps {steps}: the run is one of {training.steps}; it can be extended, not cut short")
    schedule = training.schedule
    if isinstance(schedule, Cosine):
        schedule = replace(schedule, steps=steps)
    return replace(training, steps=steps, schedule=schedule)


def _wanted(args: argparse.Namespace) -> dict[str, Any]:
    """The choices that were given as options; one kind of attention as a name, several as a tuple."""
    wanted = {name: getattr(args, name) for name in CHOICES if getattr(args, name) is not None}
    if "attention" in wanted:
        wanted["attention"] = wanted["attention"][0] if len(wanted["attention"]) == 1 else tuple(wanted["attention"])
    return wanted


def _objective(args: argparse.Namespace, model: Any) -> "NextByte | WriteISO":
    """What is trained: dates, or a text, the one that was given or the documentation inside Python."""
    from minitransformer.data.text import python_docs, read_text
    from minitransformer.training.objective import NextByte, Segments, WriteISO

    if args.task == "text":
        kind = Segments if model.body.remembers else NextByte
        return kind(python_docs() if args.file is None else read_text(args.file), model.context)
    if args.file is not None:
        raise ValueError(f"{args.file}: the dates are drawn at random, --task dates takes no file")
    return WriteISO()


def _judge_text(objective: "NextByte", model: Any, params: Any) -> None:
    """Print held-out bits per byte beside those of n-grams, and a sample."""
    from minitransformer.pullback import tree_size
    from minitransformer.training.evaluation import bits_per_byte, judged, table

    text, (small, copies) = objective.text, judged(objective)
    share = f"{copies.mean():.0%}"
    print(
        f"\n{text.name}: {len(text.train):,} bytes to train on, {len(text.held_out):,} held out; of these, {share} are"
    )
    print("copies: they lie in passages of 64 bytes that stand, word for word, in the training text too\n")
    counted, judging = len(small.text.train), len(small.text.held_out)
    if (counted, judging) != (len(text.train), len(text.held_out)):
        print(
            f"a sample: {judging:,} of the bytes held out, and n-grams that were counted in {counted:,} of the others\n"
        )
    print(table(bits_per_byte(objective, model, params)))
    print(f"\n{tree_size(params):,} parameters. How the model goes on after {PROMPT!r}:\n")
    print(terminal.shown(_continue(model, params, PROMPT, SAMPLE)))


def _judge_dates(objective: "WriteISO", model: Any, params: Any) -> None:
    """Print the exact match on held-out dates, and some of them."""
    from minitransformer.data.dates import held_out_set
    from minitransformer.pullback import tree_size

    held_out = held_out_set()
    answers = objective.translate(model, params, held_out.written)
    right = sum(a == b for a, b in zip(answers, held_out.iso, strict=True))
    print(
        f"\nexact match on {len(answers):,} held-out dates: {right / len(answers):.1%} ({tree_size(params):,} parameters)\n"
    )
    for written, answer, iso in list(zip(held_out.written, answers, held_out.iso, strict=True))[:EXAMPLES]:
        print(f"{written:<32} {answer}" + ("" if answer == iso else f"   wrong: {iso}"))


def _continue(model: Any, params: Any, prompt: str, length: int, seed: int = 0, **options: Any) -> str:
    """The prompt and `length` bytes that the model writes after it, as text; the options are those of `generate`."""
    import numpy as np

    from minitransformer.data.text import decode, encode
    from minitransformer.models import generate as continuation

    options = {"temperature": TEMPERATURE, "rng": np.random.default_rng(seed), **options}
    tokens = encode(prompt)
    return decode(np.append(tokens, continuation(model, params, tokens, length, **options)))


def generate(args: argparse.Namespace) -> int:
    """Continue a prompt with a model that `minitransformer train` has written; a translator of dates translates it."""
    from minitransformer.data.text import decode
    from minitransformer.functional import loops_in
    from minitransformer.models.generate import GenerationInterrupted
    from minitransformer.training.checkpoint import load
    from minitransformer.training.objective import WriteISO

    loops_in("attention")  # imported now, while Ctrl-C simply ends
    model, _, state, data = load(args.checkpoint)
    if data.get("task") == "dates":
        usual = {"length": SAMPLE, "temperature": TEMPERATURE, "top_k": None, "top_p": None, "seed": 0}
        if chosen := [name for name, value in usual.items() if getattr(args, name) != value]:
            name = f"--{chosen[0].replace('_', '-')}"
            raise ValueError(f"{name}: this model translates a date, by the most probable characters, and draws none")
        if not args.prompt:
            raise ValueError("prompt: there should be a date")
        print(WriteISO().translate(model, state.params, [args.prompt])[0])
        return 0
    if not 0 <= args.length <= LONGEST:
        raise ValueError(f"length: {args.length} should be within 0 … {LONGEST}")
    if args.seed < 0:
        raise ValueError(f"seed: {args.seed} should be at least 0")
    options = {"temperature": args.temperature, "top_k": args.top_k, "top_p": args.top_p}
    try:
        with terminal.ctrl_c_raises():
            text = _continue(model, state.params, args.prompt, args.length, args.seed, **options)
    except GenerationInterrupted as interrupted:
        print(terminal.shown(args.prompt + decode(interrupted.tokens)), flush=True)
        terminal.say(f"interrupted after {len(interrupted.tokens)} of {so_many(args.length, 'byte')}")
        return 130
    print(terminal.shown(text))
    return 0
