"""How the loops are compiled: five decorators that all kernels share.

    compiled     what other compiled functions call, and Python. Other Python threads go on while it runs
    inside       what only compiled functions call: without the code by which Python would call it
    inlined      what is short, or called in one place only: compiled as a part of its caller
    in_loops     a generator, `for task in …` of a loop: kept with that loop alone, as Numba keeps no generator on the disk
    any_order    as `inside`, a sum in any order of its terms, so that many partial sums stand side by side in a register

    contract     a · b + c may be one instruction. No other liberty with arithmetic is given: sums are taken in the order
                 in which they are written (`exp2` needs it), and −∞ and NaN keep their meaning (masks need it).
    numpy        a division by zero gives what NumPy gives, without a test of every divisor
    cache        compiled once per machine (seconds for attention, both ways), then read from the disk (under a second), until
                 a source changes

LLVM leaves half of a 512-bit register unused on Intel's servers, because their first generation slowed its clock for the
full width. Today that costs these loops a third of their speed, so unless NUMBA_CPU_FEATURES is set the preference is
switched off. With NUMBA_CPU_NAME the loops are compiled for another processor, with the features of that one. Loops on the
disk are found by the processor's name and features: code for two processors never mixes.
"""

import functools
import gc
import hashlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numba
from numba.np import linalg

from minitransformer.backend import processor, vector_bytes
from minitransformer.files import InUse, alone
from minitransformer.kept_loops import keep_somewhere, kept_in
from minitransformer.kernels.less_compiling import in_less_time

# Numba's functions of arrays look for SciPy's BLAS when they are imported, 0.2 s, though no loop of the book calls it. Here that
# search is put off until somebody's loop calls BLAS.
with suppress(AttributeError):  # a version of Numba that does not search
    find_blas, linalg.ensure_blas = linalg.ensure_blas, bool
    import numba.np.arraymath

    linalg.ensure_blas = find_blas

if place := keep_somewhere():
    numba.config.CACHE_DIR = str(place)
    with suppress(OSError):  # stderr is closed
        print(
            f"minitransformer: compiled loops can't be kept where they should be, and are in {place}", file=sys.stderr
        )

if numba.config.CPU_FEATURES is None:
    numba.config.CPU_FEATURES = processor()[1] + (",-prefer-256-bit" if vector_bytes() == 64 else "")


@contextmanager
def _ctrl_c_comes_later() -> Iterator[None]:
    """Put off what Ctrl-C raises until this block ends. (LLVM calls Python back; an exception in there ends the process.)"""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # nothing is raised here
        return
    raised: list[BaseException] = []

    def hold(*signal_: Any) -> None:
        try:
            handler(*signal_)
        except BaseException as error:
            raised.append(error)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if raised:
            raise raised[0]


@contextmanager
def _garbage_stays() -> Iterator[None]:
    """Switch garbage collection off in this block. (A compiler makes millions of objects and keeps most of them until it is done;
    to look through them again and again takes a tenth of its time.)
    """
    looked = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looked:
            gc.enable()


def as_it_is(arguments: Any) -> Any:
    """The arguments, unchanged: in plain Python it replaces an intrinsic that changes nothing but a type."""
    return arguments


@functools.cache
def _say() -> None:
    """Tell whoever waits at a terminal, once, that loops are being compiled, and where they are kept."""
    if sys.stderr and sys.stderr.isatty():
        where = f"kept in {kept_in() or numba.config.CACHE_DIR}"
        print(
            f"minitransformer: compiling loops for this processor; this is done once, they are {where}", file=sys.stderr
        )


def say_by(say: Callable[[], None]) -> None:
    """From now on, `say` is called in place of that line, for each loop that is compiled."""
    global _say
    _say = say  # type: ignore[assignment]


def _or_say(load: Callable[..., Any]) -> Callable[..., Any]:
    """`load`, which looks for a kept loop; if there is none, a line at the terminal says that it is compiled."""

    def look(*arguments: Any) -> Any:
        found = load(*arguments)
        if found is None:
            _say()
        return found

    return look


@functools.cache
def _sources() -> str:
    """A digest of the sources of all these loops."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()


def named_in(file: Any) -> dict[Any, str]:
    """The files that an index names, by the types of arguments; none if it belongs to other sources.

    (Numba unpickles all of an index before it looks whose it is, and other sources may have had a class that these have not.)
    """
    try:
        return type(file)._load_index(file)
    except (AttributeError, ImportError):
        return {}


def _of_all_sources(loop: Any) -> Any:
    """The loop, kept until any of the sources changes. (Numba looks at its own file alone, but loops contain others.)"""
    if not numba.config.DISABLE_JIT:
        file = loop._cache._cache_file
        file._source_stamp = file._source_stamp, _sources()
        file._load_index = functools.partial(named_in, file)
    return loop


def _keep(file: Any, key: Any, data: Any) -> None:
    """Save a loop on disk, in a file named after its arguments and source, and then the index of the loop's function.

    (Numba counts files, and writes the index first: two processes that count the same number mix up their loops, and one that
    is killed in between leaves an index that leads to what an older source was compiled to.)
    """
    digest = hashlib.sha256(repr((file._source_stamp, key)).encode()).hexdigest()[:16]
    name = f"{file._index_name.removesuffix('.nbi')}.{digest}.nbc"
    file._save_data(name, data)
    while True:
        with suppress(InUse), alone(file._index_path):  # or of two loops that are added at once, one would be lost
            file._save_index({**file._load_index(), key: name})
            return
        time.sleep(1e-3)


def _no_way_in(loop: Any) -> None:
    """Let Python's calls of a loop raise TypeError: there is no code that would take Python's arguments."""
    name = loop.py_func.__name__

    def refuse(*arguments: Any) -> None:
        raise TypeError(
            f"{name} is a part of compiled loops, and Python called it: call {name}.py_func, or a loop that uses it"
        )

    loop._insert = lambda *entry: None  # the table in which Python finds what is compiled stays empty
    loop._compile_for_args = refuse


def _kept_whole(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """numba.njit, but Ctrl-C can't interrupt the first call with a kind of arguments while it compiles or loads the loop.

    To Numba a number in the code of a caller, such as the 1 of f(1), has a type of its own; here it has that of any number.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        loop = _of_all_sources(numba.njit(function, **options))
        if not numba.config.DISABLE_JIT:
            loop._compile_for_args = _ctrl_c_comes_later()(_garbage_stays()(in_less_time()(loop._compile_for_args)))
            loop._cache._cache_file.save = functools.partial(_keep, loop._cache._cache_file)
            asked, loop._cache.load_overload = loop.get_call_template, _or_say(loop._cache.load_overload)
            loop.get_call_template = lambda args, kws: asked(tuple(map(numba.types.unliteral, args)), kws)
            if options.get("no_cpython_wrapper"):
                _no_way_in(loop)
        return loop

    return decorate


CONTRACT = {"contract"}
_options = {"cache": True, "error_model": "numpy", "nogil": True, "no_cfunc_wrapper": True}
compiled = _kept_whole(**_options, fastmath=CONTRACT)
inside = _kept_whole(**_options, fastmath=CONTRACT, no_cpython_wrapper=True)
_inlined = numba.njit(**_options, fastmath=CONTRACT, inline="always")
in_loops = numba.njit(**{**_options, "cache": False}, fastmath=CONTRACT)
any_order = _kept_whole(**_options, fastmath=CONTRACT | {"reassoc"}, no_cpython_wrapper=True)


def inlined(function: Callable[..., Any]) -> Any:
    """A part of its caller: see above."""
    return _of_all_sources(_inlined(function))
