"""The records of a contract: what an artifact takes and returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from exporter.core.expressions import Expression
from exporter.core.json_schema import described
from exporter.core.size_range import Range as Range

CONTRACT_SCHEMAS = (1, 2)  # that are read; the last is what is written


STATE = "state."  # begins the name of an input or output that is state


FP32 = "fp32"  # the usual precision: the model's own, with float32 that is float32


PRECISIONS = (FP32, "tf32", "bf16", "fp16", "int8")


DEVICES = ("cpu", "cuda")


# Bytes of an element, by torch's names of the dtypes that a contract may have.
ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


Dim = int | str | None


@dataclass(frozen=True)
class TensorSpec:
    """One named tensor: a dimension is a size, a symbol's name, an expression of one, or None for anything."""

    name: str = described("Its name.")
    dtype: str = described("Its dtype, by torch's name without `torch.`.")
    shape: tuple[Dim, ...] = described("Its dimensions.", minimum=0)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of a live tensor, whose dimensions are all sizes. ValueError for any other."""
        sizes = tuple(dim for dim in self.shape if isinstance(dim, int))
        if len(sizes) != len(self.shape):
            raise ValueError(f"{self.name} has dimensions that are no sizes: {self.shape}")
        return sizes


@dataclass(frozen=True)
class Build:
    """What the machine code in an artifact was built for, and with.

    `isa` are the instruction sets that it may use, as /proc/cpuinfo names them; `level` is what they are together where
    that is a known set, as x86-64-v3. `capability` is the GPU's compute capability, as 9.0; `cuda` and `driver` are
    versions. Those three are empty where nothing runs on a GPU.
    """

    isa: tuple[str, ...] = described("Instruction sets that it may use, as Linux names them.", ())
    level: str = described("What they are together, such as x86-64-v3; empty where they are one CPU's own.", "")
    capability: str = described("Compute capability of the GPU, such as 9.0; empty where nothing runs on one.", "")
    cuda: str = described("Version of CUDA; empty where nothing runs on a GPU.", "")
    driver: str = described("Version of NVIDIA's driver; empty where it is not known.", "")


@dataclass(frozen=True)
class Values:
    """A tensor's values: `data` is base64 of its bytes, contiguous and little-endian."""

    shape: tuple[int, ...] = described("Its sizes.", minimum=0)
    data: str = described("Its bytes, contiguous and little-endian.", contentEncoding="base64")


@dataclass(frozen=True)
class StateTensor:
    """One tensor of state. `initial` is broadcast to `shape`; a number fills it (0 or 1 where it is bool)."""

    name: str = described("Where the model keeps it.")
    dtype: str = described("torch's name of the dtype.")
    shape: tuple[Dim, ...] = described("Its dimensions.", minimum=0)
    initial: int | float | Values = described(
        "What it is before the first call, broadcast to the shape: a number that fills it, or values."
    )

    @property
    def spec(self) -> TensorSpec:
        """As an input or output of an artifact that keeps it outside."""
        return TensorSpec(f"{STATE}{self.name}", self.dtype, self.shape)


@dataclass(frozen=True)
class KeptState:
    """What a call leaves for the next.

    Kept `inside`, the artifact carries it from call to call, until it is reset. Kept `outside`, the last inputs and the
    last outputs of the artifact are the state, in this order, each called `state.NAME`.
    """

    kept: Literal["inside", "outside"] = described(
        "inside: the artifact carries it. outside: its last inputs and its last outputs are the state, called "
        "state.NAME."
    )
    tensors: tuple[StateTensor, ...] = described("The tensors of the state, in order.", minItems=1)


@dataclass(frozen=True)
class Contract:
    """What an artifact takes and gives. `constants` are inputs of the model that are baked in: scalars and flags.

    `ops` are namespaces of operators outside torch's own that the artifact calls. `precision` is what it computes in;
    its inputs and outputs are the model's own. `build` is there where the artifact holds machine code, `state` where
    a call leaves something for the next.
    """

    model: str = described("The model's name.")
    inputs: tuple[TensorSpec, ...] = described("Inputs, in the order in which they are passed.")
    outputs: tuple[TensorSpec, ...] = described("Outputs, in order.")
    symbols: dict[str, Range] = described("Bounds of each symbol.")
    target: str = described("The target of the artifact; empty for the model's own contract.", "")
    device: str = described("Where the artifact runs.", "cpu", enum=["cpu", "cuda"])
    torch: str = described("Version of torch that made it.", "")
    constants: dict[str, bool | int | float | str] = described(
        "Inputs of the model that are baked in: scalars as they are, all else as Python writes it.", dict
    )
    ops: tuple[str, ...] = described(
        "Namespaces of operators outside torch's own that the artifact calls, such as torchvision.", ()
    )
    precision: str = described(
        "What it computes in; fp32 is the model's own. Inputs and outputs are the model's in any.",
        FP32,
        enum=["fp32", "tf32", "bf16", "fp16", "int8"],
    )
    build: Build | None = described(
        "What the machine code in the artifact was built for; null where it holds none.", None
    )
    state: KeptState | None = described("What a call leaves for the next; null where it leaves nothing.", None)
    schema: int = described("Number of the contract's format.", CONTRACT_SCHEMAS[-1], enum=[1, 2])

    def __post_init__(self) -> None:
        """ValueError for a dimension whose symbol has no range."""
        state = tuple(tensor.spec for tensor in self.state.tensors) if self.state else ()
        for spec in (*self.inputs, *self.outputs, *state):
            for dim in spec.shape:
                if isinstance(dim, str) and Expression.parse(dim).name not in self.symbols:
                    raise ValueError(f"{spec.name} has a dimension {dim}, which has no range")
