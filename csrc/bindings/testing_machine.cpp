#include "bindings/testing_machine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/check.h"
#include "bindings/testing.h"
#include "device/aligned_buffer.h"
#include "device/cpu/available_memory.h"
#include "device/cpu/thread_pool.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

// Reads go 256 bytes a turn into independent sums, so that only the loads limit them. Multiply-adds run in kChains
// dependent chains (latency 4 times 2 units, and half as many again); the empty asm makes each sum opaque, so that no
// turn can be dropped or merged.
constexpr int kChains = 12;

#if defined(__x86_64__)

__attribute__((target("avx512f"))) uint32_t read_avx512(const char* memory, size_t num_bytes) {
  __m512i sums[4] = {};
  for (size_t offset = 0; offset < num_bytes; offset += 256) {
    for (int i = 0; i < 4; ++i) sums[i] = _mm512_add_epi32(sums[i], _mm512_load_si512(memory + offset + 64 * i));
  }
  uint32_t lanes[64];
  std::memcpy(lanes, sums, sizeof(lanes));
  return std::accumulate(lanes, lanes + 64, 0u);
}

__attribute__((target("avx2"))) uint32_t read_avx2(const char* memory, size_t num_bytes) {
  __m256i sums[8] = {};
  for (size_t offset = 0; offset < num_bytes; offset += 256) {
    const auto* line = reinterpret_cast<const __m256i*>(memory + offset);
    for (int i = 0; i < 8; ++i) sums[i] = _mm256_add_epi32(sums[i], _mm256_load_si256(line + i));
  }
  uint32_t lanes[64];
  std::memcpy(lanes, sums, sizeof(lanes));
  return std::accumulate(lanes, lanes + 64, 0u);
}

__attribute__((target("avx512f"))) void chain_avx512(int64_t turns) {
  __m512 sums[kChains] = {};
  const __m512 a = _mm512_set1_ps(0.5f);
  for (int64_t turn = 0; turn < turns; ++turn) {
    for (__m512& sum : sums) {
      sum = _mm512_fmadd_ps(sum, a, a);
      asm volatile("" : "+v"(sum));
    }
  }
}

__attribute__((target("avx2,fma"))) void chain_avx2(int64_t turns) {
  __m256 sums[kChains] = {};
  const __m256 a = _mm256_set1_ps(0.5f);
  for (int64_t turn = 0; turn < turns; ++turn) {
    for (__m256& sum : sums) {
      sum = _mm256_fmadd_ps(sum, a, a);
      asm volatile("" : "+x"(sum));
    }
  }
}

#endif

typedef float Float4 __attribute__((vector_size(16)));
typedef uint32_t Bits4 __attribute__((vector_size(16)));

uint32_t read_generic(const char* memory, size_t num_bytes) {
  Bits4 sums[8] = {};
  for (size_t offset = 0; offset < num_bytes; offset += 128) {
    const auto* line = reinterpret_cast<const Bits4*>(memory + offset);
    for (int i = 0; i < 8; ++i) sums[i] += line[i];
  }
  uint32_t lanes[32];
  std::memcpy(lanes, sums, sizeof(lanes));
  return std::accumulate(lanes, lanes + 32, 0u);
}

void chain_generic(int64_t turns) {
  Float4 sums[kChains] = {};
  const Float4 a = {0.5f, 0.5f, 0.5f, 0.5f};
  for (int64_t turn = 0; turn < turns; ++turn) {
    for (Float4& sum : sums) {
#if defined(__aarch64__)
      asm volatile("fmla %0.4s, %1.4s, %1.4s" : "+w"(sum) : "w"(a));
#elif defined(__x86_64__)
      sum = sum * a + a;  // this variant has no fused instruction
      asm volatile("" : "+x"(sum));
#else
      sum = sum * a + a;
      asm volatile("" : "+m"(sum));
#endif
    }
  }
}

struct Machine {
  uint32_t (*read)(const char* memory, size_t num_bytes);
  void (*chain)(int64_t turns);
  int lanes;
};

Machine machine() {
  const std::string name = cpu_ops().name;
#if defined(__x86_64__)
  if (name == "avx512") return {read_avx512, chain_avx512, 16};
  if (name == "avx2") return {read_avx2, chain_avx2, 8};
#endif
  return {read_generic, chain_generic, 4};
}

// Median over an odd number of runs, in seconds.
template <typename Run>
double median_seconds(int runs, Run run) {
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

double read_bandwidth(int64_t num_bytes, int num_threads) {
  E31_CHECK(num_bytes >= 1 << 20, kInvalidArgument, "num_bytes is ", num_bytes, "; give at least 1048576");
  ThreadPool pool(num_threads);
  const auto part = static_cast<size_t>(num_bytes / pool.num_threads() / 256 * 256);
  AlignedBuffer buffer(part * static_cast<size_t>(pool.num_threads()), HugePages::kYes);  // as the weights of a model
  std::memset(buffer.data(), 1, buffer.size());  // untouched pages would all be the one page of zeros
  std::atomic<uint32_t> checksum{0};
  auto task = [&](int64_t index, int) {
    checksum += read_memory(buffer.as<char>() + static_cast<size_t>(index) * part, part);
  };
  const double seconds = median_seconds(9, [&] { pool.parallel_for(pool.num_threads(), task); });
  E31_INVARIANT(checksum.load() == 9 * 0x01010101u * static_cast<uint32_t>(buffer.size() / 4));
  return static_cast<double>(buffer.size()) / seconds;
}

double fma_peak(int num_threads, int runs) {
  ThreadPool pool(num_threads);
  const Machine best = machine();
  constexpr int64_t kTurns = 1000000;  // about 3 ms
  auto task = [&](int64_t, int) { best.chain(kTurns); };
  const double seconds = median_seconds(std::max(1, runs), [&] { pool.parallel_for(pool.num_threads(), task); });
  return static_cast<double>(kTurns * kChains * best.lanes * pool.num_threads()) / seconds;
}

}  // namespace

uint32_t read_memory(const void* memory, size_t num_bytes) {
  return machine().read(static_cast<const char*>(memory), num_bytes);
}

void bind_testing_machine(pybind11::module_& module) {
  using pybind11::arg;
  module.def("available_memory_bytes", &available_memory_bytes, arg("root") = "");
  using Unlocked = pybind11::call_guard<pybind11::gil_scoped_release>;
  module.def("read_bandwidth", read_bandwidth, arg("num_bytes"), arg("num_threads") = 0, Unlocked(),
             "Bytes per second of a plain read loop over num_bytes, num_threads at once (0 = physical cores).");
  module.def("fma_peak", fma_peak, arg("num_threads") = 0, arg("runs") = 9, Unlocked(),
             "Multiply-adds per second of independent chains in the instruction set of cpu_ops(); where that has no "
             "fused instruction (generic on x86-64), of a product and a sum.");
}

}  // namespace eagle31rt
