"""TorchScript versions of operators that libraries register in Python, which an artifact cannot call.

Each entry is a method equivalent to the library's function, named like the operator.
"""

METHODS = {
    # Rows of input, sorted by expert, times the weight of their expert; offs are the ends of the experts' rows.
    "transformers::grouped_mm_fallback": """
def grouped_mm_fallback(self, input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    output = torch.zeros([input.size(0), weight.size(2)], dtype=input.dtype, device=input.device)
    start = 0
    for expert in range(offs.size(0)):
        end = int(offs[expert])
        output[start:end] = torch.mm(input[start:end], weight[expert])
        start = end
    return output
""",
}
