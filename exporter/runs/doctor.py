"""Examine this machine: what it has, and how to install what it lacks. Imports are tried in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from exporter import targets
from exporter.core import environment, runners, source_lines
from exporter.core.errors import MissingDependency
from exporter.runs import build_runner
from exporter.targets import Part

SUPPORTED = ((2, 11), (2, 14))
MODULES = ("torch", "torchvision", "transformers")  # targets add more
TOOLS = {"CMake": "cmake", "Ninja": "ninja"}  # needed to build exporter-run; each is also a distribution
# Imports each module separately, so that one broken package does not hide the others; then asks torch for CUDA, and
# runs the targets' own probes.
PROBE = """
import importlib, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = ["", str(getattr(importlib.import_module(name), "__version__", ""))]
    except Exception as error:
        found[name] = [type(error).__name__ + ": " + " ".join(str(error).split())[:300], ""]
try:
    import torch
    found["cuda"] = ["", str(torch.version.cuda or "")] if torch.cuda.is_available() else ["torch sees no GPU", ""]
except Exception:
    pass
try:
    from exporter import targets
    names = targets.usable()
except Exception:
    names = ()
for name in names:
    try:
        found["target " + name] = ["", targets.facts(name).probe()]
    except Exception:
        pass
print(json.dumps(found))
"""


def examine() -> list[Part]:
    """Return all parts, in the order in which they are shown."""
    found = _probe()
    findings = [_python(), *(_module(name, *found.get(name, ("not tried", ""))) for name in modules())]
    return [*findings, *_targets(found), *map(_tool, TOOLS), *_runners(), *_gpu(found)]


def modules() -> tuple[str, ...]:
    """Return the modules to import."""
    used = (name for target in targets.usable() for name in targets.facts(target).modules)
    return tuple(dict.fromkeys((*MODULES, *used)))


def _targets(found: dict[str, tuple[str, str]]) -> Iterator[Part]:
    """Yield what each target reports, and whether the targets of other packages can be used."""
    for name, target in targets.usable().items():
        if shipped_by := targets.shipped_by(name):
            yield _plugin(name, target, shipped_by)
        try:
            yield from targets.facts(name).examine(found.get(f"target {name}", ("", ""))[1])
        except Exception as error:  # a target of another package may raise anything
            yield Part("bad", name, f"the check itself failed: {source_lines.named(error)}")
    for refused in targets.refused():
        yield Part("bad", "target", str(refused), refused.remedy)


def _plugin(name: str, target: targets.Target, shipped_by: str) -> Part:
    try:
        targets.require(target)
    except MissingDependency as missing:
        return Part("bad", name, f"from {shipped_by}: {missing}", missing.remedy)
    return Part("ok", name, f"target from {shipped_by}")


def _probe() -> dict[str, tuple[str, str]]:
    command = [sys.executable, "-W", "ignore", "-c", PROBE, *modules()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"torch": (f"importing it crashed the process: exit code {done.returncode}", "")}
    answers: dict[str, tuple[str, str]] = json.loads(lines[-1])
    return answers


def _python() -> Part:
    version = ".".join(map(str, sys.version_info[:3]))
    bounds = ((name, targets.facts(name).before_python) for name in targets.usable())
    lost = {name: bound for name, bound in bounds if bound and sys.version_info >= bound}
    if lost:
        major, minor = min(lost.values())
        names = " and ".join(lost)
        remedy = f"use Python 3.11 to {major}.{minor - 1} for {names}"
        return Part("note", "python", f"{version} is not supported by {names}", remedy)
    return Part("ok", "python", version)


def _module(name: str, error: str, version: str) -> Part:
    if not error:
        if name == "torch" and not SUPPORTED[0] <= _numbers(version) <= SUPPORTED[1]:
            return Part("note", name, f"{version} is untested", "tested: torch 2.11 to 2.14")
        return Part("ok", name, version)
    return Part("bad", name, error, remedy(name, error))


def _numbers(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def remedy(name: str, error: str) -> str:
    """Return what to install, given the message of a failed import."""
    if "torchvision::nms" in error or ("torchvision" in error and "operator" in error):
        have = f"torch {environment.version('torch')} and torchvision {environment.version('torchvision')}"
        install = "`pip install --force-reinstall torch torchvision`"
        return f"{have} come from different builds: install both from one index, {install}"
    if "No module named" in error:
        alternatives = (r.split("|") for target in targets.usable().values() for r in target.requires)
        return f"pip install {next((first for first, *others in alternatives if name in others), name)}"
    return f"pip install --force-reinstall {name}"


def _tool(name: str) -> Part:
    program = TOOLS[name]
    found = build_runner.tool(program)
    if found is None:
        return Part("note", name, "not found: exporter-run cannot be built", f"pip install {program}")
    return Part("ok", name, found)


def _runners() -> Iterator[Part]:
    """Yield the runner that is used, or why there is none, and those that were found before it and do not fit."""
    found = runners.find()
    used = found.used
    if used is None:
        remedy = found.remedy(bool(environment.compiler()))
        yield Part("note", runners.NAME, f"{found.reason}: artifacts cannot be run in C++", remedy)
    elif why := build_runner.starts(used.path):
        yield Part("bad", runners.NAME, f"{used.path} does not start: {why}", used.remedy)
    else:
        torch = f"built for torch {used.torch}, which fits" if used.torch else "it does not tell for which torch"
        yield Part("ok", runners.NAME, f"{used.path} (from {used.origin}; {torch})")
    yield from (Part("note", "not used", one.refused, one.remedy) for one in found.refused if used)


def _gpu(found: dict[str, tuple[str, str]]) -> list[Part]:
    gpus = environment.gpus()
    if not gpus:
        return [Part("note", "GPU", "none: everything runs on the CPU")]
    findings = [Part("ok", f"GPU {index}", name) for index, name in enumerate(gpus)]
    error, version = found.get("cuda", ("torch cannot be imported", ""))
    if error:
        findings.append(Part("bad", "CUDA", error, "install a CUDA build of torch that matches the driver"))
    else:
        findings.append(Part("ok", "CUDA", f"torch is built for {version}"))
    return findings
