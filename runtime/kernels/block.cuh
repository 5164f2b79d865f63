// What the threads of a block do together. Every function here must be called by all threads of the block.
#pragma once

#include "state.cuh"

// Runs `body(i)` for every i in [0, count), spread over the block's threads.
template <class Body>
__device__ inline void each(int count, Body body) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) body(i);
}

__device__ inline bool is_first_thread() { return threadIdx.x == 0; }

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

struct Largest {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

// One array of shared memory for every reduction, whatever it reduces.
__device__ inline void* reduction_memory() {
  __shared__ unsigned long long memory[MAX_THREADS];
  return memory;
}

// Combines one value of each thread; all threads get the result. Any number of threads.
template <class T, class Combine>
__device__ inline T reduced(T value, Combine combine) {
  static_assert(sizeof(T) <= sizeof(unsigned long long), "the shared memory holds 8 bytes per thread");
  T* parts = static_cast<T*>(reduction_memory());
  const int thread = static_cast<int>(threadIdx.x);
  parts[thread] = value;
  __syncthreads();
  for (int width = static_cast<int>(blockDim.x); width > 1;) {
    const int half = (width + 1) / 2;
    if (thread + half < width) parts[thread] = combine(parts[thread], parts[thread + half]);
    width = half;
    __syncthreads();
  }
  const T result = parts[0];
  __syncthreads();  // before the memory is used again
  return result;
}

// Sum of `term(i)` over i in [0, count).
template <class T, class Term>
__device__ inline T total_of(int count, Term term) {
  T sum = 0;
  each(count, [&](int i) { sum += term(i); });
  return reduced(sum, Sum());
}

// The smallest x in [low, high] for which `holds(x)`, given that it holds for `high` and, from some x on, for all.
// `holds` is evaluated by the whole block.
template <class Holds>
__device__ inline unsigned int smallest(unsigned int low, unsigned int high, Holds holds) {
  while (low < high) {
    const unsigned int middle = low + (high - low) / 2;
    if (holds(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

struct alignas(16) Wide {
  unsigned int parts[4];
};

// The widest of 16, 4 and 1 bytes that divides all of these addresses and sizes.
template <class... Numbers>
__device__ inline int word_bytes(Numbers... numbers) {
  const unsigned long long bits = (0ull | ... | static_cast<unsigned long long>(numbers));
  return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1;
}

__device__ inline unsigned long long address_of(const void* pointer) {
  return reinterpret_cast<unsigned long long>(pointer);
}

// Copies word number `i`.
__device__ inline void copy_word(unsigned char* target, const unsigned char* source, int i, int bytes) {
  if (bytes == 16) {
    reinterpret_cast<Wide*>(target)[i] = reinterpret_cast<const Wide*>(source)[i];
  } else if (bytes == 4) {
    reinterpret_cast<unsigned int*>(target)[i] = reinterpret_cast<const unsigned int*>(source)[i];
  } else {
    target[i] = source[i];
  }
}

// Copies a row of `bytes` bytes; zeroes it if there is no source.
__device__ inline void copy_row(unsigned char* target, const unsigned char* source, int bytes) {
  if (source == nullptr) {
    each(bytes, [&](int i) { target[i] = 0; });
    return;
  }
  const int word = word_bytes(address_of(target), address_of(source), bytes);
  each(bytes / word, [&](int i) { copy_word(target, source, i, word); });
}
