"""Export models with state to every target, in both ways to keep state, and judge them without exporter's golden.

Each artifact that passed runs three sequences of eight calls that are not in any golden, with a reset between them: in
Python through `Artifact.stream`, in C++ through `exporter-run verify`. The outputs are compared with those of a new
instance of the model, which keeps its state itself. Prints a table; exits with 1 if any output is wrong.

    python benchmarks/stateful.py [MODEL ...] [--targets trace,compile] [--device cuda] [--out FOLDER]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import torch

import exporter
from exporter.core import environment
from exporter.core.parity_records import CaseRecord, Tolerance
from exporter.core.records import VariantRecord
from exporter.evidence import golden
from exporter.model import precision

RECIPES = Path(__file__).parent.parent / "tests" / "recipes" / "stateful.py"
MODELS = (
    "conv_streaming", "average", "lstm", "gru", "ring", "counter", "cache", "statistics", "of_batch", "reassigned",
    "in_a_list", "randomness", "nested", "delay",
)  # fmt: skip
TARGETS = ("trace", "script", "compile", "onnx", "export")
MODES = ("carry", "inputs")
SEQUENCES, STEPS = 3, 8
NEAR = Tolerance(rtol=1e-4, atol=1e-5, k=2.0)
Tensors = tuple[torch.Tensor, ...]


def expected_sequences(recipe: Any, sizes: dict[str, int]) -> list[list[tuple[Tensors, Tensors]]]:
    """Return the inputs and eager's outputs of each call of each sequence, with a new model for each sequence."""
    found = []
    for sequence in range(SEQUENCES):
        model = recipe.load("random").eval()
        steps = []
        for step in range(STEPS):
            torch.manual_seed(90_000 + 100 * sequence + step)
            x = recipe.inputs(**sizes)
            with torch.no_grad():
                result = model(x.clone())
            result = tuple(result.values()) if isinstance(result, dict) else result
            outputs = tuple(t.clone() for t in (result if isinstance(result, tuple) else (result,)))
            steps.append(((x,), outputs))
        found.append(steps)
    return found


def in_python(path: Path, sequences: list[list[tuple[Tensors, Tensors]]]) -> str:
    """Return where the artifact first differs in Python; "" if it does not."""
    stream = exporter.open_artifact(path).stream()
    for number, steps in enumerate(sequences):
        stream.reset()
        for step, (inputs, outputs) in enumerate(steps):
            got = [t.cpu() for t in stream(*inputs).values()]
            if not all(torch.allclose(a, b, NEAR.rtol, NEAR.atol) for a, b in zip(got, outputs, strict=True)):
                return f"sequence {number + 1}, call {step + 1}"
    return ""


def in_cpp(path: Path, sequences: list[list[tuple[Tensors, Tensors]]], folder: Path) -> str:
    """Return the last line of exporter-run verify for a golden with these calls; "" if it passes."""
    artifact = exporter.open_artifact(path)
    assert artifact.contract.state is not None
    outside = artifact.contract.state.kept == "outside"
    cases = []
    for number, steps in enumerate(sequences):
        state = exporter.open_artifact(path).stream()
        for step, (inputs, outputs) in enumerate(steps):
            if outside:
                state(*inputs)  # eager does not expose its state, so the artifact in Python supplies it
                carried = tuple(t.cpu() for t in state.state.values())
                if step == 0:
                    first = tuple(t.clone() for t in initial(artifact, inputs))
                    inputs = (*inputs, *first)
                outputs = (*outputs, *carried)
            wide = tuple(t.double() if t.is_floating_point() else t for t in outputs)
            cases.append(golden.Case(CaseRecord(f"own step {step + 1}", number, step=step), inputs, outputs, wide))
    file = folder / "own.pt"
    golden.save(golden.Golden(tuple(cases), NEAR), file)
    command = [str(environment.find_runner()), "verify", str(path), "--golden", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip().splitlines()[-1]


def initial(artifact: Any, inputs: Tensors) -> Tensors:
    """Return the initial state at the sizes of these inputs."""
    from exporter.model.state import carrying

    return carrying.initial(artifact.contract, inputs)


def judge(variant: VariantRecord, place: Path, recipe: Any, sizes: dict[str, int], folder: Path) -> str:
    """Return `right`, `refused: …` or `WRONG …`."""
    if variant.status == "failed" or variant.artifact is None:
        return f"refused: {variant.reason}"
    sequences = expected_sequences(recipe, sizes)
    path = place / variant.artifact.path
    if problem := in_python(path, sequences):
        return f"WRONG in Python: {problem}"
    languages = [session.session for session in variant.sessions]
    if "native" not in languages:
        return "right"
    problem = in_cpp(path, sequences, folder)
    return f"WRONG in C++: {problem}" if problem else "right, C++ too"


def load_recipes() -> Any:
    """Import the module of recipes."""
    sys.path.insert(0, str(RECIPES.parent))
    import stateful

    return stateful


@click.command()
@click.argument("models", nargs=-1)
@click.option("--targets", "named", default=",".join(TARGETS), show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Directory that keeps the bundles; by default they are deleted."
)
def main(models: tuple[str, ...], named: str, device: str, out: Path | None) -> None:
    """Export and judge models that keep state. Exits with 1 if any output is wrong."""
    module, wrong = load_recipes(), 0
    precision.use_tf32(False)  # as in exporter's sessions
    with tempfile.TemporaryDirectory() as temporary:
        folder = out or Path(temporary)
        for name in models or MODELS:
            recipe = getattr(module, name)
            sizes = {size: high - 1 for size, (_, high) in recipe.sizes.items()}
            for mode in MODES:
                place = folder / f"{name}-{mode}"
                made = exporter.export(
                    f"{RECIPES}:{name}", targets=named, state=mode, device=device, bench=False, out=place, timeout=600.0
                )
                for variant in made.manifest.variants:
                    verdict = judge(variant, made.path, recipe, sizes, Path(temporary))
                    wrong += verdict.startswith("WRONG")
                    click.echo(f"{name:15} {mode:7} {variant.name:8} {verdict}")
    click.echo(f"{wrong} wrong; torch {torch.__version__}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
