"""`exporter runner`: show which exporter-run is used, build it, install it for C++ projects."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from exporter.cli import _options
from exporter.core.source_lines import printable

WIDTH = 100  # of the line that shows progress
VERBOSE = click.option("-v", "--verbose", is_flag=True, help="The output of CMake and the compiler; tracebacks.")
Listen = Callable[[str], None]


@click.group(name="runner", invoke_without_command=True, short_help="Show or build exporter-run, for rows in C++.")
@click.pass_context
def command(context: click.Context) -> int:
    """Show which exporter-run is used for the rows in C++, or build one for the installed torch.

    Without a command: which one is used, for which torch it was built, and which ones were refused. Exit code 1 if
    there is none that fits the installed torch.
    """
    return _show() if context.invoked_subcommand is None else 0


@command.command(short_help="Show which one is used; the default.")
def status() -> int:
    """Show which exporter-run is used: the same as `exporter runner`."""
    return _show()


@command.command(short_help="Compile exporter-run against the installed torch.")
@click.option("--again", is_flag=True, help="Build it even if the cache has it.")
@_options.QUIET
@VERBOSE
def build(again: bool, quiet: bool, verbose: bool) -> None:
    """Compile exporter-run against the installed torch, once for each torch and release of exporter.

    It needs a C++20 compiler, CMake and Ninja, takes one or two minutes of CPU time, and goes to the cache,
    $XDG_CACHE_HOME/exporter/runner or ~/.cache/exporter/runner. `exporter export` finds it there.
    """
    from exporter.core import runners
    from exporter.runs import build_runner

    with _progress(quiet, verbose) as listen:
        place = build_runner.build(listen, again)
    click.echo(place / "bin" / runners.NAME)
    used = runners.find().used
    if used is not None and not used.path.is_relative_to(place):
        click.echo(f"note: {used.path} comes first, from {used.origin}", err=True)
    if build_runner.lacks_graphs(place):
        click.echo(f"note: {build_runner.HEADERS}", err=True)


@command.command(short_help="Install it for C++ projects, with the library and headers.")
@click.option("--prefix", type=click.Path(path_type=Path, file_okay=False), required=True, metavar="DIR")
@_options.QUIET
@VERBOSE
def install(prefix: Path, quiet: bool, verbose: bool) -> None:
    """Install exporter-run, the library, its headers and the CMake package below DIR; build them first if needed.

    A CMake project then finds them with find_package(exporter) if DIR is in CMAKE_PREFIX_PATH. They use the torch of
    this environment, where it is now.
    """
    from exporter.runs import build_runner

    with _progress(quiet, verbose) as listen:
        files = build_runner.install(prefix, listen)
    click.echo(f"{len(files)} files in {prefix}: bin/exporter-run, lib/cmake/exporter, include/exporter")


def _show() -> int:
    from exporter.core import environment, runners
    from exporter.runs import build_runner

    found, torch = runners.find(), runners.installed_torch()
    used = found.used
    _line("torch", f"{torch.version}, {torch.folder}" if torch else "not installed")
    if used is not None:
        _line("exporter-run", f"{used.path}")
        _line("", f"from {used.origin}, built for torch {used.torch or '(it does not tell)'}")
    for one in found.refused:
        _line("not used", one.refused)
    why = build_runner.starts(used.path) if used else found.reason
    if why:
        _line("no C++ rows", why)
        _line("", used.remedy if used else found.remedy(bool(environment.compiler())))
    return 1 if why else 0


def _line(what: str, text: str) -> None:
    click.echo(f"{what:<14}{printable(text)}")


@contextmanager
def _progress(quiet: bool, verbose: bool) -> Iterator[Listen]:
    """Yield what receives the lines of the build: all with --verbose; on a terminal, the current one."""
    terminal = sys.stderr.isatty() and not quiet and not verbose
    started = time.monotonic()
    begun = False

    def listen(line: str) -> None:
        nonlocal begun
        if not (begun or quiet):
            click.echo("compiling exporter-run: one or two minutes of CPU time", err=True)
        begun = True
        if verbose:
            click.echo(printable(line), err=True)
        elif terminal:
            click.echo(f"\r\x1b[K[{time.monotonic() - started:4.0f} s] {printable(line)[:WIDTH]}", nl=False, err=True)

    try:
        yield listen
    finally:
        if terminal and begun:
            click.echo("\r\x1b[K", nl=False, err=True)
