"""Causes in operators that a target does not support."""

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
        "Complex numbers are used where this target supports only real ones",
        "use real and imaginary parts (torch.view_as_real), also for inputs and outputs; or ship another target",
    ),
    Cause(
        "higher-order-operator",
        (
            NO_ONNX + r"<torch\._higher_order_ops\.(?P<op>\w+)",
            r"doesn't work unless it is captured completely with torch\.compile",
            r"FX to torch\.jit\.trace a dynamo-optimized function",
            r"Unsupported value kind: Tensor",
        ),
        "This target supports neither higher-order operators ({op}) nor code wrapped by torch.compile",
        "write it as a plain branch or loop for trace and script; onnx supports torch.cond, scan and while_loop",
    ),
    Cause(
        "quantized-already",
        (r"Attempted to access the data pointer on an invalid python storage",),
        "A weight is a tensor subclass without memory of its own, perhaps because the model is quantized already",
        "export the float model, and let exporter quantize it: compile@int8w, trace@int8 (see `exporter targets`)",
    ),
    Cause(
        "sparse-or-quantized",
        (
            BACKEND + r"(?:Sparse|Quantized|Mkldnn|Nested)\w*)' backend",
            r"can't convert Sparse layout tensor",
            r"of a sparse tensor cannot be captured",
            r"Cannot access storage of Sparse\w+",
            r"torch\.classes\.quantized",
            r"KeyError: torch\.q(?:u?int|int)\d+",
            NO_ONNX + r"<OpOverload\(op='aten\.(?:_to_sparse|_to_dense|q)\w*",
            r"(?:UnsupportedOperatorException: )?aten\.(?:_nested_tensor|_to_sparse|_to_dense|sparse_)",
        ),
        "A tensor is sparse, nested or quantized, and this target supports only dense ones",
        "export the float model, and let exporter quantize it (compile@int8, onnx@int8, trace@int8); of sparse "
        "tensors, only a constant matrix that is multiplied can be exported",
    ),
    Cause(
        "custom-operator-onnx",
        (
            NO_ONNX + r"<OpOverload\(op='(?P<op>(?!aten\.|prims?\.)[\w.]+)'",
            r"Fatal error: (?P<op>[\w.:]+)\S* is not a registered function/op",
        ),
        "There is no translation to ONNX for the custom operator {op}",
        "write it with torch's own operators, or ship another target and load its library (--ops-lib)",
    ),
    Cause(
        "python-number-onnx",
        (NO_ONNX + r"<(?:built-in )?function (?P<op>\w+)",),
        "There is no translation to ONNX for Python's {op}() of a number computed in the call",
        "compute it when the module is built, or with tensor operations; for sizes, use // and %",
    ),
    Cause(
        "size-as-attribute-onnx",
        (r"Unsupported attribute type: '<class '(?:[\w.]*SymbolicTensor|list)'>'",),
        "An argument that ONNX has as a constant, such as a convolution's groups or a shift, is a size of the input",
        "fix that size (--dynamic with the names of the others, or none), write the operation without that argument, "
        "or ship another target",
    ),
    Cause(
        "projections-onnx",
        (r"LSTM has no projections", r"LSTMs with projections"),
        "ONNX's LSTM has no projections (proj_size)",
        "ship trace, script or compile",
    ),
    Cause(
        "bincount-with-weights-onnx",
        (r"aten::bincount with weights is not supported",),
        "There is no translation to ONNX of torch.bincount with weights",
        "if the number of places is known, write torch.zeros(PLACES, dtype=weights.dtype).scatter_add(0, x, weights), "
        "or give a size of the input as minlength; or ship another target",
    ),
    Cause(
        "operator-not-in-opset",
        (
            r"Exporting the operator '(?P<op>[\w:.]+)' to ONNX opset version \d+ is not supported\. Support for this "
            r"operator was added in version (?P<opset>\d+)",
        ),
        "There is no translation to ONNX for the operator {op} in this opset",
        "give --opset {opset} or a later one, use other operators, or ship another target",
    ),
    Cause(
        "operator-not-in-onnx",
        (
            NO_ONNX + r"<OpOverload\(op='(?P<op>[\w.]+)'",
            r"Exporting the operator '(?P<op>[\w:.]+)' to ONNX opset version \d+ is not supported",
            r"Unsupported: ONNX export of operator (?P<op>\w+)",
        ),
        "There is no translation to ONNX for the operator {op}",
        "use other operators, or ship another target",
    ),
    Cause(
        "mixed-dtypes-onnx",
        (r"Cannot find a compatible OpOverload for (?P<op>[\w.]+)",),
        "There is no translation to ONNX of {op} for this combination of numbers, tensors and dtypes",
        "convert them to one dtype: x.float(), 50.0 instead of 50",
    ),
    Cause(
        "opset-too-new",
        (r"Opset (?P<opset>\d+) is under development", r"invalid version \(must be between 1 and \d+\)"),
        "The installed software does not support this opset yet",
        "give a lower --opset, or omit it",
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
        "The code views a tensor as complex numbers, but its memory layout differs in the compiled graph",
        "write torch.complex(x[..., 0], x[..., 1]) instead of torch.view_as_complex(x)",
    ),
    Cause(
        "torchvision-mismatch",
        (r"operator torchvision::nms does not exist",),
        "torch and torchvision come from different builds",
        "install both from one index: `pip install --force-reinstall torch torchvision`",
    ),
    Cause(
        "custom-operator-not-registered",
        (
            r"Unknown builtin op: (?P<op>\w+::\w+)",
            r"failed to resolve torch\.ops\.(?P<op>[\w.]+) to an operator",
            r"(?:Could not find schema for|[Oo]perator) (?P<op>(?!aten::)\w+::[\w.]+) does not exist",
            r"Could not find schema for (?P<op>\w+::[\w.]+)",
            r"calls operators (?P<op>of \w+), which are not registered",
            r"'_OpNamespace' '(?P<op>\w+)' object has no attribute",
        ),
        "A custom operator ({op}) is not registered in the process that calls it",
        "load the library that registers it: exporter-run --ops-lib FILE in C++, or import its package in Python; one "
        "that is defined in Python (torch.library.custom_op) has no library: call its function as plain Python instead",
    ),
    Cause(
        "custom-operator-without-fake-kernel",
        (
            r"UnsupportedOperatorException: (?P<op>[\w.]+)",
            r"no fake impl registered for <CustomOpDef\((?P<op>[\w:]+)\)>",
            BACKEND + r"Meta)' backend",
            r"no fake impl registered",
        ),
        "The operator {op} has no fake kernel, so the shape of its output is unknown",
        "register one: torch.library.register_fake",
    ),
    Cause(
        "operator-without-kernel",
        (BACKEND + r"\w+)' backend",),
        "The operator {op} has no kernel for {backend}",
        "register one (torch.library.impl, or TORCH_LIBRARY_IMPL in C++), or run on another device",
    ),
)
