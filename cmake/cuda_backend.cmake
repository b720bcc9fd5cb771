# libeagle31rt_cuda.so: the CUDA operators (csrc/ops/*/cuda*.cu) and the CUDA device (csrc/device/cuda). The core loads it
# on request; it needs libcudart.so.13 at run time and never libcuda.

set(E31_CUDA_WANTED ${EAGLE31RT_CUDA})
if(EAGLE31RT_CUDA STREQUAL "AUTO")
  find_program(E31_NVCC nvcc PATHS /usr/local/cuda/bin ENV CUDA_HOME PATH_SUFFIXES bin)
  find_library(E31_DRIVER NAMES libcuda.so.1)
  if(E31_NVCC AND (E31_DRIVER OR EXISTS /proc/driver/nvidia/version))
    set(E31_CUDA_WANTED ON)
  else()
    set(E31_CUDA_WANTED OFF)
  endif()
endif()
if(NOT E31_CUDA_WANTED)
  return()
endif()

set(CMAKE_CUDA_ARCHITECTURES ${EAGLE31RT_CUDA_ARCHITECTURES})
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 knows no C++20 flag for nvcc over GCC 12
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
endif()
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
  message(FATAL_ERROR "the CUDA backend needs nvcc 13, found ${CMAKE_CUDA_COMPILER_VERSION}; set -DEAGLE31RT_CUDA=OFF to build without it")
endif()
find_package(CUDAToolkit 13 REQUIRED)

file(GLOB E31_CUDA_SOURCES CONFIGURE_DEPENDS csrc/ops/*/cuda*.cu csrc/ops/cuda_ops_table.cpp csrc/device/cuda/*.cpp)
add_library(eagle31rt_cuda SHARED ${E31_CUDA_SOURCES} csrc/base/status.cpp csrc/base/dtype.cpp)
target_include_directories(eagle31rt_cuda PRIVATE csrc csrc/include ${CUDAToolkit_INCLUDE_DIRS})
# --fmad=false: a product and a sum are fused where the source says so and nowhere else, as on the CPU; so arithmetic that
# both share gives the same bits. --no-compress keeps the PTX readable for tools; -lineinfo names the source line in them.
target_compile_options(eagle31rt_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:-O3 --fmad=false -lineinfo --no-compress --expt-relaxed-constexpr -Xptxas -warn-spills,-warn-lmem-usage -Xcompiler=-Wall,-Wextra>
  $<$<COMPILE_LANGUAGE:CXX>:-O2 -ffp-contract=off -Wall -Wextra>)
target_link_libraries(eagle31rt_cuda PRIVATE CUDA::cudart)
# The wheel of the extra [cuda] puts libcudart beside the package; a system's CUDA is on the usual search path.
set_target_properties(eagle31rt_cuda PROPERTIES
  INSTALL_RPATH "$ORIGIN:$ORIGIN/../nvidia/cu13/lib" BUILD_WITH_INSTALL_RPATH ON)
