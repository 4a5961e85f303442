import dataclasses
import math
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import plain
from minitransformer.data.text import read_text
from minitransformer.models import LanguageModel
from minitransformer.pullback import tree_leaves
from minitransformer.training.checkpoint import load
from minitransformer.training.choices import Training
from minitransformer.training.loop import BAR, TrainingDiverged, TrainingInterrupted, advance, start, train
from minitransformer.training.objective import LossPullback, NextByte
from minitransformer.training.optimiser import AdamW, global_norm, with_leaves
from minitransformer.training.recipes import usual_training
from minitransformer.training.schedule import Cosine

MODEL = LanguageModel(context=8, width=8, depth=2, heads=2, dropout=0.1)
TRAINING = Training(steps=12, batch=4, schedule=Cosine(1e-2, 12, 2), parts=2, look_every=4, save_every=3)


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("the cat sat on the mat, and that was that. " * 30)
    return path


@pytest.fixture(scope="module")
def objective(text_file):
    return NextByte(read_text(text_file), MODEL.context)


@pytest.fixture(scope="module")
def finished(objective):
    return train(MODEL, objective, TRAINING, progress=False)


def same(a, b):
    pairs = zip(mt.tree_items(a), mt.tree_items(b), strict=True)
    return all(p == q and np.array_equal(x, y) and type(x) is type(y) for (p, x), (q, y) in pairs)


def test_training_learns(objective):
    training = Training(steps=150, batch=8, schedule=Cosine(1e-2, 150, 15), parts=2, look_every=75)
    state = train(LanguageModel(context=8, width=16, depth=1, heads=2), objective, training, progress=False)
    assert state.losses[0] > 5
    assert state.losses[-1] < 1.5
    assert state.held_out[-1][1] < 1.5  # bits per byte; eight without learning anything


def test_the_state_says_what_happened(finished):
    assert finished.step == len(finished.losses) == finished.optimiser.step == 12
    assert [step for step, _ in finished.held_out] == [4, 8, 12]
    assert all(math.isfinite(loss) for loss in finished.losses)


def test_the_bar_is_whole_in_a_terminal_of_80_columns(objective, capsys):
    train(MODEL, objective, TRAINING)
    shown = capsys.readouterr().err.split("\r")[-1].rstrip()
    assert len(re.sub(r"\|.*\|", "||", shown)) <= 75, "more steps take more digits"
    assert re.search(r"step 12/12, \d\.\d{3} bits, held-out \d\.\d{3}$", shown)


def test_the_same_seed_gives_the_same_result(objective, finished):
    assert same(finished, train(MODEL, objective, TRAINING, progress=False))


def test_a_start_without_its_choices_is_refused():
    with pytest.raises(TypeError, match="training: 12 should be Training"):
        start(MODEL, 12)


def test_what_is_drawn_for_the_start_is_that_of_step_0():
    """[seed, 0], beside [seed, s] of step s; in the dtype that is asked for."""
    for dtype in (np.float32, np.float64):
        found = start(MODEL, dataclasses.replace(TRAINING, seed=7), dtype)
        assert same(found.params, MODEL.init(np.random.default_rng([7, 0]), dtype))
        assert {leaf.dtype for _, leaf in mt.tree_items(found.optimiser.m)} == {np.dtype(dtype)}


def test_another_seed_gives_another(objective, finished):
    other = train(MODEL, objective, Training(**{**vars(TRAINING), "seed": 1}), progress=False)
    assert not same(finished.params, other.params)


def test_a_step_changes_no_argument(objective):
    state = start(MODEL, TRAINING)
    before = mt.tree_map(np.copy, (state.params, state.optimiser))
    advance(MODEL, objective, TRAINING, state)
    pairs = zip(mt.tree_items(before), mt.tree_items((state.params, state.optimiser)), strict=True)
    assert all(np.array_equal(a, b) for (_, a), (_, b) in pairs)


def test_the_gradient_of_the_parts_is_that_of_the_batch(objective):
    """In float64, one step with one part, two and four ends at the same parameters."""
    model = LanguageModel(context=8, width=8, depth=1, heads=2)
    ends = []
    for parts in (1, 2, 4):
        training = Training(steps=1, batch=4, schedule=Cosine(1e-2, 1), parts=parts)
        with mt.backend("numpy"):
            ends.append(advance(model, objective, training, start(model, training, np.float64)))
    for end in ends[1:]:
        assert math.isclose(end.losses[0], ends[0].losses[0], rel_tol=1e-13)
        for (path, a), (_, b) in zip(mt.tree_items(ends[0].optimiser.m), mt.tree_items(end.optimiser.m), strict=True):
            assert a.dtype == np.float64
            assert np.allclose(a, b, rtol=0, atol=1e-13 * max(np.abs(a).max(), 1e-3)), path


class Own:
    """A reader's own model: it can be made, and asked."""

    def init(self, rng, dtype=np.float32):
        return MODEL.init(rng, dtype)

    def __call__(self, params, tokens, *, rng=None):
        return MODEL(params, tokens, rng=rng)


def test_a_model_that_says_nothing_of_itself(objective):
    ours, theirs = (advance(model, objective, TRAINING, start(model, TRAINING)) for model in (MODEL, Own()))
    assert same(ours, theirs)


def test_a_run_in_two_halves_is_the_run(objective, finished, tmp_path):
    path = tmp_path / "run.safetensors"
    state = start(MODEL, TRAINING)
    for _ in range(6):
        state = advance(MODEL, objective, TRAINING, state)
    train(MODEL, objective, TRAINING, state=state, checkpoint=path, progress=False)
    assert same(finished, load(path).state)


def test_a_step_clips_and_counts_in_bits(objective):
    model = LanguageModel(context=8, width=8, depth=1, heads=2)
    training = dataclasses.replace(TRAINING, clip=0.01)
    before = start(model, training)
    after = advance(model, objective, training, before)
    beta, _ = training.optimiser.betas
    assert global_norm(after.optimiser.m) == pytest.approx((1 - beta) * 0.01), "m is (1 − β) g after one step"
    loss, _ = objective.loss(model, before.params, objective.batch(4, np.random.default_rng([training.seed, 1])))
    assert after.losses == pytest.approx((float(loss) / math.log(2),))


def the_page(model, training, objective, params):
    """Losses in bits and parameters of a whole run: gradients of `plain.py`, sample by sample, and AdamW as it is printed."""
    (beta_1, beta_2), decay, losses = training.optimiser.betas, training.optimiser.weight_decay, []
    theta = [np.array(leaf) for leaf in tree_leaves(params)]
    m, v = ([np.zeros_like(x) for x in theta] for _ in range(2))
    for t in range(1, training.steps + 1):
        samples = list(zip(*objective.batch(training.batch, np.random.default_rng([training.seed, t])), strict=True))
        found = [plain.loss(params, np.append(x, y[-1]), model.heads) for x, y in samples]
        losses.append(sum(loss for loss, _ in found) / len(found) / math.log(2))
        g = [sum(of) / len(found) for of in zip(*(tree_leaves(grads) for _, grads in found), strict=True)]
        shrink = min(1, training.clip / math.sqrt(sum((each**2).sum() for each in g)))
        for k, each in enumerate(g):
            m[k] = beta_1 * m[k] + (1 - beta_1) * shrink * each
            v[k] = beta_2 * v[k] + (1 - beta_2) * (shrink * each) ** 2
            step = m[k] / (1 - beta_1**t) / (np.sqrt(v[k] / (1 - beta_2**t)) + training.optimiser.eps)
            step += decay * theta[k] * (theta[k].ndim > 1)
            theta[k] = theta[k] - training.schedule(t) * step
        params = with_leaves(params, theta)
    return losses, params


@pytest.mark.parametrize("clip", [0.3, 1e9])
def test_a_run_is_that_of_the_page(clip, objective, tier):
    model, schedule = LanguageModel(context=8, width=8, depth=2, heads=2), Cosine(3e-2, 10, 3, floor=1e-3)
    training = Training(12, 4, schedule, AdamW((0.8, 0.95), 1e-4, 0.3), clip, parts=2, seed=4)
    state = start(model, training, np.float64)
    losses, params = the_page(model, training, objective, state.params)
    for _ in range(training.steps):
        state = advance(model, objective, training, state)
    assert np.allclose(state.losses, losses, rtol=1e-10)
    for (path, ours), (_, theirs) in zip(mt.tree_items(state.params), mt.tree_items(params), strict=True):
        assert np.allclose(ours, theirs, rtol=1e-8, atol=1e-8), path


def test_the_last_step_is_saved_and_looked_at_whatever_its_number(objective, tmp_path):
    training = dataclasses.replace(TRAINING, steps=5, schedule=Cosine(1e-2, 5), look_every=4, save_every=2)
    state = train(MODEL, objective, training, checkpoint=tmp_path / "run.safetensors", progress=False)
    assert [step for step, _ in state.held_out] == [4, 5]
    assert same(state, load(tmp_path / "run.safetensors").state)


PROGRAM = """
import sys, time
from test_loop import MODEL, TRAINING
from minitransformer.data.text import read_text
from minitransformer.training.loop import train
from minitransformer.training.objective import NextByte

class StandsStill(NextByte):
    # from a batch on, until something ends it
    left = int(sys.argv[3])

    def batch(self, size, rng):
        self.left -= 1
        if self.left < 0:
            print("standing", flush=True)
            time.sleep(3600)
        return super().batch(size, rng)

objective = StandsStill(read_text(sys.argv[1]), MODEL.context)
train(MODEL, objective, TRAINING, checkpoint=sys.argv[2], progress=False)
"""


def standing(text_file, path, batches):
    """A training in a process of its own that makes so many steps and no more."""
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    command = [sys.executable, "-c", PROGRAM, str(text_file), str(path), str(batches)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "standing\n", process.stderr.read()
    return process


def test_a_killed_and_resumed_run_is_bit_identical_to_one_that_was_not(text_file, tmp_path):
    path, whole = tmp_path / "killed.safetensors", tmp_path / "whole.safetensors"
    killed = standing(text_file, path, 5)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert 3 <= load(path).state.step < TRAINING.steps
    objective = NextByte(read_text(text_file), MODEL.context)
    train(MODEL, objective, TRAINING, state=load(path).state, checkpoint=path, progress=False)
    train(MODEL, objective, TRAINING, checkpoint=whole, progress=False)
    assert path.read_bytes() == whole.read_bytes()


def test_ctrl_c_leaves_a_checkpoint_and_says_where(text_file, tmp_path):
    path = tmp_path / "run.safetensors"
    process = standing(text_file, path, 8)
    process.send_signal(signal.SIGINT)
    stderr = process.communicate()[1]
    assert load(path).state.step == 8  # a checkpoint was written at 6
    assert f"TrainingInterrupted: interrupted after step 8; the run so far is in {path}" in stderr
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


class Interrupting:
    """An objective whose third batch is a Ctrl-C."""

    def __init__(self, objective):
        self.objective, self.calls = objective, 0

    def __getattr__(self, name):
        return getattr(self.objective, name)

    def batch(self, size, rng):
        self.calls += 1
        if self.calls == 3:
            raise KeyboardInterrupt
        return self.objective.batch(size, rng)


def test_ctrl_c_without_a_checkpoint_hands_over_the_state(objective, finished):
    with pytest.raises(TrainingInterrupted, match=r"interrupted after step 2$") as caught:
        train(MODEL, Interrupting(objective), TRAINING, progress=False)
    assert caught.value.state.step == 2
    assert same(finished, train(MODEL, objective, TRAINING, state=caught.value.state, progress=False))


def broken(params, value):
    """The same parameters with one huge or undefined entry in the queries of the second block."""
    first, second = params.stack.blocks
    W_q = second.attention.W_q.copy()
    W_q[0, 0] = value
    second = second._replace(attention=second.attention._replace(W_q=W_q))
    return params._replace(stack=params.stack._replace(blocks=(first, second)))


@pytest.mark.parametrize("tier", ["numpy", "numba"])
def test_an_overflow_is_reported_by_the_name_of_the_first_array_that_holds_it(objective, tier):
    if tier == "numba":
        pytest.importorskip("numba")
    state = start(MODEL, TRAINING)
    attention = state.params.stack.blocks[1].attention._replace(W_q=np.full((8, 8), 3e38, np.float32))
    second = state.params.stack.blocks[1]._replace(attention=attention)
    stack = state.params.stack._replace(blocks=(state.params.stack.blocks[0], second))
    state = state._replace(params=state.params._replace(stack=stack))
    with mt.backend(tier), pytest.raises(TrainingDiverged) as caught:
        advance(MODEL, objective, TRAINING, state)
    place = "attention.scores.Q" if tier == "numpy" else "attention.Q"
    assert caught.value.path == f"stack.blocks.1.attention.layer.core.{place}"
    assert caught.value.step == 1
    assert str(caught.value) == f"step 1: a NaN or an infinity, first seen in {caught.value.path}"


def test_a_broken_parameter_is_named_rather_than_what_follows_from_it(objective):
    state = start(MODEL, TRAINING)
    with pytest.raises(TrainingDiverged, match=r"step 1: .* params\.stack\.blocks\.1\.attention\.W_q"):
        advance(MODEL, objective, TRAINING, state._replace(params=broken(state.params, np.nan)))


class BadGradient:
    """An objective with a fine loss and a gradient that is not."""

    def __init__(self, objective):
        self.objective = objective

    def __getattr__(self, name):
        return getattr(self.objective, name)

    def loss(self, model, params, batch, rng=None):
        loss, pullback = self.objective.loss(model, params, batch, rng)
        return loss, LossPullback(lambda dlogits: broken(pullback.model(dlogits), np.inf), pullback.cross_entropy)


def test_a_broken_gradient_is_named(objective):
    with pytest.raises(TrainingDiverged, match=r"gradients\.stack\.blocks\.1\.attention\.W_q"):
        advance(MODEL, BadGradient(objective), TRAINING, start(MODEL, TRAINING))


def test_a_diverged_run_keeps_its_last_good_checkpoint(objective, tmp_path):
    path = tmp_path / "run.safetensors"
    wild = Training(steps=12, batch=4, schedule=Cosine(1e30, 12), parts=2, save_every=1, look_every=100)
    with pytest.raises(TrainingDiverged, match=r"step [23]: "):
        train(MODEL, objective, wild, checkpoint=path, progress=False)
    assert load(path).state.step in (1, 2)


@pytest.mark.parametrize("older", [None, b"precious"])
def test_a_run_that_fails_before_a_step_is_saved_leaves_no_new_file(objective, tmp_path, older):
    path = tmp_path / "run.safetensors"
    if older is not None:
        path.write_bytes(older)
    wild = Training(steps=12, batch=4, schedule=Cosine(1e30, 12), parts=2, save_every=10, look_every=100)
    with pytest.raises(TrainingDiverged):
        train(MODEL, objective, wild, checkpoint=path, progress=False)
    assert path.exists() == (older is not None)
    assert [p.name for p in tmp_path.iterdir()] == ([] if older is None else ["run.safetensors"])


def test_a_held_out_loss_that_is_not_finite_ends_the_run(objective):
    wild = Training(steps=1, batch=4, schedule=Cosine(1e38, 1, 1), parts=2)
    with pytest.raises(TrainingDiverged, match="step 1"):
        train(MODEL, objective, wild, progress=False)


def test_the_bar_shows_loss_speed_and_time_left(objective, capsys):
    train(MODEL, objective, TRAINING)
    shown = capsys.readouterr().err
    assert "token/s" in shown
    assert "step 12/12" in shown
    assert "bits, held-out" in shown


@pytest.mark.parametrize("watched", [False, True])
def test_a_file_or_a_pipe_gets_the_bar_once_a_minute(objective, capsys, monkeypatch, watched):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: watched)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setitem(BAR, "mininterval", 0)
    train(MODEL, objective, TRAINING)
    assert (capsys.readouterr().err.count("\r") > 3) == watched


def test_the_bar_of_a_run_that_goes_on_begins_where_it_stopped(objective, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    half = start(MODEL, TRAINING)
    for _ in range(6):
        half = advance(MODEL, objective, TRAINING, half)
    train(MODEL, objective, TRAINING, state=half)
    shown = re.findall(r"(\d+)%", capsys.readouterr().err)
    assert (shown[0], shown[-1]) == ("50", "100")


def test_no_bar_if_none_is_wanted(objective, capsys):
    train(MODEL, objective, TRAINING, progress=False)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"model": None}, "model: NoneType has no init, which a training asks for"),
        ({"objective": "mine.txt"}, "objective: str has no batch, which a training asks for"),
        ({"objective": TRAINING}, "objective: Training has no loss, which a training asks for"),
        ({"training": MODEL}, "training: LanguageModel(.*) should be Training"),
        ({"state": MODEL}, "state: LanguageModel should be State, with the fields step, params, "),
    ],
)
def test_what_a_training_needs_is_named(objective, wrong, said):
    given = {"model": MODEL, "objective": objective, "training": TRAINING, **wrong}
    with pytest.raises(TypeError, match=said):
        train(**given, progress=False)


def test_no_warmup_is_none():
    assert usual_training(100, 4, 1e-2, 0, warmup=0).schedule.warmup == 0
