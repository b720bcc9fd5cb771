// Runs the tests whose name contains an argument, or all.
#include <cstring>

#include "cudart_check.h"

static int failures = 0;

std::vector<Test>& all_tests() {
  static std::vector<Test> tests;
  return tests;
}

void note_failure(const char* file, int line, const std::string& what) {
  std::printf("%s:%d: %s\n", file, line, what.c_str());
  ++failures;
}

int main(int count, char** arguments) {
  int run = 0;
  for (const Test& test : all_tests()) {
    bool chosen = count == 1;
    for (int i = 1; i < count; ++i) chosen = chosen || std::strcmp(test.name, arguments[i]) == 0;
    // Tests of environment variables run only when asked for by name.
    if (count == 1 && std::strncmp(test.name, "environment_", 12) == 0) chosen = false;
    if (!chosen) continue;
    const int before = failures;
    test.run();
    ptxsim_reset_error();
    ptxsim_fail_launch("", 0);
    ptxsim_fail_malloc(0);
    std::printf("%s %s\n", test.name, failures == before ? "ok" : "FAILED");
    ++run;
  }
  return failures == 0 && run > 0 ? 0 : 1;
}
