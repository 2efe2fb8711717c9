"""Compiled packages are unpacked once for each content, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from exporter.core.errors import ArtifactError
from exporter.targets import _unpacking

CYCLES = """
import gc, os, sys
from pathlib import Path
import torch
from exporter.targets import Options, compile

def cycle():
    loaded = compile._loader(Path(sys.argv[1]), "model", "cpu")
    (found,) = loaded.run([torch.ones(2, 3)])
    assert torch.equal(found, torch.full((2, 4000), 3.0)), found
    del loaded
    gc.collect()

def now():
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(".so")]
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    blocks = sum(path.stat().st_blocks for path in Path(os.environ["TMPDIR"]).rglob("*.so"))
    return pages * os.sysconf("SC_PAGESIZE") >> 10, len(maps), blocks

gc.freeze()  # collect only what the cycles leave
for _ in range(20):
    cycle()
before = now()
for _ in range(60):
    cycle()
print(*before, *now())
"""


class Wide(torch.nn.Module):
    """A model whose weights are large enough to be dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, 4000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("package") / "wide.pt2"
    program = torch.export.export(Wide(), (torch.ones(2, 3),))
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    return path


def test_opening_and_closing_does_not_leak(package: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", CYCLES, str(package)]
    done = subprocess.run(
        words, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    memory, maps, blocks, memory_after, maps_after, blocks_after = map(int, done.stdout.split())
    assert maps_after == maps
    assert blocks_after == blocks
    assert memory_after < memory + 1228
    assert not list(tmp_path.iterdir())


def test_unused_packages_have_no_weights(package: Path) -> None:
    folder, release = _unpacking.unpack(package)
    (library,) = folder.rglob("*.so")
    whole, blocks = library.read_bytes(), library.stat().st_blocks
    other, release_other = _unpacking.unpack(package)
    assert other == folder
    release()
    assert library.read_bytes() == whole  # still used by the other
    release_other()
    assert library.stat().st_blocks < blocks - 48_000 // 512 // 2
    _, release = _unpacking.unpack(package)
    assert library.read_bytes() == whole
    release()


def test_an_altered_package_is_rejected(package: Path, tmp_path: Path) -> None:
    data = bytearray(package.read_bytes())
    data[data.index(b"\x7fELF") + 5000] ^= 1
    (tmp_path / "altered.pt2").write_bytes(data)
    with pytest.raises(ArtifactError, match="was altered"):
        _unpacking.unpack(tmp_path / "altered.pt2")


def test_the_directory_of_a_killed_process_is_removed(package: Path, tmp_path: Path) -> None:
    code = "import sys, pathlib; from exporter.targets import _unpacking as u; u.unpack(pathlib.Path(sys.argv[1]))"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-c", f"{code}; print(flush=True); sys.stdin.read()", str(package)]
    with subprocess.Popen(words, stdin=-1, stdout=-1, env=environment) as killed:
        assert killed.stdout is not None
        killed.stdout.readline()
        sweeping = [sys.executable, "-c", "from exporter.targets import _unpacking; _unpacking.sweep()"]
        subprocess.run(sweeping, env=environment, check=True)
        assert list(tmp_path.iterdir())  # its process is alive
        killed.send_signal(signal.SIGKILL)
    assert list(tmp_path.iterdir())
    subprocess.run(sweeping, env=environment, check=True)
    assert not list(tmp_path.iterdir())
