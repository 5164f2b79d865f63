// The first root, and all counters of a request: after the prefill.

#include "noise.cuh"

KERNEL vvs_begin(int* counters, const int* choices, const double* reals, const double* uniforms,
                 const float* logits, double* probabilities, int* known, int uniform_capacity, int rows,
                 int vocabulary, int prompt, int known_capacity, int image_tokens) {
  const int request = static_cast<int>(blockIdx.x);
  const Settings settings = settings_of(choices, reals, request);
  Uniforms stream = uniforms_of(uniforms, uniform_capacity, request, 0);
  const float* last = logits + (static_cast<long long>(request) * rows + rows - 1) * vocabulary;
  double* p = probabilities + static_cast<long long>(request) * vocabulary;
  int fault = FAULT_NONE, root = 0;
  if (settings.is_greedy()) {
    root = likeliest(last, vocabulary);
    if (root < 0) fault = FAULT_LOGITS;
  } else if (settings.coupled) {
    stream.next();  // the key
    root = couple(last, vocabulary, settings.sampling, noise_of(stream, vocabulary), 0, p);
    if (root < 0) fault = FAULT_LOGITS;
  } else if (!process(last, vocabulary, settings.sampling, p)) {
    fault = FAULT_LOGITS;
  } else if (!stream.has_next()) {
    fault = FAULT_UNIFORMS;
  } else {
    root = sample(p, vocabulary, stream.next());
  }
  int* counter = counters + request * COUNTERS;
  each(COUNTERS, [&](int i) { counter[i] = 0; });
  __syncthreads();
  if (!is_first_thread()) return;
  known[static_cast<long long>(request) * known_capacity] = root < 0 ? 0 : root;
  counter[PHASE] = image_tokens > 1 ? PREFILLED : COMPLETE;
  counter[TARGET_ROWS] = prompt;
  counter[KNOWN] = 1;
  counter[PENDING] = prompt;
  counter[CURSOR] = stream.cursor;
  counter[KEPT] = prompt;
  counter[FAULT] = fault;
}
