"""Recipes of models that keep state, each named after the way it is kept."""

from __future__ import annotations

import collections

import torch
from torch import nn


def frames(batch: int = 1, samples: int = 24) -> torch.Tensor:
    return torch.randn(batch, samples)


class _Recipe:
    """Base of recipes: the model is `model`, and the inputs are frames of audio."""

    model: type[nn.Module]
    sizes: dict[str, tuple[int, int]] = {"samples": (16, 64)}
    inputs = staticmethod(lambda samples=24: torch.randn(1, samples))

    @classmethod
    def load(cls, weights: str) -> nn.Module:
        torch.manual_seed(0)
        return cls.model()


class Context(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 9)
        self.register_buffer("context", torch.zeros(1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = torch.cat([self.context, x], dim=-1)
        self.context.copy_(whole[..., -8:])
        return torch.sigmoid(self.conv(whole[:, None]))


class conv_streaming(_Recipe):
    model = Context


class average(_Recipe):
    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("s", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = 0.9 * self.s + x.mean(-1)
            self.s.copy_(y)
            return y


class lstm(_Recipe):
    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(4, 6, batch_first=True)
            self.register_buffer("h", torch.zeros(1, 1, 6))
            self.register_buffer("c", torch.zeros(1, 1, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out, (h, c) = self.rnn(x, (self.h, self.c))
            self.h.copy_(h)
            self.c.copy_(c)
            return out

    sizes = {"length": (1, 16)}
    inputs = staticmethod(lambda length=5: torch.randn(1, length, 4))


class gru(_Recipe):
    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(4, 6, batch_first=True)
            self.register_buffer("h", torch.zeros(1, 1, 6))

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            out, self.h = self.rnn(x, self.h)
            return {"out": out}

    sizes = {"length": (1, 16)}
    inputs = staticmethod(lambda length=5: torch.randn(1, length, 4))


class ring(_Recipe):
    """A ring buffer with an index."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("ring", torch.zeros(5))
            self.register_buffer("at", torch.zeros(1, dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.ring.index_copy_(0, self.at, x.mean().reshape(1))
            self.at.copy_((self.at + 1) % 5)
            return self.ring.mean() + x


class counter(_Recipe):
    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            self.count += 1
            return x * self.count, self.count.clone()


class cache(_Recipe):
    """Keys and values in buffers, filled from a position onwards."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.size = nn.Linear(8, 24), 16
            self.register_buffer("k", torch.zeros(1, 16, 8))
            self.register_buffer("v", torch.zeros(1, 16, 8))
            self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            self.k.index_copy_(1, self.position, k)
            self.v.index_copy_(1, self.position, v)
            mask = torch.arange(self.size, device=x.device)[None, None] <= self.position
            self.position += 1
            return nn.functional.scaled_dot_product_attention(q, self.k, self.v, mask)

    sizes = {}
    inputs = staticmethod(lambda: torch.randn(1, 1, 8))


class time_first(_Recipe):
    """The last inputs, in a convolution that only torch's older ONNX exporter translates."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(3, 4, 8)), nn.Parameter(torch.randn(8))
            self.register_buffer("last", torch.zeros(2, 1, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            window = torch.cat([self.last, x])
            self.last.copy_(window[1:])
            return torch.conv_tbc(window, self.weight, self.bias, 0)

    sizes = {}
    inputs = staticmethod(lambda: torch.randn(1, 1, 4))


class statistics(_Recipe):
    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("square", torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean.mul_(0.9).add_(0.1 * x.mean(0))
            self.square.lerp_((x * x).mean(0), 0.1)
            return (x - self.mean) / (self.square - self.mean**2 + 1e-3).clamp(min=1e-2).sqrt()

    sizes = {"batch": (1, 16)}
    inputs = staticmethod(lambda batch=3: torch.randn(batch, 4))


class of_batch(_Recipe):
    """State that has the size of the batch after the first call."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(4, 6)
            self.h: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.h is None or self.h.shape[0] != x.shape[0]:
                self.h = torch.zeros(x.shape[0], 6, dtype=x.dtype, device=x.device)
            self.h = self.cell(x, self.h)
            return self.h

    sizes = {"batch": (1, 16)}
    inputs = staticmethod(lambda batch=3: torch.randn(batch, 4))


class reassigned(_Recipe):
    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(4, 4)
            self.register_buffer("state", torch.full((1, 4), 0.5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            s = torch.tanh(self.mix(x) + self.state)
            self.state = s.mean(0, keepdim=True)
            return s

    sizes = {"batch": (1, 16)}
    inputs = staticmethod(lambda batch=3: torch.randn(batch, 4))


class in_a_list(_Recipe):
    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(4, 4)
            self.past = [torch.zeros(4), torch.zeros(4)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.mix(x) + 0.5 * self.past[0] + 0.25 * self.past[1]
            self.past = [y.mean(0), self.past[0]]
            return y

    sizes = {"batch": (1, 16)}
    inputs = staticmethod(lambda batch=3: torch.randn(batch, 4))


class delay(_Recipe):
    """Keeps the input of the previous call, and of the one before it in another form."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(1, 24))
            self.register_buffer("before", torch.zeros(24, 1))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            last, before = self.last.clone(), self.before.t().clone()
            self.before.copy_(last.t())
            self.last.copy_(x)
            return last, before

    sizes = {}


class in_one_tensor_thrice(_Recipe):
    """Keeps the last three inputs, which are the same tensor before the first call."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.past = collections.deque([torch.zeros(24)] * 3, maxlen=3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.past.append(x[0])
            return x + torch.stack(list(self.past)).mean(0)

    sizes = {}


class made_at_the_first_call(_Recipe):
    """The first call creates the cache and records its device."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.made = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.made:
                self.cache, self.device, self.made = torch.zeros(24), x.device, True
            self.cache = 0.5 * self.cache + torch.ones(24, device=self.device) * x.mean()
            return x + self.cache

    sizes = {}


class randomness(_Recipe):
    """Makes its own random numbers from a state in a buffer."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seed", torch.full((4,), 12345, dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seed.copy_((self.seed * 1103515245 + torch.arange(4, device=x.device) + 12345) % 2147483648)
            return x + self.seed.to(x.dtype) / 2147483648

    sizes = {"batch": (1, 16)}
    inputs = staticmethod(lambda batch=3: torch.randn(batch, 4))


class nested(_Recipe):
    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Context(), statistics.model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x).flatten(0, 1).transpose(0, 1))


class draws(_Recipe):
    """Draws random numbers with torch."""

    class model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.randn_like(x)


class counts_in_python(_Recipe):
    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * self.calls


class grows(_Recipe):
    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.past: list[torch.Tensor] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.past.append(x.mean())
            return x + torch.stack(self.past).sum()


class only_remembers(_Recipe):
    """Nothing reads what changes, or it is recomputed if it is missing."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.last: torch.Tensor | None = None
            self.ramp: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.ramp is None or len(self.ramp) != x.shape[-1]:
                self.ramp = torch.arange(x.shape[-1])
            self.calls += 1
            self.last = x * self.ramp
            return x * self.ramp


class changes_a_parameter(_Recipe):
    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.gain.mul_(0.9)
            return x * self.gain


class renormalizes(_Recipe):
    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(4, 3, max_norm=0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.table(x.long() % 4) + x[..., None]


class answers_its_state(_Recipe):
    """Returns the state itself, which the next call changes in place."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sum", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.sum += x.mean(-1)
            return self.sum


class long_echo(_Recipe):
    """A delay longer than the search, in a plain attribute."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.zeros(12)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + self.line[0]
            self.line = torch.cat([self.line[1:], x.mean().reshape(1)])
            return y


class long_queue(_Recipe):
    """A delay longer than the search, moved from one element to the next."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.past = tuple(torch.zeros(1) for _ in range(12))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + self.past[0]
            self.past = (*self.past[1:], x.mean().reshape(1))
            return y


class rare_event(_Recipe):
    """A flag that no call of the search sets."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("hit", torch.zeros(1, dtype=torch.bool))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.hit |= x.max() > 50
            return torch.where(self.hit, -x, x)


class noise_floor(_Recipe):
    """Follows the level of quiet frames in place; loud ones, all that the search sees, write the level that it has."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("noise", torch.full((1,), 0.001))
            self.register_buffer("mean", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            level = x.square().mean(-1)
            self.noise.copy_(torch.where(level > 50 * self.noise, self.noise, 0.9 * self.noise + 0.1 * level))
            self.mean.copy_(0.9 * self.mean + 0.1 * level)
            return self.mean / self.noise


class hangover(_Recipe):
    """Stays on for some quiet frames after a loud one; a loud frame, as all are in the search, hides the count."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("left", torch.zeros(1, dtype=torch.int32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            loud = x.square().mean(-1) > 0.05
            self.left.copy_(torch.where(loud, torch.full_like(self.left, 4), (self.left - 1).clamp(min=0)))
            return (loud | (self.left > 0)).float()

    sizes = {}


class hangover_in_an_attribute(_Recipe):
    """Begins with the count that each call of the search leaves, so that no value changes."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = torch.full((1,), 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            loud = x.square().mean(-1) > 0.05
            self.left = torch.where(loud, 4, (self.left - 1).clamp(min=0))
            return (loud | (self.left > 0)).float()


class hangover_made_at_the_first_call(_Recipe):
    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            left = torch.full((1,), 3) if self.left is None else self.left
            loud = x.square().mean(-1) > 0.05
            self.left = torch.where(loud, 4, (left - 1).clamp(min=0))
            return (loud | (self.left > 0)).float()


class Memory:
    def __init__(self, h: torch.Tensor, most: torch.Tensor) -> None:
        self.h, self.most, self.label = h, most, "memory"


class containers_of_the_first_call(_Recipe):
    """The first call makes a tuple, an object with a tensor that nothing reads, and the items of a list."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(4, 6)
            self.hx: tuple[torch.Tensor, torch.Tensor] | None = None
            self.memory: Memory | None = None
            self.sums: list[torch.Tensor] = []

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            self.hx = self.cell(x, self.hx)
            if self.memory is None:
                self.memory = Memory(x.new_zeros(x.shape), x.new_zeros(()))
            self.memory.h = 0.9 * self.memory.h + x
            self.memory.most = torch.maximum(self.memory.most, x.amax().clamp(max=1))
            if not self.sums:
                self.sums.append(x.new_zeros(4))
            self.sums[0] = self.sums[0] + x.sum(0)
            return self.hx[0] + 0, self.memory.h.tanh(), self.sums[0] * 2

    sizes = {"batch": (1, 16)}
    inputs = staticmethod(lambda batch=3: torch.randn(batch, 4))


class average_from_the_first_input(_Recipe):
    """Only the average begins with another computation than later calls; the counter and the LSTM do not."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(4, 6)
            self.hx: tuple[torch.Tensor, torch.Tensor] | None = None
            self.register_buffer("calls", torch.zeros(()))
            self.average: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.hx = self.cell(x, self.hx)
            self.average = x if self.average is None else 0.9 * self.average + 0.1 * x
            return self.hx[0].sum() + self.average / self.calls

    sizes = {}
    inputs = staticmethod(lambda: torch.randn(3, 4))


class average_chosen_by_a_counter(average_from_the_first_input):
    """The same, as the remedy says."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(4, 6)
            self.hx: tuple[torch.Tensor, torch.Tensor] | None = None
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("average", torch.zeros(3, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.hx = self.cell(x, self.hx)
            self.average = torch.where(self.calls == 0, x, 0.9 * self.average + 0.1 * x)
            self.calls += 1
            return self.hx[0].sum() + self.average / self.calls


class keyed_by_tuple(_Recipe):
    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cache = {(0, "k"): torch.zeros(1)}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.cache[0, "k"] = 0.5 * self.cache[0, "k"] + x.mean(-1)
            return x + self.cache[0, "k"]


class late_switch(_Recipe):
    """A Python number that changes the outputs only after more calls than the search makes."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return -x if self.calls > 20 else x + 0


class every_tenth(_Recipe):
    """A Python number that changes the outputs of every tenth call."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return -x if self.calls % 10 == 0 else x + 0


class late_mode(_Recipe):
    """A Python number that sets a word after more calls than the search makes; later calls read the word."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.mode = 0, "cold"

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls == 15:
                self.mode = "warm"
            return x * (2 if self.mode == "warm" else 1)


class long_list(_Recipe):
    """A list whose length changes the outputs after more calls than the search makes."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[torch.Tensor] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.append(x.mean())
            return -x if len(self.seen) > 15 else x + 0


class every_tenth_in_a_tensor(_Recipe):
    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = torch.zeros((), dtype=torch.int64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls = self.calls + 1
            return torch.where(self.calls % 10 == 0, -x, x)


class branches_on_its_state(_Recipe):
    """A branch that takes another side after more calls than the golden makes, and checks that raise."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert self.calls < 1000, "too many calls"
            self.calls += 1
            return -x if self.calls > 12 else x + 0


class turns(_Recipe):
    """A complex number that turns with each call."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("phase", torch.ones(1, dtype=torch.complex64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.phase *= torch.polar(torch.ones(1), torch.full((1,), 0.3))
            return x * self.phase.real


class logs(_Recipe):
    """Counts, compares and records what it has seen, only for a log."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.seen, self.lines = 0, [torch.zeros(())], ""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.seen.append(x.mean())
            while self.calls > 100:
                self.calls -= 100
            if self.calls % 10 == 0 and len(self.seen) > 5:
                self.lines = f"{self.calls} calls"
            return x * 2


class normalizes_in_training(_Recipe):
    """Updates running statistics that no output depends on."""

    class model(nn.BatchNorm1d):
        def __init__(self) -> None:
            super().__init__(4)

        def train(self, mode: bool = True) -> nn.Module:
            return super().train(True)

    sizes = {"batch": (2, 16)}
    inputs = staticmethod(lambda batch=3: torch.randn(batch, 4))


class averages_for_nobody(_Recipe):
    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.attention = torch.zeros(1), torch.zeros(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.attention = x.softmax(-1)
            self.mean = 0.9 * self.mean + x.mean(-1)
            return x * self.attention
