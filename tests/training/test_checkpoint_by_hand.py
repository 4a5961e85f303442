"""Checkpoints whose digest is right and whose description is not: somebody has written them by hand, with care.

What may stand in a field is taken from the dataclasses: whatever is registered is in these tests.
"""

import contextlib
import copy
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import operator
import random
import re
import time

import numpy as np
import pytest
from safetensors.numpy import load as arrays_in
from safetensors.numpy import save as to_bytes

import minitransformer as mt
from minitransformer.attention import (
    ATTENTIONS,
    BigBird,
    EachHead,
    EluFeatures,
    KernelAttention,
    Local,
    Longformer,
    Sinks,
    SoftmaxAttention,
    Strided,
    Window,
    attention_of,
)
from minitransformer.attention.selected import Reformer
from minitransformer.machine import peak_memory
from minitransformer.models import BERT, EncoderDecoder, LanguageModel, SequenceModel
from minitransformer.positions import (
    AT_EMBEDDING,
    IN_ATTENTION,
    NTK,
    TENER,
    DeBERTa,
    DynamicNTK,
    KerplePower,
    KerpleWeighted,
    Multiplicative,
    OffsetScalars,
    PositionInterpolation,
    RoPE,
    Shaw,
    T5Bias,
    YaRN,
    place,
)
from minitransformer.training import description
from minitransformer.training.checkpoint import BLANK, KEY, Checkpoint, CheckpointError, load, save
from minitransformer.training.choices import Training
from minitransformer.training.loop import start
from minitransformer.training.optimiser import AdamW
from minitransformer.training.schedule import Cosine, Noam

SIZES = {"width": 8, "heads": 2, "longest": 12}
SMALL = {"vocabulary": 7, "context": 12, "width": 8, "depth": 2, "heads": 2, "hidden": 5}
TRAINING = Training(steps=20, batch=4, schedule=Cosine(1e-3, 20, 2), optimiser=AdamW((0.8, 0.9), 1e-7, 0.2), seed=3)
DATA = {"task": "text", "name": "mine.txt", "sha256": "ab" * 32}


def checkpoint_of(model, training=TRAINING):
    """Of a run in the middle."""
    state = start(model, training)
    m, v = (mt.random_like(state.params, np.random.default_rng(seed)) for seed in (1, 2))
    state = state._replace(step=7, optimiser=state.optimiser._replace(step=7, m=m, v=v))
    return Checkpoint(model, training, state._replace(losses=(3.25, 0.5), held_out=((5, 0.75),)), DATA)


def encoding(name):
    """The encoding of this name, as an object."""
    placed = place(name, **SIZES)
    return placed.at_embedding if placed.in_attention is None else placed.in_attention


def attention(name):
    """The attention of this name, as an object."""
    return attention_of(name, {**SIZES, "d": SIZES["width"] // SIZES["heads"]})


# every part of the book that a description can name, as an object
PARTS = {
    **{f"attention {name}": {"attention": attention(name)} for name in ATTENTIONS},
    **{f"positions {name}": {"positions": encoding(name)} for name in (*AT_EMBEDDING, *IN_ATTENTION)},
}
# and with other choices than the usual ones, parts within parts, several of them
CHOSEN = {
    "rope": {"positions": RoPE(4, 500.0, "halves", 2)},
    "rope, pairs of the head": {"positions": RoPE(4, 500.0, part=2, pairs_of="head")},
    "rope, interpolated": {"positions": RoPE(4, scaling=PositionInterpolation(3.0))},
    "rope, ntk": {"positions": RoPE(4, scaling=NTK(2.5))},
    "rope, dynamic ntk": {"positions": RoPE(4, scaling=DynamicNTK(2.5, 6))},
    "rope, yarn": {"positions": RoPE(4, 300.0, scaling=YaRN(4.0, 6, 8.0, 0.5))},
    "shaw": {"positions": Shaw(4, 3, values=False)},
    "deberta": {"positions": DeBERTa(8, 2, 7, "code", 6, ("p2c",))},
    "multiplicative": {"positions": Multiplicative(4, 3, "M4")},
    "tener": {"positions": TENER(2, 4, None)},
    "tupe": {"positions": dataclasses.replace(encoding("tupe"), cls=True)},
    "t5": {"positions": T5Bias(2, 16, 40)},
    "scalars": {"positions": OffsetScalars(2, 12)},
    "kerple, power": {"positions": KerplePower(2)},
    "kerple, weighted": {"positions": KerpleWeighted(2)},
    "pages": {"attention": SoftmaxAttention(page=4)},
    "by name": {"positions": "rope:base=500,layout=halves", "attention": "window:radius=2"},
    "in turns": {"attention": ("window:radius=2", KernelAttention(EluFeatures())), "positions": "learned"},
    "each head": {"attention": SoftmaxAttention(EachHead((Window(1), Strided(3))), T5Bias(2)), "positions": "none"},
    "a union": {"attention": SoftmaxAttention(BigBird(block=2, heads=2) | Strided(3, "heads", 2)), "positions": "none"},
    "an intersection": {"attention": Window(9) & Local(5), "positions": "rope"},
    "sinks that turn": {"attention": Sinks(1, 3), "positions": RoPE(4, 500.0)},
    "longformer": {"attention": Longformer(4, 2, 1, 2), "positions": "rope"},
    "bigbird with rows in front": {"attention": "bigbird:extra=2,block=3", "positions": "learned"},
}


def model_with(choice):
    """A language model, or one that sees both sides if its attention has to."""
    part = choice.get("attention")
    part = attention(part) if isinstance(part, str) else part
    kind = SequenceModel if getattr(part, "causal", "") == "never" else LanguageModel
    return kind(**SMALL, **choice)


# ---------------------------------------------------------------------------------------- there and back


@pytest.mark.parametrize("name", [*PARTS, *CHOSEN])
def test_every_part_survives(name, tmp_path):
    """As an object: the same class, the same fields, the same numbers."""
    made = checkpoint_of(model_with((PARTS | CHOSEN)[name]))
    save(tmp_path / "run", made)
    found = load(tmp_path / "run")
    assert (type(found.model), found.model) == (type(made.model), made.model)
    for field in dataclasses.fields(found.model):
        assert repr(getattr(found.model, field.name)) == repr(getattr(made.model, field.name))
    tokens = np.arange(12) % 7
    with mt.backend("numpy"):
        assert np.array_equal(found.model(found.state.params, tokens)[0], made.model(made.state.params, tokens)[0])
    for (path, a), (_, b) in zip(mt.tree_items(found.state), mt.tree_items(made.state), strict=True):
        assert np.array_equal(a, b), path


@pytest.mark.parametrize(
    ("model", "training"),
    [
        (EncoderDecoder(11, width=8, depth=3, heads=2, positions="t5"), Training(20, 4, Noam(64, 100, 0.5))),
        (BERT(**SMALL), TRAINING),
        (SequenceModel(**SMALL, outputs=3, groups=1, norm="rms", dropout=0.1), TRAINING),
        (LanguageModel(**(SMALL | {"depth": 12}), positions=DeBERTa(8, 2, 300)), TRAINING),
        (LanguageModel(**(SMALL | {"context": 10**6})), dataclasses.replace(TRAINING, seed=2**100, steps=10**6)),
        (LanguageModel(**SMALL, attention=Reformer(seed=10**12)), TRAINING),
    ],
    ids=[
        *("encoder-decoder", "bert", "tagger", "a large table that is shared", "large numbers that cost nothing"),
        "a large seed in a part",
    ],
)
def test_every_model_survives(model, training, tmp_path):
    made = checkpoint_of(model, training)
    save(tmp_path / "run", made)
    found = load(tmp_path / "run")
    assert found._replace(state=None) == made._replace(state=None)
    assert repr(found[:2]) == repr(made[:2])


# ------------------------------------------------------------------------------------------- what lies


def parts_of(path, model):
    """The arrays and the description of a checkpoint of this model."""
    save(path, checkpoint_of(model))
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return arrays_in(content), json.loads(header["__metadata__"][KEY])


def write(path, arrays, about):
    """A file with this description, in words or as JSON, and the right digest."""
    text = about if isinstance(about, str) else json.dumps({**about, "digest": BLANK})
    content = to_bytes(arrays, {KEY: text})
    path.write_bytes(content.replace(BLANK.encode(), hashlib.sha256(content).hexdigest().encode(), 1))


@contextlib.contextmanager
def quick_and_small(path):
    """In little time of the processor, and with no more memory than a few times the file and what Python needs for it."""
    start = time.process_time()
    with peak_memory() as peak:
        yield
        seconds, held = time.process_time() - start, peak()
    assert seconds < 5  # to count to the smallest of the large numbers takes longer
    assert held < 8 * path.stat().st_size + 2e7


def refusal(path, *, large=True):
    """What `load` says, in one line that names the file; None if it reads it. Where numbers are large, it is watched."""
    said = None
    with quick_and_small(path) if large else contextlib.nullcontext():
        try:
            load(path)
        except CheckpointError as error:
            said = str(error)
    assert said is None or re.fullmatch(f"{re.escape(str(path))}: [^\n]{{1,400}}", said)
    return said and said.removeprefix(str(path))


def places(value, path=()):
    """Where a description has a value: the keys that lead there. Not behind a fact about the machine, which nobody reads."""
    yield path
    if isinstance(value, (dict, list)) and path != ("circumstances",):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(part, (*path, key))


def with_value(about, path, value):
    about = copy.deepcopy(about)
    place = about
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return about


WRONG = {
    "text": "none of these",
    "negative": -1,
    "true": True,
    "nothing": None,
    "nan": math.nan,
    "infinite": math.inf,
    "fraction": 2.5,
    "list": [1],
    "object": {"class": "Path"},
    "no object": {},
    "a million": 10**6,
    "a thousand millions": 10**9,
    "a million millions": 10**12,
    "a googol": 10**100,
}
LARGE = ("a million", "a thousand millions", "a million millions", "a googol")
MAY = {  # what else may stand there
    "depth": (), "hidden": ("nothing",), "groups": ("nothing",), "outputs": ("nothing",), "part": ("nothing",),
    "scaling": ("nothing",), "buckets": ("nothing",), "encoding": ("nothing",), "pattern": ("nothing",),
    "taps": ("nothing",), "steps": ("nothing",), "page": ("nothing", "a million"), "redraw": ("nothing",),
    **{"sink": ("nothing", "negative", "fraction", *LARGE), "cap": ("nothing", "fraction", *LARGE)},
    **{"norm": ("nothing",), "gate": ("nothing",)},
    "scale": ("nothing", "negative", "fraction", *LARGE), "beta": ("nothing", "fraction", *LARGE),
}  # fmt: skip


def can_stand(path, now, wrong):
    """Whether this is no lie, or one that nothing depends on."""
    field, value = path[-1], WRONG[wrong]
    if path[0] in ("data", "circumstances") or (path, wrong) == (("losses",), "list"):
        return True
    if wrong in MAY.get(field, ()):
        return True
    if isinstance(now, bool):
        return isinstance(value, bool)
    if type(now) is int:
        return type(value) is int and value > 0
    return type(now) is float and wrong in (*LARGE, "fraction", "negative")


def lies(about, under):
    """All places and what is wrong there, in an order that is another one for each model."""
    paths = [path for path in places(about) if path[: len(under)] == under and path and path[-1] != "digest"]
    rows = list(itertools.product(paths, WRONG))
    random.Random(json.dumps(about["model"])).shuffle(rows)
    return rows


def assert_no_lie_gets_through(path, model, thinned, under=()):
    arrays, about = parts_of(path, model)
    for where, wrong in thinned(lies(about, under)):
        now, value = functools.reduce(operator.getitem, where, about), WRONG[wrong]
        write(path, arrays, with_value(about, where, value))
        said = refusal(path, large=wrong in LARGE)
        if said is None:
            assert value == now or can_stand(where, now, wrong), f"{where} = {wrong} was read"
        elif where[0] not in ("version", "circumstances"):
            named = [key for key in where if isinstance(key, str)]
            assert any(key in said for key in [*named, "the array"]), f"{where} = {wrong}: {said}"


@pytest.mark.parametrize(
    "choice",
    [{"positions": "learned"}, {"positions": "rope", "stack": "transformer-xl:memory=3"}, {"stack": "universal"}],
    ids=str,
)
def test_a_lie_in_any_field_of_a_run(choice, tmp_path, thinned):
    assert_no_lie_gets_through(tmp_path / "run", model_with(choice), thinned)


@pytest.mark.parametrize("name", [*PARTS, *CHOSEN])
def test_a_lie_in_any_field_of_a_part(name, tmp_path, thinned):
    choice = (PARTS | CHOSEN)[name]
    for field in choice:
        assert_no_lie_gets_through(tmp_path / "run", model_with(choice), thinned, ("model", field))


@pytest.mark.each_value
@pytest.mark.parametrize("count", [10**6, 10**9, 10**12, 10**18])
@pytest.mark.parametrize("name", [*(f"attention {name}" for name in ATTENTIONS), *IN_ATTENTION, *AT_EMBEDDING])
def test_a_name_with_large_options(name, count, tmp_path):
    """What a name is short for is known only when it is made; it is looked at before it makes an array."""
    field, name = name.split(" ") if name.startswith("attention ") else ("positions", name)
    made = attention(name) if field == "attention" else encoding(name)
    made = getattr(made, "pattern", None) or made
    options = {f.name for f in dataclasses.fields(made) if type(getattr(made, f.name)) is int}
    for option in sorted(options - {"d", "heads", "width", "longest", "span"}):
        arrays, about = parts_of(tmp_path / "run", model_with({field: name}))
        write(tmp_path / "run", arrays, with_value(about, ("model", field), f"{name}:{option}={count}"))
        refusal(tmp_path / "run")


def test_a_field_that_there_was_once(tmp_path):
    """A model of before stacks had names is told by what to make it again."""
    arrays, about = parts_of(tmp_path / "run", model_with({}))
    about["model"] |= {"reversible": False, "memory": 0, "universal": "no", "ponder": 0.01}
    del about["model"]["stack"]
    write(tmp_path / "run", arrays, about)
    says = ': model.memory: LanguageModel has no such field; write stack="transformer-xl:memory=…" instead'
    assert refusal(tmp_path / "run") == says


def test_two_fields_that_are_one(tmp_path):
    """So is one of before an activation was what `ffn` says."""
    arrays, about = parts_of(tmp_path / "run", model_with({}))
    about["model"] |= {"activation": "relu", "ffn": "plain", "eps": 1e-5, "types": 1, "outputs": None, "tied": True}
    write(tmp_path / "run", arrays, about)
    assert refusal(tmp_path / "run") == ': model.activation: LanguageModel has no such field; write ffn="…" instead'


def test_a_table_that_is_larger_than_the_file(tmp_path):
    """As of two numbers that would pass alone, were the heads as wide: together a table of two hundred gigabytes."""
    arrays, about = parts_of(tmp_path / "run", model_with({"positions": Multiplicative(4, 3, "M3")}))
    other = "is for heads of width"
    for d, clip, says in ((4, 10**6, "is larger than the file"), (10**6, 3, other), (10**5, 10**5, other)):
        about["model"]["positions"].update(d=d, clip=clip)
        write(tmp_path / "run", arrays, about)
        assert says in refusal(tmp_path / "run")


@pytest.mark.parametrize(
    "sizes",
    [
        {"width": 10**6, "heads": 1}, {"hidden": 10**6}, {"vocabulary": 10**6}, {"outputs": 10**6},
        {"embedding": f"normed:types={10**6}"},
        {"width": 10**6, "vocabulary": 1, "heads": 1}, {"depth": 50, "width": 1024}, {"heads": 10**6, "width": 10**6},
    ],
    ids=str,
)  # fmt: skip
def test_a_model_larger_than_its_file(sizes, tmp_path):
    arrays, about = parts_of(tmp_path / "run", BERT(**SMALL))
    about["model"].update(sizes)
    write(tmp_path / "run", arrays, about)
    assert re.match(": model: .*(in|than) the file", refusal(tmp_path / "run"))


def test_a_depth_of_which_no_block_is_there(tmp_path):
    arrays, about = parts_of(tmp_path / "run", model_with({}))
    for depth in (10**6, 10**9):
        write(tmp_path / "run", arrays, with_value(about, ("model", "depth"), depth))
        assert refusal(tmp_path / "run") == f": model.depth: {depth} blocks, and {len(arrays)} arrays in the file"
    write(tmp_path / "run", arrays, with_value(about, ("model", "depth"), 3))
    assert refusal(tmp_path / "run").endswith(("than there are in the file", "is missing"))


@pytest.mark.parametrize("field", ["version", "updates", "model", "training", "data", "step", "losses", "held_out"])
def test_a_field_that_is_missing(field, tmp_path):
    arrays, about = parts_of(tmp_path / "run", model_with({}))
    del about[field]
    write(tmp_path / "run", arrays, about)
    assert field in refusal(tmp_path / "run")


def test_a_field_too_many_or_too_few(tmp_path):
    """In every object of the description."""
    arrays, about = parts_of(tmp_path / "run", model_with({"positions": RoPE(4, scaling=YaRN(4.0, 6))}))
    for where in [(), ("training",), ("training", "optimiser"), ("training", "schedule"), ("model",), ("model", "positions"),
                  ("model", "positions", "scaling")]:  # fmt: skip
        more, name = copy.deepcopy(about), ".".join((*where, "colour"))
        place = more
        for key in where:
            place = place[key]
        place["colour"] = "red"
        write(tmp_path / "run", arrays, more)
        assert refusal(tmp_path / "run").startswith(f": {name}: ")
        del place["colour"]
        if where:
            field = max(place.keys() - {"class"})
            del place[field]
            write(tmp_path / "run", arrays, more)
            assert refusal(tmp_path / "run") == f": {'.'.join((*where, field))}: is missing"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: model.update({"class": "Oracle"}), "model: there is no 'Oracle'"),
        (lambda model: model.update({"class": "generate"}), "model: there is no 'generate'"),
        (lambda model: model.update({"class": "Norm"}), "model: there is no 'Norm'"),
        (lambda model: model.update(heads=3), "model: width: 8 is not divisible into 3 heads"),
        (lambda model: model.update(positions="rotary"), "model: positions: no 'rotary'"),
        (lambda model: model.update(positions="rope:base=" + "-" * 10**5 + "1"), "model.positions: '"),
        (
            lambda model: model.update(positions={"class": "LanguageModel"}),
            "model.positions: there is no 'LanguageModel'",
        ),
        (lambda model: model.update(attention=["softmax"] * 10**5), "model.attention: a list of 100000 should have"),
        (lambda model: model.update(attention=[]), "model: attention: an empty sequence"),
        (
            lambda model: model.update(attention={"class": "KernelAttention", "features": "elu"}),
            "model.attention.features: 'elu' should be a part",
        ),
        (
            lambda model: model.update(attention={"class": "Noam", "width": 1, "warmup": 1, "factor": 1.0}),
            "model.attention: there is no 'Noam'",
        ),
    ],
)
def test_a_model_that_can_not_be(change, message, tmp_path):
    arrays, about = parts_of(tmp_path / "run", model_with({}))
    change(about["model"])
    write(tmp_path / "run", arrays, about)
    assert refusal(tmp_path / "run").startswith(f": {message}")


def test_the_largest_numbers():
    """What no array depends on is a number of 64 bits; what is drawn may be as much as there is in the file."""
    assert description.checked_as(int, 2**63 - 1, "training.steps") == 2**63 - 1
    with pytest.raises(ValueError, match=r"training\.steps: 9223372036854775808 is not within 0 … 9223372036854775807"):
        description.checked_as(int, 2**63, "training.steps")
    rng = description._Counting(6)
    assert rng.standard_normal((2, 2)).shape == (2, 2)
    assert rng.uniform(-1, 1, 2).shape == (2,)
    with pytest.raises(ValueError, match="more numbers than there are in the file"):
        rng.standard_normal(1)


def nested(depth):
    part = None
    for _ in range(depth):
        part = {"class": "SoftmaxAttention", "encoding": part}
        part |= dict.fromkeys(("pattern", "page", "sink", "cap", "norm", "gate"))
    return part


def test_parts_within_parts_within_parts(tmp_path):
    arrays, about = parts_of(tmp_path / "run", model_with({}))
    for depth in (10, 300):
        about["model"]["attention"] = nested(depth)
        write(tmp_path / "run", arrays, about)
        assert "too many parts within parts" in refusal(tmp_path / "run")
    for depth, too_many in (
        (5, False),
        (6, True),
    ):  # the innermost field is model.attention.encoding.…: six dots and seven
        about["model"]["attention"] = nested(depth)
        write(tmp_path / "run", arrays, about)
        assert ("too many parts within parts" in (refusal(tmp_path / "run") or "")) == too_many
    for deep in ('{"a":' * 10**5 + "1" + "}" * 10**5, "[" * 10**5, '{"version": 3, "digest": ' + "[" * 10**5):
        write(tmp_path / "run", arrays, deep)
        assert refusal(tmp_path / "run").startswith(": its description can't be read")
    header = b"[" * 10**5
    (tmp_path / "run").write_bytes(len(header).to_bytes(8, "little") + header + bytes(100))
    assert refusal(tmp_path / "run").startswith(": not a checkpoint, or a damaged one")
    for losses in ([[[[1.0]]]], [1.0, "2.0"], [1.0, True], [math.nan], {"0": 1.0}, "1.0", None, [10**400]):
        write(tmp_path / "run", arrays, {**parts_of(tmp_path / "good", model_with({}))[1], "losses": losses})
        assert refusal(tmp_path / "run").startswith(": losses: ")


@pytest.mark.parametrize("name", ["KeysValues", "elu_features", "Recent", "", "LanguageModel"])
def test_what_is_no_part_is_not_named(name, tmp_path):
    """Public, some of it, but no choice of attention with fields: a class that is no dataclass, a function."""
    arrays, about = parts_of(tmp_path / "run", model_with({}))
    about["model"]["attention"] = {"class": name}
    write(tmp_path / "run", arrays, about)
    assert f"model.attention: there is no '{name}'" in refusal(tmp_path / "run")


@pytest.mark.parametrize("tree", ["params", "m", "v"])
def test_arrays_that_are_not_those_of_the_model(tree, tmp_path):
    arrays, about = parts_of(tmp_path / "run", model_with({}))
    name = f"{tree}.stack.norm.gamma"
    gamma = arrays[name]
    for wrong, said in (
        (None, f"the array {name} is missing"),
        (gamma[:-1].copy(), rf"{name} is F32 \(7,\), the model needs F32 \(8,\)"),
        (gamma[None], rf"{name} is F32 \(1, 8\), the model needs F32 \(8,\)"),
        (gamma.astype(np.float64), r"arrays of F32 and of F64; all should be of one dtype, as start\(.*\) makes them"),
        (gamma.astype(np.float16), rf"{name} is F16 \(8,\), the model needs F32 \(8,\)"),
        (gamma.astype(np.int32), rf"{name} is I32 \(8,\), the model needs F32 \(8,\)"),
    ):
        other = {**arrays, name: wrong}
        if wrong is None:
            del other[name]
        write(tmp_path / "run", other, about)
        assert re.fullmatch(f": {said}", refusal(tmp_path / "run"))
    write(tmp_path / "run", {**arrays, f"{tree}.stack.norm.delta": gamma}, about)
    assert refusal(tmp_path / "run") == f": the array {tree}.stack.norm.delta belongs to nothing"


@dataclasses.dataclass(frozen=True)
class Own(SoftmaxAttention):
    """A core that the book does not have."""


@dataclasses.dataclass(frozen=True)
class Halved(Cosine):
    """Nor this schedule."""


@pytest.mark.parametrize(
    ("model", "training", "message"),
    [
        (
            model_with({}),
            dataclasses.replace(TRAINING, schedule=Halved(1e-3, 20)),
            "training.schedule: there is no 'Halved'",
        ),
        (model_with({}), dataclasses.replace(TRAINING, clip=math.inf), "Out of range float"),
        (model_with({"attention": Own()}), TRAINING, "model.attention: there is no 'Own'"),
        (
            model_with({"positions": T5Bias(2, 32, 10**6)}),
            TRAINING,
            "model: T5Bias with distance 1000000 and buckets 32",
        ),
        (model_with({}), dataclasses.replace(TRAINING, clip=np.longdouble(1)), "longdouble is not JSON"),
    ],
    ids=["a schedule", "a number", "a class", "a size", "a type"],
)
def test_what_can_not_be_read_is_not_written(model, training, message, tmp_path):
    """A run begins with a checkpoint: better to know now than when it is wanted."""
    with pytest.raises(CheckpointError, match=f"run: the checkpoint can't be written: .*{message}"):
        save(tmp_path / "run", checkpoint_of(model, training))
    assert list(tmp_path.iterdir()) == []
