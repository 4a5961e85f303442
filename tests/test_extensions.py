"""What readers bring has a name in every model and command; what can't be used is refused, and told in a line."""

import os
import re
import sys
from dataclasses import dataclass

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.attention import ATTENTIONS, Core, Mixer, Pattern, SoftmaxAttention, dot_product_attention
from minitransformer.checks import frozen
from minitransformer.cli import catalogue
from minitransformer.cli import command as cli
from minitransformer.extensions import ReaderFile
from minitransformer.models import LanguageModel, Stack
from minitransformer.models.registry import STACKS
from minitransformer.positions import AT_EMBEDDING, IN_ATTENTION, Encoding, NoPositions, OffsetBias, ScoreEncoding
from minitransformer.pullback import NoParams, tree_items
from minitransformer.ranges import NonNegative
from minitransformer.training.checkpoint import Checkpoint, CheckpointError, load, save
from minitransformer.training.choices import Training
from minitransformer.training.loop import start
from minitransformer.training.schedule import Cosine

REGISTRIES = (ATTENTIONS, AT_EMBEDDING, IN_ATTENTION, STACKS)
MINE = """
import minitransformer as mt
from minitransformer.attention import Window
from minitransformer.checks import frozen


@frozen
class Near(Window):
    "A window of {radius}."

    radius: int = {radius}


mt.register("near", Near)
"""


@pytest.fixture(autouse=True)
def forget():
    """What a test registers is gone after it."""
    before, modules, path = [dict(registry) for registry in REGISTRIES], set(sys.modules), list(sys.path)
    yield
    for registry, old in zip(REGISTRIES, before, strict=True):
        registry.clear()
        registry.update(old)
    for name in ("mine", "theirs", "helper"):
        if name not in modules:
            sys.modules.pop(name, None)
    sys.path[:] = path


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE.format(radius=1), encoding="utf-8")
    return tmp_path


class Plain(Core):
    """What stands in a right core, but for the decorator."""

    def __call__(self, params, Q, K, V, *, causal=False, mask=None, rng=None):
        return dot_product_attention(Q, K, V, causal=causal, mask=mask)


# -------------------------------------------------------------------------------------------------- register


def test_a_registered_core_is_a_name_in_models_and_in_the_list(capsys):
    @frozen
    class Own(Plain):
        """One of mine."""

        heads: int
        sharpness: float = 1.0

    mt.register("own", Own)
    core = LanguageModel(attention="own:sharpness=2", heads=2).body.blocks[0].attention.core
    assert (type(core), core.heads, core.sharpness) == (Own, 2, 2)
    assert cli.main(["attentions"]) == 0
    own = r"^own +O\(n²\)[^#]*?\n +One of mine\.\n +faster than dense: not measured yet\n +options: sharpness=1\.0$"
    assert re.search(own, capsys.readouterr().out, re.MULTILINE)


def test_a_pattern_a_mixer_and_encodings_have_names_too():
    @frozen
    class Even(Pattern):
        def sees(self, i, j, m, *, causal):
            return (i - j) % 2 == 0

    @frozen
    class Same(Mixer):
        width: int

        def __call__(self, params, X, *, causal=False, mask=None, rng=None):
            return X, None

    @frozen
    class Far(OffsetBias):
        heads: int

        def bias(self, params, n, m, *, causal):
            return np.zeros((self.heads, n + m - 1)), lambda dbias: NoParams()

    @frozen
    class Any(ScoreEncoding):
        def scores(self, params, Q, K):
            return Q @ K.swapaxes(-1, -2), None

    @frozen
    class Added(NoPositions):
        def __call__(self, params, X, *, first=0):
            return X, None

    for name, kind in {"even": Even, "same": Same, "far": Far, "any": Any, "added": Added}.items():
        mt.register(name, kind)
    block = LanguageModel(attention="even", positions="far").body.blocks[0]
    assert type(block.attention.core.pattern) is Even
    assert type(block.attention.core.encoding) is Far
    assert type(LanguageModel(positions="any").body.blocks[0].attention.core.encoding) is Any
    assert type(LanguageModel(attention="same", positions="added").body.blocks[0].attention) is Same
    assert "added" in AT_EMBEDDING


def test_a_stack_has_a_name_too():
    """A frozen dataclass with an option of its own; a model gives it its blocks."""

    @frozen
    class Shallow(Stack):
        """As many of the blocks as it is told."""

        used: NonNegative = 1

        def __call__(self, params, X, *, causal=False, mask=None, rng=None):
            return Stack(self.blocks[: self.used])(params, X, causal=causal, mask=mask, rng=rng)

    mt.register("shallow", Shallow)
    body = LanguageModel(stack="shallow:used=2", depth=3).body
    assert (type(body), body.used, body.depth) == (Shallow, 2, 3)
    assert "shallow         takes any blocks" in catalogue.stacks()
    with pytest.raises(ValueError, match="used: -1 should be at least 0"):
        LanguageModel(stack="shallow:used=-1")


def test_a_stack_without_a_step_of_its_own_reads_all_again():
    """The step of `Stack` would leave out what its `__call__` does."""

    @frozen
    class Negative(Stack):
        def __call__(self, params, X, *, causal=False, mask=None, rng=None):
            Y, pullback = super().__call__(params, X, causal=causal, mask=mask, rng=rng)
            return -Y, pullback

    mt.register("negative", Negative)
    model, state, tokens = LanguageModel(9, 8, 8, stack="negative", depth=1, heads=2), None, np.arange(5)
    params = model.init(np.random.default_rng(0))
    for token in tokens:
        logits, state = model.step(params, np.array([token]), state)
    np.testing.assert_allclose(logits[0], model(params, tokens)[0][-1], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("__call__(self, params, X)", r"__call__: is called as __call__\(params, X, \*, causal, mask, rng\)"),
        ("step(self, params, X)", r"step: is called as step\(params, X, states\)"),
        ("__post_init__(self): raise ValueError('no')", r"Wrong: can't be made for a model of blocks=.*: no"),
    ],
)
def test_a_stack_that_a_model_could_not_use(method, says):
    namespace = {"Stack": Stack, "frozen": frozen}
    exec(f"@frozen\nclass Wrong(Stack):\n    def {method}{'' if 'raise' in method else ': pass'}", namespace)
    with pytest.raises(ValueError, match=says):
        mt.register("wrong", namespace["Wrong"])
    assert "wrong" not in STACKS


def cell(radius):
    """A cell of a notebook that is run again."""
    namespace = {"__name__": "__main__"}
    exec(MINE.format(radius=radius), namespace)
    return namespace["Near"]


def test_a_cell_can_be_run_again():
    assert cell(1) is not cell(2)
    assert LanguageModel(attention="near").body.blocks[0].attention.core.pattern.radius == 2
    mt.register("nearer", cell(2))
    cell(3)  # it says "near" only; and by its other name it is the new one, too
    for name in ("near", "nearer"):
        assert LanguageModel(attention=name).body.blocks[0].attention.core.pattern.radius == 3


@frozen
class NoDefault(Plain):
    width: int
    sharpness: float


@frozen
class Unfit(Plain):
    heads: int

    def __post_init__(self):
        raise ValueError("heads: never enough")


@frozen
class NoMask(Core):
    def __call__(self, params, Q, K, V, *, causal=False):
        return V, None


@frozen
class OtherLetters(Core):
    def __call__(self, params, q, k, v, *, causal=False, mask=None, rng=None):
        return v, None


@frozen
class Nothing(Core):
    pass


@frozen
class Streams(Plain):
    streams = {"gate": 1}  # noqa: RUF012


@frozen
class StrangeStep(Plain):
    def step(self, params, Q, K, V):
        return V, None


@frozen
class OtherInit(Plain):
    def init(self, rng):
        return NoParams()


@frozen
class Blind(Pattern):
    pass


@frozen
class NoBias(OffsetBias):
    pass


@frozen
class NoScores(ScoreEncoding):
    pass


@frozen
class NoTurn(Encoding):
    acts_on = ("queries and keys",)


@frozen
class SoftmaxAttentionTwice(SoftmaxAttention):
    pass


@dataclass
class Melted(Plain):
    heads: int = 1


class Undecorated(SoftmaxAttention):
    pass


Window = frozen(type("Window", (Plain,), {"__annotations__": {}, "__module__": __name__}))


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("softmax", Streams, "softmax: this name already means minitransformer.attention.softmax.softmax_attention"),
        ("rope", NoScores, "rope: this name already means minitransformer.positions.rope.RoPE"),
        ("a:b", Streams, "name: 'a:b' should be a letter, and then up to 39 letters, digits, - or _"),
        ("", Streams, "name: '' should be a letter"),
        ("x" * 41, Streams, "name: 'xxx"),
        (7, Streams, "name: 7 should be"),
        ("own", SoftmaxAttention(), "own: SoftmaxAttention(.*) should be a class"),
        ("own", int, "own: int should be a Core, a Mixer or a Pattern, for attention; an Encoding"),
        ("own", Plain, "Plain: should be a frozen dataclass; write @frozen"),
        ("own", Melted, "Melted: should be a frozen dataclass"),
        ("own", Undecorated, "Undecorated: should be a frozen dataclass"),
        (
            "own",
            Window,
            r"own: there is another class Window, minitransformer\.attention\..*Window; a checkpoint could not",
        ),
        (
            "own",
            NoDefault,
            "NoDefault: the field sharpness needs a default; a model fills in width, heads, d, longest only",
        ),
        (
            "own",
            Unfit,
            "Unfit: can't be made for a model of width=128, heads=4, d=32, longest=128: heads: never enough",
        ),
        ("own", Nothing, r"Nothing: has no __call__\(params, Q, K, V, \*, causal, mask, rng\)"),
        ("own", NoMask, r"NoMask.__call__: is called as .*, and takes \(self, params, Q, K, V, causal\): .*'mask'"),
        ("own", OtherLetters, "OtherLetters.__call__: q, k, v should be called Q, K, V"),
        (
            "own",
            Streams,
            r"Streams.__call__: is called as __call__\(params, Q, K, V, gate, \*, .*: too many positional",
        ),
        ("own", StrangeStep, r"StrangeStep.step: is called as step\(params, Q, K, V, \*, state\)"),
        ("own", OtherInit, r"OtherInit.init: is called as init\(rng, dtype\), and takes \(self, rng\)"),
        ("own", Blind, r"Blind: a pattern needs sees\(i, j, m, \*, causal\)"),
        ("own", NoBias, r"NoBias: has no bias\(params, n, m, \*, causal\)"),
        ("own", NoScores, r"NoScores: has no scores\(params, Q, K\)"),
        ("own", NoTurn, r"NoTurn: has no turn\(X, \*, first, length\)"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_a_model_could_not_use_is_refused_in_a_line(name, kind, says):
    before = [dict(registry) for registry in REGISTRIES]
    with pytest.raises(ValueError, match=f"^{says}[^\n]*$"):
        mt.register(name, kind)
    assert [dict(registry) for registry in REGISTRIES] == before


def test_a_name_of_another_class_of_ones_own_is_taken(mine):
    ReaderFile.read("mine.py").bring()
    with pytest.raises(ValueError, match=r"near: this name already means mine\.Near"):
        mt.register("near", SoftmaxAttentionTwice)
    (mine / "theirs.py").write_text(MINE.format(radius=1).replace('"near"', '"theirs"'), encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"there is another class Near, mine\.Near; a checkpoint could not tell them apart"
    ):
        ReaderFile.read("theirs.py").bring()
    assert "theirs" not in sys.modules


# ------------------------------------------------------------------------------------------------- checkpoints


def kept(path, attention):
    model = LanguageModel(vocabulary=40, context=9, width=8, depth=2, heads=2, hidden=4, attention=attention)
    training = Training(3, 2, Cosine(1e-2, 3, 1), parts=1)
    save(path, Checkpoint(model, training, start(model, training), {"task": "text"}))
    return model


def test_a_model_with_a_name_or_an_object_of_ones_own_is_saved_and_loaded(tmp_path):
    near = cell(2)
    for attention in ("near", "near:radius=3", near(radius=1), SoftmaxAttention(near()), (near(), "softmax")):
        model = kept(tmp_path / "run", attention)
        found = load(tmp_path / "run")
        assert found.model == model
        assert (
            dict(tree_items(found.state.params)).keys() == dict(tree_items(model.init(np.random.default_rng(0)))).keys()
        )


def test_parameters_that_are_drawn_in_any_way_are_counted(tmp_path):
    @frozen
    class Drawn(Plain):
        heads: int

        def init(self, rng, dtype=np.float32):
            rows = (
                rng.normal(0.0, 0.1, size=(self.heads, 2)),
                rng.uniform(-1, 1, [self.heads, 3]),
                rng.random(self.heads),
            )
            return [row.astype(dtype) for row in rows]

    mt.register("drawn", Drawn)
    assert kept(tmp_path / "run", "drawn") == load(tmp_path / "run").model


@pytest.mark.parametrize(("by", "missing"), [("name", "'near' is registered"), ("object", "'Near'")])
def test_a_checkpoint_says_what_is_missing_and_how_it_is_brought(tmp_path, by, missing):
    near = cell(2)
    kept(tmp_path / "run", "near" if by == "name" else near())
    ATTENTIONS.pop("near")
    with pytest.raises(
        CheckpointError, match=rf"^[^\n]*run: [^\n]*{missing}; mt\.register [^\n]*`--import FILE\.py`[^\n]*$"
    ):
        load(tmp_path / "run")
    if by == "object":
        with pytest.raises(
            CheckpointError, match=r"can't be written: model.attention: there is no 'Near'; mt\.register"
        ):
            kept(tmp_path / "other", near())


# --------------------------------------------------------------------------------------------- a file of one's own


def test_a_file_is_run_for_a_command_and_may_be_run_again(mine, capsys):
    (mine / "helper.py").write_text("RADIUS = 5\n", encoding="utf-8")
    for radius in ("1", "2", "__import__('helper').RADIUS"):
        text = MINE.replace('"A window of {radius}."', '"A window."').format(radius=radius)
        (mine / "mine.py").write_text(text, encoding="utf-8")
        assert cli.main(["attentions", "--import", "mine.py", "near"]) == 0
        assert "options: radius=" + {"1": "1", "2": "2"}.get(radius, "5") in capsys.readouterr().out


@pytest.mark.parametrize("command", ["attentions", "positions", "experiment", "train", "generate", "look"])
def test_every_command_that_looks_up_names_takes_files(command):
    (commands,) = (action for action in cli.parser()._actions if action.dest == "command")
    needed = [
        "x" for action in commands.choices[command]._actions if not action.option_strings and action.nargs is None
    ]
    args = cli.parsed([command, *needed, "--import", "a.py", "--import", "b.py"])
    assert [str(path) for path in args.imports] == ["a.py", "b.py"]


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("theirs.py", "1 +", r"theirs\.py, line 1: SyntaxError: invalid syntax"),
        ("theirs.py", "def f():\n    return 1 / 0\n\nf()", r"theirs\.py, line 2: ZeroDivisionError: division by zero"),
        (
            "theirs.py",
            "import nowhere_to_be_found",
            r"theirs\.py, line 1: ModuleNotFoundError: No module named 'nowhere_to",
        ),
        ("theirs.py", "raise SystemExit(3)", r"theirs\.py, line 1: SystemExit: 3"),
        (
            "theirs.py",
            "import minitransformer as mt\nmt.register('own', int)",
            r"theirs\.py, line 2: own: int should be a Core",
        ),
        ("theirs.py", b"\xff\xfe", r"theirs\.py: should be Python in UTF-8"),
        ("numpy.py", "", r"numpy\.py: there is a module numpy already; give the file another name"),
        ("my-own.py", "", r"my-own\.py: should have the name of a module"),
        ("theirs.txt", "", r"theirs\.txt: should have the name of a module"),
        ("theirs.txt", b"\xff", r"theirs\.txt: should have the name of a module"),  # not read: /dev/zero has no end
        (None, "", r"theirs\.py: No such file or directory"),
    ],
)
def test_a_file_that_can_not_be_run_is_told_in_a_line(tmp_path, monkeypatch, capsys, file, text, says):
    monkeypatch.chdir(tmp_path)
    if file is not None:
        (tmp_path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    assert cli.main(["attentions", "--import", file or "theirs.py"]) == 1
    said = capsys.readouterr()
    assert re.fullmatch(rf"minitransformer: --import \S*{says}[^\n]*\n", said.err)
    assert said.out == ""
    assert "theirs" not in sys.modules


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "theirs.py")
    with pytest.raises(ValueError, match=r"theirs\.py: should be a file, and is a pipe"):
        ReaderFile.read(tmp_path / "theirs.py")


OWN = """
import numpy as np
import minitransformer as mt
from minitransformer.attention import Core, dot_product_attention
from minitransformer.checks import frozen
from minitransformer.pullback import Pullback


class OwnPullback(Pullback):
    dense: Pullback

    def __call__(self, dY):
        gradients = self.dense(dY)
        return BACK


@frozen
class Own(Core):
    def __call__(self, params, Q, K, V, *, causal=False, mask=None, rng=None):
        Y, dense = dot_product_attention(Q, K, V, causal=causal, mask=mask)
        return Y, OwnPullback(dense)


mt.register("own", Own)
"""


@pytest.mark.parametrize(
    ("back", "says"),
    [
        (
            "gradients",
            "OwnPullback: should give 4 gradients, of params, Q, K, V, and gives 3; mt.check_attention says more",
        ),
        (
            "gradients[0]",
            "OwnPullback: should give 4 gradients, of params, Q, K, V, and gives ndarray; mt.check_attention says more",
        ),
        (
            "None, *gradient",
            "--import FILE, line 14: NameError: name 'gradient' is not defined; mt.check_attention says more of own",
        ),
        ("None, gradients[0] @ np.ones(7), *gradients[1:]", "--import FILE, line 14: matmul: "),
        (
            None,
            "Own: should return its value and a pullback, which can be called; it returned ndarray; mt.check_attention says more",
        ),
    ],
)
def test_what_fails_in_training_names_the_file_and_the_line(tmp_path, monkeypatch, capsys, back, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("the cat sat on the mat, and that was that. " * 60)
    file = tmp_path / "theirs.py"
    text = OWN.replace("Y, OwnPullback(dense)", "Y") if back is None else OWN.replace("BACK", back)
    file.write_text(text, encoding="utf-8")
    small = ["--width", "8", "--depth", "1", "--heads", "2", "--context", "8", "--batch", "4", "--steps", "2"]
    assert cli.main(["train", "mine.txt", "--import", "theirs.py", "--attention", "own", *small]) == 1
    line = re.split(r"[\r\n]", capsys.readouterr().err.strip())[-1]
    assert line.startswith(f"minitransformer: {says.replace('FILE', str(file))}")
    assert not (tmp_path / "run.safetensors").exists()


def test_a_checkpoint_runs_no_file(mine):
    """Whatever it says: the path comes from the command line alone."""
    ReaderFile.read("mine.py").bring()
    kept(mine / "run", "near")
    assert b"mine" not in (mine / "run").read_bytes()
