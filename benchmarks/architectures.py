"""The architectures of `coverage.py`: models of libraries, by name, and the recipes of small models.

`IMPOSSIBLE` lists the pairs that are impossible in principle, with the reason. Such a pair must be refused.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor, nn
from zoo import recipes as zoo

# fmt: off
TORCHVISION = [
    "alexnet", "vgg11", "resnet18", "densenet121", "googlenet", "inception_v3", "mobilenet_v2",
    "mobilenet_v3_small", "mnasnet0_5", "shufflenet_v2_x0_5", "squeezenet1_1", "efficientnet_b0", "regnet_y_400mf",
    "convnext_tiny", "vit_b_32", "swin_t", "maxvit_t", "fcn_resnet50", "deeplabv3_mobilenet_v3_large",
    "lraspp_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn", "ssdlite320_mobilenet_v3_large", "r3d_18",
    "raft_small",
]
TRANSFORMERS = [
    "bert", "distilbert", "albert", "deberta-v2", "mpnet", "gpt2", "llama",
    "qwen2", "gemma", "phi", "bloom", "mixtral", "t5", "bart", "vit", "swin", "convnext",
    "segformer", "detr", "dinov2", "wav2vec2", "whisper", "clip", "siglip", "blip", "mamba", "encodec", "mimi",
]
# fmt: on
OWN = ["lstm", "gru", "branch", "cond", "loop", "mask", "embedding_bag", "scatter", "rfft", "counter", "proposals"]
# fmt: off
QUICK = [
    "torchvision:squeezenet1_1", "hf:gpt2", "hf:t5", "own:lstm", "own:branch", "own:cond", "own:loop", "own:mask",
    "own:embedding_bag", "own:scatter", "own:rfft", "own:counter",
]
# fmt: on

# Small images save time and do not affect the verdict. The other models accept only one image size.
_SMALL = (
    *("alexnet", "vgg11", "resnet18", "densenet121", "googlenet", "inception_v3", "mobilenet_v2", "mobilenet_v3_small"),
    *("mnasnet0_5", "shufflenet_v2_x0_5", "squeezenet1_1", "efficientnet_b0", "regnet_y_400mf", "convnext_tiny"),
    *("fcn_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large"),
)
_DETECTORS = ("fasterrcnn_mobilenet_v3_large_320_fpn", "ssdlite320_mobilenet_v3_large")  # a list of two images
SIZES = {
    f"torchvision:{name}": ["image=128"] * (name in _SMALL) + ["batch=1..6"] * (name not in _DETECTORS)
    for name in TORCHVISION
}
SIZES["torchvision:r3d_18"] += ["frames=8", "image=64"]
SIZES["torchvision:raft_small"] += ["num_flow_updates=4"]

_BRANCH = "a branch that depends on values, which a recording of one run cannot represent"
_LOOP = "a Python loop over a size, which every recording unrolls"
_DETECTION = "boxes are selected by their values, in Python, which torch.export cannot represent"
_PADDING = "the padding of a convolution is computed from the values of tensors"
_CARRIED = "an ONNX model keeps no state between calls"
IMPOSSIBLE: dict[tuple[str, str], str] = {
    **{(f"zoo:{name}", "onnx"): _CARRIED for name in zoo.STREAMS},
    ("own:counter", "onnx"): _CARRIED,
    **{("own:loop", target): _LOOP for target in ("trace", "compile", "export", "onnx")},
    # torch.jit.script cannot read its source either.
    **{("hf:mamba", target): _LOOP for target in ("trace", "script", "compile", "export", "onnx")},
    **{("hf:mimi", target): _PADDING for target in ("script", "compile", "export", "onnx")},
    **{("own:branch", target): _BRANCH for target in ("trace", "compile", "export", "onnx")},
    ("own:cond", "trace"): _BRANCH,
    **{
        (f"torchvision:{name}", target): _DETECTION
        for name in ("fasterrcnn_mobilenet_v3_large_320_fpn", "ssdlite320_mobilenet_v3_large")
        for target in ("trace", "compile", "export", "onnx")
    },
}


def every() -> list[str]:
    """Return all architectures as `SOURCE:NAME`; those with state also as `SOURCE:NAME@inputs`, for --state inputs."""
    streams = [f"{name}@inputs" for name in zoo.STREAMS]
    names = {"torchvision": TORCHVISION, "hf": TRANSFORMERS, "own": OWN, "zoo": [*zoo.NAMES, *streams]}
    return [f"{source}:{name}" for source, found in names.items() for name in found]


def missing(name: str) -> list[str]:
    """Return the packages that an architecture needs and that are not installed."""
    source, _, model = name.partition("@")[0].partition(":")
    needs = getattr(zoo, model).needs if source == "zoo" else ()
    return [package for package in needs if importlib.util.find_spec(package) is None]


class _Recipe:
    """A recipe for a module class, with a batch of 1 to 16."""

    sizes = {"batch": (1, 16)}
    module: type[nn.Module]

    def load(self, weights: str) -> nn.Module:
        """Return the module with random weights."""
        return self.module()


class _Sequences(_Recipe):
    sizes = {"batch": (1, 16), "sequence": (1, 64)}

    def inputs(self, batch: int = 2, sequence: int = 7) -> tuple[Tensor, ...]:
        """Return vectors of 8 numbers, [batch, sequence, 8]."""
        return (torch.randn(batch, sequence, 8),)


class _Rows(_Recipe):
    def inputs(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Return rows of 8 numbers, [batch, 8]."""
        return (torch.randn(batch, 8),)


class lstm(_Sequences):
    """An LSTM with its state among the outputs."""

    class module(nn.LSTM):
        """Two bidirectional layers."""

        def __init__(self) -> None:
            super().__init__(8, 16, num_layers=2, batch_first=True, bidirectional=True)


class gru(_Sequences):
    """A GRU."""

    class module(nn.GRU):
        """One layer."""

        def __init__(self) -> None:
            super().__init__(8, 16, batch_first=True)


class branch(_Rows):
    """A branch that depends on values, in Python."""

    class module(nn.Module):
        """Applies one of two layers, chosen by the sign of the sum."""

        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 0:
                return self.left(x)
            return self.right(x)


class cond(_Rows):
    """The same branch as torch.cond."""

    class module(nn.Module):
        """Applies one of two layers, chosen by the sign of the sum."""

        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            answer: Tensor = torch.cond(x.sum() > 0, lambda x: self.left(x), lambda x: self.right(x), (x,))
            return answer


class loop(_Sequences):
    """A Python loop over a size, which tracing and torch.export unroll."""

    class module(nn.Module):
        """A running mean."""

        def forward(self, x: Tensor) -> Tensor:
            state = torch.zeros_like(x[:, 0])
            for i in range(x.shape[1]):
                state = 0.9 * state + 0.1 * x[:, i]
            return state


class mask(_Rows):
    """An output whose size depends on values."""

    class module(nn.Module):
        """Selects the rows with a positive sum."""

        def forward(self, x: Tensor) -> Tensor:
            return x[x.sum(dim=1) > 0] * 2


class embedding_bag(_Recipe):
    """Bags of indices with offsets."""

    class module(nn.Module):
        """The sum of each bag."""

        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(50, 8, mode="sum")

        def forward(self, indices: Tensor, offsets: Tensor) -> Tensor:
            answer: Tensor = self.bag(indices, offsets)
            return answer

    def inputs(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Return three indices per bag, and the offsets of the bags."""
        return torch.randint(0, 50, (3 * batch,)), torch.arange(0, 3 * batch, 3)


class scatter(_Rows):
    """Sums by index."""

    class module(nn.Module):
        """Adds pairs of neighboring columns."""

        def forward(self, x: Tensor) -> Tensor:
            index = (torch.arange(x.shape[1]) // 2).expand(x.shape[0], -1)
            return torch.zeros(x.shape[0], 4).scatter_add(1, index, x)


class rfft(_Sequences):
    """The magnitude of a spectrum, with complex numbers inside."""

    class module(nn.Module):
        """Transforms along the sequence."""

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.rfft(x, dim=1).abs()


class proposals(_Recipe):
    """The second half of a detector, with operators of torchvision, and an output whose size depends on values."""

    class module(nn.Module):
        """Selects boxes by non-maximum suppression and pools the features in each."""

        def __init__(self) -> None:
            import torchvision  # noqa: F401, it registers the operators

            super().__init__()
            self.features, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(16, 5)

        def forward(self, image: Tensor, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
            kept = boxes[torch.ops.torchvision.nms(boxes, scores, 0.5)]
            rois = torch.cat([torch.zeros_like(kept[:, :1]), kept], dim=1)
            pooled = torch.ops.torchvision.roi_align(self.features(image), rois, 1.0, 2, 2, 2, False)
            return kept, self.head(pooled.flatten(1))

    sizes = {"boxes": (8, 32)}  # in an exported program, torchvision's nms must keep at least 2

    def inputs(self, boxes: int = 12) -> tuple[Tensor, ...]:
        """Return an image, [1, 3, 24, 32], and boxes in it, [boxes, 4], with their scores."""
        corner, size = torch.rand(boxes, 2) * 12, 4 + 8 * torch.rand(boxes, 2)
        return torch.rand(1, 3, 24, 32), torch.cat([corner, corner + size], 1), torch.rand(boxes)


class counter(_Rows):
    """A buffer that the model changes."""

    class module(nn.Module):
        """Adds a running sum to its input. The sum is always zero, but the buffer changes."""

        seen: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            self.seen.add_(x.sum(dim=0) * 0.0)
            return x + self.seen
