"""Replay a golden with onnxruntime, without torch: the check.py of a context made by `exporter deploy docker`.

The context also contains the model, golden.npz (written by child.py), golden.json and, in exporter/, the parity rule.
The exit code is 1 if parity is lost.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from exporter.core.json_codec import to_json
from exporter.core.parity_records import Parity
from exporter.evidence import parity
from exporter.evidence.parity import Limits


def replay(place: Path) -> Parity:
    """Return the parity over all cases."""
    import onnxruntime  # after exporter, whose import disables the telemetry

    config = json.loads((place / "golden.json").read_text())
    limits = [Limits(**one) for one in config["limits"]]
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, config["graph_optimization"])
    for name, value in config["session_options"]:
        if "." in name:
            settings.add_session_config_entry(name, value)
        else:
            mode = name == "execution_mode"
            setattr(settings, name, getattr(onnxruntime.ExecutionMode, value) if mode else value)
    session = onnxruntime.InferenceSession(place / config["model"], settings, providers=["CPUExecutionProvider"])
    names = [spec.name for spec in session.get_outputs()]
    cases = []
    with np.load(place / "golden.npz") as golden:
        for number, (name, seed) in enumerate(config["cases"]):
            given = {spec.name: golden[f"{number}.inputs.{i}"] for i, spec in enumerate(session.get_inputs())}
            outputs = []
            for i, got in enumerate(session.run(None, given)):
                eager, reference = golden[f"{number}.eager.{i}"], golden[f"{number}.reference.{i}"]
                dtypes = str(got.dtype), str(eager.dtype)
                one = parity.compare(names[i], got, eager, reference, limits[i], dtypes)
                if f"{number}.stored.{i}" in golden:
                    arrays = got, eager, reference, golden[f"{number}.stored.{i}"]
                    one = parity.compare_stored(one, arrays, limits[i], dtypes)
                outputs.append(asdict(one))
            cases.append({"case": name, "seed": seed, "error": "", "outputs": outputs})
    return parity.summarize(cases)


if __name__ == "__main__":
    found = replay(Path(__file__).parent)
    print(to_json(found))
    sys.exit(1 if found.verdict == "FAIL" else 0)
