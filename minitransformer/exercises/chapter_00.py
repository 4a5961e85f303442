"""Exercises of chapter 00, on how to read the book: gradients by hand, and pullbacks."""

import numpy as np

from minitransformer.backend import backend
from minitransformer.exercises.check import (
    NotYet,
    array_of,
    close,
    derivative,
    exercise,
    expect,
    real,
    unless,
    value,
    with_pullback,
    yes_or_no,
)
from minitransformer.functional import relu
from minitransformer.models import FeedForward
from minitransformer.pullback import tree_bytes


@exercise("0.1")
def gradient_of_a_matrix(answer):
    """dW of the first example, (2, 2)."""
    X, W = np.array([[1.0, 2], [0, 1], [3, -1]]), np.array([[1.0, 0], [2, -1]])
    dY = X @ W
    expect(
        answer,
        X.T @ dY,
        "dW[c, e] is a sum over the three rows, of X[i, c] times dY[i, e].",
        (dY.T @ X, "This is the transpose. dW has the shape of W: row c belongs to column c of X."),
        (X[:1].T @ dY[:1], "This is what the first row sends. W was used for all three."),
        tolerance=0.01,
    )


@exercise("0.2")
def what_must_be_remembered(answer):
    """Six times True or False: is Y enough for the way back?"""
    x = np.linspace(-2, 2, 41)
    y, slope = (np.concatenate([f(x), f(np.pi - x)]) for f in (np.sin, np.cos))  # x and π − x have the same sine
    functions = (
        ("exp", np.exp(x), np.exp(x)),
        ("x + 3", x + 3, np.ones(41)),
        ("x²", x**2, 2 * x),
        ("tanh", np.tanh(x), 1 - np.tanh(x) ** 2),
        ("sin", y, slope),
        ("max(x, 0)", relu(x)[0], relu(x)[1](np.ones(41))),
    )
    for given, (name, y, slope) in zip(yes_or_no(answer, 6), functions, strict=True):
        same = np.isclose(y[:, None], y)  # do equal outputs have equal slopes?
        enough = bool(np.isclose(slope[:, None], slope)[same].all())
        if given and not enough:
            raise NotYet(f"{name}: there are two x with the same y and different slopes. Which?")
        if enough and not given:
            raise NotYet(f"{name}: try to write its slope in terms of y alone.")


@exercise("0.3")
def megabytes_of_a_text(answer):
    """MiB that 12 feed-forward networks remember of 1,024 tokens, besides the parameters."""
    network = FeedForward(width=6, hidden=24)  # a 128th of the width
    params = network.init(np.random.default_rng(0))
    with backend("numpy"):
        _, pullback = network(params, np.ones((1, 6), np.float32))
    for_a_token = tree_bytes(pullback) - tree_bytes(params)
    megabytes = 12 * 1024 * 128 * for_a_token / 2**20
    expect(
        answer,
        megabytes,
        "For each token: its row of X, the slopes, and the hidden row; four bytes each, in 12 networks.",
        (megabytes / 4, "That counts numbers. A float32 has four bytes."),
        (2 * megabytes, "float32 has four bytes, not eight."),
        (megabytes / 12, "That is one of the networks. There are twelve."),
        (megabytes * 2**20 / 1e6, "A MiB is 2²⁰ bytes."),
        (megabytes * 5 / 9, "The slopes of the ReLU are remembered, too: as many as there are hidden numbers."),
        (
            megabytes + 12 * 2 * 768 * 3072 * 4 / 2**20,
            "The parameters do not grow with the text, and are not counted here.",
        ),
        (megabytes * 8 / 9, "The row of X that went in is remembered, too: dW_1 needs it."),
        tolerance=0.01,
    )


@exercise("0.4")
def a_gain_for_each_column(answer):
    """X g, from X (…, n, D) and g (D,), and a pullback with dX and dg."""
    rng = np.random.default_rng(4)
    for shape in ((5, 3), (2, 4, 3), (2, 2, 4, 6)):
        X, g = rng.standard_normal(shape), rng.standard_normal(shape[-1])
        Y = value(answer, X, g)
        close(Y, X * g, "Y is X with column c multiplied by g_c.")
        derivative(answer, X, g, hint="Y is right, but its gradient is not. Who uses g_c? All rows, of all samples.")


@exercise("0.5")
def any_number_of_batch_axes(answer):
    """X W, from X (…, n, D) and W (D, E), and a pullback with dX and dW."""
    rng = np.random.default_rng(5)
    for batch in ((), (2,), (2, 3)):
        X, W = rng.standard_normal((*batch, 3, 4)), rng.standard_normal((4, 5))
        Y, pullback = with_pullback(answer, X, W)
        close(Y, X @ W, "Y is X @ W.")
        gradients = pullback(np.ones_like(Y))
        if isinstance(gradients, (tuple, list)) and len(gradients) == 2 and np.ndim(gradients[1]) > 2:
            raise NotYet("dW has batch axes. W has none: it is one matrix, used by every sample, and gets the sum.")
        hint = f"For X of shape {X.shape} the gradient is not right. Every row of every sample used W."
        derivative(answer, X, W, hint=hint)


@exercise("0.6")
def a_table_used_twice(answer):
    """X W Wᵀ, and a pullback with dX and dW."""
    rng = np.random.default_rng(6)
    X, W = rng.standard_normal((3, 5)), rng.standard_normal((5, 2))
    Y, pullback = with_pullback(answer, X, W)
    close(Y, X @ W @ W.T, "Y is X W Wᵀ.")
    dY = rng.standard_normal(np.shape(Y))
    gradients = pullback(dY)
    read, write = X.T @ dY @ W, dY.T @ X @ W
    if isinstance(gradients, (tuple, list)) and len(gradients) == 2:
        for one, name in ((read, "the W that reads"), (write, "the W that writes")):
            unless(gradients[1], one, f"This is the gradient of {name} alone. W is used twice.")
            unless(gradients[1], 2 * one, f"This is twice the gradient of {name}. The other use has a different one.")
    derivative(
        answer,
        X,
        W,
        hint="Y is right, but its gradient is not. Write δY with three terms: one for each place where something changes.",
    )


@exercise("0.7")
def jacobian_from_a_pullback(answer):
    """A function of f and x: ∂y_k/∂x_i, (m, n), with one call of f."""
    rng = np.random.default_rng(7)
    for m, n in ((3, 5), (4, 4)):
        W, x, calls = rng.standard_normal((n, m)), rng.standard_normal(n), []

        def f(x, W=W, calls=calls):
            calls.append(x)
            y = np.tanh(x @ W)
            return y, lambda dy: W @ (dy * (1 - y**2))

        J, wanted = real(answer(f, x)), (W * (1 - np.tanh(x @ W) ** 2)).T
        if J.shape == (n, m) and np.allclose(J, wanted.T, atol=1e-5):
            raise NotYet("This is the transpose. Row k belongs to output k.")
        if len(calls) != 1:
            raise NotYet(
                f"f was called {len(calls)} times. Once is enough: its pullback can be called as often as you like."
            )
        if J.shape == (n,):
            raise NotYet("This is one row, or a sum of rows. Which dy makes the pullback say how y_k alone changes?")
        close(J, wanted, "Ask the pullback about one output at a time: a dy with a single 1.")


@exercise("0.8")
def a_better_quotient(answer):
    """The power of h in the truncation of the four-point quotient, and k of the best step 10^k."""
    x, errors = np.linspace(0.3, 2.5, 200), []
    for k in range(7):
        h = 10.0**-k
        near, far = np.sin(x + h) - np.sin(x - h), np.sin(x + 2 * h) - np.sin(x - 2 * h)
        errors.append(np.median(np.abs((8 * near - far) / (12 * h) - np.cos(x))))
    power, k = round(np.log10(errors[0] / errors[2]) / 2), -int(np.argmin(errors))
    given = array_of(answer, (2,))
    if given[0] == 2:
        raise NotYet(
            "The power: 2 is that of (0.3). Here the terms with h² cancel; how does the error fall from h = 1 to 0.01?"
        )
    if 0 < abs(given[0] - power) < 0.2:
        raise NotYet("The power of h is a whole number. What you measured is near it: round it.")
    if given[0] != power:
        raise NotYet(
            "The power: make h ten times smaller, while it is still large. By how many powers of ten does the error fall?"
        )
    if given[1] == -k:
        raise NotYet("k: h = 10^k is small, so k is negative.")
    if 0 < given[1] < 1:
        raise NotYet("k: that is a step h. Which power of ten is it?")
    if given[1] in (-5, -6):
        raise NotYet("k: that is the best step of (0.3). Truncation is smaller here, so rounding takes over earlier.")
    if given[1] != k:
        raise NotYet("k: try all powers of ten, at many points, and take the median of the errors.")
