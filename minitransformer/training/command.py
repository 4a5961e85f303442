"""`minitransformer train` and `minitransformer generate`."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time imported by the command that needs it: `minitransformer --help` should not wait
    from minitransformer.training.checkpoint import Checkpoint
    from minitransformer.training.objective import NextByte, WriteISO

CHOICES = {  # option: type, help
    "steps": (int, "number of updates"),
    "batch": (int, "samples in an update"),
    "rate": (float, "largest learning rate"),
    "seed": (int, "of everything random"),
    "width": (int, "D, the width of the model"),
    "depth": (int, "number of blocks"),
    "heads": (int, "attention heads in a block"),
    "context": (int, "bytes that the model sees (text only)"),
}
PROMPT, SAMPLE, TEMPERATURE = "The ", 400, 0.8
EXAMPLES = 8


def add_train(commands: Any) -> None:
    """Add the command `train` to a parser."""
    parser = commands.add_parser("train", help="train a model", description=train.__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="a UTF-8 text; by default the documentation inside Python")
    parser.add_argument("--task", choices=("text", "dates"), default="text", help="next byte, or written dates to ISO dates")
    parser.add_argument("--out", type=Path, default=Path("run.safetensors"), help="checkpoint (default: %(default)s)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the checkpoint")
    for name, (kind, text) in CHOICES.items():
        parser.add_argument(f"--{name}", type=kind, help=text)
    parser.set_defaults(run=train)


def add_generate(commands: Any) -> None:
    """Add the command `generate` to a parser."""
    parser = commands.add_parser("generate", help="continue a prompt with a trained model", description=generate.__doc__)
    parser.add_argument("checkpoint", type=Path, help="a file that `minitransformer train` has written")
    parser.add_argument("prompt", help="text to continue, or a date to translate")
    parser.add_argument("--length", type=int, default=SAMPLE, help="bytes to write (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=TEMPERATURE, help="0: always the most probable (default: %(default)s)")
    parser.add_argument("--top-k", type=int, help="draw from the k most probable bytes only")
    parser.add_argument("--top-p", type=float, help="draw from the fewest bytes that reach probability p")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default: %(default)s)")
    parser.set_defaults(run=generate)


def train(args: argparse.Namespace) -> int:
    """Train a language model on a text, or a translator of dates, and judge it on what it has not seen."""
    from minitransformer.training.checkpoint import load
    from minitransformer.training.loop import TrainingInterrupted
    from minitransformer.training.loop import train as run

    wanted = {name: getattr(args, name) for name in CHOICES if getattr(args, name) is not None}
    objective, model, training = _plan(args, wanted)
    state = None
    if args.resume:
        _, _, state, _ = found = load(args.out, data=objective.data)
        model, training = found.model, found.training
        _refuse_changes(args.out, found, wanted)
    elif args.out.exists():
        raise ValueError(f"{args.out} is there already: --resume goes on with it, --out starts another")
    try:
        state = run(model, objective, training, state=state, checkpoint=args.out)
    except TrainingInterrupted as interrupted:
        print(f"minitransformer: {interrupted}; --resume goes on", file=sys.stderr)
        return 130
    (_judge_text if args.task == "text" else _judge_dates)(objective, model, state.params)
    print(f"\nsaved in {args.out}")
    return 0


def _plan(args: argparse.Namespace, wanted: dict[str, Any]) -> tuple[Any, Any, Any]:
    """What to do, with which model, and how."""
    from minitransformer.data.text import python_docs, read_text
    from minitransformer.training.objective import NextByte, WriteISO
    from minitransformer.training.recipes import date_translator, language_model

    if args.task == "dates":
        if args.file is not None or "context" in wanted:
            raise ValueError("--task dates draws its dates itself: it takes no file and no --context")
        return WriteISO(), *date_translator(**wanted)
    model, training = language_model(**wanted)
    text = python_docs() if args.file is None else read_text(args.file)
    return NextByte(text, model.context), model, training


def _refuse_changes(path: Path, found: "Checkpoint", wanted: dict[str, Any]) -> None:
    from minitransformer.training.recipes import choices

    known = choices(found.model, found.training)
    for name, value in wanted.items():
        if known.get(name) != value:
            raise ValueError(f"--{name} {value}: the run in {path} was started with {known.get(name)}, and can't change it")


def _judge_text(objective: "NextByte", model: Any, params: Any) -> None:
    """Print held-out bits per byte beside those of n-grams, and a sample."""
    from minitransformer.data.text import copied
    from minitransformer.pullback import tree_size
    from minitransformer.training.judge import bits_per_byte, table

    text = objective.text
    copies = copied(text.held_out, text.train).mean()
    print(f"\n{text.name}: {len(text.train):,} bytes to train on, {len(text.held_out):,} held out; of these, {copies:.0%} are")
    print("copies: they lie in passages of 64 bytes that stand, word for word, in the training text too\n")
    print(table(bits_per_byte(objective, model, params)))
    print(f"\n{tree_size(params):,} parameters. How the model goes on after {PROMPT!r}:\n")
    print(_continue(model, params, PROMPT, SAMPLE))


def _judge_dates(objective: "WriteISO", model: Any, params: Any) -> None:
    """Print the exact match on held-out dates, and some of them."""
    from minitransformer.data.dates import held_out_set
    from minitransformer.pullback import tree_size

    held_out = held_out_set()
    answers = objective.translate(model, params, held_out.written)
    right = sum(a == b for a, b in zip(answers, held_out.iso, strict=True))
    print(f"\nexact match on {len(answers):,} held-out dates: {right / len(answers):.1%} ({tree_size(params):,} parameters)\n")
    for written, answer, iso in list(zip(held_out.written, answers, held_out.iso, strict=True))[:EXAMPLES]:
        print(f"{written:<32} {answer}" + ("" if answer == iso else f"   wrong: {iso}"))


def _continue(model: Any, params: Any, prompt: str, length: int, seed: int = 0, **options: Any) -> str:
    import numpy as np

    from minitransformer.data.text import decode, encode
    from minitransformer.models import generate as continuation

    options = {"temperature": TEMPERATURE, **options}
    tokens = encode(prompt)
    return decode([*tokens, *continuation(model, params, tokens, length, rng=np.random.default_rng(seed), **options)])


def generate(args: argparse.Namespace) -> int:
    """Continue a prompt with a model that `minitransformer train` has written; a translator of dates translates it."""
    from minitransformer.training.checkpoint import load
    from minitransformer.training.objective import WriteISO

    model, _, state, data = load(args.checkpoint)
    if data["task"] == "dates":
        print(WriteISO().translate(model, state.params, [args.prompt])[0])
        return 0
    options = {"temperature": args.temperature, "top_k": args.top_k, "top_p": args.top_p}
    print(_continue(model, state.params, args.prompt, args.length, args.seed, **options))
    return 0
