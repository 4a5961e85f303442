"""Checkpoints: one safetensors file with everything that a run needs to go on. No pickle, so opening one runs no code.

Written in one step (files.py): whatever happens, kill, full disk or power cut, the file holds either the old checkpoint or
the new one, whole. The same state, saved by the same program on the same machine, gives the same bytes. A digest of all bytes
stands among them, so a byte that has changed since is noticed; and the description is compared with the arrays before
anything is made of it (description.py).

A model that was trained in a loop of one's own is saved with its parameters in place of those that `start` draws:

    from minitransformer.training.checkpoint import Checkpoint, save
    from minitransformer.training.choices import Training
    from minitransformer.training.loop import start
    from minitransformer.training.schedule import Cosine

    training = Training(steps=100, batch=4, schedule=Cosine(1e-3, 100))  # what the loop did, or came near
    state = start(model, training)._replace(step=100, params=params)
    save("mine.safetensors", Checkpoint(model, training, state, {"task": "text"}))

Then `load("mine.safetensors")`, `minitransformer generate mine.safetensors` and `minitransformer look` read it. To train on,
`state` needs the means of the optimiser, too: `_replace(optimiser=…)`.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minitransformer import files
from minitransformer.lazy_import import lazy_import
from minitransformer.machine import circumstances
from minitransformer.pullback import Tree, tree_items
from minitransformer.terminal import in_a_line
from minitransformer.training.choices import Training
from minitransformer.training.description import checked_as, described, fitting_model, training_of
from minitransformer.training.optimiser import AdamWState, with_leaves
from minitransformer.training.state import State

KEY, VERSION = "minitransformer", 3
LONGEST_HEADER = 10**8  # bytes; the library safetensors reads no longer one
LONGEST_MESSAGE = 1000  # letters
BLANK = "0" * 64  # where the digest stands, while it is computed
DTYPES = {"F32": np.float32, "F64": np.float64}
HINTS = {  # what is described besides the model and the training, and its types
    "step": int,
    "updates": int,
    "losses": tuple[float, ...],
    "held_out": tuple[tuple[int, float], ...],
    "data": dict,
    "circumstances": dict,
}


class CheckpointError(ValueError):
    """A checkpoint can't be read or written; the message says which and why, in one line, whatever stands in the file."""

    def __init__(self, message: str) -> None:
        super().__init__(in_a_line(message, LONGEST_MESSAGE))


class Checkpoint(NamedTuple):
    """The model (its class is one of `minitransformer.models`), the choices of the run, its state, and what names the data."""

    model: Any
    training: Training
    state: State
    data: dict[str, Any]


def record(checkpoint: Checkpoint) -> dict[str, Any]:
    """All but the arrays, ready for JSON: choices, seed, hash of the text, losses, and versions and machine of this process."""
    model, training, state, data = checkpoint
    return {
        "model": described(model),
        "training": described(training),
        "data": data,
        "step": state.step,
        "losses": state.losses,
        "held_out": state.held_out,
        "circumstances": circumstances(),
    }


# ----------------------------------------------------------------------------------------------- writing


def save(path: str | Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, and replace the one that is there, if any.

    raises   CheckpointError if that fails: folder missing, not writable, disk full, or anything that `load` would refuse. The
             old file is then untouched. TypeError for what is no Checkpoint, or holds no State with an AdamWState. ImportError
             without the package safetensors
    """
    state: Any = getattr(checkpoint, "state", None)
    for name, part, kind in (
        ("checkpoint", checkpoint, Checkpoint),
        ("state", state, State),
        ("optimiser", getattr(state, "optimiser", None), AdamWState),
    ):
        if not isinstance(part, kind):
            raise TypeError(f"{name}: {type(part).__name__} should be {kind.__name__}({', '.join(kind._fields)})")
    about = {"version": VERSION, "digest": BLANK, "updates": state.optimiser.step, **record(checkpoint)}
    trees = {"params": state.params, "m": state.optimiser.m, "v": state.optimiser.v, "carried": state.carried}
    arrays = {name: np.ascontiguousarray(leaf) for name, leaf in tree_items(trees)}
    to_bytes = lazy_import("safetensors.numpy", "a checkpoint").save
    from_bytes = lazy_import("safetensors", "a checkpoint").deserialize
    try:
        text = json.dumps(about, allow_nan=False)
        content = to_bytes(arrays, {KEY: text})
        _restored(from_bytes(content), json.loads(text), len(content))  # what can't be read is not written
        files.write(path, content.replace(BLANK.encode(), _digest(content).encode(), 1))
    except (TypeError, ValueError) as error:  # a choice that a file has no word for
        raise CheckpointError(f"{path}: the checkpoint can't be written: {error}") from error
    except OSError as error:
        old = "; the one that was there is untouched" if Path(path).exists() else ""
        raise CheckpointError(f"{path}: the checkpoint can't be written: {error.strerror}{old}") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def alone(path: str | Path) -> Iterator[None]:
    """In this block no other process can enter one with the same checkpoint. The lock ends with its process.

    raises   CheckpointError if another is there already, or nothing can be written there
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(files.alone(path))
        except files.InUse:
            raise CheckpointError(f"{path}: another training is writing it") from None
        except OSError as error:
            raise CheckpointError(f"{path}: the checkpoint can't be written: {error.strerror}") from error
        yield


# ----------------------------------------------------------------------------------------------- reading


def load(path: str | Path) -> Checkpoint:
    """Read a checkpoint.

    raises   CheckpointError if there is none, or it is damaged, foreign, of another version, or does not fit its model;
             ImportError without the package safetensors
    """
    content, about = _read(path)
    try:
        return _restored(lazy_import("safetensors", "a checkpoint").deserialize(content), about, len(content))
    except Exception as error:  # made by hand: there is no end to what may be in it
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise CheckpointError(f"{path}: {kind}{' '.join(str(error).split())}") from error


def _read(path: str | Path) -> tuple[bytes, dict[str, Any]]:
    """All bytes and the description in them, if they are those that were written."""
    lazy_import("safetensors", "a checkpoint")
    try:
        if Path(path).is_fifo():
            raise CheckpointError(f"{path}: a pipe is not a checkpoint: it can't be read twice")
        with Path(path).open("rb") as file:
            text = _description(file, path)
            file.seek(0)
            content = b"" if text is None else file.read()
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except OSError as error:
        raise CheckpointError(f"{path}: can't be read: {error.strerror or error}") from error
    except CheckpointError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a checkpoint, or a damaged one ({error})") from error
    if text is None:
        raise CheckpointError(f"{path}: a safetensors file, but not a checkpoint of minitransformer")
    try:
        about = json.loads(text)
        version, digest = about["version"], str(about.get("digest")).encode("ascii", "replace")
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: its description can't be read ({error})") from error
    if version != VERSION:
        raise CheckpointError(f"{path}: a checkpoint of version {version}; this program reads version {VERSION}")
    if len(digest) != len(BLANK) or _digest(content.replace(digest, BLANK.encode(), 1)).encode() != digest:
        raise CheckpointError(f"{path}: damaged: its bytes are not those that were written")
    return content, about


def _description(file: Any, path: str | Path) -> str | None:
    """What the header of a safetensors file says under our name: its length in 8 bytes, then JSON.

    raises   ValueError if there is no header, CheckpointError if it speaks of more bytes than there are, or of fewer
    """
    length, size = int.from_bytes(file.read(8), "little"), os.fstat(file.fileno()).st_size
    if not 0 < length < size or length > LONGEST_HEADER:
        raise ValueError("it has no header")
    header = json.loads(file.read(length).decode())
    text = header.get("__metadata__", {}).get(KEY)
    if not isinstance(text, str):
        return None
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    if (said := 8 + length + max(ends, default=0)) != size:  # no need to read them all
        raise CheckpointError(f"{path}: damaged: its header speaks of {said} bytes, and it has {size}")
    return text


def _restored(entries: list[tuple[str, dict[str, Any]]], about: dict[str, Any], size: int) -> Checkpoint:
    """The checkpoint of a description and its arrays. Raises ValueError, which names the field or the array."""
    if odd := sorted({*HINTS, "version", "digest", "model", "training"} ^ about.keys()):
        raise ValueError(f"{odd[0]}: {'not a part of a checkpoint' if odd[0] in about else 'is missing'}")
    said = {name: checked_as(hint, _tuples(about[name]), name) for name, hint in HINTS.items()}
    arrays = dict(entries)
    model, form = fitting_model(about["model"], {name: tuple(entry["shape"]) for name, entry in arrays.items()}, size)
    training = training_of(about["training"])
    carried = tuple(_carried(arrays, model, training))
    params, m, v = with_leaves((form, form, form), _fitting({"params": form, "m": form, "v": form}, arrays))
    state = State(said["step"], params, AdamWState(said["updates"], m, v), said["losses"], said["held_out"], carried)
    return Checkpoint(model, training, state, said["data"])


def _carried(arrays: dict[str, Any], model: Any, training: Training) -> Iterator[Any]:
    """What the last step left for the next one, taken out of the arrays: the memory of each block, or nothing."""
    depth, longest = getattr(model, "depth", 0), getattr(getattr(model, "body", None), "memory", 0)
    names = [name for k in range(depth) if (name := f"carried.{k}") in arrays]
    for name in names:
        entry = arrays.pop(name)
        shape = batch, rows, width = tuple(entry["shape"])
        if (len(names), batch, width) != (depth, training.batch, model.width) or rows > longest:
            raise ValueError(f"{name}: {shape} is not what {depth} blocks remember of {training.batch} streams")
        yield np.frombuffer(entry["data"], DTYPES[entry["dtype"]]).reshape(shape)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _fitting(trees: Tree, arrays: dict[str, Any]) -> Iterator[Any]:
    """The arrays in the order of the trees, whose shapes they have; all of one dtype, and no array more."""
    dtypes = {entry["dtype"] for entry in arrays.values()}
    if dtypes == set(DTYPES):
        raise ValueError(
            "arrays of F32 and of F64; all should be of one dtype, as start(model, training, dtype=…) makes them"
        )
    dtype = "F64" if dtypes == {"F64"} else "F32"
    wanted = dict(tree_items(trees))
    if odd := sorted(wanted.keys() ^ arrays.keys()):
        raise ValueError(f"the array {odd[0]} {'is missing' if odd[0] in wanted else 'belongs to nothing'}")
    for name, leaf in wanted.items():
        found = arrays[name]["dtype"], tuple(arrays[name]["shape"])
        if found != (dtype, leaf.shape):
            raise ValueError(f"{name} is {found[0]} {found[1]}, the model needs {dtype} {leaf.shape}")
        yield np.frombuffer(arrays[name]["data"], DTYPES[dtype]).reshape(leaf.shape)


def refuse_other_data(path: str | Path, checkpoint: Checkpoint, data: dict[str, Any]) -> None:
    """Raise CheckpointError unless the run was trained on the data that an objective names: its name and its hash."""
    if checkpoint.data != data:
        raise CheckpointError(f"{path}: trained on {_named(checkpoint.data)}, and this is {_named(data)}")


def _named(data: dict[str, Any]) -> str:
    """The data in an error: their name, and the beginning of their hash if they have one."""
    digest = f" (sha256 {str(data['sha256'])[:12]}…)" if data.get("sha256") else ""
    return f"{data.get('name', 'data without a name')}{digest}"
