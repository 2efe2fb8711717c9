"""The records of a contract: the inputs and outputs of an artifact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from exporter.core.expressions import Expression
from exporter.core.json_schema import described
from exporter.core.size_range import Range as Range
from exporter.core.size_range import Sizes

CONTRACT_SCHEMAS = (1, 2)  # supported when reading; the last one is written


STATE = "state."  # prefix of the name of an input or output that is state


FP32 = "fp32"  # the default precision: that of the model, without TF32


PRECISIONS = (FP32, "tf32", "bf16", "fp16", "int8", "fp16w", "int8w")


DEVICES = ("cpu", "cuda")


# Bytes per element of the dtypes that a contract may have, by their names in torch.
ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


Dim = int | str | None


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor. A dimension is a size, a symbol's name, an expression of symbols, or None for any size."""

    name: str = described("Its name.")
    dtype: str = described("Its dtype: torch's name without `torch.`.")
    shape: tuple[Dim, ...] = described("Its dimensions.", minimum=0)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of a live tensor. Raises ValueError if a dimension is not a size."""
        sizes = tuple(dim for dim in self.shape if isinstance(dim, int))
        if len(sizes) != len(self.shape):
            raise ValueError(f"{self.name} has dimensions that are not sizes: {self.shape}")
        return sizes


@dataclass(frozen=True)
class Build:
    """The machine that an artifact's machine code was built for, and the tools that built it.

    `isa` lists the instruction sets that the code may use, by their names in /proc/cpuinfo. `level` is the name of the
    whole set if it has one, such as x86-64-v3. `capability` is the GPU's compute capability, such as 9.0; `cuda` and
    `driver` are versions. These three are empty if nothing runs on a GPU.
    """

    isa: tuple[str, ...] = described("Instruction sets that the code may use, by their names in Linux.", ())
    level: str = described("The name of the whole set, such as x86-64-v3; empty if it is specific to one CPU.", "")
    capability: str = described("Compute capability of the GPU, such as 9.0; empty if nothing runs on a GPU.", "")
    cuda: str = described("Version of CUDA; empty if nothing runs on a GPU.", "")
    driver: str = described("Version of NVIDIA's driver; empty if unknown.", "")


@dataclass(frozen=True)
class Values:
    """The values of a tensor: `data` is the base64 of its bytes, contiguous and little-endian."""

    shape: tuple[int, ...] = described("Its sizes.", minimum=0)
    data: str = described("Its bytes, contiguous and little-endian.", contentEncoding="base64")


@dataclass(frozen=True)
class StateTensor:
    """One tensor of state. `initial` is broadcast to `shape`; a number fills it (0 or 1 for bool)."""

    name: str = described("The path of the tensor in the model.")
    dtype: str = described("Its dtype: torch's name without `torch.`.")
    shape: tuple[Dim, ...] = described("Its dimensions.", minimum=0)
    initial: int | float | Values = described(
        "The value before the first call, broadcast to the shape: a number that fills it, or values."
    )

    @property
    def spec(self) -> TensorSpec:
        """The tensor as an input or output of an artifact with state kept outside."""
        return TensorSpec(f"{STATE}{self.name}", self.dtype, self.shape)


@dataclass(frozen=True)
class KeptState:
    """The state that a call leaves for the next.

    Kept `inside`, the artifact carries it from call to call until it is reset. Kept `outside`, the last inputs and the
    last outputs of the artifact are the state tensors, in this order, each called `state.NAME`.
    """

    kept: Literal["inside", "outside"] = described(
        "inside: the artifact carries the state. outside: its last inputs and outputs are the state, called state.NAME."
    )
    tensors: tuple[StateTensor, ...] = described("The tensors of the state, in order.", minItems=1)


@dataclass(frozen=True)
class Contract:
    """The inputs and outputs of an artifact. `constants` are inputs of the model that are baked in: scalars and flags.

    `ops` are the namespaces of custom operators that the artifact calls. `precision` is the precision of the
    computation; inputs and outputs keep the model's dtypes. `build` is set if the artifact contains machine code, and
    `state` if the model keeps state. Each of the `entries` has sizes that the package holds a model of its own for.
    """

    model: str = described("The model's name.")
    inputs: tuple[TensorSpec, ...] = described("Inputs, in the order in which they are passed.")
    outputs: tuple[TensorSpec, ...] = described("Outputs, in order.")
    symbols: dict[str, Range] = described("Bounds of each symbol.")
    target: str = described("The target of the artifact; empty for the model's own contract.", "")
    device: str = described("The device that the artifact runs on.", "cpu", enum=["cpu", "cuda"])
    torch: str = described("Version of torch that created the artifact.", "")
    constants: dict[str, bool | int | float | str] = described(
        "Inputs of the model that are baked in: scalars as they are, other values as their Python repr.", dict
    )
    ops: tuple[str, ...] = described(
        "Namespaces of the custom operators that the artifact calls, such as torchvision.", ()
    )
    precision: str = described(
        "Precision of the computation; fp32 is the model's own. fp16w and int8w compute in float32 with weights stored "
        "in float16 or int8. Inputs and outputs keep the model's dtypes. Layers that compute in float32, with weights "
        "of their own, follow +fp32:, separated by +.",
        FP32,
        pattern=r"^(fp32|tf32|((bf16|fp16w?|int8w?)(\+fp32:[\w.-]+(\+[\w.-]+)*)?))$",
    )
    build: Build | None = described(
        "The machine that the artifact's machine code was built for; null if it contains none.", None
    )
    state: KeptState | None = described(
        "The state that a call leaves for the next; null if the model keeps none.", None
    )
    entries: tuple[Sizes, ...] = described(
        "Sizes for which the package holds a separate model, beside the one for all sizes.", (), minimum=1
    )
    schema: int = described("Version of the contract's format.", CONTRACT_SCHEMAS[-1], enum=[1, 2])

    def __post_init__(self) -> None:
        """Raise ValueError if the symbol of a dimension has no range."""
        state = tuple(tensor.spec for tensor in self.state.tensors) if self.state else ()
        for spec in (*self.inputs, *self.outputs, *state):
            for dim in spec.shape:
                if isinstance(dim, str) and Expression.parse(dim).unknown(self.symbols):
                    raise ValueError(f"{spec.name} has a dimension {dim}, which has no range")
