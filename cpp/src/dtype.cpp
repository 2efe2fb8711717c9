#include <c10/core/ScalarType.h>
#include <exporter/contract.h>

#include <utility>

namespace exporter {
namespace {

using Named = std::pair<std::string_view, at::ScalarType>;

constexpr Named kDtypes[] = {
    {"bool", at::ScalarType::Bool},
    {"uint8", at::ScalarType::Byte},
    {"int8", at::ScalarType::Char},
    {"int16", at::ScalarType::Short},
    {"int32", at::ScalarType::Int},
    {"int64", at::ScalarType::Long},
    {"uint16", at::ScalarType::UInt16},
    {"uint32", at::ScalarType::UInt32},
    {"uint64", at::ScalarType::UInt64},
    {"float16", at::ScalarType::Half},
    {"bfloat16", at::ScalarType::BFloat16},
    {"float32", at::ScalarType::Float},
    {"float64", at::ScalarType::Double},
    {"complex32", at::ScalarType::ComplexHalf},
    {"complex64", at::ScalarType::ComplexFloat},
    {"complex128", at::ScalarType::ComplexDouble},
    {"float8_e4m3fn", at::ScalarType::Float8_e4m3fn},
    {"float8_e5m2", at::ScalarType::Float8_e5m2},
};

}  // namespace

std::string dtype_name(at::ScalarType dtype) {
  for (const auto& [name, type] : kDtypes) {
    if (type == dtype) return std::string(name);
  }
  return c10::toString(dtype);
}

std::optional<at::ScalarType> dtype_from_name(std::string_view name) {
  for (const auto& [known, type] : kDtypes) {
    if (known == name) return type;
  }
  return std::nullopt;
}

}  // namespace exporter
