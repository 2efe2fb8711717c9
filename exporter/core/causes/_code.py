"""What goes in and comes out, and what the code does that no graph can say."""

from __future__ import annotations

from exporter.core.causes._cause import Cause

CAUSES = (
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
        "size-as-a-key",
        (r"unhashable type: (?:non-nested )?Sym(?:Int|Float|Bool)",),
        "A size is a key here, perhaps of a cache by length or of lru_cache, and no size that moves can be one",
        "compute it in each call, or keep one of the greatest size as a buffer and cut it: self.mask[:n, :n]",
    ),
    Cause(
        "written-through-data",
        (r"We found a fake tensor in the exported program constant's list",),
        "No graph has what is written through .data, perhaps by this code",
        "change the tensor itself, under torch.no_grad() where need be: self.s.mul_(x), not self.s.data.mul_(x)",
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
)
