#include <exporter/golden.h>

#include <set>

#include "guard.h"
#include "tensor_file.h"

namespace exporter {
namespace {

using Dict = c10::impl::GenericDict;

constexpr std::int64_t kSchema = 2;  // the latest; the first is read too

c10::IValue field(const Dict& dict, const char* name) {
  const auto found = dict.find(name);
  TORCH_CHECK(found != dict.end(), "`", name, "` is missing");
  return found->value();
}

double number(const c10::IValue& value) { return value.toScalar().toDouble(); }

Tolerance read_tolerance(const Dict& dict) {
  Tolerance tolerance{number(field(dict, "rtol")), number(field(dict, "atol")),
                      number(field(dict, "k"))};
  const auto cosine = dict.find("min_cosine");
  if (cosine != dict.end()) tolerance.min_cosine = number(cosine->value());
  return tolerance;
}

std::vector<at::Tensor> read_tensors(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& item : value.toListRef()) tensors.push_back(item.toTensor());
  return tensors;
}

/// A reference that is of another kind or size than eager's output cannot be compared with it.
void require_reference(const at::Tensor& eager, const at::Tensor& reference,
                       const std::string& where) {
  TORCH_CHECK(reference.sizes() == eager.sizes(), where, ": the reference has shape ",
              reference.sizes(), ", eager ", eager.sizes());
  const at::ScalarType wanted = eager.is_floating_point() ? at::kDouble : eager.scalar_type();
  TORCH_CHECK(eager.is_complex() ? reference.is_complex() : reference.scalar_type() == wanted,
              where, ": the reference is ", dtype_name(reference.scalar_type()), " where eager is ",
              dtype_name(eager.scalar_type()));
}

void require_references(const GoldenCase& one) {
  TORCH_CHECK(one.eager.size() == one.reference.size(), "case ", one.name,
              ": eager and reference differ in number");
  for (std::size_t i = 0; i < one.eager.size(); ++i) {
    require_reference(one.eager[i], one.reference[i],
                      "case " + one.name + ", output " + std::to_string(i));
  }
}

/// None in goldens of old, which have them in the names alone.
Sizes read_sizes(const Dict& dict) {
  Sizes sizes;
  const auto found = dict.find("sizes");
  if (found == dict.end()) return sizes;
  for (const auto& item : found->value().toGenericDict()) {
    sizes.emplace(item.key().toStringRef(), item.value().toInt());
  }
  return sizes;
}

GoldenCase read_case(const Dict& dict) {
  GoldenCase one{field(dict, "name").toStringRef(),
                 field(dict, "seed").toInt(),
                 read_tensors(field(dict, "inputs")),
                 read_tensors(field(dict, "eager")),
                 read_tensors(field(dict, "reference")),
                 std::nullopt,
                 read_sizes(dict)};
  const auto step = dict.find("step");
  if (step != dict.end()) one.step = step->value().toInt();
  require_references(one);
  return one;
}

/// Steps of a sequence stand one after another, from 0 on.
void require_sequences(const std::vector<GoldenCase>& cases) {
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto step = cases[i].step.value_or(0);
    const bool follows = i > 0 && cases[i - 1].step == step - 1;
    TORCH_CHECK(step == 0 || (step > 0 && follows), "case ", cases[i].name, ", step ", step,
                ", does not follow step ", step - 1);
  }
}

/// Leaves out the cases of these names, and of their sequences what comes after them: a step is
/// right only where the steps before it were made.
void leave_out(std::vector<GoldenCase>& cases, const c10::IValue& names) {
  std::set<std::string> left_out;
  for (const c10::IValue& name : names.toListRef()) left_out.insert(name.toStringRef());
  bool broken = false;
  std::erase_if(cases, [&](const GoldenCase& one) {
    broken = (broken && one.step.value_or(0) > 0) || left_out.contains(one.name);
    return broken;
  });
}

void take_eager(Golden& golden, const c10::IValue& eager, const std::string& precision) {
  if (eager.toListRef().empty()) return;  // float32's counts
  TORCH_CHECK(eager.toListRef().size() == golden.cases.size(), "its cases in ", precision,
              " differ in number");
  for (std::size_t i = 0; i < golden.cases.size(); ++i) {
    GoldenCase& one = golden.cases[i];
    one.eager = read_tensors(eager.toListRef()[i]);
    require_references(one);
  }
}

/// Puts what eager gives in a precision in the place of what it gives in its own.
void take_precision(Golden& golden, const Dict& root, const std::string& precision) {
  const auto all = root.find("precisions");
  const Dict known = all == root.end() ? Dict(c10::StringType::get(), c10::AnyType::get())
                                       : all->value().toGenericDict();
  const auto found = known.find(precision);
  TORCH_CHECK(found != known.end(), "it was made without ", precision);
  const Dict own = found->value().toGenericDict();
  golden.tolerance = read_tolerance(field(own, "tolerance").toGenericDict());
  take_eager(golden, field(own, "eager"), precision);
  leave_out(golden.cases, field(own, "without"));
  TORCH_CHECK(!golden.cases.empty(), "it has no case for ", precision);
}

Golden read_golden(const c10::IValue& value, const std::string& precision) {
  TORCH_CHECK(value.isGenericDict(), "it holds no dict");
  const Dict root = value.toGenericDict();
  const auto schema = field(root, "schema").toInt();
  TORCH_CHECK(schema >= 1 && schema <= kSchema, "schema ", schema, " is not known, only 1 to ",
              kSchema);
  Golden golden{read_tolerance(field(root, "tolerance").toGenericDict()), {}};
  const c10::IValue cases = field(root, "cases");
  for (const c10::IValue& item : cases.toListRef()) {
    golden.cases.push_back(read_case(item.toGenericDict()));
  }
  TORCH_CHECK(!golden.cases.empty(), "it has no case");
  require_sequences(golden.cases);
  if (precision != "fp32") take_precision(golden, root, precision);
  return golden;
}

}  // namespace

Golden Golden::read(const std::filesystem::path& path, const std::string& precision) {
  const c10::IValue value = read_tensor_file(path, /*is_recorded=*/true);
  return guarded(ErrorKind::golden, path.string() + " cannot be read as a golden",
                 [&] { return read_golden(value, precision); });
}

}  // namespace exporter
