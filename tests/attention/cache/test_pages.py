"""A cache in pages: any order is the contiguous cache, a fork leaves its parent, and less than a page is wasted."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.attention import (
    Paged,
    SoftmaxAttention,
    Window,
    block_tables,
    dot_product_attention,
    paged_attention,
)
from minitransformer.attention.cache.keys_values import KeysValues
from minitransformer.attention.cache.recent import Kept, Recent
from minitransformer.models import LanguageModel
from minitransformer.pullback import NoParams

G, D, DV = 2, 4, 3


def arrays(n, seed=0, heads=G):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((3, h, n, width)) for h, width in ((heads, D), (G, D), (G, DV))]


@pytest.mark.parametrize("size", [1, 5, 18, 40])
@pytest.mark.parametrize("pieces", [(18,), (1,) * 18, (4, 1, 7, 6)])
def test_it_holds_what_was_put_there(size, pieces):
    _, K, V = arrays(18)
    state = Paged.of(K[..., :0, :], V[..., :0, :], size)
    assert state.length == 0
    at = 0
    for n in pieces:
        state = state.extended(K[..., at : at + n, :], V[..., at : at + n, :])
        at += n
        np.testing.assert_array_equal(state.keys, K[..., :at, :])
        np.testing.assert_array_equal(state.values, V[..., :at, :])
        assert state.length == at
        assert 0 <= state.waste < size
        assert len(state.pages) == -(-at // size)


@pytest.mark.parametrize("heads", [G, 6])
@pytest.mark.parametrize("n", [1, 3])
def test_pages_in_any_order_are_the_contiguous_cache(n, heads):
    Q, K, V = arrays(18, heads=heads)
    state = Paged.of(K, V, 5)
    with mt.backend("numpy"):
        want, _ = dot_product_attention(Q[..., -n:, :], K, V, causal=True)
    for order in (None, (3, 1, 0, 2), [0, 1, 2, 3], np.array([2, 3, 1, 0])):
        np.testing.assert_allclose(paged_attention(Q[..., -n:, :], state, order=order), want, rtol=0, atol=1e-14)
    without, _ = dot_product_attention(Q[..., -n:, :], K[..., 5:, :], V[..., 5:, :], causal=True)
    np.testing.assert_allclose(paged_attention(Q[..., -n:, :], state, order=[1, 2, 3]), without, rtol=0, atol=1e-13)


@pytest.mark.parametrize("options", [{"scale": 0.3}, {"cap": 1.5}, {"sink": np.array([0.5, -1.0])}], ids=str)
def test_options_are_those_of_attention(options):
    Q, K, V = arrays(18)
    state, given = Paged.of(K, V, 5), {**options}
    with mt.backend("numpy"):
        want, _ = dot_product_attention(Q[..., -3:, :], K, V, None, given.pop("sink", None), causal=True, **given)
    np.testing.assert_allclose(paged_attention(Q[..., -3:, :], state, **options), want, rtol=0, atol=1e-14)


def test_a_fork_leaves_its_parent():
    """Three go on from one text of seven, in pages of five: the first in the half-full page, the others in copies of it."""
    _, K, V = arrays(20)
    parent = Paged.of(K[..., :7, :], V[..., :7, :], 5)
    forks = [parent.extended(K[..., k : k + 5, :], V[..., k : k + 5, :]) for k in (7, 9, 12)]
    np.testing.assert_array_equal(parent.keys, K[..., :7, :])
    for k, fork in zip((7, 9, 12), forks, strict=True):
        np.testing.assert_array_equal(fork.keys, np.concatenate([K[..., :7, :], K[..., k : k + 5, :]], -2))
        np.testing.assert_array_equal(fork.values, np.concatenate([V[..., :7, :], V[..., k : k + 5, :]], -2))
    assert block_tables(parent, *forks) == [[0, 1], [0, 1, 2], [0, 3, 4], [0, 5, 6]]


@pytest.mark.parametrize("state", ["one buffer", "pages", "the last ones"])
def test_two_threads_go_on_from_one_state(state):
    """Each has what it wrote: of the two, one gets the room behind the state, and the other makes its own."""
    X = np.zeros((8, 8, 5, 64), np.float32)
    make = {
        "one buffer": lambda: KeysValues.of(X, X),
        "pages": lambda: Paged.of(X, X, 64),
        "the last ones": lambda: Recent.of(X, X, Kept(0, 60)),
    }
    new = [np.full((8, 8, 40, 64), number, np.float32) for number in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(100):
            parent = make[state]()
            for one, after in zip(new, pool.map(lambda A, parent=parent: parent.extended(A, A), new), strict=True):
                assert (after.keys[..., -40:, :] == one).all()
                assert (after.values[..., -40:, :] == one).all()


STATES = {
    "one buffer": KeysValues.of,
    "pages": lambda K, V: Paged.of(K, V, 32),
    "the last ones": lambda K, V: Recent.of(K, V, Kept(0, 30)),
}
each_state = pytest.mark.parametrize("of", STATES.values(), ids=STATES)


@each_state
def test_who_goes_on_from_an_older_state_takes_no_room_of_a_newer_one(of):
    """From 4 to 5 to 7; then from 4 in another way, and from 5: what that one writes stands in no row of the first three."""
    _, K, V = arrays(20)
    first = of(K[..., :4, :], V[..., :4, :])
    second = first.extended(K[..., 4:5, :], V[..., 4:5, :])
    third = second.extended(K[..., 5:7, :], V[..., 5:7, :])
    for state, n in ((first, 8), (second, 10)):
        longer = state.extended(K[..., n : n + 1, :], V[..., n : n + 1, :])
        np.testing.assert_array_equal(longer.values[..., -1, :], V[..., n, :])
    for state, n in ((first, 4), (second, 5), (third, 7)):
        np.testing.assert_array_equal(state.keys, K[..., :n, :])
        np.testing.assert_array_equal(state.values, V[..., :n, :])


@each_state
@pytest.mark.parametrize("name", ["K", "V"])
def test_what_can_not_be_written_is_copied(of, name):
    """One of two arrays may have been mapped from a file, say."""
    _, K, V = arrays(9)
    state = of(K[..., :4, :], V[..., :4, :])
    getattr(state.pages[0] if isinstance(state, Paged) else state, name).flags.writeable = False
    longer = state.extended(K[..., 4:, :], V[..., 4:, :])
    np.testing.assert_array_equal(longer.keys, K)
    np.testing.assert_array_equal(longer.values, V)


def test_a_buffer_is_copied_once_for_each_doubling():
    """2,000 tokens one by one: fewer than twice as many rows are copied in all."""
    _, K, V = arrays(2000)
    state, copied = KeysValues.of(K[..., :1, :], V[..., :1, :]), 0
    for t in range(1, 2000):
        before, state = state, state.extended(K[..., t : t + 1, :], V[..., t : t + 1, :])
        copied += before.length if state.K is not before.K else 0
    assert 0 < copied < 4000
    np.testing.assert_array_equal(state.keys, K)


def test_nothing_is_copied_where_a_page_is_full():
    """Two continuations of ten positions in pages of five share both pages."""
    _, K, V = arrays(12)
    parent = Paged.of(K[..., :10, :], V[..., :10, :], 5)
    a, b = (parent.extended(K[..., k : k + 1, :], V[..., k : k + 1, :]) for k in (10, 11))
    assert block_tables(a, b) == [[0, 1, 2], [0, 1, 3]]
    again = a.extended(K[..., 11:12, :], V[..., 11:12, :])
    assert block_tables(a, again) == [[0, 1, 2], [0, 1, 2]], "who is alone goes on in place"
    parent = Paged.of(K[..., :7, :], V[..., :7, :], 12)
    a, b = (parent.extended(K[..., k:9, :], V[..., k:9, :]) for k in (8, 7))
    again = b.extended(K[..., 9:10, :], V[..., 9:10, :])
    assert block_tables(a, b, again) == [[0], [1], [1]], "so does the second, once it has a copy"


@pytest.mark.parametrize("positions", ["sinusoidal", "rope", "t5", "shaw"])
@pytest.mark.parametrize("pieces", [(9, 1, 1, 1, 3, 9), (1,) * 12])
def test_a_model_writes_with_pages(positions, pieces, tier):
    """attention="softmax:page=4" says the same as with one buffer; two ways to go on don't meet."""
    sizes = {"vocabulary": 40, "context": 24, "width": 16, "depth": 2, "heads": 4, "hidden": 10, "groups": 2}
    model = LanguageModel(**sizes, attention="softmax:page=4", positions=positions)
    params, state, at = model.init(np.random.default_rng(0), np.float64), None, 0
    tokens = np.random.default_rng(1).integers(0, 40, (2, sum(pieces)))
    whole, _ = model(params, tokens)
    for n in pieces:
        logits, after = model.step(params, tokens[:, at : at + n], state)
        model.step(params, (tokens[:, at : at + n] + 1) % 40, state)
        np.testing.assert_allclose(logits, whole[:, at : at + n], rtol=0, atol=1e-10)
        state, at = after, at + n
    assert isinstance(state.blocks[0], Paged)
    assert state.blocks[0].waste < 4


def test_what_does_not_fit_is_refused():
    _, K, V = arrays(6)
    state = Paged.of(K, V, 4)
    for other in (K[:1], K[:, :1], K[..., :2], K.astype(np.float32)):
        with pytest.raises(ValueError, match=r"state: .* can't follow float64 \(3, 2, 4, 4\)"):
            state.extended(other, V)
    for own in (state, KeysValues.of(K, V), Recent.of(K, V, Kept(0, 9))):
        for other in (V[:1], V[:, :1], V[..., :2], V.astype(np.float32)):
            with pytest.raises(ValueError, match=r"state: .* can't follow float64 \(3, 2, \d+, 3\)"):
                own.extended(K, other)
        with pytest.raises(ValueError, match="V: 6 values for 3 keys"):
            own.extended(K[..., :3, :], V)
    with pytest.raises(ValueError, match="size: 0 should be at least 1"):
        Paged.of(K, V, 0)
    Q = np.ones((3, 2 * G, 2, D))
    for other in (Q[:1], Q[:, :3], Q[..., :2], np.ones((3, G, 7, D))):
        with pytest.raises(ValueError, match="Q: "):
            paged_attention(other, state)
    with pytest.raises(TypeError, match="should have one dtype"):
        paged_attention(Q.astype(np.float32), state)
    for order in ([0, 0, 1], [0, 2], [-1]):
        with pytest.raises(ValueError, match="should name each of 2 pages once at most"):
            paged_attention(Q, state, order=order)
    for order in (1, [0.0, 1.0], [0, 1.0], np.array([True, False])):
        with pytest.raises(TypeError, match=r"order: .* should be integers, one for each page that is read"):
            paged_attention(Q, state, order=order)
    first, second = state.pages
    for page in (second._replace(K=second.K[:, :1]), second._replace(V=second.V[..., :1, :]), second._replace(V=V[:1])):
        for pages in ((first, page), (page, page)):
            with pytest.raises(ValueError, match=r"state: pages should be \(…, heads, 4, d\)"):
                paged_attention(Q, state._replace(pages=pages))
    with pytest.raises(ValueError, match="page: Window has a cache of its own"):
        SoftmaxAttention(Window(3), page=4)
    rows = [X.astype(np.float32) for X in (K, K, V)]
    with pytest.raises(ValueError, match=r"^state\.pages\.0\.K: float64 .* should be float32"):
        SoftmaxAttention(page=4).step(NoParams(), *rows, state=state)
    assert SoftmaxAttention(page=4).remembers == "keys and values, in pages of 4"
    assert SoftmaxAttention(Window(0)).remembers == "the last key and its value"
