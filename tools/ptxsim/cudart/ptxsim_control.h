// What the stand-in libcudart exports beyond CUDA's own interface. Plain C, callable through ctypes or dlsym.
//
// A program that uses it only when it is there asks dlsym for `ptxsim_version` first.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// "ptxsim 0.1 (CUDA 13.0)".
const char* ptxsim_version(void);

// How the kernels that run from now on are executed. `seed`: order of warps, blocks and independent work of streams and
// graphs; negative: the fixed order. `race`, `uninitialised`: 1 switches the check on, 0 off. They start as PTXSIM_SEED
// and PTXSIM_RACE say.
void ptxsim_set_options(long long seed, int race, int uninitialised);

// Totals per kernel as JSON: {"kernel name": {"launches": 1, ...}}; `kernel`: only kernels whose demangled name
// contains this, null for all. The text is valid until the next call from the same thread.
const char* ptxsim_counters_json(const char* kernel);
void ptxsim_reset_counters(void);

// The report of the last error ("" if there was none): of a kernel that broke a rule, of a copy out of bounds, of a
// call that needs something that the simulator lacks. The text is valid until the next call from the same thread.
const char* ptxsim_last_report(void);
// Makes the device usable again after an error that real hardware would not survive. Queued work is gone.
void ptxsim_reset_error(void);

// The nth launch from now (1: the next) of a kernel whose name contains `name` fails when its turn comes, with
// cudaErrorLaunchFailure; 0 takes the order back.
void ptxsim_fail_launch(const char* name, int nth);
// The nth allocation of device or pinned memory from now returns cudaErrorMemoryAllocation; 0 takes the order back.
void ptxsim_fail_malloc(int nth);

#ifdef __cplusplus
}
#endif
