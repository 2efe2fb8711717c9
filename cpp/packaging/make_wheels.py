"""Make the distributions of a release: the sources, a wheel with the C++ sources, and one with exporter-run compiled.

    python cpp/packaging/make_wheels.py --build build/cpp --out dist

The compiled program comes from the build tree as it was tested. It loads LibTorch from the torch package beside it, so
that wheel requires the release of torch that the tree was built for, and says so in its version: 0.1.0+torch2.14.1.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.elffile import ELFFile
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
FOLDER = "exporter_cpp"  # in the wheel; exporter/core/runners.py searches it
RUNPATH = b"$ORIGIN/../../torch/lib"  # from FOLDER/bin and FOLDER/lib
BACKEND = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
FIRST_DATE = (1980, 1, 1, 0, 0, 0)  # of a zip archive


def main() -> None:
    """Write the distributions, and print their paths."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build/cpp", help="a CMake build tree (make cpp)")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="exporter-") as place:
        sources, wheel = pure(Path(place), given.out.resolve())
        print(sources, wheel, compiled(given.build, wheel, Path(place)), sep="\n")


def pure(place: Path, out: Path) -> tuple[Path, Path]:
    """Make the source distribution from the tracked files, and the wheel from the source distribution."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        file = place / "tracked" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, file)
    sources = out / _backend("build_sdist", place / "tracked", out)
    with tarfile.open(sources) as archive:
        filters = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4 and later have it
        archive.extractall(place / "unpacked", **filters)
    return sources, out / _backend("build_wheel", next((place / "unpacked").iterdir()), out)


def _backend(hook: str, source: Path, out: Path) -> str:
    """Call a hook of setuptools (PEP 517) in a folder, and return the name of the file that it wrote."""
    command = [sys.executable, "-c", BACKEND, hook, str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{hook} failed:\n{done.stderr}")
    return done.stdout.splitlines()[-1]


def compiled(build: Path, wheel: Path, place: Path) -> Path:
    """Add the program of a build tree, and its library for CUDA graphs, to a copy of the wheel."""
    prefix = place / "prefix"
    install = ["cmake", "--install", str(build), "--prefix", str(prefix), "--strip"]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
    program = prefix / "bin/exporter-run"
    added = {f"{FOLDER}/bin/{program.name}": relocated(program.read_bytes())}
    for library in prefix.rglob("libexporter_cuda.so"):
        added[f"{FOLDER}/lib/{library.name}"] = relocated(library.read_bytes())
    return _with_programs(wheel, added, _torch(program))


def _torch(program: Path) -> str:
    """Return the release of torch that the program was built for, without its local part."""
    sys.path.insert(0, str(ROOT))
    from exporter.core import runners

    torch = runners.built_for(program).partition("+")[0]
    return torch or sys.exit(f"{program} does not tell which torch it was built for: make cpp")


def relocated(data: bytes) -> bytes:
    """Return an ELF file with RUNPATH as its only search path; the old one, which must be longer, is overwritten."""
    elf = ELFFile(io.BytesIO(data))
    tag = next(tag for tag in elf.get_section_by_name(".dynamic").iter_tags() if tag.entry.d_tag == "DT_RUNPATH")
    old = tag.runpath.encode()
    start = elf.get_section_by_name(".dynstr")["sh_offset"] + tag.entry.d_val
    if data[start : start + len(old) + 1] != old + b"\0" or len(old) < len(RUNPATH):
        sys.exit(f"the search path {old.decode()} cannot be replaced")
    return data[:start] + RUNPATH.ljust(len(old), b"\0") + data[start + len(old) :]


def _with_programs(wheel: Path, added: dict[str, bytes], torch: str) -> Path:
    """Write a wheel with these programs, for this platform and this torch (the format: packaging.python.org)."""
    name, version, *_ = wheel.stem.split("-")
    info, local = f"{name}-{version}.dist-info", f"{version}+torch{torch}"
    tag = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    new = wheel.with_name(f"{name}-{local}-{tag}.whl")
    record = f"{name}-{local}.dist-info/RECORD"
    lines = []
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as out:

        def write(entry: zipfile.ZipInfo, data: bytes) -> None:
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{entry.filename},sha256={digest},{len(data)}\n")
            out.writestr(entry, data, zipfile.ZIP_DEFLATED)

        for entry in old.infolist():
            folder, _, file = entry.filename.rpartition("/")
            if entry.filename == f"{info}/RECORD":
                continue
            data = old.read(entry)
            if folder == info and file in ("METADATA", "WHEEL"):
                data = "\n".join(_changed(data.decode().split("\n"), local, torch, tag)).encode()
            entry.filename = entry.filename.replace(info, f"{name}-{local}.dist-info", 1)
            write(entry, data)
        for path, data in added.items():
            write(_entry(path, 0o755), data)
        out.writestr(_entry(record, 0o644), "".join([*lines, f"{record},,\n"]))
    return new


def _entry(path: str, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(path, FIRST_DATE)
    entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
    return entry


def _changed(lines: list[str], version: str, torch: str, tag: str) -> Iterator[str]:
    """Yield the lines of METADATA or WHEEL for the wheel of one platform and one torch; their text stays as it is."""
    header = True
    for line in lines:
        header = header and bool(line)
        key, _, value = line.partition(": ") if header else ("", "", "")
        if key == "Version":
            line = f"Version: {version}"
        elif key == "Requires-Dist" and Requirement(value).name == "torch":
            line = f"Requires-Dist: torch=={torch}"
        elif key == "Root-Is-Purelib":
            line = "Root-Is-Purelib: false"
        elif key == "Tag":
            line = f"Tag: {tag}"
        yield line


if __name__ == "__main__":
    main()
