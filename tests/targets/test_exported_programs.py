"""Files that plain torch.export.save wrote, without a contract, in exporter-run: as in Python, or refused."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import subprocess
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.commands import NATIVE, Cli, Run
from torch import nn

from exporter.core import environment

pytestmark = [
    pytest.mark.skipif(not NATIVE, reason="exporter-run is not built"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
]
DYNAMIC = torch.export.Dim.DYNAMIC
Tensors = tuple[torch.Tensor, ...]


class Calls(nn.Module):
    """A function as a module, with a layer and buffers to use."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(4, 4)
        self.lstm = nn.LSTM(4, 3, batch_first=True)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64), persistent=False)
        self.shift = torch.arange(12.0).view(4, 3).t()  # a constant with strides

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def autocast(m: Any, x: torch.Tensor) -> Any:
    with torch.no_grad():
        y = m.linear(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return y, m.linear(y)


def sizes(m: Any, x: torch.Tensor) -> Any:
    rows, columns = x.shape
    first, second = x.split([columns // 2, columns - columns // 2], 1)
    return (
        x.reshape(columns, rows), first, second, torch.arange(max(rows, columns) + 3), x[None, torch.tensor([0, 0])],
        nn.functional.interpolate(x[None, None], scale_factor=1.5), x * columns / 3 + -rows % 3, x.chunk(2, 1),
        x.max(1)[0], x.nonzero(), x.new_full((rows, 2), 7.0, dtype=torch.int32),
    )  # fmt: skip


def loop(m: Any, x: torch.Tensor) -> Any:
    start = (torch.zeros((), dtype=torch.int64), x)
    return torch.while_loop(lambda i, y: (i < 3) & (y.sum() < 50), lambda i, y: (i + 1, m.linear(y) * 2), start)


def scan(m: Any, x: torch.Tensor) -> Any:
    from torch._higher_order_ops.scan import scan as scanned

    return scanned(lambda carry, row: (carry + row, carry * row), torch.ones(4), x)


def mapped(m: Any, x: torch.Tensor) -> Any:
    from torch._higher_order_ops.map import map as each

    return each(lambda row: m.linear(row).sin(), x)


def writes(m: Any, x: torch.Tensor) -> Any:
    x.add_(1)
    return x * 2


PROGRAMS: dict[str, Callable[..., Any]] = {
    "a branch on data": lambda m, x: torch.cond(x.sum() > 0, lambda v: m.linear(v), lambda v: v.sin(), (x,)),
    "a while loop": loop,
    "a scan": scan,
    "a map": mapped,
    "autocast and no_grad": autocast,
    "sizes": sizes,
    "an LSTM": lambda m, x: m.lstm(x[:, None].expand(-1, 3, -1)),
    "constants with strides": lambda m, x: (x @ m.shift.t(), m.shift),
    "a list of tensors and a missing index": lambda m, x: (torch.stack([x, x + 1]), x[:, [0, 2]], x[..., None, :1]),
    "numbers beside tensors": lambda m, x: (x.long() / 2, 2 - x.bool().int(), x.half() * 3, torch.where(x > 0, x, 1)),
    "an input that is written to": writes,
    "infinity and NaN": lambda m, x: (
        x.masked_fill(x < 0, float("-inf")), x.clamp(max=math.inf), torch.full_like(x, math.nan).isnan(),
        x * complex(1, 2),
    ),
}  # fmt: skip


@pytest.fixture(params=PROGRAMS, scope="module")
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = Calls(PROGRAMS[request.param]).eval()
    file = tmp_path_factory.mktemp("programs") / "program.pt2"
    rows = {0: DYNAMIC, 1: DYNAMIC} if request.param == "sizes" else {0: DYNAMIC}
    exported = torch.export.export(model, (torch.randn(3, 4),), dynamic_shapes=((rows,),), strict=False)
    torch.export.save(exported, file)
    return file


def run(file: Path, *calls: Tensors, options: tuple[str, ...] = ()) -> tuple[Tensors, ...] | str:
    """Return the outputs of each call, or the message of exporter-run."""
    command = [str(environment.find_runner()), "run", str(file), *options]
    for number, inputs in enumerate(calls):
        saved = file.with_name(f"inputs{number}.safetensors")
        save_file({f"inputs_{i}": tensor.contiguous() for i, tensor in enumerate(inputs)}, saved)
        command += ["--inputs", str(saved)]
    made = file.with_name("outputs.safetensors")
    done = subprocess.run([*command, "--outputs", str(made)], capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip()
    outputs = load_file(made)
    prefixes = [f"{number}." for number in range(len(calls))] if len(calls) > 1 else [""]
    return tuple(
        tuple(outputs[f"{p}output_{i}"] for i in range(len([n for n in outputs if n.startswith(f"{p}output")])))
        for p in prefixes
    )


@pytest.mark.parametrize("rows", [1, 5])
def test_it_computes_what_python_does(program: Path, rows: int) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, 4)
    expected = torch.export.load(program).module(check_guards=False)(x.clone())
    got = run(program, (x,))
    assert not isinstance(got, str), got
    for have, want in zip(got[0], torch.utils._pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(have, want, rtol=0, atol=1e-6 if have.dtype == torch.float32 else 0)


def saved(function: Callable[..., Any], folder: Path, *inputs: torch.Tensor) -> Path:
    rows = tuple({0: DYNAMIC} for _ in inputs)
    torch.manual_seed(0)
    exported = torch.export.export(Calls(function).eval(), inputs, dynamic_shapes=(rows,), strict=False)
    torch.export.save(exported, folder / "program.pt2")
    return folder / "program.pt2"


def test_buffers_keep_what_a_call_writes(tmp_path: Path) -> None:
    def average(m: Any, x: torch.Tensor) -> Any:
        m.mean.mul_(0.9).add_(x.mean(0))
        m.count += 1
        return x + m.mean, m.count.clone()

    file = saved(average, tmp_path, torch.randn(3, 4))
    calls = [(torch.randn(rows, 4),) for rows in (2, 1, 3)]
    module = torch.export.load(file).module(check_guards=False)
    expected = [module(*inputs) for inputs in calls]
    got = run(file, *calls)
    assert not isinstance(got, str), got
    for have, want in zip(got, expected, strict=True):
        torch.testing.assert_close(have[0], want[0])
    assert [int(have[1]) for have in got] == [1, 2, 3]


def test_info_describes_a_file_without_a_contract(tmp_path: Path) -> None:
    file = saved(lambda m, x: m.linear(x), tmp_path, torch.randn(3, 4))
    info = [str(environment.find_runner()), "info", str(file)]
    text = subprocess.run(info, capture_output=True, text=True, check=True).stdout
    assert "inputs_0" in text
    assert "output_0" in text
    described = json.loads(subprocess.run([*info, "--json"], capture_output=True, text=True, check=True).stdout)
    contract = described["contract"]
    assert (described["kind"], described["derived"]) == ("exported program", True)
    symbol = contract["inputs"][0]["shape"][0]
    assert contract["inputs"] == [{"name": "inputs_0", "dtype": "float32", "shape": [symbol, 4]}]
    assert contract["outputs"] == [{"name": "output_0", "dtype": "float32", "shape": [symbol, 4]}]
    assert contract["symbols"][symbol]["min"] == 0


def test_conditions_of_the_export_are_checked(tmp_path: Path) -> None:
    def halves(m: Any, x: torch.Tensor) -> Any:
        torch._check(x.shape[0] % 2 == 0)
        return x.view(-1, 2, 4).sum(1)

    file = saved(halves, tmp_path, torch.randn(4, 4))
    assert not isinstance(run(file, (torch.randn(6, 4),)), str)
    said = str(run(file, (torch.randn(5, 4),)))
    assert "the size of dimension 0 of inputs_0 must satisfy `(inputs_0.size(0) % 2) == 0`; it is 5" in said


def test_a_condition_on_several_sizes_is_stated_with_each(tmp_path: Path) -> None:
    def longer(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        torch._check(x.shape[0] > 2 * y.shape[0])
        return x.sum(0) + y.sum(0)

    file = saved(longer, tmp_path, torch.randn(9, 4), torch.randn(3, 4))
    assert not isinstance(run(file, (torch.randn(7, 4), torch.randn(3, 4))), str)
    said = str(run(file, (torch.randn(5, 4), torch.randn(3, 4))))
    assert "inputs must satisfy `" in said
    for number, size in ((0, 5), (1, 3)):
        assert f"the size of dimension 0 of inputs_{number} is {size}" in said
    assert "is 4, the contract allows 5 or more" in str(run(file, (torch.randn(4, 4), torch.randn(1, 4))))


def exported(function: Callable[..., Any], folder: Path, inputs: Tensors, dims: tuple[Any, ...], **how: Any) -> Path:
    program = torch.export.export(Calls(function).eval(), inputs, dynamic_shapes=(dims,), **how)
    torch.export.save(program, folder / "program.pt2")
    return folder / "program.pt2"


def accepts(file: Path, *shapes: tuple[int, ...]) -> bool:
    return not isinstance(run(file, tuple(torch.ones(shape) for shape in shapes)), str)


def test_ranges_of_sizes_computed_from_others_are_enforced(tmp_path: Path) -> None:
    """The branch that the export left out is never needed: Python refuses what would need it."""

    def branches(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        made = x[:, :-1] + y
        return made * 100 if x.shape[1] == 2 else made

    length = torch.export.Dim("length", min=3, max=30)
    inputs = (torch.randn(4, 6), torch.randn(4, 5))
    file = exported(branches, tmp_path, inputs, ({1: length}, {1: length - 1}))
    kept = [accepts(file, (4, size), (4, size - 1)) for size in (2, 3, 30, 31)]
    assert kept == [False, True, True, False]
    half = torch.export.Dim("half", min=3, max=9)
    file = exported(lambda m, x: x + 1, tmp_path, (torch.randn(4, 12),), ({1: 4 * half},))
    assert [accepts(file, (4, size)) for size in (8, 12, 14, 36, 40)] == [False, True, False, True, False]


def test_only_a_minimum_that_was_asked_for_is_enforced(tmp_path: Path) -> None:
    """torch.export records 2 where it assumed nothing; 1 is never recorded unless it was asked for."""
    rows = torch.export.Dim("rows", min=1, max=5)
    file = exported(lambda m, x: x + 1, tmp_path, (torch.randn(3, 4),), ({0: rows, 1: DYNAMIC},))
    shapes = [(0, 4), (1, 4), (5, 4), (6, 4), (3, 0), (3, 1)]
    assert [accepts(file, shape) for shape in shapes] == [False, True, True, False, True, True]


def test_numbers_that_are_returned_keep_their_kind(tmp_path: Path) -> None:
    def numbers(m: Any, x: torch.Tensor) -> Any:
        return x.shape[0], x.sum().item(), x.long().sum().item(), True, 3, 2.5

    file = saved(numbers, tmp_path, torch.ones(3, 4))
    got = run(file, (torch.ones(5, 4),))
    assert not isinstance(got, str), got
    dtypes = [torch.int64, torch.float64, torch.int64, torch.bool, torch.int64, torch.float64]
    assert [(tensor.dtype, tensor.item()) for tensor in got[0]] == list(
        zip(dtypes, [5, 20, 20, 1, 3, 2.5], strict=True)
    )
    info = [str(environment.find_runner()), "info", str(file)]
    text = subprocess.run(info, capture_output=True, text=True, check=True).stdout
    described = [line.split()[1] for line in text.splitlines() if line.strip().startswith("output_")]
    assert described == [str(dtype).removeprefix("torch.") for dtype in dtypes]


class Keywords(nn.Module):
    def forward(self, *a: Any, **k: torch.Tensor) -> torch.Tensor:
        return a[0] + a[1] * k["z"]


@pytest.mark.parametrize("strict", [False, True])
def test_conditions_name_inputs_in_each_way_of_torch(strict: bool, tmp_path: Path, cli: Cli) -> None:
    """Strict mode counts the inputs, those that are no tensors too; `**k` has its own name in conditions alone."""
    rows = {0: DYNAMIC}
    x = torch.randn(3, 4)
    dims = {"a": (rows, None), "k": {"z": rows}}
    program = torch.export.export(Keywords(), (x, 2), {"z": x + 1}, dynamic_shapes=dims, strict=strict)
    assert ("flat_args" if strict else "['k']['z']") in "".join(program._guards_code)
    file = tmp_path / "program.pt2"
    torch.export.save(program, file)
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.arg.name != "a_1"]
    for wrong in (False, True):
        given = dict(zip(names, (torch.ones(5, 4), torch.ones(1 if wrong else 5, 4)), strict=True))
        save_file(given, tmp_path / "inputs.safetensors")
        command = [str(environment.find_runner()), "run", str(file), "--inputs", str(tmp_path / "inputs.safetensors")]
        command += ["--outputs", str(tmp_path / "outputs.safetensors")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) == wrong, done.stderr
    done = cli("export", file, "--targets", "export", "--no-bench", "--out", tmp_path / "bundle")
    assert done.code == 0, done.err


def wrote(file: Path, out: Path) -> str:
    """Run the program with its outputs in `out`, and return what exporter-run says."""
    save_file({"inputs_0": torch.ones(3, 4)}, file.with_name("inputs.safetensors"))
    command = [str(environment.find_runner()), "run", str(file), "--inputs", str(file.with_name("inputs.safetensors"))]
    return subprocess.run([*command, "--outputs", str(out)], capture_output=True, text=True, check=False).stderr


def test_outputs_replace_files_and_nothing_else(tmp_path: Path) -> None:
    file = saved(lambda m, x: x + 1, tmp_path, torch.randn(3, 4))
    folder = tmp_path / "folder"
    folder.mkdir()
    for link, target in (("link", "file"), ("dangling", "new"), ("chain", "link")):
        (folder / link).symlink_to(target)
    (folder / "file").write_text("old")
    for name in ("link", "dangling", "chain"):
        assert wrote(file, folder / name) == ""
        assert (folder / name).is_symlink()
        assert "output_0" in load_file(folder / name)
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_bytes)
        assert wrote(file, pipe) == ""
        assert read.result(60) == (folder / "file").read_bytes()
    assert pipe.is_fifo()
    assert f"{folder} cannot be written: it is a folder" in wrote(file, folder)
    assert f"cannot be written: there is no folder {tmp_path / 'nowhere'}" in wrote(file, tmp_path / "nowhere" / "out")
    assert {entry.name for entry in folder.iterdir()} == {"link", "dangling", "chain", "file", "new", "pipe"}


def test_a_sparse_output_is_refused_by_name(tmp_path: Path) -> None:
    file = exported(lambda m, x: (x, x.to_sparse()), tmp_path, (torch.randn(3, 4),), (None,))
    assert "output_1 is sparse (Sparse), which a safetensors file cannot hold" in wrote(file, tmp_path / "out")


def altered(file: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Return a copy whose graph is changed, with checksums that are right."""
    made = file.with_name("altered.pt2")
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename.endswith("models/model.json"):
                graph = json.loads(data)
                change(graph)
                data = json.dumps(graph).encode()
            new.writestr(info.filename, data)
    return made


def from_a_gpu(file: Path, *changes: tuple[str, str]) -> Path:
    """Write the program as a GPU saves it, with weights, constants and a device in the graph, and otherwise changed."""
    made = file.with_name("gpu.pt2")
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename.endswith(".json"):
                data = data.replace(b'"type": "cpu", "index": null', b'"type": "cuda", "index": 0')
                assert b'"cuda"' in data
                for old_text, new_text in changes:
                    data = data.replace(old_text.encode(), new_text.encode())
            new.writestr(info.filename, data)
    return made


def test_a_program_of_another_device_runs_here(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    function = PROGRAMS["constants with strides"]
    file = saved(lambda m, x: (*function(m, x), m.linear(x) + torch.arange(4, device=x.device)), tmp_path, x)
    expected = torch.export.load(file).module(check_guards=False)(x)
    got = run(from_a_gpu(file), (x,), options=("--device", "cpu"))
    assert not isinstance(got, str), got
    for have, want in zip(got[0], expected, strict=True):
        torch.testing.assert_close(have, want)


def test_another_device_may_have_other_strides(tmp_path: Path) -> None:
    """The attention of a GPU returns other strides, and then a view of the saved graph is not possible."""
    x = torch.randn(3, 4)

    def flattened(m: Any, x: torch.Tensor) -> Any:
        return m.linear(x).t().reshape(-1)

    def written(m: Any, x: torch.Tensor) -> Any:
        y = m.linear(x)
        y.add_(1)
        return y.t().reshape(-1)

    swap = (("aten.reshape.default", "aten.view.default"), ('"name": "shape"', '"name": "size"'))
    file = saved(flattened, tmp_path, x)
    expected = torch.export.load(file).module(check_guards=False)(x)
    got = run(from_a_gpu(file, *swap), (x,), options=("--device", "cpu"))
    assert not isinstance(got, str), got
    torch.testing.assert_close(got[0][0], expected)
    refused = run(from_a_gpu(saved(written, tmp_path, x), *swap), (x,), options=("--device", "cpu"))
    assert isinstance(refused, str)
    assert "view size is not compatible" in refused, "a copy would hide what is written to the view"


def test_a_file_of_several_programs_is_refused(tmp_path: Path) -> None:
    from torch.export.pt2_archive._package import package_pt2

    program = torch.export.load(saved(lambda m, x: m.linear(x), tmp_path, torch.randn(3, 4)))
    package_pt2(tmp_path / "both.pt2", exported_programs={"first": program, "second": program})
    refused = run(tmp_path / "both.pt2", (torch.randn(3, 4),))
    assert isinstance(refused, str)
    assert "it holds several programs (first, second): save each in a file of its own" in refused


def targets(graph: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = graph["graph_module"]["graph"]["nodes"]
    return found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g["schema_version"].update(major=9), "schema 9, only 8 is known"),
        (
            lambda g: [n.update(target=f"torch.ops.nowhere.missing{i}.default") for i, n in enumerate(targets(g))],
            "nowhere.missing0.default at test_exported_programs.py:",
        ),
        (lambda g: targets(g)[0].update(target="torch.ops.aten.from_file.default"), "it does more than compute"),
        (lambda g: targets(g)[0].update(target="torch.ops.c10d.broadcast_.default"), "it does more than compute"),
        (lambda g: targets(g)[0].update(target="os.system"), "os.system at test_exported_programs.py"),
        (lambda g: targets(g)[0]["inputs"][0].update(name="bogus"), "it has no parameter bogus"),
        (
            lambda g: targets(g)[0]["inputs"][0].update(arg={"as_tensor": {"name": "bogus"}}),
            "its graph has no value bogus",
        ),
        (lambda g: targets(g)[0]["inputs"].clear(), "it is called without"),
    ],
)
def test_what_cannot_run_is_refused_when_it_is_opened(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    x = torch.randn(3, 4)
    file = altered(saved(lambda m, x: m.linear(x).relu(), tmp_path, x), change)
    said = run(file, (x,))
    assert isinstance(said, str)
    assert message in said
    assert "\n" not in said


def without_part(*path: str) -> Callable[[dict[str, Any]], None]:
    def change(graph: dict[str, Any]) -> None:
        for key in path[:-1]:
            graph = graph[key]
        del graph[path[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_part("graph_module", "signature"), "its signature is damaged, copy or export it again: key"),
        (without_part("graph_module", "graph"), "its graph is damaged, copy or export it again: key"),
        (without_part("schema_version"), "its schema version is damaged"),
        (without_part("range_constraints"), "range_constraints of its sizes is damaged"),
        (lambda g: targets(g)[1].update(outputs=3), "node 1 of its graph is damaged"),
        (lambda g: g["guards_code"].append(3), "guards_code of its sizes is damaged"),
    ],
)
def test_a_damaged_part_is_named(change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    said = str(run(altered(saved(lambda m, x: m.linear(x).relu(), tmp_path, x), change), (x,)))
    assert message in said
    assert "json.exception" not in said


def test_a_file_that_is_cut_off_may_be_an_incomplete_copy(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    file = saved(lambda m, x: m.linear(x), tmp_path, x)
    file.write_bytes(file.read_bytes()[:-2000])
    assert "its copy is incomplete (copy or export it again)" in str(run(file, (x,)))
    (tmp_path / "SHA256SUMS").write_text(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n")
    assert "run `exporter check` on its bundle" in str(run(file, (x,)))


def test_a_program_without_a_golden_is_not_verified(tmp_path: Path) -> None:
    file = saved(lambda m, x: m.linear(x), tmp_path, torch.randn(3, 4))
    for options, message in (
        ((), "has no golden, because exporter did not export it: give --golden FILE, or export it"),
        (("--sha256", hashlib.sha256(file.read_bytes()).hexdigest()), "has no golden, because exporter"),
        (("--sha256", "0" * 64), "was altered: its SHA-256 is"),
    ):
        command = [str(environment.find_runner()), "verify", str(file), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, message in done.stderr) == (1, True), done.stderr


def test_an_operator_of_another_torch_is_named_with_this_one(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    file = saved(lambda m, x: m.linear(x), tmp_path, x)
    said = str(run(altered(file, lambda g: targets(g)[0].update(target="torch.ops.aten.newer.default")), (x,)))
    assert f"LibTorch {torch.__version__.partition('+')[0]} does not have this operator" in said
    assert "use the version of torch that exported the program" in said
    assert "--ops-lib" not in said


def test_every_missing_operator_is_named(tmp_path: Path) -> None:
    def change(graph: dict[str, Any]) -> None:
        for number, node in enumerate(targets(graph)):
            node["target"] = f"torch.ops.nowhere.missing{number}.default"

    x = torch.randn(3, 4)
    said = str(run(altered(saved(lambda m, x: m.linear(x).relu(), tmp_path, x), change), (x,)))
    assert "nowhere.missing0" in said
    assert "nowhere.missing1" in said
    assert "--ops-lib" in said


def test_a_failure_names_the_operator_and_the_line(tmp_path: Path) -> None:
    indices = torch.zeros(3, dtype=torch.int64)
    file = saved(lambda m, x, i: x[i], tmp_path, torch.randn(3, 4), indices)
    said = str(run(file, (torch.randn(3, 4), indices + 99)))
    assert "index 99 is out of bounds" in said
    assert "(aten.index.Tensor at test_exported_programs.py:" in said


def profiled(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(environment.find_runner()), "profile", str(file), "--runs", "5", "--threads", "1", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def branching(m: Any, x: torch.Tensor) -> Any:
    y = m.linear(x)
    return torch.cond(y.sum() == 0.5, lambda y: (y + 1).sum(0), lambda y: y.repeat(100, 1).sum(0), (y,))


def test_a_profile_has_the_time_and_memory_of_each_node(tmp_path: Path) -> None:
    file = saved(branching, tmp_path, torch.randn(3, 4))
    save_file({"inputs_0": torch.ones(50, 4)}, tmp_path / "inputs.safetensors")
    trace = tmp_path / "trace.json"
    done = profiled(file, "--inputs", str(tmp_path / "inputs.safetensors"), "--trace", str(trace), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    nodes = found["nodes"]
    assert [(n["op"], n["outputs"], n["depth"]) for n in nodes if n["op"].startswith("aten.")][-3:] == [
        ("aten.eq.Scalar", ["bool[]"], 0),
        ("aten.repeat.default", ["float32[5000, 4]"], 1),
        ("aten.sum.dim_IntList", ["float32[4]"], 1),
    ]
    by_op = {node["op"]: node for node in nodes}
    linear, repeat, cond = by_op["aten.linear.default"], by_op["aten.repeat.default"], by_op["higher_order.cond"]
    assert linear["module"].endswith("linear")
    assert linear["place"].startswith("test_exported_programs.py:")
    assert (linear["allocated_bytes"], linear["live_bytes"]) == (50 * 4 * 4, 50 * 4 * 4)
    assert 5000 * 4 * 4 <= repeat["allocated_bytes"] < 5000 * 4 * 4 + 1000
    assert cond["allocated_bytes"] >= 5000 * 4 * 4
    assert cond["duration_us"] > cond["own_us"] >= 0
    assert sum(node["own_us"] for node in nodes) == pytest.approx(found["profiled_ms"] * 1000)
    assert all(a["start_us"] <= b["start_us"] for a, b in itertools.pairwise(nodes))
    events = json.loads(trace.read_text())["traceEvents"]
    assert [e["name"] for e in events if e["ph"] == "X"] == [node["op"] for node in nodes]


def test_a_profile_of_a_program_with_state_warns_of_nothing(tmp_path: Path) -> None:
    def average(m: Any, x: torch.Tensor) -> Any:
        m.mean.mul_(0.9).add_(x.mean(0))
        return x.add(1) * m.mean

    done = profiled(saved(average, tmp_path, torch.randn(3, 4)))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_profile_names_the_modules_of_the_model(run: Run) -> None:
    """Not those that exporter puts around the model, whose nodes copy the state."""
    _, place = run("stateful:conv_streaming", "export", bench=False, state="carry")
    nodes = json.loads(profiled(place / "exported.pt2", "--json").stdout)["nodes"]
    found = {(node["op"].split(".")[1], node["module"], node["place"].partition(":")[0]) for node in nodes}
    assert ("conv1d", "conv", "stateful.py") in found
    assert ("copy_", "", "exporter") in found
    assert {place for _, _, place in found} == {"stateful.py", "exporter"}


def test_a_profile_prints_the_slowest_nodes_or_all(tmp_path: Path) -> None:
    file = saved(branching, tmp_path, torch.randn(3, 4))
    lines = profiled(file, "--top", "2").stdout.splitlines()
    assert "exported program on cpu, 1 thread, zeros" in lines[0]
    assert len(lines) == 8  # three about the call, an empty one, the heading, two nodes, the others
    assert lines[-1].endswith("other nodes; --top 0 shows all")
    every = profiled(file, "--top", "0").stdout
    assert every.index("aten.linear.default") < every.index("higher_order.cond") < every.index("  aten.repeat.default")


def test_a_profile_without_inputs_has_the_sizes_of_the_export(tmp_path: Path) -> None:
    def thirds(m: Any, x: torch.Tensor) -> Any:
        torch._check(x.shape[0] % 3 == 0)
        torch._check(x.shape[0] > 8)
        return x.view(3, -1).sum(1)

    done = profiled(saved(thirds, tmp_path, torch.randn(12, 4)), "--json")
    assert done.returncode == 0, done.stderr
    view = next(node for node in json.loads(done.stdout)["nodes"] if ".view." in node["op"])
    assert view["outputs"] == ["float32[3, 16]"]
    file = saved(lambda m, x: m.linear.weight[x.long()].sum() / x.shape[0], tmp_path, torch.ones(3, 4))

    def small(graph: dict[str, Any]) -> None:
        graph["guards_code"] = ["L['inputs'][0].size()[0] > 7"]

    done = profiled(altered(file, small))
    assert done.returncode == 1
    assert "it is 3 (the inputs are zeros; give others with --inputs FILE)" in done.stderr


def test_a_profile_needs_an_exported_program(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.trace(nn.Linear(4, 2), torch.ones(1, 4)), tmp_path / "plain.pt")
    done = profiled(tmp_path / "plain.pt")
    assert done.returncode in (1, 2)
    assert "carries no contract" in done.stderr
    file = saved(branching, tmp_path, torch.randn(3, 4))
    done = profiled(file, "--trace", str(tmp_path / "nowhere" / "trace.json"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "trace.json cannot be written" in done.stderr
