"""A cache of the headers and objects that inductor compiles, because it compiles unchanged sources in every export.

An object depends on its source and the compile command, except for the paths in them, and on the compiler, torch and,
because of `-march=native`, the CPU. Objects with weights are not kept: they are large, and assembling them is fast.

A package's wrapper begins with AOTInductor's interface, which is the same in all packages and takes most of the time to
compile. It is compiled alone, so that it is found in the cache, and linked with the rest of the wrapper to the object
that inductor asked for. Inductor compiles a wrapper, its kernels and the headers of both one after the other; here what
belongs to the wrapper is compiled beside the rest.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import hashlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from exporter.core import environment
from exporter.targets import _lean_headers

KEPT = ("-fPIC", "-fopenmp")
DROPPED = ("-f", "-m", "-g", "-O", "-W", "-pedantic", "-DCPU_CAPABILITY")
WRAPPERS = "torch/csrc/inductor/aoti_include/"  # the folder of the headers that wrappers include
KERNELS = "torch/csrc/inductor/cpp_prefix.h"  # the header that kernels include
CONTAINER = "model_container.h"  # of models; wrappers have a model alone
INCLUDED = re.compile(r"-include \S+ ")
BASE = "namespace torch::aot_inductor { template class AOTInductorModelBase<AOTInductorModel>; }\n"


# Runs something in the thread that compiles wrappers, before the next one.
_before_wrapper = contextvars.ContextVar[Callable[[Callable[[], None]], None] | None]("_before_wrapper", default=None)


def keep_headers() -> None:
    """Keep precompiled headers in the cache directory; torch puts them among temporary files.

    Torch names them by a hash of all files that they include, which takes half a second and the program `openssl`. Here
    the versions of torch and of the compiler stand for these files.
    """
    from torch._inductor import codecache
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    place, patched = Path(cache_dir()) / "precompiled_headers", cast(Any, codecache)
    patched._HEADER_DIR, patched._HEADER_LOCK_DIR = str(place), str(place / "locks")
    made = functools.cache(_precompiled)
    patched._precompile_header = lambda *given, **settings: made(*given, _before_wrapper.get() is not None, **settings)


def _precompiled(header: str, command: str, split: bool, **settings: Any) -> str:
    """Precompile a header of torch unless that was done before; return the path to include.

    `split` says whether wrappers are compiled in parts: their header then lacks what the other part has.
    """
    import torch
    from torch._inductor import codecache, cpp_builder

    settings.pop("extra_flags", None)  # for the linker
    options = cpp_builder.CppTorchDeviceOptions(**settings, precompiling=True)
    place = Path(codecache._HEADER_DIR)
    of_wrappers = split and header.startswith(WRAPPERS)
    lean = _lean_headers.folder(place) if of_wrappers else None
    if of_wrappers:
        command = of_any_cpu(cpp_builder.CppBuilder("header", "header.h", options).get_command_line())
    if lean:
        options._include_dirs.insert(0, str(lean))
    version = cpp_builder.get_compiler_version_info(options.get_compiler())
    known = (command, version, torch.__version__, torch.version.git_version, *((lean.name,) if lean else ()))
    key, path = codecache.write(f"#include <{header}>\n", "h", extra="\0".join(known), specified_dir=str(place))
    made, partial = (
        cpp_builder.CppBuilder(name=f"{path}{suffix}", sources=path, BuildOption=options) for suffix in ("", ".partial")
    )
    command = partial.get_command_line()

    def make() -> None:
        with locked(Path(codecache._HEADER_LOCK_DIR) / key):
            if not Path(made.get_target_file_path()).exists():
                if lean:
                    _lean_headers.fill(lean)
                # A killed compiler leaves a part of it.
                cpp_builder.run_compile_cmd(of_any_cpu(command) if of_wrappers else command, cwd=str(place))
                Path(partial.get_target_file_path()).replace(made.get_target_file_path())

    before_wrapper = _before_wrapper.get()
    if of_wrappers and before_wrapper:
        before_wrapper(make)
    else:
        make()
    return path


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Let one process at a time make this file in the cache."""
    from torch._inductor import codecache
    from torch.utils._filelock import FileLock

    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{file}.lock", timeout=codecache.LOCK_TIMEOUT):
        yield


@contextlib.contextmanager
def reused() -> Iterator[None]:
    """Keep compiled objects in inductor's cache directory, and take them from there."""
    from torch._inductor.cpp_builder import CppBuilder
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    patched: Any = CppBuilder
    build = patched.build
    cache = _Cache(Path(cache_dir()), build)  # now, because inductor takes another directory while its caches are off
    wrappers: list[futures.Future[None]] = []

    def submit(act: Callable[..., None], *arguments: Any) -> None:
        wrappers.append(pool.submit(contextvars.copy_context().run, act, *arguments))

    def finish() -> None:
        begun, wrappers[:] = wrappers[:], []
        futures.wait(begun)
        for one in begun:
            one.result()

    def build_once(builder: Any) -> None:
        target = Path(builder.get_target_file_path())
        source = target.with_suffix(".cpp")
        if not target.name.endswith((".wrapper.o", ".kernel.o")) or not source.is_file():
            finish()
            build(builder)
        elif target.name.endswith(".wrapper.o"):
            text = source.read_bytes()  # now, because inductor appends its commands
            submit(cache.compile, builder, text, cache.build_in_parts)
        else:
            cache.compile(builder, source.read_bytes(), lambda one, _: build(one))

    patched.build = build_once
    token = _before_wrapper.set(submit)
    try:
        with futures.ThreadPoolExecutor(1) as pool:
            yield
            finish()
    finally:
        _before_wrapper.reset(token)
        patched.build = build


@dataclass(frozen=True)
class _Cache:
    """The objects in a cache directory; `build` is how inductor builds one."""

    place: Path
    build: Callable[[Any], None]

    def compile(self, builder: Any, source: bytes, build: Callable[[Any, bytes], None]) -> None:
        """Take an object from the cache, or build and keep it."""
        target = Path(builder.get_target_file_path())
        kept = self.file(builder, source, builder.get_command_line())
        if kept.is_file():
            shutil.copyfile(kept, target)
            return
        build(builder, source)
        _keep(target, kept)

    def file(self, builder: Any, source: bytes, command: str) -> Path:
        """Return where the cache has the object that a command makes of a source of the builder."""
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        target, compiler = Path(builder.get_target_file_path()), command.split()[0]
        caches = ((cache_dir(), "CACHE"), (self.place, "CACHE"))
        for place, name in ((target, "TARGET"), (target.with_suffix(".cpp"), "SOURCE"), *caches):
            command = command.replace(str(place), name)
        return self.place / "objects" / f"{key(source, command, compiler)}.o"

    def build_in_parts(self, builder: Any, source: bytes) -> None:
        """Make the object of a wrapper from those of its parts if that is possible, or else as inductor does."""
        from torch._inductor.exc import CppCompileError

        parts = split(source.decode())
        if parts is not None:
            with contextlib.suppress(CppCompileError, OSError):
                return self.link(builder, *parts)
        # Headers that are compiled for parts lack what the interface has.
        builder._include_dirs_args = INCLUDED.sub("", builder._include_dirs_args)
        return self.build(builder)

    def link(self, builder: Any, interface: str, rest: str) -> None:
        """Compile the rest of a wrapper, and the interface unless the cache has it, and link them to one object."""
        from torch._inductor import cpp_builder

        target, command = Path(builder.get_target_file_path()), builder.get_command_line()
        common = self.file(builder, interface.encode(), plain(command))

        def compiled(text: str, source: Path, made: Path, command: str) -> Path:
            _write(source, text.encode())  # debug information has its name
            inputs = command.replace(str(target.with_suffix(".cpp")), str(source))
            cpp_builder.run_compile_cmd(inputs.replace(str(target), str(made)), cwd=str(made.parent))
            return made

        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            with locked(common):  # packages are built side by side
                if not common.is_file():
                    made = Path(folder, "interface.o")
                    _keep(compiled(interface, made.with_suffix(".cpp"), made, plain(command)), common)
                    common = made
            if KERNELS not in rest:
                command = of_any_cpu(command)
            own = compiled(rest, target.with_suffix(".rest.cpp"), Path(folder, "rest.o"), command)
            link = [command.split()[0], "-r", "-nostdlib", str(common), str(own), "-o", str(target)]
            cpp_builder.run_compile_cmd(shlex.join(link), cwd=folder)


def split(wrapper: str) -> tuple[str, str] | None:
    """Return the source of AOTInductor's interface and that of the rest of a wrapper; None if it does not have both.

    The first has the code of the model's base class, and of what `_lean_headers` leaves out.
    """
    import torch._inductor

    interface = (Path(torch._inductor.__file__).parent / "codegen/aoti_runtime/interface.cpp").read_text().strip()
    before, found, after = wrapper.partition(interface)
    if not found:
        return None
    includes = "\n".join(
        line for line in interface.splitlines() if line.startswith("#include") and CONTAINER not in line
    )
    return (
        f"{before}{interface}\n{BASE}{_lean_headers.defined()}",
        f"{before}{includes}\n{BASE.replace('template', 'extern template')}{after}",
    )


def plain(command: str) -> str:
    """Return a compile command without what only arithmetic depends on, without headers compiled so, and debugging."""
    words, kept = _words(command), []
    for word in words:
        if word == "-include":
            next(words)
        elif word in KEPT or not word.startswith(DROPPED):
            kept.append(word)
    return shlex.join([*kept, "-O1", "-w"])


def of_any_cpu(command: str) -> str:
    """Return a compile command without instruction sets: wrappers compute nothing, and then share a header."""
    return shlex.join(word for word in _words(command) if not word.startswith(("-m", "-DCPU_CAPABILITY")))


def _words(command: str) -> Iterator[str]:
    """Yield the words of a command, each definition as one."""
    words = iter(shlex.split(command))
    for word in words:
        yield word + next(words) if word == "-D" else word


def key(source: bytes, command: str, compiler: str) -> str:
    """Return a hash of a source, of the command that compiles it, and of all else that the result depends on."""
    import torch
    from torch._inductor.cpp_builder import get_compiler_version_info

    parts = (
        command,
        get_compiler_version_info(compiler),
        torch.__version__,
        environment.cpu_name(),
        *sorted(environment.cpu_flags()),
    )
    return hashlib.sha256("\0".join(parts).encode() + b"\0" + source).hexdigest()


def _keep(target: Path, kept: Path) -> None:
    """Copy an object into the cache. A full disk or a read-only cache only means that it is compiled again."""
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        _write(kept, target.read_bytes())


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: other processes read and write it too."""
    handle, partial = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(partial).replace(path)
    except OSError:
        Path(partial).unlink()
        raise
