#pragma once

#include <c10/core/Device.h>

#include <nlohmann/json.hpp>
#include <string>

namespace exporter::program {

/// Reads a device, such as {"type": "cuda", "index": 0}.
inline c10::Device device_of(const nlohmann::json& node) {
  c10::Device device(node.at("type").get_ref<const std::string&>());
  const auto index = node.find("index");
  if (index != node.end() && index->is_number_integer()) {
    device.set_index(static_cast<c10::DeviceIndex>(index->get<int>()));
  }
  return device;
}

}  // namespace exporter::program
