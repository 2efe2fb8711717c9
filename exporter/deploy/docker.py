"""Create a context for `docker build`: from scratch with the C++ runner, or Python's slim image with onnxruntime.

Both images replay the golden while they are built, so the build fails if parity is lost. Commands use the exec form of
RUN, which needs no shell (docs.docker.com/reference/dockerfile).
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from exporter import targets
from exporter.bundle import layout
from exporter.core import environment
from exporter.core.contract_records import Contract
from exporter.core.errors import JobError
from exporter.core.json_codec import from_json
from exporter.core.parity_records import Parity
from exporter.core.records import Manifest, VariantRecord
from exporter.deploy import Deployment, choose, cpp, golden, publish, staged, take
from exporter.deploy.triton import TYPES
from exporter.targets import _ort_level
from exporter.workers.children import Zygote

KIND = "docker"
NOBODY = "65534:65534"
TIMEOUT_S = 600.0
# The modules of exporter that check.py imports.
RULE = (
    *(
        "__init__",
        "_version",
        "core/__init__",
        "core/checks_in_code",
        "core/contract_records",
        "core/environment",
        "core/errors",
        "core/expressions",
    ),
    *(
        "core/json_codec",
        "core/json_schema",
        "core/limits",
        "core/option",
        "core/parity_records",
        "core/precisions",
        "core/records",
        "core/runners",
        "core/settings",
    ),
    *(
        "core/size_range",
        "core/source_lines",
        "core/timing_records",
        "core/tuning_records",
        "evidence/__init__",
        "evidence/parity",
    ),
)
FROM_SCRATCH = """# {about}: exporter-run and the libraries that it loads; no Python, no shell
FROM scratch
COPY root/ /
USER {nobody}
RUN {check}
ENTRYPOINT {start}
CMD {verify}
"""
WITH_ONNXRUNTIME = """# {about}: onnxruntime in Python, without torch
FROM python:{python}-slim
ENV ORT_DISABLE_TELEMETRY=1
RUN pip install --no-cache-dir onnxruntime=={onnxruntime} numpy=={numpy}
WORKDIR /model
COPY model/ ./
USER {nobody}
RUN ["python", "check.py"]
CMD ["python", "check.py"]
"""


def deploy(
    place: Path, manifest: Manifest, name: str | None, out: Path, runtime: str, ops_libs: Sequence[str] = ()
) -> Deployment:
    """Create the context `out`. Raises UsageError if no variant fits, and for the runtime cpp as `cpp.deploy` does."""
    variant = cpp.chosen(manifest, name) if runtime == "cpp" else choose(manifest, name, refuse, "onnx")
    with staged(out, KIND) as root:
        if runtime == "cpp":
            text, parity = _from_scratch(root, place, manifest, variant, ops_libs)
        else:
            text, parity = _with_onnxruntime(root, place, manifest, variant)
        (root / "Dockerfile").write_text(text, encoding="utf-8")
        return publish(root, out, Deployment(KIND, manifest.model.name, variant.name, parity))


def refuse(variant: VariantRecord) -> str:
    """Return why the image with onnxruntime cannot run the variant, or ""."""
    if targets.facts(variant.target).runtime != "onnxruntime" or variant.contract is None:
        return "does not run in onnxruntime"
    if variant.contract.device != "cpu":
        return "was exported for a GPU, which this image does not support"
    lacking = sorted({spec.dtype for spec in (*variant.contract.inputs, *variant.contract.outputs)} - TYPES.keys())
    return f"has tensors of {', '.join(lacking)}, unsupported by NumPy or onnxruntime" if lacking else ""


def _from_scratch(
    root: Path, place: Path, manifest: Manifest, variant: VariantRecord, ops_libs: Sequence[str]
) -> tuple[str, Parity]:
    (root / "root").mkdir()
    start, parity = cpp.fill(root / "root", place, manifest, variant, ops_libs)
    assert variant.artifact is not None
    check, program = start.words("verify", f"/{variant.artifact.path}"), start.program
    text = FROM_SCRATCH.format(
        about=about(manifest, variant),
        nobody=NOBODY,
        check=json.dumps(check),
        start=json.dumps(program),
        verify=json.dumps(check[len(program) :]),
    )
    return text, parity


def _with_onnxruntime(root: Path, place: Path, manifest: Manifest, variant: VariantRecord) -> tuple[str, Parity]:
    """Write the model, its golden as `.npz` and the parity rule, and replay the golden with the pinned versions."""
    model = root / "model"
    assert variant.artifact is not None
    assert variant.contract is not None
    for file in variant.files:
        take(place, file, model / file.path)
    _write_golden(model, place, manifest, variant.artifact.path, variant.contract)
    here = Path(__file__).parent
    shutil.copyfile(here / "replay.py", model / "check.py")
    (model / "exporter").mkdir()
    for name in RULE:
        copy = model / "exporter" / f"{name}.py"
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(here.parent / f"{name}.py", copy)
    text = WITH_ONNXRUNTIME.format(
        about=about(manifest, variant),
        nobody=NOBODY,
        python=".".join(platform.python_version_tuple()[:2]),
        onnxruntime=environment.version("onnxruntime-gpu") or environment.version("onnxruntime"),
        numpy=environment.version("numpy"),
    )
    return text, replay(model)


def _write_golden(model: Path, place: Path, manifest: Manifest, artifact: str, promised: Contract) -> None:
    recorded = golden(place, manifest)
    layout.verify(place, recorded)
    arguments = {"path": str(model / "golden.npz"), "golden_path": str(place / recorded.path), "promised": promised}
    with Zygote() as zygote, tempfile.TemporaryDirectory(prefix="exporter-") as logs:
        cases, limits = zygote.run("golden", "exporter.deploy.child:arrays", arguments, Path(logs) / "log", TIMEOUT_S)
    level = _ort_level.NAMES[_ort_level.recorded(place / artifact)]
    config = {"model": artifact, "limits": list(map(asdict, limits)), "cases": cases, "graph_optimization": level}
    config["session_options"] = [_ort_level.parse(one) for one in _ort_level.session_options(place / artifact)]
    (model / "golden.json").write_text(json.dumps(config) + "\n")


def replay(model: Path) -> Parity:
    """Run check.py on this machine and return its parity. Raises JobError if it fails or parity is lost."""
    command = [sys.executable, "-B", "-E", "-s", str(model / "check.py")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise JobError(f"check.py took longer than {TIMEOUT_S:g} s and was stopped") from error
    if not done.stdout:
        raise JobError(f"check.py fails: {''.join(done.stderr.strip().splitlines()[-1:])}", "", done.stderr)
    found = from_json(Parity, done.stdout)
    if found.verdict == "FAIL":
        raise JobError(f"parity is lost with onnxruntime alone: {found.reason}")
    return found


def about(manifest: Manifest, variant: VariantRecord) -> str:
    """Return the model and variant with escaped control characters, so that they fit on one line."""
    return json.dumps(f"{manifest.model.name}, {variant.name}")[1:-1]
