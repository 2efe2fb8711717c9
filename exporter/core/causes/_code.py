"""Causes in the inputs and outputs, and in code that a graph cannot represent."""

from __future__ import annotations

from exporter.core.causes._cause import Cause

CAUSES = (
    # Inputs and outputs.
    Cause(
        "cache-in-outputs",
        (
            r"Found <class '(?P<type>[\w.]*Cache)'> in output",
            r"(?:Tracer cannot infer type of [\s\S]{0,800}?)?but (?:instead )?got value of type (?P<type>\w*Cache)\b",
        ),
        "The model returns a cache ({type}), which is not a tensor",
        "turn the cache off (use_cache=False), or return its tensors",
    ),
    Cause(
        "object-in-inputs-or-outputs",
        (
            r"Found <class '(?P<type>[^']+)'> in output, which is not a known type",
            r"Unsupported input type <class '(?P<type>[^']+)'>",
        ),
        "An input or output is an object of {type}, whose tensors are invisible to torch",
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
        ),
        "The model returns something that is not a tensor",
        "return tensors, or tuples, lists or dicts of them",
    ),
    Cause(
        "recurrent-on-gpu",
        (r"LoweringException.* target: while_loop",),
        "A recurrent layer becomes a loop over a dynamic length, which this torch cannot compile for a GPU",
        "ship trace, script or onnx, which have a kernel for the layer",
    ),
    # Code that a graph cannot represent.
    Cause(
        "loop-starts-from-its-operand",
        (r"(?:cond_fn|body_fn) might be aliasing",),
        "A while_loop is given a tensor twice: as a value to start from, and as one that its functions also read",
        "start from a copy: y.clone(); if a recurrent layer makes the loop, ship trace, script or onnx",
    ),
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
        "clone() it first, or use an operation that does not work in place",
        repairable=True,
    ),
    Cause(
        "size-as-a-key",
        (r"unhashable type: (?:non-nested )?Sym(?:Int|Float|Bool)",),
        "A size is used as a key here, perhaps of lru_cache or of a cache by length; a dynamic size cannot be a key",
        "compute it in each call, or keep the largest one as a buffer and slice it: self.mask[:n, :n]",
        repairable=True,
    ),
    Cause(
        "written-through-data",
        (r"We found a fake tensor in the exported program constant's list",),
        "Values are written through .data, perhaps by this code, which a graph does not record",
        "change the tensor itself, under torch.no_grad() if necessary: self.s.mul_(x), not self.s.data.mul_(x)",
        repairable=True,
    ),
    Cause(
        "fixed-device",
        (
            r"Expected all tensors to be on the same device",
            r"Input type \(torch\.cuda\.\w+\) and weight type \(torch\.(?!cuda\.)\w+\) should be the same",
            r"Input type \(torch\.(?!cuda\.)\w+\) and weight type \(torch\.cuda\.\w+\) should be the same",
            r"is not on the expected device",
            r"found two different devices",
        ),
        "A tensor is created on a fixed device, not on the device of the inputs",
        "create it with device=x.device, or keep it as a buffer; a trace keeps the device that it saw",
    ),
    Cause(
        "lengths-on-a-gpu",
        (r"'lengths' argument should be a 1D CPU int64 tensor, but got 1D (?!cpu)\w+",),
        "pack_padded_sequence needs lengths on the CPU, and every input is on the device of the model",
        "pass it lengths.cpu()",
    ),
    Cause(
        "different-dtypes",
        (
            r"(?:must|expected to|Expected \w+, \w+,? and \w+ to|expected \w+ and \w+ to) have the same dtype",
            r"Input type \((?!torch)[\w: ]+\) and (?:bias|weight) type \((?!torch)[\w: ]+\) should be the same",
            r"Input type \((torch\.(?:cuda\.)?)\w+\) and (?:bias|weight) type \(\1\w+\) should be the same",
            r"expected scalar type (?:Float|Half|BFloat16|Double) but found \w+",
            r"both inputs should have same dtype",
            r"expected self and source to have same dtypes",
            r"mixed dtype \(CPU\)",
            r"RNN input dtype \([\w.]+\) does not match weight dtype",
            r"Expected self\.dtype to be equal to src\.dtype",
            r"Type parameter \(\w+\) of Optype \(\w+\) bound to different types",
        ),
        "The operands of a call have different dtypes, perhaps because the code creates a tensor with a fixed dtype",
        "create it with dtype=x.dtype, or cast it: t.to(x.dtype)",
    ),
    Cause(
        "number-too-large",
        (r"value cannot be converted to type \S+ without overflow",),
        "The code uses a number that is too large for this precision, such as -1e9 in float16",
        "use torch.finfo(x.dtype).min, or bf16, which has the range of float32",
    ),
    Cause(
        "depends-on-strides",
        (
            r"view size is not compatible with input tensor's size and stride",
            r"Cannot view a tensor with shape",
            r"unmatched stride value",
        ),
        "The code depends on the memory layout of a tensor: it views one that is not contiguous",
        "use reshape, or call contiguous() before view",
    ),
    Cause(
        "leaves-torch",
        (r"\.numpy\(\) is not supported", r"Converting a tensor to a NumPy array"),
        "The code converts tensors to NumPy, which a graph cannot follow",
        "use torch's own operations, or wrap this part as an operator: torch.library.custom_op",
        repairable=True,
    ),
    Cause(
        "copied-in-forward",
        (),
        "forward copies a module or a tensor with copy.deepcopy, which a graph cannot express",
        "make the copy in __init__, or use the original; of a tensor, make it with clone()",
    ),
    Cause(
        "unknown-kernel",
        (r"Cannot access data pointer of Tensor",),
        "The code calls a kernel that is not registered as a torch operator",
        "register it: torch.library.custom_op with register_fake",
    ),
    Cause(
        "recompile-limit",
        (r"recompile[_ ]limit",),
        "torch.compile had to recompile too often: the code depends on sizes or Python values that change",
        "mark the sizes as dynamic, or keep Python numbers that change out of forward",
    ),
    Cause(
        "graph-break",
        (
            r"(?<!SymbolicValueError: )\bUnsupported: (?!ONNX export of )",
            r"compile-graph-break-site",
            r"torch\._dynamo\.graph_break",
        ),
        "torch.compile cannot follow the code here and breaks the graph",
        "move that call out of forward, or rewrite it with operations that torch.compile supports",
    ),
)
