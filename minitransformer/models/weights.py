"""Weights that others have trained: arrays of a safetensors file by name, and the sizes in the config.json beside it.

Nothing is fetched from anywhere, and nothing of a file is run.
"""

import json
import reprlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from minitransformer.lazy_import import lazy_import
from minitransformer.models.norms import NormParams
from minitransformer.terminal import in_a_line
from minitransformer.typing import Array

LONGEST_PATH = 1000  # letters of one that an index may have made
FREE = 2**20  # a size or a count up to here does no harm, however small the files are
# sizes of which there is a tensor
AXES = "vocab_size", "n_embd", "n_inner", "hidden_size", "intermediate_size", "head_dim"


def existing(path: Path, hint: str = "") -> Path:
    """The path of a file that is there. Raises FileNotFoundError, with the hint, if it is not."""
    if not path.is_file():
        raise FileNotFoundError(f"{in_a_line(path, LONGEST_PATH)}: no such file{hint}")
    return path


def json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ValueError, which names the file, if there is none in it."""
    try:
        content = json.loads(existing(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not JSON, or not UTF-8, or brackets without end
        raise ValueError(f"{path}: not a JSON file: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected an object, got {type(content).__name__}")
    return content


def refuse_others(path: Path, config: dict[str, Any], usual: dict[str, Any]) -> None:
    """Raise ValueError for a choice in a config that is not the usual one, where nothing else can be read."""
    for key, value in usual.items():
        if config.get(key, value) != value:
            raise ValueError(f"{path}: {key} is {reprlib.repr(config[key])}; only {value!r} can be read")


def refuse_larger(path: Path, config: dict[str, Any]) -> None:
    """Raise ValueError for a size in a config that is above 2²⁰ and the number of bytes in the files of tensors beside it.

    A model is made before its tensors are looked at, and some parts of it, such as angles, take room.
    """
    size = sum(file.stat().st_size for file in path.parent.glob("*.safetensors") if file.is_file())
    for key in AXES:
        if isinstance(value := config.get(key), int) and value > max(size, FREE):
            raise ValueError(
                f"{path}: {key}: {reprlib.repr(value)} is larger than the files of its tensors, {size} bytes"
            )


def whole(config: dict[str, Any], key: str) -> int:
    """A size in a config. Raises KeyError if it is missing, ValueError, which names it, if it is no whole number."""
    value = config[key]
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{key}: {reprlib.repr(value)} should be a whole number")
    return value


def number(config: dict[str, Any], key: str, usual: float | None = None) -> float:
    """A number in a config, or the usual one. Raises KeyError if there is neither, ValueError, which names it, if it is none."""
    value = config[key] if usual is None else config.get(key, usual)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError(f"{key}: {reprlib.repr(value)} should be a number")
    return float(value)


@contextmanager
def sizes_in(path: Path) -> Iterator[None]:
    """In this block, a size that is missing or impossible raises a ValueError that names the file."""
    try:
        yield
    except KeyError as error:
        raise ValueError(f"{path}: {error.args[0]} is missing") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{path}: {error}") from None


def _listed_in(index: Path) -> list[Path]:
    """The files beside an index that its weight_map names.

    raises   ValueError if it names none, or others; FileNotFoundError if one of them is missing
    """
    where = json_object(index).get("weight_map")
    names = list(where.values()) if isinstance(where, dict) else []
    if not names or not all(isinstance(name, str) and name.endswith(".safetensors") for name in names):
        raise ValueError(f"{index}: weight_map should say of each tensor in which safetensors file it stands")
    if aside := [name for name in names if Path(name).name != name]:
        raise ValueError(f"{index}: {in_a_line(aside[0])} should be the name of a file beside it")
    return [existing(index.with_name(name), f", and {index.name} names it") for name in sorted(set(names))]


class Tensors:
    """The arrays of a safetensors file by name, in one dtype; each is asked for with the shape that the model needs.

    path    of a file, or of what stands in several files: then path.index.json beside it says in which
    plain   maps a name in the file to ours, or to None if the tensor is no weight of the model
    """

    def __init__(self, path: Path, plain: Callable[[str], str | None] = str, dtype: type = np.float32) -> None:
        index = path.with_name(f"{path.name}.index.json")
        self.path = path if path.is_file() or not index.is_file() else index
        pickled = " (pytorch_model.bin is a pickle, which can run any code, and is not read)"
        files = [existing(path, pickled)] if self.path == path else _listed_in(index)
        self.library, self.dtype = lazy_import("safetensors", "the weights of a model"), dtype
        self.places: dict[str, tuple[Path, str]] = {}
        for file in files:
            try:
                found = [(plain(name), name) for name in self._file(file).keys()]  # noqa: SIM118  (it is not a dict)
            except self.library.SafetensorError as error:
                raise ValueError(f"{file}: not a whole safetensors file: {error}") from None
            for our, name in found:
                if our in self.places:
                    raise ValueError(f"{file}: the tensor {in_a_line(our)} is in {self.places[our][0].name} already")
                if our is not None:
                    self.places[our] = file, name
        self.asked: set[str] = set()
        self._raw: tuple[Path | None, dict[str, Any]] = None, {}

    def _file(self, file: Path) -> Any:
        """Opened anew for each tensor: what was read from a file that stays open would stay in memory, as a second copy."""
        return self.library.safe_open(file, "numpy")

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def __call__(self, name: str, *shape: int) -> Array:
        """The tensor that has this name with us. Raises ValueError if it is missing, or has another shape or an unknown type."""
        if name not in self.places:
            raise ValueError(f"{self.path}: the tensor {name} is missing")
        self.asked.add(name)
        path, named = self.places[name]
        file = self._file(path)
        entry = file.get_slice(named)
        found, dtype = tuple(entry.get_shape()), entry.get_dtype()
        if found != shape:
            raise ValueError(f"{path}: the tensor {name} has shape {found}, config.json says {shape}")
        if dtype == "BF16":
            return self._bfloat16(path, named).astype(self.dtype, copy=False)
        if dtype not in ("F32", "F16", "F64"):
            raise ValueError(f"{path}: the tensor {name} has type {dtype}; F32, F16, BF16 and F64 can be read")
        return file.get_tensor(named).astype(self.dtype, copy=False)

    def _bfloat16(self, path: Path, name: str) -> Array:
        """A bfloat16 is the upper half of a float32. (The library gives it with all else in the file, kept until the next.)"""
        if self._raw[0] != path:
            self._raw = path, dict(self.library.deserialize(path.read_bytes()))
        entry = self._raw[1][name]
        bits = np.frombuffer(entry["data"], "<u2").astype(np.uint32) << 16
        return bits.view(np.float32).reshape(entry["shape"])

    def linear(self, name: str, D: int, E: int, *, bias: bool = True) -> tuple[Array, Array | None]:
        """W (D, E) and b of a linear layer, whose file keeps Wᵀ: there y = W x, here Y = X W."""
        W = np.ascontiguousarray(self(f"{name}.weight", E, D).T)
        return W, self(f"{name}.bias", E) if bias else None

    def norm(self, name: str, D: int, *, bias: bool = True) -> NormParams:
        """Gain and bias of a norm, from the file."""
        return NormParams(self(f"{name}.weight", D), self(f"{name}.bias", D) if bias else None)

    def refuse_more(self, *within: str) -> None:
        """Raise ValueError for a tensor of the file that the model has not asked for; if told, only among those that begin so."""
        if more := sorted(name for name in set(self.places) - self.asked if name.startswith(within or "")):
            raise ValueError(
                f"{self.places[more[0]][0]}: the tensor {in_a_line(more[0])} belongs to no part of this model"
            )
