"""Which lines of a notebook that was handed in have to run before its exercises can be marked.

A student's own cells run, all of them, and so do those of exercises. Of a cell that stands in the book word for word, only the
lines run up to the last one that these could notice: most cells draw, train or measure, and nothing that follows uses what
they make. Where this can't be read off the names in the cells, every cell runs.
"""

import ast
import json
import re
import symtable
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from minitransformer.book.book import repository
from minitransformer.book.equations import notebooks
from minitransformer.book.running import BookError

ASKS = "check_exercise"
SETTINGS = re.compile(
    r"(?:\w+ = )?(?:mt\.backend|np\.set_printoptions)\("
)  # statements that leave more than names behind
OTHER_WAYS = re.compile(  # by which a cell can reach a name that does not stand in it
    r"globals|locals|vars|dir|eval|exec|compile|getattr|setattr|__.+__|get_ipython|importlib|sys|inspect|gc|builtins"
)
EARLIER = re.compile(r"In|Out|_[iod]h|_+|_\d+|_i+\d*")  # IPython's names for the cells before and what they gave


class _Unreadable(Exception):
    """What a cell names can't be told."""


class _Statement(NamedTuple):
    node: ast.stmt
    named: set[str]  # names of the notebook, not those within its functions
    bound: set[str]  # ... of these, those that it gives a value
    changed: set[str]  # ... and those that are more than imported or defined
    attributes: set[str]
    modules: set[str]  # of a.b.c, which is imported: b and c, by which a later cell can reach it
    sets: bool  # something that is no name


def of_the_book() -> frozenset[str]:
    """The cells of all chapters; none of them where there is only the package."""
    try:
        paths = notebooks(repository())
    except BookError:
        return frozenset()
    cells = (cell for path in paths for cell in json.loads(path.read_text(encoding="utf-8"))["cells"])
    return frozenset("".join(cell["source"]).rstrip() for cell in cells if cell["cell_type"] == "code")


def needed(sources: Sequence[str], book: frozenset[str]) -> list[int]:
    """Of each code cell of a notebook, how many of its lines have to run, from the first on.

    What is imported or defined is needed where its name is read. Other values can be changed in place, also under a second
    name: once one of them is needed, so is all that names it, before or after, and all that is named beside it.
    """
    lines = [source.count("\n") + 1 for source in sources]
    own = [ASKS in source or source.rstrip() not in book for source in sources]
    try:
        cells = [_statements(source) for source in sources]
        theirs = [cell for cell, is_own in zip(cells, own, strict=True) if is_own]
        if any(map(OTHER_WAYS.fullmatch, _union(one.named for cell in theirs for one in cell))):
            return lines
        if any(map(EARLIER.fullmatch, _union(_inputs(one.node for one in cell) for cell in theirs))):
            return lines
        runs = _closure(cells, own)
    except _Unreadable:
        return lines
    return [
        lines[k] if own[k] or run == len(cells[k]) else (cells[k][run - 1].node.end_lineno or 0) * (run > 0)
        for k, run in enumerate(runs)
    ]


def _closure(cells: Sequence[list[_Statement]], own: Sequence[bool]) -> list[int]:
    """How many statements of each cell have to run."""
    changed = _union(one.changed for cell in cells for one in cell)
    made = [
        _union(one.bound for one in cell if not _imports(one.node)) | _union(one.changed for one in cell)
        for cell in cells
    ]
    elsewhere = [_union(made[:k] + made[k + 1 :]) for k in range(len(cells))]
    runs = [max((p + 1 for p, one in enumerate(cell) if own[k] or one.sets), default=0) for k, cell in enumerate(cells)]
    names, attributes, before = set[str](), set[str](), -1
    while (now := len(names) + len(attributes) + sum(runs)) > before:
        before = now
        for k, cell in enumerate(cells):
            for place, one in enumerate(cell):
                if (one.bound | one.named & changed) & names or one.modules & attributes:
                    runs[k] = max(runs[k], place + 1)
            part = cell[: runs[k]]
            inputs = _inputs(one.node for one in part)
            named = _union(one.named for one in part)
            # else it makes its values of what is imported alone, and no other cell reads them
            names |= named if inputs & elsewhere[k] or named & (made[k] | changed) & names else inputs
            attributes |= _union(one.attributes for one in part)
    return runs


def _union(sets: Iterable[set[str]]) -> set[str]:
    return set[str]().union(*sets)


def _imports(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _statements(source: str) -> list[_Statement]:
    """The statements of a cell; a cell with a mistake of syntax has none, as nothing of it runs."""
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        code = TransformerManager().transform_cell(source)
        if "get_ipython()" in code:  # a line with % or !
            raise _Unreadable
        body = ast.parse(code).body
    except (SyntaxError, ValueError):  # the latter for a null byte
        return []
    return [_statement(node) for node in body]


def _statement(node: ast.stmt) -> _Statement:
    code, stored, attributes, modules = ast.unparse(node), set[str](), set[str](), set[str]()
    for part in ast.walk(node):
        match part:
            case ast.ImportFrom(module=module, names=names):
                if any(alias.name == "*" for alias in names):
                    raise _Unreadable
                modules.update(f"{module}".split(".")[1:], (alias.name for alias in names))
            case ast.Import(names=names):
                modules.update(step for alias in names for step in alias.name.split(".")[1:])
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                stored.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                stored.add(name)
            case ast.MatchMapping(rest=str(name)):
                stored.add(name)
            case ast.Attribute(attr=name):
                attributes.add(name)
        if isinstance(part, ast.Attribute | ast.Subscript) and not isinstance(part.ctx, ast.Load):
            stored.add(_root(part))
    named = _all_names(node)
    bound = {one.get_name() for part in _symbols(code) for one in part if one.is_assigned() or one.is_imported()}
    return _Statement(node, named, bound, stored & named, attributes, modules, bool(SETTINGS.match(code)))


def _symbols(code: str) -> tuple[list[symtable.Symbol], list[symtable.Symbol]]:
    """The names of the notebook in some code, and those that its functions use."""
    try:
        whole = symtable.symtable(code, "a cell", "exec")
    except SyntaxError:
        raise _Unreadable from None
    tables = [*whole.get_children()]
    for table in tables:  # which grows
        tables += table.get_children()
    return list(whole.get_symbols()), [one for table in tables for one in table.get_symbols() if one.is_global()]


def _root(node: ast.expr) -> str:
    """`a` of `a.b[c].d`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _inputs(body: Iterable[ast.stmt], given: Iterable[str] = ()) -> set[str]:
    """The names that statements read, and do not certainly give a value before."""
    has, inputs = set(given), set[str]()
    for node in body:
        match node:
            case ast.For(target=target, iter=head):
                heads, targets = [head], [target]
            case ast.With(items=items):
                heads, targets = (
                    [one.context_expr for one in items],
                    [one.optional_vars for one in items if one.optional_vars],
                )
            case ast.If(test=head) | ast.While(test=head):
                heads, targets = [head], []
            case _:
                read, gives = _reads_and_gives(node)
                inputs |= read - has
                has |= gives
                continue
        inside = _union(map(_names, targets))
        inputs |= _union(map(_all_names, heads)) - has
        inputs |= _union(map(_all_names, targets)) - has - inside  # `for x[i] in …` reads them
        inputs |= _inputs(node.body, has | inside) | _inputs(getattr(node, "orelse", ()), has)
    return inputs


def _reads_and_gives(node: ast.stmt) -> tuple[set[str], set[str]]:
    outer, inner = _symbols(ast.unparse(node))
    read = {one.get_name() for one in outer if one.is_referenced()} | {one.get_name() for one in inner}
    if isinstance(node, ast.Assign):
        return read, _union(map(_names, node.targets))
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
        gives = {one.get_name() for one in outer if one.is_assigned() or one.is_imported()}
        return read - gives, gives  # a function may call itself
    return _all_names(node), set()


def _all_names(node: ast.AST) -> set[str]:
    outer, inner = _symbols(ast.unparse(node))
    return {one.get_name() for one in (*outer, *inner)}


def _names(target: ast.expr) -> set[str]:
    """What is given a value in `x, y = …`."""
    if isinstance(target, ast.Tuple | ast.List):
        return _union(map(_names, target.elts))
    return {target.id} if isinstance(target, ast.Name) else set()
