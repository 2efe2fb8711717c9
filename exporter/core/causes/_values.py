"""Causes in code that depends on the values of tensors, and in dimensions that are less dynamic than promised."""

from __future__ import annotations

from exporter.core.causes._cause import Cause

GUARD = r"Could not guard on data-dependent expression"
CONSTRAINTS = r"Constraints violated[\s\S]{0,600}?"

CAUSES = (
    # Code that depends on the values of tensors.
    Cause(
        "size-from-values",
        (
            GUARD + r"[^\n]{0,400}?\(Size-like symbols: (?!none)",
            r"failed to unpack the object at pos \d+ with error \"type must be tuple of ints,but got FakeTensor",
            r"DynamicOutputShapeException",
            r"(?:Unsupported: )?Dynamic shape operator",
        ),
        "The size of a tensor depends on the values of another tensor",
        "keep sizes fixed: multiply by a mask instead of selecting, or pad; or bound the size with torch._check",
        repairable=True,
    ),
    Cause(
        "number-from-values",
        (
            GUARD + r" z?u[fb]?\d+ ",
            r"Could not extract specialized integer",
            r"DataDependentOutputException",
            r"(?:Unsupported: )?Unsupported Tensor\.item\(\)",
        ),
        "Python needs a number from the values of a tensor, for a loop, an index or a size",
        "keep it as a tensor, or compute it from shapes",
        repairable=True,
    ),
    Cause(
        "packed-sequence",
        (),
        "The sizes of a packed sequence depend on the values of the lengths ({function})",
        "ship trace or script, or call the layer on the padded tensor and mask its output, which gives the same values "
        "in a forward direction",
    ),
    Cause(
        "check-on-values",
        (),
        "The code has {what} on the values of tensors, which a graph cannot express",
        "remove it, check the inputs before the call, or write checks of one condition each, outside of a try",
        repairable=True,
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
        "write it with torch.cond or torch.where; or ship script, which supports branches if it can compile the code",
        {"script": "write it with torch.cond or torch.where, or in Python that torch.jit.script can compile"},
        repairable=True,
    ),
    Cause(
        "loop-on-values",
        (),
        "The condition of a while loop depends on the values of tensors",
        "ship script, which supports loops if it can compile the code; or repeat it a fixed number of times and keep "
        "with torch.where what is finished",
        {
            "script": "write it in Python that torch.jit.script can compile; or repeat it a fixed number of times and "
            "keep with torch.where what is finished"
        },
    ),
    Cause(
        "unsteady",
        (),
        "Eager itself returns different values in a second run: {why}",
        "make it repeatable: no dropout or noise in eval mode, and state only in buffers (register_buffer)",
    ),
    Cause(
        "not-a-number",
        (),
        "Eager itself returns NaN, so there is no correct value to compare with",
        "give inputs that the model is made for, or fix the model",
    ),
    Cause(
        "rounding-decides",
        (),
        "Rounding decides an output: eager in its own precision is already far from float64",
        "avoid rounding, comparisons and maxima of nearly equal values, or let inputs() give other values",
    ),
    Cause(
        "too-coarse",
        (),
        "The precision is too coarse for this model, or int8's calibration inputs differ too much from the golden's",
        "keep layers in float32 (--keep-float), give more real inputs (samples() in the recipe), or ship bf16 or fp16",
    ),
    Cause(
        "saturated",
        (),
        "Its int8 sums may saturate on this x86 CPU, which lacks VNNI; it was exported on a CPU where they are exact",
        "export it on this CPU, or with --portable",
    ),
    Cause(
        "number-in-a-trace",
        (),
        "The trace contains, as a constant, a number that the code read from a tensor, perhaps from the state",
        "keep it as a tensor: index_select, torch.where; or ship script if it can compile the code",
    ),
    # Dimensions that are less dynamic than promised.
    Cause(
        "size-baked",
        (),
        "{what} became the number {size}, perhaps because an operator does not accept a dynamic size there",
        "omit that argument if it has a default, or fix the size (--dynamic)",
    ),
    Cause(
        "length-of-istft",
        (),
        "{what} became the number {size}, perhaps because torch.istft does not accept a dynamic length",
        "slice the output of torch.istft instead of giving it a length, or fix the size (--dynamic)",
    ),
    Cause(
        "size-compared",
        (),
        "{what} became the number {size}, perhaps because a branch compares it with that",
        "leave the branch out, or promise only sizes for which it goes one way (--size NAME=MIN..MAX)",
    ),
    Cause(
        "size-without-producer",
        (r"materialize_symints: no producer for",),
        "Inductor loses a size that depends on values, perhaps of the input of a convolution",
        "add --fallback aten.convolution, or ship another target",
    ),
    Cause(
        "size-dependent",
        (),
        "The artifact is right at some sizes and wrong at others, perhaps because of a branch or a loop over a size",
        "promise only sizes like the example's (--size NAME=MIN..MAX) or only multiples (--size NAME=MIN..MAX..STEP, "
        "which also makes the example one), compute without Python's branches, loops and numbers of a size, or ship a "
        "target that passes",
    ),
    Cause(
        "wrong-at-the-example",
        (),
        "The artifact is wrong at the example's own sizes and right at others, perhaps because of a branch or a loop "
        "over a size, or of an operator that was translated wrongly",
        "compute without Python's branches, loops and numbers of a size, or ship a target that passes",
    ),
    Cause(
        "dimension-baked",
        (),
        "The artifact fixes {dim} at {size}, perhaps because a loop or a number in Python depends on the example",
        "use operations on whole tensors and sizes from x.shape, or ship a target that passes",
    ),
    Cause(
        "dimension-fixed",
        (
            CONSTRAINTS + r"You marked (?P<dim>\S+) as dynamic but your code specialized it to be a constant "
            r"\((?P<size>\d+)\)",
            CONSTRAINTS + r"because (?P<dim>\S+) was inferred to be a constant \((?P<size>\d+)\)",
        ),
        "torch.export fixes {dim} at {size}, perhaps because of a loop over it, a number, or a fixed size",
        "work on the whole tensor, take sizes from x.shape, or do not make {dim} dynamic (--dynamic)",
    ),
    Cause(
        "dimensions-tied",
        (CONSTRAINTS + r"The values of (?P<dim>\S+) = [^\n]{0,200}? and (?P<other>\S+) = \S+ must always be equal",),
        "The code needs {dim} and {other} to be equal",
        "give both the same name in inputs()",
    ),
    Cause(
        "dimension-narrowed",
        (r"Constraints violated(?: \((?P<dim>[^)]*)\))?",),
        "torch.export finds that the code does not support every promised size of {dim}",
        "narrow the range as the constraint says, or remove the code's requirement on that size",
    ),
    Cause(
        "rounded-to-digits",
        (
            r"SerializeError: Failed serializing node \w+ in graph: [^\n]*?target=builtins\.round\]\(args = \(%\w+, ",
            r"No ONNX function found for <function rounded_to_digits",
        ),
        "This target cannot round a number computed in the call to digits, as in round(x, 2)",
        "write round(x * 100) / 100 in place of round(x, 2)",
    ),
    Cause(
        "cannot-be-saved",
        (r"SerializeError: Failed serializing node (?P<op>\w+)", r"op <built-in function (?P<op>\w+)> is not in _SYM"),
        "torch.export.save cannot serialize {op}",
        "ship another target, or rewrite it: use // and % for arithmetic on sizes, and buffers for tensors",
    ),
)
