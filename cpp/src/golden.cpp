#include <exporter/golden.h>

#include <cmath>
#include <set>

#include "file.h"
#include "guard.h"
#include "integrity.h"
#include "safetensors.h"

namespace exporter {
namespace {

using nlohmann::json;

constexpr std::int64_t kSchema = 3;  // 1 and 2 were pickles, which only Python reads

const json& field(const json& node, const char* name) {
  const auto found = node.find(name);
  TORCH_CHECK(found != node.end(), "`", name, "` is missing");
  return *found;
}

const json& list(const json& node, const char* name) {
  const json& found = field(node, name);
  TORCH_CHECK(found.is_array(), "`", name, "` is not a list");
  return found;
}

std::int64_t whole(const json& node, const char* name) {
  const json& found = field(node, name);
  TORCH_CHECK(found.is_number_integer(), "`", name, "` is not a whole number");
  return found.get<std::int64_t>();
}

double number(const json& node, const char* name) {
  const json& found = field(node, name);
  TORCH_CHECK(found.is_number() && std::isfinite(found.get<double>()), "`", name,
              "` is not a finite number");
  return found.get<double>();
}

std::string text(const json& node, const char* name) {
  const json& found = field(node, name);
  TORCH_CHECK(found.is_string(), "`", name, "` is not a string");
  return found.get<std::string>();
}

Tolerance read_tolerance(const json& node, const std::string& name) {
  const json& own = field(node, name.c_str());
  Tolerance tolerance{number(own, "rtol"), number(own, "atol"), number(own, "k")};
  if (own.contains("min_cosine")) tolerance.min_cosine = number(own, "min_cosine");
  return tolerance;
}

/// Returns the tolerances of outputs in other dtypes; goldens without such outputs have none.
std::map<std::string, Tolerance> read_tolerances(const json& about) {
  std::map<std::string, Tolerance> tolerances;
  const auto found = about.find("tolerances");
  if (found == about.end()) return tolerances;
  TORCH_CHECK(found->is_object(), "`tolerances` is not an object");
  for (const auto& [dtype, own] : found->items()) {
    tolerances.emplace(dtype, read_tolerance(*found, dtype));
  }
  return tolerances;
}

/// Returns the `count` tensors named `prefix.0`, `prefix.1` and so on.
std::vector<at::Tensor> read_tensors(const NamedTensors& file, const std::string& prefix,
                                     std::int64_t count) {
  std::vector<at::Tensor> tensors;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string name = prefix + "." + std::to_string(i);
    const auto found = file.find(name);
    TORCH_CHECK(found != file.end(), "tensor ", name, " is missing");
    tensors.push_back(found->second);
  }
  return tensors;
}

/// Throws unless the reference has the shape of eager's output and a dtype comparable to it.
void require_reference(const at::Tensor& eager, const at::Tensor& reference,
                       const std::string& where) {
  TORCH_CHECK(reference.sizes() == eager.sizes(), where, ": the reference has shape ",
              reference.sizes(), ", eager ", eager.sizes());
  const at::ScalarType wanted = eager.is_floating_point() ? at::kDouble : eager.scalar_type();
  TORCH_CHECK(eager.is_complex() ? reference.is_complex() : reference.scalar_type() == wanted,
              where, ": the reference is ", dtype_name(reference.scalar_type()), ", but eager is ",
              dtype_name(eager.scalar_type()));
}

void require_references(const GoldenCase& one) {
  TORCH_CHECK(one.eager.size() == one.reference.size(), "case ", one.name,
              ": eager and the reference have different numbers of outputs");
  for (std::size_t i = 0; i < one.eager.size(); ++i) {
    require_reference(one.eager[i], one.reference[i],
                      "case " + one.name + ", output " + std::to_string(i));
  }
}

Sizes read_sizes(const json& node) {
  Sizes sizes;
  const auto found = node.find("sizes");
  if (found == node.end()) return sizes;
  TORCH_CHECK(found->is_object(), "`sizes` is not an object");
  for (const auto& [name, size] : found->items()) sizes.emplace(name, whole(*found, name.c_str()));
  return sizes;
}

GoldenCase read_case(const SafeTensors& file, const json& node, std::size_t index) {
  const auto tensors = [&](const char* kind) {
    return read_tensors(file.tensors, "cases." + std::to_string(index) + "." + kind,
                        whole(node, kind));
  };
  GoldenCase one{text(node, "name"),   whole(node, "seed"), tensors("inputs"), tensors("eager"),
                 tensors("reference"), std::nullopt,        read_sizes(node)};
  if (node.contains("step")) one.step = whole(node, "step");
  require_references(one);
  return one;
}

/// Throws unless the steps of each sequence are consecutive, starting with 0.
void require_sequences(const std::vector<GoldenCase>& cases) {
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto step = cases[i].step.value_or(0);
    const bool follows = i > 0 && cases[i - 1].step == step - 1;
    TORCH_CHECK(step == 0 || (step > 0 && follows), "case ", cases[i].name, ", step ", step,
                ", does not follow step ", step - 1);
  }
}

/// Removes the cases with these names and the later steps of their sequences, which need the
/// removed step.
void leave_out(std::vector<GoldenCase>& cases, const json& names) {
  std::set<std::string> left_out;
  for (const json& name : names) left_out.insert(name.get<std::string>());
  bool broken = false;
  std::erase_if(cases, [&](const GoldenCase& one) {
    broken = (broken && one.step.value_or(0) > 0) || left_out.contains(one.name);
    return broken;
  });
}

/// Takes the outputs with stored weights. Throws if a precision that stores weights has none.
void take_stored(Golden& golden, const SafeTensors& file, const std::string& precision,
                 const json& own) {
  const std::string base = precision.substr(0, precision.find('+'));
  if (base != "fp16w" && base != "int8w") return;
  const json& stored = list(own, "stored");
  TORCH_CHECK(stored.size() == golden.cases.size(), "it has ", stored.size(), " cases stored in ",
              precision, ", but ", golden.cases.size(), " cases in all");
  for (std::size_t i = 0; i < stored.size(); ++i) {
    GoldenCase& one = golden.cases[i];
    TORCH_CHECK(stored[i].is_number_integer(), "`stored` of ", precision, " has no numbers");
    one.stored =
        read_tensors(file.tensors, "precisions." + precision + ".stored." + std::to_string(i),
                     stored[i].get<std::int64_t>());
    GoldenCase same = one;
    same.reference = one.stored;
    require_references(same);
  }
}

/// Replaces eager's outputs by its outputs in a precision, and all tolerances by that precision's.
void take_precision(Golden& golden, const SafeTensors& file, const std::string& precision) {
  const auto all = file.about.find("precisions");
  const bool is_known = all != file.about.end() && all->contains(precision);
  TORCH_CHECK(is_known, "it was made without ", precision);
  const json& own = all->at(precision);
  golden.tolerance = read_tolerance(own, "tolerance");
  golden.tolerances.clear();
  const json& eager = list(own, "eager");  // empty if float32's outputs are used
  TORCH_CHECK(eager.empty() || eager.size() == golden.cases.size(), "it has ", eager.size(),
              " cases in ", precision, ", but ", golden.cases.size(), " cases in all");
  for (std::size_t i = 0; i < eager.size(); ++i) {
    GoldenCase& one = golden.cases[i];
    TORCH_CHECK(eager[i].is_number_integer(), "`eager` of ", precision, " has no numbers");
    one.eager = read_tensors(file.tensors, "precisions." + precision + "." + std::to_string(i),
                             eager[i].get<std::int64_t>());
    require_references(one);
  }
  take_stored(golden, file, precision, own);
  leave_out(golden.cases, list(own, "without"));
  TORCH_CHECK(!golden.cases.empty(), "it has no case for ", precision);
}

Golden read_golden(const SafeTensors& file, const std::string& precision) {
  const auto schema = whole(file.about, "schema");
  TORCH_CHECK(schema == kSchema, "schema ", schema, " is not known, only ", kSchema);
  Golden golden{read_tolerance(file.about, "tolerance"), {}, read_tolerances(file.about)};
  const json& cases = list(file.about, "cases");
  for (std::size_t i = 0; i < cases.size(); ++i) {
    golden.cases.push_back(read_case(file, cases[i], i));
  }
  TORCH_CHECK(!golden.cases.empty(), "it has no case");
  require_sequences(golden.cases);
  if (precision != "fp32") take_precision(golden, file, precision);
  return golden;
}

/// Throws for a golden of an older schema, which was an archive written by torch.save.
void refuse_pickle(const File& file) {
  char magic[4] = {};
  if (file.size() < sizeof magic) return;
  file.read(magic, sizeof magic, 0);
  TORCH_CHECK(
      std::string_view(magic, sizeof magic) != "PK\3\4",
      "it is a pickle, from an exporter older than golden schema 3: use `exporter check` on its "
      "bundle, or export again");
}

}  // namespace

const Tolerance& Golden::tolerance_of(const at::Tensor& eager) const {
  const auto found = tolerances.find(dtype_name(eager.scalar_type()));
  return found == tolerances.end() ? tolerance : found->second;
}

Golden Golden::read(const std::filesystem::path& path, const std::string& precision) {
  require_unaltered(path, ErrorKind::golden);
  return guarded(ErrorKind::golden, path.string() + " cannot be read as a golden", [&] {
    refuse_pickle(File(path));
    return read_golden(read_safetensors(path), precision);
  });
}

}  // namespace exporter
