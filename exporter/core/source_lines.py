"""Find the model's source line, `file:line`, that an error, a traceback or a message refers to. Never imports torch.

A place is in the user's code or in the library that defines the model, never in torch or in exporter.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

from exporter.core import checks_in_code
from exporter.core.errors import Blame

HERE = "<--- HERE"  # TorchScript's compiler marks the line with it
OWN = "exporter itself failed"  # how the message of an internal error begins
LONGEST = 100_000  # maximum number of characters of a message to examine
MESSAGE = 1000  # maximum number of characters of a message to keep
PACKAGE_FAILED = "the package's function failed, and wrote the reason to its standard error output"
# Control characters except tabs and line ends, bidirectional formatting, and surrogates.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RAISED = re.compile(r"^(?:\w+Error: )+(.+)$", re.MULTILINE)
_QUOTED = re.compile(r"\s*Original exception Traceback[\s\S]*")  # the traceback of another error
_COMPILER = re.compile(r"\b(?:error: |(?=cc1plus: out of memory|virtual memory exhausted|LLVM ERROR: ))([^\n]+)")
_ADDRESS = re.compile(r" at:? 0x[0-9a-f]+")
_CPP_STACK = re.compile(r"\s+Exception raised from \S+ at \S+:\d+")
_PACKAGE_CALL = re.compile(r"\w+\(\s*container_handle_,.*API call failed at \S+, line \d+", re.DOTALL)
_INTERPRETER = "The following operation failed in the TorchScript interpreter"
_FRAME_FILE = re.compile(r'File "(/[^"]+)"')
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
# A path may contain spaces if it is absolute and begins a line or what is in parentheses.
_MENTION = re.compile(r"((?:^|(?<=\())/[^\n()\"':]*?\.py|[^\s()\[\]\"'=,]+\.py)[:(](\d+)", re.MULTILINE)
_NO_PLACE = re.compile(r"(?:Caused by: \(|registered at )\S+")  # truncated at the front; where an operator was defined
_PACKAGE = re.compile(r".*/(?:site|dist)-packages/(?=([^/]+))")
_STANDARD = re.compile(r"(?:.*/lib/python3\.\d+/|<|code/__torch__|torch/|functorch/|exporter/)")
_LAYER = re.compile(r"torch/nn/modules/(?!module\.py)")
_HELPERS = re.compile(r"/lib/python3\.\d+/(?!(?:site|dist)-packages/)|/torch/utils/_pytree\.py$")
# Modules of exporter that run in place of the model's code.
_FOR_THE_MODEL = frozenset((
    "causal_masks.py", "clamped_slices.py", "counted_results.py", "covariances.py", "differentiation.py",
    "gpu_operators.py", "interpreter", "inverse_stft.py", "mixed_dtypes.py", "mixture_of_experts.py",
    "padded_encoders.py", "recurrent.py", "running_statistics.py", "sizes_in_builtins.py", "sizes_in_calls.py",
    "sparse_matrices.py", "value_checks.py",
))  # fmt: skip
_CALLS_THE_MODEL = str(Path(__file__).parents[1] / "model" / "flattening.py")
_COMPILERS = {"exporter", "functorch", "torch", "torchgen", "triton"}
# Targets add their own.
_LIBRARIES = _COMPILERS | {"cloudpickle", "ml_dtypes", "mpmath", "numpy", "safetensors", "sympy"}


def add_libraries(packages: Iterable[str]) -> None:
    """Treat these importable packages as libraries from now on, never as the model's code."""
    if not _LIBRARIES.issuperset(packages):
        _LIBRARIES.update(packages)
        _own_folders.cache_clear()


def message(error: BaseException) -> str:
    """Return an error's message in one line, without addresses.

    This is its first paragraph without C++ frames, followed by the first error of the C++ compiler if that failed.
    """
    text = _CPP_STACK.split(str(error)[:LONGEST].strip())[0]
    text = _PACKAGE_CALL.sub(PACKAGE_FAILED, text)
    if text.startswith(_INTERPRETER) and (raised := _RAISED.findall(text)):
        text = raised[-1]
    compiler = _COMPILER.search(text)
    text = _QUOTED.sub("", text.split("\n\n")[0])
    if compiler and "C++ compile error" in text:
        text = f"{text}: {compiler[1]}"
    return without_addresses(printable(" ".join(text.split())))[:MESSAGE].removesuffix(":")


def without_addresses(text: str) -> str:
    """Return a text without the addresses of objects, which differ from run to run."""
    return _ADDRESS.sub("", text)


def portable(trace: str) -> str:
    """Return a stack trace without the paths of this machine: see `short`."""
    return _FRAME_FILE.sub(lambda match: f'File "{short(match[1])}"', trace)


def short(file: str) -> str:
    """Return a file's path relative to site-packages or to exporter's parent; else only its name."""
    if package := _PACKAGE.match(file):
        return file[package.end() :]
    here = str(Path(__file__).parents[2])
    return file[len(here) + 1 :] if file.startswith(f"{here}/exporter/") else Path(file).name


def printable(text: str) -> str:
    """Return text that is safe to print: without colour sequences, and with other control characters replaced."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", _COLOUR.sub("", text))


def named(error: BaseException) -> str:
    """Return `Type: message` in one line, or only the type if there is no message."""
    return f"{type(error).__name__}: {message(error)}".removesuffix(": ")


def summary(error: BaseException) -> str:
    """Return `Type: message (file:line)` in one line."""
    return located(named(error), error)


def blamed(who: str, error: BaseException) -> str:
    """Return `who: Type: message (file:line)`, or the message of `own` if exporter itself failed."""
    return own(error) or f"{who}: {summary(error)}"


def blame(error: BaseException) -> Blame | None:
    """Return the known cause that an error names, or the one for internal errors; None if there is neither."""
    found: Blame | None = getattr(error, "blame", None)
    return found or (Blame("exporter-itself") if own(error) else None)


def own(error: BaseException) -> str:
    """Describe an internal error, raised by exporter's own code; return "" if the model or a library raised it.

    Out-of-memory errors, file errors and errors of torch's kernels never count as internal. Neither do the exceptions
    that exporter raises on purpose, which have a remedy.
    """
    if hasattr(error, "remedy"):
        return ""
    beyond = (RuntimeError, OSError, MemoryError, ImportError)
    if isinstance(error, beyond) and not isinstance(error, (RecursionError, NotImplementedError)):
        return ""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _HELPERS.search(f.filename)]
    if not frames or not _is_ours(frames[-1].filename) or _for_the_model(frames[-1].filename):
        return ""
    file = Path(frames[-1].filename).relative_to(Path(__file__).parents[2])
    return f"{OWN} ({file}:{frames[-1].lineno}): {named(error)}"


def located(text: str, error: BaseException) -> str:
    """Append the place in the model where the error originates, unless the text already names one."""
    where = place_of(error)
    return text if not where or place(text) else f"{text} ({where})"


def without(text: str) -> str:
    """Return the text without the place at its end."""
    return text.removesuffix(f" ({place(text)})")


def place(text: str) -> str:
    """Return the `file:line` outside torch and exporter that a message or a traceback names; "" if it names none.

    This is the last such line of a traceback, and the first of any other message, including those of TorchScript.
    """
    text = _NO_PLACE.sub("", text)
    frames = [shown(m[1], m[2]) for m in _FRAME.finditer(text) if not _is_library(m[1])]
    others = [shown(m[1], m[2]) for m in _MENTION.finditer(text) if not _is_library(m[1])]
    return next(iter(others or (frames if HERE in text else frames[::-1])), "")


def place_of_node(trace: str) -> str:
    """Return the place that a node's stack trace names; one in torch's own layers if there is no other."""
    frames = (shown(m[1], m[2]) for m in _FRAME.finditer(trace))
    return place(trace) or next(reversed([frame for frame in frames if _LAYER.match(frame)]), "")


def near(place: str) -> str:
    """Return a place or a path relative to the working directory if it is inside it."""
    path = Path(place)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else place


def place_of(error: BaseException) -> str:
    """Return the `file:line` in the model where an error originates; "" if there is none.

    It is taken from the message if that names a line, as those of TorchScript and torch.compile do; else from the last
    frame outside torch and exporter that exporter called; else from the torch.fx node that failed.
    """
    for one in reversed(list(chain(error))):
        if where := place(str(one)) or _last_frame(one) or _place_of_node(one):
            return where
    return ""


def check_of(error: BaseException) -> str:
    """Return the kind of the check in the model that caused the error; "" if none did."""
    frames = frames_of(error)
    check = checks_in_code.at(frames[-1].filename, frames[-1].lineno or 0) if frames else None
    return check.kind if check else ""


def frames_of(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames in the model that an error, or else what it follows from, passed through."""
    return next((frames for one in reversed(list(chain(error))) if (frames := _called(one))), [])


def here(within: str = "") -> str:
    """Return the innermost line of the current stack, up to the function `within`, outside torch and exporter.

    If there is none, return the innermost line of one of torch's own layers; "" if there is none either.
    """
    frame = frame_here(within)
    return shown(frame.f_code.co_filename, str(frame.f_lineno)) if frame else ""


def frames_of_model(frame: FrameType | None) -> list[FrameType]:
    """Return a frame and its callers, as far as they belong to the model's code, up to the call of the model."""
    found = []
    while frame is not None and frame.f_code.co_filename != _CALLS_THE_MODEL:
        if not _is_library(frame.f_code.co_filename):
            found.append(frame)
        frame = frame.f_back
    return found


def frame_here(within: str = "") -> FrameType | None:
    """Return the frame whose line `here` returns."""
    layer, frame = None, sys._getframe().f_back
    while frame is not None and frame.f_code.co_name != (within or None):
        if not _is_library(frame.f_code.co_filename):
            return frame
        if layer is None and _LAYER.match(shown(frame.f_code.co_filename, "")):
            layer = frame
        frame = frame.f_back
    return layer


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its `__cause__`, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def _last_frame(error: BaseException) -> str:
    frames = _called(error)
    return shown(frames[-1].filename, str(frames[-1].lineno)) if frames else ""


def _called(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames in the model that an error passed through, below the last call from exporter."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [i for i, one in enumerate(frames) if _is_ours(one.filename) and not _for_the_model(one.filename)]
    return [f for f in (frames[ours[-1] + 1 :] if ours else frames) if not _is_library(f.filename)]


def _place_of_node(error: BaseException) -> str:
    """Return the place of the last torch.fx node among the local variables of the traceback's frames."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        for name in ("node", "n"):
            meta = getattr(frame.f_locals.get(name), "meta", None)
            if isinstance(meta, dict) and (where := place(str(meta.get("stack_trace") or ""))):
                return where
    return ""


def of_library(place: str) -> bool:
    """Return whether `file:line` is in torch, its companions, exporter or the standard library."""
    return _is_library(place.rpartition(":")[0])


def _is_library(path: str) -> bool:
    """Return whether a file belongs to torch, its companions, exporter or the standard library, not to the model."""
    package = _PACKAGE.match(path)
    if package:
        return package[1].removesuffix(".py") in _LIBRARIES
    return _is_ours(path) or path.startswith(_own_folders()) or bool(_STANDARD.match(path))


def _is_ours(path: str) -> bool:
    return path.startswith(f"{Path(__file__).parents[1]}/")


def _for_the_model(path: str) -> bool:
    """Return whether a file of exporter runs in place of the model's code."""
    return not _FOR_THE_MODEL.isdisjoint(Path(path).relative_to(Path(__file__).parents[1]).parts)


@functools.cache
def _own_folders() -> tuple[str, ...]:
    """Return the folders of torch and its companions, even outside site-packages, without importing them."""
    specs = (importlib.util.find_spec(name) for name in sorted(_LIBRARIES - {"exporter"}))
    return tuple(f"{folder}/" for spec in specs if spec for folder in spec.submodule_search_locations or ())


def shown(path: str, line: int | str) -> str:
    """Return `file:line`, with the path of an installed package's file relative to site-packages."""
    return shortened(f"{path}:{line}")


def shortened(place: str) -> str:
    """Return `file:line` with the path of an installed package's file relative to site-packages; "" for ""."""
    package = _PACKAGE.match(place)
    return place[package.end() :] if package else place
