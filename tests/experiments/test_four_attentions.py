"""What chapter 03 says of four attentions in one model."""

import numpy as np

from minitransformer import experiments


def test_a_window_gives_nothing_away_kernel_attention_much_and_only_dense_attention_slows_down():
    found = {}
    for trial, result in experiments.load("four_attentions"):
        found.setdefault(trial.attention.partition(":")[0], []).append(result)
    window, dense = ([run["bits"] for run in found[name]] for name in ("window", "softmax"))
    assert np.mean(window) < np.mean(dense) < np.mean(window) + 0.05, "slightly better on average"
    bits = {name: np.mean([run["bits"] for run in runs]) for name, runs in found.items()}
    assert bits["softmax"] < bits["delta"] < bits["softmax"] + 0.25
    tables = {name: all_bytes for name, all_bytes, *_ in experiments.load("training_text").results[0]["bits"]}
    assert tables["3-gram"] < bits["linear"] < tables["2-gram"]
    slower = {
        name: np.divide(*np.median([run["written per second"] for run in runs], 0)) for name, runs in found.items()
    }
    assert slower.pop("softmax") > 1.5 * max(slower.values())
    assert max(slower.values()) < 2
    state = {name: runs[0]["state"] for name, runs in found.items()}
    assert state["softmax"] > 100 * max(bytes_ for name, bytes_ in state.items() if name != "softmax")
