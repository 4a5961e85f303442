"""The pages of code: the package, with its docstrings, and the files of tests that chapters and the map lead to."""

import ast
import importlib
import inspect
import textwrap
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import words

from minitransformer.book import equations

ROOT = Path(__file__).parents[1]
API = {  # pages of the package, and the modules whose public names stand there
    "The package": ["minitransformer", "minitransformer.functional"],
    "Attention": ["minitransformer.attention"],
    "Fewer keys": ["minitransformer.attention.compressed"],
    "Fewer pairs": ["minitransformer.attention.sparse", "minitransformer.attention.selected"],
    "Kernels and memories": ["minitransformer.attention.linear"],
    "Positions": ["minitransformer.positions"],
    "Models": ["minitransformer.models"],
    "Relatives": ["minitransformer.related"],
}


def place(name: str) -> str:
    """An anchor in front of what follows."""
    return f'<div class="place" id="{escape(name)}"></div>\n\n'


# ------------------------------------------------------------------------------------------------------ the package


def _rooms(rows: list[equations.Equation]) -> dict[str, list[str]]:
    """The pages of the API; what the map names beyond them has the last one."""
    named = {module for modules in API.values() for module in modules}
    other = sorted({_home(row.function)[0] for row in rows} - named)
    return {**API, "What is measured": other}


def _home(function: str) -> tuple[str, str]:
    """Module and name of what has an entry of its own; a method stands with its class."""
    module, _, name = function.rpartition(".")
    return _home(module) if inspect.isclass(equations.resolve(module)) else (module, name)


def public(rows: list[equations.Equation]) -> dict[str, str]:
    """The address of every public name."""
    found: dict[str, str] = {}
    for title, modules in _rooms(rows).items():
        for module in modules:
            for name in _names(module):
                found[f"{module}.{name}"] = f"api-{words.slug(title)}.html#{module}.{name}"
    by_thing = {id(_thing(*name.rpartition(".")[::2])): where for name, where in reversed(found.items())}
    for row in rows:
        home = ".".join(_home(row.function))
        found.setdefault(row.function, found.get(home) or by_thing[id(equations.resolve(home))])
    return found


def _thing(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _names(module: str) -> list[str]:
    """The public functions and classes of a module."""
    room = importlib.import_module(module)
    own = [name for name, thing in vars(room).items() if getattr(thing, "__module__", "") == module]
    names = [name for name in {*getattr(room, "__all__", ()), *own} if not name.startswith("_")]
    return [name for name in names if inspect.isfunction(thing := getattr(room, name)) or inspect.isclass(thing)]


def api(rows: list[equations.Equation], title: str, modules: list[str]) -> str:
    """A page of functions and classes: signature as it is written, docstring, and the source of what the map names."""
    mapped = {inspect.unwrap(equations.resolve(".".join(_home(row.function)))) for row in rows}
    lines, seen = [f"# {title}", ""], set()
    for module in modules:
        lines += [f"## {module}", "", words.docstring(inspect.getdoc(importlib.import_module(module)) or ""), ""]
        for name in sorted(_names(module), key=lambda name: (name.lower(), name)):
            thing = inspect.unwrap(getattr(importlib.import_module(module), name))
            if id(thing) not in seen:
                seen.add(id(thing))
                lines += [place(f"{module}.{name}"), f"### {name}", "", *entry(thing, thing in mapped), ""]
    return "\n".join(lines)


def entry(thing: Any, whole: bool) -> list[str]:
    """Signature and docstring of a function or class, and all of its source."""
    try:
        source = textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        return [words.docstring(inspect.getdoc(thing) or "")]
    node = ast.parse(source).body[0]
    lines = ["```python", signature(node), "```", "", words.docstring(inspect.getdoc(thing) or "")]
    for inner in node.body if isinstance(node, ast.ClassDef) else []:
        if (
            isinstance(inner, ast.FunctionDef)
            and (inner.name == "__call__" or inner.name[0] != "_")
            and ast.get_docstring(inner)
        ):
            lines += ["```python", signature(inner), "```", "", words.docstring(ast.get_docstring(inner) or "")]
    return lines + folded(source) * whole


def folded(source: str) -> list[str]:
    """A listing that opens with a click; the search passes over it."""
    return [
        "<details><summary>Source</summary>",
        "",
        "```{code-block} python",
        ":class: no-search",
        "",
        source.rstrip(),
        "```",
        "",
        "</details>",
    ]


def signature(node: ast.AST) -> str:
    """The head of a function, one argument a line where it is long; of a class, its fields."""
    if isinstance(node, ast.ClassDef):
        fields = [ast.unparse(item) for item in node.body if isinstance(item, ast.AnnAssign)]
        bases = f"({', '.join(map(ast.unparse, node.bases))})" * bool(node.bases)
        return "\n".join([f"class {node.name}{bases}", *(f"    {field}" for field in fields)])
    assert isinstance(node, ast.FunctionDef)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"def {node.name}({ast.unparse(node.args)}){returns}"
    if len(line) <= 88:
        return line
    return f"def {node.name}(\n    " + ",\n    ".join(_arguments(node.args)) + f",\n){returns}"


def _arguments(args: ast.arguments) -> list[str]:
    """Each argument with its default, and the signs between them."""
    defaults = [None] * (len(args.posonlyargs) + len(args.args) - len(args.defaults)) + list(args.defaults)
    found = [_one(arg, default) for arg, default in zip([*args.posonlyargs, *args.args], defaults, strict=True)]
    if args.posonlyargs:
        found.insert(len(args.posonlyargs), "/")
    if args.vararg:
        found.append("*" + ast.unparse(args.vararg))
    elif args.kwonlyargs:
        found.append("*")
    found += [_one(arg, default) for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    return found + (["**" + ast.unparse(args.kwarg)] if args.kwarg else [])


def _one(arg: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(arg) + (f"{' = ' if arg.annotation else '='}{ast.unparse(default)}" if default else "")


# ------------------------------------------------------------------------------------------------- files that are shown


def listing(path: str) -> str:
    """A file of tests or of the package, function by function, so that a link can lead to one."""
    source = (ROOT / path).read_text(encoding="utf-8")
    lines, rows = [f"# {Path(path).name}", "", f"`{path}`", ""], source.splitlines()
    starts = [
        (node.lineno - 1 - _above(node), node.name)
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    cuts = [(0, ""), *starts, (len(rows), "")]
    for (begin, name), (end, _) in pairwise(cuts):
        block = "\n".join(rows[begin:end]).strip("\n")
        if name.startswith("test_"):
            lines += [place(name), f"## {name}", ""]
        elif name:
            lines += [place(name), ""]
        if block:
            lines += [
                "```{code-block} python",
                ":class: no-search",
                f":lineno-start: {begin + 1}",
                "",
                block,
                "```",
                "",
            ]
    return "\n".join(lines)


def _above(node: ast.FunctionDef | ast.ClassDef) -> int:
    return node.lineno - min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def code(rows: list[equations.Equation], sources: dict[str, str]) -> dict[str, str]:
    """The pages of the package and of the files that something leads to, `sources`: path to page."""
    rooms = _rooms(rows)
    names = [f"api-{words.slug(title)}" for title in rooms]
    pages = {name: api(rows, *room) for name, room in zip(names, rooms.items(), strict=True)}
    about = "Every public function and class, with its docstring: equation, shapes, source, cost, errors."
    pages["api"] = "\n".join(["# The package", "", about, "", "```{toctree}", ":maxdepth: 1", *names, "```"])
    shown = {page.removesuffix(".html"): path for path, page in sorted(sources.items())}
    about = "Files that chapters and the map lead to."
    tree = ["```{toctree}", ":maxdepth: 1", *(f"{path} <{page}>" for page, path in shown.items()), "```"]
    pages["code"] = "\n".join(["# Tests that are written to be read", "", about, "", *tree])
    return pages | {name: listing(path) for name, path in shown.items()}
