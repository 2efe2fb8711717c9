#include <ATen/ATen.h>
#include <exporter/artifact.h>
#include <exporter/contract.h>

#include <array>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "support.h"

using exporter::Contract;

namespace {

const std::string kJson = R"({
  "schema": 1, "model": "m", "target": "trace", "device": "cpu", "torch": "2.14.1",
  "inputs": [{"name": "ids", "dtype": "int64", "shape": ["batch", "sequence"]},
             {"name": "mask", "dtype": "int64", "shape": ["batch", "sequence"]},
             {"name": "image", "dtype": "float32", "shape": ["batch", 3, null]}],
  "outputs": [{"name": "y", "dtype": "bfloat16", "shape": ["batch", 768, null]}],
  "symbols": {"batch": {"min": 1, "max": 64}, "sequence": {"min": 2, "max": 512}}})";

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = kJson;
  return text.replace(text.find(from), from.size(), to);
}

Contract contract() { return Contract::parse(kJson, "file"); }

std::vector<at::Tensor> inputs() {
  return {at::zeros({2, 14}, at::kLong), at::zeros({2, 14}, at::kLong), at::zeros({2, 3, 9})};
}

/// Checks that the contract refuses its own inputs once input `index` is `tensor`.
void refuses(std::size_t index, const at::Tensor& tensor, const std::string& message) {
  auto given = inputs();
  given[index] = tensor;
  CHECK_ERROR(contract, message, contract().check(given));
}

TEST_CASE("reads a contract") {
  const Contract c = contract();
  CHECK(c.model == "m");
  REQUIRE(c.inputs.size() == 3u);
  REQUIRE(c.symbols.size() == 2u);
  CHECK(exporter::describe_shape(c.outputs[0], c) == "[batch, 768, ?]");
  CHECK((c.outputs[0].dtype == at::kBFloat16));
}

TEST_CASE("refuses bad JSON") {
  const auto parse = [](const std::string& text) { return Contract::parse(text, "f.pt"); };
  CHECK_ERROR(artifact, "f.pt: the contract cannot be read", parse("{"));
  CHECK_ERROR(artifact, "f.pt", parse("[]"));
  for (const std::string schema : {"0", "3", "-1"}) {
    CHECK_ERROR(artifact, "schema " + schema + " is not known, only 1 to 2",
                parse(replaced("\"schema\": 1", "\"schema\": " + schema)));
  }
  CHECK_ERROR(artifact, "unknown dtype, int65", parse(replaced("int64", "int65")));
  CHECK_ERROR(artifact, "symbol sequence has no range",
              parse(replaced("\"sequence\": {", "\"x\": {")));
  CHECK_ERROR(artifact, "device tpu", parse(replaced("\"cpu\"", "\"tpu\"")));
  CHECK_ERROR(artifact, "model", parse(replaced("\"model\": \"m\",", "")));
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  CHECK_ERROR(artifact, "nested too deeply",
              parse(replaced("\"schema\": 1", "\"schema\": " + deep)));
}

TEST_CASE("accepts inputs that fit") {
  contract().check(inputs());
  auto smallest = inputs();
  smallest[0] = smallest[1] = at::zeros({1, 2}, at::kLong);
  smallest[2] = at::zeros({1, 3, 0});
  contract().check(smallest);
}

TEST_CASE("refuses a wrong number of inputs") {
  CHECK_ERROR(contract, "0 inputs given, the contract has 3: ids, mask, image",
              contract().check({}));
}

TEST_CASE("refuses tensors that do not fit") {
  refuses(0, at::zeros({2, 14}), "ids: dtype float32, the contract wants int64");
  refuses(0, at::zeros({14}, at::kLong), "ids: 1 dimensions, the contract wants 2");
  refuses(0, at::zeros({65, 14}, at::kLong), "batch is 65, the contract allows 1 to 64");
  refuses(0, at::zeros({0, 14}, at::kLong), "batch is 0, the contract allows 1 to 64");
  refuses(0, at::zeros({2, 1}, at::kLong), "sequence is 1, the contract allows 2 to 512");
  refuses(1, at::zeros({2, 13}, at::kLong), "mask dim 1 is 13 but sequence is 14 (from ids)");
  refuses(2, at::zeros({2, 4, 9}), "image dim 1 is 4, the contract wants 3");
  refuses(2, at::zeros({3, 3, 9}), "image dim 0 is 3 but batch is 2 (from ids)");
  refuses(2, at::Tensor(), "image: no tensor given");
}

TEST_CASE("finds tensors by name") {
  const Contract c = contract();
  CHECK(exporter::describe_shape(c.input("image"), c) == "[batch, 3, ?]");
  CHECK((c.output("y").dtype == at::kBFloat16));
  CHECK_ERROR(contract, "there is no input y, only ids, mask, image", c.input("y"));
  CHECK_ERROR(contract, "there is no output z, only y", c.output("z"));
  const auto given = inputs();
  const auto arranged = c.arrange({{"mask", given[1]}, {"image", given[2]}, {"ids", given[0]}});
  for (std::size_t i = 0; i < 3; ++i) CHECK(arranged[i].is_same(given[i]));
}

TEST_CASE("makes example inputs") {
  const Contract c = contract();
  c.check(c.example_inputs());
  CHECK(c.example_inputs()[0].sizes() == at::IntArrayRef({1, 2}));
  const auto larger = c.example_inputs({{"batch", 3}, {"sequence", 14}});
  c.check(larger);
  CHECK(larger[2].sizes() == at::IntArrayRef({3, 3, 1}));
  CHECK_ERROR(contract, "sequence is 1, the contract allows 2 to 512",
              c.example_inputs({{"sequence", 1}}));
  CHECK_ERROR(contract, "the contract has no symbol n", c.example_inputs({{"n", 1}}));
  const exporter::Symbol steps{"n", 5, 64, {}, 8}, choices{"n", 1, 64, {32, 8}};
  CHECK(steps.smallest() == 8);
  CHECK(choices.smallest() == 8);
}

/// Returns a contract whose inputs x, y and z have one dimension each.
Contract of_sizes(const std::string& x, const std::string& y, const std::string& z) {
  const auto input = [](const char* name, const std::string& size) {
    return std::string(R"({"name": ")") + name + R"(", "dtype": "float32", "shape": [")" + size +
           R"("]})";
  };
  return Contract::parse(
      R"({"schema": 1, "model": "m", "target": "trace", "device": "cpu", "outputs": [],
          "symbols": {"n": {"min": 2, "max": 20}, "m": {"min": 1, "max": 9}}, "inputs": [)" +
          input("x", x) + ", " + input("y", y) + ", " + input("z", z) + "]}",
      "file");
}

void check_sizes(const Contract& contract, int x, int y, int z) {
  contract.check(std::vector<at::Tensor>{at::zeros({x}), at::zeros({y}), at::zeros({z})});
}

TEST_CASE("reads expressions") {
  for (const std::string text :
       {"n", "2*n+1", "n-1", "n//16", "(n+1)//2", "(2*n-3)//4", "(2*n)//3", "9223372036854775807*n",
        "m+n", "m+n-1", "3*m+2*n+1", "(m+n)//2", "(m+2*n+1)//2"}) {
    const Contract c = of_sizes(text, "m", "n");
    CHECK(exporter::describe_shape(c.inputs[0], c) == "[" + text + "]");
  }
  const Contract c = of_sizes("(2*n-3)//4", "m", "n");
  const auto& expression = std::get<exporter::Expression>(c.inputs[0].shape[0]);
  CHECK(c.symbols[expression.symbol].name == "n");
  CHECK(expression.at(7) == 2);
  CHECK(expression.at(1) == -1);  // rounded down, not towards zero
  CHECK(expression.others.empty());
}

TEST_CASE("reads sums of several symbols") {
  const Contract c = of_sizes("(m+2*n-3)//4", "m", "n");
  const auto& sum = std::get<exporter::Expression>(c.inputs[0].shape[0]);
  REQUIRE(sum.others.size() == 1u);
  CHECK(c.symbols[sum.symbol].name == "m");
  CHECK(sum.factor == 1);
  CHECK(c.symbols[sum.others[0].symbol].name == "n");
  CHECK(sum.others[0].factor == 2);
  std::vector<std::int64_t> sizes(2);
  sizes[sum.symbol] = 3;
  sizes[sum.others[0].symbol] = 7;
  CHECK(sum.at(sizes) == 3);
  sizes = {0, 0};
  CHECK(sum.at(sizes) == -1);
  const auto most = std::numeric_limits<std::int64_t>::max();
  const exporter::Expression huge{
      .symbol = 0, .factor = most, .others = {{0, most}, {0, most}, {0, most}, {0, most}}};
  CHECK(huge.at(std::vector{most}) == most);  // the nearest number of 64 bits
  CHECK(exporter::describe_shape(c.inputs[0], c) == "[(m+2*n-3)//4]");
  CHECK(c.example_inputs({{"m", 3}, {"n", 7}})[0].size(0) == 3);
}

TEST_CASE("refuses expressions") {
  for (const std::string text :
       {"",        "2",     "n+",    "n-x",  "+n",       "n*2",   "2n",
        "2*",      "(n",    "n)",    "(n+1", "n+1)//2 ", "n/2",   "n//",
        "n//0",    "n//-2", "0*n",   "-1*n", "n+1//2",   "n m",   "99999999999999999999*n",
        "n//2//2", "n+m+",  "m+1+n", "m-n",  "m*n",      "m+0*n", "(m+n",
        "m+n//2",  "m//2+n"}) {
    CHECK_ERROR(artifact, "file: the contract cannot be read: `" + text + "` is not a size: ",
                of_sizes(text, "m", "n"));
  }
  const std::vector<std::pair<std::string, std::string>> longer = {
      {"1*n", "n"},     {"n+0", "n"},   {"(n)//2", "n//2"},   {"(n+1)//1", "n+1"},
      {"(2*n)", "2*n"}, {"n//1", "n"},  {"02*n", "2*n"},      {"2*n//3", "(2*n)//3"},
      {"n+m", "m+n"},   {"n+n", "2*n"}, {"n+m+2*n", "m+3*n"}, {"(n+m-1)//2", "(m+n-1)//2"}};
  for (const auto& [text, shortest] : longer) {
    CHECK_ERROR(artifact, "`" + text + "` is not a size: write it as " + shortest,
                of_sizes(text, "m", "n"));
  }
  CHECK_ERROR(artifact, "symbol k has no range", of_sizes("2*k+1", "m", "n"));
  CHECK_ERROR(artifact, "symbol k has no range", of_sizes("k+n", "m", "n"));
}

TEST_CASE("follows a known symbol") {
  const Contract c = of_sizes("2*n+1", "(n+1)//2", "n");  // known from the last input
  check_sizes(c, 11, 3, 5);
  CHECK_ERROR(contract, "x dim 0 is 12, not 2*n+1 = 11, for n is 5 (from z)",
              check_sizes(c, 12, 3, 5));
  CHECK_ERROR(contract, "y dim 0 is 2, not (n+1)//2 = 3, for n is 5 (from z)",
              check_sizes(c, 11, 2, 5));
  CHECK_ERROR(contract, "z dim 0: n is 21, the contract allows 2 to 20",
              check_sizes(c, 43, 11, 21));
}

TEST_CASE("solves for a symbol") {
  const Contract c = of_sizes("n//2", "3*n-1", "m");  // known from the second input
  check_sizes(c, 2, 14, 1);
  CHECK_ERROR(contract, "x dim 0 is 3, not n//2 = 2, for n is 5 (from y)",
              check_sizes(c, 3, 14, 1));
  CHECK_ERROR(contract, "y dim 0 is 15: no n of 2 to 20 gives 3*n-1 = 15",
              check_sizes(c, 2, 15, 1));
  CHECK_ERROR(contract, "y dim 0: n is 21, the contract allows 2 to 20", check_sizes(c, 10, 62, 1));
  CHECK_ERROR(contract, "y dim 0: n is 1, the contract allows 2 to 20", check_sizes(c, 0, 2, 1));
}

TEST_CASE("checks a sum of known symbols") {
  const Contract c = of_sizes("m+n", "m", "n");
  check_sizes(c, 8, 3, 5);
  CHECK_ERROR(contract, "x dim 0 is 7, not m+n = 8, for m is 3 (from y) and n is 5 (from z)",
              check_sizes(c, 7, 3, 5));
  const Contract half = of_sizes("(m+2*n+1)//2", "m", "n");
  check_sizes(half, 7, 3, 5);
  CHECK_ERROR(contract, "x dim 0 is 6, not (m+2*n+1)//2 = 7", check_sizes(half, 6, 3, 5));
}

TEST_CASE("solves a sum for its last unknown symbol") {
  const Contract c = of_sizes("m+2*n-1", "m", "n//2");
  check_sizes(c, 12, 3, 2);
  CHECK_ERROR(contract, "z dim 0 is 3, not n//2 = 2, for n is 5 (from x)",
              check_sizes(c, 12, 3, 3));
  CHECK_ERROR(contract, "x dim 0: n is 21, the contract allows 2 to 20, for m is 3 (from y)",
              check_sizes(c, 44, 3, 10));
  CHECK_ERROR(contract, "x dim 0 is 11: no n of 2 to 20 gives m+2*n-1 = 11, for m is 3 (from y)",
              check_sizes(c, 11, 3, 2));
  const Contract rounded = of_sizes("(m+n)//4", "m", "m");  // n is not determined
  check_sizes(rounded, 2, 3, 3);
  CHECK_ERROR(contract, "x dim 0 is 0: no n of 2 to 20 gives (m+n)//4 = 0, for m is 3 (from y)",
              check_sizes(rounded, 0, 3, 3));
}

TEST_CASE("bounds a sum of unknown symbols") {
  const Contract c = of_sizes("m+n", "(m+n+1)//2", "m+n+1");
  check_sizes(c, 8, 4, 9);
  CHECK_ERROR(contract, "x dim 0 is 2: no m of 1 to 9 and n of 2 to 20 gives m+n = 2",
              check_sizes(c, 2, 2, 3));
  CHECK_ERROR(contract, "x dim 0 is 30: no m", check_sizes(c, 30, 15, 31));
}

TEST_CASE("bounds an unknown symbol") {
  const Contract c = of_sizes("n//4", "(3*n)//2", "m");
  check_sizes(c, 0, 3, 1);
  check_sizes(c, 5, 30, 1);
  CHECK_ERROR(contract, "x dim 0 is 6: no n of 2 to 20 gives n//4 = 6", check_sizes(c, 6, 30, 1));
  CHECK_ERROR(contract, "y dim 0 is 2: no n of 2 to 20 gives (3*n)//2 = 2",
              check_sizes(c, 0, 2, 1));
  CHECK_ERROR(contract, "y dim 0 is 5: no n of 2 to 20 gives (3*n)//2 = 5",
              check_sizes(c, 0, 5, 1));
}

TEST_CASE("reads operators") {
  CHECK(contract().operators.empty());
  const auto with = [](const std::string& value) {
    return Contract::parse(replaced("\"schema\"", "\"ops\": " + value + ", \"schema\""), "f.pt");
  };
  CHECK(with("[\"torchvision\"]").operators.at(0) == "torchvision");
  CHECK_ERROR(artifact, "f.pt: the contract cannot be read", with("\"torchvision\""));
}

TEST_CASE("reads builds") {
  CHECK(!contract().build);
  const auto with = [](const std::string& value) {
    return Contract::parse(replaced("\"schema\"", "\"build\": " + value + ", \"schema\""), "f.pt");
  };
  CHECK(!with("null").build);
  const auto build = *with(R"({"isa": ["avx2", "fma"], "level": "", "capability": "8.0"})").build;
  CHECK(build.isa.at(1) == "fma");
  CHECK(build.capability == "8.0");
  CHECK(build.driver == "");
  CHECK_ERROR(artifact, "f.pt: the contract cannot be read", with(R"({"isa": "avx2"})"));
  CHECK_ERROR(artifact, "f.pt: the contract cannot be read", with("3"));
}

TEST_CASE("compares compute capabilities") {
  const auto runs = [](const std::string& built, int major, int minor) {
    return exporter::Build{{}, "", built, "", ""}.runs_on(major, minor);
  };
  CHECK((runs("8.0", 8, 0) && runs("8.0", 8, 9) && runs("9.0", 9, 0) && runs("12.0", 12, 0)));
  CHECK((!runs("8.9", 8, 6) && !runs("8.0", 9, 0) && !runs("9.0", 8, 9) && !runs("10.0", 10, 3)));
}

TEST_CASE("names instruction sets that the CPU lacks") {
  Contract c = contract();
  CHECK(exporter::cpu_obstacle(c) == "");
  c.build = exporter::Build{{"avx1024", "amx_fp2"}, "", "", "", ""};
  CHECK(exporter::cpu_obstacle(c) ==
        "was built for avx1024, amx_fp2, which this CPU lacks: export it on this machine, "
        "or with --portable");
  c.build->level = "x86-64-v9";
  CHECK(exporter::cpu_obstacle(c).ends_with("lacks: export it on this machine"));
}

TEST_CASE("allows only the sizes of entries") {
  const Contract c =
      Contract::parse(replaced("\"max\": 64", "\"max\": 64, \"choices\": [1, 8, 64]"), "f.pt");
  std::vector<at::Tensor> given = {at::zeros({8, 14}, at::kLong), at::zeros({8, 14}, at::kLong),
                                   at::zeros({8, 3, 9})};
  c.check(given);
  given[0] = at::zeros({9, 14}, at::kLong);
  CHECK_ERROR(contract, "batch is 9, the contract allows 1, 8 or 64", c.check(given));
}

TEST_CASE("reads entries") {
  const auto with = [](const std::string& entries) {
    return Contract::parse(replaced("\"schema\"", "\"entries\": " + entries + ", \"schema\""),
                           "f.pt");
  };
  const std::vector<exporter::Sizes> expected = {{{"batch", 1}}, {{"batch", 8}}};
  CHECK(with(R"([{"batch": 1}, {"batch": 8}])").entries == expected);
  CHECK(with("[]").entries.empty());
  CHECK_ERROR(artifact, "there is an entry for batch = 65, which is not allowed",
              with(R"([{"batch": 65}])"));
  CHECK_ERROR(artifact, "symbol depth has no range", with(R"([{"depth": 1}])"));
  CHECK_ERROR(artifact, "an entry has no sizes", with("[{}]"));
  CHECK_ERROR(artifact, "its entries have sizes of different symbols",
              with(R"([{"batch": 1}, {"batch": 1, "sequence": 2}])"));
}

TEST_CASE("allows only multiples of a step") {
  const auto of_step = [](const std::string& symbol) {
    return Contract::parse(
        R"({"schema": 2, "model": "m", "target": "trace", "device": "cpu", "outputs": [],
            "inputs": [{"name": "image", "dtype": "float32", "shape": [1, 3, "height"]},
                       {"name": "half", "dtype": "float32", "shape": ["(height+1)//2"]},
                       {"name": "other", "dtype": "float32", "shape": ["width//4"]}],
            "symbols": {"height": {"min": 32, "max": 512, "multiple_of": 2},
                        "width": )" +
            symbol + "}}",
        "f.pt");
  };
  const Contract c = of_step(R"({"min": 1, "max": 90, "multiple_of": 16})");
  const auto check = [&](std::int64_t height, std::int64_t half, std::int64_t quarter) {
    c.check(std::vector<at::Tensor>{at::zeros({1, 3, height}), at::zeros({half}),
                                    at::zeros({quarter})});
  };
  for (const std::int64_t width : {16, 32, 80}) check(32, 16, width / 4);
  check(512, 256, 4);
  CHECK_ERROR(contract, "image dim 2: height is 33, the contract allows 32 to 512, multiples of 2",
              check(33, 17, 4));
  CHECK_ERROR(contract, "height is 514, the contract allows 32 to 512", check(514, 257, 4));
  CHECK_ERROR(contract, "half dim 0 is 18, not (height+1)//2 = 17, for height is 34",
              check(34, 18, 4));
  for (const std::int64_t quarter : {0, 3, 5, 24}) {
    CHECK_ERROR(contract, "no width of 1 to 90, multiples of 16 gives width//4",
                check(32, 16, quarter));
  }
  for (const std::string step : {"0", "-2", "\"2\"", "null"}) {
    CHECK_ERROR(artifact, "f.pt: the contract cannot be read",
                of_step(R"({"min": 1, "max": 90, "multiple_of": )" + step + "}"));
  }
  CHECK_ERROR(artifact, "width has no allowed size: 33 to 47, multiples of 16",
              of_step(R"({"min": 33, "max": 47, "multiple_of": 16})"));
  const Contract entries = of_step(R"({"min": 1, "max": 90, "choices": [16, 40]})");
  const std::vector<at::Tensor> given = {at::zeros({1, 3, 32}), at::zeros({16}), at::zeros({5})};
  CHECK_ERROR(contract, "no width of 16 or 40 gives width//4 = 5", entries.check(given));
}

const std::string kContext =
    R"({"name": "context", "dtype": "float32", "shape": ["batch", 2], "initial": 0.5})";
const std::string kPlaces =
    R"({"name": "state.context", "dtype": "float32", "shape": ["batch", 2]})";

/// Returns a contract with a state. If the caller keeps it, `places` are the last inputs and
/// outputs.
Contract of_state(const std::string& kept, const std::string& tensors, const std::string& places) {
  const std::string rest = places.empty() ? "" : ", " + places;
  return Contract::parse(
      R"({"schema": 2, "model": "m", "target": "trace", "device": "cpu",
          "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", "(n+1)//2"]})" +
          rest + R"(], "outputs": [{"name": "y", "dtype": "float32", "shape": []})" + rest +
          R"(], "symbols": {"batch": {"min": 1, "max": 8}, "n": {"min": 1, "max": 8}},
          "state": {"kept": ")" +
          kept + R"(", "tensors": [)" + tensors + "]}}",
      "f.pt");
}

/// Returns a contract of an artifact that keeps one tensor with this dtype, shape and initial
/// value.
Contract of_initial(const std::string& dtype, const std::string& shape,
                    const std::string& initial) {
  return of_state("inside",
                  R"({"name": "s", "dtype": ")" + dtype + R"(", "shape": )" + shape +
                      R"(, "initial": )" + initial + "}",
                  "");
}

TEST_CASE("reads states") {
  CHECK((!contract().state && !contract().keeps_state()));
  CHECK(contract().initial_state(inputs()).empty());
  const Contract c = of_state("outside", kContext, kPlaces);
  CHECK(!c.keeps_state());
  CHECK(c.own_inputs() == 1u);
  CHECK(c.own_outputs() == 1u);
  const std::vector<at::Tensor> given = {at::zeros({3, 1})};
  const auto initial = c.initial_state(given);
  REQUIRE(initial.size() == 1u);
  CHECK(at::equal(initial[0], at::full({3, 2}, 0.5)));
  initial[0].fill_(9);
  CHECK(at::equal(c.initial_state(given)[0], at::full({3, 2}, 0.5)));
  CHECK_ERROR(contract, "2 inputs given, the contract has 1 beside its state: x",
              c.initial_state(std::vector<at::Tensor>{given[0], given[0]}));
  CHECK_ERROR(contract, "batch is 9", c.initial_state(std::vector<at::Tensor>{at::zeros({9, 1})}));
  const Contract inside = of_state("inside", kContext, "");
  CHECK(inside.keeps_state());
  CHECK(inside.own_inputs() == inside.inputs.size());
  const Contract unknown = of_initial("int64", R"(["n"])", "1");  // (n+1)//2 does not determine n
  CHECK_ERROR(contract, "state.s cannot be created: the inputs do not determine n",
              unknown.initial_state(given));
}

TEST_CASE("makes a state of the size of a sum") {
  const std::string sum = R"(["batch+n"])";
  const Contract c = Contract::parse(
      R"({"schema": 2, "model": "m", "target": "trace", "device": "cpu", "outputs": [],
          "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", "n"]}],
          "symbols": {"batch": {"min": 1, "max": 8}, "n": {"min": 1, "max": 8}},
          "state": {"kept": "inside", "tensors": [
            {"name": "s", "dtype": "float32", "shape": ["batch+n"], "initial": 0.5}]}})",
      "f.pt");
  CHECK(at::equal(c.initial_state(std::vector<at::Tensor>{at::zeros({3, 2})})[0],
                  at::full({5}, 0.5)));
  const Contract unknown = of_initial("float32", sum, "1");  // (n+1)//2 does not determine n
  CHECK_ERROR(contract, "state.s cannot be created: the inputs do not determine n",
              unknown.initial_state(std::vector<at::Tensor>{at::zeros({2, 1})}));
}

TEST_CASE("reads initial values") {
  const std::vector<at::Tensor> given = {at::zeros({2, 1})};
  const auto read = [&](const std::string& dtype, const std::string& shape,
                        const std::string& initial) {
    return of_initial(dtype, shape, initial).initial_state(given)[0];
  };
  CHECK(at::equal(read("int64", "[]", "9007199254740993"),
                  at::scalar_tensor(9007199254740993, at::kLong)));
  CHECK(read("uint64", "[1]", "18446744073709551615").const_data_ptr<std::uint64_t>()[0] ==
        18446744073709551615u);
  CHECK(at::equal(read("bool", "[2]", "1"), at::ones({2}, at::kBool)));
  CHECK(at::equal(read("float16", "[1]", "-0.5"), at::full({1}, -0.5, at::kHalf)));
  const at::Tensor numbers = at::tensor({1.0f, -2.0f});  // 0000803f 000000c0
  CHECK(at::equal(read("float32", "[2]", R"({"shape": [2], "data": "AACAPwAAAMA="})"), numbers));
  CHECK(
      at::equal(read("float32", R"(["batch", 2])", R"({"shape": [1, 2], "data": "AACAPwAAAMA="})"),
                numbers.expand({2, 2})));
  CHECK(read("float32", R"(["batch", null])", R"({"shape": [1, 0], "data": ""})").numel() == 0);
  CHECK(at::equal(read("bool", "[3]", R"({"shape": [3], "data": "AQAB"})"),
                  at::tensor({1, 0, 1}).to(at::kBool)));
}

TEST_CASE("refuses invalid states") {
  const std::string two_names = kContext + ", " + kContext;
  CHECK_ERROR(artifact, "state kept nowhere is neither", of_state("nowhere", kContext, ""));
  CHECK_ERROR(artifact, "the state has no tensors", of_state("inside", "", ""));
  CHECK_ERROR(artifact, "the name is used twice", of_state("inside", two_names, ""));
  CHECK_ERROR(artifact, "expected input state.context, found x", of_state("outside", kContext, ""));
  CHECK_ERROR(artifact, "expected input state.context, found ",
              of_state("outside", kContext,
                       kPlaces + ", " + kPlaces.substr(0, 10) + "y" + kPlaces.substr(10)));
  const auto places = [](const std::string& rest) {
    return R"({"name": "state.context", )" + rest + "}";
  };
  CHECK_ERROR(artifact, "differs from its state in dtype or rank",
              of_state("outside", kContext, places(R"("dtype": "int64", "shape": ["batch", 2])")));
  CHECK_ERROR(
      artifact, "differs from its state in shape",
      of_state("outside", kContext, places(R"("dtype": "float32", "shape": ["batch", 3])")));
  const std::vector<std::array<std::string, 3>> hostile = {
      {"float33", "[]", "0"},
      {"float32", "[]", "null"},
      {"float32", "[]", "\"0\""},
      {"float32", "[]", "[0]"},
      {"bool", "[]", "2"},
      {"int64", "[]", "0.5"},
      {"uint8", "[]", "300"},
      {"float32", "[-1]", "0"},
      {"float32", "[null]", "0"},
      {"float32", R"(["k"])", "0"},
      {"float32", "[2]", R"({"shape": [2]})"},
      {"float32", "[2]", R"({"shape": [2], "data": 3})"},
      {"float32", "[2]", R"({"shape": [2], "data": "AACAPwAAAMA"})"},
      {"float32", "[2]", R"({"shape": [2], "data": "AACAPwAA*MA="})"},
      {"float32", "[2]", R"({"shape": [2], "data": "AACAPw=="})"},
      {"float32", "[2]", R"({"shape": [-2], "data": "AACAPwAAAMA="})"},
      {"float32", "[2]", R"({"shape": [4611686018427387904, 4], "data": ""})"},
      {"float32", "[3]", R"({"shape": [2], "data": "AACAPwAAAMA="})"},
      {"float32", R"(["batch"])", R"({"shape": [2], "data": "AACAPwAAAMA="})"},
      {"float32", "[2]", R"({"shape": [1, 2], "data": "AACAPwAAAMA="})"},
      {"bool", "[3]", R"({"shape": [3], "data": "AQAC"})"}};
  for (const auto& [dtype, shape, initial] : hostile) {
    CHECK_ERROR(artifact, "f.pt: the contract cannot be read", of_initial(dtype, shape, initial));
  }
  const Contract huge = of_initial("float32", "[4611686018427387904, 4]", "0");
  CHECK_ERROR(runtime, "state.s cannot be created",
              huge.initial_state(std::vector<at::Tensor>{at::zeros({1, 1})}));
}

/// Uses a table that also tests the reader in Python.
TEST_CASE("agrees with Python") {
  std::ifstream file(support::contracts());
  const auto all = nlohmann::json::parse(file);
  CHECK(all.at("cases").size() > 100);
  std::string wrong;
  for (const auto& one : all.at("cases")) {
    const auto text = one.contains("text") ? one.at("text").get<std::string>()
                                           : all.at("base").patch(one.at("patch")).dump();
    std::string verdict = "taken";
    try {
      if (!exporter::cpu_obstacle(Contract::parse(text, "f.pt")).empty()) verdict = "refused";
    } catch (const exporter::Error& error) {
      CHECK(std::string(to_string(error.kind())) == "artifact");
      verdict = "refused";
    }
    if (verdict != one.at("verdict").get<std::string>())
      wrong += one.at("name").get<std::string>() + ": " + verdict + "; ";
  }
  CHECK(wrong == "");
}

}  // namespace
