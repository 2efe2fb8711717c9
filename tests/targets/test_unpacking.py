"""The libraries of compiled packages are kept once for each content, weights are mapped, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from support import packages

from exporter.core.errors import ArtifactError
from exporter.targets import _mapping, _packages, _unpacking, _weights

CYCLES = """
import gc, os, sys
from pathlib import Path
import torch
from exporter.targets import _packages

def cycle():
    loaded = _packages.Package(Path(sys.argv[1]), "model", "cpu")
    (found,) = loaded.run([torch.ones(2, 3)])
    assert torch.equal(found, torch.full((2, 4000), 3.0)), found
    del loaded
    gc.collect()

def now():
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line or ".pt2" in line]
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files = [Path(file.path) for file in os.scandir("/proc/self/fd") if "exporter-package-" in os.path.realpath(file)]
    blocks = sum(path.stat().st_blocks for path in files)
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


def exported(path: Path, settings: dict[str, Any], model: torch.nn.Module | None = None) -> Path:
    program = torch.export.export(model or Wide(), (torch.ones(2 if model is None else 1, 3),))
    with _weights.indexed():
        return packages.build(program, path, **settings)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package with the weights in its library, as exporter wrote them before torch 2.14."""
    return exported(tmp_path_factory.mktemp("package") / "wide.pt2", {})


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package with the weights in the archive."""
    return exported(tmp_path_factory.mktemp("package") / "mapped.pt2", _weights.SETTINGS)


@pytest.fixture(params=["package", "mapped"])
def either(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def test_opening_and_closing_does_not_leak(either: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", CYCLES, str(either)]
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
    one = _unpacking.unpack(package)
    (library,) = one.folder.rglob("*.so")
    whole, blocks = library.read_bytes(), library.stat().st_blocks
    other = _unpacking.unpack(package)
    (link,) = other.folder.rglob("*.so")
    assert link.samefile(library)
    file = link.resolve(strict=True).open("rb")
    one.release()
    assert link.read_bytes() == whole  # still used by the other
    other.release()
    assert not other.folder.exists()
    assert os.fstat(file.fileno()).st_blocks < blocks - 48_000 // 512 // 2
    again = _unpacking.unpack(package)
    (link,) = again.folder.rglob("*.so")
    assert os.path.samestat(link.stat(), os.fstat(file.fileno()))
    assert link.read_bytes() == whole
    again.release()
    file.close()


def test_mapped_weights_are_not_unpacked(mapped: Path) -> None:
    unpacked = _unpacking.unpack(mapped)
    assert not list(unpacked.folder.rglob("*.blob"))
    assert list(unpacked.folder.rglob("*.so"))
    unpacked.release()
    loader = _packages.Package(mapped, "model", "cpu")
    assert str(mapped) in Path("/proc/self/maps").read_text()
    assert torch.equal(loader.run([torch.ones(2, 3)])[0], torch.full((2, 4000), 3.0))
    del loader
    assert str(mapped) not in Path("/proc/self/maps").read_text()


def test_a_closed_package_is_used_again(mapped: Path, tmp_path: Path) -> None:
    one = _packages.Package(mapped, "model", "cpu")
    one.set_constants({"weight": torch.zeros(3, 4000)})
    other = _packages.Package(mapped, "model", "cpu")
    assert not one.run((torch.ones(2, 3),))[0].any()
    assert torch.equal(other.run((torch.ones(2, 3),))[0], torch.full((2, 4000), 3.0))
    address = one._weights.tensors["weight"].data_ptr() if one._weights else 0
    del one
    copied = tmp_path / "copied.pt2"
    copied.write_bytes(mapped.read_bytes())
    again = _packages.Package(copied, "model", "cpu")
    assert again._weights
    assert again._weights.tensors["weight"].data_ptr() == address
    assert torch.equal(again.run((torch.ones(2, 3),))[0], torch.full((2, 4000), 3.0))


def test_torch_itself_loads_a_package_with_mapped_weights(mapped: Path) -> None:
    loader = torch._C._aoti.AOTIModelPackageLoader(str(mapped), "model", False, 1, -1)
    assert torch.equal(loader.run([torch.ones(2, 3)])[0], torch.full((2, 4000), 3.0))


def test_a_package_without_weights(tmp_path: Path) -> None:
    path = exported(tmp_path / "none.pt2", _weights.SETTINGS, torch.nn.ReLU())
    x = torch.tensor([[-1.0, 0.0, 1.0]])
    loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)
    assert torch.equal(loader.run([x])[0], x.relu())
    assert torch.equal(_packages.Package(path, "model", "cpu").run((x,))[0], x.relu())


def rewritten(package: Path, path: Path, **changes: Any) -> Path:
    """Copy a package and change the first weight in its index. The weights are no longer aligned."""
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith(_mapping.INDEX):
                index = json.loads(data)
                index["constants"][0] |= changes
                data = json.dumps(index).encode() + b" " * (len(name) % 2)
            new.writestr(name, data)
    return path


def test_weights_that_are_not_aligned_are_read(mapped: Path, tmp_path: Path) -> None:
    loader = _packages.Package(rewritten(mapped, tmp_path / "moved.pt2"), "model", "cpu")
    assert torch.equal(loader.run([torch.ones(2, 3)])[0], torch.full((2, 4000), 3.0))


@pytest.mark.parametrize(
    "changes",
    [{"offset": 64}, {"start": -1}, {"shape": [3, 4001]}, {"shape": [3]}, {"dtype": "float1"}, {"bytes": 1 << 40}],
    ids=str,
)
def test_an_index_that_does_not_fit_is_rejected(mapped: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match="is broken"):
        _packages.Package(rewritten(mapped, tmp_path / "broken.pt2", **changes), "model", "cpu")


def test_altered_weights_are_rejected(mapped: Path, tmp_path: Path) -> None:
    data = bytearray(mapped.read_bytes())
    data[data.index(torch.ones(12).numpy().tobytes())] ^= 1
    (tmp_path / "altered.pt2").write_bytes(data)
    with pytest.raises(ArtifactError, match="was altered"):
        _packages.Package(tmp_path / "altered.pt2", "model", "cpu")


def test_a_folder_that_cannot_be_locked_is_an_error(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On some network mounts, every file belongs to another user."""
    monkeypatch.setattr(_unpacking.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(_unpacking, "_own", [])
    monkeypatch.setattr(_unpacking.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ArtifactError, match=f"cannot lock a folder in {tmp_path}"):
        _unpacking.unpack(package)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_exec_is_an_error(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_unpacking.filesystem, "is_noexec", lambda _: True)
    monkeypatch.setattr(_unpacking, "_own", [])
    with pytest.raises(ArtifactError, match="is mounted with noexec") as raised:
        _unpacking.unpack(package)
    assert raised.value.remedy == "set TMPDIR to another folder"


def test_an_altered_package_is_rejected(package: Path, tmp_path: Path) -> None:
    data = bytearray(package.read_bytes())
    data[data.index(b"\x7fELF") + 5000] ^= 1
    (tmp_path / "altered.pt2").write_bytes(data)
    with pytest.raises(ArtifactError, match="was altered"):
        _unpacking.unpack(tmp_path / "altered.pt2")


def test_a_loaded_package_has_no_directory(either: Path, tmp_path: Path) -> None:
    code = "import sys, pathlib; from exporter.targets import _packages as p; l = p.Package(pathlib.Path(sys.argv[1]),"
    words = [sys.executable, "-c", f"{code} 'model', 'cpu'); print(flush=True); sys.stdin.read()", str(either)]
    with subprocess.Popen(words, stdin=-1, stdout=-1, env={**os.environ, "TMPDIR": str(tmp_path)}) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"\n"
        assert not list(tmp_path.iterdir())
        killed.send_signal(signal.SIGKILL)
    assert not list(tmp_path.iterdir())


def test_the_directory_of_a_process_killed_while_loading_is_removed(package: Path, tmp_path: Path) -> None:
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
