#include "help.h"

#include <map>

namespace exporter::app {
namespace {

constexpr const char* kProgram = R"(Runs models that exporter exported, without Python.

Usage: exporter-run COMMAND ARTIFACT [OPTIONS]

Commands:
  info      show what an artifact is and which tensors it takes
  verify    compare an artifact's outputs with its golden
  bench     time an artifact
  run       run an artifact once, or in a stream, on tensors from files
  session   serve check and time requests on standard input

ARTIFACT is a .pt (TorchScript) or .pt2 (AOTInductor) file of an exporter bundle.

  --help     this text; exporter-run COMMAND --help says more
  --version  versions of exporter and of LibTorch

Exit codes: 0 success, 1 lost parity or a failure, 2 wrong usage.
)";

constexpr const char* kMachine =
    R"(  --device cpu|cuda|cuda:N  where to run; the device of the contract unless given
  --threads N               threads inside one operator; torch's default unless given
)";

constexpr const char* kHash =
    R"(  --sha256 HASH             SHA-256 that the artifact has to have; where it is not given, a SHA256SUMS
                            beside it tells
)";

constexpr const char* kGraphs =
    R"(  --cuda-graphs N           shapes captured into CUDA graphs, on a GPU; 0 is none (8)
)";

constexpr const char* kOperators =
    R"(  --ops-lib FILE            a library of operators outside torch's own, such as torchvision's;
                            may be repeated
)";

constexpr const char* kGolden =
    R"(  --golden FILE             the golden; golden.pt beside the artifact unless given
)";

constexpr const char* kInfo = R"(Show what an artifact is and which tensors it takes.

Usage: exporter-run info ARTIFACT [OPTIONS]

  --json                    print JSON
)";

constexpr const char* kVerify = R"(Compare an artifact's outputs with its golden.

Usage: exporter-run verify ARTIFACT [OPTIONS]

Prints the worst case of each output, and all that FAIL. Exits with 0 when every output is exact,
rounding or drift, with 1 when one is FAIL. Somebody has to say the artifact's SHA-256: the
SHA256SUMS beside it, as in every bundle, or --sha256.

  --rtol X, --atol X        tolerances; those of the golden unless given
  --verbose                 print every output of every case
  --json                    print JSON
)";

constexpr const char* kBench = R"(Time an artifact on the first case of its golden.

Usage: exporter-run bench ARTIFACT [OPTIONS]

Says how long loading and the first call took, warms up until the median settles, then times windows
of single, synchronised calls.

  --warmup S                seconds to warm up, at most (10)
  --windows N               windows to time (5)
  --runs N                  calls in a window (50)
  --callers N               threads that call at the same time (1): throughput, and latency under
                            that load, of all windows' calls by each
  --streams N               of a GPU, that the callers share (1)
  --runners N               calls that a compiled package serves at the same time; on the CPU
                            as many as there are cores unless given, on a GPU 1
  --json                    print JSON, with every sample
)";

constexpr const char* kRun = R"(Run an artifact once, or in a stream.

Usage: exporter-run run ARTIFACT --inputs FILE --outputs FILE [OPTIONS]

  --inputs FILE             what torch.save wrote: a dict of name to tensor, or a list in order;
                            state.NAME that is left out is the initial state. May be repeated where
                            the artifact has a state: the calls of a stream, without state.NAME
  --outputs FILE            written: a dict of name to tensor, for torch.load; of a stream, 0.NAME,
                            1.NAME and so on
)";

constexpr const char* kSession = R"(Serve requests on standard input, one JSON answer a line.

Usage: exporter-run session ARTIFACT [OPTIONS]

Requests: `check`, `time N [CASE]`, `quit`.

)";

}  // namespace

std::string help(const std::string& command) {
  const std::map<std::string, std::string> texts = {
      {"info", std::string(kInfo) + kOperators},
      {"verify", std::string(kVerify) + kGolden + kMachine + kHash + kGraphs + kOperators},
      {"bench", std::string(kBench) + kGolden + kMachine + kHash + kGraphs + kOperators},
      {"run", std::string(kRun) + kMachine + kHash + kGraphs + kOperators},
      {"session", std::string(kSession) + kGolden + kMachine + kHash + kGraphs + kOperators},
  };
  const auto found = texts.find(command);
  return found == texts.end() ? kProgram : found->second;
}

}  // namespace exporter::app
