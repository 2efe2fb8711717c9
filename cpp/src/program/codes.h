#pragma once

#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

namespace exporter::program {

/// The enumerations of saved programs have numbers of their own (torch/_export/serde/schema.py).
/// These throw std::runtime_error for an unknown number.
c10::ScalarType dtype_of_code(std::int64_t code);
c10::Layout layout_of_code(std::int64_t code);
c10::MemoryFormat memory_format_of_code(std::int64_t code);

}  // namespace exporter::program
