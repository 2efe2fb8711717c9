"""What the machine is, and what is installed. Nothing here imports torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

# What a run stands on whatever its targets are.
DISTRIBUTIONS = (
    "torch",
    "torchvision",
    "transformers",
    "click",
    "rich",
    "numpy",
)


def version(distribution: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def usable_cpus() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's name."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def isa() -> str:
    """The widest vector instruction set of the processor."""
    flags = cpu_flags()
    known = ("amx_tile", "avx512f", "avx2", "avx", "sse4_2")
    return next((name for name in known if name in flags), platform.machine())


def cpu_flags() -> frozenset[str]:
    """What the processor can do, as Linux names it; empty where that cannot be read."""
    found = _cpuinfo()
    return frozenset(found.get("flags", found.get("Features", "")).split())


def _cpuinfo() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


@cache
def gpus() -> tuple[str, ...]:
    """`name, driver` of each NVIDIA GPU that CUDA shows this process, by its index there; empty when there is none."""
    return tuple(name for name, _ in _visible(_query_gpus("name,driver_version")))


def gpu_memory_mb(device: str) -> float | None:
    """Memory in use on the GPU `cuda` or `cuda:N`, by whomever, in MB (10^6 bytes); None where nobody says."""
    found = [text for text, _ in _visible(_query_gpus("memory.used"))]
    index = int(device.partition(":")[2] or 0)
    number, _, unit = (found[index] if index < len(found) else "").partition(" ")
    return int(number) * 1.048576 if unit == "MiB" and number.isdigit() else None


def _query_gpus(fields: str) -> list[tuple[str, str]]:
    """What nvidia-smi says of each GPU, and the GPU's UUID."""
    tool = shutil.which("nvidia-smi")
    if tool is None or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return []
    try:
        query = [tool, f"--query-gpu=uuid,{fields}", "--format=csv,noheader"]
        found = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    lines = [line.strip().partition(", ") for line in found.stdout.splitlines() if line.strip()]
    return [(said, uuid) for uuid, _, said in lines]


def driver() -> str:
    """The version of NVIDIA's driver; "" where nvidia-smi does not say."""
    return next((found for name, _, found in (gpu.rpartition(", ") for gpu in gpus()) if name), "")


def cuda() -> str:
    """The version of CUDA that torch was built with; "" for none."""
    spec = importlib.util.find_spec("torch")
    try:
        text = Path((spec and spec.origin) or "").with_name("version.py").read_text()
    except (OSError, ValueError):
        return ""
    found = re.search(r"^cuda\b[^=\n]*= '([\d.]+)'", text, re.MULTILINE)
    return found[1] if found else ""


def _visible(found: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Those that CUDA_VISIBLE_DEVICES leaves, in its order: as CUDA reads it, up to the first that is not there."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        yield from found
        return
    for item in map(str.strip, wanted.split(",")):
        if item.isdigit() and int(item) < len(found):
            yield found[int(item)]
        elif item.startswith("MIG-") and found:
            yield item, item  # a part of a GPU, which nvidia-smi does not list so
        elif item.startswith("GPU-") and (named := [gpu for gpu in found if gpu[1].startswith(item)]):
            yield named[0]
        else:
            return


def compiler() -> str | None:
    """The C++ compiler that AOTInductor will call, or None."""
    return shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")


def find_runner() -> Path | None:
    """`exporter-run`: $EXPORTER_RUN, then the PATH, then this checkout's build folder."""
    named = os.environ.get("EXPORTER_RUN")
    if named is not None:
        return Path(named) if os.access(named, os.X_OK) else None
    on_path = shutil.which("exporter-run")
    built = Path(__file__).parents[2] / "build" / "cpp" / "exporter-run"
    return Path(on_path) if on_path else built if os.access(built, os.X_OK) else None


def describe(distributions: Iterable[str] = ()) -> dict[str, str]:
    """Environment of a measurement, for the manifest; with the versions of these distributions too."""
    facts = {
        "cpu": cpu_name(),
        "cpus": str(usable_cpus()),
        "isa": isa(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "compiler": compiler() or "none",
        "exporter-run": str(find_runner() or "none"),
    }
    facts |= {name: found for name in (*DISTRIBUTIONS, *distributions) if (found := version(name))}
    facts |= {f"gpu{index}": name for index, name in enumerate(gpus())}
    return facts
