"""Mixtures of experts from transformers: what they compute during export."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.size_range import Range
from exporter.evidence import eager
from exporter.model import capture, mixture_of_experts
from exporter.model.flattening import FlatModule, flatten_inputs

TOKENS, CHOSEN = 7, 2


def made(kind: str, name: str, **sizes: Any) -> Any:
    """Return the experts of a model, each with different weights."""
    config = getattr(importlib.import_module("transformers"), f"{name}Config")(**sizes)
    found = getattr(importlib.import_module(f"transformers.models.{kind}.modeling_{kind}"), f"{name}Experts")(config)
    torch.manual_seed(0)
    for parameter in found.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return found.requires_grad_(False).double()


SMALL = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
KINDS = (  # with gate; without gate; interleaved and transposed, with bias
    ("mixtral", "Mixtral", {**SMALL, "num_local_experts": 4}),
    ("nemotron_h", "NemotronH", {"hidden_size": 16, "moe_intermediate_size": 24, "n_routed_experts": 4}),
    ("gpt_oss", "GptOss", {**SMALL, "num_local_experts": 4}),
)


@pytest.mark.parametrize(("kind", "name", "sizes"), KINDS)
def test_the_result_is_that_of_each_expert_in_turn(kind: str, name: str, sizes: Any) -> None:
    module = made(kind, name, **sizes)
    inputs = torch.randn(TOKENS, 16, dtype=torch.float64)
    index = torch.stack([torch.randperm(4)[:CHOSEN] for _ in range(TOKENS)])
    share = torch.rand(TOKENS, CHOSEN, dtype=torch.float64)
    module.config._experts_implementation = "eager"
    wanted = module(inputs, index, share)
    with mixture_of_experts.dense(module):
        assert module.config._experts_implementation == mixture_of_experts.NAME
        given = module(inputs, index, share)
    assert module.config._experts_implementation == "eager"
    torch.testing.assert_close(given, wanted, rtol=1e-9, atol=1e-9)


def test_experts_that_were_not_chosen_may_be_infinite() -> None:
    module = made(*KINDS[0][:2], **KINDS[0][2])
    module.down_proj[3] = torch.inf
    with mixture_of_experts.dense(module):
        given = module(torch.randn(5, 16).double(), torch.tensor([[0, 1]] * 5), torch.ones(5, 2).double())
    assert given.isfinite().all()


def mine() -> torch.nn.Module:
    """Return a user module that contains a block from transformers."""
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    torch.manual_seed(0)
    block = MixtralSparseMoeBlock(MixtralConfig(**SMALL, num_local_experts=4))
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    block.experts.config._experts_implementation = "grouped_mm"
    return torch.nn.Sequential(block, torch.nn.Linear(16, 3)).eval().requires_grad_(False)


def test_a_block_in_a_user_module_exports_at_any_size_and_has_a_reference() -> None:
    model, example = mine(), torch.randn(2, 5, 16)
    flat = FlatModule(model, flatten_inputs(model, example)).eval()
    shape = ("batch", "sequence")
    contract = Contract(
        "mine",
        (TensorSpec("input", "float32", (*shape, 16)),),
        (TensorSpec("output", "float32", (*shape, 3)),),
        {"batch": Range(1, 4), "sequence": Range(1, 16)},
    )
    program = capture.export_program(flat, (example,), contract)
    assert not [node for node in program.graph.nodes if "grouped_mm" in str(node.target)]
    other = torch.randn(3, 11, 16)
    wanted = eager.run(flat, (other,), "cpu")
    torch.testing.assert_close(program.module()(other), wanted, rtol=1e-4, atol=1e-5)
    references, kind = eager.references(flat, [(other,)], [wanted])
    assert kind == "float64"
    torch.testing.assert_close(references[0][0].float(), wanted[0], rtol=1e-4, atol=1e-5)
