// Opens and runs the fixtures, and files broken on purpose.

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <dlfcn.h>
#include <exporter/exporter.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <thread>

#include "crc32.h"
#include "guard.h"
#include "safetensors.h"
#include "sha256.h"
#include "support.h"
#include "unpack.h"
#include "zip.h"

namespace fs = std::filesystem;
using exporter::Artifact;
using exporter::Golden;
using support::fixtures;
using support::operators;
using namespace std::string_literals;

namespace {

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

const std::vector<std::string> kModels = {"model.pt", "model.pt2", "mapped.pt2"};

/// Makes broken copies of the fixtures.
class Broken {
 public:
  fs::path truncated(const std::string& name, double part) const {
    const std::string bytes = read(fixtures() / name);
    return write(name, bytes.substr(0, static_cast<std::size_t>(part * double(bytes.size()))));
  }

  /// Replaces every occurrence of `from` by `to`, which has the same length.
  fs::path altered(const std::string& name, const std::string& from, const std::string& to) const {
    std::string bytes = read(fixtures() / name);
    REQUIRE(bytes.find(from) != std::string::npos);
    for (auto at = bytes.find(from); at != std::string::npos; at = bytes.find(from, at)) {
      bytes.replace(at, from.size(), to);
    }
    const fs::path path = write(name, bytes);
    return path.extension() == ".safetensors" ? path : sealed(path);
  }

  /// Corrects the CRC-32s in the archive's directory, so that another check finds the fault.
  static fs::path sealed(const fs::path& path) {
    std::string bytes = read(path);
    for (const auto& member : exporter::read_directory(exporter::File(path))) {
      if (member.compressed) continue;
      const std::uint32_t crc = exporter::crc32(bytes.data() + member.offset, member.size);
      const auto entry = entry_of(member.name, bytes);
      std::memcpy(bytes.data() + entry + 16, &crc, sizeof crc);
    }
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  /// Returns the offset of a member's entry in the archive's directory.
  static std::size_t entry_of(const std::string& name, const std::string& bytes) {
    for (auto at = bytes.find("PK\1\2"); at != std::string::npos;
         at = bytes.find("PK\1\2", at + 4)) {
      const auto length = static_cast<unsigned char>(bytes[at + 28]);
      if (length == name.size() && bytes.compare(at + 46, length, name) == 0) return at;
    }
    throw std::logic_error(name + " is not a member");
  }

  fs::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(support::scratch() / name, std::ios::binary) << bytes;
    return support::scratch() / name;
  }
};

const Broken& broken() {
  static const Broken all;
  return all;
}

TEST_CASE("matches the golden") {
  for (const std::string& name : kModels) {
    CAPTURE(name);
    const auto golden = Golden::read(fixtures() / "golden.safetensors");
    const auto artifact = Artifact::open(fixtures() / name);
    for (const auto& one : golden.cases) {
      const auto outputs = artifact.run(one.inputs);
      REQUIRE(outputs.size() == 2u);
      CHECK(at::allclose(outputs[0], one.eager[0]));
      CHECK(at::equal(outputs[1], one.eager[1]));
    }
  }
}

TEST_CASE("makes inputs contiguous") {
  for (const std::string& name : kModels) {
    CAPTURE(name);
    const auto example = Golden::read(fixtures() / "golden.safetensors").cases.back();
    const auto artifact = Artifact::open(fixtures() / name);
    auto inputs = example.inputs;
    inputs[0] = inputs[0].t().contiguous().t();
    CHECK(!inputs[0].is_contiguous());
    CHECK(at::allclose(artifact.run(inputs)[0], example.eager[0]));
  }
}

TEST_CASE("enforces the contract") {
  for (const std::string& name : kModels) {
    CAPTURE(name);
    const auto artifact = Artifact::open(fixtures() / name);
    const auto run = [&](std::vector<at::Tensor> inputs) { artifact.run(std::move(inputs)); };
    const at::Tensor tokens = at::zeros({9, 6}, at::kLong);
    CHECK_ERROR(contract, "batch is 9, the contract allows 1 to 8",
                run({tokens, at::ones({9, 4})}));
    CHECK_ERROR(contract, "tokens: dtype int32", run({tokens.to(at::kInt), at::ones({9, 4})}));
    CHECK_ERROR(contract, "1 inputs given", run({tokens}));
    CHECK_ERROR(contract, "scale dim 0 is 2 but batch is 8",
                run({tokens.slice(0, 0, 8), at::ones({2, 4})}));
  }
}

TEST_CASE("resolves negative bits and zero tensors") {
  for (const std::string& name : kModels) {
    CAPTURE(name);
    const auto example = Golden::read(fixtures() / "golden.safetensors").cases.back();
    const auto artifact = Artifact::open(fixtures() / name);
    const at::Tensor tokens = example.inputs[0], scale = example.inputs[1];
    const at::Tensor negative = at::imag(at::complex(scale, -scale).conj());
    CHECK((negative.is_neg() && at::equal(negative, scale)));
    CHECK(at::allclose(artifact.run({tokens, negative})[0], example.eager[0]));
    const auto zeros = artifact.run({tokens, at::zeros_like(scale)});
    CHECK(at::equal(artifact.run({tokens, at::_efficientzerotensor(scale.sizes())})[0], zeros[0]));
  }
}

TEST_CASE("refuses tensors that are not dense or have no values") {
  for (const std::string& name : kModels) {
    CAPTURE(name);
    const auto artifact = Artifact::open(fixtures() / name);
    const at::Tensor tokens = at::zeros({2, 6}, at::kLong), scale = at::ones({2, 4});
    const at::Tensor nested = at::_nested_tensor_from_tensor_list({at::ones(4), at::ones(3)});
    CHECK_ERROR(contract, "scale: the tensor is nested", artifact.run({tokens, nested}));
    const auto run = [&](const at::Tensor& given) { return artifact.run({tokens, given}); };
    CHECK_ERROR(contract, "scale: the tensor is sparse (Sparse)", run(scale.to_sparse()));
    CHECK_ERROR(contract, "scale: the tensor is sparse (SparseCsr)", run(scale.to_sparse_csr()));
    CHECK_ERROR(contract, "scale: the tensor is in oneDNN's own layout", run(scale.to_mkldnn()));
    CHECK_ERROR(contract, "scale: the tensor is on the device meta", run(scale.to(at::kMeta)));
  }
}

/// Flips one bit of various bytes. Either the file is refused, or torch does not read that byte.
TEST_CASE("refuses altered files") {
  for (const std::string& name : kModels) {
    CAPTURE(name);
    const auto example = Golden::read(fixtures() / "golden.safetensors").cases.front();
    const auto wanted = Artifact::open(fixtures() / name).run(example.inputs);
    const std::string good = read(fixtures() / name);
    int refused = 0;
    for (std::size_t i = 0; i < 60; ++i) {
      std::string bytes = good;
      bytes[(2 * i + 1) * good.size() / 120] ^= static_cast<char>(1 << i % 8);
      const auto path = broken().write(name, bytes);
      try {
        const auto found = Artifact::open(path).run(example.inputs);
        for (std::size_t o = 0; o < wanted.size(); ++o) CHECK(at::equal(found[o], wanted[o]));
      } catch (const exporter::Error& error) {
        CHECK(to_string(error.kind()) == "artifact"s);
        ++refused;
      }
    }
    CHECK(refused > 20);
  }
}

TEST_CASE("names the altered member") {
  for (const std::string name : {"model.pt", "model.pt2"}) {
    for (const auto& member : exporter::read_directory(exporter::File(fixtures() / name))) {
      if (member.compressed || member.size == 0) continue;
      std::string bytes = read(fixtures() / name);
      bytes[member.offset + member.size / 2] ^= 1;
      const auto path = broken().write(name, bytes);
      CHECK_ERROR(artifact, name + " was altered: the CRC-32 of " + member.name,
                  Artifact::open(path));
    }
  }
}

TEST_CASE("names what a path is that is no file") {
  const fs::path folder = support::scratch() / "kinds";
  fs::create_directories(folder / "folder.pt");
  REQUIRE(mkfifo((folder / "pipe.safetensors").c_str(), 0600) == 0);
  CHECK_ERROR(golden,
              "pipe.safetensors is a pipe or device, which cannot be read from any position",
              exporter::read_inputs(folder / "pipe.safetensors", {}));
  CHECK_ERROR(artifact, "folder.pt is a directory", Artifact::open(folder / "folder.pt"));
  fs::remove_all(folder);
}

/// Uses the SHA256SUMS file beside the artifact and beside the target of a link to it.
TEST_CASE("checks SHA256SUMS") {
  const std::string bytes = read(fixtures() / "model.pt");
  exporter::Sha256 sum;
  sum.add(bytes.data(), bytes.size());
  const std::string hash = sum.finish(), wrong = std::string(64, '0');
  const auto open = [](const fs::path& path, const std::string& sha256 = "", bool insist = false) {
    exporter::OpenOptions options;
    options.sha256 = sha256;
    options.require_sha256 = insist;
    Artifact::open(path, options);
  };
  const auto file = broken().write("alone.pt", bytes);
  open(file);
  open(file, hash, true);
  CHECK_ERROR(artifact, "alone.pt was altered: its SHA-256 is " + hash, open(file, wrong));
  CHECK_ERROR(artifact, "alone.pt is not known: there is no SHA256SUMS", open(file, "", true));
  CHECK_ERROR(usage, "64 hexadecimal digits", open(file, "abc"));
  const auto sums = broken().write("SHA256SUMS", hash + "  alone.pt\n");
  open(file, "", true);
  const fs::path link = support::scratch() / "links" / "current.pt";
  fs::create_directories(link.parent_path());
  fs::create_symlink(file, link);
  open(link, "", true);
  broken().write("SHA256SUMS", wrong + "  alone.pt\n");
  CHECK_ERROR(artifact, "alone.pt was altered", open(file));
  CHECK_ERROR(artifact, "alone.pt was altered", open(file, hash));
  CHECK_ERROR(artifact, "current.pt was altered", open(link));
  CHECK_ERROR(artifact, "other.pt is not listed in", open(broken().write("other.pt", bytes)));
  open(broken().write("other.pt", bytes), hash);
  broken().write("SHA256SUMS", "nothing\n");
  CHECK_ERROR(artifact, "line 1 is broken", open(file));
  fs::remove(sums);
  fs::create_directories(sums);
  CHECK_ERROR(artifact, "SHA256SUMS cannot be read: not a file", open(file));
  fs::remove_all(sums);
  fs::remove_all(link.parent_path());
}

/// Returns the resident memory of this process in bytes and the number of mappings of libraries.
std::pair<std::size_t, std::size_t> mapped() {
  std::ifstream status("/proc/self/statm"), maps("/proc/self/maps");
  std::size_t size = 0, resident = 0, libraries = 0;
  status >> size >> resident;
  for (std::string line; std::getline(maps, line);) libraries += line.ends_with(".so") ? 1 : 0;
  return {resident * static_cast<std::size_t>(getpagesize()), libraries};
}

/// Returns the disk space of the files that this process has open, in blocks.
std::int64_t open_blocks() {
  std::int64_t blocks = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    struct stat status{};
    if (stat(entry.path().c_str(), &status) == 0) blocks += status.st_blocks;
  }
  return blocks;
}

TEST_CASE("does not grow when opened 200 times") {
  for (const std::string& name : kModels) {
    CAPTURE(name);
    const auto example = Golden::read(fixtures() / "golden.safetensors").cases.front();
    const auto cycle = [&] {
      const auto artifact = Artifact::open(fixtures() / name);
      CHECK(at::allclose(artifact.run(example.inputs)[0], example.eager[0]));
    };
    for (int i = 0; i < 20; ++i) cycle();
    const auto [memory, libraries] = mapped();
    const auto disk = open_blocks();
    for (int i = 0; i < 200; ++i) cycle();
    const auto [memory_after, libraries_after] = mapped();
    std::printf("      %s: %zu to %zu KB, %zu to %zu mappings\n", name.c_str(), memory / 1024,
                memory_after / 1024, libraries, libraries_after);
    CHECK(libraries_after == libraries);
#ifndef __SANITIZE_ADDRESS__  // AddressSanitizer keeps freed memory to detect its use
    CHECK(memory_after < memory + (4u << 20));
#endif
    CHECK(open_blocks() == disk);
  }
}

#if !(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 14)
bool is_mapped(const std::string& file) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(file) != line.npos) return true;
  }
  return false;
}

TEST_CASE("maps weights and leaves no files") {
  const auto example = Golden::read(fixtures() / "golden.safetensors").cases.front();
  {
    const auto artifact = Artifact::open(fixtures() / "mapped.pt2");
    CHECK(is_mapped("mapped.pt2"));
    for (const auto& entry : fs::directory_iterator(support::scratch())) {
      CHECK(!entry.path().filename().string().starts_with("exporter-package-"));
    }
    CHECK(at::allclose(artifact.run(example.inputs)[0], example.eager[0]));
  }
  CHECK(!is_mapped("mapped.pt2"));
}
#endif

/// Two artifacts opened from one package have separate states.
TEST_CASE("does not share state") {
  const auto cases = Golden::read(fixtures() / "golden_carry.safetensors").cases;
  for (const std::string name : {"carry.pt2", "carry_mapped.pt2"}) {
    CAPTURE(name);
    const auto one = Artifact::open(fixtures() / name);
    CHECK(at::allclose(one.run(cases[0].inputs)[0], cases[0].eager[0]));
    const auto other = Artifact::open(fixtures() / name);
    CHECK(at::allclose(other.run(cases[0].inputs)[0], cases[0].eager[0]));
    CHECK(at::allclose(one.run(cases[1].inputs)[0], cases[1].eager[0]));
  }
}

TEST_CASE("serves several threads") {
  for (const std::string& name : kModels) {
    CAPTURE(name);
    const auto example = Golden::read(fixtures() / "golden.safetensors").cases.front();
    const auto artifact = Artifact::open(fixtures() / name);
    std::vector<int> wrong(4, 0);
    std::vector<std::thread> threads;
    for (int& count : wrong) {
      threads.emplace_back([&] {
        for (int i = 0; i < 50; ++i) {
          count += at::allclose(artifact.run(example.inputs)[0], example.eager[0]) ? 0 : 1;
        }
      });
    }
    for (auto& thread : threads) thread.join();
    for (const int count : wrong) CHECK(count == 0);
  }
}

TEST_CASE("runs in processes that were forked after it was opened") {
  for (const std::string& name : kModels) {
    CAPTURE(name);
    const auto example = Golden::read(fixtures() / "golden.safetensors").cases.front();
    const auto artifact = Artifact::open(fixtures() / name);
    const pid_t child = fork();
    if (child == 0) {
      exporter::set_threads(1);  // earlier calls have started OpenMP's threads, which a fork lacks
      alarm(60);
      const bool right = at::allclose(artifact.run(example.inputs)[0], example.eager[0]);
      _exit(right ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
}

/// Returns the resident memory of this process in MB.
double resident_mb() {
  std::ifstream file("/proc/self/statm");
  double total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / 1e6;
}

/// $EXPORTER_STRESS_S makes it call for so many seconds, and checks that memory does not grow.
TEST_CASE("runs an exported program in eight threads with different shapes") {
  const char* seconds = std::getenv("EXPORTER_STRESS_S");
  const std::chrono::duration<double> limit(seconds == nullptr ? 0.2 : std::atof(seconds));
  const auto artifact = Artifact::open(fixtures() / "exported.pt2");
  const auto cases = Golden::read(fixtures() / "golden.safetensors").cases;
  std::vector<std::vector<at::Tensor>> expected;
  for (const auto& one : cases) expected.push_back(artifact.run(one.inputs));
  std::vector<int> wrong(8, 0);
  const auto call_for = [&](std::chrono::duration<double> duration) {
    const auto end = std::chrono::steady_clock::now() + duration;
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < wrong.size(); ++i) {
      threads.emplace_back([&, i] {
        const std::size_t shape = i % cases.size();
        while (std::chrono::steady_clock::now() < end) {
          const auto outputs = artifact.run(cases[shape].inputs);
          for (std::size_t k = 0; k < outputs.size(); ++k) {
            wrong[i] += at::equal(outputs[k], expected[shape][k]) ? 0 : 1;
          }
        }
      });
    }
    for (auto& thread : threads) thread.join();
  };
  call_for(limit / 10);
  const double before = resident_mb();
  call_for(limit);
  for (const int count : wrong) CHECK(count == 0);
  if (seconds != nullptr) CHECK(resident_mb() - before < 8);
}

TEST_CASE("reports out of memory") {
  const auto raise = [](const auto& error) {
    exporter::guarded(exporter::ErrorKind::runtime, "model.pt", [&] { throw error; });
  };
  CHECK_ERROR(out_of_memory, "model.pt: out of memory", raise(std::bad_alloc()));
  CHECK_ERROR(out_of_memory, "CUDA out of memory. Tried",
              raise(std::runtime_error("CUDA out of memory. Tried to allocate 80 GiB")));
  CHECK_ERROR(runtime, "model.pt: the package's function failed",
              raise(std::runtime_error("run_func_( container_handle_, inputs.size()) API call "
                                       "failed at /torch/model_container_runner.cpp, line 144")));
  CHECK_ERROR(runtime, "model.pt: index out of range",
              raise(std::runtime_error("index out of range")));
#ifndef __SANITIZE_ADDRESS__  // AddressSanitizer ends the process
  CHECK_ERROR(out_of_memory,
              "model.pt: ", exporter::guarded(exporter::ErrorKind::runtime, "model.pt", [] {
                at::empty({std::int64_t{1} << 50}, at::kDouble);
              }));
#endif
  CHECK(exporter::to_string(exporter::ErrorKind::out_of_memory) == "out_of_memory"s);
}

TEST_CASE("reports a failed write as io") {
  const auto contract = exporter::inspect(fixtures() / "model.pt").contract;
  const std::vector<at::Tensor> outputs = {at::ones({1, 4}), at::ones({1}, at::kLong)};
  CHECK_ERROR(io, "cannot be written",
              exporter::write_outputs(fixtures() / "missing" / "out.pt", outputs, contract));
}

TEST_CASE("reports a model's failure") {
  const auto artifact = Artifact::open(fixtures() / "model.pt");
  const at::Tensor tokens = at::full({2, 6}, 99, at::kLong);  // the vocabulary has 16
  CHECK_ERROR(runtime, "model.pt: index out of range", artifact.run({tokens, at::ones({2, 4})}));
}

TEST_CASE("returns outputs that the caller owns") {
  const c10::InferenceMode mode;  // outputs are inference tensors, which only it lets one write to
  for (const char* name : {"kept.pt", "kept_in_buffer.pt"}) {
    const auto artifact = Artifact::open(fixtures() / name);
    const at::Tensor x = at::ones({2, 4});
    const auto first = artifact.run({x});
    const at::Tensor expected = first[1].clone();
    first[0].fill_(100);  // the model's own tensor
    first[2].fill_(100);  // and a view of it
    CHECK((at::equal(artifact.run({x})[1], expected)));
    CHECK((at::equal(artifact.run({x})[0], at::zeros({4}))));
  }
}

TEST_CASE("refuses invalid files") {
  const auto open = [](const fs::path& path) { Artifact::open(path); };
  CHECK_ERROR(artifact, "missing.pt: No such file", open(fixtures() / "missing.pt"));
  CHECK_ERROR(artifact, "is a directory", open(fixtures()));
  CHECK_ERROR(artifact, "carries no contract", open(fixtures() / "bare.pt"));
  CHECK_ERROR(artifact, "holds no TorchScript, AOTInductor package or exported program",
              open(fixtures() / "inputs.pt"));
  CHECK_ERROR(artifact, "empty.pt", open(broken().write("empty.pt", "")));
  CHECK_ERROR(artifact, "text.pt2", open(broken().write("text.pt2", std::string(5000, 'x'))));
  for (const std::string name : {"model.pt", "model.pt2"}) {
    for (const double part : {0.1, 0.5, 0.9, 0.999}) {
      CHECK_ERROR(artifact, name, open(broken().truncated(name, part)));
    }
    CHECK_ERROR(artifact, "schema 7",
                open(broken().altered(name, "\"schema\": 1", "\"schema\": 7")));
  }
}

TEST_CASE("refuses ONNX models") {
  const auto path = support::scratch() / "model.onnx";
  std::ofstream(path, std::ios::binary) << "onnx";
  const std::string cause = path.string() + ": ONNX models run in onnxruntime, not here";
  CHECK_ERROR(artifact, cause, Artifact::open(path));
}

TEST_CASE("refuses invalid settings") {
  const fs::path model = fixtures() / "model.pt";
  CHECK_ERROR(usage, "device tpu", Artifact::open(model, {.device = "tpu"}));
  for (const std::string device :
       {"cpu:0", "cpu:1", "cuda:77", "cuda:256", "cuda:-1", "cuda:", "cuda:99999999999"}) {
    CHECK_ERROR(usage, "", Artifact::open(model, {.device = device}));
  }
  for (const int threads : {-1, 0, 1025, 100'000, std::numeric_limits<int>::max()}) {
    CHECK_ERROR(usage, "threads is " + std::to_string(threads), exporter::set_threads(threads));
  }
  CHECK_ERROR(usage, "runners is 257", Artifact::open(model, {.runners = 257}));
  CHECK_ERROR(usage, "cuda_graphs is -1", Artifact::open(model, {.cuda_graphs = -1}));
  CHECK_ERROR(usage, "runners is 0", Artifact::open(model, {.runners = 0}));
  CHECK_ERROR(artifact, "cuda", Artifact::open(fixtures() / "model.pt2", {.device = "cuda:77"}));
}

/// Writes a safetensors file, whose header length can be wrong.
fs::path safetensors(const std::string& header, const std::string& data,
                     std::optional<std::uint64_t> length = std::nullopt) {
  const std::uint64_t size = length.value_or(header.size());
  std::string bytes(sizeof size, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  return broken().write("made.safetensors", bytes + header + data);
}

TEST_CASE("refuses invalid goldens") {
  const auto open = [](const fs::path& path) { Golden::read(path); };
  const std::string name = "golden.safetensors";
  CHECK_ERROR(golden, name + ": No such file", open(fixtures() / "missing" / name));
  CHECK_ERROR(golden, "its tensors have", open(broken().truncated(name, 0.9)));
  CHECK_ERROR(golden, "`seed` is missing", open(broken().altered(name, "seed", "sead")));
  CHECK_ERROR(golden, "schema 7 is not known, only 3",
              open(broken().altered(name, "\\\"schema\\\": 3", "\\\"schema\\\": 7")));
  CHECK_ERROR(golden, "`k` is missing",
              open(broken().altered(name, "\\\"k\\\": 3.5", "\\\"j\\\": 3.5")));
  CHECK_ERROR(golden, "tensor cases.0.inputs.0 is missing",
              open(broken().altered(name, "cases.0.inputs.0", "cases.0.inputz.0")));
  CHECK_ERROR(golden, "`schema` is missing", open(fixtures() / "inputs.safetensors"));
  CHECK_ERROR(golden, "inputs.pt cannot be read as a golden: it is a pickle",
              open(fixtures() / "inputs.pt"));
}

TEST_CASE("reads safetensors") {
  const auto read = [](const std::string& header, const std::string& data) {
    return exporter::read_safetensors(safetensors(header, data));
  };
  CHECK(read("{}", "").tensors.empty());
  const auto two = read(
      R"({"a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},
          "b":{"dtype":"F32","shape":[3,0],"data_offsets":[2,2]},
          "c":{"dtype":"C64","shape":[1],"data_offsets":[2,10]},
          "d":{"dtype":"F64","shape":[2],"data_offsets":[10,26]},
          "__metadata__":{"exporter":"{\"complex\":[\"d\"],\"x\":1}","other":"y"}}  )",
      "\x80\x3f"s + std::string(24, '\0'));
  CHECK(two.tensors.at("a").item<float>() == 1.0f);
  CHECK(two.tensors.at("b").sizes() == at::IntArrayRef({3, 0}));
  CHECK((two.tensors.at("c").scalar_type() == at::kComplexFloat));
  CHECK((two.tensors.at("d").scalar_type() == at::kComplexDouble));
  CHECK(two.tensors.at("d").dim() == 0);
  CHECK(two.about.at("x") == 1);
}

TEST_CASE("writes safetensors") {
  const fs::path path = support::scratch() / "written.safetensors";
  const exporter::NamedTensors given = {
      {"bool", at::tensor({1, 0, 1}).to(at::kBool)},
      {"half", at::full({2, 2}, 0.5, at::kHalf)},
      {"brain", at::full({1}, -2.0, at::kBFloat16)},
      {"scalar", at::scalar_tensor(7, at::kLong)},
      {"empty", at::empty({0, 5})},
      {"transposed", at::arange(6).reshape({2, 3}).t()},
      {"complex", at::full({2}, c10::complex<double>(1, -2), at::kComplexDouble)},
      {"conjugate", at::full({2}, c10::complex<float>(1, -2), at::kComplexFloat).conj()},
  };
  exporter::write_safetensors(path, given);
  const auto read = exporter::read_safetensors(path).tensors;
  REQUIRE(read.size() == given.size());
  for (const auto& [name, tensor] : given) {
    CAPTURE(name);
    CHECK((read.at(name).scalar_type() == tensor.scalar_type()));
    CHECK(at::equal(read.at(name), tensor.resolve_conj()));
  }
  CHECK(!fs::exists(path.string() + ".part"));
}

TEST_CASE("refuses hostile safetensors") {
  const auto read = [](const fs::path& path) {
    exporter::guarded(exporter::ErrorKind::golden, "it", [&] { exporter::read_safetensors(path); });
  };
  const auto tensor = [](const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
           offsets + "}}";
  };
  const auto of = [&](const std::string& header) { read(safetensors(header, "12345678")); };
  of(tensor("F32", "[2]", "[0,8]"));
  CHECK_ERROR(golden, "too short", read(broken().write("short", "1234567")));
  CHECK_ERROR(golden, "longer than the file", read(safetensors("{}", "", 3)));
  CHECK_ERROR(golden, "longer than the file", read(safetensors("{}", "", ~std::uint64_t{0})));
  CHECK_ERROR(golden, "not a JSON object", of("[]"));
  CHECK_ERROR(golden, "not a JSON object", of(""));
  CHECK_ERROR(golden, "parse error", of("{"));
  CHECK_ERROR(golden, "its tensors have 0 bytes, but the file has 8", of("{}"));
  CHECK_ERROR(golden, "unknown dtype F12", of(tensor("F12", "[2]", "[0,8]")));
  CHECK_ERROR(golden, "does not fit its shape", of(tensor("F32", "[3]", "[0,8]")));
  CHECK_ERROR(golden, "does not fit its shape", of(tensor("F32", "[2]", "[8,0]")));
  CHECK_ERROR(golden, "does not fit its shape",
              of(tensor("F32", "[4294967296,4294967296,4]", "[0,8]")));
  CHECK_ERROR(golden, "does not fit its shape",
              of(tensor("F32", "[9223372036854775808,0]", "[0,0]")));
  CHECK_ERROR(golden, "in place of a size", of(tensor("F32", "[-2]", "[0,8]")));
  CHECK_ERROR(golden, "in place of a size", of(tensor("F32", "[2.0]", "[0,8]")));
  CHECK_ERROR(golden, "its tensors have 4 bytes", of(tensor("F32", "[1]", "[0,4]")));
  CHECK_ERROR(golden, "its tensors have 16 bytes", of(tensor("F32", "[4]", "[0,16]")));
  CHECK_ERROR(golden, "does not start where", of(tensor("F32", "[1]", "[4,8]")));
  CHECK_ERROR(golden, "does not start where",
              of(R"({"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},
                     "b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})"));
  CHECK_ERROR(golden, "\"a\" twice", of(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
                     "a":{"dtype":"I8","shape":[8],"data_offsets":[0,8]}})"));
  CHECK_ERROR(golden, "neither 0 nor 1", of(tensor("BOOL", "[8]", "[0,8]")));
  CHECK_ERROR(golden, "must have two data_offsets", of(tensor("U8", "[8]", "[0,8,8]")));
  CHECK_ERROR(golden, "must have exactly dtype", of(R"({"a":3})"));
  CHECK_ERROR(golden, "metadata", of(R"({"__metadata__":3})"));
  CHECK_ERROR(golden, "not a string", of(R"({"__metadata__":{"a":1}})"));
  CHECK_ERROR(golden, "it: ", of(R"({"__metadata__":{"exporter":"{"}})"));
  CHECK_ERROR(golden, "it: ", of("{\"a\":" + std::string(100'000, '[')));
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  CHECK_ERROR(golden, "nested too deeply", of(tensor("U8", deep, "[0,8]")));
}

TEST_CASE("reads precisions") {
  const auto usual = Golden::read(fixtures() / "golden.safetensors");
  const auto half = Golden::read(fixtures() / "golden.safetensors", "bf16");
  const auto crude = Golden::read(fixtures() / "golden.safetensors", "int8");
  CHECK(half.tolerance.rtol == 0.016);
  CHECK(!half.tolerance.min_cosine);
  CHECK(*crude.tolerance.min_cosine == 0.995);
  CHECK(usual.tolerance_of(at::empty({}, at::kHalf)).k == 3.5);
  CHECK(usual.tolerance_of(at::empty({}, at::kFloat)).k == 2);
  CHECK(half.tolerance_of(at::empty({}, at::kHalf)).k == 3);
  REQUIRE(half.cases.size() == usual.cases.size());
  REQUIRE(crude.cases.size() == usual.cases.size() - 1);
  CHECK(!at::equal(half.cases[0].eager[0], usual.cases[0].eager[0]));
  CHECK(at::equal(crude.cases[0].eager[0], usual.cases[0].eager[0]));
  CHECK_ERROR(golden, "made without fp16", Golden::read(fixtures() / "golden.safetensors", "fp16"));
  const auto stored = Golden::read(fixtures() / "golden.safetensors", "int8w");
  REQUIRE(stored.cases[0].stored.size() == usual.cases[0].reference.size());
  CHECK(!at::equal(stored.cases[0].stored[0], usual.cases[0].reference[0]));
  CHECK(at::equal(stored.cases[0].eager[0], usual.cases[0].eager[0]));
  CHECK(usual.cases[0].stored.empty());
  CHECK_ERROR(golden, "stored", Golden::read(fixtures() / "golden.safetensors", "fp16w"));
}

TEST_CASE("reads inputs") {
  const auto contract = exporter::inspect(fixtures() / "model.pt").contract;
  const auto inputs = exporter::read_inputs(fixtures() / "inputs.safetensors", contract);
  REQUIRE(inputs.size() == 2);
  CHECK(inputs[0].sizes() == at::IntArrayRef({3, 6}));
  const auto wrong = broken().altered("inputs.safetensors", "tokens", "tokans");
  CHECK_ERROR(contract, "there is no input tokans, only tokens, scale",
              exporter::read_inputs(wrong, contract));
  CHECK_ERROR(golden, "inputs.pt cannot be read as a safetensors file of inputs",
              exporter::read_inputs(fixtures() / "inputs.pt", contract));
}

TEST_CASE("runs by name") {
  for (const std::string& name : kModels) {
    CAPTURE(name);
    const auto example = Golden::read(fixtures() / "golden.safetensors").cases.front();
    const auto artifact = Artifact::open(fixtures() / name);
    const auto outputs =
        artifact.run_named({{"scale", example.inputs[1]}, {"tokens", example.inputs[0]}});
    REQUIRE(outputs.size() == 2u);
    CHECK(at::allclose(outputs.at("probabilities"), example.eager[0]));
    CHECK(at::equal(outputs.at("label"), example.eager[1]));
    CHECK_ERROR(contract, "input scale is missing",
                artifact.run_named({{"tokens", example.inputs[0]}}));
    CHECK_ERROR(contract, "there is no input ids, only tokens, scale",
                artifact.run_named({{"ids", example.inputs[0]}}));
  }
}

TEST_CASE("runs into tensors") {
  for (const std::string& name : kModels) {
    CAPTURE(name);
    const auto example = Golden::read(fixtures() / "golden.safetensors").cases.back();
    const auto artifact = Artifact::open(fixtures() / name);
    const at::Tensor room = at::zeros({4, 5}).t(), label = at::zeros({5}, at::kLong);
    artifact.run_into(example.inputs, {room, label});
    CHECK(!room.is_contiguous());
    CHECK(at::allclose(room, example.eager[0]));
    CHECK(at::equal(label, example.eager[1]));
    const at::Tensor untouched = at::zeros({5, 4});
    CHECK_ERROR(contract, "the tensor for output label is int64 [4], the output is int64 [5]",
                artifact.run_into(example.inputs, {untouched, at::zeros({4}, at::kLong)}));
    CHECK_ERROR(contract, "output label has dtype float32, not int64",
                artifact.run_into(example.inputs, {untouched, at::zeros({5})}));
    CHECK_ERROR(contract, "no tensor given for output label",
                artifact.run_into(example.inputs, {untouched, at::Tensor()}));
    const auto into = [&](const at::Tensor& given) {
      artifact.run_into(example.inputs, {untouched, given});
      return 0;
    };
    CHECK_ERROR(contract, "output label has elements that share memory",
                into(at::zeros({1}, at::kLong).expand({5})));
    CHECK_ERROR(contract, "output label is on the device meta", into(label.to(at::kMeta)));
    CHECK_ERROR(contract, "output label is sparse (Sparse)", into(label.to_sparse()));
    CHECK_ERROR(contract, "1 tensors given for the outputs",
                artifact.run_into(example.inputs, {room}));
    CHECK(untouched.abs().sum().item<float>() == 0.0f);
  }
}

TEST_CASE("unpacks again after its folder was discarded") {
  const auto first = exporter::unpack(fixtures() / "model.pt2");
  exporter::discard_unpacked();
  CHECK(!fs::exists(first->folder()));
  {
    const auto second = exporter::unpack(fixtures() / "model.pt2");
    CHECK(fs::exists(second->folder()));
    CHECK(second->folder().parent_path() != first->folder().parent_path());
  }
  Artifact::open(fixtures() / "model.pt2");
}

TEST_CASE("warms up") {
  for (const std::string name : {"model.pt", "model.pt2"}) {
    const auto artifact = Artifact::open(fixtures() / name);
    artifact.warm_up();
    artifact.warm_up({{{"batch", 1}}, {{"batch", 8}}});
    CHECK_ERROR(contract, "batch is 9, the contract allows 1 to 8",
                artifact.warm_up({{{"batch", 9}}}));
    CHECK_ERROR(contract, "the contract has no symbol length", artifact.warm_up({{{"length", 2}}}));
  }
  const auto cases = Golden::read(fixtures() / "golden_carry.safetensors").cases;
  for (const std::string name : {"carry.pt", "carry.pt2"}) {
    const auto artifact = Artifact::open(fixtures() / name);
    artifact.warm_up();
    CHECK(at::allclose(artifact.run(cases[0].inputs)[0], cases[0].eager[0]));
  }
  const auto outside = Artifact::open(fixtures() / "stream.pt");
  outside.warm_up({{{"batch", 2}}});
  CHECK(outside.contract().example_inputs({{"batch", 2}})[1].size(0) == 2);
}

TEST_CASE("has a version") {
  const std::string numbers = std::to_string(EXPORTER_VERSION_MAJOR) + "." +
                              std::to_string(EXPORTER_VERSION_MINOR) + "." +
                              std::to_string(EXPORTER_VERSION_PATCH);
  CHECK(numbers == EXPORTER_VERSION);
  CHECK(numbers == exporter::version());
}

TEST_CASE("refuses missing operators") {
  for (const std::string name : {"custom.pt", "custom.pt2"}) {
    CHECK_ERROR(artifact, name + " calls operators of exporter_test, which are not registered here",
                Artifact::open(fixtures() / name));
  }
  const auto load = [](const fs::path& library) { exporter::load_operators(library); };
  CHECK_ERROR(usage, "missing.so: no such library", load(fixtures() / "missing.so"));
  CHECK_ERROR(usage, "no such library", load(fixtures()));
  CHECK_ERROR(usage, "no_library.so: cannot be loaded",
              load(broken().write("no_library.so", std::string(5000, 'x'))));
  CHECK(!exporter::find_operators("exporter_test"));
}

TEST_CASE("runs operators of a library") {
  CHECK(!exporter::has_operators("exporter_test"));
  exporter::load_operators(operators());
  exporter::load_operators(operators());
  CHECK(exporter::has_operators("exporter_test"));
  CHECK(!exporter::has_operators("exporter"));
  for (const std::string name : {"custom.pt", "custom.pt2"}) {
    const auto artifact = Artifact::open(fixtures() / name);
    for (const int batch : {1, 3}) {
      const at::Tensor x = at::rand({batch, 2 * batch + 1});
      CHECK(at::allclose(artifact.run({x})[0], (x * 2.0 - 1.0).sum(1)));
    }
    CHECK_ERROR(contract, "x dim 1 is 4: no length of 1 to 64 gives 2*length+1 = 4",
                artifact.run({at::rand({2, 4})}));
  }
}

/// Calls with different shapes, and with the same shape, run inside the model concurrently.
TEST_CASE("serves callers concurrently") {
  exporter::load_operators(operators());
  for (const std::string name : {"meet.pt", "meet.pt2"}) {
    const auto artifact = Artifact::open(fixtures() / name, {.runners = 4});
    artifact.run({at::ones({2, 3})});  // the first call folds a package's constants exclusively
    for (const auto& batches : std::vector<std::vector<std::int64_t>>{{1, 2, 3, 4}, {2, 2, 2, 2}}) {
      std::vector<std::string> failures(batches.size());
      std::vector<std::thread> threads;
      for (std::size_t i = 0; i < batches.size(); ++i) {
        threads.emplace_back([&, i] {
          try {
            const at::Tensor x = at::full({batches[i], 3}, static_cast<double>(batches.size()));
            CHECK(at::equal(artifact.run({x})[0], x.sum(1)));
          } catch (const std::exception& error) {
            failures[i] = error.what();
          }
        });
      }
      for (auto& thread : threads) thread.join();
      for (const std::string& failure : failures) CHECK(failure == "");
    }
  }
}

/// A caller that waits for a runner gets it even if the previous call fails.
TEST_CASE("releases runners of failed calls") {
  exporter::load_operators(operators());
  const auto artifact = Artifact::open(fixtures() / "meet.pt2", {.runners = 1});
  std::vector<int> failures(4, 0);
  std::vector<std::thread> threads;
  for (int& count : failures) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) {
        try {
          artifact.run({at::zeros({2, 3})});
        } catch (const exporter::Error&) {
          ++count;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const int count : failures) CHECK(count == 5);
}

TEST_CASE("reports out of memory inside a model") {
  exporter::load_operators(operators());
  std::vector<std::string> names = {"meet.pt"};
#if __has_include(<torch/csrc/shim_exception_state.h>)
  names.emplace_back("meet.pt2");  // packages of an older torch report only that a call failed
#endif
  for (const std::string& name : names) {
    CAPTURE(name);
    const auto artifact = Artifact::open(fixtures() / name, {.runners = 1});
    const auto run = [&](double value) { artifact.run({at::full({2, 3}, value)}); };
    run(1);
    CHECK_ERROR(out_of_memory, name + ": CUDA out of memory. Raised by the test", run(-1));
    CHECK_ERROR(runtime, name, run(0));
    run(1);
  }
}

/// OpenMP gives a new thread all cores, and compiled packages only ask OpenMP.
TEST_CASE("applies the number of threads to new threads") {
  for (const std::string& name : kModels) {
    CAPTURE(name);
    const auto count = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
    if (count == nullptr) return;  // a LibTorch without OpenMP
    const auto example = Golden::read(fixtures() / "golden.safetensors").cases.front();
    for (const int threads : {3, 1}) {
      exporter::set_threads(threads);
      const auto artifact = Artifact::open(fixtures() / name);
      int found = 0;
      std::thread([&] {
        artifact.run(example.inputs);
        found = count();
      }).join();
      CHECK(found == threads);
    }
  }
}

}  // namespace
