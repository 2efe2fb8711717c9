#include "program/guards.h"
#include "program/profiler.h"
#include "program/program.h"
#include "program/signature.h"
#include "program/weights.h"
#include "runner.h"

namespace exporter {
namespace {

using program::DeviceChange;
using program::Guard;
using program::InputKind;
using program::InputSpec;
using program::Program;
using program::SavedFile;
using program::SavedProgram;

std::vector<Guard> guards_of(const SavedProgram& saved) {
  std::vector<std::string> names;
  for (const InputSpec& input : saved.inputs) {
    if (input.kind == InputKind::user) names.push_back(input.name);
    if (input.kind == InputKind::fixed) names.emplace_back();
  }
  std::vector<Guard> guards;
  for (const std::string& text : saved.guards) guards.emplace_back(text, names);
  return guards;
}

class ExportedProgramRunner final : public Runner {
 public:
  ExportedProgramRunner(Program program, std::vector<Guard> guards)
      : program_(std::move(program)), guards_(std::move(guards)) {}

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override {
    for (const Guard& guard : guards_) guard.require(inputs);
    return program_.run(std::move(inputs));
  }

  std::optional<std::vector<at::Tensor>> profile(std::vector<at::Tensor> inputs,
                                                 std::vector<NodeProfile>& nodes) override {
    for (const Guard& guard : guards_) guard.require(inputs);
    program::Profiler profiler(nodes);
    return program_.run(std::move(inputs), &profiler);
  }

  void reset() override { program_.reset(); }

  std::vector<std::size_t> written_inputs() const override { return program_.written(); }

 private:
  Program program_;
  std::vector<Guard> guards_;
};

}  // namespace

std::unique_ptr<Runner> load_exported_program(const std::filesystem::path& path, at::Device device,
                                              const Contract& contract, bool has_contract) {
  const SavedFile file(path);
  const SavedProgram saved = program::parse_program(file.graph());
  const DeviceChange devices{at::Device(contract.device).type(), device};
  auto guards = has_contract ? std::vector<Guard>{} : guards_of(saved);
  return std::make_unique<ExportedProgramRunner>(Program(saved, file.tensors(), devices),
                                                 std::move(guards));
}

Contract read_program_contract(const std::filesystem::path& path) {
  const SavedFile file(path);
  return program::contract_of(program::parse_program(file.graph()), file.tensors());
}

}  // namespace exporter
