// Tests artifacts with state: who keeps it, and when it is reset.

#include <ATen/ATen.h>
#include <exporter/artifact.h>
#include <exporter/golden.h>
#include <exporter/stream.h>

#include <thread>

#include "state.h"
#include "support.h"

namespace fs = std::filesystem;
using exporter::Artifact;
using exporter::Golden;
using exporter::GoldenCase;
using support::fixtures;

namespace {

const std::vector<std::string> kOutside = {"stream.pt", "stream.pt2"};
const std::vector<std::string> kInside = {"carry.pt", "carry.pt2"};

std::vector<GoldenCase> cases_of(const std::string& name) {
  return Golden::read(fixtures() / name).cases;
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected) {
  CHECK(actual.sizes() == expected.sizes());
  CHECK(at::allclose(actual, expected, 1e-5, 1e-6));
}

TEST_CASE("reads steps") {
  const auto cases = cases_of("golden_stream.safetensors");
  REQUIRE(cases.size() == 6u);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CHECK(*cases[i].step == static_cast<std::int64_t>(i % 3));
    REQUIRE(cases[i].inputs.size() == (i % 3 == 0 ? 3u : 1u));
  }
  // "batch=2 step 1" is excluded, and so is the step after it.
  REQUIRE(Golden::read(fixtures() / "golden_stream.safetensors", "bf16").cases.size() == 4u);
  CHECK(!cases_of("golden.safetensors")[0].step);
}

/// Runs both sequences of the golden in one stream, with a reset between them.
void run_sequences(const std::string& name, const std::string& golden) {
  CAPTURE(name);
  const auto artifact = Artifact::open(fixtures() / name);
  auto stream = artifact.stream();
  for (const GoldenCase& one : cases_of(golden)) {
    if (one.step == 0) stream.reset();
    const auto outputs = stream.run({one.inputs[0]});
    REQUIRE(outputs.size() == 1u);
    expect_close(outputs[0], one.eager[0]);
  }
}

TEST_CASE("matches the golden's sequences") {
  for (const std::string& name : kOutside) run_sequences(name, "golden_stream.safetensors");
  for (const std::string& name : kInside) run_sequences(name, "golden_carry.safetensors");
}

TEST_CASE("keeps streams apart") {
  for (const std::string& name : kOutside) {
    CAPTURE(name);
    const auto artifact = Artifact::open(fixtures() / name);
    const auto cases = cases_of("golden_stream.safetensors");
    auto first = artifact.stream();
    auto second = artifact.stream();
    for (std::size_t i = 0; i < 3; ++i) {
      expect_close(first.run({cases[i].inputs[0]})[0], cases[i].eager[0]);
      expect_close(second.run({cases[i + 3].inputs[0]})[0], cases[i + 3].eager[0]);
    }
  }
}

TEST_CASE("refuses another batch") {
  for (const std::string& name : kOutside) {
    CAPTURE(name);
    const auto artifact = Artifact::open(fixtures() / name);
    auto stream = artifact.stream();
    CHECK_ERROR(contract, "batch is 9", stream.run({at::ones({9, 4})}));
    const at::Tensor first = stream.run({at::ones({1, 4})})[0];
    CHECK_ERROR(contract,
                "batch is 2, but state.context was made for 1: call reset() before another size",
                stream.run({at::ones({2, 4})}));
    CHECK_ERROR(contract, "1 beside its state: x", stream.run({}));
    stream.reset();
    expect_close(stream.run({at::ones({2, 4})})[0], first.expand({2}));
  }
}

/// A failed call leaves the state unchanged.
TEST_CASE("continues after a failure") {
  const auto artifact = Artifact::open(fixtures() / "stream.pt");
  const auto cases = cases_of("golden_stream.safetensors");
  auto stream = artifact.stream();
  stream.run({cases[0].inputs[0]});
  CHECK_ERROR(contract, "dtype", stream.run({cases[1].inputs[0].to(at::kDouble)}));
  expect_close(stream.run({cases[1].inputs[0]})[0], cases[1].eager[0]);
}

/// The model returns its input as its state, but the caller may reuse the buffer.
TEST_CASE("shares no memory with the caller") {
  const auto artifact = Artifact::open(fixtures() / "last.pt");
  auto stream = artifact.stream();
  at::Tensor buffer = at::full({1, 4}, 5.0);
  expect_close(stream.run({buffer})[0], at::ones({1, 4}));
  buffer.fill_(7);
  expect_close(stream.run({buffer})[0], at::full({1, 4}, 6.0));
}

TEST_CASE("refuses calls of a moved-from stream") {
  for (const std::string name : {"stream.pt", "carry.pt"}) {
    CAPTURE(name);
    const auto artifact = Artifact::open(fixtures() / name);
    const auto cases = cases_of("golden_stream.safetensors");
    auto first = artifact.stream();
    const at::Tensor input = cases[0].inputs[0];
    const at::Tensor output = first.run({input})[0];
    auto second = std::move(first);
    CHECK_ERROR(usage, "the stream was moved from", first.run({input}));
    CHECK_ERROR(usage, "the stream was moved from", (first.reset(), 0));
    second.reset();
    first = std::move(second);
    expect_close(first.run({input})[0], output);
  }
}

TEST_CASE("refuses an artifact without state") {
  const auto artifact = Artifact::open(fixtures() / "model.pt");
  CHECK_ERROR(usage, "model.pt has no state", artifact.stream());
  artifact.reset();  // nothing to do
}

/// Resets after complete and incomplete sequences.
TEST_CASE("resets the state") {
  for (const std::string& name : kInside) {
    CAPTURE(name);
    const auto artifact = Artifact::open(fixtures() / name, {.runners = 4});
    const auto cases = cases_of("golden_carry.safetensors");
    for (const std::size_t calls : {2, 3, 1, 3}) {
      for (std::size_t i = 0; i < calls; ++i) {
        expect_close(artifact.run(cases[i].inputs)[0], cases[i].eager[0]);
      }
      artifact.reset();
    }
    CHECK(artifact.execution_mode() == "");
  }
}

TEST_CASE("keeps artifacts apart") {
  for (const std::string& name : kInside) {
    CAPTURE(name);
    const auto first = Artifact::open(fixtures() / name);
    const auto cases = cases_of("golden_carry.safetensors");
    first.run(cases[0].inputs);
    const auto second = Artifact::open(fixtures() / name);
    expect_close(second.run(cases[0].inputs)[0], cases[0].eager[0]);
    expect_close(first.run(cases[1].inputs)[0], cases[1].eager[0]);
  }
}

/// The count goes up by one with each call, so calls neither get lost nor overlap.
TEST_CASE("serializes calls") {
  for (const std::string& name : kInside) {
    CAPTURE(name);
    constexpr int kThreads = 4;
    constexpr int kCalls = 4;
    const auto artifact = Artifact::open(fixtures() / name, {.runners = 4});
    const at::Tensor zeros = at::zeros({1, 4});
    for (int i = 0; i < 2; ++i) artifact.run({zeros});  // now the context is all zeros
    std::vector<std::vector<float>> seen(kThreads);
    std::vector<std::thread> threads;
    for (auto& mine : seen) {
      threads.emplace_back([&] {
        for (int i = 0; i < kCalls; ++i) mine.push_back(artifact.run({zeros})[0].item<float>());
      });
    }
    for (auto& thread : threads) thread.join();
    std::vector<float> all;
    for (const auto& mine : seen) all.insert(all.end(), mine.begin(), mine.end());
    std::sort(all.begin(), all.end());
    for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i] == 5.0f + static_cast<float>(i));
  }
}

/// Freezing keeps a state that is not folded into a constant.
TEST_CASE("keeps a frozen state") {
  const auto artifact = Artifact::open(fixtures() / "carry_frozen.pt2");
  const auto cases = cases_of("golden_carry.safetensors");
  for (int sequence = 0; sequence < 2; ++sequence) {
    for (int i = 0; i < 3; ++i) {
      const auto& one = cases[static_cast<std::size_t>(i)];
      expect_close(artifact.run(one.inputs)[0] + (3 + i), one.eager[0]);
    }
    artifact.reset();
  }
}

/// Without this check, a state made for a batch of 1 would silently broadcast to another batch.
TEST_CASE("refuses another batch for a state kept inside") {
  const auto artifact = Artifact::open(fixtures() / "carry_batch.pt");
  for (const GoldenCase& one : cases_of("golden_stream.safetensors")) {
    if (one.step == 0) artifact.reset();
    expect_close(artifact.run({one.inputs[0]})[0], one.eager[0]);
  }
  CHECK_ERROR(contract,
              "batch is 1, but state.context was made for 2: call reset() before another size",
              artifact.run({at::ones({1, 4})}));
  auto stream = artifact.stream();
  stream.run({at::ones({1, 4})});
  CHECK_ERROR(contract, "call reset()", stream.run({at::ones({3, 4})}));
}

TEST_CASE("refuses artifacts that lost their state") {
  CHECK_ERROR(artifact, "the package has no constant for state count: the compiler folded it",
              Artifact::open(fixtures() / "folded.pt2"));
  CHECK_ERROR(artifact, "it keeps its state, but has no method reset",
              Artifact::open(fixtures() / "no_reset.pt"));
}

TEST_CASE("fills in the initial state") {
  const auto contract = exporter::inspect(fixtures() / "stream.pt").contract;
  const auto example = cases_of("golden_stream.safetensors")[3];
  const fs::path file = fixtures() / "written.safetensors";
  exporter::Contract own = contract;
  own.outputs = {contract.inputs[0]};
  exporter::write_outputs(file, {example.inputs[0]}, own);
  const auto filled = exporter::read_inputs(file, contract);
  REQUIRE(filled.size() == 3u);
  for (std::size_t i = 0; i < 3; ++i) CHECK(at::equal(filled[i], example.inputs[i]));
  own.outputs = {contract.inputs[0], contract.inputs[2]};
  exporter::write_outputs(file, {example.inputs[0], at::scalar_tensor(8, at::kLong)}, own);
  const auto mixed = exporter::read_inputs(file, contract);
  CHECK(mixed[2].item<std::int64_t>() == 8);
  CHECK(at::equal(mixed[1], example.inputs[1]));
  fs::remove(file);
}

/// As in Python, another batch is allowed if the state's shape stays the same.
TEST_CASE("compares sizes that depend on the batch") {
  const exporter::Dimension batch = exporter::SymbolSize{0};
  const exporter::Dimension pairs = exporter::Expression{.symbol = 0, .divisor = 2};
  exporter::Contract contract;
  contract.symbols = {{"batch", 1, 8}};
  contract.inputs = {{"x", at::kFloat, {batch, exporter::FixedSize{4}}}};
  contract.state = exporter::State{exporter::State::Kept::inside,
                                   {{{"pairs", at::kFloat, {pairs}}, at::zeros({1})}}};
  exporter::StateSizes sizes;
  const auto call = [&](std::int64_t size) {
    sizes.require(contract, std::vector<at::Tensor>{at::ones({size, 4})});
  };
  call(4);
  call(5);
  CHECK_ERROR(contract, "batch is 6, but state.pairs was made for 4: call reset()", call(6));
  sizes.forget();
  call(6);
}

}  // namespace
