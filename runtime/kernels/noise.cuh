// Noise of coupled sampling: vvs/noise.py, the same numbers from the same key.
#pragma once

#include "request.cuh"

constexpr double KEYS = 9007199254740992.0;  // 2^53
constexpr double LEAST = -1.7976931348623157e308;
constexpr unsigned long long GAMMA = 0x9E3779B97F4A7C15ull;

__device__ inline unsigned long long mixed(unsigned long long bits) {
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ull;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
  return bits ^ (bits >> 31);
}

// Standard Gumbel numbers of one request; its key is the first number of its stream.
struct Noise {
  unsigned long long state;
  int vocabulary;

  __device__ float at(int position, int token) const {
    const unsigned long long counter = static_cast<unsigned long long>(position) * vocabulary + token + 1;
    const unsigned long long bits = mixed(counter * GAMMA + state) >> 11;
    return static_cast<float>(-log(-log((static_cast<double>(bits) + 0.5) / KEYS)));
  }
};

__device__ inline Noise noise_of(const Uniforms& stream, int vocabulary) {
  return {mixed(static_cast<unsigned long long>(stream.numbers[0] * KEYS)), vocabulary};
}

// Draws the token at an image position: the argmax of logits over temperature, plus noise, among those that are
// kept; the lowest index among equals. -1 if the largest logit is not finite. Not for temperature 0.
__device__ inline int couple(const float* logits, int vocabulary, Sampling sampling, const Noise& noise, int position,
                             double* scratch) {
  const int top = likeliest(logits, vocabulary);
  if (top < 0) return -1;
  const Kept kept = kept_of(logits, vocabulary, sampling, logits[top], scratch);
  double best = LEAST;
  each(vocabulary, [&](int i) {
    scratch[i] = kept.has(logits, i) ? logits[i] / sampling.temperature + noise.at(position, i) : LEAST;
    best = Largest()(best, scratch[i]);
  });
  best = reduced(best, Largest());
  int back = 0;  // from the end of the vocabulary
  each(vocabulary, [&](int i) {
    if (scratch[i] == best) back = Largest()(back, vocabulary - i);
  });
  return vocabulary - reduced(back, Largest());
}
