"""What public code computes where it differs from the equation: the places that chapter 19 lists, restated in NumPy.

Each test names the repository, the file and the commit that was read. Nothing is taken from there: a few lines here do what
is said of it, and a few more what the equation says.
"""

import json
import math
import re

import numpy as np
import pytest

from minitransformer.attention import (
    differential_attention,
    dot_product_attention,
    kernel_attention,
    pooled_attention,
    selected,
    sparse,
)
from minitransformer.attention.compressed import memory_compressed_attention
from minitransformer.attention.merge import merge, partial_attention
from minitransformer.attention.selected.indexer import index_scores, most_wanted
from minitransformer.functional import layer_norm, softmax

pytestmark = pytest.mark.usefixtures("definitions")


def together(groups):
    """Which tokens share a group, for groups (groups, size) of token numbers."""
    sees = np.zeros((groups.size, groups.size), bool)
    for group in groups:
        sees[np.ix_(group, group)] = True
    return sees


@pytest.mark.parametrize(("n", "B"), [(12, 4), (1024 + 64, 64)])
def test_local_blocks_that_are_strides(n, B):
    """google-research/long-range-arena, local_attention.py, cd31e5c.

    does     Gives n tokens the shape (B, n/B), and attends along the first axis.
    holds    (n/B, B), and along the second: sparse.Local.
    wrong    Tokens of a block are n/B apart, and no token meets a neighbour. 1,024 tokens in blocks of 64 get 64 zeros more,
             so that n/B = 17.
    """
    tokens = np.arange(n)
    local = sparse.Local(block=B).graph(n).A > 0
    np.testing.assert_array_equal(together(tokens.reshape(n // B, B)), local)
    found = tokens.reshape(B, n // B).T
    assert (np.diff(found) == n // B).all()
    assert not np.diagonal(together(found), 1).any()
    assert np.diagonal(local, 1).any()
    if n > 1000:
        assert n // B == 17


def test_sorted_blocks_that_are_all_the_same():
    """google-research/long-range-arena, sinkhorn_attention.py, cd31e5c.

    does     Has one letter for the blocks that are mixed and another for the columns of P, whose rows sum to one; and with
             the option "sinkhorn" clips ln P to ±1.
    holds    One letter for both: (9.10).
    wrong    Each mixture is the sum of all blocks, whatever P is: no gradient reaches the order. No clipped weight is below 1/e.
    """
    rng = np.random.default_rng(0)
    blocks, R = rng.standard_normal((3, 4, 2)), 3 * rng.standard_normal((3, 3))
    P, _ = softmax(R)
    found = np.einsum("ul,sbd->ubd", P, blocks)
    np.testing.assert_allclose(found, np.broadcast_to(blocks.sum(0), found.shape))
    assert np.ptp(np.einsum("us,sbd->ubd", P, blocks), axis=0).max() > 0.5
    S, _ = selected.sinkhorn(R)
    clipped = np.exp(np.clip(np.log(S), -1, 1))
    assert S.min() < 0.05 < clipped.min() == pytest.approx(1 / math.e)


def test_a_reformer_in_which_each_token_hears_itself():
    """google-research/long-range-arena, reformer_attention.py, cd31e5c.

    does     Multiplies scores by √d, leaves keys as long as queries, and hides nobody from itself.
    holds    Keys of length one, no token sees itself (unless it sees nobody else): (9.2).
    wrong    At d = 64 random tokens give themselves all their weight.
    """
    rng = np.random.default_rng(0)
    for d, least in ((8, 0.6), (16, 0.9), (64, 0.9999)):
        X = rng.standard_normal((1, 32, d))
        found = softmax(math.sqrt(d) * X @ X.mT)[0]
        assert np.diagonal(found[0]).mean() > least
        _, meant = selected.lsh_attention(X, X, rotations=rng.standard_normal((4, d, 1)), chunk=32)
        assert np.diagonal(meant.A[0]).max() == 0


def test_a_mask_that_shows_words_nothing_but_the_null_key():
    """lucidrains/memory-compressed-attention, memory_compressed_attention.py, a806696.

    does     Shows a key where "the query is there" is less than "the key is there"; the null key always.
    holds    Where both are there.
    wrong    A word sees the null key alone, padding sees all the words: all words get one output.
    """
    rng = np.random.default_rng(0)
    there = np.array([True, True, True, False])
    Q, K, V = rng.standard_normal((3, 4, 5))
    K, V = (np.vstack([null, X]) for null, X in zip(rng.standard_normal((2, 1, 5)), (K, V), strict=True))
    null = np.ones((4, 1), bool)
    found, _ = dot_product_attention(Q, K, V, mask=np.hstack([null, there[:, None] < there]))
    meant, _ = dot_product_attention(Q, K, V, mask=np.hstack([null, there[:, None] & there]))
    np.testing.assert_allclose(found[there], np.broadcast_to(V[0], (3, 5)))
    assert np.ptp(meant[there], axis=0).max() > 0.1


def test_scores_divided_by_the_width_of_the_model():
    """lucidrains/memory-compressed-attention, memory_compressed_attention.py, a806696; and before a41fd4d.

    does     Divides the scores of a head by √D. Until August 2022 it averaged values with the scores as weights.
    holds    √d with d = D/H; weights are the softmax of scores.
    wrong    Scores are √H times too small, and weights nearer to a plain average. Before, they did not sum to one.
    """
    rng = np.random.default_rng(0)
    H, d = 8, 64
    Q, K = rng.standard_normal((2, H, 32, d))
    products = Q @ K.mT
    found, meant = softmax(products / math.sqrt(H * d))[0], softmax(products / math.sqrt(d))[0]
    assert (products / math.sqrt(d)).std() / (products / math.sqrt(H * d)).std() == pytest.approx(math.sqrt(H))
    assert found.max(-1).mean() < 0.08 < 0.15 < meant.max(-1).mean()
    assert np.abs((products / math.sqrt(H * d)).sum(-1) - 1).max() > 1


def test_a_block_that_its_last_token_does_not_see():
    """tensorflow/tensor2tensor, common_attention.py, bafdc1b: multihead_self_attention_reduced.

    does     Hides key m from query i if m s > i. Key 0 is the first token, key m the block of the tokens (m − 1) s … m s − 1.
    holds    Both can be trained; a block is seen from its last token on, and key 0 is the null: memory_compressed_attention.
    wrong    With the weights of one, the last token of each block sees a block more or less in the other.
    """
    n, s = 12, 4
    i, m = np.arange(n)[:, None], np.arange(1 + n // s)
    found = ~(m * s > i)
    Q, K, V = np.random.default_rng(0).standard_normal((3, 1, n, 2))
    mean, null = np.full((1, s, 2), 1 / s), np.zeros((1, 2))
    ours = memory_compressed_attention(Q, K, V, mean, mean, null, null, causal=True)[1].A[0] > 0
    np.testing.assert_array_equal(np.argwhere(ours != found), [[3, 1], [7, 2], [11, 3]])
    assert ours[:, 0].all()
    assert found[:, 0].all()
    assert not (found & (m * s - 1 > i)).any()  # neither shows a block that is not over


def test_sorted_values_that_are_keys():
    """lucidrains/sinkhorn-transformer, sinkhorn_transformer.py, 531bdbe.

    does     Without SortCut, the sorted block of values is the sorted block of keys.
    holds    The values of the same tokens.
    wrong    Values that are all zero give an output that is not.
    """
    rng = np.random.default_rng(0)
    Q, K = rng.standard_normal((2, 3, 4, 5))  # blocks of four
    V, P = np.zeros_like(K), np.eye(3)[[1, 2, 0]]
    sorted_K, sorted_V = (np.einsum("us,sbd->ubd", P, X) for X in (K, V))
    keys = np.concatenate([sorted_K, K], axis=1)
    meant, _ = dot_product_attention(Q, keys, np.concatenate([sorted_V, V], axis=1))
    found, _ = dot_product_attention(Q, keys, np.concatenate([sorted_K, V], axis=1))
    assert (meant == 0).all()
    assert np.abs(found).max() > 0.1


def test_rounds_that_count_alike():
    """idiap/fast-transformers, reformer_attention.py, 2ad36b9.

    does     Averages the outputs of the rounds.
    holds    Their average by exp L, where L is a round's log-sum-exp.
    wrong    One round found a key with a score of 5 and another one with 0: the second gets a half, not less than 0.01.
    """
    Y, L = np.array([[[1.0]], [[0.0]]]), np.array([[5.0], [0.0]])
    (meant, _), _ = merge(Y, L)
    assert Y.mean(0).item() == 0.5
    assert 1 - meant.item() < 0.01


def test_a_summary_with_one_column_more():
    """google-research/long-range-arena, sparse_attention.py, cd31e5c.

    does     Shows the columns with j mod l = 0, too. (The paper's set of residues ends in l, which no number leaves.)
    holds    j mod l ≥ l − c: the last c columns of a block.
    wrong    c + 1 columns of each block, the first among them.
    """
    n, block, c = 60, 20, 4
    i, j = np.arange(n)[:, None], np.arange(n)
    meant = sparse.Fixed(block=block, columns=c, part="far").graph(n, causal=True).A > 0
    found = (j <= i) & ((j % block == 0) | (j % block >= block - c))
    np.testing.assert_array_equal(np.flatnonzero(found[-1] > meant[-1]), [0, block, 2 * block])
    assert (meant[-1].sum(), found[-1].sum()) == (3 * c, 3 * (c + 1))


def test_a_random_block_that_counts_twice():
    """google-research/bigbird, attention.py, 5e7d375: bigbird_block_rand_mask for 1,024 tokens in blocks of 64.

    does     Draws three blocks for a row from 1 to 15 without those of its window. Block 15, the last, is global as well, and
             the keys of both stand in one softmax.
    holds    A set of keys: each counts once.
    wrong    In rows 2 to 13 the last is among twelve blocks, and with a chance of a quarter counts twice.
    """
    last = 15
    for row in range(2, 14):
        drawn_from = [block for block in range(1, last + 1) if not row - 1 <= block <= row + 1]
        assert last in drawn_from
        assert 3 / len(drawn_from) == 0.25
    twice, _ = softmax(np.zeros((1, 3)))  # two keys with the same score, of which one stands there twice
    assert twice[0, 1:].sum() == pytest.approx(2 / 3)


def test_an_epsilon_that_is_all_that_is_left():
    """lucidrains/performer-pytorch, performer_pytorch.py, fc8b784.

    does     Multiplies a query's features by e^(−‖x‖²/2), with x = q/d^¼, and adds ε = 10⁻⁴ to each.
    holds    Features without that factor: it cancels in the fraction.
    wrong    For ‖x‖² = 25 the largest feature is e^(−12.5), less than ε: queries that ask for different things take nearly the
             same average.
    """
    rng = np.random.default_rng(0)
    d, eps = 16, 1e-4
    W, Q, K, V = (rng.standard_normal(shape) for shape in ((64, d), (6, d), (12, d), (12, 3)))
    X = 5 * Q / np.linalg.norm(Q, axis=1, keepdims=True)
    features = np.exp(X @ W.T - (X @ W.T).max(1, keepdims=True))
    FK = np.exp(K / d**0.25 @ W.T - (K**2).sum(1, keepdims=True) / d**0.5 / 2)
    meant, _ = kernel_attention(features, FK, V)
    found, _ = kernel_attention(features * math.exp(-12.5) + eps, FK, V)
    assert math.exp(-12.5) < eps < math.exp(-18 / 2) < 1.3 * eps
    assert np.ptp(found, axis=0).max() < 0.1 * np.ptp(meant, axis=0).max()


@pytest.mark.parametrize("extended", [0, 2])
def test_the_lengths_of_segment_and_memory_exchanged(extended):
    """kimiyoung/transformer-xl, mem_transformer.py, 44781ed: _update_mems(hids, mems, qlen, mlen) gets (…, mlen, qlen).

    does     Ends the memory at qlen + max(0, mlen − ext_len).
    holds    At mlen + max(0, qlen − ext_len): the last ext_len tokens are read again.
    wrong    After the first segment, while mlen = 0, the memory holds tokens that will be read again. Never if ext_len = 0.
    """
    ends = [(m + max(0, 4 - extended), 4 + max(0, m - extended)) for m in (0, 4, 8)]  # segments of four
    wrong = [found - meant for meant, found in ends]
    assert wrong == [extended, 0, 0]


def test_a_graph_convolution_that_divides_by_rows():
    """tkipf/pygcn, utils.py, 1600b5b.

    does     N⁻¹ M, the mean over what a node sees.
    holds    N^−½ M N^−½, the equation of Kipf and Welling 2017.
    wrong    A leaf of a star with four leaves takes 1/2 of the centre, and not 1/√10. Where all degrees are equal, both agree.
    """
    star = np.eye(5)
    star[0] = star[:, 0] = 1
    ring = np.eye(5) + np.roll(np.eye(5), 1, 0) + np.roll(np.eye(5), -1, 0)
    for M, agree in ((star, False), (ring, True)):
        degree = M.sum(1)
        found, meant = M / degree[:, None], M / np.sqrt(np.outer(degree, degree))
        assert np.allclose(found, meant) == agree
        if not agree:
            assert (found[1, 0], meant[1, 0]) == (0.5, pytest.approx(1 / math.sqrt(10)))


def test_a_window_of_w():
    """huggingface/transformers, masking_utils.py, 00c4411; lucidrains/native-sparse-attention-pytorch, 83fa271.

    does     j > i − w if attention is causal, |i − j| ≤ w if not; and w + 1 keys, the own one among them, in the second.
    holds    `radius` is the largest distance to either side: ρ = w − 1, ρ = w and ρ = w.
    wrong    Causal w keys, else 2w + 1; and w + 1.
    """
    n, w = 40, 5
    i, j = np.arange(n)[:, None], np.arange(n)
    for found, radius, causal, keys in (
        ((j > i - w) & (j <= i), w - 1, True, w),
        (abs(i - j) <= w, w, False, 2 * w + 1),
        ((j >= i - w) & (j <= i), w, True, w + 1),
    ):
        np.testing.assert_array_equal(found, sparse.Window(radius=radius).graph(n, causal=causal).A > 0)
        assert found.sum(1).max() == keys


def test_blocks_chosen_by_the_mean_of_scores():
    """lucidrains/native-sparse-attention-pytorch, native_sparse_attention.py, 83fa271.

    does     Averages the scores of a group's heads, and takes softmax then.
    holds    The sum of the heads' weights (Yuan et al. 2025).
    wrong    Heads with the scores (5, 0, 0) and (−9, 0, 0) choose another block.
    """
    S = np.array([[5.0, 0, 0], [-9.0, 0, 0]])
    assert softmax(S)[0].sum(0).argmax() == 0
    assert softmax(S.mean(0)[None])[0].argmax() != 0


def test_weights_of_an_indexer_that_change_the_ranking():
    """fla-org/flash-linear-attention, ops/dsa/naive.py, bc3b101.

    does     Its docstring says that the weights of the heads do not change the ranking.
    holds    They do: I_j = Σ_h w_h ReLU(⟨q_h, k_j⟩).
    wrong    Products (2, 0) and (0, 1): the first key leads with the weights (1, 1), and the second with (1, 3).
    """
    products = np.array([[2.0, 0], [0, 1]])  # heads × keys
    assert (np.array([1, 1]) @ products).argmax() == 0
    assert (np.array([1, 3]) @ products).argmax() == 1


@pytest.mark.parametrize("D", [4, 16, 64])
def test_the_parenthesis_in_the_gradient_of_a_norm(D):
    """fla-org/flash-linear-attention, ops/titans/naive.py, bc3b101.

    does     D g − Σg/(σD) − x̂ Σ(g x̂)/(σD).
    holds    (D g − Σg − x̂ Σ(g x̂))/(σD), as the comment above that line says.
    wrong    The gradient is about σD times too long.
    """
    rng = np.random.default_rng(D)
    x, g = rng.standard_normal((2, 1, D))
    Y, pullback = layer_norm(x, np.ones(D), np.zeros(D), eps=0)
    sums, wide = g.sum() + Y * (g * Y).sum(), x.std() * D
    meant, found = (D * g - sums) / wide, D * g - sums / wide
    np.testing.assert_allclose(meant, pullback(g)[0], rtol=1e-10, atol=1e-13)
    assert 0.9 < np.linalg.norm(found) / np.linalg.norm(meant) / wide < 2


def test_a_scale_that_is_computed_and_not_used():
    """fla-org/flash-linear-attention, layers/mla.py, bc3b101.

    does     Multiplies self.scaling by the square of YaRN's factor, and calls attention with the default scale.
    holds    Scores times (0.1 ln s + 1)², for texts s times as long (and mscale_all_dim = 1).
    wrong    At s = 40 they are nearly half of what they should be.
    """
    assert 1.85 < (0.1 * math.log(40) + 1) ** 2 < 1.9


def test_a_window_for_the_cache_alone():
    """fla-org/flash-linear-attention, layers/forgetting_attn.py, bc3b101.

    does     Gives window_size to the cache, and calls attention without it.
    holds    One rule for both.
    wrong    A token that saw all earlier ones in training sees the last w while the model writes: another output.
    """
    rng = np.random.default_rng(0)
    n, w = 12, 4
    Q, K, V = rng.standard_normal((3, n, 5))
    trained, _ = dot_product_attention(Q, K, V, causal=True)
    written = [dot_product_attention(Q[[t]], *(X[max(0, t + 1 - w) : t + 1] for X in (K, V)))[0][0] for t in range(n)]
    far = np.abs(trained - written).max(1)
    assert far[:w].max() < 1e-12
    assert far[w:].min() > 1e-3


def test_a_window_that_each_step_has_for_itself():
    """zhuzilin/ring-flash-attention, ring_flash_attn.py, 8996282.

    does     Gives window_size to the attention of each step, which compares places within the block.
    holds    Places in the text. (Its README says that windows are not supported; nothing refuses one.)
    wrong    With blocks of c, a query sees keys c to c + w − 1 places before it, and not those that w reaches before its block.
    """
    rng = np.random.default_rng(0)
    n, c, w = 12, 6, 3
    Q, K, V = rng.standard_normal((3, n, 5))
    ours, before = slice(c, n), slice(0, c)  # what the second worker has, and what it is handed
    a, b = np.arange(c)[:, None], np.arange(c)
    window = (a - w < b) & (b <= a)
    parts = [partial_attention(Q[ours], K[step], V[step], mask=window)[0] for step in (ours, before)]
    (Y, _), _ = merge(*(np.stack(part) for part in zip(*parts, strict=True)))

    distance = np.arange(c, n)[:, None] - np.arange(n)
    found, _ = dot_product_attention(Q[ours], K, V, mask=np.hstack([window, window]))
    assert np.allclose(Y, found)
    far = distance[:, before][window]
    assert far.min() == c
    assert far.max() == c + w - 1
    right, _ = dot_product_attention(Q[ours], K, V, mask=(0 <= distance) & (distance < w))
    assert np.abs(Y - right).max(1).min() > 0.01


def test_which_two_heads_are_subtracted():
    """microsoft/unilm, multihead_diffattn.py, 768a3c8; huggingface/transformers, modeling_diffllama.py, 00d4b3d.

    does     Heads 2h and 2h + 1 in the first, h and h + H/2 in the second.
    holds    Both can be trained; neighbours, as in chapter 18.
    wrong    With H = 8 heads no pair is the same, and with the weights of one the other gives another output.
    """
    rng = np.random.default_rng(0)
    H = 8
    heads = np.arange(H)
    neighbours, halves = heads.reshape(-1, 2).T, heads.reshape(2, -1)
    assert not set(map(tuple, neighbours.T)) & set(map(tuple, halves.T))
    Q, K = rng.standard_normal((2, H, 6, 4))
    V, share = rng.standard_normal((H // 2, 6, 8)), np.full(H // 2, 0.5)
    one, other = (differential_attention(Q[a], K[a], Q[b], K[b], V, share)[0] for a, b in (neighbours, halves))
    assert np.abs(one - other).max() > 0.1


def test_directions_from_one_seed():
    """google-research/google-research, performer/fast_attention/tensorflow/fast_attention.py, 0c1bbe5.

    does     With struct_mode, draws each block of d directions from the same seed.
    holds    Each block anew.
    wrong    Of 4d directions d are different ones, each of them four times with another length.
    """
    d, seed = 8, 3
    blocks = [np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0].T for _ in range(4)]
    anew = [np.linalg.qr(np.random.default_rng(seed + k).standard_normal((d, d)))[0].T for k in range(4)]
    assert (len(np.unique(np.vstack(blocks), axis=0)), len(np.unique(np.vstack(anew), axis=0))) == (d, 4 * d)


def test_rows_of_blocks_that_are_not_over():
    """huggingface/transformers, modular_deepseek_v4.py, 7fa433e.

    does     Lengthens the mask of the window by zeros, which are added to scores, for the rows of all blocks.
    holds    A query sees a block when its last token is past: (18.11), pooled_attention.
    wrong    While a text is read as a whole, a change of its last token changes the first row; while it is written, it can't.
    """
    n, block, window = 12, 4, 3
    Q, C = np.random.default_rng(0).standard_normal((2, n, 5))
    changed = C.copy()
    changed[-1] += 1

    def read(C, all_blocks):
        E = C.reshape(-1, block, 5).mean(1)
        i, j, last = np.arange(n)[:, None], np.arange(n), block * np.arange(1, n // block + 1) - 1
        mask = np.concatenate([(j <= i) & (j > i - window), all_blocks | (last <= i)], 1)
        rows = np.concatenate([C, E])
        return dot_product_attention(Q, rows, rows, mask=mask)[0]

    moved = {all_blocks: np.abs(read(changed, all_blocks) - read(C, all_blocks)).max(1) for all_blocks in (False, True)}
    assert moved[True].min() > 1e-3
    assert moved[False][:-1].max() == 0
    E = C.reshape(-1, block, 5).mean(1)
    held, _ = pooled_attention(Q[None], C, E, block=block, window=window)
    assert np.allclose(held[0], read(C, False), rtol=1e-12)


def test_a_choice_among_blocks_that_are_not_over():
    """huggingface/transformers, modular_deepseek_v4.py, 02356fe.

    does     An indexer takes its k best blocks out of those of the whole text.
    holds    Out of those whose last token is past: chapter 18, most_wanted.
    wrong    Most queries see a block of later tokens, and a change of the last token changes what early ones choose.
    """
    n, block, k, rng = 24, 4, 2, np.random.default_rng(0)
    Q, w, K = rng.standard_normal((6, n, 5)), rng.standard_normal((n, 6)), rng.standard_normal((n // block, 5))
    changed, ends = K.copy(), np.arange(1, n + 1) // block
    changed[-1] *= -3

    def free(K):
        return np.sort(np.argsort(-index_scores(Q, K, w)[0], -1)[:, :k], -1)

    assert (free(K) >= ends[:, None]).any(1).mean() > 0.5
    assert (free(K) != free(changed))[: n // 2].any()
    held = most_wanted(Q, w, K, k, ends)
    assert (held < ends[:, None]).all()
    assert np.array_equal(held[:-1], most_wanted(Q, w, changed, k, ends)[:-1])


def test_the_chapter_names_what_was_read(root):
    """Each repository and commit that a test here names stands in the section of the chapter."""
    cells = json.loads((root / "notebooks" / "19_errata.ipynb").read_text(encoding="utf-8"))["cells"]
    section = "".join("".join(cell["source"]) for cell in cells if cell["id"].startswith("c19-code"))
    heads = [test.__doc__.partition("\n")[0] for name, test in globals().items() if name.startswith("test_")]
    named = [name for head in heads for name in re.findall(r"[\w-]+/[\w-]+(?=, )|\b(?=[0-9a-f]*\d)[0-9a-f]{7}\b", head)]
    assert len(named) > 2 * 15
    assert [name for name in named if f"`{name}`" not in section] == []
