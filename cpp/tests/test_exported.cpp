// Parts of the runtime of exported programs: numbers, sizes and conditions.

#include <ATen/ATen.h>

#include <array>
#include <cmath>

#include "program/guards.h"
#include "program/numbers.h"
#include "program/saved_size.h"
#include "support.h"

using c10::IValue;
using exporter::program::find_number_function;
using exporter::program::Guard;
using exporter::program::read_printed_size;
using exporter::program::read_size;
using Factors = std::map<std::string, std::int64_t>;

namespace {

IValue compute(const char* target, const std::vector<IValue>& operands) {
  const auto* function = find_number_function(target);
  REQUIRE(function != nullptr);
  return function->function(operands);
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("computes with numbers as Python does") {
  CHECK(compute("_operator.floordiv", {-7, 2}).toInt() == -4);
  CHECK(compute("_operator.floordiv", {7, -2}).toInt() == -4);
  CHECK(compute("_operator.mod", {-7, 3}).toInt() == 2);
  CHECK(compute("_operator.mod", {7, -3}).toInt() == -2);
  CHECK(compute("_operator.mod", {-7.5, 2.0}).toDouble() == 0.5);
  CHECK(compute("_operator.truediv", {7, 2}).toDouble() == 3.5);
  CHECK(compute("_operator.add", {1, 2.5}).toDouble() == 3.5);
  CHECK(compute("_operator.add", {true, 2}).toInt() == 3);
  CHECK(compute("_operator.pow", {2, 10}).toInt() == 1024);
  CHECK(compute("_operator.pow", {2, -1}).toDouble() == 0.5);
  CHECK(compute("torch.sym_max", {2, 3.0}).isDouble());
  CHECK(compute("math.trunc", {-2.7}).toInt() == -2);
  CHECK(compute("math.floor", {-2.2}).toInt() == -3);
  CHECK(compute("builtins.round", {2.5}).toInt() == 2);
  CHECK(compute("_operator.and_", {true, false}).isBool());
  CHECK(compute("torch.sym_ite", {false, 1, 2}).toInt() == 2);
  CHECK(compute("_operator.ge", {2, 2.0}).toBool());
}

TEST_CASE("refuses numbers that do not fit") {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  CHECK(message_of([&] { compute("_operator.add", {most, 1}); }) == "a size exceeds 64 bits");
  CHECK(message_of([&] { compute("_operator.mul", {most, most}); }) == "a size exceeds 64 bits");
  CHECK(message_of([&] { compute("_operator.pow", {10, 19}); }) == "a size exceeds 64 bits");
  CHECK(message_of([] { compute("math.trunc", {1e300}); }) == "a size exceeds 64 bits");
  CHECK(message_of([] { compute("_operator.mod", {1, 0}); }) == "division by zero");
  CHECK(message_of([] { compute("_operator.floordiv", {1.0, 0}); }) == "division by zero");
}

TEST_CASE("reads sizes that follow symbols") {
  const std::string n = "Symbol('s77', positive=True, integer=True)";
  const auto twice = read_size("Add(Mul(Integer(2), " + n + "), Integer(-1))");
  REQUIRE(twice);
  CHECK(twice->factors == Factors{{"s77", 2}});
  CHECK(twice->offset == -1);
  const auto half = read_size("FloorDiv(Add(" + n + ", Integer(1)), Integer(2))");
  REQUIRE(half);
  CHECK(half->offset == 1);
  CHECK(half->divisor == 2);
  const std::string m = "Symbol('s2', integer=True)";
  const auto sum = read_size("Add(Mul(Integer(2), " + n + "), " + m + ", " + m + ", Integer(3))");
  REQUIRE(sum);
  CHECK(sum->factors == Factors{{"s2", 2}, {"s77", 2}});
  CHECK(sum->offset == 3);
  const auto scaled = read_size("FloorDiv(Mul(Integer(3), Add(" + m + ", " + n + ")), Integer(2))");
  REQUIRE(scaled);
  CHECK(scaled->factors == Factors{{"s2", 3}, {"s77", 3}});
  CHECK(scaled->divisor == 2);
  const std::string most = "Integer(9223372036854775807)";
  CHECK(!read_size("Add(Mul(" + most + ", " + n + "), " + n + ")"));
  CHECK(!read_size("Mul(Integer(2), Add(" + m + ", Mul(" + most + ", " + n + ")))"));
  CHECK(!read_size("FloorDiv(" + n + ", " + m + ")"));
  CHECK(!read_size("Mul(" + n + ", " + m + ")"));
  CHECK(!read_size("Pow(" + n + ", Integer(2))"));
  CHECK(!read_size("Add(" + n));
  CHECK(!read_size(std::string(100'000, '(')));
}

TEST_CASE("reads sizes as sympy prints them") {
  const auto plain = read_printed_size("s77"), derived = read_printed_size("2*s7_1 - 3");
  REQUIRE(plain);
  CHECK(plain->factors == Factors{{"s77", 1}});
  CHECK(plain->offset == 0);
  REQUIRE(derived);
  CHECK(derived->factors == Factors{{"s7_1", 2}});
  CHECK(derived->offset == -3);
  for (const char* text : {"", "4", "4*", "s1 + ", "s1 + s2", "s1 + -1", "s1**2", "2*s1 + 1 + 1"}) {
    CHECK(!read_printed_size(text));
  }
}

TEST_CASE("checks the conditions of an export") {
  const std::vector<at::Tensor> inputs = {at::ones({4, 6}), at::ones({3})};
  const auto holds = [&](const std::string& text) {
    return message_of([&] { Guard(text, {"x", "batch_y"}).require(inputs); }) == "no error";
  };
  CHECK(holds("L['x'].size()[1] % 2 == 0"));
  CHECK(!holds("(L['x'].size()[0] % 3) == 0"));
  CHECK(holds("2 <= L['x'].size()[0] < 8 and not L['x'].size()[0] == 5"));
  CHECK(holds("L['batch']['y'].size()[0] != 4 or False"));
  CHECK(holds("torch.sym_max(1, L['x'].size()[1] // 4) + (-1)*L['batch_y'].size()[0] == -2"));
  CHECK(holds("L['x'].stride()[0] == 6 and L['x'].storage_offset() == 0"));
  CHECK(holds("2**3 == 8"));
  std::string sum = "0";
  for (int i = 0; i < 150; ++i) sum += " + 1";
  CHECK(holds(sum + " == 150"));
}

TEST_CASE("finds inputs by their number and under the name of keyword arguments") {
  const std::vector<at::Tensor> inputs = {at::ones({4, 6}), at::ones({3})};
  const auto problem = [&](const std::string& text) {
    return message_of([&] { Guard(text, {"x", "", "z"}).require(inputs); });
  };
  CHECK(problem("L['flat_args'][0].size()[1] == 6") == "no error");
  CHECK(problem("L['flat_args'][2].size()[0] == 3") == "no error");
  CHECK(problem("L['k']['z'].size()[0] == 3") == "no error");
  CHECK(problem("L['flat_args'][1].size()[0] == 3").find("no input flat_args_1") !=
        std::string::npos);
  CHECK(problem("L['flat_args'][3].size()[0] == 3").find("no input flat_args_3") !=
        std::string::npos);
}

TEST_CASE("refuses conditions that it does not understand") {
  const auto problem = [](const std::string& text) {
    return message_of([&] { const Guard guard(text, {"x"}); });
  };
  CHECK(problem("__import__('os')").find("it is not understood") != std::string::npos);
  CHECK(problem("L['z'].size()[0] == 1").find("there is no input z") != std::string::npos);
  CHECK(problem("L['x'].size()[0] ==").find("it is not understood") != std::string::npos);
  CHECK(problem(std::string(2000, '(')).find("it is not understood") != std::string::npos);
  CHECK(problem(std::string(20'000, '1')).find("it is not understood") != std::string::npos);
}
