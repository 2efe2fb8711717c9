#pragma once

#include <c10/core/Device.h>
#include <exporter/contract.h>

#include <string>

namespace exporter {

/// Throws Error(artifact), with `where` as its first words, for machine code that this CPU cannot
/// run. Running it would end the process.
void require_cpu(const Contract& contract, const std::string& where);

/// The same for a GPU that `prepare_device` has made usable. Warns, as torch does, where what built
/// the artifact is newer than what is here: torch promises that packages run in later releases, not
/// that they do in earlier ones, which may lack what they call.
void require_device(const Contract& contract, c10::Device device, const std::string& where);

}  // namespace exporter
