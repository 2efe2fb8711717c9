"""Describe the machine and the installed software. Never imports torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from exporter.core import runners
from exporter.core.errors import UsageError

CACHE_GB = 5.0  # the default limit of the cache of artifacts
# Distributions that matter to every run, whatever its targets.
DISTRIBUTIONS = (
    "torch",
    "torchvision",
    "transformers",
    "click",
    "rich",
    "numpy",
)


def version(distribution: str) -> str | None:
    """Return the installed version; None if the distribution is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def usable_cpus() -> int:
    """Return the number of CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """Return the processor's name."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def isa() -> str:
    """Return the widest vector instruction set of the processor."""
    flags = cpu_flags()
    known = ("amx_tile", "avx512f", "avx2", "avx", "sse4_2")
    return next((name for name in known if name in flags), platform.machine())


def cpu_flags() -> frozenset[str]:
    """Return the processor's feature flags by their Linux names; empty if they cannot be read."""
    found = _cpuinfo()
    return frozenset(found.get("flags", found.get("Features", "")).split())


def adds_bytes_exactly() -> bool:
    """Return whether the CPU's products of 8-bit integers are added without saturation.

    On x86 CPUs without VNNI, libraries add two of them in 16 bits.
    """
    exact = ("avx512_vnni", "avx_vnni", "amx_int8")
    return platform.machine() not in ("x86_64", "AMD64") or any(flag in cpu_flags() for flag in exact)


def computes_bf16() -> bool:
    """Return whether the CPU has instructions for products of bfloat16, without which it is slower than float32."""
    return not cpu_flags().isdisjoint(("avx512_bf16", "amx_bf16", "bf16"))


def _cpuinfo() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


@cache
def gpus() -> tuple[str, ...]:
    """Return `name, driver` of each NVIDIA GPU visible to this process, in CUDA's order; empty if there is none."""
    return tuple(name for name, _ in _visible(_query_gpus("name,driver_version")))


def has_gpu_driver() -> bool:
    """Return whether this machine has a driver for GPUs, even if none is visible to this process."""
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd"))  # the second in WSL


def gpu_memory_mb(device: str) -> float | None:
    """Return the memory in use on the GPU `cuda` or `cuda:N` by all processes, in MB (10^6 bytes); None if unknown."""
    found = [text for text, _ in _visible(_query_gpus("memory.used"))]
    index = int(device.partition(":")[2] or 0)
    number, _, unit = (found[index] if index < len(found) else "").partition(" ")
    return int(number) * 1.048576 if unit == "MiB" and number.isdigit() else None


def _query_gpus(fields: str) -> list[tuple[str, str]]:
    """Return these fields of each GPU from nvidia-smi, with the GPU's UUID."""
    tool = shutil.which("nvidia-smi")
    if tool is None or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return []
    try:
        query = [tool, f"--query-gpu=uuid,{fields}", "--format=csv,noheader"]
        found = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    lines = [line.strip().partition(", ") for line in found.stdout.splitlines() if line.strip()]
    return [(values, uuid) for uuid, _, values in lines]


def driver() -> str:
    """Return the version of NVIDIA's driver; "" if nvidia-smi does not report it."""
    return next((found for name, _, found in (gpu.rpartition(", ") for gpu in gpus()) if name), "")


def cuda() -> str:
    """Return the version of CUDA that torch was built with; "" if none."""
    spec = importlib.util.find_spec("torch")
    try:
        text = Path((spec and spec.origin) or "").with_name("version.py").read_text()
    except (OSError, ValueError):
        return ""
    found = re.search(r"^cuda\b[^=\n]*= '([\d.]+)'", text, re.MULTILINE)
    return found[1] if found else ""


def _visible(found: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Select by CUDA_VISIBLE_DEVICES and in its order; stop at the first GPU that does not exist, as CUDA does."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        yield from found
        return
    for item in map(str.strip, wanted.split(",")):
        if item.isdigit() and int(item) < len(found):
            yield found[int(item)]
        elif item.startswith("MIG-") and found:
            yield item, item  # a slice of a GPU, which the query does not list
        elif item.startswith("GPU-") and (named := [gpu for gpu in found if gpu[1].startswith(item)]):
            yield named[0]
        else:
            return


def compiler() -> str | None:
    """Return the path of the C++ compiler that AOTInductor will call, or None."""
    return shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")


def compiler_fault() -> str:
    """Return what is wrong with the compiler that CXX names; "" if it answers, or if CXX is not set."""
    named = os.environ.get("CXX")
    if named is None:
        return ""
    path = shutil.which(named)
    if path is None:
        there = "is not an executable file" if Path(named).exists() else "does not exist"
        return f"{named} {there}" if named else "it is empty"
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        return f"{path} cannot be run: {error.strerror}"
    said = next(iter(done.stderr.strip().splitlines()), "") or f"its exit code is {done.returncode}"
    return f"{path} --version fails: {said}" if done.returncode else ""


def compiler_identity() -> str:
    """Return the C++ compiler's path, and what it says of its version; "" without one that works.

    An upgrade changes the version alone.
    """
    found = compiler()
    if not found or compiler_fault():
        return ""
    try:
        done = subprocess.run([found, "--version"], capture_output=True, text=True, errors="replace", check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found + done.stdout


def find_runner() -> Path | None:
    """Return the path of the `exporter-run` that is used, None if none fits; `runners.find` says why."""
    used = runners.find().used
    return used.path if used else None


def describe(distributions: Iterable[str] = ()) -> dict[str, str]:
    """Describe the environment of a measurement for the manifest, including the versions of `distributions`."""
    facts = {
        "cpu": cpu_name(),
        "cpus": str(usable_cpus()),
        "isa": isa(),
        "int8_sums": "exact" if adds_bytes_exactly() else "saturating",
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "compiler": compiler() or "none",
        "exporter-run": _runner(),
    }
    facts |= {name: found for name in (*DISTRIBUTIONS, *distributions) if (found := version(name))}
    facts |= {f"gpu{index}": name for index, name in enumerate(gpus())}
    return facts


def _runner() -> str:
    """Return the path of the runner; without one "none", with the reason and the remedy if one was refused."""
    found = runners.find()
    if found.used:
        return str(found.used.path)
    return f"none: {found.reason}; {found.remedy(bool(compiler()))}" if found.refused else "none"


def cache_limit() -> float:
    """Return the limit of the cache of artifacts in bytes: EXPORTER_CACHE_GB, or 5 GB.

    Raises UsageError if the variable is not a number.
    """
    text = os.environ.get("EXPORTER_CACHE_GB", "")
    try:
        limit = float(text or CACHE_GB)
    except ValueError:
        limit = math.nan
    if not 0 <= limit < math.inf:
        raise UsageError(f"EXPORTER_CACHE_GB is {text!r}, not a number of GB", "give 0 to keep no artifacts, or 5")
    return limit * 1e9


def require_device(name: str) -> None:
    """Raise UsageError unless this is `cpu`, `cuda` or `cuda:N`."""
    kind, colon, index = name.partition(":")
    if name != "cpu" and not (kind == "cuda" and (index.isdigit() or not colon)):
        raise UsageError(f"there is no device {name!r}", "choose cpu, cuda or cuda:N")
