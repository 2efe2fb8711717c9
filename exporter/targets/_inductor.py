"""Inductor's settings, and patches: reproducible sources, detection of vector instructions."""

from __future__ import annotations

import ast
import contextlib
import contextvars
import difflib
import functools
import re
import types
import typing
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

from exporter.core import environment, filesystem
from exporter.core.errors import ExportError
from exporter.targets import _objects

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
SOURCES = ("wrapper.cpp", "kernel.cpp")  # extensions of a package's sources
# The raw memory of oneDNN's descriptor of a packed weight: 12 dimensions in each list, then ideep's number of groups.
DESCRIPTOR_BYTES = 772
DESCRIPTOR = re.compile(rf"(?<=opaque_metadata = \{{)(?:\d+L, ){{{DESCRIPTOR_BYTES - 1}}}\d+L(?=\}};)")
PADDING = (*range(108, 112), *range(316, 320), *range(420, 424))  # uninitialized bytes of the descriptor


def known() -> dict[str, Any]:
    """Return inductor's settings with their values."""
    from torch._inductor import config

    copied = getattr(config, "get_config_copy", None) or config.shallow_copy_dict  # the second before torch 2.8
    return dict(copied())


def parse(given: Sequence[str]) -> dict[str, Any]:
    """Return inductor's settings for NAME=VALUE, as the user writes them.

    Raises ExportError for a setting that inductor lacks, or a value of another type.
    """
    settings = known()
    found: dict[str, Any] = {}
    for one in given:
        name, _, text = one.partition("=")
        if name not in settings:
            close = difflib.get_close_matches(name, settings, n=3)
            hint = f"did you mean {', '.join(close)}?" if close else "torch/_inductor/config.py lists them"
            raise ExportError(f"--inductor names {name}, and inductor has no such setting", hint)
        value = _value(text)
        usual, kinds = settings[name], _kinds(name)
        if kinds and type(value) not in kinds:
            named = " or ".join(kind.__name__ for kind in kinds)
            raise ExportError(
                f"--inductor {one}: {name} is a {named}, by default {usual!r}", f"give {name}={usual!r}, for example"
            )
        found[name] = value
    return found


def _kinds(name: str) -> tuple[type, ...]:
    """Return the types that a setting may have; nothing if one of them is not a plain type."""
    from torch._inductor import config

    settings: Any = config  # torch replaces the module with an object of another class
    kind = settings.get_type(name)
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    return kinds if all(isinstance(one, type) and typing.get_origin(one) is None for one in kinds) else ()


def _value(text: str) -> Any:
    """Return a number, True, False, None, or a text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def repeat_itself() -> None:
    """Make inductor write the same sources each time, without memory addresses and uninitialized bytes.

    Inductor also appends its compile commands to a cached source whose name is the hash of the original content. The
    original content is therefore written again over what it finds in the cache.
    """
    from torch._inductor import codecache

    write = codecache.write

    def write_anew(content: Any, extension: str, *args: Any, **settings: Any) -> tuple[str, str]:
        if extension not in SOURCES:
            return write(content, extension, *args, **settings)
        content = DESCRIPTOR.sub(_plain_descriptor, ADDRESS.sub("", content))
        key, path = write(content, extension, *args, **settings)
        codecache.write_atomic(path, content)
        return key, path

    codecache.write = write_anew


def without_padding(descriptor: list[int]) -> list[int]:
    """Return oneDNN's descriptor of a packed weight with zeros in its uninitialized bytes."""
    if len(descriptor) != DESCRIPTOR_BYTES:
        return descriptor
    return [0 if index in PADDING else byte for index, byte in enumerate(descriptor)]


def _plain_descriptor(found: re.Match[str]) -> str:
    return ", ".join(f"{byte}L" for byte in without_padding([int(byte[:-1]) for byte in found[0].split(", ")]))


@contextlib.contextmanager
def unfolded(prefix: str) -> Iterator[None]:
    """Exclude attributes whose names start with `prefix` from constant folding, because calls change them.

    Inductor's constant folding asks for the value of every attribute; for these it gets "unknown".
    """
    from torch._inductor.constant_folding import ConstantFolder

    run_node = ConstantFolder.run_node

    def run(self: Any, node: Any) -> Any:
        if node.op == "get_attr" and str(node.target).startswith(prefix):
            return self.unknown_value
        return run_node(self, node)

    patched: Any = ConstantFolder
    patched.run_node = run
    try:
        yield
    finally:
        patched.run_node = run_node


@contextlib.contextmanager
def falling_back(names: Sequence[str], whole: bool = True) -> Iterator[None]:
    """Make inductor call torch's own kernels for these operators, such as aten.silu, instead of generating code.

    Raises ExportError for an unknown operator, and at the end, for a `whole` model, for one that inductor has not
    lowered: the model lacks it, or torch.export or a pattern of inductor has replaced it by others.
    """
    if not names:
        yield
        return
    from torch._inductor import decomposition, lowering

    tables: Any = (decomposition.decompositions, decomposition.fast_random_decomps())  # the second is a cached copy
    seen: set[Any] = set()
    asked = {name: _overloads(name) for name in names}
    with contextlib.ExitStack() as changed:
        for overload in {one for overloads in asked.values() for one in overloads}:
            for table in tables:
                changed.enter_context(without(table, overload))
            changed.enter_context(with_entry(lowering.lowerings, overload, _fallback(overload, seen)))
        yield
    unseen = [name for name, overloads in asked.items() if seen.isdisjoint(overloads)]
    if unseen and whole:
        raise ExportError(
            f"--fallback {unseen[0]} has no effect: inductor does not lower this operator",
            "name an operator of the exported program that inductor does not replace, as `exporter bisect` does",
        )


def _overloads(name: str) -> list[Any]:
    """Return the overloads of an operator. Raises ExportError if there is none of this name."""
    import torch

    namespace, _, operator = name.partition(".")
    operator, _, overload = operator.partition(".")
    try:
        packet = getattr(getattr(torch.ops, namespace), operator)
        found = [overload] if overload else packet.overloads()
        return [getattr(packet, one) for one in found]
    except AttributeError:
        raise ExportError(f"there is no operator {name}", "give a name such as aten.silu or aten.add.Tensor") from None


def _fallback(overload: Any, seen: set[Any]) -> Any:
    """Return a lowering to torch's kernel, which adds the operator to `seen`."""
    from torch._inductor import lowering

    lower: Any = lowering.fallback_handler(overload, add_to_fallback_set=False)

    @functools.wraps(lower)
    def lowered(*args: Any, **kwargs: Any) -> Any:
        seen.add(overload)
        return lower(*args, **kwargs)

    return lowered


@contextlib.contextmanager
def without(table: dict[Any, Any], key: Any) -> Iterator[None]:
    """Remove an entry of a table for a while."""
    missing = object()
    value = table.pop(key, missing)
    try:
        yield
    finally:
        if value is not missing:
            table[key] = value


@contextlib.contextmanager
def with_entry(table: dict[Any, Any], key: Any, value: Any) -> Iterator[None]:
    """Replace an entry of a table for a while."""
    with without(table, key):
        table[key] = value
        try:
            yield
        finally:
            del table[key]


@contextlib.contextmanager
def with_decomposition(operator: Any, decomposition: Any) -> Iterator[None]:
    """Let inductor decompose an operator for a while."""
    from torch._inductor import decomposition as known

    tables: Any = (known.decompositions, known.fast_random_decomps())  # the second is a cached copy
    with contextlib.ExitStack() as changed:
        for table in tables:
            changed.enter_context(with_entry(table, operator, decomposition))
        yield


@contextlib.contextmanager
def _probes_remembered() -> Iterator[None]:
    """Remember in inductor's cache directory which of its probes for vector instructions have loaded."""
    from torch._inductor import cpp_builder
    from torch._inductor.cpu_vec_isa import VecISA
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    patched: Any = VecISA
    check = patched.check_build

    def check_once(isa: Any, code: str) -> bool:
        key = _objects.key(code.encode(), isa.build_arch_flags(), cpp_builder.get_cpp_compiler())
        loaded = Path(cache_dir()) / "objects" / f"{key}.loads"
        if loaded.exists():
            return True
        found: bool = check(isa, code)
        if found:
            with contextlib.suppress(OSError):  # it is then probed again
                loaded.parent.mkdir(parents=True, exist_ok=True)
                loaded.touch()
        return found

    patched.check_build = check_once
    try:
        yield
    finally:
        patched.check_build = check


def find_vector_instructions() -> tuple[str, ...]:
    """Make inductor detect the CPU's vector instructions now; return a note if it fails.

    Its probes load only if they are linked with libtorch, which the settings of a CPU package turn off. Inductor caches
    the result: if a probe does not load, it generates code without vector instructions from then on. Up to ten probes
    are compiled and loaded, before torch 2.14 each in a process that imports torch, so they run side by side.
    """
    from torch._inductor import cpu_vec_isa
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    with _probes_remembered(), futures.ThreadPoolExecutor() as pool:
        flags = cpu_vec_isa.x86_isa_checker()
        kinds = [one for one in cpu_vec_isa.supported_vec_isa_list if all(flag in flags for flag in str(one).split())]
        for probe in [pool.submit(contextvars.copy_context().run, bool, one) for one in kinds]:
            probe.result()
        found = cpu_vec_isa.valid_vec_isa_list()
    if found or not environment.isa().startswith(("avx2", "avx512", "amx")):
        return ()
    noexec = filesystem.is_noexec(Path(cache_dir()))
    remedy = "set TORCHINDUCTOR_CACHE_DIR to a folder without noexec" if noexec else "remove that directory"
    return (f"slow: no vector instructions, because inductor's probes in {cache_dir()} do not load; {remedy}",)


def forget(weight: Any, uses: int = 1) -> None:
    """Leave a constant out of the package if the graph uses it in this many places, which now use another one."""
    from torch._inductor.virtualized import V

    constants: Any = V.graph.constants
    found = constants[weight.get_name()]
    attributes = [node for node in V.graph.graph.nodes if node.op == "get_attr"]
    if sum(len(node.users) for node in attributes if _attribute(V.graph.module, node.target) is found) == uses:
        del constants[weight.get_name()]


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part, None)
    return module
