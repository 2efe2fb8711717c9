#include <ATen/ATen.h>
#include <exporter/contract.h>

#include "testing.h"

using exporter::Contract;

namespace {

const std::string kJson = R"({
  "schema": 1, "model": "m", "target": "trace", "device": "cpu", "torch": "2.14.1",
  "inputs": [{"name": "ids", "dtype": "int64", "shape": ["batch", "sequence"]},
             {"name": "mask", "dtype": "int64", "shape": ["batch", "sequence"]},
             {"name": "image", "dtype": "float32", "shape": ["batch", 3, null]}],
  "outputs": [{"name": "y", "dtype": "bfloat16", "shape": ["batch", 768, null]}],
  "symbols": {"batch": {"min": 1, "max": 64}, "sequence": {"min": 2, "max": 512}}})";

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = kJson;
  return text.replace(text.find(from), from.size(), to);
}

Contract contract() { return Contract::parse(kJson, "file"); }

std::vector<at::Tensor> inputs() {
  return {at::zeros({2, 14}, at::kLong), at::zeros({2, 14}, at::kLong), at::zeros({2, 3, 9})};
}

/// Checks that the contract refuses its own inputs once input `index` is `tensor`.
void refuses(std::size_t index, const at::Tensor& tensor, const std::string& message) {
  auto given = inputs();
  given[index] = tensor;
  EXPECT_ERROR(contract, message, contract().check(given));
}

void reads() {
  const Contract c = contract();
  EXPECT_EQUAL(c.model, "m");
  EXPECT_EQUAL(c.inputs.size(), 3u);
  EXPECT_EQUAL(c.symbols.size(), 2u);
  EXPECT_EQUAL(exporter::describe_shape(c.outputs[0], c), "[batch, 768, ?]");
  EXPECT(c.outputs[0].dtype == at::kBFloat16);
}

void refuses_bad_json() {
  const auto parse = [](const std::string& text) { return Contract::parse(text, "f.pt"); };
  EXPECT_ERROR(artifact, "f.pt: the contract cannot be read", parse("{"));
  EXPECT_ERROR(artifact, "f.pt", parse("[]"));
  EXPECT_ERROR(artifact, "schema 2 is not known",
               parse(replaced("\"schema\": 1", "\"schema\": 2")));
  EXPECT_ERROR(artifact, "unknown dtype, int65", parse(replaced("int64", "int65")));
  EXPECT_ERROR(artifact, "symbol sequence has no range",
               parse(replaced("\"sequence\": {", "\"x\": {")));
  EXPECT_ERROR(artifact, "device tpu", parse(replaced("\"cpu\"", "\"tpu\"")));
  EXPECT_ERROR(artifact, "model", parse(replaced("\"model\": \"m\",", "")));
}

void accepts() {
  contract().check(inputs());
  auto smallest = inputs();
  smallest[0] = smallest[1] = at::zeros({1, 2}, at::kLong);
  smallest[2] = at::zeros({1, 3, 0});
  contract().check(smallest);
}

void refuses_number() {
  EXPECT_ERROR(contract, "0 inputs given, the contract has 3: ids, mask, image",
               contract().check({}));
}

void refuses_tensors() {
  refuses(0, at::zeros({2, 14}), "ids: dtype float32, the contract wants int64");
  refuses(0, at::zeros({14}, at::kLong), "ids: 1 dimensions, the contract wants 2");
  refuses(0, at::zeros({65, 14}, at::kLong), "batch is 65, the contract allows 1..64");
  refuses(0, at::zeros({0, 14}, at::kLong), "batch is 0, the contract allows 1..64");
  refuses(0, at::zeros({2, 1}, at::kLong), "sequence is 1, the contract allows 2..512");
  refuses(1, at::zeros({2, 13}, at::kLong), "mask dim 1 is 13 but sequence is 14 (from ids)");
  refuses(2, at::zeros({2, 4, 9}), "image dim 1 is 4, the contract wants 3");
  refuses(2, at::zeros({3, 3, 9}), "image dim 0 is 3 but batch is 2 (from ids)");
  refuses(2, at::Tensor(), "image: no tensor given");
}

}  // namespace

int main() {
  return testing::run({{"reads", reads},
                       {"refuses bad JSON", refuses_bad_json},
                       {"accepts what fits", accepts},
                       {"refuses another number of inputs", refuses_number},
                       {"refuses tensors that do not fit", refuses_tensors}});
}
