import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load as arrays_in
from safetensors.numpy import save as to_bytes

import minitransformer as mt
from minitransformer import cli, files
from minitransformer.models import EncoderDecoder, LanguageModel
from minitransformer.training import checkpoint
from minitransformer.training.checkpoint import (
    BLANK,
    KEY,
    Checkpoint,
    CheckpointError,
    alone,
    load,
    record,
    refuse_other_data,
    save,
)
from minitransformer.training.choices import Training
from minitransformer.training.loop import start
from minitransformer.training.optimiser import AdamW
from minitransformer.training.schedule import Cosine, Noam

DATA = {"task": "text", "name": "mine.txt", "sha256": "ab" * 32}
TRAINING = Training(steps=20, batch=4, schedule=Cosine(1e-3, 20, 2), optimiser=AdamW((0.8, 0.9), 1e-7, 0.2), seed=3)
MODEL = LanguageModel(context=6, width=8, depth=2, heads=2)


def made(model=MODEL, training=TRAINING, seed=0, dtype=np.float32):
    """A checkpoint of a run in the middle, with every array different."""
    rng = np.random.default_rng(seed)
    state = start(model, training, dtype)
    m, v = mt.random_like(state.params, rng), mt.random_like(state.params, rng)
    optimiser = state.optimiser._replace(step=7, m=m, v=v)
    state = state._replace(step=7, optimiser=optimiser, losses=(3.25, 1 / 3, 0.1), held_out=((5, 2 / 3),))
    return Checkpoint(model, training, state, DATA)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.safetensors"


def assert_same(a, b):
    assert a._replace(state=None) == b._replace(state=None)
    for (p, x), (q, y) in zip(mt.tree_items(a.state), mt.tree_items(b.state), strict=True):
        assert p == q
        assert type(x) is type(y), p
        assert np.array_equal(x, y), p
        assert np.asarray(x).dtype == np.asarray(y).dtype, p


@pytest.mark.parametrize(
    "checkpoint",
    [
        made(),
        made(dtype=np.float64),
        made(LanguageModel(width=8, depth=1, heads=2, positions="sinusoidal", order="post", norm="rms")),
        made(EncoderDecoder(11, width=8, depth=1, heads=2), Training(20, 4, Noam(64, 100))),
    ],
    ids=["language model", "float64", "post-norm", "encoder-decoder"],
)
def test_what_is_saved_is_what_is_loaded(path, checkpoint):
    save(path, checkpoint)
    assert_same(load(path), checkpoint)


def test_updates_are_counted_by_the_optimiser_and_arrays_may_lie_as_they_like(path):
    """Who goes on with a new optimiser has made fewer updates than steps; and Wᵀ may be the array that was trained."""
    checkpoint = made()
    state = checkpoint.state
    params = mt.tree_map(lambda a: a.T.copy().T, state.params)
    assert not params.stack.blocks[0].attention.W_q.flags.c_contiguous
    checkpoint = checkpoint._replace(state=state._replace(params=params, optimiser=state.optimiser._replace(step=2)))
    assert state.step != 2
    save(path, checkpoint)
    assert_same(load(path), checkpoint)


def test_what_numpy_counted_is_saved_like_any_number(path):
    numbers = {"width": np.int64(8), "depth": np.int32(2), "dropout": np.float32(0.25), "outputs": np.int64(256)}
    model = LanguageModel(context=6, heads=2, ffn=np.str_("relu"), attention=["softmax", "linear"], **numbers)
    assert {type(value) for value in (model.width, model.depth, model.dropout, model.outputs)} == {int, float}
    assert type(model.ffn) is str
    save(path, made(model))
    assert repr(load(path).model) == repr(model)
    assert hash(load(path).model) == hash(model)


def test_the_same_state_gives_the_same_bytes(path, tmp_path):
    save(path, made())
    save(tmp_path / "other", made())
    assert path.read_bytes() == (tmp_path / "other").read_bytes()


def test_the_file_is_safetensors_with_readable_names(path):
    save(path, made())
    names = set(arrays_in(path.read_bytes()))
    assert {"params.E", "m.stack.blocks.1.attention.W_q", "v.E"} <= names


def test_only_the_checkpoint_is_left_in_the_folder(path):
    for seed in range(3):
        save(path, made(seed=seed))
        assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert_same(load(path), made(seed=2))


def test_a_record_is_json_and_says_how_to_repeat_the_run():
    said = json.loads(json.dumps(record(made())))
    assert said["model"]["class"] == "LanguageModel"
    assert said["model"]["width"] == 8
    assert said["training"]["seed"] == 3
    assert said["training"]["schedule"] == {"class": "Cosine", "peak": 1e-3, "steps": 20, "warmup": 2, "floor": 0.0}
    assert said["data"] == DATA
    assert said["losses"] == [3.25, 1 / 3, 0.1]
    assert {"python", "numpy", "numba", "blas", "machine", "cores", "tier"} <= set(said["circumstances"])


# ------------------------------------------------------------------------------------- what can't be written


def assert_the_old_one_survives(path, error):
    """Saving fails with one line, and the folder is as before."""
    with pytest.raises(CheckpointError, match=error) as caught:
        save(path, made(seed=1))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "the one that was there is untouched" in str(caught.value)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert_same(load(path), made(seed=0))


def test_what_is_no_checkpoint_is_not_written(path):
    model, _, state, _ = made(seed=0)
    whole = made(seed=0)
    for wrong, said in (
        ((model, state.params), r"checkpoint: tuple should be Checkpoint\(model, training, state, data\)"),
        (whole._replace(state=state.params), r"state: \w+ should be State\(step, params, "),
        (
            whole._replace(state=state._replace(optimiser=None)),
            r"optimiser: NoneType should be AdamWState\(step, m, v\)",
        ),
    ):
        with pytest.raises(TypeError, match=said):
            save(path, wrong)
    other = mt.tree_map(lambda a: a.astype(np.float64), state.params)
    for changes, said in (
        ({"params": other}, r"arrays of F32 and of F64; all should be of one dtype"),
        (
            {"params": mt.tree_map(lambda a: a.astype(np.int64), state.params)},
            r"params\.\S+ is I64 .*, the model needs F32",
        ),
        ({"params": mt.tree_map(lambda a: a[:1].copy(), state.params)}, r"params\.\S+ is F32 \(1"),
        ({"params": None}, "the array params.* is missing"),
        ({"step": -1}, "step: -1"),
        ({"step": "a"}, "step: 'a' should be int"),
    ):
        with pytest.raises(CheckpointError, match=f"can't be written: {said}"):
            save(path, whole._replace(state=state._replace(**changes)))
    assert not path.exists()


def test_a_full_disk_leaves_the_old_checkpoint(path):
    """A limit on the size of files stands for the full disk: the write stops in the middle."""
    resource = pytest.importorskip("resource")
    save(path, made())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size // 2, hard))
    try:
        with pytest.raises(CheckpointError) as caught:
            save(path, made(seed=1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.strerror(errno.EFBIG) in str(caught.value)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert_same(load(path), made(seed=0))


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_no_space_left_leaves_the_old_checkpoint(path, monkeypatch, where):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    save(path, made())
    monkeypatch.setattr(files.os, where, full)
    assert_the_old_one_survives(path, "can't be written: No space left on device")


def test_ctrl_c_while_saving_leaves_the_old_checkpoint(path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    save(path, made())
    monkeypatch.setattr(files.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(path, made(seed=1))
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert_same(load(path), made(seed=0))


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"run\.safetensors: the checkpoint can't be written: No such file or directory$"
    ):
        save(tmp_path / "none" / "run.safetensors", made())


def test_a_folder_that_is_not_writable(path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    path.parent.chmod(0o500)
    try:
        with pytest.raises(CheckpointError, match="can't be written: Permission denied"):
            save(path, made())
    finally:
        path.parent.chmod(0o700)


def test_a_folder_in_the_place_of_the_checkpoint(path):
    path.mkdir()
    with pytest.raises(CheckpointError, match="can't be written: Is a directory"):
        save(path, made())
    assert [p.name for p in path.parent.iterdir()] == [path.name]


# ---------------------------------------------------------------------------------------- what can't be read


def altered(path, change):
    """A checkpoint in which the description (or the arrays) were changed with care: its digest is right."""
    save(path, made())
    arrays = arrays_in(path.read_bytes())
    with safe_open(path, framework="np") as file:
        about = json.loads(file.metadata()[KEY])
    about["digest"] = BLANK
    change(about, arrays)
    content = to_bytes(arrays, {KEY: json.dumps(about)})
    path.write_bytes(content.replace(BLANK.encode(), hashlib.sha256(content).hexdigest().encode(), 1))


def assert_refused(path, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_no_file(path):
    assert_refused(path, "there is no such file")


def test_a_folder(tmp_path):
    assert_refused(tmp_path, "can't be read: Is a directory")


def test_a_file_that_may_not_be_read(path):
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    save(path, made())
    path.chmod(0)
    assert_refused(path, "can't be read: Permission denied")


@pytest.mark.parametrize(
    "content", [b"", b"text", b"Once upon a time there was a file. " * 40, b"\x80\x04\x95" + bytes(100)]
)
def test_a_foreign_file(path, content):
    path.write_bytes(content)
    assert_refused(path, "not a checkpoint, or a damaged one")


def positions_to_try(size, header):
    """All of the header, and here and there one of what follows."""
    return [*range(header), *random.Random(0).sample(range(header, size), 300), size - 1]


def refusal(path):
    """What `load` says, or None if it reads the file."""
    try:
        load(path)
    except CheckpointError as error:
        return str(error)


def test_every_byte_counts(path):
    """Whichever byte has changed since, by a bit or altogether: refused, in a line. Before, every other one was not."""
    save(path, made(LanguageModel(vocabulary=7, context=6, width=4, depth=1, heads=2)))
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    with path.open("r+b", buffering=0) as file:
        for k in positions_to_try(len(whole), header):
            os.pwrite(file.fileno(), bytes([whole[k] ^ (0xFF if k % 3 == 0 else 1 << k % 8)]), k)
            said = refusal(path)
            assert said is not None, k
            assert said.startswith(f"{path}: ")
            assert "\n" not in said
            os.pwrite(file.fileno(), whole[k : k + 1], k)
    load(path)


def test_a_truncated_checkpoint(path):
    """However much is missing, and whatever stands behind the end."""
    save(path, made())
    whole = path.read_bytes()
    for length in [*range(0, 200, 7), *random.Random(0).sample(range(len(whole)), 100), len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert_refused(path, "not a checkpoint, or a damaged one|damaged: its header speaks of")
    for more in (b"\0", b" ", bytes(4096), whole):
        path.write_bytes(whole + more)
        assert_refused(path, f"damaged: its header speaks of {len(whole)} bytes, and it has {len(whole + more)}")


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_safetensors_of_someone_else(path, metadata):
    path.write_bytes(to_bytes({"weight": np.ones(3, np.float32)}, metadata))
    assert_refused(path, "a safetensors file, but not a checkpoint of minitransformer")


@pytest.mark.parametrize("text", ["not json", "[]", "{}", '"text"'])
def test_a_description_that_is_none(path, text):
    path.write_bytes(to_bytes({"weight": np.ones(3, np.float32)}, {KEY: text}))
    assert_refused(path, "its description can't be read")


def test_another_version(path):
    for version in (2, 4):
        altered(path, lambda about, _, version=version: about.update(version=version))
        assert_refused(path, f"a checkpoint of version {version}; this program reads version 3")


SAID_BY_OTHERS = ("\x1b[31mred\x1b[0m\x07", "two\nlines", "x" * 5000, [1] * 5000)


@pytest.mark.parametrize("said", SAID_BY_OTHERS)
def test_whatever_a_file_says_its_error_is_one_line_that_no_terminal_obeys(path, said):
    name = str(said)
    for change in (
        lambda about, _: about.update(version=said),
        lambda about, _: about.update({name: 1}),
        lambda about, _: about["model"].update({name: 1}),
        lambda about, _: about["training"].update(clip=said),
        lambda _, arrays: arrays.update({name: np.ones(3, np.float32)}),
    ):
        altered(path, change)
        error = refusal(path)
        assert error.startswith(f"{path}: ")
        assert error.isprintable()
        assert len(error) < 1100


def test_a_header_that_claims_more_than_there_is_is_not_read(path):
    """Nor is all that stands behind a whole checkpoint: 10¹² bytes of nothing, which no disk has to hold."""
    save(path, made())
    whole = path.read_bytes()
    for content in (whole, (10**11).to_bytes(8, "little"), (10**12).to_bytes(8, "little")):
        path.write_bytes(content)
        try:
            os.truncate(path, 10**12)
        except OSError:
            pytest.skip("this file system has no files with holes")
        try:
            assert_refused(path, "not a checkpoint, or a damaged one|damaged: its header speaks of")
        finally:
            path.unlink()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(path):
    os.mkfifo(path)
    assert_refused(path, "a pipe is not a checkpoint")


def test_a_run_on_another_text(path):
    refuse_other_data(path, made(), DATA)
    other = {"task": "text", "name": "yours.txt", "sha256": "cd" * 32}
    message = r"trained on mine\.txt \(sha256 abababababab…\), and this is yours\.txt \(sha256 cdcdcdcdcdcd…\)"
    with pytest.raises(CheckpointError, match=message):
        refuse_other_data(path, made(), other)
    with pytest.raises(CheckpointError, match=r"and this is mine\.txt \(sha256 cdcdcdcdcdcd…\)"):
        refuse_other_data(path, made(), {**DATA, "sha256": "cd" * 32})
    for changed in ({"name": "renamed.txt"}, {"task": "dates"}):
        with pytest.raises(CheckpointError, match="trained on mine"):
            refuse_other_data(path, made(), {**DATA, **changed})
    with pytest.raises(CheckpointError, match="trained on data without a name, and this is mine"):
        refuse_other_data(path, made()._replace(data={"task": "text"}), DATA)


# ------------------------------------------------------------------------------------- killed, or not alone

SAVES = """
import os, sys
from test_checkpoint import made, save
states = made(seed=0), made(seed=1)
save(sys.argv[1], states[0])
for line in sys.stdin:
    if child := os.fork():
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)
    else:
        for k in range(10**9):
            save(sys.argv[1], states[k % 2])
"""
LOCKS = """
import sys, time
from minitransformer.training.checkpoint import alone
with alone(sys.argv[1]):
    print("there", flush=True)
    time.sleep(3600)
"""


def launched(program, path):
    """A process that has come so far as to say that it is there."""
    here = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    process = subprocess.Popen([sys.executable, "-c", program, str(path)], env=here, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "there\n"
    return process


def killed(process):
    process.kill()
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_kill_at_any_time_leaves_the_old_or_the_new(path):
    states = made(seed=0), made(seed=1)
    rng = random.Random(0)
    command = [sys.executable, "-c", SAVES, str(path)]
    here = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    with subprocess.Popen(command, env=here, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(5):
            print("another", file=process.stdin, flush=True)
            child = int(process.stdout.readline())
            time.sleep(rng.uniform(0, 0.05))
            os.kill(child, signal.SIGKILL)
            assert int(process.stdout.readline()) == signal.SIGKILL
            found = load(path)
            E = found.state.optimiser.m.E
            assert_same(found, states[not np.array_equal(E, states[0].state.optimiser.m.E)])
        process.stdin.close()
    assert all(p.suffix == ".part" for p in path.parent.iterdir() if p != path)  # what a kill in the middle leaves


def test_only_one_at_a_time(path):
    with alone(path):
        with alone(path.with_name("other.safetensors")):
            pass
        for _ in range(2):  # who is turned away does not take the lock along
            with pytest.raises(CheckpointError, match="another training is writing it") as caught, alone(path):
                pass
            assert str(caught.value).startswith(f"{path}: ")
    with alone(path):
        pass
    assert list(path.parent.iterdir()) == []


def test_the_lock_of_a_killed_process_is_nobodys(path):
    process = launched(LOCKS, path)
    with pytest.raises(CheckpointError, match="another training is writing it"), alone(path):
        pass
    killed(process)
    with alone(path):
        pass
    assert list(path.parent.iterdir()) == []


def test_the_docstring_saves_a_model_of_a_loop_of_one_s_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = LanguageModel(context=16, width=8, depth=1, heads=2)
    params = model.init(np.random.default_rng(5), np.float32)
    code = [line[4:] for line in checkpoint.__doc__.splitlines() if line.startswith("    ")]
    exec("\n".join(code), {"model": model, "params": params})
    found = load("mine.safetensors")
    assert found.model == model
    for (_, kept), (_, own) in zip(mt.tree_items(found.state.params), mt.tree_items(params), strict=True):
        np.testing.assert_array_equal(kept, own)
    assert cli.main(["generate", "mine.safetensors", "a", "--length", "3"]) == 0
    assert cli.main(["look", "mine.safetensors", "a"]) == 0
