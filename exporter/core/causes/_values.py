"""What depends on the values of tensors, and dimensions that do not move as promised."""

from __future__ import annotations

from exporter.core.causes._cause import Cause

GUARD = r"Could not guard on data-dependent expression"
CONSTRAINTS = r"Constraints violated[\s\S]{0,600}?"

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
        "check-on-values",
        (),
        "The code has {what} on the values of tensors, which a graph cannot stop at",
        "delete it, or check the inputs before the call",
    ),
    Cause(
        "branch-on-values",
        (
            GUARD,
            r"(?:Unsupported: )?Data-dependent branching",
            r"Dynamic control flow is not supported",
            r"data-dependent control flow",
        ),
        "A branch depends on the values of tensors",
        "write it with torch.cond or torch.where; or ship script, which takes branches where it can read the code",
        {"script": "write it with torch.cond or torch.where, or write the code so that torch.jit.script can read it"},
    ),
    Cause(
        "unsteady",
        (),
        "Eager itself gives other values at a second run: {why}",
        "make it repeatable: no dropout or noise in eval mode, and state as an input and an output instead of a buffer",
    ),
    Cause(
        "not-a-number",
        (),
        "Eager itself gives NaN, so that nothing tells what is right",
        "give inputs that the model is made for, or mend the model",
    ),
    Cause(
        "too-coarse",
        (),
        "int8 is too coarse for this model, or was calibrated with inputs unlike the golden's",
        "give more real inputs (samples() of the recipe), or ship bf16 or fp16",
    ),
    Cause(
        "number-in-a-trace",
        (),
        "The trace holds a number that the code took from a tensor, perhaps of the state, as it was then",
        "keep it a tensor: index_select, torch.where; or ship script, where it can read the code",
    ),
    # Dimensions that do not move as promised.
    Cause(
        "size-baked",
        (),
        "{what} became the number {size}, perhaps because an operator takes no size there that moves",
        "leave that argument out (of torch.istft length: cut its output instead), or hold the size (--dynamic)",
    ),
    Cause(
        "dimension-baked",
        (),
        "The artifact holds {dim} at {size}, perhaps because a loop or a number in Python followed the example",
        "write it with operations on whole tensors and sizes from x.shape, or ship a target that passes",
    ),
    Cause(
        "dimension-fixed",
        (
            CONSTRAINTS + r"You marked (?P<dim>\S+) as dynamic but your code specialized it to be a constant "
            r"\((?P<size>\d+)\)",
            CONSTRAINTS + r"because (?P<dim>\S+) was inferred to be a constant \((?P<size>\d+)\)",
        ),
        "torch.export holds {dim} at {size}, perhaps because of a loop over it, a number, or a size that stays",
        "work on the whole tensor, take sizes from x.shape, or leave {dim} out of what is dynamic (--dynamic)",
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
        "torch.export finds that the code does not take every promised size of {dim}",
        "promise less (the constraint says how much), or change what the code asks of that size",
    ),
    Cause(
        "cannot-be-saved",
        (r"SerializeError: Failed serializing node (?P<op>\w+)", r"op <built-in function (?P<op>\w+)> is not in _SYM"),
        "torch.export.save has no words for {op}",
        "ship another target, or write it otherwise: arithmetic of sizes with // and %, tensors as buffers",
    ),
)
