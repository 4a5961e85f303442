"""From samples to statements: paired ratios, slopes, the machine, and the table."""

import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from minitransformer.backend import available, vector_bytes
from minitransformer.machine import cores, processor, vectors

BUSY = 0.5  # load per core from which on the machine counts as busy
REACH = 0.8  # a target asks for no more than this part of what the processor can do
UNITS = {"memory": (2**-20, "MiB")}


def ratios(peer: Iterable[float], ours: Iterable[float]) -> dict[str, float]:
    """Median and quartiles of peer/ours, round by round: what slows both in one round cancels."""
    q1, median, q3 = np.quantile(np.array(peer) / np.array(ours), (0.25, 0.5, 0.75))
    return {"median": float(median), "q1": float(q1), "q3": float(q3)}


def slope(n: Iterable[float], seconds: Iterable[float]) -> float:
    """The p of the power law c · nᵖ nearest to the times, by least squares of the logarithms."""
    return float(np.polyfit(np.log(np.array(n)), np.log(np.array(seconds)), 1)[0])


def agree(ours: list[list[float]], peer: list[list[float]]) -> bool:
    """Whether two samples of the results are the same up to float32 rounding."""
    if not ours or not peer:
        return True
    pairs = zip(map(np.array, ours), map(np.array, peer), strict=False)
    return all(a.shape == b.shape and np.abs(a - b).max() <= 2e-3 * max(np.abs(b).max(), 1e-6) for a, b in pairs)


def goal(wish: float, limit: dict[str, float] | None) -> float:
    """The ratio to reach: what the row wishes for, or less where this processor can't do that; the peer is reached anyhow."""
    return wish if limit is None else min(wish, max(1.0, REACH * limit["median"]))


def judge(result: dict[str, Any]) -> dict[str, Any]:
    """The result of a row with its ratios, the best of its peers, and whether the target is met (None without one).

    `limit` is the ratio that nothing on this processor can exceed, where the row says how many operations it needs; the target
    of such a row is held to it.
    """
    samples = dict(result["samples"])
    ours, fastest = samples.get("ours"), samples.pop("limit", None)
    against = {name: ratios(s, ours) for name, s in samples.items() if ours and name != "ours"}
    best = min(against, key=lambda name: against[name]["median"], default=None)
    limit = ratios(samples[best], fastest) if best and fastest else None
    target, met = result["target"], None
    if target is not None:
        target = goal(target, limit)
        met = best is not None and not result["differs"] and against[best]["median"] >= target
    return {**result, "ratios": against, "best": best, "target": target, "met": met, "limit": limit}


def slopes(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each core that was timed at three lengths or more: the power of n that its time grows with."""
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for result in results:
        if result["measure"] != "time" or "n" not in result["case"]:
            continue
        label = result["label"].replace(f" n={result['case']['n']}", "")
        for name, samples in result["samples"].items():
            if name == "limit":
                continue
            groups.setdefault((label, name), []).append((result["case"]["n"], float(np.median(samples))))
    return [
        {"core": label, "by": name, "slope": slope(*zip(*points, strict=True)), "points": sorted(points)}
        for (label, name), points in groups.items()
        if len({n for n, _ in points}) >= 3
    ]


# ------------------------------------------------------------------------------------- printing


def quantity(value: float, measure: str) -> str:
    """Seconds as ms, bytes as MiB."""
    factor, unit = UNITS.get(measure, (1e3, "ms"))
    return f"{value * factor:.4g} {unit}"


def line(result: dict[str, Any]) -> str:
    """One row: ours, each peer with its ratio and quartiles, the target, met or not."""
    parts = []
    for name in ("ours", *(peer for peer in result["peers"])):
        if name in result["unavailable"]:
            parts.append(f"{name}: not available ({result['unavailable'][name]})")
            continue
        if name not in result["samples"]:
            continue
        median = float(np.median(result["samples"][name]))
        text = f"{name} {quantity(median, result['measure'])}"
        if result["tokens"]:
            text += f" = {result['tokens'] / median:,.0f} tokens/s"
        if name in result["ratios"]:
            text += " ×{median:.2f} [{q1:.2f}, {q3:.2f}]".format(**result["ratios"][name])
        parts.append(text)
    if result.get("shares"):
        parts.append("of ours " + ", ".join(f"{kind} {share:.0%}" for kind, share in result["shares"].items()))
    if result["differs"]:
        parts.append(f"RESULTS DIFFER from {', '.join(result['differs'])}")
    best = f"{result['ratios'][result['best']]['median']:.2f}" if result["best"] else "–"
    limit = f"{result['limit']['median']:.2f}" if result["limit"] else ""
    target = "" if result["target"] is None else f"{result['target']:.2f}"
    verdict = {None: "", True: "met", False: "not met"}[result["met"]]
    return f"{result['label']:<66} {best:>6} {limit:>6} {target:>7}  {verdict:<8} {'; '.join(parts)}".rstrip()


HEADER = (
    f"{'':<66} {'ratio':>6} {'limit':>6} {'target':>7}  {'':<8} "
    "median of each (× peer/ours, median and quartiles of paired rounds)"
)


def summary(results: list[dict[str, Any]]) -> str:
    """The slopes, and how many targets are met."""
    lines = ["", f"{'time grows with n to the power of':<66} ours, and peers"]
    by_core: dict[str, list[str]] = {}
    for fit in slopes(results):
        by_core.setdefault(fit["core"], []).append(f"{fit['by']} {fit['slope']:.2f}")
    lines += [f"{core:<66} {', '.join(fits)}" for core, fits in by_core.items()]
    judged = [result for result in results if result["met"] is not None]
    lines += ["", f"{sum(result['met'] for result in judged)} of {len(judged)} targets met"]
    return "\n".join(lines)


# ------------------------------------------------------------------------------------- the machine


def machine() -> dict[str, Any]:
    """Processor, cores, vector instructions, caches, and how busy it is."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    settings = ("OPENBLAS", "OMP_", "MKL_", "NUMBA_", "MINITRANSFORMER_", "ATEN_", "ONEDNN_")
    told = {key: value for key, value in os.environ.items() if key.startswith(settings) and not key.endswith("_DIR")}
    return {
        "processor": processor(),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "cores": cores(),
        "vectors": vectors(),
        "register": vector_bytes() if "numba" in available() else 0,  # bytes
        "caches": _caches(),
        "load": round(load, 2),
        "settings": told,
    }


def busy(described: dict[str, Any]) -> str:
    """A warning if something else seems to be running, or an empty string."""
    if described["load"] <= BUSY * described["cores"]:
        return ""
    return (
        f"The load is {described['load']} on {described['cores']} cores: something else is running, don't trust times."
    )


def _caches() -> list[str]:
    """Level, kind and size of each cache of the first core."""
    found = []
    for cache in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((cache / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        found.append(f"L{level} {kind} {size}")
    return found
