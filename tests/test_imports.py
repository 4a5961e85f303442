"""What the package imports, and when: a reader in a browser has a NumPy and little else."""

import minitransformer
from tests.fresh_python import fresh_python

WITHOUT_THEM = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numba", "pydoc_data", "safetensors", "scipy", "tokenizers"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def test_everything_but_the_compiled_loops_imports_without_them():
    fresh_python(f"""{WITHOUT_THEM}
import importlib, pkgutil, minitransformer

names = [module.name for module in pkgutil.walk_packages(minitransformer.__path__, "minitransformer.")]
assert len(names) > 100
for name in names:
    if not name.startswith("minitransformer.kernels.") and name != "minitransformer.__main__":
        importlib.import_module(name)
""")


def test_a_model_is_differentiated_and_trained_without_them():
    fresh_python(f"""{WITHOUT_THEM}
import numpy as np
import minitransformer as mt
from minitransformer.data.text import Text
from minitransformer.models import LanguageModel
from minitransformer.training.loop import train
from minitransformer.training.objective import NextByte
from minitransformer.training.schedule import Cosine
from minitransformer.training.choices import Training

assert str(mt.backend()) == "numpy"
model = LanguageModel(256, context=16, width=8, depth=2, heads=2, hidden=16, ffn="gelu")
params = model.init(np.random.default_rng(0))
logits, pullback = model(params, np.arange(32).reshape(2, 16))
dparams = pullback(np.ones_like(logits))
assert [path for path, _ in mt.tree_items(dparams)] == [path for path, _ in mt.tree_items(params)]
training = Training(steps=2, batch=4, schedule=Cosine(1e-3, steps=2), parts=2)
text = Text(np.arange(200, dtype=np.uint8), np.arange(40, dtype=np.uint8), "bytes", "")
state = train(model, NextByte(text, 16), training, progress=False)
assert len(state.losses) == 2 and np.isfinite(state.losses).all()
""")


def test_what_needs_one_says_so(tmp_path):
    said = fresh_python(f"""{WITHOUT_THEM}
import minitransformer as mt
from minitransformer.training import checkpoint

for call in (lambda: checkpoint.load({str(tmp_path / "x")!r}), lambda: mt.backend("numba")):
    try:
        call()
    except (ImportError, ValueError) as error:
        print(error)
""")
    checkpoint, numba = said.splitlines()
    assert "a checkpoint needs safetensors (pip install safetensors)" in checkpoint
    assert "the tier 'numba' needs Numba (pip install numba)" in numba


def test_gelu_is_the_same_without_scipy():
    say = "import numpy as np; from minitransformer.functional import gelu; X = np.linspace(-6, 6, 49).reshape(7, 7)\n"
    say += "print(*(x.hex() for Y, pullback in [gelu(X)] for x in (*Y.flat, *pullback(np.ones_like(X)).flat)))"
    ours, scipys = (fresh_python(before + say).split() for before in (WITHOUT_THEM, ""))
    close = [abs(float.fromhex(a) - float.fromhex(b)) for a, b in zip(ours, scipys, strict=True)]
    assert len(close) == 98
    assert max(close) < 1e-15


def test_what_a_reader_imports_first_loads_little():
    """Numba alone takes longer than everything else; Beartype as long as NumPy, and it waits for the first call."""
    late = {"distributed", "matplotlib", "numba", "pydoc_data", "safetensors", "scipy", "tokenizers"}
    for code, absent in (
        ("import minitransformer", late | {"beartype", "jaxtyping"}),
        ("from minitransformer.models import LanguageModel", late | {"beartype"}),
        ("import minitransformer.cli.command", late),
    ):
        loaded = fresh_python(f"{code}\nimport sys\nprint(*sys.modules)").split()
        assert absent & set(loaded) == set(), code


def test_the_package_shows_what_it_has_and_nothing_it_has_imported():
    """Names that are imported when asked for stand there before, so a shell can complete them."""
    shown = fresh_python("""
import minitransformer as mt

assert set(mt.__all__) <= set(dir(mt))
print(*(name for name in dir(mt) if not name.startswith("__")))
""")
    assert shown.split() == minitransformer.__all__


def test_a_first_call_does_not_wait_for_scipy():
    """Numba looks for SciPy's BLAS when it loads its arrays; still, a reader's own loop finds it."""
    fresh_python("""
import sys
import numpy as np
from minitransformer.attention import dot_product_attention

Q, K, V = np.ones((3, 4, 8, 4), np.float32)
Y, pullback = dot_product_attention(Q, K, V, causal=True)
pullback(np.ones_like(Y))
assert "scipy.linalg" not in sys.modules
try:
    import numba
except ImportError:
    sys.exit()
X = np.arange(6.0).reshape(2, 3)
assert (numba.njit(lambda A, B: A @ B)(X, X.T) == X @ X.T).all()
""")


def test_who_asks_the_package_for_what_a_module_of_it_has_is_told_where_it_is():
    said = fresh_python("""
import minitransformer as mt

for name in ("attention", "attend", "LanguageModel", "softmax", "GraphAttention", "NoParams", "Pullback", "Callable",
             "those_seen", "frozen", "a.b", "nobody_has_it", "_ipython"):
    try:
        getattr(mt, name)
    except AttributeError as error:
        print(error)
""")
    brings = (
        ("attention", "; `import minitransformer.attention` brings it"),
        ("attend", "; `from minitransformer.attention import attend` brings it"),
        ("LanguageModel", "; `from minitransformer.models import LanguageModel` brings it"),
        ("softmax", "; `from minitransformer.functional import softmax` brings it"),
        ("GraphAttention", "; `from minitransformer.related import GraphAttention` brings it"),
        ("NoParams", "; `from minitransformer.pullback import NoParams` brings it"),
        ("Pullback", "; `from minitransformer.pullback import Pullback` brings it"),
        ("Callable", ""),
        ("those_seen", "; `from minitransformer.arrays import those_seen` brings it"),
        ("frozen", "; `from minitransformer.checks import frozen` brings it"),
        ("a.b", ""),
        ("nobody_has_it", ""),
        ("_ipython", ""),
    )
    assert said.splitlines() == [f"module 'minitransformer' has no attribute {name!r}{more}" for name, more in brings]
