#include "opcodes.h"

#include <cstdio>
#include <map>
#include <stdexcept>

#include "../cudart/fatbin.h"
#include "../cudart/registry.h"
#include "decoder.h"
#include "parser.h"

namespace {

std::string target_of(const cudart::Image& image) {
  if (image.architecture == 0) return "";
  return " (compute_" + std::to_string(image.architecture) + (image.suffix ? std::string(1, image.suffix) : "") + ")";
}

// Opcodes are the first words of statements, after labels and guards.
void count_opcodes(const ptxsim::ParsedModule& module, const ptxsim::Function& function,
                   std::map<std::string, int>& counts) {
  bool at_start = true;
  for (size_t i = function.body_begin; i < function.body_end; ++i) {
    const ptxsim::Token& token = module.tokens[i];
    if (at_start && token.is("@")) {
      i += module.tokens[i + 1].is("!") ? 2 : 1;
      continue;
    }
    if (token.is(".loc")) {  // ends with its line
      while (module.tokens[i + 1].line == token.line) ++i;
      continue;
    }
    const bool label = module.tokens[i + 1].is(":");
    if (at_start && !label && token.kind == ptxsim::Token::Kind::kWord && token.text[0] != '.') {
      ++counts[std::string(token.text)];
    }
    // A brace within a statement opens a vector, not a block.
    at_start = token.is(";") || token.is("}") || token.is(":") || (at_start && token.is("{"));
  }
}

// What the interpreter cannot decode, empty if nothing.
std::string why_not_decoded(const ptxsim::ParsedModule& module, const ptxsim::Function& function,
                            const ptxsim::KernelInfo& info) {
  try {
    ptxsim::Decoder::decode(module, function, info, ptxsim::lay_out_shared(module, function));
    return "";
  } catch (const ptxsim::Error& error) {
    return cudart::describe(error);
  }
}

}  // namespace

int list_opcodes(const std::string& path) {
  const cudart::FatBinary binary = cudart::read_file(path);
  for (const std::string& error : binary.errors) std::printf("%s\n", error.c_str());
  if (binary.images.empty()) throw std::runtime_error(path + " holds no PTX that can be read");
  std::map<std::string, int> counts;
  std::map<std::string, std::string> lacking;
  int num_kernels = 0;
  for (const cudart::Image& image : binary.images) {
    const ptxsim::ParsedModule module = ptxsim::parse_module(image.ptx);
    const std::unique_ptr<ptxsim::Module> loaded = ptxsim::Module::parse(image.ptx);
    for (const auto& [name, function] : module.functions) {
      if (!function.defined) continue;
      count_opcodes(module, function, counts);
      if (!function.entry) continue;
      ++num_kernels;
      const std::string problem = why_not_decoded(module, function, *loaded->find(name));
      if (!problem.empty()) lacking[cudart::demangle(name) + target_of(image)] = problem;
    }
  }
  for (const auto& [opcode, count] : counts) std::printf("%6d %s\n", count, opcode.c_str());
  std::printf("%zu opcodes in %d kernels\n", counts.size(), num_kernels);
  for (const auto& [kernel, problem] : lacking) std::printf("LACKING in %s: %s\n", kernel.c_str(), problem.c_str());
  return lacking.empty() && binary.errors.empty() ? 0 : 1;
}
