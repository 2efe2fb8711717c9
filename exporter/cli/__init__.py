"""The command line: parse, call, render, exit code. Each command has a file, imported on use; none imports torch."""

from __future__ import annotations

import importlib
import pkgutil
import signal
import sys
import traceback
from types import FrameType
from typing import Any

import click

from exporter._version import __version__
from exporter.cli import _streams
from exporter.core import filesystem, source_lines
from exporter.core.errors import ExporterError, JobError

ORDER = (
    "export", "explain", "repair", "bisect", "profile", "check", "bench", "compare", "report", "release", "sign",
    "pack", "unpack", "deploy", "models", "targets", "doctor", "runner",
)  # fmt: skip


class Commands(click.Group):
    """Find commands by their file's name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return our commands in the order in which users need them, then any others."""
        found = {info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")}
        return [name for name in ORDER if name in found] + sorted(found - set(ORDER))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the command's file."""
        if name not in self.list_commands(ctx):
            return None
        command: click.Command = importlib.import_module(f"{__name__}.{name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, and suggest a command for a mistyped name."""
        import difflib

        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if close:
                raise click.UsageError(f"{error.message} Did you mean {close[0]}?", ctx) from None
            raise


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="exporter")
def cli() -> None:
    """Export a PyTorch model every way, check each artifact, time it, and ship the winner with its proof."""


def main() -> None:
    """Run the console script `exporter`."""
    _run(cli, "exporter")


def main_export() -> None:
    """Run the console script `export`: `exporter export` for callers that exec a program."""
    from exporter.cli.export import command

    _run(command, "export")


def _run(command: click.Command, name: str) -> None:
    """Run a command to its end, even if its output cannot be written, and exit with its exit code."""
    with _streams.kept() as output:
        code = _code(command, name)
        sys.stdout.flush()
        if code == 0 and output.lost:
            remedy = "everything else is done; if it made a bundle, `exporter report BUNDLE` shows it"
            _show(ExporterError(f"the output cannot be written: {output.lost}", remedy))
            code = _streams.LOST
    sys.exit(code)


def _code(command: click.Command, name: str) -> int:
    """Run a command, print its error if it raises one, and return its exit code."""
    verbose = (
        any(a.startswith("-") and not a.startswith("--") and "v" in a for a in sys.argv[1:]) or "--verbose" in sys.argv
    )
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup does
        signal.signal(signal.SIGHUP, _interrupt)
    try:
        filesystem.require_directory()
        result: Any = command.main(prog_name=name, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as interrupt:
        notes = getattr(interrupt.__cause__ or interrupt.__context__ or interrupt, "__notes__", [])
        click.echo("; ".join(["interrupted", *notes]), err=True)
        return 130
    except ExporterError as error:
        if verbose:
            traceback.print_exception(error)
        _show(error)
        return error.exit_code
    except Exception as error:
        known: ExporterError | None = filesystem.users_error(error) if isinstance(error, OSError) else None
        if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
            known = JobError(filesystem.NO_PROCESS, filesystem.MORE_PROCESSES)
        if known is not None:
            _show(known)
            return known.exit_code
        error.add_note("This is a bug in exporter. Please report it with these lines.")
        raise


def _interrupt(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGHUP:  # the shell and the kernel send one each when a terminal closes
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _show(error: ExporterError) -> None:
    click.echo(click.style("Error: ", fg="red", bold=True) + source_lines.printable(str(error)), err=True)
    for line in filter(None, (error.remedy, *getattr(error, "__notes__", []))):
        click.echo(f"  {source_lines.printable(line)}", err=True)
