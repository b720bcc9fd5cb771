// Exports: the variants that programs compiled with nvcc --default-stream per-thread call. There stream 0 is the
// calling thread's own stream, and the blocking calls use it too.
#include <cuda_runtime_api.h>

namespace {

cudaStream_t own(cudaStream_t stream) { return stream ? stream : cudaStreamPerThread; }

cudaError_t then_wait(cudaError_t error) {
  return error == cudaSuccess ? cudaStreamSynchronize(cudaStreamPerThread) : error;
}

}  // namespace

extern "C" {

// Not in the public headers: the compiler's generated code calls it.
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t bytes,
                               cudaStream_t stream);

cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t bytes,
                                    cudaStream_t stream) {
  return __cudaLaunchKernel(kernel, grid, block, arguments, bytes, own(stream));
}

cudaError_t cudaLaunchKernel_ptsz(const void* function, dim3 grid, dim3 block, void** arguments, size_t bytes,
                                  cudaStream_t stream) {
  return cudaLaunchKernel(function, grid, block, arguments, bytes, own(stream));
}

cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  if (!config) return cudaLaunchKernelExC(config, function, arguments);
  cudaLaunchConfig_t changed = *config;
  changed.stream = own(config->stream);
  return cudaLaunchKernelExC(&changed, function, arguments);
}

cudaError_t cudaMemcpy_ptds(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind) {
  return then_wait(cudaMemcpyAsync(destination, source, bytes, kind, cudaStreamPerThread));
}

cudaError_t cudaMemcpyAsync_ptsz(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind,
                                 cudaStream_t stream) {
  return cudaMemcpyAsync(destination, source, bytes, kind, own(stream));
}

cudaError_t cudaMemcpyToSymbol_ptds(const void* symbol, const void* source, size_t bytes, size_t offset,
                                    cudaMemcpyKind kind) {
  return then_wait(cudaMemcpyToSymbolAsync(symbol, source, bytes, offset, kind, cudaStreamPerThread));
}

cudaError_t cudaMemcpyFromSymbol_ptds(void* destination, const void* symbol, size_t bytes, size_t offset,
                                      cudaMemcpyKind kind) {
  return then_wait(cudaMemcpyFromSymbolAsync(destination, symbol, bytes, offset, kind, cudaStreamPerThread));
}

cudaError_t cudaMemset_ptds(void* pointer, int value, size_t bytes) {
  return cudaMemsetAsync(pointer, value, bytes, cudaStreamPerThread);
}

cudaError_t cudaMemsetAsync_ptsz(void* pointer, int value, size_t bytes, cudaStream_t stream) {
  return cudaMemsetAsync(pointer, value, bytes, own(stream));
}

cudaError_t cudaMallocAsync_ptsz(void** pointer, size_t bytes, cudaStream_t stream) {
  return cudaMallocAsync(pointer, bytes, own(stream));
}

cudaError_t cudaFreeAsync_ptsz(void* pointer, cudaStream_t stream) { return cudaFreeAsync(pointer, own(stream)); }

cudaError_t cudaStreamSynchronize_ptsz(cudaStream_t stream) { return cudaStreamSynchronize(own(stream)); }

cudaError_t cudaStreamQuery_ptsz(cudaStream_t stream) { return cudaStreamQuery(own(stream)); }

cudaError_t cudaStreamWaitEvent_ptsz(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return cudaStreamWaitEvent(own(stream), event, flags);
}

cudaError_t cudaEventRecord_ptsz(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecord(event, own(stream)); }

cudaError_t cudaEventRecordWithFlags_ptsz(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return cudaEventRecordWithFlags(event, own(stream), flags);
}

cudaError_t cudaLaunchHostFunc_ptsz(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return cudaLaunchHostFunc(own(stream), function, data);
}

cudaError_t cudaStreamBeginCapture_ptsz(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return cudaStreamBeginCapture(own(stream), mode);
}

cudaError_t cudaStreamEndCapture_ptsz(cudaStream_t stream, cudaGraph_t* graph) {
  return cudaStreamEndCapture(own(stream), graph);
}

cudaError_t cudaStreamIsCapturing_ptsz(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return cudaStreamIsCapturing(own(stream), status);
}

cudaError_t cudaGraphLaunch_ptsz(cudaGraphExec_t exec, cudaStream_t stream) {
  return cudaGraphLaunch(exec, own(stream));
}

}  // extern "C"
