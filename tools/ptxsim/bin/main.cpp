// The command `ptxsim`.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "opcodes.h"

namespace {

constexpr char kUsage[] =
    "usage:\n"
    "  ptxsim run [options] [--] PROGRAM [ARGUMENT ...]\n"
    "      runs a CUDA program that is linked to libcudart.so.13 (nvcc -cudart shared) on the simulator\n"
    "      --device NAME    a100 (default) | h100 | h200 | b200 | t4 | none (no driver) | nogpu\n"
    "      --seed N         warps, blocks and independent streams in an order drawn from N\n"
    "      --race           report data races and reads of memory that nothing wrote\n"
    "      --eager          run work when it is submitted instead of when something waits for it\n"
    "      --abort          end the program with exit status 86 at the first broken rule\n"
    "      --counters FILE  write what each kernel did, as JSON\n"
    "  ptxsim opcodes FILE\n"
    "      lists the opcodes of the PTX in a program, library, object or .ptx file; exit status 1 if the simulator\n"
    "      lacks one of them\n";

class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Where this program and libcudart.so.13 were built or installed together.
std::string library_directory() { return std::filesystem::read_symlink("/proc/self/exe").parent_path(); }

void set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

void prepend_library_path() {
  const char* rest = std::getenv("LD_LIBRARY_PATH");
  set("LD_LIBRARY_PATH", library_directory() + (rest && *rest ? std::string(":") + rest : ""));
}

// Returns only if the program cannot be started.
int run(const std::vector<std::string>& arguments) {
  size_t next = 0;
  const auto value_of = [&](const std::string& option) {
    if (++next == arguments.size()) throw UsageError(option + " needs a value");
    return arguments[next];
  };
  for (; next < arguments.size() && arguments[next].starts_with("--"); ++next) {
    const std::string& option = arguments[next];
    if (option == "--") {
      ++next;
      break;
    }
    if (option == "--device") {
      set("PTXSIM_DEVICE", value_of(option));
    } else if (option == "--seed") {
      set("PTXSIM_SEED", value_of(option));
    } else if (option == "--counters") {
      set("PTXSIM_COUNTERS_FILE", std::filesystem::absolute(value_of(option)));
    } else if (option == "--race") {
      set("PTXSIM_RACE", "1");
    } else if (option == "--eager") {
      set("PTXSIM_EAGER", "1");
    } else if (option == "--abort") {
      set("PTXSIM_ABORT", "1");
    } else {
      throw UsageError("unknown option " + option);
    }
  }
  if (next == arguments.size()) throw UsageError("no program given");
  prepend_library_path();
  std::vector<char*> program;
  for (; next < arguments.size(); ++next) program.push_back(const_cast<char*>(arguments[next].c_str()));
  program.push_back(nullptr);
  execvp(program[0], program.data());
  throw std::runtime_error(std::string("cannot start ") + program[0]);
}

}  // namespace

int main(int count, char** values) {
  const std::vector<std::string> arguments(values + 1, values + count);
  try {
    if (arguments.empty()) throw UsageError("no command given");
    const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
    if (arguments[0] == "run") return run(rest);
    if (arguments[0] == "opcodes" && rest.size() == 1) return list_opcodes(rest[0]);
    if (arguments[0] == "--help" || arguments[0] == "help") {
      std::fputs(kUsage, stdout);
      return 0;
    }
    throw UsageError("unknown command " + arguments[0]);
  } catch (const UsageError& error) {
    std::fprintf(stderr, "ptxsim: %s\n%s", error.what(), kUsage);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ptxsim: %s\n", error.what());
    return 2;
  }
}
