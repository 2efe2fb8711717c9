"""Where in the model something happened: `file:line`, from an error, a traceback or a message. Never torch.

A place is in the user's code, or in the library that the model comes from; never in torch or in exporter.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import linecache
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

HERE = "<--- HERE"  # how TorchScript's compiler points at a line

OWN = "exporter itself failed"  # begins what is said of a failure that is no model's
LONGEST = 100_000  # characters of one that are looked at
MESSAGE = 1000  # characters of a message that are kept
# Control characters but for tabs and the ends of lines; what turns the direction of text; halves of characters.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SAID = re.compile(r"^(?:\w+Error: )+(.+)$", re.MULTILINE)
_QUOTED = re.compile(r"\s*Original exception Traceback[\s\S]*")  # of another error, frame by frame
_COMPILER = re.compile(r"\berror: ([^\n]+)")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_INTERPRETER = "The following operation failed in the TorchScript interpreter"
_FRAME_FILE = re.compile(r'File "(/[^"]+)"')
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_MENTION = re.compile(r"([^\s()\[\]\"'=,]+\.py)[:(](\d+)")
_NO_PLACE = re.compile(r"(?:Caused by: \(|registered at )\S+")  # cut off at the front; where an operator was defined
_PACKAGE = re.compile(r".*/(?:site|dist)-packages/(?=([^/]+))")
_STANDARD = re.compile(r"(?:.*/lib/python3\.\d+/|<|code/__torch__|torch/|functorch/)")
_LAYER = re.compile(r"torch/nn/modules/(?!module\.py)")
_HELPERS = re.compile(r"/lib/python3\.\d+/(?!(?:site|dist)-packages/)|/torch/utils/_pytree\.py$")
# What runs in the place of the model's own code.
_FOR_THE_MODEL = ("interpreter", "recurrent.py", "mixture_of_experts.py")
_COMPILERS = {"exporter", "functorch", "torch", "torchgen", "triton"}
# Targets add theirs.
_LIBRARIES = _COMPILERS | {"cloudpickle", "ml_dtypes", "mpmath", "numpy", "safetensors", "sympy"}


def add_libraries(packages: Iterable[str]) -> None:
    """Take code of these importable packages for a library's from now on, never for the model's."""
    if not _LIBRARIES.issuperset(packages):
        _LIBRARIES.update(packages)
        _own_folders.cache_clear()


def message(error: BaseException) -> str:
    """What an error says, in one line: its first paragraph, of a compiler's also its first error; no addresses."""
    text = str(error)[:LONGEST].strip()
    if text.startswith(_INTERPRETER) and (said := _SAID.findall(text)):
        text = said[-1]
    compiler = _COMPILER.search(text)
    text = _QUOTED.sub("", text.split("\n\n")[0])
    if compiler and "C++ compile error" in text:
        text = f"{text}: {compiler[1]}"
    return _ADDRESS.sub("", printable(" ".join(text.split())))[:MESSAGE]


def portable(trace: str) -> str:
    """A stack trace without the folders of this machine: files of packages from these on, others by their name."""
    return _FRAME_FILE.sub(lambda match: f'File "{short(match[1])}"', trace)


def short(file: str) -> str:
    """A file without the folders of this machine."""
    if package := _PACKAGE.match(file):
        return file[package.end() :]
    here = str(Path(__file__).parents[2])
    return file[len(here) + 1 :] if file.startswith(f"{here}/exporter/") else Path(file).name


def printable(text: str) -> str:
    """The text without what a terminal would obey: escape sequences that colour are left out, other codes replaced."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", _COLOUR.sub("", text))


def named(error: BaseException) -> str:
    """`Type: message`, in one line; of an error without a message its type."""
    return f"{type(error).__name__}: {message(error)}".removesuffix(": ")


def summary(error: BaseException) -> str:
    """`Type: message (file:line)`, in one line."""
    return located(named(error), error)


def blamed(who: str, error: BaseException) -> str:
    """`who: Type: message (file:line)`; of an error of exporter's own, that it is one, and where."""
    return own(error) or f"{who}: {summary(error)}"


def own(error: BaseException) -> str:
    """What to say of an error that exporter's own code raised; "" where the model, or a library, did.

    Errors of memory, of files and of torch's kernels are never its own, whoever called; nor is what exporter raises on
    purpose, which has a remedy.
    """
    if hasattr(error, "remedy"):
        return ""
    beyond = (RuntimeError, OSError, MemoryError, ImportError)
    if isinstance(error, beyond) and not isinstance(error, (RecursionError, NotImplementedError)):
        return ""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _HELPERS.search(f.filename)]
    if not frames or not _is_ours(frames[-1].filename):
        return ""
    file = Path(frames[-1].filename).relative_to(Path(__file__).parents[2])
    if any(part in file.parts for part in _FOR_THE_MODEL):
        return ""
    return f"{OWN} ({file}:{frames[-1].lineno}): {named(error)}"


def located(text: str, error: BaseException) -> str:
    """The text with the place in the model that the error comes from at its end, unless it names one already."""
    where = place_of(error)
    return text if not where or place(text) else f"{text} ({where})"


def without(text: str) -> str:
    """The text without the place at its end."""
    return text.removesuffix(f" ({place(text)})")


def place(text: str) -> str:
    """`file:line` outside torch and exporter that a message or a stack names; "" when it names none.

    Of a traceback the last such line; of TorchScript's messages and of all others, the first.
    """
    text = _NO_PLACE.sub("", text)
    frames = [shown(m[1], m[2]) for m in _FRAME.finditer(text) if not _is_library(m[1])]
    others = [shown(m[1], m[2]) for m in _MENTION.finditer(text) if not _is_library(m[1])]
    if others:
        return others[0]
    return "" if not frames else frames[0] if HERE in text else frames[-1]


def place_of(error: BaseException) -> str:
    """`file:line` in the model that an error comes from; "" when there is none.

    Messages name it where they can, TorchScript's and those of torch.compile; else it is the traceback's last line
    outside torch and exporter, of what exporter called; else the line of the torch.fx node that failed.
    """
    for one in reversed(list(_chain(error))):
        if where := place(str(one)) or _last_frame(one) or _place_of_node(one):
            return where
    return ""


def check_of(error: BaseException) -> str:
    """`an assert` or `a check that raises`, where that is the statement in the model that an error comes from."""
    for one in reversed(list(_chain(error))):
        frames = _called(one)
        if frames:
            return _kind_of_check(frames[-1].filename, frames[-1].lineno or 0)
    return ""


def _kind_of_check(file: str, line: int) -> str:
    """Of the statement that asks, at this line of a file that can be read."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and node.lineno <= line <= (node.end_lineno or 0):
            return "an assert"
        if isinstance(node, ast.If) and node.test.lineno <= line <= (node.test.end_lineno or 0):
            raises = not node.orelse and all(isinstance(inner, ast.Raise) for inner in node.body)
            return "a check that raises" if raises else ""
    return ""


def here(within: str = "") -> str:
    """The innermost line of the running stack outside torch and exporter, that a function called `within` led to.

    Where there is none, the innermost line of a layer of torch's own; "" when there is none of these either.
    """
    layer, frame = "", sys._getframe().f_back
    while frame is not None and frame.f_code.co_name != (within or None):
        where = shown(frame.f_code.co_filename, str(frame.f_lineno))
        if not _is_library(frame.f_code.co_filename):
            return where
        layer = layer or (where if _LAYER.match(where) else "")
        frame = frame.f_back
    return layer


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what it was raised from, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def _last_frame(error: BaseException) -> str:
    frames = _called(error)
    return shown(frames[-1].filename, str(frames[-1].lineno)) if frames else ""


def _called(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames in the model that an error went through, of what exporter called."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [i for i, frame in enumerate(frames) if _is_ours(frame.filename)]
    return [f for f in (frames[ours[-1] + 1 :] if ours else frames) if not _is_library(f.filename)]


def _place_of_node(error: BaseException) -> str:
    """From the last torch.fx node among the variables of the frames that the error went through."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        for name in ("node", "n"):
            meta = getattr(frame.f_locals.get(name), "meta", None)
            if isinstance(meta, dict) and (where := place(str(meta.get("stack_trace") or ""))):
                return where
    return ""


def of_library(place: str) -> bool:
    """Whether `file:line` is in torch, in exporter or in Python itself."""
    return _is_library(place.rpartition(":")[0])


def _is_library(path: str) -> bool:
    """Whether a file is no code of the model's: torch, exporter, Python itself."""
    package = _PACKAGE.match(path)
    if package:
        return package[1].removesuffix(".py") in _LIBRARIES
    return _is_ours(path) or path.startswith(_own_folders()) or bool(_STANDARD.match(path))


def _is_ours(path: str) -> bool:
    return path.startswith(f"{Path(__file__).parents[1]}/")


@functools.cache
def _own_folders() -> tuple[str, ...]:
    """Where torch and its companions lie, when that is no site-packages; nothing is imported."""
    specs = (importlib.util.find_spec(name) for name in sorted(_LIBRARIES - {"exporter"}))
    return tuple(f"{folder}/" for spec in specs if spec for folder in spec.submodule_search_locations or ())


def shown(path: str, line: int | str) -> str:
    """`file:line`, a library's file from its package on, any other as it is."""
    package = _PACKAGE.match(path)
    return f"{path[package.end() :] if package else path}:{line}"
