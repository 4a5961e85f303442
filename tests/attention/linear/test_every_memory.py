"""What the delta rule, gated linear attention and both in one promise alike: gradients, steps, any length, what is refused."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention import (
    GLA,
    DeltaRule,
    delta_rule,
    delta_rule_step,
    gated_delta_rule,
    gated_delta_step,
    gated_linear_attention,
    gated_linear_step,
)
from minitransformer.attention.linear.dpfp import DPFP
from tests.pieces import in_pieces

B, N, R, DV = 2, 7, 3, 5


class Memory(NamedTuple):
    """A memory, its step, what both take beside Q, K and V, and whether each channel has a gate."""

    function: object
    step: object
    names: tuple[str, ...]
    channels: bool = False

    def inputs(self, seed=0, batch=(B,), n=N):
        """Q, K of norm one, V, β between 0 and 1, and ln α for α between 0.2 and 1."""
        rng = np.random.default_rng(seed)
        Q, K, V = (rng.standard_normal((*batch, n, d)) for d in (R, R, DV))
        log_decay = np.log(rng.uniform(0.2, 1, (*batch, n, R) if self.channels else (*batch, n)))
        more = {"beta": rng.random((*batch, n)), "log_decay": log_decay}
        return [Q, K / np.linalg.norm(K, axis=-1, keepdims=True), V, *(more[name] for name in self.names)]


LINEAR, GATED = (gated_linear_attention, gated_linear_step), (gated_delta_rule, gated_delta_step)
MEMORIES = {
    "delta": Memory(delta_rule, delta_rule_step, ("beta",)),
    "gated": Memory(*LINEAR, ("log_decay",)),
    "gated, by channel": Memory(*LINEAR, ("log_decay",), channels=True),
    "gated delta": Memory(*GATED, ("beta", "log_decay")),
    "gated delta, by channel": Memory(*GATED, ("beta", "log_decay"), channels=True),
}
every = pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES)
numpy = pytest.mark.usefixtures("definitions")


@numpy
@every
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_gradient(memory, batch):
    check_pullback(memory.function, *memory.inputs(1, batch), entries=30)


@every
def test_gradient_across_blocks(memory, tier):
    """Longer than a chunk of 64, whose states are made again on the way back, and than the blocks that sum up the gates."""
    check_pullback(memory.function, *memory.inputs(2, n=130), entries=20)


@numpy
@every
@pytest.mark.parametrize("n", [0, 1])
def test_no_position_and_one(memory, n):
    Q, K, V, *more = arrays = memory.inputs(3, n=n)
    Y, pullback = memory.function(*arrays)
    beta = more[0] if "beta" in memory.names else 1
    np.testing.assert_allclose(Y, (beta * np.vecdot(Q, K))[..., None] * V)
    gradients = pullback(Y)
    assert [g.shape for g in gradients] == [a.shape for a in arrays]
    assert not ("log_decay" in memory.names and gradients[-1].any()), (
        "before the first position there is nothing to fade"
    )


@numpy
@every
@pytest.mark.parametrize("edges", [(0, 1, 2, 3, 4, 5, 6, 7), (0, 4, 7), (0, 7), (0, 0, 1, 7)])
def test_generation_is_the_same(memory, edges):
    arrays, S = memory.inputs(4), np.zeros((B, R, DV))
    Y, _ = memory.function(*arrays)
    for a, b in pairwise(edges):
        before = S.copy()
        y, new = memory.step(*(X[:, a:b] for X in arrays), S)
        np.testing.assert_allclose(y, Y[:, a:b], rtol=1e-12)
        assert np.array_equal(S, before), "the old state is not changed"
        S = new


@numpy
@every
def test_the_past_does_not_depend_on_the_future(memory):
    Y, _ = memory.function(*memory.inputs(5))
    for t in range(N):
        changed = memory.inputs(5)
        for X in changed:
            X[:, t] += 1
        Z, _ = memory.function(*changed)
        assert np.array_equal(Z[:, :t], Y[:, :t])
        assert (Z[:, t] != Y[:, t]).any()


@numpy
@every
def test_wrong_shapes_types_and_mixtures_are_refused(memory):
    for position, name in enumerate(names := ("Q", "K", "V", *memory.names)):
        arrays = memory.inputs(6)
        X = arrays[position]
        for wrong in (X.astype(int), X[0, 0], X[:, :4]):
            with pytest.raises(TypeError, match=f"parameter '{name}'" if position else "parameter '"):
                memory.function(*arrays[:position], wrong, *arrays[position + 1 :])
        with pytest.raises(TypeError, match=f"{', '.join(names)}: should have one dtype"):
            memory.function(*arrays[:position], X.astype(np.float32), *arrays[position + 1 :])
    with pytest.raises(TypeError, match="parameter 'S'"):
        memory.step(*arrays, np.zeros((B, DV, R)))


class Louder(GLA):
    def finish(self, params, Y, V, gate):
        Z, pullback = super().finish(params, Y, V, gate)
        return 2 * Z, lambda dZ: pullback(2 * dZ)


class Shifted(DeltaRule):
    def rows(self, X):
        return super().rows(X + 1)


class Larger(DPFP):
    def phi(self, params, X, *, first, query):
        return super().phi(params, X + 3, first=first, query=query)


@pytest.mark.parametrize("core", [Louder(2, 4, rank=3), Shifted(), Larger()], ids=lambda core: type(core).__name__)
def test_a_stage_that_a_subclass_makes_anew_is_what_a_step_runs(core, tier):
    rng = np.random.default_rng(0)
    params = core.init(rng, np.float64)
    arrays = [rng.standard_normal((B, 2, N, width)) for width in (4, 4, 4, *core.streams.values())]
    said, _ = in_pieces(core, params, arrays, range(N + 1))
    np.testing.assert_allclose(said, core(params, *arrays, causal=True)[0], rtol=1e-9)
