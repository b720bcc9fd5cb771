// Marks functions that host and device code share, so that arithmetic which must agree bit for bit is written once.
#pragma once

#ifdef __CUDACC__
#define E31_HOST_DEVICE __host__ __device__
#else
#define E31_HOST_DEVICE
#endif
