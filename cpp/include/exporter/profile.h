#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace exporter {

/// What one node of an exported program did in one call; see Artifact::profile.
struct NodeProfile {
  std::string op;                    ///< such as "aten.linear.default"
  std::string module;                ///< such as "encoder.layer.0"; empty if the file has none
  std::string place;                 ///< such as "net.py:12"; empty if the file has none
  std::vector<std::string> outputs;  ///< such as "float32[2, 8]"; without those that no node reads
  int depth = 0;                     ///< 0: a node of the program; 1: inside a branch or loop
  double start_us = 0;               ///< microseconds since the call began
  double duration_us = 0;            ///< with the nodes inside it
  std::int64_t allocated =
      0;                  ///< bytes on the artifact's device: the most above those at its start
  std::int64_t live = 0;  ///< bytes that the call holds after the node
};

}  // namespace exporter
