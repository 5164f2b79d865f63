// The noise that coupled trees are drafted with: vvs/rows.py.

#include "noise.cuh"

KERNEL vvs_noise(const int* counters, const int* choices, const double* uniforms, float* noise,
                 int uniform_capacity, int levels, int vocabulary) {
  const int request = static_cast<int>(blockIdx.x);
  const int* counter = counters + request * COUNTERS;
  const bool coupled = is_active(counter) && choices[request * CHOICES + COUPLED];
  const Noise drawn = noise_of(uniforms_of(uniforms, uniform_capacity, request, 0), vocabulary);
  for (int level = static_cast<int>(blockIdx.y); level < levels; level += static_cast<int>(gridDim.y)) {
    float* row = noise + (static_cast<long long>(request) * levels + level) * vocabulary;
    each(vocabulary, [&](int i) { row[i] = coupled ? drawn.at(counter[KNOWN] + level, i) : 0.0f; });
  }
}
