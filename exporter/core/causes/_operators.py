"""Operators that a route does not have."""

from __future__ import annotations

from exporter.core.causes._cause import Cause

NO_ONNX = r"No ONNX function found for "
BACKEND = r"Could not run '(?P<op>[\w:.]+)' with arguments from the '(?P<backend>"

CAUSES = (
    Cause(
        "complex-numbers",
        (
            NO_ONNX + r"<OpOverload\(op='[\w.]+'[^\n]{0,120}?complex-valued input",
            r"Exporting the operator 'aten::(?:view_as_\w+|complex|fft_\w+|istft)' to ONNX",
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
        "python-number-onnx",
        (NO_ONNX + r"<(?:built-in )?function (?P<op>\w+)",),
        "ONNX has no translation for Python's {op}() of a number that a call computes",
        "make it when the module is built, or compute it with tensor operations; of sizes take // and %",
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
        "mixed-dtypes-onnx",
        (r"Cannot find a compatible OpOverload for (?P<op>[\w.]+)",),
        "torch's ONNX exporter has no {op} for this mixture of numbers, tensors and dtypes",
        "give them one dtype there: x.float(), 50.0 instead of 50",
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
        "complex-view",
        (r"Tensor must have a last dimension with stride 1",),
        "The code views as complex numbers a tensor that a compiled graph lays out otherwise",
        "write torch.complex(x[..., 0], x[..., 1]) instead of torch.view_as_complex(x)",
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
)
