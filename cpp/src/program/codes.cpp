#include "codes.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace exporter::program {
namespace {

using c10::Layout;
using c10::MemoryFormat;
using c10::ScalarType;

constexpr std::pair<int, ScalarType> kDtypes[] = {
    {1, ScalarType::Byte},
    {2, ScalarType::Char},
    {3, ScalarType::Short},
    {4, ScalarType::Int},
    {5, ScalarType::Long},
    {6, ScalarType::Half},
    {7, ScalarType::Float},
    {8, ScalarType::Double},
    {9, ScalarType::ComplexHalf},
    {10, ScalarType::ComplexFloat},
    {11, ScalarType::ComplexDouble},
    {12, ScalarType::Bool},
    {13, ScalarType::BFloat16},
    {28, ScalarType::UInt16},
    {29, ScalarType::Float8_e4m3fn},
    {30, ScalarType::Float8_e5m2},
    {31, ScalarType::Float8_e4m3fnuz},
    {32, ScalarType::Float8_e5m2fnuz},
    {33, ScalarType::Float8_e8m0fnu},
    {34, ScalarType::UInt32},
    {35, ScalarType::UInt64},
};

constexpr std::pair<int, Layout> kLayouts[] = {
    {1, Layout::Sparse},    {2, Layout::SparseCsr}, {3, Layout::SparseCsc}, {4, Layout::SparseBsr},
    {5, Layout::SparseBsc}, {6, Layout::Mkldnn},    {7, Layout::Strided},
};

constexpr std::pair<int, MemoryFormat> kMemoryFormats[] = {
    {1, MemoryFormat::Contiguous},
    {2, MemoryFormat::ChannelsLast},
    {3, MemoryFormat::ChannelsLast3d},
    {4, MemoryFormat::Preserve},
};

template <typename Code>
Code find(const auto& codes, std::int64_t code, const char* what) {
  for (const auto& [number, found] : codes) {
    if (number == code) return found;
  }
  throw std::runtime_error("it has an unknown " + std::string(what) + ", " + std::to_string(code));
}

}  // namespace

ScalarType dtype_of_code(std::int64_t code) { return find<ScalarType>(kDtypes, code, "dtype"); }

Layout layout_of_code(std::int64_t code) { return find<Layout>(kLayouts, code, "layout"); }

MemoryFormat memory_format_of_code(std::int64_t code) {
  return find<MemoryFormat>(kMemoryFormats, code, "memory format");
}

}  // namespace exporter::program
