"""A chapter as a bare page: what site/run needs of one, and no more."""

from html import escape
from pathlib import Path

import nbformat

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<link rel="stylesheet" href="run/run.css">
<style>body{{max-width:52rem;margin:auto;padding:1rem;font:16px/1.5 sans-serif}}pre{{background:#f3f4f5;padding:.7rem;
white-space:pre-wrap}}.cell_output pre{{background:none}}img{{max-width:100%}}</style>
<main><h1>{title}</h1>
{cells}
</main><script defer src="run/run.js"></script></html>
"""
CELL = """<div class="cell" id="cell-{id}"><div class="cell_input"><pre>{code}</pre></div>{output}</div>"""


def bare_page(notebook: Path) -> str:
    """Headings and code cells, each with its id, and what it prints."""
    cells = []
    for cell in nbformat.read(notebook, as_version=4).cells:
        if cell.cell_type == "code":
            text = "".join(output.get("text", "") for output in cell.outputs)
            output = f'<div class="cell_output"><pre>{escape(text)}</pre></div>' if text else ""
            cells.append(CELL.format(id=cell.id, code=escape(cell.source), output=output))
        elif cell.source.startswith("#"):
            cells.append(f"<h2>{escape(cell.source.splitlines()[0].lstrip('# '))}</h2>")
    return PAGE.format(title=notebook.stem, cells="\n".join(cells))
