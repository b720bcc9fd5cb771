// Runs the kernels through the ordinary runtime API and compares with plain loops on the host.
// Exit status: 0 all equal, 1 a wrong result, 2 the runtime returned an error.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "kernels.cuh"

namespace {

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("%s\n", cudaGetErrorName(error));
  std::exit(2);
}

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) { check(cudaMalloc(&data_, size * sizeof(T))); }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    check(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* get() const { return data_; }
  std::vector<T> read() const {
    std::vector<T> values(size_);
    check(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

std::mt19937 generator(1);

std::vector<float> random_floats(size_t size) {
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (float& value : values) value = normal(generator);
  return values;
}

std::vector<bf16> random_bf16(size_t size) {
  std::vector<bf16> values(size);
  const std::vector<float> floats = random_floats(size);
  std::transform(floats.begin(), floats.end(), values.begin(), [](float value) { return __float2bfloat16(value); });
  return values;
}

// Relative to the size of the reference; false for NaN.
bool close(float value, double reference, double tolerance) {
  return std::fabs(value - reference) <= tolerance * (1 + std::fabs(reference));
}

bool test_rms_norm() {
  constexpr int kRows = 5, kWidth = 1024;
  const std::vector<bf16> x = random_bf16(kRows * kWidth), weight = random_bf16(kWidth);
  const DeviceArray<bf16> device_x(x), device_weight(weight), device_y(x.size());
  rms_norm<<<kRows, kNormThreads>>>(device_x.get(), device_weight.get(), device_y.get(), kWidth, 1e-5f);
  check(cudaGetLastError());
  const std::vector<bf16> y = device_y.read();
  bool equal = true;
  for (int row = 0; row < kRows; ++row) {
    double sum = 0;
    for (int i = 0; i < kWidth; ++i) sum += std::pow(__bfloat162float(x[row * kWidth + i]), 2);
    const double scale = 1 / std::sqrt(sum / kWidth + 1e-5);
    for (int i = 0; i < kWidth; ++i) {
      const double reference = __bfloat162float(x[row * kWidth + i]) * scale * __bfloat162float(weight[i]);
      equal &= close(__bfloat162float(y[row * kWidth + i]), reference, 1.0 / 128);
    }
  }
  return equal;
}

bool test_argmax() {
  constexpr int kRows = 3, kSlices = 6, kVocabulary = 4001;
  const std::vector<float> logits = random_floats(kRows * kVocabulary);
  const DeviceArray<float> device_logits(logits);
  const DeviceArray<Best> partial(kRows * kSlices);
  const DeviceArray<unsigned> done(std::vector<unsigned>{0});
  const DeviceArray<int> result(kRows);
  argmax_slices<<<dim3(kSlices, kRows), kArgmaxThreads>>>(device_logits.get(), partial.get(), done.get(), result.get(),
                                                          kVocabulary);
  check(cudaGetLastError());
  if (!mutant(12)) argmax_merge<<<kRows, kWarpSize>>>(partial.get(), result.get(), kSlices);
  check(cudaGetLastError());
  const std::vector<int> best = result.read();
  bool equal = done.read()[0] == kRows * kSlices;
  for (int row = 0; row < kRows; ++row) {
    const auto begin = logits.begin() + row * kVocabulary;
    equal &= best[row] == std::max_element(begin, begin + kVocabulary) - begin;
  }
  return equal;
}

bool test_compact() {
  constexpr int kRequests = 6;
  std::vector<int> accepted(kRequests * kWarpSize);
  for (int& value : accepted) value = generator() % 3 == 0;
  const DeviceArray<int> device_accepted(accepted), nodes(accepted.size()), counts(kRequests);
  compact<<<(kRequests + kCompactWarps - 1) / kCompactWarps, kCompactWarps * kWarpSize>>>(
      device_accepted.get(), nodes.get(), counts.get(), kRequests);
  check(cudaGetLastError());
  const std::vector<int> found = nodes.read(), found_counts = counts.read();
  bool equal = true;
  for (int request = 0; request < kRequests; ++request) {
    std::vector<int> reference;
    for (int node = 0; node < kWarpSize; ++node) {
      if (accepted[request * kWarpSize + node]) reference.push_back(node);
    }
    equal &= found_counts[request] == static_cast<int>(reference.size());
    reference.resize(kWarpSize, -1);
    equal &= std::equal(reference.begin(), reference.end(), found.begin() + request * kWarpSize);
  }
  return equal;
}

bool test_linear() {
  constexpr int kM = 13, kN = 192, kK = 512;
  const std::vector<bf16> a = random_bf16(kM * kK), b = random_bf16(kN * kK);
  const DeviceArray<bf16> device_a(a), device_b(b);
  const DeviceArray<float> device_c(kM * kN);
  check(cudaFuncSetAttribute(linear, cudaFuncAttributeMaxDynamicSharedMemorySize, kGemmSharedBytes));
  linear<<<kN / kTileN, kGemmThreads, kGemmSharedBytes>>>(device_a.get(), device_b.get(), device_c.get(), kM, kN, kK);
  check(cudaGetLastError());
  const std::vector<float> c = device_c.read();
  bool equal = true;
  for (int row = 0; row < kM; ++row) {
    for (int column = 0; column < kN; ++column) {
      double sum = 0;
      for (int i = 0; i < kK; ++i) {
        sum += static_cast<double>(__bfloat162float(a[row * kK + i])) * __bfloat162float(b[column * kK + i]);
      }
      equal &= close(c[row * kN + column], sum, 1e-4);
    }
  }
  return equal;
}

}  // namespace

int main() {
  bool equal = true;
  const std::pair<const char*, bool (*)()> tests[] = {
      {"rms_norm", test_rms_norm}, {"argmax", test_argmax}, {"compact", test_compact}, {"linear", test_linear}};
  for (const auto& [name, test] : tests) {
    const bool passed = test();
    std::printf("%s %s\n", name, passed ? "ok" : "wrong");
    equal &= passed;
  }
  return equal ? 0 : 1;
}
