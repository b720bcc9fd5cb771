// A few lines of test framework: TEST(name) { EXPECT(condition); EXPECT_ERROR(call, cudaErrorX); }.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <string>
#include <vector>

#include "../cudart/ptxsim_control.h"

struct Test {
  const char* name;
  void (*run)();
};

std::vector<Test>& all_tests();
void note_failure(const char* file, int line, const std::string& what);

struct Registration {
  Registration(const char* name, void (*run)()) { all_tests().push_back({name, run}); }
};

inline bool expect_error(cudaError_t actual, cudaError_t expected, const char* text, const char* file, int line) {
  if (actual == expected) return true;
  note_failure(file, line,
               std::string(text) + " returned " + cudaGetErrorName(actual) + ", not " + cudaGetErrorName(expected));
  return false;
}

#define TEST(name)                                         \
  static void test_##name();                               \
  static Registration register_##name{#name, test_##name}; \
  static void test_##name()
#define EXPECT(condition) ((condition) ? void() : note_failure(__FILE__, __LINE__, #condition))
#define EXPECT_ERROR(call, error) expect_error(call, error, #call, __FILE__, __LINE__)
#define EXPECT_OK(call) EXPECT_ERROR(call, cudaSuccess)

// Host code cannot see device memory of a real GPU, so tests read it through this.
template <class T>
std::vector<T> read_device(const T* pointer, size_t count) {
  std::vector<T> values(count);
  EXPECT_OK(cudaMemcpy(values.data(), pointer, count * sizeof(T), cudaMemcpyDeviceToHost));
  return values;
}

template <class T>
T* allocate_device(size_t count) {
  T* pointer = nullptr;
  EXPECT_OK(cudaMalloc(&pointer, count * sizeof(T)));
  return pointer;
}

// The last report holds `text`.
inline bool report_has(const char* text) { return std::string(ptxsim_last_report()).find(text) != std::string::npos; }
