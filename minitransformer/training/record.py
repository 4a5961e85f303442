"""What made a result: enough to repeat it, or to see why a repetition differs."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from minitransformer import backend
from minitransformer.training.parallel import cores


def circumstances() -> dict[str, str | int]:
    """Versions and machine, for the record of a run."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    blas = {f"{pool['internal_api']} {pool['version']} {pool.get('architecture', '')}".strip() for pool in pools}
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in ("minitransformer", "numpy", "numba")},
        "blas": ", ".join(sorted(blas)) or "unknown",
        "machine": f"{processor()}, {platform.system()} {platform.machine()}",
        "cores": cores(),
        "tier": str(backend()),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def processor() -> str:
    """The name that the processor gives itself."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def vectors() -> str:
    """The widest set of vector instructions that NumPy found, such as X86_V3 (AVX2) or X86_V4 (AVX-512)."""
    simd: Any = np.show_config(mode="dicts").get("SIMD Extensions", {})
    return (simd.get("found") or simd.get("baseline") or ["none"])[-1]
