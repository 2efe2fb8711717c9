#pragma once

#include <c10/core/Device.h>
#include <exporter/contract.h>

#include <string>

namespace exporter {

/// Throws Error(artifact), with a message that starts with `where`, if the artifact has machine
/// code that this CPU cannot run. Running it would crash the process.
void require_cpu(const Contract& contract, const std::string& where);

/// Like `require_cpu`, for a GPU prepared by `prepare_device`. Warns through torch if the artifact
/// was built by a newer torch or CUDA: packages run in later releases, but earlier ones may lack
/// functions that they call.
void require_device(const Contract& contract, c10::Device device, const std::string& where);

}  // namespace exporter
