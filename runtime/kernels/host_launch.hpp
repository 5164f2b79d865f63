// Launching kernels on a host: a block after the other, with one thread or, with VVS_HOST_THREADS, with real ones.
#pragma once

#include <utility>

#ifdef VVS_HOST_THREADS
#include <thread>
#include <vector>
#endif

namespace host {

template <class... Parameters, std::size_t... Places>
void call(void (*kernel)(Parameters...), void* const* arguments, std::index_sequence<Places...>) {
  kernel(*static_cast<Parameters*>(arguments[Places])...);
}

inline void enter(Index block, Index grid, unsigned int thread, unsigned int threads) {
  blockIdx = block;
  gridDim = grid;
  threadIdx = {thread, 0, 0};
  blockDim = {threads, 1, 1};
}

// `arguments` points to each argument, as cuLaunchKernel takes them.
template <class... Parameters>
void launch(void (*kernel)(Parameters...), void* const* arguments, Index grid, unsigned int threads) {
  const auto places = std::index_sequence_for<Parameters...>();
  for (unsigned int y = 0; y < grid.y; ++y) {
    for (unsigned int x = 0; x < grid.x; ++x) {
#ifdef VVS_HOST_THREADS
      for (pthread_barrier_t& barrier : block_barriers) pthread_barrier_init(&barrier, nullptr, threads);
      std::vector<std::thread> running;
      for (unsigned int thread = 0; thread < threads; ++thread) {
        running.emplace_back([=] {
          enter({x, y, 0}, grid, thread, threads);
          call(kernel, arguments, places);
        });
      }
      for (std::thread& one : running) one.join();
      for (pthread_barrier_t& barrier : block_barriers) pthread_barrier_destroy(&barrier);
#else
      enter({x, y, 0}, grid, 0, threads);
      call(kernel, arguments, places);
#endif
    }
  }
}

}  // namespace host
