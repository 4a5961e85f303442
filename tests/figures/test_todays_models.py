"""What the captions of the figures on today's models claim."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from minitransformer.figures import cache_growth, chosen_blocks, pooled_blocks, sink_gate, width_or_length


@pytest.fixture(scope="module")
def growth():
    return cache_growth.data()


def test_groups_and_latents_save_as_much_at_any_length(growth):
    for name, times in (("Llama 3 8B", 4), ("DeepSeek-V3", 32768 / 576)):
        np.testing.assert_allclose(growth.saving[name], times)


def test_windows_and_states_save_more_the_longer_the_text_and_never_more_than_layers_to_a_full_one(growth):
    for name, most in (("Gemma 3 27B", 6.2), ("gpt-oss-120b", 2), ("Qwen3-Next", 4)):
        saving = growth.saving[name]
        assert (np.diff(saving) > 0).all()
        assert 0.99 * most < saving[-1] < most
    assert growth.saving["Gemma 3 27B"][0] == 1, "a window of 1,024 tokens, in a text of 1,024"
    assert growth.saving["Qwen3-Next"][0] == pytest.approx(1, abs=0.01), "its states weigh as much as 1,024 tokens"
    assert growth.saving["Gemma 3 27B"][2] == pytest.approx(62 / 23), "ten layers of 4,096 and 52 of 1,024"


def test_the_order_of_the_lines_changes_on_the_way(growth):
    at = {int(n): {name: kept[k] for name, kept in growth.bytes.items()} for k, n in enumerate(growth.n)}
    assert min(at[1024], key=at[1024].get) == "gpt-oss-120b"
    assert min(at[2**17], key=at[2**17].get) == "Qwen3-Next"
    assert max(at[1024], key=at[1024].get) == "Gemma 3 27B"
    assert max(at[2**17], key=at[2**17].get) == "Llama 3 8B"
    cache_growth.draw(growth)


def test_a_sink_between_the_humps_opens_for_a_match():
    found = sink_gate.data()
    (at,) = np.flatnonzero(found.b == sink_gate.SHOWN)
    assert found.gates["matched"][at] > 0.85
    assert found.gates["unmatched"][at] < 0.03
    assert np.mean(found.unmatched > sink_gate.SHOWN) == 0
    assert np.mean(found.matched > sink_gate.SHOWN) > 0.9
    assert (np.diff(list(found.gates.values()), axis=1) < 0).all()
    assert found.unmatched.std() < found.matched.std() / 2
    for ax in sink_gate.draw(found).axes:
        low, high = ax.get_xlim()
        every = np.concatenate([found.unmatched, found.matched])
        assert ((low < every) & (every < high)).all(), "every L is in the picture"


def test_a_latent_bounds_the_width_and_linformer_the_length(growth):
    found, r = width_or_length.data(), width_or_length.RANK
    for bounded, free, values in (("latent", "Linformer", found.width), ("Linformer", "latent", found.length)):
        assert values[bounded][r - 1] > 0.1 > 1e-12 > values[bounded][r]
        assert values[free][r] > 0.1
    np.testing.assert_array_equal(found.width["Linformer"], found.width["all heads"])
    named = {
        text.get_text(): to_hex(text.get_color())
        for fig in (width_or_length.draw(found), cache_growth.draw(growth))
        for text in fig.axes[1].texts
    }
    assert named["latent"] == named["a latent"] != named["all heads"]


def test_a_block_appears_in_the_row_of_its_last_token_and_one_token_is_lost_until_then():
    """Places are counted from 1, as they are drawn."""
    found, block, window = pooled_blocks.data(), pooled_blocks.BLOCK, pooled_blocks.WINDOW
    np.testing.assert_allclose(found.tokens.sum(1) + found.blocks.sum(1), 1)
    n = len(found.tokens)
    i, j, last = np.arange(1, n + 1)[:, None], np.arange(1, n + 1), block * np.arange(1, n // block + 1)
    assert ((found.tokens > 0) == ((j <= i) & (j > i - window))).all()
    assert ((found.blocks > 0) == (last <= i)).all()
    lost = (j <= i) & (found.tokens == 0) & (-(-j // block) * block > i)
    assert np.argwhere(lost[30]).tolist() == [[24]], "token 25, of query 31"
    assert {int(row) % block for row in i[lost.any(1), 0]} == {window + 1}, "a window of block − 1 loses none"
    pooled_blocks.draw(found)


def test_a_query_sees_three_complete_blocks_at_most_and_not_always_the_nearest():
    """Places are counted from 1. Query 36 is the one of the chapter."""
    found, block, window, k = chosen_blocks.data(), chosen_blocks.BLOCK, chosen_blocks.WINDOW, chosen_blocks.CHOSEN
    np.testing.assert_allclose(found.tokens.sum(1) + found.blocks.sum(1), 1)
    n = len(found.tokens)
    i, j, last = np.arange(1, n + 1)[:, None], np.arange(1, n + 1), block * np.arange(1, n // block + 1)
    assert ((found.tokens > 0) == ((j <= i) & (j > i - window))).all()
    seen = found.blocks > 0
    assert not (seen & (last > i)).any()
    assert (seen.sum(1) == np.minimum(k, i[:, 0] // block)).all()
    assert last[seen[35]].tolist() == [16, 20, 28]
    skips = [row for row in range(n) if seen[row].any() and not seen[row, (row + 1) // block - 1]]
    assert len(skips) > n // 4, "the block that has just ended is often left out"
    chosen_blocks.draw(found)
