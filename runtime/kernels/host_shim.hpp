// What CUDA C++ has and C++ has not, for compiling the kernels on a host. Stands for no GPU's speed.
//
// A block runs either with one thread (the default) or, with VVS_HOST_THREADS, with as many real threads as are
// asked for and a real barrier, one block after the other; see host_launch.hpp.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

using std::exp;
using std::log;
using std::pow;

#define __global__
#define __device__
#define __launch_bounds__(threads, blocks)

struct Index {
  unsigned int x, y, z;
};

inline thread_local Index threadIdx{0, 0, 0};
inline thread_local Index blockIdx{0, 0, 0};
inline thread_local Index blockDim{1, 1, 1};
inline thread_local Index gridDim{1, 1, 1};

#ifdef VVS_HOST_THREADS
#include <pthread.h>
#define __shared__ static
// Two barriers in turn: with one, a thread that is late to leave it would be taken for ordered after what faster
// threads did before they came to it again, and ThreadSanitizer would miss a race.
inline pthread_barrier_t block_barriers[2];
inline thread_local unsigned int barriers_passed = 0;
inline void __syncthreads() { pthread_barrier_wait(&block_barriers[barriers_passed++ % 2]); }
#else
// Several callers may run kernels at once, each on a thread of its own.
#define __shared__ static thread_local
inline void __syncthreads() {}
#endif

// A condition's handle is its address here.
inline void cudaGraphSetConditional(unsigned long long handle, unsigned int value) {
  *reinterpret_cast<unsigned int*>(handle) = value;
}

inline unsigned int __float_as_uint(float value) {
  unsigned int bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
