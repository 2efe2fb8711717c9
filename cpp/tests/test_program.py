"""Test exporter-run as a program: test_program.py PROGRAM FIXTURES OPERATORS OPERATORS_LINKED_TO_PYTHON [CLASS...].

Uses torch to make and read files. The last two paths are libraries; OPERATORS_LINKED_TO_PYTHON may be empty. Without a
CLASS, all tests run.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile
from pathlib import Path
from typing import Any

import goldens
import torch
from safetensors.torch import load_file, save_file

PROGRAM = sys.argv[1]
FIXTURES = Path(sys.argv[2])
OPERATORS, OPERATORS_LINKED_TO_PYTHON = sys.argv[3:5]
MODELS = ("model.pt", "model.pt2", "mapped.pt2")
CUSTOM = ("custom.pt", "custom.pt2")
STREAMS = ("stream.pt", "stream.pt2")
STATEFUL = dict.fromkeys(STREAMS, "golden_stream.safetensors") | dict.fromkeys(
    ("carry.pt", "carry.pt2", "carry_mapped.pt2"), "golden_carry.safetensors"
)

OUR_UNPACKING = unittest.skipIf(
    torch.torch_version.TorchVersion(torch.__version__) < (2, 14), "an older torch unpacks packages itself, in /tmp"
)


def call(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=60)


def maps_of(process: subprocess.Popen[bytes]) -> str:
    return Path(f"/proc/{process.pid}/maps").read_text()


def session(model: str, *requests: str, golden: str = "golden.safetensors") -> tuple[int, list[dict[str, Any]]]:
    done = call("session", FIXTURES / model, "--golden", FIXTURES / golden, stdin="".join(r + "\n" for r in requests))
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


class Usage(unittest.TestCase):
    def test_help_and_version(self) -> None:
        for arguments in (["--help"], *([c, "--help"] for c in ("info", "verify", "bench", "run", "profile"))):
            done = call(*arguments)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("Usage: exporter-run", done.stdout)
        self.assertIn("LibTorch", call("--version").stdout)

    def test_wrong_usage_is_one_line_and_exit_code_2(self) -> None:
        wrong: tuple[list[object], ...] = (
            [],
            ["bogus"],
            ["verify"],
            ["verify", "a", "b"],
            ["info", "a", "--golden", "x"],
            ["bench", "a", "--runs", "0"],
            ["bench", "a", "--runs"], ["bench", FIXTURES / "model.pt", "--threads", "100000"],
            ["run", "a", "--inputs", "i", "--outputs", "o", "--sha256", "abc"],
            ["verify", "a", "--rtol", "-1"], ["run", FIXTURES / "model.pt"],
            ["verify", FIXTURES / "model.pt", "--device", "tpu"],
            ["verify", FIXTURES / "model.pt", "--device", "cuda:77"], ["bench", "a", "--warmup", "0"],
        )  # fmt: skip
        for arguments in wrong:
            done = call(*arguments)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), arguments)

    def test_broken_artifact_is_one_line_and_exit_code_1(self) -> None:
        for name in ("missing.pt", "bare.pt", "golden.safetensors"):
            done = call("info", FIXTURES / name)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), name)
            self.assertIn(name, done.stderr)


class Commands(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def test_info(self) -> None:
        for model in MODELS:
            self.assertIn("[batch, 6]", call("info", FIXTURES / model).stdout)
            answer = json.loads(call("info", FIXTURES / model, "--json").stdout)
            self.assertEqual(answer["contract"]["symbols"], {"batch": {"min": 1, "max": 8}})

    def test_verify(self) -> None:
        for model in MODELS:
            done = call("verify", FIXTURES / model, "--threads", 1)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stdout.count("\n"), 3)
            self.assertEqual(call("verify", FIXTURES / model, "--verbose").stdout.count("\n"), 7)
            answer = json.loads(call("verify", FIXTURES / model, "--json").stdout)
            self.assertIn(answer["verdict"], ("exact", "rounding"))
            self.assertEqual(len(answer["cases"]), 3)

    def test_verify_requires_a_hash(self) -> None:
        data = (FIXTURES / "model.pt").read_bytes()
        model, golden = self.directory / "model.pt", self.directory / "golden.safetensors"
        model.write_bytes(data)
        golden.write_bytes((FIXTURES / "golden.safetensors").read_bytes())
        digest = hashlib.sha256(data).hexdigest()
        done = call("verify", model)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
        self.assertIn("is not known: there is no SHA256SUMS beside it", done.stderr)
        self.assertEqual(call("verify", model, "--sha256", digest.upper()).returncode, 0)
        done = call("verify", model, "--sha256", "0" * 64)
        self.assertEqual(done.returncode, 1)
        self.assertIn("model.pt was altered: its SHA-256 is " + digest, done.stderr)
        sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (model, golden)}
        (self.directory / "SHA256SUMS").write_text("".join(f"{d}  {name}\n" for name, d in sums.items()))
        self.assertEqual(call("verify", model).returncode, 0)
        flipped = bytearray(golden.read_bytes())
        flipped[len(flipped) // 2] ^= 1
        golden.write_bytes(flipped)
        done = call("verify", model)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("golden.safetensors was altered", done.stderr)

    def test_every_command_refuses_an_altered_artifact(self) -> None:
        data = bytearray((FIXTURES / "model.pt").read_bytes())
        with zipfile.ZipFile(FIXTURES / "model.pt") as archive:
            largest = max(archive.infolist(), key=lambda member: member.file_size * (member.compress_type == 0))
        data[data.rindex(largest.filename.encode(), 0, data.index(b"PK\1\2")) + 200] ^= 1
        model = self.directory / "model.pt"
        model.write_bytes(data)
        inputs, outputs, golden = (
            FIXTURES / "inputs.safetensors",
            self.directory / "outputs.safetensors",
            FIXTURES / "golden.safetensors",
        )
        for words in (
            ["run", "--inputs", inputs, "--outputs", outputs],
            ["bench", "--golden", golden],
            ["session", "--golden", golden],
        ):
            done = call(words[0], model, *words[1:])
            self.assertEqual(done.returncode, 1, words)
            self.assertIn("was altered", done.stderr)
        self.assertFalse(outputs.exists())

    def with_contract(self, name: str, **fields: object) -> Path:
        """Return a copy of a fixture with other values in fields of its contract."""
        path = self.directory / name
        with zipfile.ZipFile(FIXTURES / name) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
            for member in old.infolist():
                data = old.read(member)
                if member.filename.endswith("contract.json"):
                    data = json.dumps(json.loads(data) | fields).encode()
                new.writestr(member, data)
        return path

    def test_info_shows_the_precision_and_the_entries(self) -> None:
        path = self.with_contract("model.pt2", precision="int8w", entries=[{"batch": 1}, {"batch": 8}])
        said = call("info", path).stdout
        self.assertIn(", precision int8w\n", said)
        self.assertIn("for exactly these sizes\n  batch = 1\n  batch = 8\n", said)
        self.assertNotIn("entries", call("info", FIXTURES / "model.pt2").stdout)

    def test_info_replaces_control_characters(self) -> None:
        inputs = json.loads(call("info", FIXTURES / "model.pt", "--json").stdout)["contract"]["inputs"]
        inputs[0]["name"] = "to\x07\nkens"
        path = self.with_contract("model.pt", model="\x1b[31m\u202e", ops=["a\x9bb"], inputs=inputs)
        for words in ([], ["--json"]):
            done = call("info", path, *words)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual([c for c in done.stdout if not c.isprintable() and c != "\n"], [])
        self.assertIn("to\ufffd\ufffdkens", call("info", path).stdout)
        done = call(
            "run",
            path,
            "--inputs",
            FIXTURES / "inputs.safetensors",
            "--outputs",
            self.directory / "outputs.safetensors",
        )
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
        self.assertEqual([c for c in done.stderr if not c.isprintable() and c != "\n"], [])

    def test_outputs_to_a_pipe(self) -> None:
        words = ["run", FIXTURES / "model.pt", "--inputs", FIXTURES / "inputs.safetensors", "--outputs"]
        outputs = self.directory / "outputs.safetensors"
        self.assertEqual(call(*words, outputs).returncode, 0)
        done = subprocess.run([PROGRAM, *map(str, words), "/dev/stdout"], capture_output=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, outputs.read_bytes(), b""))

    def test_a_limit_on_file_sizes(self) -> None:
        words = ["run", FIXTURES / "model.pt", "--inputs", FIXTURES / "inputs.safetensors", "--outputs"]
        outputs = self.directory / "outputs.safetensors"
        script = f"ulimit -f 0; {shlex.join([PROGRAM, *map(str, words), str(outputs)])}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, list(self.directory.glob("outputs*"))), (1, []), done.stderr)
        self.assertIn("outputs.safetensors cannot be written", done.stderr)

    @OUR_UNPACKING
    def test_a_limit_on_open_files(self) -> None:
        script = f"ulimit -n 8; {shlex.join([PROGRAM, 'info', str(FIXTURES / 'model.pt2')])}"
        self.assertEqual(subprocess.run(["bash", "-c", script], capture_output=True, timeout=60).returncode, 0)
        done = subprocess.run(
            ["bash", "-c", script.replace(" info ", " verify ")], capture_output=True, text=True, timeout=60
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("Too many open files", done.stderr)
        self.assertNotIn("TMPDIR", done.stderr)

    def test_verify_shows_differences_beyond_six_digits(self) -> None:
        golden = goldens.load(FIXTURES / "golden.safetensors")
        case = golden["cases"][1]
        case["reference"][0][0, 0] += 1e-7
        case["eager"][0] = case["reference"][0].float()
        goldens.save(golden, self.directory / "golden.safetensors")
        words = ("verify", FIXTURES / "model.pt", "--golden", self.directory / "golden.safetensors")
        done = call(*words, "--rtol", 0, "--atol", 0)
        actual, reference = re.search(r"(0\.\d+) where the reference is (0\.\d+)", done.stdout).groups()
        self.assertAlmostEqual(float(reference) - float(actual), 1e-7, delta=5e-8)

    def test_verify_detects_a_changed_golden(self) -> None:
        golden = goldens.load(FIXTURES / "golden.safetensors")
        golden["cases"][1]["reference"][0][0, 0] += 0.01
        golden["cases"][1]["eager"][0][0, 0] += 0.01
        goldens.save(golden, self.directory / "golden.safetensors")
        done = call("verify", FIXTURES / "model.pt", "--golden", self.directory / "golden.safetensors")
        self.assertEqual(done.returncode, 1)
        self.assertIn("FAIL (3 cases, 1 failed)", done.stdout)
        loose = call("verify", FIXTURES / "model.pt", "--golden", self.directory / "golden.safetensors", "--atol", 0.1)
        self.assertEqual(loose.returncode, 0)

    def test_verify_judges_each_output_by_the_tolerance_of_its_dtype(self) -> None:
        golden = goldens.load(FIXTURES / "golden.safetensors")
        for case in golden["cases"]:
            case["reference"][0] += 1e-6
            case["eager"][0] = case["reference"][0].float()
        words = ["verify", FIXTURES / "model.pt", "--golden", self.directory / "golden.safetensors"]
        golden["tolerance"], float32 = {"rtol": 1e-7, "atol": 1e-8, "k": 2.0}, golden["tolerance"]
        for others, code in (({}, 1), ({"float32": float32}, 0), ({"float64": float32}, 1)):
            goldens.save({**golden, "tolerances": others}, self.directory / "golden.safetensors")
            self.assertEqual(call(*words).returncode, code, others)
            done = call("session", *words[1:], stdin="check\n")
            self.assertEqual("FAIL" in done.stdout, bool(code), done.stdout)
        goldens.save({**golden, "tolerances": {"float32": float32}}, self.directory / "golden.safetensors")
        self.assertEqual(call(*words, "--rtol", 0, "--atol", 0).returncode, 1)

    def test_verify_reports_a_case_outside_the_contract(self) -> None:
        golden = goldens.load(FIXTURES / "golden.safetensors")
        golden["cases"][0]["inputs"] = golden["cases"][0]["inputs"][:1]
        goldens.save(golden, self.directory / "golden.safetensors")
        done = call("verify", FIXTURES / "model.pt2", "--golden", self.directory / "golden.safetensors")
        self.assertEqual(done.returncode, 1)
        self.assertIn("1 inputs given, the contract has 2", done.stdout)

    def test_verify_expects_a_refusal_outside_the_contract(self) -> None:
        golden = goldens.load(FIXTURES / "golden.safetensors")
        beyond = [tensor.expand(9, -1) for tensor in golden["cases"][0]["inputs"]]
        golden["cases"].append({**golden["cases"][0], "name": "nine", "sizes": {"batch": 9}, "inputs": beyond})
        goldens.save(golden, self.directory / "golden.safetensors")
        words = [FIXTURES / "model.pt", "--golden", self.directory / "golden.safetensors"]
        done = call("verify", *words)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("(4 cases, 0 failed, 1 refused as the contract requires)", done.stdout)
        (answer,) = [json.loads(line) for line in call("session", *words, stdin="check\n").stdout.splitlines()[1:]]
        case = answer["cases"][-1]
        self.assertEqual((case["error"], case["outputs"]), (case["refused"], []))
        self.assertIn("batch is 9, the contract allows 1 to 8", case["refused"])
        golden["cases"][-1]["inputs"] = golden["cases"][0]["inputs"]  # which the artifact accepts
        goldens.save(golden, self.directory / "golden.safetensors")
        done = call("verify", *words)
        self.assertEqual(done.returncode, 1)
        self.assertIn("nine seed 1: the contract does not allow this, but it was accepted", done.stdout)
        golden["cases"][-1]["inputs"] = beyond
        goldens.save(golden | {"cases": golden["cases"][-1:]}, self.directory / "golden.safetensors")
        self.assertEqual(call("verify", *words).returncode, 1)

    def test_verify_refuses_a_truncated_golden(self) -> None:
        (self.directory / "golden.safetensors").write_bytes((FIXTURES / "golden.safetensors").read_bytes()[:2000])
        done = call("verify", FIXTURES / "model.pt", "--golden", self.directory / "golden.safetensors")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
        self.assertIn("golden.safetensors", done.stderr)

    def test_verify_refuses_a_reference_that_does_not_fit_eager(self) -> None:
        x = torch.ones(1, 4)
        for eager, reference in (
            (x.to(torch.complex64), x.double()),
            (x, x.to(torch.complex128)),
            (x, x),
            (x, x.double()[:, :3]),
            (x.long(), x.int()),
            (x > 0, x.long()),
        ):
            golden = goldens.load(FIXTURES / "golden.safetensors")
            golden["cases"][0]["eager"][0], golden["cases"][0]["reference"][0] = eager, reference
            goldens.save(golden, self.directory / "golden.safetensors")
            done = call("verify", FIXTURES / "model.pt", "--golden", self.directory / "golden.safetensors")
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
            self.assertIn(
                "golden.safetensors cannot be read as a golden: case batch=1, output 0: the reference", done.stderr
            )

    def test_bench(self) -> None:
        for model in MODELS:
            done = call("bench", FIXTURES / model, "--windows", 2, "--runs", 7, "--json")
            answer = json.loads(done.stdout)
            self.assertEqual((answer["runs"], [len(w) for w in answer["windows_ms"]]), (14, [7, 7]))
            self.assertLessEqual(answer["min_ms"], answer["median_ms"])
            self.assertLessEqual(answer["median_ms"], answer["p99_ms"])
            self.assertIn("mean ± σ", call("bench", FIXTURES / model, "--runs", 2).stdout)

    def test_bench_under_load(self) -> None:
        for model in MODELS:
            given = ["--windows", 2, "--runs", 7, "--callers", 3, "--runners", 2, "--threads", 1]
            answer = json.loads(call("bench", FIXTURES / model, *given, "--json").stdout)
            self.assertEqual((answer["callers"], answer["calls"], len(answer["samples_ms"])), (3, 42, 42))
            self.assertGreater(answer["calls_per_s"], 0)
            self.assertGreater(min(answer["load_s"], answer["first_call_ms"]), 0)
            text = call("bench", FIXTURES / model, *given).stdout
            self.assertIn("3 callers with 1 thread each", text)
            self.assertRegex(text, r"Cold start: +[0-9.]+ s to load, [0-9.]+ ms the first call")
        few = ["bench", FIXTURES / MODELS[0], "--threads", 1, "--windows", 2, "--runs", 3]
        self.assertIn(" on cpu, 1 thread, batch=1\n", call(*few).stdout)
        alone = call(*few, "--callers", 1, "--load", 50)
        self.assertIn(" on cpu, 1 caller with 1 thread\n", alone.stdout)
        done = call("bench", FIXTURES / MODELS[0], "--callers", 0)
        self.assertEqual(done.returncode, 2)

    def test_run(self) -> None:
        given = load_file(FIXTURES / "inputs.safetensors")
        expected = torch.jit.load(FIXTURES / "model.pt")(given["tokens"], given["scale"])
        for model in MODELS:
            outputs = self.directory / "outputs.safetensors"
            done = call("run", FIXTURES / model, "--inputs", FIXTURES / "inputs.safetensors", "--outputs", outputs)
            self.assertEqual(done.returncode, 0, done.stderr)
            written = load_file(outputs)
            self.assertEqual(set(written), {"probabilities", "label"})
            torch.testing.assert_close((written["probabilities"], written["label"]), expected)
            done = call("run", FIXTURES / model, "--inputs", FIXTURES / "inputs.pt", "--outputs", outputs)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
            self.assertIn("inputs.pt cannot be read as a safetensors file of inputs", done.stderr)
        self.assertEqual([p.name for p in self.directory.iterdir()], ["outputs.safetensors"])

    def test_run_replaces_none_of_its_own_files(self) -> None:
        given, model = self.directory / "inputs.safetensors", self.directory / "model.pt"
        given.write_bytes((FIXTURES / "inputs.safetensors").read_bytes())
        model.write_bytes((FIXTURES / "model.pt").read_bytes())
        link = self.directory / "link"
        link.symlink_to(given)
        for outputs, words in ((given, "also given as --inputs"), (link, "also given as"), (model, "the artifact")):
            kept = outputs.read_bytes()
            done = call("run", model, "--inputs", given, "--outputs", outputs)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))
            self.assertIn(f"--outputs {outputs} is {words}", done.stderr)
            self.assertEqual(outputs.read_bytes(), kept)

    def test_a_file_that_cannot_be_written_is_exit_code_1(self) -> None:
        extra = {"contract.json": ""}
        torch.jit.load(FIXTURES / "model.pt", _extra_files=extra)
        program = self.directory / "exported.pt2"
        contract = json.dumps(json.loads(extra["contract.json"]) | {"target": "export"})
        torch.export.save(
            torch.export.load(FIXTURES / "exported.pt2"), program, extra_files={"contract.json": contract}
        )
        missing = self.directory / "missing" / "file"
        golden = ("--golden", FIXTURES / "golden.safetensors")
        for arguments in (
            ("profile", program, *golden, "--runs", 1, "--trace", missing),
            ("run", FIXTURES / "model.pt", "--inputs", FIXTURES / "inputs.safetensors", "--outputs", missing),
        ):
            done = call(*arguments)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
            self.assertIn(f"{missing} cannot be written", done.stderr)

    def test_the_golden_beside_the_target_of_a_link(self) -> None:
        links = self.directory / "links"
        links.mkdir()
        for name in ("model.pt", "golden.safetensors"):
            (self.directory / name).write_bytes((FIXTURES / name).read_bytes())
        names = ("model.pt", "golden.safetensors")
        sums = (f"{hashlib.sha256((FIXTURES / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
        (self.directory / "SHA256SUMS").write_text("".join(sums))
        (links / "current.pt").symlink_to(self.directory / "model.pt")
        beside = ("bench", "--runs", 1, "--callers", 2, "--beside", links / "current.pt")
        for command in (("verify",), ("bench", "--runs", 1), beside):
            done = call(command[0], links / "current.pt", *command[1:])
            self.assertEqual(done.returncode, 0, done.stderr)
        (self.directory / "golden.safetensors").unlink()
        done = call("verify", links / "current.pt")
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"has no golden beside it, {links}/golden.safetensors", done.stderr)

    def test_run_starts_from_the_initial_state(self) -> None:
        golden = goldens.load(FIXTURES / "golden_stream.safetensors")["cases"]
        example = golden[3]
        x, context, count = example["inputs"]
        whole = {"x": x, "state.context": context, "state.count": count}
        inputs, outputs = self.directory / "inputs.safetensors", self.directory / "outputs.safetensors"
        for model in STREAMS:
            for given in ({"x": x}, {"x": x, "state.context": context}, whole):
                save_file(given, inputs)
                done = call("run", FIXTURES / model, "--inputs", inputs, "--outputs", outputs)
                self.assertEqual(done.returncode, 0, done.stderr)
                written = load_file(outputs)
                self.assertEqual(set(written), {"y", "state.context", "state.count"})
                named = [written[name] for name in ("y", "state.context", "state.count")]
                torch.testing.assert_close(named, example["eager"])
            save_file({"x": x, "state.count": count + 2}, inputs)
            call("run", FIXTURES / model, "--inputs", inputs, "--outputs", outputs)
            torch.testing.assert_close(load_file(outputs)["y"], example["eager"][0] + 2)
            save_file({"x": x, "state.other": count}, inputs)
            done = call("run", FIXTURES / model, "--inputs", inputs, "--outputs", outputs)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))

    def test_run_streams(self) -> None:
        outputs = self.directory / "outputs.safetensors"
        for model, golden in STATEFUL.items():
            cases = goldens.load(FIXTURES / golden)["cases"][:3]
            words = []
            for case in cases:
                save_file({"x": case["inputs"][0]}, self.directory / f"{case['step']}.safetensors")
                words += ["--inputs", self.directory / f"{case['step']}.safetensors"]
            done = call("run", FIXTURES / model, *words, "--outputs", outputs)
            self.assertEqual(done.returncode, 0, done.stderr)
            written = load_file(outputs)
            self.assertEqual(list(written), ["0.y", "1.y", "2.y"])
            torch.testing.assert_close(list(written.values()), [case["eager"][0] for case in cases])
        given = ["--inputs", FIXTURES / "inputs.safetensors"] * 2
        done = call("run", FIXTURES / "model.pt", *given, "--outputs", outputs)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))
        self.assertIn("model.pt has no state", done.stderr)

    def test_info_shows_the_state(self) -> None:
        self.assertIn("1 to 8", call("info", FIXTURES / "model.pt").stdout)
        inside, outside = (call("info", FIXTURES / model).stdout for model in ("carry.pt", "stream.pt"))
        self.assertIn("state, kept by the artifact", inside)
        self.assertRegex(inside, r"context +float32 +\[1, 8\]\n +count +int64 +\[\]")
        self.assertIn("pass the last 2 outputs of each call as the last inputs of the next", outside)

    def test_verify_follows_sequences(self) -> None:
        for model, golden in STATEFUL.items():
            done = call("verify", FIXTURES / model, "--golden", FIXTURES / golden, "--verbose")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("batch=1 step 2 seed 0", done.stdout)
            self.assertIn("(6 cases, 0 failed)", done.stdout)

    def test_verify_uses_the_state_of_the_artifact_itself(self) -> None:
        golden = goldens.load(FIXTURES / "golden_stream.safetensors")
        for case in golden["cases"]:
            for tensors in (case["eager"], case["reference"]):
                tensors[1] += 1  # changes only the context
        goldens.save(golden, self.directory / "golden.safetensors")
        for model in STREAMS:
            words = [FIXTURES / model, "--golden", self.directory / "golden.safetensors", "--json"]
            cases = json.loads(call("verify", *words).stdout)["cases"]
            verdicts = [[output["verdict"] == "FAIL" for output in case["outputs"]] for case in cases]
            self.assertEqual(verdicts, [[False, True, False]] * 6)

    def test_verify_stops_a_sequence_at_a_refused_step(self) -> None:
        for model, name in STATEFUL.items():
            golden = goldens.load(FIXTURES / name)
            golden["cases"][1]["inputs"][0] = golden["cases"][1]["inputs"][0].double()
            goldens.save(golden, self.directory / "golden.safetensors")
            words = [FIXTURES / model, "--golden", self.directory / "golden.safetensors", "--json"]
            refused = [case.get("refused", "") for case in json.loads(call("verify", *words).stdout)["cases"]]
            self.assertEqual(["dtype float64" in text for text in refused], [False, True, True, False, False, False])

    def test_verify_judges_a_small_value_by_the_typical_size(self) -> None:
        """With a cosine as in int8: the value is 5.98, and the other cases' references set the typical size."""
        golden = goldens.load(FIXTURES / "golden_carry.safetensors")
        golden["tolerance"]["min_cosine"] = 0.995
        for typical, verdict in ((100, "quantized"), (10, "FAIL")):
            for case in golden["cases"][1:]:
                case["reference"][0].fill_(typical)
            for kind in ("eager", "reference"):
                golden["cases"][0][kind][0].fill_(4.3)
            goldens.save(golden, self.directory / "golden.safetensors")
            words = [FIXTURES / "carry.pt", "--golden", self.directory / "golden.safetensors", "--json"]
            cases = json.loads(call("verify", *words).stdout)["cases"]
            self.assertEqual(cases[0]["outputs"][0]["verdict"], verdict)

    def test_verify_stops_a_sequence_at_a_failed_step(self) -> None:
        first = goldens.load(FIXTURES / "golden_carry.safetensors")["cases"][0]
        golden = goldens.load(FIXTURES / "golden_carry.safetensors")
        golden["cases"] = [{**first, "name": f"step {step}", "step": step} for step in range(22)] + [first]
        goldens.save(golden, self.directory / "golden.safetensors")
        words = [FIXTURES / "carry.pt", "--golden", self.directory / "golden.safetensors", "--json"]
        errors = [case["error"] for case in json.loads(call("verify", *words).stdout)["cases"]]
        self.assertEqual(errors[:20] + errors[21:], [""] * 20 + ["the previous step failed", ""])
        self.assertIn("the cache is full", errors[20])  # it holds 20 calls

    def test_verify_refuses_steps_out_of_order(self) -> None:
        for steps in ((1, 2, 3), (0, 2, 3), (0, 1, -1)):
            golden = goldens.load(FIXTURES / "golden_stream.safetensors")
            for case, step in zip(golden["cases"], steps, strict=False):
                case["step"] = step
            goldens.save(golden, self.directory / "golden.safetensors")
            done = call("verify", FIXTURES / "stream.pt", "--golden", self.directory / "golden.safetensors")
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
            self.assertIn("does not follow step", done.stderr)

    def test_timed_calls_start_from_the_initial_state(self) -> None:
        given = [FIXTURES / "carry.pt", "--golden", FIXTURES / "golden_carry.safetensors"]
        done = call("bench", *given, "--windows", 2, "--runs", 40)  # its cache holds 20 calls
        self.assertEqual(done.returncode, 0, done.stderr)
        done = call("bench", *given, "--callers", 2)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))
        self.assertIn("keeps its state, so it serves one caller", done.stderr)
        done = call("session", *given, stdin="time 40\ncheck\ntime 40\ncheck\n")
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([a["event"] for a in answers], ["ready", "time", "check", "time", "check"])
        for check in answers[2::2]:
            self.assertEqual(
                {o["verdict"] for c in check["cases"] for o in c["outputs"]} - {"exact", "rounding"}, set()
            )

    def test_a_missing_gpu_is_not_a_linker_error(self) -> None:
        done = call("verify", FIXTURES / "model.pt", "--device", "cuda:77")
        self.assertEqual(done.returncode, 2)
        self.assertNotIn("cannot open shared object file", done.stderr)


class Operators(unittest.TestCase):
    def test_missing_operators_are_named(self) -> None:
        for model in CUSTOM:
            done = call("verify", FIXTURES / model)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
            self.assertIn("operators of exporter_test, which are not registered here: give --ops-lib FILE", done.stderr)
            self.assertIn("exporter_test            not registered", call("info", FIXTURES / model).stdout)

    def test_every_command_loads_operators(self) -> None:
        x = torch.rand(3, 5)
        expected = (2.0 * x - 1.0).sum(1)
        with tempfile.TemporaryDirectory() as directory:
            names = ("golden.safetensors", "inputs.safetensors", "outputs.safetensors")
            golden, inputs, outputs = (Path(directory) / name for name in names)
            case = {"name": "batch=3", "seed": 0, "inputs": [x], "eager": [expected], "reference": [expected.double()]}
            tolerance = {"rtol": 1e-4, "atol": 1e-5, "k": 2.0}
            goldens.save({"tolerance": tolerance, "cases": [case]}, golden)
            save_file({"x": x}, inputs)
            for model in CUSTOM:
                given = [FIXTURES / model, "--ops-lib", OPERATORS]
                self.assertIn("exporter_test            registered", call("info", *given).stdout)
                self.assertEqual(call("verify", *given, "--golden", golden).returncode, 0)
                self.assertEqual(call("bench", *given, "--golden", golden, "--windows", 1, "--runs", 2).returncode, 0)
                self.assertEqual(call("run", *given, "--inputs", inputs, "--outputs", outputs).returncode, 0)
                torch.testing.assert_close(load_file(outputs)["y"], expected)
                done = call("session", *given, "--golden", golden, stdin="check\n")
                self.assertIn('"verdict":', done.stdout)

    def test_a_broken_library_is_one_line_and_exit_code_2(self) -> None:
        for library in ("missing.so", FIXTURES / "inputs.safetensors"):
            done = call("info", FIXTURES / "custom.pt", "--ops-lib", library)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))
            self.assertIn(str(library), done.stderr)

    @unittest.skipUnless(OPERATORS_LINKED_TO_PYTHON, "this LibTorch has no libtorch_python")
    def test_a_library_that_links_python_without_calling_it(self) -> None:
        needs = subprocess.run(["readelf", "-d", OPERATORS_LINKED_TO_PYTHON], capture_output=True, text=True).stdout
        self.assertIn("libtorch_python.so", needs)
        done = call("info", FIXTURES / "custom.pt", "--ops-lib", OPERATORS_LINKED_TO_PYTHON)
        self.assertIn("exporter_test            registered", done.stdout, done.stderr)


class Session(unittest.TestCase):
    def test_protocol(self) -> None:
        for model in MODELS:
            code, answers = session(model, "time 3", "time 2 batch=5", "check", "quit")
            self.assertEqual((code, [a["event"] for a in answers]), (0, ["ready", "time", "time", "check"]))
            ready, time, of_case, check = answers
            self.assertEqual(len(of_case["samples_ms"]), 2)
            self.assertEqual(
                (ready["protocol"], ready["language"], ready["device"], ready["provider"]), (1, "native", "cpu", "")
            )
            self.assertEqual(len(time["samples_ms"]), 3)
            self.assertGreater(time["peak_rss_mb"], 10)
            self.assertEqual(
                [(c["case"], c["seed"], c["error"]) for c in check["cases"]], [(f"batch={b}", b, "") for b in (1, 2, 5)]
            )
            fields = "output verdict reason max_abs max_rel rmse eager_rmse rmse_ratio cosine worst cause"
            self.assertEqual(list(check["cases"][0]["outputs"][0]), fields.split())

    def test_continues_after_a_wrong_request(self) -> None:
        code, answers = session("model.pt", "dance", "time 0", "time x", "", "time 1 nobody", "time 1")
        self.assertEqual((code, [a["event"] for a in answers]), (0, ["ready", *["error"] * 5, "time"]))
        self.assertEqual({(a["kind"], a["remedy"]) for a in answers[1:6]}, {("usage", "")})

    def test_failure_before_ready(self) -> None:
        for model, golden, kind in (
            ("missing.pt", "golden.safetensors", "artifact"),
            ("bare.pt", "golden.safetensors", "artifact"),
            ("model.pt", "missing.pt", "golden"),
        ):
            code, answers = session(model, golden=golden)
            self.assertEqual((code, [(a["event"], a["kind"]) for a in answers]), (1, [("error", kind)]))
        done = call("session", FIXTURES / "model.pt", "--bogus")
        self.assertEqual((done.returncode, json.loads(done.stdout)["kind"]), (2, "usage"))
        done = call("session", FIXTURES / "model.pt", "--device", "cuda:77")
        self.assertEqual((done.returncode, json.loads(done.stdout)["kind"]), (2, "usage"))

    @OUR_UNPACKING
    def test_removes_unpacked_files(self) -> None:
        for end in ("quit", "end of input", "SIGTERM", "SIGTERM while busy", "nobody reads"):
            with self.subTest(end), tempfile.TemporaryDirectory() as directory:
                process = subprocess.Popen(
                    [PROGRAM, "session", FIXTURES / "model.pt2", "--threads", "1"],
                    stdin=-1, stdout=-1, stderr=-1, text=True, env={**os.environ, "TMPDIR": directory},
                )  # fmt: skip
                assert process.stdin and process.stdout and process.stderr
                process.stdout.readline()
                self.assertEqual(list(Path(directory).iterdir()), [])
                if end == "quit":
                    print("quit", file=process.stdin, flush=True)
                elif end == "end of input":
                    process.stdin.close()
                elif end == "SIGTERM":
                    process.terminate()
                elif end == "SIGTERM while busy":
                    print("time 100000\ncheck", file=process.stdin, flush=True)
                    time.sleep(0.1)
                    process.terminate()
                    self.assertNotIn('"event":"check"', process.stdout.read())
                else:
                    process.stdout.close()
                    print("check", file=process.stdin, flush=True)
                self.assertEqual(process.wait(60), 0)
                self.assertEqual(list(Path(directory).iterdir()), [])
                for stream in (process.stdin, process.stdout, process.stderr):
                    stream.close()

    @OUR_UNPACKING
    def test_leaves_nothing_when_it_is_killed(self) -> None:
        for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for model in ("model.pt2", "mapped.pt2"):
                with self.subTest(model, signal=number), tempfile.TemporaryDirectory() as directory:
                    environment = {**os.environ, "TMPDIR": directory}
                    words = [PROGRAM, "bench", FIXTURES / model, "--warmup", "60", "--runs", "1000000"]
                    process = subprocess.Popen([*words, "--windows", "1000"], stdout=-3, stderr=-3, env=environment)
                    deadline = time.monotonic() + 60
                    while "exporter-package-" not in maps_of(process) and time.monotonic() < deadline:
                        time.sleep(0.01)
                    time.sleep(0.5)
                    process.send_signal(number)
                    self.assertEqual(process.wait(60), -number)
                    self.assertEqual(list(Path(directory).iterdir()), [])

    def test_removes_folders_of_ended_processes(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            environment = {**os.environ, "TMPDIR": directory}
            abandoned, used, other = (
                Path(directory) / name for name in ("exporter-package-1", "exporter-package-2", "other-1")
            )
            for folder in (abandoned, used, other):
                (folder / "0").mkdir(parents=True)
            lock = os.open(used, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            subprocess.run([PROGRAM, "info", FIXTURES / "model.pt"], env=environment, stdout=-3, check=True)
            self.assertEqual(sorted(Path(directory).iterdir()), sorted((used, other)))
            os.close(lock)
            subprocess.run([PROGRAM, "info", FIXTURES / "model.pt"], env=environment, stdout=-3, check=True)
            self.assertEqual(list(Path(directory).iterdir()), [other])

    @OUR_UNPACKING
    def test_checks_the_index_of_weights(self) -> None:
        changes: list[tuple[dict[str, Any], str]] = [
            ({}, ""),  # the weights are no longer aligned
            ({"offset": 1 << 20}, "is not in the file"),
            ({"bytes": 1 << 40}, "is not in the file"),
            ({"bytes": 64}, "is larger than its bytes"),
            ({"offset": 1}, "is not in the file"),
            ({"start": -1}, "is not in the file"),
            ({"shape": [1 << 40, 1 << 40], "stride": [1 << 40, 1]}, "is too large"),
            ({"shape": [2]}, "has not as many strides as sizes"),
            ({"dtype": "float1"}, "has the unknown dtype float1"),
            ({"name": "another"}, "is missing"),
        ]
        for change, message in changes:
            with self.subTest(change), tempfile.TemporaryDirectory() as directory:
                package = Path(directory) / "mapped.pt2"
                with zipfile.ZipFile(FIXTURES / "mapped.pt2") as old, zipfile.ZipFile(package, "w") as new:
                    for name in old.namelist():
                        data = old.read(name)
                        if name.endswith("_weights.json"):
                            index = json.loads(data)
                            plain = (constant for constant in index["constants"] if "packed" not in constant)
                            max(plain, key=lambda constant: constant["bytes"]).update(change)
                            data = json.dumps(index).encode()
                        new.writestr(name, data)
                done = call("bench", package, "--golden", FIXTURES / "golden.safetensors", "--runs", "1")
                self.assertEqual(done.returncode, 1 if change else 0, done.stderr)
                self.assertIn(message, done.stderr)

    def test_maps_no_gpu_library(self) -> None:
        with subprocess.Popen([PROGRAM, "session", FIXTURES / "model.pt"], stdin=-1, stdout=-1, text=True) as process:
            assert process.stdin and process.stdout
            process.stdout.readline()
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            process.stdin.close()
        for library in ("libtorch_cuda", "libcudnn", "libcublas", "libpython"):
            self.assertNotIn(library, maps)


if __name__ == "__main__":
    unittest.main(argv=[*sys.argv[:1], *sys.argv[5:]])
