"""Checkpoints: one safetensors file with everything that a run needs to go on. No pickle, so opening one runs no code.

Written next to its final place, flushed to the disk, then renamed over the old one: whatever happens, kill, full disk or
power cut, the file holds either the old checkpoint or the new one, whole. The same state gives the same bytes.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minitransformer import attention, models, positions
from minitransformer.late import late
from minitransformer.machine import circumstances
from minitransformer.pullback import Tree, tree_items
from minitransformer.training import schedule
from minitransformer.training.choices import Training
from minitransformer.training.optimiser import AdamW, AdamWState, with_leaves
from minitransformer.training.state import State

KEY, VERSION = "minitransformer", 2


class CheckpointError(ValueError):
    """A checkpoint can't be read or written; the message says which and why, in one line."""


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
        "model": {
            "class": type(model).__name__,
            **{f.name: _described(getattr(model, f.name)) for f in dataclasses.fields(model)},
        },
        "training": _plain(training),
        "data": data,
        "step": state.step,
        "losses": state.losses,
        "held_out": state.held_out,
        "circumstances": circumstances(),
    }


def save(path: str | Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint in place of the one that may be there.

    raises   CheckpointError if that fails: folder missing, not writable, disk full. The old file is then untouched.
    """
    state = checkpoint.state
    about = {"version": VERSION, "updates": state.optimiser.step, **record(checkpoint)}
    trees = {"params": state.params, "m": state.optimiser.m, "v": state.optimiser.v}
    arrays = {name: np.ascontiguousarray(leaf) for name, leaf in tree_items(trees)}
    to_bytes = late("safetensors.numpy", "a checkpoint").save
    try:
        _replace(Path(path), to_bytes(arrays, {KEY: json.dumps(about)}))
    except OSError as error:
        old = "; the one that was there is untouched" if Path(path).exists() else ""
        raise CheckpointError(f"{path}: the checkpoint can't be written: {error.strerror}{old}") from error


def _replace(path: Path, content: bytes) -> None:
    """Write all of it or nothing."""
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # on the disk before the name points to it
        part.replace(path)
    except BaseException:  # Ctrl-C too
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def load(path: str | Path) -> Checkpoint:
    """Read a checkpoint.

    raises   CheckpointError if there is none, or it is truncated, foreign, of another version, or does not fit its model
    """
    arrays, about = _read(path)
    try:
        model, training = _model(about["model"]), _training(about["training"])
        held_out = tuple((step, loss) for step, loss in about["held_out"])
        losses, step, updates, data = tuple(about["losses"]), about["step"], about["updates"], about["data"]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: its description makes no sense: {type(error).__name__}: {error}") from error
    new = model.init(np.random.default_rng(0))
    params, m, v = (with_leaves(new, _fitting(path, name, new, arrays)) for name in ("params", "m", "v"))
    return Checkpoint(model, training, State(step, params, AdamWState(updates, m, v), losses, held_out), data)


def refuse_other_data(path: str | Path, checkpoint: Checkpoint, data: dict[str, Any]) -> None:
    """Raise CheckpointError unless the run was trained on the data that an objective names: its name and its hash."""
    if checkpoint.data != data:
        raise CheckpointError(f"{path}: trained on {_named(checkpoint.data)}, and this is {_named(data)}")


def _named(data: dict[str, Any]) -> str:
    digest = f" (sha256 {data['sha256'][:12]}…)" if data.get("sha256") else ""
    return f"{data.get('name')}{digest}"


def _read(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    safetensors = late("safetensors", "a checkpoint")
    try:
        Path(path).open("rb").close()  # names what is wrong more clearly
        with safetensors.safe_open(path, framework="np") as file:
            about = (file.metadata() or {}).get(KEY)
            names = file.keys() if about is not None else []
            arrays = {name: file.get_tensor(name) for name in names}
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except OSError as error:
        raise CheckpointError(f"{path}: can't be read: {error.strerror or error}") from error
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path}: not a checkpoint, or a damaged one ({error})") from error
    if about is None:
        raise CheckpointError(f"{path}: a safetensors file, but not a checkpoint of minitransformer")
    try:
        about = json.loads(about)
        version = about["version"]
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path}: its description can't be read ({error})") from error
    if version != VERSION:
        raise CheckpointError(f"{path}: a checkpoint of version {version}; this program reads version {VERSION}")
    return arrays, about


def _fitting(path: str | Path, name: str, new: Tree, arrays: dict[str, Any]) -> Iterator[Any]:
    for leaf_path, leaf in tree_items(new, name):
        found = arrays.get(leaf_path)
        if found is None:
            raise CheckpointError(f"{path}: the array {leaf_path} is missing")
        if found.shape != leaf.shape or found.dtype.kind != "f":
            raise CheckpointError(
                f"{path}: {leaf_path} is {found.dtype} {found.shape}, the model needs {leaf.dtype} {leaf.shape}"
            )
        yield found


def _model(about: dict[str, Any]) -> Any:
    name = about["class"]
    if name not in models.__all__ or not dataclasses.is_dataclass(getattr(models, name)):
        raise ValueError(f"there is no model {name!r}")  # and a file can name nothing else
    return getattr(models, name)(**{field: _made(value) for field, value in about.items() if field != "class"})


def _described(value: Any) -> Any:
    """A kind of attention, an encoding of positions, or a part of one, as its class and fields; anything else as it is."""
    if isinstance(value, (tuple, list)):
        return [_described(part) for part in value]
    if not dataclasses.is_dataclass(value):
        return value
    return {
        "class": type(value).__name__,
        **{f.name: _described(getattr(value, f.name)) for f in dataclasses.fields(value)},
    }


def _made(value: Any) -> Any:
    """The inverse of `_described`, for what the packages of attention and positions offer and nothing else."""
    if not isinstance(value, dict):
        return tuple(map(_made, value)) if isinstance(value, list) else value
    known = {name: getattr(package, name) for package in (attention, positions) for name in package.__all__}
    known |= {made.__name__: made for made in attention.ATTENTIONS.values() if isinstance(made, type)}
    name = value["class"]
    if not dataclasses.is_dataclass(known.get(name)):
        raise ValueError(f"there is no attention and no encoding {name!r}")
    return known[name](**{field: _made(part) for field, part in value.items() if field != "class"})


def _plain(training: Training) -> dict[str, Any]:
    return {
        **dataclasses.asdict(training),
        "schedule": [type(training.schedule).__name__, dataclasses.asdict(training.schedule)],
    }


def _training(about: dict[str, Any]) -> Training:
    kind, choices = about["schedule"]
    optimiser = {**about["optimiser"], "betas": tuple(about["optimiser"]["betas"])}
    schedules = {"Noam": schedule.Noam, "Cosine": schedule.Cosine}
    return Training(**{**about, "schedule": schedules[kind](**choices), "optimiser": AdamW(**optimiser)})
