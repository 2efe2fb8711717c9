// Artifacts with state: who keeps it, what begins anew and when. Takes the directory of the
// fixtures.

#include <ATen/ATen.h>
#include <exporter/artifact.h>
#include <exporter/golden.h>
#include <exporter/stream.h>

#include <thread>

#include "state.h"
#include "testing.h"

namespace fs = std::filesystem;
using exporter::Artifact;
using exporter::Golden;
using exporter::GoldenCase;

namespace {

const std::vector<std::string> kOutside = {"stream.pt", "stream.pt2"};
const std::vector<std::string> kInside = {"carry.pt", "carry.pt2"};

std::vector<GoldenCase> cases_of(const fs::path& fixtures, const std::string& name) {
  return Golden::read(fixtures / name).cases;
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected) {
  EXPECT(actual.sizes() == expected.sizes());
  EXPECT(at::allclose(actual, expected, 1e-5, 1e-6));
}

void reads_steps(const fs::path& fixtures) {
  const auto cases = cases_of(fixtures, "golden_stream.pt");
  EXPECT_EQUAL(cases.size(), 6u);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQUAL(*cases[i].step, static_cast<std::int64_t>(i % 3));
    EXPECT_EQUAL(cases[i].inputs.size(), i % 3 == 0 ? 3u : 1u);
  }
  // "batch=2 step 1" is left out, and so is the step after it.
  EXPECT_EQUAL(Golden::read(fixtures / "golden_stream.pt", "bf16").cases.size(), 4u);
  EXPECT(!cases_of(fixtures, "golden.pt")[0].step);
}

/// Both sequences of the golden, the second in the same stream after a reset.
void streams(const fs::path& fixtures, const std::string& name, const std::string& golden) {
  const auto artifact = Artifact::open(fixtures / name);
  auto stream = artifact.stream();
  for (const GoldenCase& one : cases_of(fixtures, golden)) {
    if (one.step == 0) stream.reset();
    const auto outputs = stream.run({one.inputs[0]});
    EXPECT_EQUAL(outputs.size(), 1u);
    expect_close(outputs[0], one.eager[0]);
  }
}

void keeps_streams_apart(const fs::path& fixtures, const std::string& name) {
  const auto artifact = Artifact::open(fixtures / name);
  const auto cases = cases_of(fixtures, "golden_stream.pt");
  auto first = artifact.stream();
  auto second = artifact.stream();
  for (std::size_t i = 0; i < 3; ++i) {
    expect_close(first.run({cases[i].inputs[0]})[0], cases[i].eager[0]);
    expect_close(second.run({cases[i + 3].inputs[0]})[0], cases[i + 3].eager[0]);
  }
}

void refuses_another_batch(const fs::path& fixtures, const std::string& name) {
  const auto artifact = Artifact::open(fixtures / name);
  auto stream = artifact.stream();
  EXPECT_ERROR(contract, "batch is 9", stream.run({at::ones({9, 4})}));
  const at::Tensor first = stream.run({at::ones({1, 4})})[0];
  EXPECT_ERROR(contract,
               "batch is 2, but state.context was made for 1: call reset() before another size",
               stream.run({at::ones({2, 4})}));
  EXPECT_ERROR(contract, "1 beside its state: x", stream.run({}));
  stream.reset();
  expect_close(stream.run({at::ones({2, 4})})[0], first.expand({2}));
}

/// What a failed call would have changed is as it was.
void goes_on_after_a_failure(const fs::path& fixtures) {
  const auto artifact = Artifact::open(fixtures / "stream.pt");
  const auto cases = cases_of(fixtures, "golden_stream.pt");
  auto stream = artifact.stream();
  stream.run({cases[0].inputs[0]});
  EXPECT_ERROR(contract, "dtype", stream.run({cases[1].inputs[0].to(at::kDouble)}));
  expect_close(stream.run({cases[1].inputs[0]})[0], cases[1].eager[0]);
}

/// The model returns its input as its state; the caller's buffer is the caller's again.
void shares_no_memory(const fs::path& fixtures) {
  const auto artifact = Artifact::open(fixtures / "last.pt");
  auto stream = artifact.stream();
  at::Tensor buffer = at::full({1, 4}, 5.0);
  expect_close(stream.run({buffer})[0], at::ones({1, 4}));
  buffer.fill_(7);
  expect_close(stream.run({buffer})[0], at::full({1, 4}, 6.0));
}

void needs_a_state(const fs::path& fixtures) {
  const auto artifact = Artifact::open(fixtures / "model.pt");
  EXPECT_ERROR(usage, "model.pt has no state", artifact.stream());
  artifact.reset();  // nothing to do
}

/// From the first call on, and after a reset in the middle.
void resets(const fs::path& fixtures, const std::string& name) {
  const auto artifact = Artifact::open(fixtures / name, {.runners = 4});
  const auto cases = cases_of(fixtures, "golden_carry.pt");
  for (const std::size_t calls : {2, 3, 1, 3}) {
    for (std::size_t i = 0; i < calls; ++i) {
      expect_close(artifact.run(cases[i].inputs)[0], cases[i].eager[0]);
    }
    artifact.reset();
  }
  EXPECT_EQUAL(artifact.execution_mode(), "");
}

void keeps_artifacts_apart(const fs::path& fixtures, const std::string& name) {
  const auto first = Artifact::open(fixtures / name);
  const auto cases = cases_of(fixtures, "golden_carry.pt");
  first.run(cases[0].inputs);
  const auto second = Artifact::open(fixtures / name);
  expect_close(second.run(cases[0].inputs)[0], cases[0].eager[0]);
  expect_close(first.run(cases[1].inputs)[0], cases[1].eager[0]);
}

/// No call is lost, and none sees half of another: the count goes up by one each.
void serialises_calls(const fs::path& fixtures, const std::string& name) {
  constexpr int kThreads = 4;
  constexpr int kCalls = 4;
  const auto artifact = Artifact::open(fixtures / name, {.runners = 4});
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
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQUAL(all[i], 5.0f + static_cast<float>(i));
}

/// Freezing leaves a state that no constant is made from.
void keeps_a_frozen_state(const fs::path& fixtures) {
  const auto artifact = Artifact::open(fixtures / "carry_frozen.pt2");
  const auto cases = cases_of(fixtures, "golden_carry.pt");
  for (int sequence = 0; sequence < 2; ++sequence) {
    for (int i = 0; i < 3; ++i) {
      const auto& one = cases[static_cast<std::size_t>(i)];
      expect_close(artifact.run(one.inputs)[0] + (3 + i), one.eager[0]);
    }
    artifact.reset();
  }
}

/// A state that takes the batch of its first call broadcasts from a batch of 1, unless it is told.
void guards_the_batch_inside(const fs::path& fixtures) {
  const auto artifact = Artifact::open(fixtures / "carry_batch.pt");
  for (const GoldenCase& one : cases_of(fixtures, "golden_stream.pt")) {
    if (one.step == 0) artifact.reset();
    expect_close(artifact.run({one.inputs[0]})[0], one.eager[0]);
  }
  EXPECT_ERROR(contract,
               "batch is 1, but state.context was made for 2: call reset() before another size",
               artifact.run({at::ones({1, 4})}));
  auto stream = artifact.stream();
  stream.run({at::ones({1, 4})});
  EXPECT_ERROR(contract, "call reset()", stream.run({at::ones({3, 4})}));
}

void refuses_lost_states(const fs::path& fixtures) {
  EXPECT_ERROR(artifact, "is not among the constants of the package: the compiler has folded it",
               Artifact::open(fixtures / "folded.pt2"));
  EXPECT_ERROR(artifact, "it keeps its state, but has no method reset",
               Artifact::open(fixtures / "no_reset.pt"));
}

void fills_the_state_in(const fs::path& fixtures) {
  const auto contract = exporter::inspect(fixtures / "stream.pt").contract;
  const auto example = cases_of(fixtures, "golden_stream.pt")[3];
  const fs::path file = fixtures / "written.pt";
  exporter::Contract own = contract;
  own.outputs = {contract.inputs[0]};
  exporter::write_outputs(file, {example.inputs[0]}, own);
  const auto filled = exporter::read_inputs(file, contract);
  EXPECT_EQUAL(filled.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT(at::equal(filled[i], example.inputs[i]));
  own.outputs = {contract.inputs[0], contract.inputs[2]};
  exporter::write_outputs(file, {example.inputs[0], at::scalar_tensor(8, at::kLong)}, own);
  const auto mixed = exporter::read_inputs(file, contract);
  EXPECT_EQUAL(mixed[2].item<std::int64_t>(), 8);
  EXPECT(at::equal(mixed[1], example.inputs[1]));
  fs::remove(file);
}

/// As in Python, another batch is another size only where the state's shape moves with it.
void compares_what_follows_the_batch() {
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
  EXPECT_ERROR(contract, "batch is 6, but state.pairs was made for 4: call reset()", call(6));
  sizes.forget();
  call(6);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const fs::path fixtures = argv[1];
  testing::Tests tests = {
      {"reads steps", [&] { reads_steps(fixtures); }},
      {"goes on after a failure", [&] { goes_on_after_a_failure(fixtures); }},
      {"shares no memory with its caller", [&] { shares_no_memory(fixtures); }},
      {"needs a state", [&] { needs_a_state(fixtures); }},
      {"keeps a frozen state", [&] { keeps_a_frozen_state(fixtures); }},
      {"guards the batch inside", [&] { guards_the_batch_inside(fixtures); }},
      {"refuses lost states", [&] { refuses_lost_states(fixtures); }},
      {"compares what follows the batch", compares_what_follows_the_batch},
      {"fills the state in", [&] { fills_the_state_in(fixtures); }},
  };
  for (const std::string& name : kOutside) {
    tests.emplace_back("streams", [&] { streams(fixtures, name, "golden_stream.pt"); });
    tests.emplace_back("keeps streams apart", [&] { keeps_streams_apart(fixtures, name); });
    tests.emplace_back("refuses another batch", [&] { refuses_another_batch(fixtures, name); });
  }
  for (const std::string& name : kInside) {
    tests.emplace_back("streams what is inside",
                       [&] { streams(fixtures, name, "golden_carry.pt"); });
    tests.emplace_back("resets", [&] { resets(fixtures, name); });
    tests.emplace_back("keeps artifacts apart", [&] { keeps_artifacts_apart(fixtures, name); });
    tests.emplace_back("serialises calls", [&] { serialises_calls(fixtures, name); });
  }
  return testing::run(tests);
}
