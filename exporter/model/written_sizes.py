"""Read the sizes of a recipe from the text of its code, without running it, so that a request can be refused early."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from exporter.core.errors import RecipeError
from exporter.core.size_range import Range, Sizes
from exporter.model import recipes

SIZES, INPUTS = "sizes", "inputs"
SETTING = {"*", "globals", "vars", "locals", "exec", "eval", "setattr", "delattr", "__dict__"}  # set names unseen
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def read(source: recipes.Source) -> tuple[Sizes, dict[str, Range]] | None:
    """Return the example's sizes, and the ranges that the recipe gives.

    Returns None unless the text leaves no doubt about them: a class without bases in a file, or a built-in module, has
    literals as `sizes` and as the defaults of `inputs`, and defines each once.
    """
    try:
        tree, body = _code(source)
        statements = [node for node in body if isinstance(node, ast.Assign | ast.AnnAssign)]
        sizes = [node.value for node in statements if SIZES in map(_name, _scope([node]))]
        functions = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == INPUTS]
        mentions = [node for node in _scope(body) if _name(node) in (SIZES, INPUTS)]
        if (len(sizes), len(functions), len(mentions)) != (1, 1, 2) or _is_computed(tree):
            return None
        given = ast.literal_eval(sizes[0]) if sizes[0] else None
        recipe: Any = SimpleNamespace(sizes=given, inputs=_callable(functions[0], body is not tree.body))
        return recipes.example_sizes(recipe.inputs), recipes.ranges(recipe)
    except (OSError, SyntaxError, ValueError, TypeError, RecipeError):
        return None  # loading the recipe reports what is wrong


def _code(source: recipes.Source) -> tuple[ast.Module, list[ast.stmt]]:
    """Return a recipe's file and the statements that define the recipe in it; none if it is in doubt which do."""
    nothing = ast.Module([], [])
    if source.inputs_file or source.dims:
        return nothing, []
    if source.kind == "name" and source.place.startswith(f"{recipes.BUILT_IN}."):
        spec = importlib.util.find_spec(source.place)
        tree = ast.parse(Path(spec.origin if spec and spec.origin else "").read_bytes())
        used = any(_name(node) == SIZES and isinstance(getattr(node, "ctx", None), ast.Load) for node in ast.walk(tree))
        return tree, [] if used else tree.body
    if source.kind != "file":
        return nothing, []
    tree = ast.parse(Path(source.place).read_bytes())
    known = [
        n for n in ast.walk(tree) if _name(n) == source.attribute and not isinstance(getattr(n, "ctx", 0), ast.Load)
    ]
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and known == [node]:
            return tree, [] if node.bases or node.keywords or node.decorator_list else node.body
    return nothing, []


def _scope(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes and all in them, except what is inside functions and classes."""
    for node in nodes:
        yield node
        if not isinstance(node, SCOPES):
            yield from _scope(ast.iter_child_nodes(node))


def _name(node: ast.AST) -> str:
    """Return the name that a node uses or defines, "" if it does neither."""
    for key in ("id", "asname", "name"):
        if isinstance(word := getattr(node, key, None), str):
            return word
    return ""


def _is_computed(tree: ast.Module) -> bool:
    """Return whether code may set the names in another way than by defining them."""
    words = {getattr(node, "attr", "") or _name(node) for node in ast.walk(tree)}
    elsewhere = {word for node in ast.walk(tree) for word in (getattr(node, "attr", ""), *_declared(node))}
    return bool(words & SETTING or elsewhere & {SIZES, INPUTS})


def _declared(node: ast.AST) -> list[str]:
    return node.names if isinstance(node, ast.Global | ast.Nonlocal) else []


def _callable(function: ast.FunctionDef, in_class: bool) -> Any:
    """Return a stand-in with the function's signature. Raises ValueError if that is not literal."""
    decorators = [_name(node) for node in function.decorator_list]
    if decorators not in ([], ["staticmethod"], ["classmethod"]) or (decorators and not in_class):
        raise ValueError("the decorator may change the signature")
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + arguments.defaults + arguments.kw_defaults
    pairs = list(zip([*plain, *arguments.kwonlyargs], defaults, strict=True))
    if in_class and decorators != ["staticmethod"]:
        pairs = pairs[1:]  # self or cls

    def stand_in() -> None: ...

    stand_in.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                one.arg,
                inspect.Parameter.KEYWORD_ONLY,
                default=ast.literal_eval(given) if given else inspect.Parameter.empty,
            )
            for one, given in pairs
        ]
    )
    return stand_in
