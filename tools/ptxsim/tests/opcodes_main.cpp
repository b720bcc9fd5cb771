// Runs all tests, or those whose name contains an argument.
#include <cstdio>
#include <exception>

#include "opcodes_test.h"

namespace ptxsim::test {
namespace {

struct Test {
  const char* name;
  TestBody body;
};

std::vector<Test>& tests() {
  static std::vector<Test> list;
  return list;
}

int num_failures = 0;
const char* current = "";

}  // namespace

bool add_test(const char* name, TestBody body) {
  tests().push_back({name, body});
  return true;
}

void fail(const char* file, int line, const std::string& message) {
  ++num_failures;
  std::fprintf(stderr, "%s: %s:%d: %s\n", current, file, line, message.c_str());
}

std::string kernel_text(const std::string& body, size_t num_parameters, const std::string& before) {
  std::string text = ".version 8.0\n.target sm_90\n.address_size 64\n" + before + "\n.visible .entry k(";
  for (size_t i = 0; i < num_parameters; ++i)
    text += (i ? ", " : "") + std::string(".param .u64 arg") + std::to_string(i);
  return text + ")\n{\n" + body + "\n}\n";
}

void Run::launch(const std::string& module, std::initializer_list<uint64_t> parameters) {
  const auto parsed = Module::parse(module);
  const std::vector<uint64_t> values(parameters);
  parsed->launch("k", {grid, block, {1, 1, 1}, dynamic_shared}, reinterpret_cast<const std::byte*>(values.data()),
                 options, counters);
}

std::string error_kind(const std::function<void()>& body, std::string* message) {
  try {
    body();
  } catch (const Error& error) {
    if (message != nullptr) *message = error.what();
    return error.kind();
  }
  return "none";
}

std::vector<uint32_t> run_warp(const std::string& body, size_t num_results, Run run, const std::string& before) {
  const std::string head =
      ".reg .b32 r<10>; .reg .b64 d<10>; .reg .f32 f<10>; .reg .b16 h<10>; .reg .pred p<10>; .reg .b32 %lane; .reg "
      ".b64 %out;\n"
      "mov.u32 %lane, %tid.x; ld.param.u64 %out, [arg0]; mad.wide.u32 %out, %lane, " +
      std::to_string(4 * num_results) + ", %out;\n";
  Buffer<uint32_t> out(std::vector<uint32_t>(run.block.count() * num_results, 0));
  run.launch(kernel_text(head + body + "\nret;", 1, before), {address(out)});
  return out.values();
}

std::string bits_type(size_t bytes) { return ".b" + std::to_string(8 * bytes); }

std::vector<std::byte> run_operation(const std::string& opcode, const std::vector<size_t>& sizes,
                                     const std::vector<std::vector<std::byte>>& sources, size_t count, bool guarded) {
  std::string body =
      ".reg .pred %g; .reg .b32 %i, %t; .reg .b64 %a, %o;\n"
      "mov.u32 %t, %ctaid.x; mov.u32 %i, %ntid.x; mul.lo.u32 %i, %i, %t; mov.u32 %t, %tid.x; add.u32 %i, %i, %t;\n";
  std::string operands;
  for (size_t j = 0; j < sizes.size(); ++j) {
    const std::string reg = "%x" + std::to_string(j), wide = sizes[j] == 1 ? ".b16" : bits_type(sizes[j]);
    body += ".reg " + wide + " " + reg + ";\n";
    operands += (j ? ", " : "") + reg;
    if (j == 0) continue;
    body += "ld.param.u64 %o, [arg" + std::to_string(j) + "]; mad.wide.u32 %a, %i, " + std::to_string(sizes[j]) +
            ", %o; ld.global" + bits_type(sizes[j]) + " " + reg + ", [%a];\n";
  }
  const std::string size = std::to_string(sizes[0]);
  body += "rem.u32 %t, %i, 3; setp.ne.u32 %g, %t, 0;\n" + std::string(guarded ? "@%g " : "") + opcode + " " + operands +
          ";\n" + "ld.param.u64 %o, [arg0]; mad.wide.u32 %a, %i, " + size + ", %o; " + (guarded ? "@%g " : "") +
          "st.global" + bits_type(sizes[0]) + " [%a], %x0;\nret;";
  Buffer<std::byte> out(count * sizes[0]);
  std::vector<std::unique_ptr<Buffer<std::byte>>> in;
  std::vector<uint64_t> parameters = {address(out)};
  for (const auto& source : sources) {
    in.push_back(std::make_unique<Buffer<std::byte>>(source));
    parameters.push_back(address(*in.back()));
  }
  const auto module = Module::parse(kernel_text(body, parameters.size()));
  Counters counters;
  module->launch("k", {{static_cast<uint32_t>(count / 64), 1, 1}, {64, 1, 1}, {}, 0},
                 reinterpret_cast<const std::byte*>(parameters.data()), {}, counters);
  return out.values();
}

namespace {

int run_all(const std::string& filter) {
  int failed = 0, run = 0;
  for (const Test& test : tests()) {
    if (std::string(test.name).find(filter) == std::string::npos) continue;
    current = test.name;
    const int before = num_failures;
    ++run;
    try {
      test.body();
    } catch (const std::exception& error) {
      fail("exception", 0, error.what());
    }
    failed += num_failures != before;
  }
  std::printf("%d tests, %d failed\n", run, failed);
  return failed != 0;
}

}  // namespace
}  // namespace ptxsim::test

int main(int argc, char** argv) { return ptxsim::test::run_all(argc > 1 ? argv[1] : ""); }
