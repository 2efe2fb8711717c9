"""The command line: exit codes, messages and output formats."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.commands import NATIVE, Cli, Done, recipe_path
from support.schema import VALIDATOR

from exporter import targets
from exporter.cli import main_export
from exporter.core import environment
from exporter.runs import doctor, session_checks
from exporter.workers.children import Zygote

MLP = recipe_path("tiny:mlp")


def refused(done: Done, *words: str, code: int = 2) -> None:
    """Assert that the command failed with one message that has a cause and a remedy, and no traceback."""
    assert done.code == code, done.err
    assert "Traceback" not in done.err
    for word in words:
        assert word in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bort"], ["there is no model 'bort'", "did you mean bert"]),
        (["nowhere.py:x"], ["there is no file nowhere.py"]),
        ([f"{MLP}", "--targets", "tarce"], ["there is no target 'tarce'", "did you mean trace"]),
        ([f"{MLP}", "--targets", "compile:fast"], ["has no variant 'fast'", "compile:max-autotune"]),
        ([f"{MLP}", "--batch", "9"], ["batch is 9, which is outside its range, 1 to 8", "--size batch=N"]),
        ([f"{MLP}", "--size", "depth=3"], ["inputs() takes no depth", "it takes batch"]),
        ([f"{MLP}", "--size", "batch"], ["'batch' is not NAME=N"]),
        ([f"{MLP}", "--batch", "0"], ["'0' is not N or N,N,..."]),
        ([f"{MLP}", "--batch", "9" * 20], ["is too large; a size is 1 to 9223372036854775807"]),
        ([f"{MLP}", "--size", f"batch=1..{'9' * 5000}"], ["is too large; a size is 1 to 9223372036854775807"]),
        ([f"{MLP}", "--size", "batch=1..8..9223372036854775808"], ["9223372036854775808 is too large"]),
        ([f"{MLP}", "--specialize", f"batch=1,{'9' * 20}"], ["is too large"]),
        ([f"{MLP}", "--batch", "2", "--size", "batch=3"], ["--batch 2 and --size batch=3 contradict", "give one of"]),
        ([f"{MLP}", "--batch", "2", "--size", "batch=2,3"], ["--batch 2 and --size batch=2,3 contradict"]),
        ([f"{MLP}", "--seed", "9" * 23], ["'--seed'", "-9223372036854775808<=x<=18446744073709551615"]),
        (["m" * 300], ["a path is too long: mmm", "give shorter names"]),
        ([f"{'m' * 300}.py:net"], ["a path is too long: mmm"]),
        ([f"{MLP}", "--out", "m" * 300], ["a path is too long"]),
        ([f"{MLP}", "--batch", "2,x"], ["'2,x' is not N or N,N,..."]),
        ([f"{MLP}", "--batch", "2,9"], ["9 is outside the range of batch, 1 to 8", "give --size batch=2..9"]),
        (
            [f"{MLP}", "--targets", "trace", "--portable"],
            ["--portable applies only to packages", "add the target compile"],
        ),
        ([f"{MLP}", "--targets", "trace", "--inductor", "freezing=False"], ["--inductor applies only to the compile"]),
        (
            [f"{MLP}", "--targets", "trace", "--graph-optimization", "none"],
            ["--graph-optimization applies only to the"],
        ),
        ([f"{MLP}", "--targets", "compile", "--inductor", "freezing"], ["--inductor 'freezing' is not NAME=VALUE"]),
        ([f"{MLP}", "--batch", "2,4", "--dynamic", "none"], ["batch is not dynamic", "--dynamic"]),
        ([f"{MLP}", "--device", "tpu"], ["there is no device 'tpu'", "choose cpu, cuda"]),
        ([f"{MLP}", "--device", "cpu:1"], ["there is no device"]),
        ([f"{MLP}", "--threads", "100000"], ["'--threads': 100000 is not in the range 1<=x<=1024"]),
        ([f"{MLP}", "--inputs", "/nowhere.pt"], ["/nowhere.pt"]),
        ([recipe_path("does_not_import:x")], ["does not import", "a_package_that_nobody_has", "install"]),
        ([recipe_path("tiny:mpl")], ["has no mpl", "did you mean mlp"]),
        ([recipe_path("broken:no_inputs")], ["has no inputs()", "a recipe has load(weights)"]),
        ([recipe_path("broken:inputs_without_tensors")], ["contain no tensor", "return a dict of tensors"]),
        ([recipe_path("broken:sizes_are_a_list")], ["sizes is a list, not a dict", 'write {"batch": (min, max)}']),
        ([recipe_path("broken:load_fails")], ["loading the model fails: OSError: the weights are gone"]),
        ([f"{MLP}", "--out", "/proc/toy"], ["cannot write to /proc/", "--out"]),
    ],
)
def test_bad_input_to_export(cli: Cli, words: list[str], said: list[str], tmp_path: Path) -> None:
    out = [] if "--out" in words else ["--out", tmp_path / "toy"]
    refused(cli("export", *words, *out, "-q"), *said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "1e400"])
@pytest.mark.parametrize(
    "words",
    [
        ("unpack", "x.tar.zst", "--max-gb"),
        ("compare", "x", "x", "--measure", "--max-slower"),
        ("compare", "x", "x", "--max-larger"),
        ("profile", "x", "--seconds"),
        ("check", "x", "--timeout"),
        ("bench", "x", "--wait-quiet"),
        ("bench", "x", "--time-budget"),
        ("report", "x", "--max-mb"),
        ("export", MLP, "--rtol"),
        ("export", MLP, "--min-metric"),
        ("export", MLP, "--tune"),
        ("export", MLP, "--memory-limit"),
    ],
)
def test_a_number_that_is_not_finite_is_refused(
    cli: Cli, words: tuple[str, ...], number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of NaN would be met by everything."""
    monkeypatch.chdir(tmp_path)
    refused(cli(*words, number), f"Invalid value for '{words[-1]}': ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("flag", "number"), [("--timeout", "4294968"), ("--memory-limit", "1e90")])
def test_a_number_beyond_what_the_system_accepts_is_refused(cli: Cli, flag: str, number: str) -> None:
    refused(cli("export", MLP, flag, number), f"Invalid value for '{flag}': ", "is not in the range")


def test_a_missing_gpu_is_reported(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "gpus", lambda: ())
    refused(cli("export", MLP, "--device", "cuda"), "there is no GPU 'cuda' here", "--device cpu")


def test_a_directory_with_other_files_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    refused(cli("export", MLP, "--out", tmp_path), "contains files but is not a bundle", "--out")


def test_a_bundle_of_another_model_is_not_overwritten(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If no variant passes, an existing bundle is kept too."""
    monkeypatch.chdir(tmp_path)
    for file, forward in (("lin.py", "x"), ("other.py", "x"), ("far/lin.py", "missing")):
        Path(file).parent.mkdir(exist_ok=True)
        text = f"import torch\nclass M(torch.nn.Module):\n    def forward(self, x): return {forward} * 2\n"
        Path(file).write_text(text + "net = M\ndef net_inputs(batch=1): return {'x': torch.ones(batch, 2)}\n")
    words = "--targets", "trace", "--no-bench", "-q"
    assert cli("export", "lin.py:net", *words).code == 0
    before = (tmp_path / "artifacts" / "net" / "manifest.json").read_bytes()
    refused(cli("export", "other.py:net", *words), "holds the bundle of another model, lin.py:net", "--out")
    failed = cli("export", "far/lin.py:net", *words)
    assert failed.code == 1
    told = "artifacts/net was kept, because nothing passed in this run; this run is in"
    assert told in failed.err and str(tmp_path / "artifacts" / "net.failed") in failed.err  # noqa: PT018
    assert (tmp_path / "artifacts" / "net" / "manifest.json").read_bytes() == before
    assert (tmp_path / "artifacts" / "net.failed" / "manifest.json").is_file()
    assert cli("export", "./lin.py:net", *words).code == 0


def test_invalid_inputs_are_refused(cli: Cli, tmp_path: Path) -> None:
    done = cli("export", MLP, "--inputs", Path(__file__), "--targets", "trace", "--out", tmp_path / "out", "--no-bench")
    assert "was not written by torch.save, or holds more than tensors" in done.out + done.err
    assert "will likely succeed" not in done.out + done.err


def test_a_broken_torch_is_reported(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no libtorch')")
    monkeypatch.setattr("exporter.runs.pipeline.Zygote", lambda *_: Zygote({"PYTHONPATH": str(tmp_path)}))
    done = cli("export", MLP, "--targets", "trace", "--out", tmp_path / "toy", "-q")
    assert done.code == 1
    assert "torch cannot be imported: ImportError: no libtorch" in done.out + done.err
    assert "Traceback" not in done.err


def test_tracebacks_need_verbose(cli: Cli) -> None:
    brief, verbose = cli("export", "bort"), cli("export", "bort", "-v")
    assert "Traceback" not in brief.err
    assert "Traceback" in verbose.err
    assert brief.code == verbose.code == 2
    assert verbose.err.endswith(brief.err)


def test_an_internal_error_is_reported_as_a_bug(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.model.recipes.find", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError) as raised:
        cli("export", "bert")
    assert "a bug in exporter" in " ".join(raised.value.__notes__)


def test_export_prints_the_table(cli: Cli, tmp_path: Path) -> None:
    done = cli("export", MLP, "--targets", "trace", "--no-bench", "--out", tmp_path / "toy")
    assert done.code == 0, done.err
    assert "1 of 1 variants passed" in done.out
    assert "trace" in done.err
    assert "passed" in done.err, "progress goes to stderr"
    assert "\x1b" not in done.out + done.err


def test_export_prints_json_valid_against_the_schema(cli: Cli, tmp_path: Path) -> None:
    done = cli("export", MLP, "--targets", "trace", "--no-bench", "--json", "-q", "--out", tmp_path / "toy")
    assert (done.code, done.err) == (0, "")
    manifest = json.loads(done.out)
    VALIDATOR.validate(manifest)
    assert manifest["command"].startswith("exporter export ")


def test_the_console_script_export_is_the_same_command(cli: Cli, tmp_path: Path) -> None:
    done = cli(MLP, "--targets", "trace", "--no-bench", "--json", "-q", "--out", tmp_path / "toy", entry=main_export)
    assert done.code == 0, done.err
    assert json.loads(done.out)["command"] == f"exporter export {MLP} " + (
        f"--targets trace --no-bench --json -q --out {tmp_path / 'toy'}"
    )


def test_a_failed_variant_exits_with_1_and_verbose_shows_its_log(cli: Cli, tmp_path: Path) -> None:
    words = ["export", recipe_path("broken:trace_raises"), "--targets", "trace,export", "--no-bench"]
    done = cli(*words, "--out", tmp_path / "toy", "-v")
    assert done.code == 1
    assert "1 of 2 variants passed; failed: trace" in done.out
    assert "--- trace: logs/trace.log" in done.err
    assert "not to be traced" in done.err


def test_saved_inputs(cli: Cli, tmp_path: Path) -> None:
    import torch

    torch.save({"x": torch.ones(3, 4)}, tmp_path / "inputs.pt")
    words = ["export", recipe_path("tiny:lonely"), "--inputs", tmp_path / "inputs.pt", "--targets", "trace"]
    done = cli(*words, "--no-bench", "--json", "-q", "--out", tmp_path / "toy")
    assert done.code == 0, done.err
    assert json.loads(done.out)["contract"]["inputs"][0]["shape"] == [3, 4]


# check and report


def test_check_passes_a_good_bundle(cli: Cli, made_bundle: Path) -> None:
    done = cli("check", made_bundle, "--json", "-q", "--threads", "1")
    assert done.code == 0, done.out
    manifest = json.loads(done.out)
    VALIDATOR.validate(manifest)
    sessions = [s["session"] for v in manifest["variants"] for s in v["sessions"]]
    assert sessions.count("python") == 4
    assert ("native" in sessions) == NATIVE


@pytest.mark.parametrize("words", [(), ("--allow-cpu-fallback",)])
def test_check_passes_on_allow_cpu_fallback(
    cli: Cli, bundle: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    seen: list[targets.Options] = []
    whole = session_checks.openers

    def openers(*arguments: Any) -> Any:
        seen.append(arguments[3])
        return whole(*arguments)

    monkeypatch.setattr(session_checks, "openers", openers)
    assert cli("check", bundle, "-q", *words).code == 0
    assert {options.allow_cpu_fallback for options in seen} == {bool(words)}


def remove_proofs(place: Path) -> None:
    """Remove the files that reveal changes. Bundles of earlier releases do not have them."""
    for name in ("SHA256SUMS", "bom.cdx.json", "provenance.json"):
        (place / name).unlink()


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (damage, "SHA-256 differs"),
        (lambda p: p.write_bytes(p.read_bytes()[:99]), "has 99 bytes"),
        (Path.unlink, "missing"),
    ],
    ids=["altered", "cut short", "missing"],
)
def test_check_finds_a_damaged_artifact(cli: Cli, bundle: Path, harm, reason: str) -> None:
    harm(bundle / "trace.pt")
    done = cli("check", bundle, "--json", "-q")
    assert done.code == 1
    rows = {v["name"]: v for v in json.loads(done.out)["variants"]}
    assert (rows["trace"]["status"], rows["trace"]["stage"]) == ("failed", "hash")
    assert reason in rows["trace"]["reason"]
    assert rows["onnx"]["status"] == "passed"


def test_check_finds_a_golden_that_was_replaced_with_its_record(cli: Cli, bundle: Path) -> None:
    """Hashes can be forged, but the artifacts' outputs then differ from the golden."""
    from exporter.bundle.layout import record

    remove_proofs(bundle)
    text = (bundle / "manifest.json").read_text()
    old = record(bundle / "golden.safetensors")
    from exporter.evidence import golden

    made = golden.read(bundle / "golden.safetensors")
    for case in made.cases:
        case.eager[0].add_(1)
        case.reference[0].add_(1)
    golden.save(made, bundle / "golden.safetensors")
    new = record(bundle / "golden.safetensors")
    text = text.replace(old.sha256, new.sha256).replace(f'"bytes": {old.bytes}', f'"bytes": {new.bytes}')
    (bundle / "manifest.json").write_text(text)
    done = cli("check", bundle, "-q")
    assert done.code == 1
    assert "0 of 4 variants passed" in done.out


def test_bench_times_the_variants_that_pass(cli: Cli, bundle: Path) -> None:
    damage(bundle / "trace.pt")
    before = {path.name: path.stat().st_mtime_ns for path in bundle.iterdir()}
    done = cli("bench", bundle, "--json", "-q", "--threads", "1", "--time-budget", "0.2", "--goal", "size")
    assert done.code == 1
    manifest = json.loads(done.out)
    VALIDATOR.validate(manifest)
    rows = {v["name"]: v for v in manifest["variants"]}
    assert rows["trace"]["timings"] == {}
    assert rows["onnx"]["timings"]["python"]["runs"] > 5
    assert manifest["baseline"] == next(name for name in rows if name != "trace")
    assert rows[manifest["baseline"]]["timings"]["python"]["speedup"] == 1
    assert (manifest["goal"]["name"], manifest["threads"]) == ("size", 1)
    assert {path.name: path.stat().st_mtime_ns for path in bundle.iterdir()} == before, (
        "bench must not change the bundle"
    )


def test_explain_accepts_one_value_per_size(cli: Cli) -> None:
    refused(cli("explain", MLP, "--batch", "2,4"), "explain does not measure time", "give one of each")


@pytest.mark.parametrize("command", ["check", "bench", "report"])
def test_a_directory_without_a_bundle_is_refused(cli: Cli, tmp_path: Path, command: str) -> None:
    refused(cli(command, tmp_path), "is not a bundle", "exporter export")
    (tmp_path / "manifest.json").write_text('{"model": {')
    refused(cli(command, tmp_path), "manifest.json: not a valid Manifest", "export again")


def test_check_refuses_a_damaged_golden(cli: Cli, bundle: Path) -> None:
    damage(bundle / "golden.safetensors")
    refused(cli("check", bundle), "golden.safetensors does not match its record", "export again")


def test_bundles_without_artifacts_or_golden_are_refused(cli: Cli, bundle: Path) -> None:
    remove_proofs(bundle)
    data = json.loads((bundle / "manifest.json").read_text())
    (bundle / "manifest.json").write_text(json.dumps(data | {"variants": []}))
    refused(cli("check", bundle, "-q"), "holds no artifact")
    (bundle / "manifest.json").write_text(json.dumps(data | {"golden": None}))
    refused(cli("check", bundle, "-q"), "has no golden")


@pytest.mark.parametrize("log", ["", "..", "/"])
def test_malicious_log_paths_in_a_manifest(cli: Cli, bundle: Path, log: str) -> None:
    remove_proofs(bundle)
    text = (bundle / "manifest.json").read_text().replace('"logs/trace.log"', json.dumps(log))
    (bundle / "manifest.json").write_text(text)
    done = cli("check", bundle, "-q")
    assert done.code == 0, done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(("form", "start"), [("table", "\npair ("), ("json", "{"), ("md", "### pair (")])
def test_report_forms(cli: Cli, made_bundle: Path, form: str, start: str) -> None:
    done = cli("report", made_bundle, "--format", form)
    assert done.code == 0
    assert done.out.startswith(start)
    refused(cli("report", made_bundle, "--format", "xml"), "xml")


# The rest


def test_help_and_version(cli: Cli) -> None:
    done = cli("--help")
    assert done.code == 0
    positions = [
        done.out.index(f"\n  {name} ") for name in ("export", "check", "bench", "report", "models", "targets", "doctor")
    ]
    assert positions == sorted(positions)
    assert cli("--version").out.startswith("exporter, version ")
    assert "--targets" in cli("export", "-h").out


@pytest.mark.parametrize(("word", "meant"), [("exprot", "export"), ("modles", "models"), ("zzz", None)])
def test_unknown_commands_and_options(cli: Cli, word: str, meant: str | None) -> None:
    done = cli(word)
    refused(done, f"No such command '{word}'")
    assert (f"Did you mean {meant}?" in done.err) == (meant is not None)


def test_models(cli: Cli) -> None:
    out = cli("models").out
    for name, words in (("bert", "BERT base"), ("resnet18", "ResNet"), ("minilm", "MiniLM"), ("vit", "ViT")):
        assert name in out
        assert words.lower() in out.lower()
    for name, word in (("hf:NAME", "transformers"), ("torchvision:NAME", "detection"), ("FILE.pt2", "TorchScript")):
        assert word in next(line for line in out.splitlines() if name in line)


def test_targets(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    out = cli("targets").out
    for name in ("trace.pt", "script.pt", "compile.pt2", "model.onnx", "exported.pt2", "compile:max-autotune"):
        assert name in out
    assert "pip install" not in out
    monkeypatch.setattr(environment, "version", lambda name: None if name == "onnxscript" else "1.0")
    assert "onnxscript is not installed: pip install onnxscript" in cli("targets").out


def test_doctor(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [doctor.Part("ok", "torch", "2.14.1"), doctor.Part("note", "GPU", "none", "buy one")]
    monkeypatch.setattr(doctor, "examine", lambda: found)
    done = cli("doctor")
    assert done.code == 0
    assert "buy one" in done.out
    found.append(doctor.Part("bad", "torchvision", "operator torchvision::nms does not exist", "reinstall"))
    done = cli("doctor")
    assert done.code == 1
    assert "BAD" in done.out
    assert "reinstall" in done.out


def complete(line: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    from click.shell_completion import BashComplete

    from exporter.cli import cli as group

    words = line.split(" ")
    completion = BashComplete(group, {}, "exporter", "_EXPORTER_COMPLETE")
    return [item.value for item in completion.get_completions(words[1:-1], words[-1])]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("exporter ex", {"export"}),
        ("exporter export be", {"bert"}),
        ("exporter export --targets tr", {"trace"}),
        ("exporter export --targets trace,comp", {"trace,compile", "trace,compile:default"}),
        ("exporter export my_model.p", {"my_model.p"}),
    ],
)
def test_shell_completion(monkeypatch: pytest.MonkeyPatch, line: str, expected: set[str]) -> None:
    assert expected <= set(complete(line, monkeypatch))


def test_a_reader_that_closes_the_pipe(made_bundle: Path) -> None:
    """`exporter report ... | head -1` is not an error."""
    script = f"{sys.executable} -P -c 'from exporter.cli import main; main()' report {made_bundle} | true; echo $?"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_progress_on_a_terminal(lent_zygote: None) -> None:
    from rich.console import Console
    from support.manifests import failed, variant

    from exporter.cli._progress import LiveLines

    lines = LiveLines()
    lines.stage("trace", "export")
    lines.stage("trace", "export")
    lines.stage("onnx", "waiting")
    lines.done(failed("script"))
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(lines.render())
    console.file.close()
    shown = console.export_text()
    assert "trace   export   0 s" in shown
    assert "onnx" in shown
    assert "failed" in shown
    lines.done(variant())
    assert lines.render().row_count == 3


def test_a_hangup_that_nohup_ignores_stays_ignored(cli: Cli) -> None:
    """Otherwise it interrupts the command; `cli` restores the handler."""
    for handler, stays in ((signal.SIG_IGN, True), (signal.SIG_DFL, False)):
        signal.signal(signal.SIGHUP, handler)
        assert cli("--version").code == 0
        assert (signal.getsignal(signal.SIGHUP) == handler) == stays
