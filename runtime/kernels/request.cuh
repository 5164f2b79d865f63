// One request's slices of the state, and its stream of uniform numbers.
#pragma once

#include "distribution.cuh"

struct Settings {
  int rule, rule_k;
  double bound;
  Sampling sampling;
  bool coupled;

  __device__ bool is_greedy() const { return sampling.temperature == 0; }
};

__device__ inline Settings settings_of(const int* choices, const double* reals, int request) {
  const int* choice = choices + request * CHOICES;
  const double* real = reals + request * REALS;
  return {choice[RULE], choice[RULE_K], real[BOUND], {real[TEMPERATURE], real[TOP_P], choice[TOP_K]},
          choice[COUPLED] != 0};
}

// The numbers a request has yet to consume; every thread of the block counts them alike.
struct Uniforms {
  const double* numbers;
  int cursor, capacity;

  __device__ bool has_next() const { return cursor < capacity; }
  __device__ double next() { return numbers[cursor++]; }
};

__device__ inline Uniforms uniforms_of(const double* uniforms, int capacity, int request, int cursor) {
  return {uniforms + static_cast<long long>(request) * capacity, cursor, capacity};
}
