"""Shapes as types: errors that name the argument, and a check that is paid once."""

import threading
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

import minitransformer
from minitransformer.attention import MultiHeadAttention
from minitransformer.backend import available, backend, current
from minitransformer.functional import softmax
from minitransformer.typing import Array, Bool, Float, Int, checked


@checked
def product(
    A: Float[Array, "*batch n d"], B: Float[Array, "*batch d m"], *, scale: float = 1.0
) -> Float[Array, "*batch n m"]:
    return A.dtype.type(scale) * A @ B


def test_float32_and_float64_pass(rng):
    for dtype in (np.float32, np.float64):
        A = rng.standard_normal((2, 3, 4)).astype(dtype)
        assert product(A, A.mT).dtype == dtype


def test_wrong_shape_names_argument_shape_and_expectation(rng):
    A, B = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 5, 6))
    with pytest.raises(TypeError, match=r"(?s)parameter 'B'.*f64\[2,5,6\].*'\*batch d m'.*d=4"):
        product(A, B)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool, np.float16, np.complex128, object])
def test_other_types_are_refused(dtype):
    A = np.ones((3, 4))
    with pytest.raises(TypeError, match="parameter 'A'"):
        product(A.astype(dtype), A.T)


@pytest.mark.parametrize("A", [[[1.0, 2.0]], 3.0, None, "text"], ids=str)
def test_other_things_than_arrays_are_refused(A):
    with pytest.raises(TypeError, match=r"parameter 'A'|A: a list should be an array; np.array makes one of it"):
        product(A, np.ones((2, 2)))


def test_what_stands_in_the_place_of_an_array_is_named():
    """A value that was not taken from its pullback, and parameters in the place of X."""
    X, layer = np.ones((3, 4)), MultiHeadAttention(4, 2)
    with pytest.raises(
        TypeError, match=r"^S: a tuple should be an array; it is a value with its pullback, Y, pullback = "
    ):
        softmax(softmax(X))
    with pytest.raises(TypeError, match=r"^X: a MultiHeadParams should be an array$"):
        layer(X, layer.init(np.random.default_rng(0)))


def test_an_integer_is_a_fine_number(rng):
    A = rng.standard_normal((3, 4))
    assert np.array_equal(product(A, A.T, scale=2), product(A, A.T, scale=2.0))
    with pytest.raises(TypeError, match="parameter 'scale'"):
        product(A, A.T, scale="2")


def test_the_result_is_checked_too():
    @checked
    def wrong(A: Float[Array, "n d"]) -> Float[Array, "d n"]:
        return A

    with pytest.raises(TypeError, match="return value"):
        wrong(np.ones((2, 3)))


def test_tokens_and_masks():
    @checked
    def look(tokens: Int[Array, "*batch n"], mask: Bool[Array, "*batch n"]):
        return tokens[mask]

    assert look(np.arange(3), np.array([True, False, True])).tolist() == [0, 2]
    with pytest.raises(TypeError, match="parameter 'tokens'"):
        look(np.arange(3.0), np.ones(3, bool))
    with pytest.raises(TypeError, match="parameter 'mask'"):
        look(np.arange(3), np.ones(3, int))


def test_a_call_that_looks_like_one_that_passed_is_not_checked_again():
    """Other shapes, dtypes, options or kinds of arguments are."""
    answers = [np.ones((2, 3)), np.ones((9, 9)), np.ones((9, 9)), np.ones((9, 9))]

    @checked
    def answer(A: Float[Array, "n d"], scale: float = 1.0, *, how: str | None = None) -> Float[Array, "n d"]:
        return answers.pop(0)

    answer(np.ones((2, 3)))
    assert answer(np.zeros((2, 3))).shape == (9, 9)  # what nobody looked at
    for args, options in (((np.ones((2, 3)), 2.0), {}), ((np.ones((2, 3)),), {"how": "so"})):
        with pytest.raises(TypeError, match="return value"):
            answer(*args, **options)
    for wrong in (np.ones((2, 3), int), np.ones(3), [[1.0, 2.0, 3.0]]):
        with pytest.raises(TypeError, match=r"parameter 'A'|A: a list"):
            answer(wrong)


@pytest.mark.skipif(len(available()) == 1, reason="needs Numba")
def test_another_tier_is_another_function():
    answers = {"numpy": np.ones((2, 3)), available()[-1]: np.ones((9, 9))}

    @checked
    def answer(A: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return answers[current()]

    with backend("numpy"):
        answer(np.ones((2, 3)))
    with backend(available()[-1]), pytest.raises(TypeError, match="return value"):
        answer(np.ones((2, 3)))


@pytest.mark.parametrize("call", [(1,), (1.0,), (None,), ("True",)], ids=str)
def test_one_and_true_are_not_taken_for_each_other(call):
    @checked
    def look(x: bool):
        return x

    assert look(True)
    with pytest.raises(TypeError, match="parameter 'x'"):
        look(*call)


def test_the_check_is_paid_at_the_door_only():
    """What a checked function calls is not checked again; after it has returned, or raised, others are checked again."""

    @checked
    def outer(A: Float[Array, "n d"], fails: bool = False):
        inside = product(A.astype(np.int64), A.T.astype(np.int64))  # product alone would refuse these
        if fails:
            raise RuntimeError
        return inside

    A = np.ones((2, 3))
    assert outer(A).tolist() == [[3, 3], [3, 3]]
    with pytest.raises(TypeError):
        product(A.astype(np.int64), A.T)
    with pytest.raises(RuntimeError):
        outer(A, fails=True)
    with pytest.raises(TypeError):
        product(A.astype(np.int64), A.T)


def test_every_thread_has_its_own_door():
    """While one thread is inside a checked function, another one is still checked."""
    refused = []

    @checked
    def outer(A: Float[Array, "n d"]):
        def other():
            try:
                product(A.astype(np.int64), A.T)
            except TypeError:
                refused.append(True)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    outer(np.ones((2, 3)))
    assert refused == [True]


def test_name_and_docstring_stay():
    @checked
    def function(A: Float[Array, "n"]):
        """What it does."""

    assert function.__name__ == "function"
    assert function.__doc__ == "What it does."


def test_a_state_that_grows_is_no_other_call(rng):
    """With every token it is longer, and a longer one makes no new kind of call, of which the answer would be looked at."""
    flat = []

    @dataclass(frozen=True)
    class Layer:
        @checked
        def step(self, A: Float[Array, "n d"], state: Any = None) -> tuple[Float[Array, "n d"], tuple[Array, ...]]:
            longer = np.ones(1 if state is None else len(state[0]) + 1)
            return (np.ones(9) if flat else np.ones((2, 3))), (longer,)

    layer, A = Layer(), np.ones((2, 3))
    _, state = layer.step(A)
    _, state = layer.step(A, state)
    flat.append(True)
    for _ in range(2):
        _, state = layer.step(A, state)
    flat.clear()
    with pytest.raises(TypeError, match="state: int should be a state that a step has returned"):
        layer.step(A, 3)


def test_an_error_is_a_sentence(rng):
    layer = MultiHeadAttention(8, 2)
    params, A = layer.init(rng, np.float64), rng.standard_normal((2, 3, 4))
    for call, said in (
        (
            lambda: product(A, A),
            "product: parameter 'B': f64[2,3,4] should be Float[Array, '*batch d m'], where batch=(2,), d=4",
        ),
        (lambda: product(A.astype(int), A), "product: parameter 'A': i64[2,3,4] should be Float[Array, '*batch n d']"),
        (
            lambda: layer(params, A),
            "MultiHeadAttention.__call__: parameter 'X': f64[2,3,4] should be Float[Array, '*batch n {self.width}'], "
            "where n=3, self.width=8",
        ),
        (lambda: product(A, A.mT, scale="x" * 200), f"product: parameter 'scale': '{'x' * 99}… should be float"),
        (lambda: product(A, A.mT, axis=0), "product: got an unexpected keyword argument 'axis'"),
        (lambda: product(A), "product: missing a required argument: 'B'"),
        (lambda: layer(params, A, True), "MultiHeadAttention.__call__: too many positional arguments"),
        (lambda: layer.core(params.core, A, A), "SoftmaxAttention.__call__: missing a required argument: 'V'"),
    ):
        with pytest.raises(TypeError) as caught:
            call()
        assert str(caught.value) == said
        assert caught.value.__cause__ is None


def test_type_checkers_of_a_reader_are_told_that_there_are_types():
    """Without this file mypy and editors take all that comes from the package for `Any`."""
    assert files(minitransformer).joinpath("py.typed").is_file()
