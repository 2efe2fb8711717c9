"""Causes in code that TorchScript does not support."""

from __future__ import annotations

from exporter.core.causes._cause import Cause

BOTH = ("trace", "script")

CAUSES = (
    Cause(
        "python-3.14",
        (r"torch\.jit\.\w+` is not supported in Python 3\.\d+",),
        "TorchScript is not supported on Python 3.14 and later",
        "use Python 3.11 to 3.13, or the targets compile and onnx",
    ),
    Cause(
        "source-is-missing",
        (r"(?:Can't get|Failed to get) source for (?P<what><[^>]*>|\S+)", r"could not get source code"),
        "TorchScript needs source code that is not available: {what}",
        "define it in a .py file, without exec or decorators that hide it",
    ),
    Cause(
        "annotation",
        (
            r"Unknown type name '(?P<type>[^']+)'",
            r"Unknown type constructor (?P<type>\w+)",
            r"Unsupported annotation (?P<type>\S+)",
        ),
        "TorchScript does not support the annotation {type}",
        "use Optional, Union, List, Dict and Tuple from typing, with tensors and plain types",
        only=BOTH,
    ),
    Cause(
        "autograd-function",
        (
            r"Could not export Python function call '(?P<name>\w+)'",
            r"Python builtin <built-in method apply of FunctionMeta",
        ),
        "A torch.autograd.Function ({name}) is Python code, which TorchScript cannot contain",
        "call its forward as a plain function for inference",
    ),
    Cause(
        "vmap",
        (
            r"\bvmap: ",
            r"_functorch/(?:apis|vmap|predispatch)\.py",
        ),
        "This target does not support this use of torch.vmap or torch.func",
        "write out the batch dimension with broadcasting",
    ),
    Cause(
        "vmap-of-jacobians",
        (r"'Tensor' object has no attribute 'constant'",),
        "torch.export does not support Jacobians in reverse mode (jacrev, vjp) inside torch.vmap",
        "compute those of all rows at once, as those of a sum over the rows: "
        "jacrev(lambda x: f(x).sum(0))(x).movedim(1, 0)",
        only=("script", "compile", "onnx", "export"),  # those that may start from torch.export's program
    ),
    Cause(
        "view-as-dtype",
        (r"We don't have an op for aten::view but it isn't a special case",),
        "torch.jit.trace cannot record a view of a tensor as another dtype",
        "ship script, compile or export, or compute the value without it",
    ),
    Cause(
        "functional-call",
        (r"The stateless API can't be used with Jitted modules",),
        "torch.jit.trace does not support torch.func.functional_call",
        "call the function of the layer with these weights (torch.nn.functional.linear(x, weight, bias)), or ship "
        "script, compile, onnx or export",
    ),
    Cause(
        "computes-gradients",
        (r"forward computes gradients",),
        "forward computes gradients, and torch.jit.trace does not record how",
        "ship compile, script or onnx, which record the operators of the backward pass",
    ),
    Cause(
        "operator-not-in-torchscript",
        (),
        "TorchScript has no operator {op}",
        "register it in C++ (TORCH_LIBRARY) if it is your own, use other operators, or ship compile or onnx",
    ),
    Cause(
        "variable-arguments",
        (
            r"Compiled functions can't take variable number of arguments",
            r"keyword-arg expansion is not supported",
            r"cannot statically infer the expected size of a list",
        ),
        "TorchScript does not support *args, **kwargs or keyword-only arguments with defaults",
        "name every argument",
        only=BOTH,
    ),
    Cause(
        "syntax",
        (
            r"(?P<what>\w[\w -]*) aren't supported",
            r"Don't support (?P<what>\w+)",
            r"second argument must be a (?P<what>string literal)",
            r"(?:Python builtin|built-in) (?P<what><[^>]+>) is currently not supported in Torchscript",
        ),
        "TorchScript does not support this Python syntax ({what})",
        "write it with simpler syntax, or move it out of forward",
        only=BOTH,
    ),
    Cause(
        "attribute",
        (
            r"has no attribute '(?P<what>\w+)' \(This (?:attribute|function) exists on the Python module",
            r"python value of type '(?P<what>[^']+)' cannot be used as a value",
            r"'Tensor' object has no attribute or method '(?P<what>\w+)'",
        ),
        "TorchScript cannot convert {what} from Python",
        "keep only annotated tensors, numbers and strings on the module, not other objects",
        only=BOTH,
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
        "TorchScript needs a single type for each value, and here there are two",
        "annotate values that are not a Tensor; check an Optional with `is not None` before use",
        only=BOTH,
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
        "The model contains something that cannot be copied or pickled: {what}",
        "define its class in an importable module, and remove locks, files, lambdas and hooks from the model",
    ),
)
