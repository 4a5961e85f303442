"""What Jupyter's server writes when a chapter is saved that a kernel and an editor have marked."""

import shutil
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
from jupyter_server.config_manager import BaseJSONConfigManager
from jupyter_server.extension.utils import validate_extension
from jupyter_server.services.contents.filemanager import FileContentsManager

from minitransformer.book import equations, saving

CHAPTER = "99_sources.ipynb"


@pytest.fixture
def top(root, tmp_path, monkeypatch):
    """A folder that holds a copy of the book, in which the chapter stands twice: among the others, and elsewhere."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))  # a server writes there what it trusts
    (tmp_path / "book" / "notebooks").mkdir(parents=True)
    (tmp_path / "book" / equations.IN_REPOSITORY).parent.mkdir(parents=True)
    shutil.copy(root / equations.IN_REPOSITORY, tmp_path / "book" / equations.IN_REPOSITORY)
    for folder in ("notebooks", "."):
        shutil.copy(root / "notebooks" / CHAPTER, tmp_path / "book" / folder / CHAPTER)
    return tmp_path


def save(top, path, server_top):
    """Open and save a notebook through a server, after a kernel has noted its version and a reader folded a cell."""
    manager = FileContentsManager(root_dir=str(server_top))
    saving._load_jupyter_server_extension(type("Server", (), {"contents_manager": manager}))
    path = (top / path).relative_to(server_top).as_posix()
    model = manager.get(path)
    model["content"]["metadata"]["language_info"]["version"] = "3.99"
    model["content"]["cells"][0]["metadata"].update(collapsed=True, tags=["live"])
    manager.save(model, path)


@pytest.mark.parametrize("server_top", [".", "book", "book/notebooks"])
def test_a_chapter_is_saved_as_the_book_writes_it(top, server_top):
    path = top / "book" / "notebooks" / CHAPTER
    before = nbformat.read(path, as_version=4)
    save(top, path, top / server_top)
    after = nbformat.read(path, as_version=4)
    assert after.metadata == before.metadata
    assert after.cells[0].metadata == {"tags": ["live"]}
    after.cells[0].metadata = before.cells[0].metadata
    assert after == before


@pytest.mark.parametrize("folder", ["book", "book/mine", "notebooks"])
def test_other_notebooks_keep_what_is_noted_in_them(folder, top):
    """Beside the chapters, in a reader's own folder, and in a folder of that name in another place."""
    (top / folder).mkdir(exist_ok=True)
    path = top / folder / CHAPTER
    if not path.exists():
        shutil.copy(top / "book" / CHAPTER, path)
    save(top, path, top)
    after = nbformat.read(path, as_version=4)
    assert after.metadata.language_info.version == "3.99"
    assert after.cells[0].metadata == {"collapsed": True, "tags": ["live"]}


def test_other_files_among_the_chapters_are_saved_as_they_are(top):
    """And a path may begin with a slash, which is the server's top."""
    manager = FileContentsManager(root_dir=str(top))
    saving._load_jupyter_server_extension(type("Server", (), {"contents_manager": manager}))
    text = {"type": "file", "format": "text", "content": "mine"}
    manager.save(text, "book/notebooks/notes.txt")
    assert (top / "book" / "notebooks" / "notes.txt").read_text() == "mine"
    saving.before_saving("book/notebooks/notes.txt", text, manager)  # of which a server would log an error, and go on
    assert text["content"] == "mine"
    content = manager.get(f"book/notebooks/{CHAPTER}")["content"]
    content["metadata"]["language_info"]["version"] = "3.99"
    saving.before_saving(f"/book/notebooks/{CHAPTER}", {"type": "notebook", "content": content}, manager)
    assert "version" not in content["metadata"]["language_info"]


def test_the_environment_switches_it_on(root):
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    shared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    for source, target in shared.items():
        assert (Path(sys.prefix) / target).read_text() == (root / source).read_text()
    settings = BaseJSONConfigManager(config_dir=f"{sys.prefix}/etc/jupyter").get("jupyter_server_config")
    assert settings["ServerApp"]["jpserver_extensions"][saving.__name__]
    assert validate_extension(saving.__name__)
