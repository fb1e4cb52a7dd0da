"""The page about Python: every public name, its signature and its docstring, read from the source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import griffe

from tools.reference.markdown import anchor, code, page, prose, table

SOURCE = Path(__file__).resolve().parents[2] / "src"
WIDTH = 100

# Public by name, and for other modules of the package only: the seams between a branch, its transactions and workers.
SEAMS = {
    "AsyncBranch": {"claimed", "first_outcome", "perform", "prepared"},
    "AsyncStore": {"busy", "claim_waiting"},
    "AsyncTransaction": {"begin", "check", "close", "committed", "lost"},
    "Worker": {"driver"},
}

_GROUPS = {
    "turnkeep.store": "The store",
    "turnkeep.runner": "Agents",
    "turnkeep.model": "Records",
    "turnkeep.jsontext": "Values",
}
_FURTHER = ("testing", "embedded")

_INTRODUCTION = """\
Every public name of `turnkeep`, `turnkeep.testing` and `turnkeep.embedded`. The store is told about in its form for
event loops; [`Store`](#store), [`Branch`](#branch) and [`Transaction`](#transaction) are the same [for
threads](../how-to/sync.md). What every call may raise is drawn in [errors](errors.md), what settings there are in
[settings](settings.md)."""


@cache
def package() -> griffe.Module:
    """The package as its source says it is; nothing is imported."""
    loaded = griffe.load("turnkeep", search_paths=[SOURCE], resolve_aliases=True)
    assert isinstance(loaded, griffe.Module)
    return loaded


@cache
def public(module: str = "") -> dict[str, griffe.Object]:
    """The names in a module's `__all__`, and what they stand for."""
    found = package()[module] if module else package()
    return {str(name): _target(found[str(name)]) for name in found.exports or ()}


def text() -> str:
    """The page."""
    names = public()
    shown: list[griffe.Object] = []
    parts = [_INTRODUCTION]
    for prefix, title in _GROUPS.items():
        group = [one for one in names.values() if one.path.startswith(prefix + ".")]
        shown += group
        parts += [f"## {title}", *_described(group)]
    for module in _FURTHER:
        group = list(public(module).values())
        shown += group
        parts += [f"## turnkeep.{module}", prose(_docstring(package()[module])), *_described(group, f"{module}.")]
    apart = [one for one in names.values() if one not in shown and not is_error(one)]
    if apart:
        raise LookupError(f"public names that no part of the page has room for: {', '.join(one.path for one in apart)}")
    return page("Python", *parts, "## Types in signatures", *_described(_mentioned([*shown])))


def is_error(found: griffe.Object) -> bool:
    """Whether a name is one of the error tree, which has a page of its own."""
    return found.path.startswith("turnkeep.errors.")


def _target(found: griffe.Object | griffe.Alias) -> griffe.Object:
    return found.final_target if isinstance(found, griffe.Alias) else found


def _docstring(found: griffe.Object | griffe.Alias) -> str:
    return found.docstring.value if found.docstring else ""


def _described(group: Iterable[griffe.Object], prefix: str = "") -> Iterator[str]:
    """Functions, then values, then classes, each by its name, which some share in different modules."""
    kinds = (griffe.Function, griffe.Attribute, griffe.Class)
    for kind in kinds:
        for found in sorted((one for one in group if isinstance(one, kind)), key=lambda one: one.name.lower()):
            yield f"### `{prefix}{found.name}`"
            if isinstance(found, griffe.Class):
                yield from _class(found)
            elif isinstance(found, griffe.Function):
                yield from _function(found)
            else:
                yield code(f"{found.name} = {_quoted(str(found.value))}", "python")
                yield prose(_docstring(found))


def _class(found: griffe.Class) -> Iterator[str]:
    if twin := _twin(found):
        yield prose(_docstring(found))
        yield f"Its methods are those of [`{twin.name}`](#{anchor(twin.name)}), without `await`."
        return
    made = "ade by `" in _docstring(found)
    inherited = _members(found)
    constructor = inherited.get("__init__")
    if isinstance(constructor, griffe.Function) and not made and "dataclass" not in found.labels:
        yield code(signature(constructor, found.name), "python")
    yield prose(_docstring(found))
    yield _content(found)
    members = [one for one in inherited.values() if not one.name.startswith("_")]
    properties = [one for one in members if isinstance(one, griffe.Attribute) and "property" in one.labels]
    if properties:
        yield "\n".join(f"- **`{one.name}`** (`{one.annotation}`): {_flat(_docstring(one))}" for one in properties)
    for one in members:
        if isinstance(one, griffe.Function) and _docstring(one):
            yield f"#### `{found.name}.{one.name}`"
            yield from _function(one)


def _members(found: griffe.Class) -> dict[str, griffe.Object]:
    """The members of a class, those that it inherits first, without the seams."""
    every = {name: one for kind in [*reversed(found.mro()), found] for name, one in kind.members.items()}
    return {name: _target(one) for name, one in every.items() if name not in SEAMS.get(found.name, ())}


def _twin(found: griffe.Class) -> griffe.Object | None:
    """The class for event loops that a class for threads is generated from."""
    return public().get(f"Async{found.name}")


def _content(found: griffe.Class) -> str:
    """The fields of a dataclass, or the members of an enumeration."""
    if any(str(base).endswith("Enum") for base in found.bases):
        members = [one for one in found.members.values() if isinstance(one, griffe.Attribute)]
        return "\n".join(f"- `{one.name}` = `{_quoted(str(one.value))}`" for one in members)
    if "dataclass" not in found.labels:
        return ""
    rows = [(f"`{one.name}`", f"`{one.annotation}`", default(one.value)) for one in fields(found)]
    return table(("field", "type", "default"), rows)


def fields(found: griffe.Object) -> list[griffe.Attribute]:
    """The fields of a dataclass that are not private."""
    members = [one for one in found.members.values() if isinstance(one, griffe.Attribute) and one.annotation]
    return [one for one in members if "property" not in one.labels and not one.name.startswith("_")]


def default(given: str | griffe.Expr | None) -> str:
    """A field's default, without what only dataclasses and their representation need to know."""
    if isinstance(given, griffe.ExprCall):
        arguments = {one.name: str(one.value) for one in given.arguments if isinstance(one, griffe.ExprKeyword)}
        made = {"dict": "{}", "list": "[]"}.get(arguments.get("default_factory", ""), arguments.get("default_factory"))
        given = arguments.get("default", made)
    return "" if given is None else f"`{value(given)}`"


def _function(found: griffe.Function) -> Iterator[str]:
    of = found.overloads or _overloads(found)
    yield code("\n".join(signature(one) for one in (of or [found])), "python")
    yield prose(_docstring(found))


def _overloads(found: griffe.Function) -> list[griffe.Function]:
    parent = found.parent
    return list(parent.overloads.get(found.name, ())) if isinstance(parent, griffe.Module | griffe.Class) else []


def signature(function: griffe.Function, name: str = "") -> str:
    """A function's signature as it is called: one line, or one parameter a line."""
    parts: list[str] = []
    keyword_only = positional = False
    for parameter in function.parameters:
        if parameter.name in ("self", "cls") and function.is_function and isinstance(function.parent, griffe.Class):
            continue
        if positional and parameter.kind is not griffe.ParameterKind.positional_only:
            parts.append("/")
        positional = parameter.kind is griffe.ParameterKind.positional_only
        if parameter.kind is griffe.ParameterKind.keyword_only and not keyword_only:
            parts.append("*")
            keyword_only = True
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
        keyword_only = keyword_only or parameter.kind is griffe.ParameterKind.var_positional
        annotation = f": {parameter.annotation}" if parameter.annotation is not None else ""
        default = "" if parameter.default is None or parameter.kind in stars else f" = {value(parameter.default)}"
        parts.append(f"{stars.get(parameter.kind, '')}{parameter.name}{annotation}{default}")
    before, after = _frame(function, name)
    line = f"{before}({', '.join(parts)}){after}"
    if len(line) <= WIDTH:
        return line
    return f"{before}(\n" + "".join(f"    {part},\n" for part in parts) + f"){after}"


def _frame(function: griffe.Function, name: str) -> tuple[str, str]:
    """What stands before and after the parameters."""
    if name:
        return name, ""
    decorators = {str(one.value) for one in function.decorators}
    returns = str(function.returns)
    if managed := decorators & {"asynccontextmanager", "contextmanager"}:
        kind = "async with" if "asynccontextmanager" in managed else "with"
        return f"{kind} {function.name}", f" as {returns.partition('[')[2].rstrip(']')}"
    marks = "".join(f"@{one}\n" for one in ("classmethod", "staticmethod") if one in decorators)
    return f"{marks}{'async ' if 'async' in function.labels else ''}def {function.name}", f" -> {returns}"


def value(default: str | griffe.Expr) -> str:
    """A default as a reader knows it: a constant of ours by its value."""
    if isinstance(default, griffe.Expr) and (path := default.canonical_path).startswith("turnkeep."):
        try:
            constant = _target(package()[path.removeprefix("turnkeep.")])
        except KeyError:
            return str(default)
        if isinstance(constant, griffe.Attribute) and isinstance(constant.value, str):
            return _quoted(constant.value)
    return _quoted(str(default))


def _quoted(text: str) -> str:
    """A piece of code with the quotes that code is formatted with."""
    return text if '"' in text else text.replace("'", '"')


# -- types that are not public names, and stand in signatures of those that are


def _mentioned(shown: list[griffe.Object]) -> list[griffe.Object]:
    """Every type of ours that signatures mention, and no part of the page has described."""
    known = {_identity(one) for one in [*shown, *public().values()]}
    found: list[griffe.Object] = []
    waiting = list(shown)
    while waiting:
        for path in sorted(_paths(waiting.pop())):
            one = _target(package()[path.removeprefix("turnkeep.")])
            if _identity(one) not in known and not one.name.startswith("_"):
                known.add(_identity(one))
                found.append(one)
                waiting.append(one)
    return found


def _identity(found: griffe.Object) -> tuple[str, str]:
    """What tells types apart: an alias written in two modules is one."""
    return found.name, str(found.value) if isinstance(found, griffe.Attribute) else found.path


def _paths(found: griffe.Object) -> set[str]:
    """The paths of ours that a signature mentions, or those of a class's members."""
    annotations: list[str | griffe.Expr | None] = []
    if isinstance(found, griffe.Function):
        annotations = [found.returns, *(parameter.annotation for parameter in found.parameters)]
    elif isinstance(found, griffe.Class) and not _twin(found):
        return {
            path
            for name, member in _members(found).items()
            if not name.startswith("_") or name == "__init__"
            if "ade by `" not in _docstring(found) or name != "__init__"
            for path in _paths(member)
        }
    elif isinstance(found, griffe.Attribute):
        annotations = [found.annotation]
    expressions = [one for one in annotations if isinstance(one, griffe.Expr)]
    inner = {one.canonical_path for whole in expressions for one in _names(whole)}
    return {path for path in inner if path.startswith("turnkeep.")}


def _names(expression: griffe.Expr) -> Iterator[griffe.Expr]:
    if isinstance(expression, griffe.ExprName):
        yield expression
    for part in expression.iterate(flat=True):
        if isinstance(part, griffe.ExprName):
            yield part


def _flat(docstring: str) -> str:
    return " ".join(prose(docstring).split())
