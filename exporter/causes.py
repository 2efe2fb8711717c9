"""Known causes of failure: what in the model is in the way, and what to do about it. Texts in, words out; never torch.

`CAUSES` is the one table. Its patterns are for messages of torch.jit, torch.export, torch.onnx, AOTInductor and
onnxruntime, and for our own. A pattern's named groups fill the words of its sentence and remedy.
"""

from __future__ import annotations

import collections
import re
import sys
from dataclasses import dataclass, field, replace

from exporter.places import place

REASON = 320  # characters of a raw message that a reason keeps

GUARD = r"Could not guard on data-dependent expression"
CONSTRAINTS = r"Constraints violated[\s\S]{0,600}?"
NO_ONNX = r"No ONNX function found for "
BACKEND = r"Could not run '(?P<op>[\w:.]+)' with arguments from the '(?P<backend>"


@dataclass(frozen=True)
class Cause:
    """One cause. `sentence` says what in the model is in the way, `remedy` what to do; `remedies` are by target."""

    name: str
    patterns: tuple[str, ...]
    sentence: str
    remedy: str
    remedies: dict[str, str] = field(default_factory=dict)


CAUSES = (
    # What depends on the values of tensors.
    Cause(
        "size-from-values",
        (
            GUARD + r"[^\n]{0,400}?\(Size-like symbols: (?!none)",
            r"failed to unpack the object at pos \d+ with error \"type must be tuple of ints,but got FakeTensor",
            r"DynamicOutputShapeException",
            r"(?:Unsupported: )?Dynamic shape operator",
        ),
        "The size of a tensor depends on the values of another",
        "keep sizes fixed: multiply by a mask instead of selecting, pad to a length; or bound the size by torch._check",
    ),
    Cause(
        "number-from-values",
        (
            GUARD + r" z?u[fb]?\d+ ",
            r"Could not extract specialized integer",
            r"DataDependentOutputException",
            r"(?:Unsupported: )?Unsupported Tensor\.item\(\)",
        ),
        "Python needs a number that only the values of a tensor give, for a loop, an index or a size",
        "keep it a tensor, or compute it from shapes",
    ),
    Cause(
        "branch-on-values",
        (
            GUARD,
            r"(?:Unsupported: )?Data-dependent branching",
            r"Dynamic control flow is not supported",
            r"data-dependent control flow",
            r"branch depends on values",
        ),
        "A branch depends on the values of tensors",
        "write it with torch.cond or torch.where; or ship script, which takes branches where it can read the code",
        {"script": "write it with torch.cond or torch.where, or write the code so that torch.jit.script can read it"},
    ),
    Cause(
        "unsteady",
        (r"eager gives other values at a second run: (?P<why>[^;]+)",),
        "Eager itself gives other values at a second run: {why}",
        "make it repeatable: no dropout or noise in eval mode, and state as an input and an output instead of a buffer",
    ),
    Cause(
        "not-a-number",
        (r"NaN at \[[\d, ]*\]: eager itself gives it",),
        "Eager itself gives NaN, so that nothing tells what is right",
        "give inputs that the model is made for, or mend the model",
    ),
    # Dimensions that do not move as promised.
    Cause(
        "dimension-baked",
        (r"(?<!export )\b(?P<dim>\w+) is fixed at (?P<size>\d+)",),
        "The artifact holds {dim} at {size}: a loop or a number in Python followed the example",
        "write it with operations on whole tensors and sizes from x.shape, or ship a target that passes",
    ),
    Cause(
        "dimension-fixed",
        (
            CONSTRAINTS + r"You marked (?P<dim>\S+) as dynamic but your code specialized it to be a constant "
            r"\((?P<size>\d+)\)",
            CONSTRAINTS + r"because (?P<dim>\S+) was inferred to be a constant \((?P<size>\d+)\)",
        ),
        "The code fixes {dim} at {size}",
        "take the size from x.shape where the code has a number, or leave {dim} out of what is dynamic",
    ),
    Cause(
        "dimensions-tied",
        (CONSTRAINTS + r"The values of (?P<dim>\S+) = [^\n]{0,200}? and (?P<other>\S+) = \S+ must always be equal",),
        "The code needs {dim} and {other} to be equal",
        "give both one name in inputs()",
    ),
    Cause(
        "dimension-narrowed",
        (r"Constraints violated(?: \((?P<dim>[^)]*)\))?",),
        "The code does not take every promised size of {dim}",
        "promise less (the constraint says how much), or change what the code asks of that size",
    ),
    Cause(
        "cannot-be-saved",
        (r"SerializeError: Failed serializing node (?P<op>\w+)", r"op <built-in function (?P<op>\w+)> is not in _SYM"),
        "torch.export.save has no words for {op}",
        "ship another target, or write it otherwise: arithmetic of sizes with // and %, tensors as buffers",
    ),
    # Operators that a route does not have.
    Cause(
        "complex-numbers",
        (
            NO_ONNX + r"<OpOverload\(op='[\w.]+'[^\n]{0,120}?complex-valued input",
            r"Numpy_type 1[456] can't be converted to MLDataType",
            r"(?:tensor\(complex|not implemented for 'Complex|code generation for complex operators)",
        ),
        "Complex numbers stand where this route takes only real ones",
        "compute with real and imaginary parts (torch.view_as_real), at inputs and outputs too; or ship another target",
    ),
    Cause(
        "higher-order-operator",
        (
            NO_ONNX + r"<torch\._higher_order_ops\.(?P<op>\w+)",
            r"TorchScript has no higher_order\.(?P<op>\w+)",
            r"doesn't work unless it is captured completely with torch\.compile",
            r"FX to torch\.jit\.trace a dynamo-optimized function",
        ),
        "This route takes no higher-order operator ({op}) and no code that torch.compile has wrapped",
        "write it as a plain branch or loop for trace and script; onnx takes torch.cond, scan and while_loop",
    ),
    Cause(
        "sparse-or-quantized",
        (
            BACKEND + r"(?:Sparse|Quantized|Mkldnn|Nested)\w*)' backend",
            r"can't convert Sparse layout tensor",
            r"torch\.classes\.quantized",
            r"KeyError: torch\.q(?:u?int|int)\d+",
            NO_ONNX + r"<OpOverload\(op='aten\.(?:_to_sparse|_to_dense|q)\w*",
            r"(?:UnsupportedOperatorException: )?aten\.(?:_nested_tensor|_to_sparse|_to_dense|sparse_)",
        ),
        "A tensor is sparse, nested or quantized, and the route takes only dense ones",
        "export the dense float model; quantize with the route's own tools",
    ),
    Cause(
        "custom-operator-onnx",
        (
            NO_ONNX + r"<OpOverload\(op='(?P<op>(?!aten\.|prims?\.)[\w.]+)'",
            r"Fatal error: (?P<op>[\w.:]+)\S* is not a registered function/op",
        ),
        "ONNX has no translation for the custom operator {op}",
        "write it with torch's own operators, or ship trace, script or compile and load its library (--ops-lib)",
    ),
    Cause(
        "operator-not-in-opset",
        (
            NO_ONNX + r"<OpOverload\(op='(?P<op>[\w.]+)'",
            r"Exporting the operator '(?P<op>[\w:.]+)' to ONNX opset version \d+ is not supported",
        ),
        "ONNX has no translation for the operator {op} in this opset",
        "try a later --opset, write it with other operators, or ship another target",
    ),
    Cause(
        "opset-too-new",
        (r"Opset (?P<opset>\d+) is under development", r"invalid version \(must be between 1 and \d+\)"),
        "The opset asked for is newer than what is installed here knows",
        "give a lower --opset, or none",
    ),
    Cause(
        "no-onnxruntime-kernel",
        (
            r"Could not find an implementation for (?P<op>\w+)\(\d+\)",
            r"Type 'tensor\(\w+\)' of input parameter \([^)]*\) of operator \((?P<op>\w+)\)",
        ),
        "onnxruntime has no kernel for {op} with this dtype",
        "use float32 there, or ship another target",
    ),
    Cause(
        "torchvision-mismatch",
        (r"operator torchvision::nms does not exist",),
        "torch and torchvision are of different builds",
        "install both from one index: `pip install --force-reinstall torch torchvision`",
    ),
    Cause(
        "custom-operator-not-registered",
        (
            r"Unknown builtin op: (?P<op>\w+::\w+)",
            r"failed to resolve torch\.ops\.(?P<op>[\w.]+) to an operator",
            r"(?:Could not find schema for|[Oo]perator) (?P<op>(?!aten::)\w+::[\w.]+) does not exist",
            r"Could not find schema for (?P<op>\w+::[\w.]+)",
            r"calls operators of (?P<op>\w+), which are not registered",
        ),
        "The custom operator {op} is not registered where the artifact runs",
        "load the library that registers it: exporter-run --ops-lib FILE in C++, an import of its package in Python",
    ),
    Cause(
        "custom-operator-without-fake-kernel",
        (
            r"UnsupportedOperatorException: (?P<op>[\w.]+)",
            r"no fake impl registered for <CustomOpDef\((?P<op>[\w:]+)\)>",
            BACKEND + r"Meta)' backend",
            r"no fake impl registered",
        ),
        "The operator {op} has no fake kernel, so nobody can tell the shape of what it gives",
        "register one: torch.library.register_fake",
    ),
    Cause(
        "operator-without-kernel",
        (BACKEND + r"\w+)' backend",),
        "The operator {op} has no kernel for {backend}",
        "register one (torch.library.impl, or TORCH_LIBRARY_IMPL in C++), or run on another device",
    ),
    # What goes in and comes out.
    Cause(
        "cache-in-outputs",
        (
            r"Found <class '(?P<type>[\w.]*Cache)'> in output",
            r"(?:Tracer cannot infer type of [\s\S]{0,800}?)?but (?:instead )?got value of type (?P<type>\w*Cache)\b",
        ),
        "The model returns a cache ({type}), which is no tensor",
        "turn it off (use_cache=False), or return the tensors that it holds",
    ),
    Cause(
        "object-in-inputs-or-outputs",
        (
            r"Found <class '(?P<type>[^']+)'> in output, which is not a known type",
            r"Unsupported input type <class '(?P<type>[^']+)'>",
        ),
        "An input or output is an object of {type}, whose tensors torch does not see",
        "use tensors, or register the class: torch.export.register_dataclass, torch.utils._pytree.register_pytree_node",
    ),
    Cause(
        "output-not-a-tensor",
        (
            r"Only tensors, lists, tuples of tensors, or dictionary of tensors can be output",
            r"Tracer cannot infer type of",
            r"Encountering a dict at the output of the tracer",
            r"cannot be understood by the tracer",
            r"Error when translating node return",
            r"'(?:int|float|bool|str)' object has no attribute 'name'",
            r"the model's output holds no tensor",
        ),
        "The model returns something that is no tensor",
        "return tensors, or tuples, lists or dicts of them",
    ),
    Cause(
        "recurrent-on-gpu",
        (r"(?:cond_fn|body_fn) might be aliasing",),
        "This torch compiles no loop over a sequence of any length on a GPU, which a recurrent layer becomes",
        "ship trace, script or onnx, which have a kernel for it",
    ),
    # What the code does that no graph can say.
    Cause(
        "mutated-input",
        (
            r"[Ii]nput mutation",
            r"where the inputs are mutated",
            r"might be modifying the input",
            r"a leaf Variable that requires grad is being used in an in-place",
            r"Please clone\(\) the tensor before performing the operation",
            r"is mutated in the forward method",
            r"Inplace update to inference tensor",
        ),
        "The code changes an input or a constant in place",
        "clone() it first, or use the operation that is not in place",
    ),
    Cause(
        "fixed-device",
        (
            r"Expected all tensors to be on the same device",
            r"is not on the expected device",
            r"found two different devices",
        ),
        "A tensor is made on a fixed device, not where the inputs are",
        "make it with device=x.device, or keep it as a buffer; a traced device stays as it was",
    ),
    Cause(
        "depends-on-strides",
        (
            r"view size is not compatible with input tensor's size and stride",
            r"Cannot view a tensor with shape",
            r"unmatched stride value",
        ),
        "The code depends on how a tensor lies in memory: it views one that is not contiguous",
        "use reshape, or contiguous() before view",
    ),
    Cause(
        "leaves-torch",
        (r"\.numpy\(\) is not supported", r"Converting a tensor to a NumPy array"),
        "The code leaves torch for NumPy, where no graph can follow",
        "use torch's own operations, or wrap that part as an operator: torch.library.custom_op",
    ),
    Cause(
        "unknown-kernel",
        (r"Cannot access data pointer of Tensor",),
        "The code calls a kernel that is no operator of torch",
        "wrap it as one: torch.library.custom_op with register_fake",
    ),
    Cause(
        "recompile-limit",
        (r"recompile[_ ]limit",),
        "torch.compile had to compile again and again: the code depends on sizes or Python values that change",
        "mark the sizes dynamic, or keep changing Python numbers out of forward",
    ),
    Cause(
        "graph-break",
        (r"\bUnsupported: ", r"compile-graph-break-site", r"torch\._dynamo\.graph_break"),
        "torch.compile cannot follow the code here and breaks the graph",
        "take that call out of forward, or rewrite it with what torch.compile supports",
    ),
    # What TorchScript cannot read.
    Cause(
        "python-3.14",
        (r"torch\.jit\.\w+` is not supported in Python 3\.\d+",),
        "TorchScript is not supported on Python 3.14 and later",
        "use Python 3.11 to 3.13, or the targets compile and onnx",
    ),
    Cause(
        "source-is-missing",
        (r"(?:Can't get|Failed to get) source for (?P<what><[^>]*>|\S+)", r"could not get source code"),
        "TorchScript needs source code that cannot be had: {what}",
        "define it in a .py file, without decorators or exec that hide it",
    ),
    Cause(
        "annotation",
        (
            r"Unknown type name '(?P<type>[^']+)'",
            r"Unknown type constructor (?P<type>\w+)",
            r"Unsupported annotation (?P<type>\S+)",
        ),
        "TorchScript does not know the annotation {type}",
        "use Optional, Union, List, Dict and Tuple of typing, with tensors and plain types in them",
    ),
    Cause(
        "autograd-function",
        (
            r"Could not export Python function call '(?P<name>\w+)'",
            r"Python builtin <built-in method apply of FunctionMeta",
        ),
        "A torch.autograd.Function ({name}) is Python code, which no TorchScript holds",
        "call its forward as a plain function for inference",
    ),
    Cause(
        "vmap",
        (r"\bvmap: ", r"_functorch/(?:apis|vmap|predispatch)\.py", r"TorchScript has no torch\._functorch"),
        "torch.vmap or torch.func is not for this route as it is used here",
        "write the batch dimension out with broadcasting",
    ),
    Cause(
        "operator-not-in-torchscript",
        (r"TorchScript has no (?P<op>\w+\.[\w.]+)",),
        "TorchScript has no operator {op}",
        "register it in C++ (TORCH_LIBRARY) where it is your own, write it with others, or ship compile or onnx",
    ),
    Cause(
        "variable-arguments",
        (
            r"Compiled functions can't take variable number of arguments",
            r"keyword-arg expansion is not supported",
            r"cannot statically infer the expected size of a list",
        ),
        "TorchScript takes no *args, **kwargs or keyword-only arguments with defaults",
        "name every argument",
    ),
    Cause(
        "syntax",
        (
            r"(?P<what>[\w -]+) aren't supported",
            r"Don't support (?P<what>\w+)",
            r"second argument must be a (?P<what>string literal)",
            r"(?:Python builtin|built-in) (?P<what><[^>]+>) is currently not supported in Torchscript",
        ),
        "TorchScript has no words for this Python ({what})",
        "write it more plainly, or move it out of forward",
    ),
    Cause(
        "attribute",
        (
            r"has no attribute '(?P<what>\w+)' \(This (?:attribute|function) exists on the Python module",
            r"python value of type '(?P<what>[^']+)' cannot be used as a value",
            r"'Tensor' object has no attribute or method '(?P<what>\w+)'",
        ),
        "TorchScript cannot take {what} over from Python",
        "keep tensors, numbers and strings on the module, annotated, and no objects",
    ),
    Cause(
        "types",
        (
            r"Arguments for call are not valid",
            r"Expected a value of type '[^']+' for argument",
            r"return statement returns a value of type",
            r"Return value was annotated",
            r"previously had type",
        ),
        "TorchScript needs one type for each value, and here are two",
        "annotate what is not a Tensor; check Optional with `is not None` before use",
    ),
    Cause(
        "script-module",
        (r"Exporting a ScriptModule is not supported",),
        "The model is TorchScript already",
        "export the module that it was made from, or give the .pt file as MODEL",
    ),
    Cause(
        "requires-grad",
        (r"Cannot insert a Tensor that requires grad as a constant",),
        "A tensor that requires gradients is neither a parameter nor a buffer",
        "keep it as a Parameter or a buffer, or detach() it",
    ),
    Cause(
        "cannot-be-copied",
        (
            r"[Cc](?:an't|annot) pickle (?P<what>.+?)(?= \(|$|\n|:)",
            r"cannot be sent to another process",
            r"Tried to serialize object (?P<what>\S+)",
            r"support the deepcopy protocol",
        ),
        "The model holds something that cannot be copied or pickled: {what}",
        "define its class in a module, and keep locks, files, lambdas and hooks out of it",
    ),
    # The machine.
    Cause(
        "no-compiler",
        (r"InvalidCxxCompiler|No working C\+\+ compiler", r"there is no C\+\+ compiler"),
        "There is no C++ compiler, which compile needs",
        "install g++ (Debian: apt install g++), or name one in CXX",
    ),
    Cause(
        "compiler-failed",
        (r"CppCompileError|C\+\+ compile error", r"CUDACompileError"),
        "The C++ compiler rejected the code that AOTInductor wrote",
        "try another compiler (CXX), or another version of torch",
    ),
    Cause(
        "out-of-memory",
        (
            r"can't allocate memory|[Cc]annot allocate memory",
            r"CUDA out of memory|OutOfMemoryError|MemoryError",
            r"std::bad_alloc",
            r"was ended by SIGKILL",
            r"Failed to allocate memory for requested buffer",
            r"CUDA error: out of memory",
        ),
        "The memory did not suffice",
        "take smaller sizes (--size), raise --memory-limit where one was given, or use a larger machine",
    ),
    Cause(
        "shared-library",
        (r"(?P<what>\S+\.so\S*): cannot open shared object file", r"Could not load this library: (?P<what>\S+)"),
        "The shared library {what} is missing or cannot be loaded",
        "install what holds it, or put its folder into LD_LIBRARY_PATH; `exporter doctor` looks over the rest",
    ),
    Cause(
        "illegal-instruction",
        (r"SIGILL", r"[Ii]llegal instruction"),
        "The artifact was built for a processor with instructions that this one lacks",
        "export it on the machine that serves it, or on an older one",
    ),
)


_COMPILED = tuple((cause, re.compile(pattern)) for cause in CAUSES for pattern in cause.patterns)
_TORCHSCRIPT = ("trace", "script")


def find(text: str, target: str = "", python: tuple[int, ...] = sys.version_info[:2]) -> Cause | None:
    """The cause that a message names first, its words filled in, with the remedy for the target; None when unknown.

    On a Python that TorchScript does not support, what else is unknown there is laid to that.
    """
    found = [(match.start(), cause, match) for cause, pattern in _COMPILED if (match := pattern.search(text))]
    if found:
        _, cause, match = min(found, key=lambda one: one[0])
        words = {name: word or "" for name, word in match.groupdict().items()}
        return _filled(cause, words, target)
    if target in _TORCHSCRIPT and python >= (3, 14):
        return next(cause for cause in CAUSES if cause.name == "python-3.14")
    return None


def _filled(cause: Cause, words: dict[str, str], target: str) -> Cause:
    """Its sentence and remedy with the words of a message; a word in brackets or after a colon may be missing."""
    known = collections.defaultdict(str, words)
    sentence = cause.sentence.format_map(known).replace(" ()", "").removesuffix(": ")
    remedy = cause.remedies.get(target, cause.remedy).format_map(known)
    return replace(cause, sentence=sentence, remedy=remedy)


def describe(text: str, remedy: str = "", target: str = "") -> tuple[str, str]:
    """Reason and remedy of a failed row.

    The reason is the cause's sentence, the place, and the raw message shortened; a message of no known cause is kept
    as it is. The remedy is the cause's where none is given.
    """
    cause = find(text, target)
    if cause is None:
        return text, remedy
    where = place(text)
    raw = shorten(text.replace(f" ({where})", ""))
    return f"{cause.sentence}{f' ({where})' if where else ''}: {raw}", remedy or cause.remedy


def remedy(text: str, target: str = "") -> str:
    """What to do about a message's cause; "" when it is unknown."""
    cause = find(text, target)
    return cause.remedy if cause else ""


def shorten(text: str) -> str:
    """One line of at most REASON characters, cut between words."""
    line = " ".join(text.split())
    return line if len(line) <= REASON else line[:REASON].rpartition(" ")[0] + " …"
