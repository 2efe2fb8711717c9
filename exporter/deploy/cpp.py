"""Deploy an artifact as a self-contained folder that requires neither Python nor any library of the machine.

The folder contains the runner, every library that the runner loads (including the C library and its loader), the
artifact and the golden. The runner is started through the folder's own loader (`ld.so --library-path`, ld.so(8)), so no
file is patched and the folder can be moved anywhere, such as to an empty chroot or the root of a container image.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from exporter import targets
from exporter.bundle import checksums
from exporter.bundle.layout import GOLDEN, PICKLED_GOLDEN
from exporter.core import environment, runners
from exporter.core.contract_records import Contract
from exporter.core.errors import ArtifactError, JobError, MissingDependency, UsageError
from exporter.core.parity_records import Parity
from exporter.core.records import ArtifactRecord, Manifest, VariantRecord
from exporter.deploy import Deployment, choose, golden, publish, staged, take
from exporter.model import custom_ops
from exporter.runs import session_checks
from exporter.workers.children import Zygote
from exporter.workers.session.client import NativeSession, Session

KIND = "cpp"
RUNNER = "/bin/exporter-run"
TIMEOUT_S = 600.0
FOUND = re.compile(r"(?:(\S+) => )?(/.+) \(0x[0-9a-f]+\)")  # a line of ldd's output: the name asked for, and the path
# Operator libraries link to it, but it cannot be loaded without an interpreter, so exporter-run has a stand-in.
LEFT_OUT = "libtorch_python.so"
README = """{model}, {variant}, written by `exporter deploy cpp`. It requires neither Python nor any installed library.

    ./run verify {artifact}      replays golden.safetensors by the parity rule
    ./run bench {artifact}
    ./run run {artifact} --inputs in.safetensors --outputs out.safetensors
    ./run --help

run is a script for /bin/sh. If there is no shell, as in an empty chroot or an image from scratch:

    {command}

Compiled packages (.pt2) are unpacked in $TMPDIR, or in /tmp by default, hence the folder tmp/.
"""
SCRIPT = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
exec {command}
"""


@dataclass(frozen=True)
class Start:
    """How to start the runner. Paths are absolute, with the folder as the root."""

    loader: str
    ops_libs: tuple[str, ...] = ()

    @property
    def program(self) -> list[str]:
        """The command before its arguments."""
        return [self.loader, "--library-path", "/lib", RUNNER]

    def words(self, *arguments: str) -> list[str]:
        """Return the command line for when the folder is the root."""
        return [*self.program, *arguments, *(word for file in self.ops_libs for word in ("--ops-lib", file))]

    def words_in(self, root: Path, *arguments: str) -> list[str]:
        """Return the command line for when the folder is at `root`."""
        return [f"{root}{word}" if word.startswith("/") else word for word in self.words(*arguments)]


def refuse(variant: VariantRecord) -> str:
    """Return why exporter-run in a self-contained folder cannot run the variant, or ""."""
    if not targets.is_native(variant.target):
        return "does not run in C++"
    if variant.contract and variant.contract.device != "cpu":
        return "runs on a GPU, which requires the libraries of the installed driver"
    return ""


def deploy(place: Path, manifest: Manifest, name: str | None, out: Path, ops_libs: Sequence[str] = ()) -> Deployment:
    """Deploy a variant of the bundle to the folder `out` and check the artifact there against the golden.

    Raises UsageError if no variant fits, ArtifactError if a file was altered or a library is missing, MissingDependency
    without exporter-run or ldd, and JobError if the folder is not self-contained or the artifact loses parity.
    """
    variant = chosen(manifest, name)
    with staged(out, KIND) as root:
        _, parity = fill(root, place, manifest, variant, ops_libs)
        return publish(root, out, Deployment(KIND, manifest.model.name, variant.name, parity))


def chosen(manifest: Manifest, name: str | None) -> VariantRecord:
    """Return the variant with this name, or without a name the one recommended for C++."""
    return choose(replace(manifest, goal=replace(manifest.goal, needs="cpp")), name, refuse)


def fill(
    root: Path, place: Path, manifest: Manifest, variant: VariantRecord, ops_libs: Sequence[str]
) -> tuple[Start, Parity]:
    """Copy everything that the runner needs to an empty folder and check the artifact there against the golden."""
    assert variant.artifact is not None
    assert variant.contract is not None
    for file in variant.files:
        take(place, file, root / file.path)
    _take_golden(place, golden(place, manifest), root / GOLDEN)
    sums = {file.path: file.sha256 for file in variant.files} | {GOLDEN: checksums.of(root / GOLDEN)}
    (root / checksums.NAME).write_text(checksums.text(sums), encoding="utf-8")  # the runner requires it
    libraries = _operators(variant.contract, ops_libs)
    start = Start(f"/lib/{_copy_programs(root, libraries)}", tuple(f"/lib/{file.name}" for file in libraries))
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    words = start.words("verify", f"/{variant.artifact.path}")
    script = (f'"$here{word}"' if word.startswith("/") else word for word in start.words('"$@"'))
    about = {"model": manifest.model.name, "variant": variant.name, "artifact": variant.artifact.path}
    (root / "README").write_text(README.format(**about, command=shlex.join(words)), encoding="utf-8")
    (root / "run").write_text(SCRIPT.format(command=" ".join(script)), encoding="utf-8")
    (root / "run").chmod(0o755)
    return start, _judge(root, manifest, variant, start)


def _take_golden(place: Path, recorded: ArtifactRecord, to: Path) -> None:
    """Copy the golden in the format that the runner reads."""
    if recorded.path != PICKLED_GOLDEN:
        take(place, recorded, to)
        return
    with Zygote() as zygote, tempfile.TemporaryDirectory(prefix="exporter-") as scratch:
        take(place, recorded, Path(scratch) / PICKLED_GOLDEN)
        converted = session_checks.converted(zygote, Path(scratch) / PICKLED_GOLDEN, Path(scratch) / "log")
        shutil.copyfile(converted, to)


def _operators(contract: Contract, ops_libs: Sequence[str]) -> list[Path]:
    """Return the user's operator libraries and the known libraries of the operators that the artifact calls."""
    known = {namespace: custom_ops.library(namespace) for namespace in contract.ops}
    unknown = [namespace for namespace, file in known.items() if file is None]
    if unknown and not ops_libs:
        raise UsageError(
            f"the artifact calls operators of {', '.join(unknown)}", "pass the library that registers them: --ops-lib"
        )
    return [*map(Path, ops_libs), *filter(None, known.values())]


def _copy_programs(root: Path, libraries: list[Path]) -> str:
    """Copy the runner and the libraries that it loads, and return the name of the loader."""
    available = runners.find()
    if available.used is None:
        raise MissingDependency(available.reason, available.remedy(bool(environment.compiler())))
    runner = available.used.path
    found = loaded_by(runner)
    torch = found["libc10.so"].parent if "libc10.so" in found else runner.parent
    for library in libraries:
        needed = {library.name: library, **loaded_by(library, torch)}
        if (torch / "libtorch.so").is_file():  # exporter-run opens it before the libraries of a CUDA build
            needed |= {"libtorch.so": torch / "libtorch.so", **loaded_by(torch / "libtorch.so", torch)}
        found = needed | found
    found.pop(LEFT_OUT, None)
    for folder in (root / "bin", root / "lib"):
        folder.mkdir()
    shutil.copy(runner, root / RUNNER.lstrip("/"))
    for name, path in found.items():
        shutil.copy(path, root / "lib" / name)
    loader = next((name for name in found if name.startswith("ld")), None)
    if loader is None:
        raise UsageError(f"ldd reports no loader for {runner}", "build exporter-run against glibc")
    return loader


def loaded_by(program: Path, search: Path | None = None) -> dict[str, Path]:
    """Return the files that the loader loads for a program or library, by the name they are requested by (ldd(1)).

    Raises ArtifactError if one is not found.
    """
    ldd = shutil.which("ldd")
    if ldd is None:
        raise MissingDependency("ldd is not installed", "it comes with glibc (libc-bin)")
    variables = {**os.environ, "LC_ALL": "C", **({"LD_LIBRARY_PATH": str(search)} if search else {})}
    done = subprocess.run([ldd, str(program)], capture_output=True, text=True, env=variables, timeout=60, check=False)
    if done.returncode != 0:
        raise ArtifactError(f"{program} cannot be examined: {done.stderr.strip() or done.stdout.strip()}")
    missing = [line.split()[0] for line in done.stdout.splitlines() if line.endswith("not found")]
    if missing:
        raise ArtifactError(f"{program} needs {', '.join(missing)}, not found by ldd", "build exporter-run again")
    pairs = (match.groups() for match in map(FOUND.search, done.stdout.splitlines()) if match)
    return {name or Path(path).name: Path(path) for name, path in pairs}


def _judge(root: Path, manifest: Manifest, variant: VariantRecord, start: Start) -> Parity:
    """Replay the golden in the folder. Raises JobError if parity is lost or a file from elsewhere is loaded."""
    with tempfile.TemporaryDirectory(prefix="exporter-") as scratch:
        assert variant.artifact is not None
        words = start.words_in(root, "session", f"/{variant.artifact.path}", "--golden", f"/{GOLDEN}")
        variables = {"TMPDIR": scratch, "LD_LIBRARY_PATH": "", "LD_PRELOAD": ""}

        def open_session() -> Session:
            return NativeSession(variant.name, words, Path(scratch) / "log", TIMEOUT_S, variables)

        record, session = session_checks.check("native", open_session, variant, manifest.golden)
        outside: list[str] = []
        if session is not None:
            with contextlib.closing(session):
                outside = sorted(str(file) for file in _mapped(session.pid) if not _is_in(file, root, Path(scratch)))
    if record.status == "failed" or record.parity is None:
        raise JobError(f"{variant.name} does not run in its folder: {record.reason}", record.remedy)
    if outside:
        raise JobError(f"the folder is not self-contained: it also loads {', '.join(outside)}", "report this as a bug")
    return replace(record.parity, parts=())


def _mapped(pid: int) -> set[Path]:
    """Return the files from which a process has mapped executable code (proc(5), maps; a newline is \\012 there)."""
    lines = (line.split(maxsplit=5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    code = {fields[5].replace("\\012", "\n") for fields in lines if len(fields) == 6 and "x" in fields[1]}
    return {Path(file) for file in code if file.startswith("/") and not file.startswith("/memfd:")}


def _is_in(file: Path, *folders: Path) -> bool:
    return any(file.is_relative_to(folder.resolve()) for folder in folders)
