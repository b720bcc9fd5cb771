// A small test harness, and ways to run pieces of PTX.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "ptxsim.h"

namespace ptxsim::test {

using TestBody = void (*)();
bool add_test(const char* name, TestBody body);
void fail(const char* file, int line, const std::string& message);

#define PTX_TEST(name)                                                    \
  static void name();                                                     \
  static const bool name##_added = ::ptxsim::test::add_test(#name, name); \
  static void name()

#define CHECK(condition) \
  if (!(condition)) ::ptxsim::test::fail(__FILE__, __LINE__, #condition)

#define CHECK_EQUAL(a, b) ::ptxsim::test::check_equal(__FILE__, __LINE__, #a " == " #b, a, b)

template <class A, class B>
void check_equal(const char* file, int line, const char* what, const A& a, const B& b) {
  if (a == b) return;
  std::ostringstream text;
  text << what << ": " << a << " and " << b;
  fail(file, line, text.str());
}

// Device memory with the host's view of it.
template <class T>
class Buffer {
 public:
  explicit Buffer(size_t count) : data_(static_cast<T*>(allocate(count * sizeof(T)))), count_(count) {}
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size()) {
    std::copy(values.begin(), values.end(), data_);
    mark_initialised(data_, count_ * sizeof(T));
  }
  ~Buffer() { deallocate(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* data() const { return data_; }
  T& operator[](size_t i) const { return data_[i]; }
  std::vector<T> values() const { return {data_, data_ + count_}; }

 private:
  T* data_;
  size_t count_;
};

// Text of a module with one kernel "k" that has parameters p0, p1, ... of 64 bits; `body` is its body.
std::string kernel_text(const std::string& body, size_t num_parameters, const std::string& before = "");

struct Run {
  Dim3 grid{1, 1, 1}, block{32, 1, 1};
  uint32_t dynamic_shared = 0;
  Options options;
  Counters counters;

  // Launches "k" of the module with parameters of 64 bits.
  void launch(const std::string& module, std::initializer_list<uint64_t> parameters);
};

template <class T>
uint64_t address(const Buffer<T>& buffer) {
  return reinterpret_cast<uint64_t>(buffer.data());
}

// The kind of the error that `body` throws; "none" if it does not.
std::string error_kind(const std::function<void()>& body, std::string* message = nullptr);

// Runs `body` in one warp. On entry %lane is the lane and %out the address of its `num_results` results of 32 bits;
// r0-r9 (.b32), d0-d9 (.b64), f0-f9 (.f32), h0-h9 (.b16) and p0-p9 (.pred) are declared. Returns result j of lane l at
// [l * num_results + j].
std::vector<uint32_t> run_warp(const std::string& body, size_t num_results, Run run = {},
                               const std::string& before = "");

// --- One opcode against a function of C++.

template <class T>
std::vector<T> edge_values() {
  std::vector<T> values;
  std::mt19937_64 random(7);
  if constexpr (std::is_floating_point_v<T>) {
    using L = std::numeric_limits<T>;
    for (const double v :
         {0.0, 1.0, 0.5, 1.5, 2.5, 3.0, 1e-3, 255.5, 65504.0, 65520.0, 2147483648.0, 4294967296.0, 9.3e18, 1e30}) {
      values.push_back(static_cast<T>(v));
      values.push_back(static_cast<T>(-v));
    }
    for (const T v : {L::infinity(), L::max(), L::min(), L::denorm_min()}) {
      values.push_back(v);
      values.push_back(-v);
    }
    values.push_back(L::quiet_NaN());
    std::normal_distribution<double> normal(0, 3);
    for (int i = 0; i < 12; ++i) values.push_back(static_cast<T>(normal(random)));
  } else {
    for (const int64_t v : {0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, -1, -2, -128})
      values.push_back(static_cast<T>(v));
    for (const T v : {std::numeric_limits<T>::min(), std::numeric_limits<T>::max()}) {
      values.push_back(v);
      values.push_back(static_cast<T>(v ^ 1));
    }
    for (int i = 0; i < 12; ++i) values.push_back(static_cast<T>(random()));
  }
  return values;
}

std::string bits_type(size_t bytes);  // ".b32"
std::vector<std::byte> run_operation(const std::string& opcode, const std::vector<size_t>& sizes,
                                     const std::vector<std::vector<std::byte>>& sources, size_t count, bool guarded);

template <class T>
std::string shown(const T& value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  std::ostringstream text;
  text << "0x" << std::hex << bits;
  return text.str();
}

// Compares bits, over tuples of edge values, with all lanes active and with some.
template <class D, class... S>
void check_operation(const std::string& opcode, const std::type_identity_t<std::function<D(S...)>>& expected) {
  std::mt19937_64 random(11);
  const auto pools = std::make_tuple(edge_values<S>()...);
  constexpr size_t kCount = 2048;
  std::array<std::vector<std::byte>, sizeof...(S)> columns;
  std::vector<D> results;
  const bool one = sizeof...(S) == 1;
  for (size_t i = 0; i < kCount; ++i) {
    const std::tuple<S...> values = std::apply(
        [&](const auto&... pool) { return std::tuple<S...>{pool[(one ? i : random()) % pool.size()]...}; }, pools);
    size_t column = 0;
    std::apply(
        [&](const auto&... v) {
          ((columns[column].insert(columns[column].end(), reinterpret_cast<const std::byte*>(&v),
                                   reinterpret_cast<const std::byte*>(&v) + sizeof v),
            ++column),
           ...);
        },
        values);
    results.push_back(std::apply(expected, values));
  }
  for (const bool guarded : {false, true}) {
    const std::vector<std::byte> got =
        run_operation(opcode, {sizeof(D), sizeof(S)...}, {columns.begin(), columns.end()}, kCount, guarded);
    for (size_t i = 0; i < kCount; ++i) {
      if (guarded && i % 3 == 0) continue;  // the lanes that the guard leaves out
      if (std::memcmp(got.data() + i * sizeof(D), &results[i], sizeof(D)) == 0) continue;
      D value;
      std::memcpy(&value, got.data() + i * sizeof(D), sizeof(D));
      std::string message = opcode + (guarded ? " (some lanes)" : "") + ":";
      size_t column = 0;
      ((message += " " + shown(*reinterpret_cast<const S*>(columns[column++].data() + i * sizeof(S)))), ...);
      fail(__FILE__, __LINE__, message + " gives " + shown(value) + ", expected " + shown(results[i]));
      return;
    }
  }
}

}  // namespace ptxsim::test
