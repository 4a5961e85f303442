"""The rules for a model with the part in it: it writes token by token, it learns, and it can be saved and loaded."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minitransformer.attention import MultiHeadAttention
from minitransformer.attention.core import Part
from minitransformer.backend import backend
from minitransformer.contract.parts import called, can, differ, keep, mixer, model_with, positions_for, rows, some
from minitransformer.data.text import Text
from minitransformer.pullback import Tree, tree_items
from minitransformer.ranges import so_many
from minitransformer.training.checkpoint import Checkpoint, load, save
from minitransformer.training.choices import Training
from minitransformer.training.loop import start, train
from minitransformer.training.objective import NextByte
from minitransformer.training.schedule import Cosine

MANY = 2000  # calls of after_step
LETTERS = np.frombuffer(b"abcdefgh ijkl. ", np.uint8) % 40
PIECES = ((0, 80, 1, 0, 1, 1), (1, 1, 5, 70, 1), (3, 64, 2, 2))  # new tokens, step after step


def one_by_one(part: Part, *, positions: str, pieces: Sequence[int], tier: str) -> None:
    """A model that goes on from a state says the same as when it reads all at once."""
    positions = positions if positions in positions_for(part) else positions_for(part)[0]
    model = model_with(part, positions=positions)
    params = model.init(np.random.default_rng(0), np.float64)
    tokens = np.random.default_rng(1).integers(0, 40, (2, sum(pieces)))
    with backend(tier):
        whole, _ = model(params, tokens)
        state = None
        for n in pieces:
            first = 0 if state is None else state.length
            logits, state = model.step(params, tokens[:, first : first + n], state)
            keep(
                state.length == first + n, f"{so_many(n, 'token')} after {first}, and a state of length {state.length}"
            )
            if part.looks_ahead:  # then what follows must not be there
                whole, _ = model(params, tokens[:, : state.length])
            there = whole[:, first : state.length]
            far = differ(logits, there, 1e-10)
            keep(
                not far,
                f"step differs from the whole: {so_many(n, 'token')} after {first}, positions {positions}, {far}",
            )


def state_continued_twice(part: Part, *, tier: str) -> None:
    """Two ways to go on from one state don't get into each other's way, and the state is as it was."""
    model = model_with(part, positions=positions_for(part)[0])
    params = model.init(np.random.default_rng(0), np.float64)
    first, a, b = np.random.default_rng(1).integers(0, 40, (3, 1, 6))
    with backend(tier):
        _, state = model.step(params, first)
        alone = model.step(params, b, model.step(params, first)[1])[1]  # where nobody else goes on
        expected, _ = model.step(params, a, alone)
        said = [model.step(params, tokens, state) for tokens in (a, b, a)]
        onwards, _ = model.step(params, a, said[1][1])
    far = differ(said[0][0], said[2][0], 1e-10)
    keep(not far, f"a state was changed: going on from it as before gives numbers that differ {far}")
    far = differ(onwards, expected, 1e-10)
    keep(not far, f"a state was changed by another that goes on from the same one: its numbers differ {far}")
    keep(differ(onwards, said[0][0], 1e-10), "a state does not know what was read")
    keep(state.length == 6, f"the state of 6 tokens has the length {state.length}")


def trained(part: Part, steps: int = 10) -> tuple[Any, Any, Any, Any]:
    """A model after a few steps: model, objective, training, state."""
    letters = np.resize(LETTERS, 4000)
    model, objective = model_with(part), NextByte(Text(letters, letters[:600], "letters", ""), 24)
    training = Training(steps, 4, Cosine(2e-2, steps, 1), parts=2, look_every=steps)
    return model, objective, training, train(model, objective, training, progress=False)


def learns(part: Part, *, tier: str) -> None:
    """The loss falls, everything stays finite, and what no gradient moves is moved by hand, if it says so, or stays."""
    with backend(tier):
        model, _, training, after = trained(part)
        before = start(model, training)
    first, last = after.losses[0], after.losses[-1]
    keep(last < first, f"the loss was {first:.3f} before ten steps of training and is {last:.3f} after them")
    for path, array in tree_items(after.params):
        keep(np.isfinite(array).all(), f"after ten steps of training, {path} is not finite")
    if model.body.moves:
        still = [path for path in model.body.untrained if f"stack.{path}" not in _moved(before.params, after.params)]
        later = _many_steps_later(model, after.params) if still else after.params
        still = [path for path in still if f"stack.{path}" not in _moved(after.params, later)]
        keep(
            not still,
            f"it says that after_step moves its parameters, and in {MANY:,} calls {still} stay; "
            "if an option delays it for longer, ask again with a smaller one, as 'performer:redraw=3'",
        )
    own = isinstance(part, MultiHeadAttention) or type(part).after_step is not Part.after_step
    keep(own or not part.moves, "it says that after_step moves its parameters, and has no after_step of its own")
    keep(part.moves or not own or _stays(part), "after_step does something: it needs moves = True")


def _moved(before: Tree, after: Tree) -> set[str]:
    """Paths of the parameters that are no longer what they were."""
    return {path for (path, a), (_, b) in zip(tree_items(before), tree_items(after), strict=True) if (a != b).any()}


def _stays(part: Part) -> bool:
    """Whether `after_step` leaves the parameters as they are."""
    layer = mixer(part)
    params = some(layer)
    _, pullback = called(layer, params, rows(part, 2, 9), causal=can(part, True))
    return not _moved(params, layer.after_step(params, layer.observe(pullback), np.random.default_rng(2)))


def _many_steps_later(model: Any, params: Tree) -> Tree:
    """What many calls of `after_step` make of the parameters, after one text: some parts move theirs only now and then."""
    _, pullback = model(params, np.random.default_rng(1).integers(0, 40, (2, 24)))
    observed = model.observe(pullback)
    for step in range(MANY):
        params = model.after_step(params, observed, np.random.default_rng([2, step]))
    return params


def saved_and_loaded(part: Part) -> None:
    """Model and state come back from a file as they were."""
    model, objective, training, state = trained(part, steps=2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.safetensors"
        save(path, Checkpoint(model, training, state, objective.data))
        found = load(path)
    keep(found.model == model, f"the model comes back as another one: {found.model}")
    for (where, a), (_, b) in zip(tree_items(found.state), tree_items(state), strict=True):
        keep(np.array_equal(a, b), f"{where} comes back with other numbers")
