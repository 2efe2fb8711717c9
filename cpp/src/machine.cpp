#include "machine.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/util/Exception.h>
#include <exporter/artifact.h>
#include <exporter/error.h>
#include <exporter/version.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "device.h"

namespace exporter {
namespace {

using Release = std::array<int, 2>;

/// Returns the first two numbers of a version.
Release release_of(const std::string& version) {
  Release numbers{};
  std::sscanf(version.c_str(), "%d.%d", &numbers[0], &numbers[1]);
  return numbers;
}

/// Returns the feature flags of this CPU, as Linux names them; empty if they cannot be read.
std::set<std::string> cpu_flags() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("flags") && !line.starts_with("Features")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    return {std::istream_iterator<std::string>(words), {}};
  }
  return {};
}

void warn(const std::string& where, const std::string& built, const std::string& here) {
  TORCH_WARN(where, " was built ", built, ", but this is ", here);
}

void require_gpu(const Build& build, c10::Device device, const std::string& where) {
  const auto here = compute_capability(device);
  if (build.capability.empty() || !here || build.runs_on(here->major, here->minor)) return;
  throw Error(ErrorKind::artifact, where + " was built for compute capability " + build.capability +
                                       ", this GPU has " + std::to_string(here->major) + "." +
                                       std::to_string(here->minor) + ": export it on this machine");
}

void compare_cuda(const Build& build, const std::string& where) {
  const int here = static_cast<int>(at::detail::getCUDAHooks().versionCUDART() / 1000);
  if (release_of(build.cuda)[0] > here) {
    warn(where, "with CUDA " + build.cuda, std::to_string(here));
  }
}

}  // namespace

bool Build::runs_on(int major, int minor) const {
  const Release built = release_of(capability);
  const Release here = {major, minor};
  return built == here || (major < 9 && built[0] == major && built < here);
}

std::string cpu_obstacle(const Contract& contract) {
  if (!contract.build) return {};
  const auto flags = cpu_flags();
  std::string missing;
  for (const std::string& name : contract.build->isa) {
    if (flags.empty() || flags.contains(name)) continue;
    missing += (missing.empty() ? "" : ", ") + name;
  }
  if (missing.empty()) return {};
  return "was built for " + missing + ", which this CPU lacks: export it on this machine" +
         (contract.build->level.empty() ? ", or with --portable" : "");
}

void require_cpu(const Contract& contract, const std::string& where) {
  const std::string obstacle = cpu_obstacle(contract);
  if (!obstacle.empty()) throw Error(ErrorKind::artifact, where + " " + obstacle);
}

void require_device(const Contract& contract, c10::Device device, const std::string& where) {
  if (!contract.build) return;
  if (release_of(contract.torch) > release_of(torch_version())) {
    warn(where, "by torch " + contract.torch, torch_version());
  }
  if (device.is_cpu()) return;
  require_gpu(*contract.build, device, where);
  compare_cuda(*contract.build, where);
}

}  // namespace exporter
