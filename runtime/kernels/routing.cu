// Which programs of a step run, where one graph holds the decoding of a whole image: kernels that set the conditions
// of its loop and branches, and keep what the host will want to know of each step. One block for all requests.

#include "block.cuh"

// A condition that nobody's verification gives its switch: none of its bodies runs.
constexpr unsigned int NOBODY_VERIFIES = 2;

// Whether `test(counter)` holds for any request.
template <class Test>
__device__ inline bool any_request(const int* counters, int requests, Test test) {
  return total_of<int>(requests, [&](int request) { return test(counters + request * COUNTERS) ? 1 : 0; }) > 0;
}

KERNEL vvs_route_draft(const int* counters, const int* choices, const double* reals, Condition drafts,
                       int requests, int tree) {
  const bool any = total_of<int>(requests, [&](int request) {
    const int* counter = counters + request * COUNTERS;
    return is_active(counter) && tree_of_step(counter, choices, reals, request) == tree ? 1 : 0;
  });
  if (is_first_thread()) cudaGraphSetConditional(drafts, any);
}

// After `decide`: 0 verifies trees alone, 1 behind a chain.
KERNEL vvs_route_step(const int* counters, Condition skips, Condition verifies, int requests) {
  const bool skip = any_request(counters, requests, [](const int* c) { return c[DECISION] == SKIP; });
  const bool verify = any_request(counters, requests, [](const int* c) { return c[DECISION] == VERIFY; });
  const bool chain = any_request(counters, requests, [](const int* c) { return c[CHAIN] != 0; });
  if (!is_first_thread()) return;
  cudaGraphSetConditional(skips, skip);
  cudaGraphSetConditional(verifies, !verify ? NOBODY_VERIFIES : chain ? 1 : 0);
}

// After a step: keeps what it came to, and says whether another one follows. A fault ends it for all.
KERNEL vvs_end_step(const int* counters, int* history, Condition running, int requests, int image_tokens) {
  each(requests, [&](int request) {
    const int* counter = counters + request * COUNTERS;
    const int step = counter[STEPS] - 1;
    if (counter[DECISION] == IDLE || counter[FAULT] != FAULT_NONE || step < 0 || step >= image_tokens) return;
    int* columns = history + (static_cast<long long>(request) * image_tokens + step) * STEP_COLUMNS;
    columns[STEP_DECISION] = counter[DECISION];
    columns[STEP_TAKEN] = counter[TAKEN];
    columns[STEP_KNOWN] = counter[KNOWN];
  });
  const bool fault = any_request(counters, requests, [](const int* c) { return c[FAULT] != FAULT_NONE; });
  // Every step makes a token known; the bound on steps is there lest a broken state keep a GPU for ever.
  const bool active = any_request(counters, requests, [image_tokens](const int* c) {
    return is_active(c) && c[STEPS] < image_tokens;
  });
  if (is_first_thread()) cudaGraphSetConditional(running, active && !fault);
}
