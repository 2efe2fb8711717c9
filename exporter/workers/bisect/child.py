"""The child's side: examine one variant.

The variant is built again from growing parts of the exported program. The node after the last correct part introduces
the error.

This file is long because an examination is one sequence of questions, each asked only if those before leave it open.
"""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import fx

from exporter import targets
from exporter.bundle import differences
from exporter.core import source_lines
from exporter.core.contract_records import FP32
from exporter.core.errors import ArtifactError, ContractError, ExportError
from exporter.core.parity_records import SizeLimit
from exporter.core.precisions import MIXED
from exporter.evidence import golden as goldens
from exporter.evidence import metrics, samples
from exporter.model import capture, recipes
from exporter.model.layer_names import own_path
from exporter.model.precision import DTYPES
from exporter.model.tensors import Run, Tensors
from exporter.workers import tasks
from exporter.workers.bisect import (
    Asked,
    Bisection,
    Node,
    Verdict,
    arithmetic,
    fixing,
    native,
    ranking,
    repro,
    search,
    variants,
    verdicts,
)
from exporter.workers.bisect.graphs import Graph
from exporter.workers.forkserver import tell
from exporter.workers.messages import Job
from exporter.workers.session import server

GRADUAL = 4.0  # an operator that multiplies the error by less does not stand out
LARGEST = 1000.0  # limit of the limit between right and wrong
RANKED = 5  # nodes in a ranking
LEAST = 3.0  # an error below this multiple of eager's own is rounding
SUSPECT = 30.0  # one above it is examined even if it is within the tolerance


def examine(channel: socket.socket, job: Job, asked: Asked) -> None:
    """Send the name of each step, an empty one at the end, and the result."""
    server.configure(job.options)
    found = inquire(job, asked, lambda step: tell(channel, "step", step))
    tell(channel, "step", "")
    tell(channel, "result", found)


def inquire(job: Job, asked: Asked, begun: Callable[[str], None]) -> Bisection:
    """Examine one variant in this process. `begun` is called with the name of each step."""
    begun("load model")
    program, limits = tasks.program(job, asked.target)
    golden = goldens.alone(goldens.read(asked.golden).of(job.options.judged_as or job.options.precision))
    return _Inquiry(begun, job, asked, program, limits, golden).result()


@dataclass
class _Inquiry:
    """One examination."""

    say: Callable[[str], None]
    job: Job
    asked: Asked
    program: capture.Program
    limits: tuple[SizeLimit, ...]
    golden: goldens.Golden

    def __post_init__(self) -> None:
        options = self.job.options
        self.builder = variants.Builder(self.program, self.asked.target, options, self.job.work / "bisect")
        self.builder.timeout = options.timeout
        self.judge = server.Judge(self.golden, variants.names(self.program.contract))
        self.case = self.golden.cases[0]
        self.ratio: float | None = None
        self.reason = self.failure = ""
        self.limit = LEAST
        self.unbuilt = False
        self.errors: dict[int, float | None] = {}  # by cut

    def result(self) -> Bisection:
        """Examine the variant, and look for a setting that mends what a compiler does wrong."""
        found = self._examined()
        if found.passes and self.asked.runner:
            self.builder.runner = self.asked.runner
            found = self._examined()
        precision = self.job.options.precision
        if self.asked.fix and found.verdict in ("compiler", "converter") and precision in MIXED:
            plain = self._in_float32().module
            blamed = [node.module for node in found.nodes if node.module]
            found = self._with_layers(found, plain, tuple(dict.fromkeys((*blamed, *_leaves(plain)))))
        if self.asked.fix and not found.fix and found.verdict in ("compiler", "converter", "reduced precision"):
            found = self._with_setting(found)
        return replace(found, builds=self.builder.count)

    def _with_layers(self, found: Bisection, plain: torch.nn.Module, paths: tuple[str, ...]) -> Bisection:
        """Add a small set of these layers, worst first, with which the variant passes."""
        trials = self._trials(plain)
        fix = fixing.layers(trials, paths)
        notes = () if fix else ("no set of layers was found with which the variant passes", *trials.notes())
        return replace(found, fix=fix, notes=found.notes + notes)

    def _with_setting(self, found: Bisection) -> Bisection:
        """Add a setting of the variant's compiler with which it passes."""
        blamed = tuple(dict.fromkeys(node.operator for node in found.nodes if node.operator))
        choices = {} if found.passes else verdicts.settings(self.asked.target, self.job.options, blamed)
        if not choices:
            return found
        trials = self._trials(self.builder.program.module)
        fix = fixing.setting(trials, choices)
        notes = () if fix else (f"it does not pass with {', '.join(choices)}", *trials.notes())
        return replace(found, fix=fix, notes=found.notes + notes)

    def _examined(self) -> Bisection:
        """Examine the variant: as it is, built again, and in parts."""
        self.say("check in C++" if self.builder.runner else "check")
        self.errors.clear()
        run = self._artifact()
        failed = self._worst(run)
        precision = self.job.options.precision
        if not failed and precision != "fp32" and (problem := self._below_the_metric(run)):
            self.reason = problem
            return self._reduced(f"{precision} is too coarse for this model: {problem}")
        if not failed and (
            precision != "fp32" or self.builder.runner or (self.ratio is not None and self.ratio <= SUSPECT)
        ):
            return self._no_failure()
        if self.asked.artifact is not None:
            self.say("build again")
            reason, error = self._of_whole(self._again())
            if not self._is_bad(error) and not (reason and self.reason):
                return self._altered()
        return self._located()

    def _artifact(self) -> Run:
        path = self.asked.artifact
        if path is None:
            return self._again()
        try:
            return self.builder.load(path)
        except Exception as error:  # whatever a runtime raises
            return _failing(error)

    def _again(self) -> Run:
        """Build the whole variant. If that fails, parts that cannot be built are wrong for the same reason."""
        try:
            return self.builder.again()
        except Exception as error:  # whatever an export raises
            self.unbuilt = True
            return _failing(error)

    def _worst(self, run: Run) -> bool:
        """Choose the worst case; return whether it fails."""
        ranks = []
        for case in self._cases():
            got = variants.call(run, case.inputs, self.job.options.device)
            ranks.append((*self._judged(got, case), case))
        reason, ratio, self.case = max(ranks, key=lambda one: (bool(one[0]), one[1]))
        self.ratio = ratio if math.isfinite(ratio) else None
        self.reason = reason
        self.limit = max(LEAST, min(math.sqrt(ratio), LARGEST))
        return bool(reason)

    def _cases(self) -> Iterator[goldens.Case]:
        """Yield the golden's cases; in C++, which enforces the contract, those that it allows."""
        promised = None
        if self.builder.runner and self.asked.artifact:
            promised = targets.get(self.asked.target).read_contract(self.asked.artifact)
        for case in self.golden.cases:
            with contextlib.suppress(ContractError):
                replace(self.judge, promised=promised).enforce(case)
                yield case

    def _judged(self, got: Tensors | str, case: goldens.Case, judge: server.Judge | None = None) -> tuple[str, float]:
        """Return why outputs fail, or an empty string, and their largest error as a multiple of eager's own."""
        if isinstance(got, str):
            return got, math.inf
        try:
            rows = (judge or self.judge).compare(got, case)
        except ArtifactError as error:
            return str(error), math.inf
        own = self.builder.in_python(case.inputs, case.eager)
        errors = [arithmetic.error(*one) for one in zip(got, own, case.reference, strict=True)]
        return next((row.reason or row.verdict for row in rows if row.verdict == "FAIL"), ""), max(errors, default=0.0)

    def _of_whole(self, run: Run) -> tuple[str, float]:
        """Return why a build of the whole variant fails, or an empty string, and its error."""
        return self._judged(variants.call(run, self.case.inputs, self.job.options.device), self.case)

    def _found(self, verdict: Verdict, sentence: str, nodes: tuple[Node, ...] = ()) -> Bisection:
        return Bisection(
            self.job.model,
            self.asked.variant,
            f"{self.case.name} seed {self.case.record.seed}",
            verdict,
            sentence,
            ratio=self.ratio,
            nodes=nodes,
            builds=self.builder.count,
        )

    # A variant that passes.

    def _no_failure(self) -> Bisection:
        precision = self.job.options.precision
        if precision == "fp32":
            said = f"the variant passes; its error is {beside(self.ratio)} eager's own rounding"
            found = self._found("rounding", said)
        else:
            found = self._reduced(f"the variant passes in {precision}")
        return replace(found, passes=True)

    def _reduced(self, sentence: str) -> Bisection:
        """Rank the layers by what the variant's precision costs them, and find those that have to stay in float."""
        self.say("rank layers")
        program, precision = self._in_float32(), self.job.options.precision
        found = self._found("reduced precision", sentence)
        try:
            found, paths = self._ranked(found, Graph(program.exported), precision)
        except ExportError as error:
            found = replace(found, notes=(f"layers were not ranked, because there is no exported program: {error}",))
            paths = _leaves(program.module)
        if self.asked.fix and self.reason and precision in MIXED:
            found = self._with_layers(found, program.module, paths)
        return found

    def _in_float32(self) -> capture.Program:
        """Return what the variant would be exported from in float32."""
        plain = replace(self.job, options=self.job.options.computing_in(FP32))
        return tasks.program(plain, self.asked.target)[0]

    def _ranked(self, found: Bisection, graph: Graph, precision: str) -> tuple[Bisection, tuple[str, ...]]:
        """Return the result with the layers that the precision costs most, and the paths of all layers, worst first."""
        ranked = ranking.rank(graph, self._placed(), precision)
        known = [layer for layer in ranked if layer.error is not None]
        nodes = tuple(graph.describe(layer.node, introduced=_finite(layer.error)) for layer in known[:RANKED])
        notes = (f"{len(known)} of {len(ranked)} layers were ranked",) if len(known) < len(ranked) else ()
        lost = ranking.overflow(graph, self._placed(), precision) if precision in DTYPES else None
        first = graph.describe(lost) if lost is not None else None
        found = replace(found, nodes=nodes, notes=notes, not_finite=first, size=self._size())
        return found, tuple(dict.fromkeys(layer.path for layer in ranked if layer.path))

    def _trials(self, plain: torch.nn.Module) -> fixing.Trials:
        return fixing.Trials(self.builder, goldens.read(self.asked.golden), self._passes, plain, self.say)

    def _below_the_metric(self, run: Run) -> str:
        """Describe the bound of the recipe's metric that a build violates; "" if there is none."""
        if self.asked.metric is None:
            return ""
        cases = goldens.samples(self.golden)
        outputs = [variants.call(run, case.inputs, self.job.options.device) for case in cases]
        if failed := next((one for one in outputs if isinstance(one, str)), ""):
            return failed
        recipe = recipes.load(self.job.source)
        names = variants.names(self.program.contract)
        value = samples.evaluate(recipe, [one for one in outputs if not isinstance(one, str)], names)
        return metrics.broken(value, self.asked.metric)

    def _passes(self, run: Run, golden: goldens.Golden) -> bool:
        """Return whether a build of the variant passes every case, and meets the bounds of the metric."""
        judge = replace(self.judge, golden=golden)
        for case in golden.cases:
            got = variants.call(run, case.inputs, self.job.options.device)
            reason, ratio = self._judged(got, case, judge)
            if reason or (self.job.options.precision == "fp32" and ratio > SUSPECT):
                return False
        return not self._below_the_metric(run)

    def _size(self) -> int:
        return sum(node.op == "call_function" for node in self.graph.nodes)

    @cached_property
    def graph(self) -> Graph:
        """The program's graph. Raises ExportError if torch.export rejected the model."""
        return Graph(self.program.exported)

    def _placed(self) -> Tensors:
        return tuple(t.to(self.job.options.device, copy=True) for t in self.case.inputs)

    # A variant that fails.

    def _altered(self) -> Bisection:
        """Report how the artifact differs from one that is built now, which passes."""
        assert self.asked.artifact is not None
        assert self.builder.built is not None
        difference = differences.compare(self.asked.artifact, self.builder.built)
        if difference.status in ("identical", "known places"):
            return self._found("not located", "the same export passes now, and gives the same file")
        sentence = f"the same export passes now, and gives another file: {difference.detail}"
        return replace(self._found("altered artifact", sentence), remedy="export again")

    def _located(self) -> Bisection:
        precision = self.job.options.precision
        in_python = self.builder.runner is None
        coarse = precision == "int8" or (self.ratio is not None and self.ratio <= LEAST)
        if precision != "fp32" and coarse and in_python:
            if self.ratio is None:
                return self._found("not located", f"{precision} alone does not explain it: {self.reason}")
            return self._reduced(f"{precision} is too coarse for this model: {self.reason}")
        try:
            graph = self.graph
        except ExportError as error:
            if lines := self._baked():
                sentence = "the trace has a fixed value for these lines; torch.export rejects the model too"
                return self._found("constant baked in", sentence, lines)
            found = self._found("not located", f"there is no exported program to cut: {error}")
            return replace(found, remedy=error.remedy)
        if not self._program_holds():
            sentence = "the exported program is wrong at these sizes too: a size or a value of the Python code is fixed"
            found = self._found("constant baked in", sentence, self._baked())
            return replace(found, size=self._size(), remedy="`exporter explain` names the lines that fix a size")
        worst = self._error_at(len(graph.cuts) - 1)
        if worst is None:
            return replace(self._found("not located", f"a part cannot be built: {self.failure}"), size=self._size())
        if worst <= LEAST:
            return self._only_in_python()
        self.limit = max(LEAST, min(math.sqrt(worst), LARGEST))
        return self._blamed(*search.first_bad(len(graph.cuts), lambda at: self._is_bad(self._error_at(at))))

    def _is_bad(self, error: float | None) -> bool | None:
        return None if error is None else error > self.limit

    def _only_in_python(self) -> Bisection:
        """Report a failure that the exported program does not have: it comes from the model's Python code."""
        if not targets.get(self.asked.target).needs_program and not self.builder.runner:
            sentence = "the same target is right from the exported program, so it baked in a value of the Python code"
            found = self._found("constant baked in", sentence, self._baked())
            return replace(found, size=self._size(), remedy="choose a target that starts from torch.export")
        sentence = "the failure vanishes if the program is exported once more before it is built"
        return replace(self._found("not located", sentence), size=self._size())

    def _program_holds(self) -> bool:
        """Return whether the exported program, run by eager, computes what the model does."""
        got = variants.call(self._eager_program, self.case.inputs, self.job.options.device)
        return not self._is_bad(self._judged(got, self.case)[1])

    def _eager_program(self, inputs: Tensors) -> Tensors:
        return arithmetic.eager(self.graph.until(self.graph.cuts[-1]), inputs)

    def _baked(self) -> tuple[Node, ...]:
        """Return the lines of which an exporter has said that it fixes a size or a value."""
        warned = self.builder.exported.warnings if self.builder.exported else ()
        lines = [Node("", one.message, place=one.place) for one in warned if not one.unrecorded]
        lines += [Node("", str(replace(one, place="")), place=one.place) for one in self.limits if one.place]
        return tuple(lines[:RANKED])

    def _error_at(self, cut: int) -> float | None:
        """Build the variant up to a cut and return the largest error there, as a multiple of eager's own."""
        self.say(f"build {cut + 1} of {len(self.graph.cuts)} parts")
        error = self._error(self.graph.until(self.graph.cuts[cut]), None, self.case.inputs)
        self.errors[cut] = error
        return error

    def _part_error(self, start: int, end: int) -> float | None:
        """Return the error that the nodes behind one cut, up to another, introduce by themselves."""
        self.say("build some nodes alone")
        module, taken = self.graph.between(start, end)
        inputs = self._inputs_of(taken)
        return self._error(module, inputs, inputs)

    def _error(self, module: fx.GraphModule, fixed: Tensors | None, inputs: Tensors) -> float | None:
        """Return the largest error of a part, or None if it alone cannot be built."""
        try:
            run = self.builder.part(module, fixed)
        except Exception as error:  # whatever an export raises
            self.failure = source_lines.summary(error)
            return math.inf if self.unbuilt else None
        got = variants.call(run, inputs, self.job.options.device)
        if isinstance(got, str):
            return math.inf
        own, exact = self._values(module, tuple(t.to(self.job.options.device, copy=True) for t in inputs))
        own = self.builder.in_python(inputs, own)
        return max(map(arithmetic.error, got, own, exact), default=0.0)

    def _values(self, module: fx.GraphModule, inputs: Tensors) -> tuple[Tensors, Tensors]:
        own = arithmetic.eager(module, inputs)
        try:
            return own, arithmetic.reference(module, inputs)
        except Exception:  # an operator without float64
            return own, own

    def _blamed(self, good: int, bad: int) -> Bisection:
        """Test the nodes between the last good cut and the first bad one, alone and with more of their inputs."""
        graph = self.graph
        begins = [-1, *graph.cuts]  # by cut + 1
        start, end = begins[good + 1], graph.cuts[bad]
        alone = self._part_error(start, end)
        together = False
        if alone is not None and alone <= LEAST:
            before, after = self.errors.get(good) or 0.0, self.errors[bad] or 0.0
            if before > after / GRADUAL:
                sentence = f"the error grows gradually ({before:.2g} to {after:.2g} here): no operator stands out"
                return replace(self._found("not located", sentence), size=self._size())
            at = search.last_start(bad, lambda one: self._is_bad(self._part_error(begins[one + 1], end)))
            together = bool(self._is_bad(self._part_error(begins[at + 1], end)))
            start = begins[at + 1] if together else start
        suspects = [n for n in graph.nodes[start + 1 : end + 1] if n.op == "call_function"]
        suspects = [n for n in suspects if isinstance(n.meta.get("val"), torch.Tensor)] or suspects
        errors = _finite(alone), _finite(self.errors[bad])
        nodes = tuple(graph.describe(node, *(errors if node is suspects[-1] else ())) for node in suspects)
        if alone is None:
            found = self._found(
                "not located", f"these nodes cannot be built alone: {self.failure}", nodes[::-1][:RANKED]
            )
            return replace(found, size=self._size())
        module, taken = graph.between(start, end)
        part = verdicts.Part(self.asked.target, self.builder, module, self._inputs_of(taken))
        if self.builder.runner:
            found = self._found("runtime", _in_cpp(part.got, alone, together), nodes[::-1][:RANKED])
            return replace(found, size=self._size(), **self._shown_in_cpp(part))
        verdict: Verdict
        if alone > LEAST:
            verdict, sentence = part.cause()
        elif together:
            verdict, sentence = "compiler", "the nodes are right alone and wrong together: fusion or code generation"
        else:
            verdict, sentence = "compiler", "it vanishes if this part is built alone: fusion or dynamic sizes"
        found = self._found(verdict, sentence, nodes[::-1][:RANKED])
        found = replace(found, size=self._size(), not_finite=nodes[0] if len(nodes) == 1 and part.spoils() else None)
        return replace(found, files=repro.write(found, module, part.inputs, self.builder, self.asked.out))

    def _shown_in_cpp(self, part: verdicts.Part) -> dict[str, Any]:
        """Write a part that fails in C++, and return its files and the command that shows it."""
        if part.error(part.got) <= LEAST:
            return {}
        built = self.builder.built
        assert built is not None
        contract = targets.get(self.asked.target).read_contract(built)
        files = native.write(built, contract, part.inputs, part.own, self.asked.out)
        command = f"exporter-run run {files[0]} --inputs {files[1]} --outputs {native.OUTPUTS}"
        told = f"`{command}` shows it" if isinstance(part.got, str) else f"`{command}` should give {files[2]}"
        return {"files": files, "notes": (told,)}

    def _inputs_of(self, taken: tuple[fx.Node, ...]) -> Tensors:
        """Return eager's values of these nodes."""
        return arithmetic.values(self.graph.module, taken, self._placed())


def beside(ratio: float | None) -> str:
    """Return how an error that is `ratio` times another compares with it."""
    times = f"{ratio or 0:.2g}"
    return {"0": "no more than", "1": "equal to"}.get(times, f"{times} times")


def _failing(error: Exception) -> Run:
    """Return what stands for an artifact that cannot be built or loaded: it raises this error."""

    def run(inputs: Tensors) -> Tensors:
        raise error

    return run


def _leaves(module: torch.nn.Module) -> tuple[str, ...]:
    """Return the paths of the layers that contain no others."""
    found = (own_path(path) for path, layer in module.named_modules() if not any(layer.children()))
    return tuple(filter(None, found))


def _in_cpp(got: Tensors | str, alone: float, together: bool) -> str:
    """Return why nodes are wrong in C++ that are right in Python, from the same kind of artifact."""
    if isinstance(got, str):
        return f"it is right in Python, and fails by itself in C++: {got}"
    if alone > LEAST:
        return "it is right in Python, and wrong by itself in C++, with exact inputs"
    how = "these nodes together are wrong in C++" if together else "it is wrong in C++, but not if this part is alone"
    return f"it is right in Python, and {how}"


def _finite(error: float | None) -> float | None:
    return error if error is not None and math.isfinite(error) else None
