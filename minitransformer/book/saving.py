"""JupyterLab saves a chapter as `minitransformer book` writes it, so that reading one changes nothing that git sees.

A kernel writes its version into every notebook that it is started for, and an editor what is folded. This is an extension of
Jupyter's server, which takes that out of chapters before they are saved. `jupyter_server.json`, which is installed beside
the other settings of the environment, switches it on.
"""

from pathlib import Path
from typing import Any

from minitransformer.book.equations import IN_REPOSITORY
from minitransformer.book.running import without_editor


def is_chapter(file: Path) -> bool:
    """Whether a file lies in the `notebooks` of a copy of this repository; other notebooks are none of our business."""
    folder = file.resolve().parent
    return folder.name == "notebooks" and (folder.parent / IN_REPOSITORY).is_file()


def before_saving(path: str, model: dict[str, Any], contents_manager: Any, **_: Any) -> None:
    """Clean a chapter that is about to be saved; `path` begins at the server's top."""
    if model["type"] == "notebook" and is_chapter(Path(contents_manager.root_dir, path.lstrip("/"))):
        without_editor(model["content"])


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    """Where Jupyter's server finds the next function."""
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: Any) -> None:
    """Called by Jupyter's server when it starts."""
    server.contents_manager.register_pre_save_hook(before_saving)
