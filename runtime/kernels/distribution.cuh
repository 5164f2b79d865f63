// Distributions over the vocabulary: vvs/sampling.py, by the threads of one block, in float64.
#pragma once

#include "block.cuh"

// How a request draws.
struct Sampling {
  double temperature, top_p;
  int top_k;
};

// Logits as integers of the same order. Not-a-number comes above everything, as numpy's argmax has it.
__device__ inline unsigned int order_of(float logit) {
  if (logit != logit) return 0xffffffffu;
  const unsigned int bits = __float_as_uint(logit + 0.0f);  // -0 equals 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

constexpr unsigned int ORDER_OF_INFINITY = 0xff800000u;
constexpr unsigned int ORDER_OF_MINUS_INFINITY = 0x007fffffu;

// Index of the largest logit, the lowest one among equals; -1 if it is not finite.
__device__ inline int likeliest(const float* logits, int vocabulary) {
  unsigned long long best = 0;
  each(vocabulary, [&](int i) {
    const unsigned long long rank = static_cast<unsigned long long>(order_of(logits[i])) << 32;
    best = Largest()(best, rank | (0xffffffffu - static_cast<unsigned int>(i)));
  });
  best = reduced(best, Largest());
  const unsigned int order = static_cast<unsigned int>(best >> 32);
  if (order >= ORDER_OF_INFINITY || order <= ORDER_OF_MINUS_INFINITY) return -1;
  return static_cast<int>(0xffffffffu - static_cast<unsigned int>(best));
}

// Tokens that survive top-k and top-p: those above the edge, and those on it with an index below the cut.
struct Kept {
  unsigned int edge;
  int cut;

  __device__ bool has(const float* logits, int i) const {
    const unsigned int order = order_of(logits[i]);
    return order > edge || (order == edge && i < cut);
  }
};

__device__ inline double weight_of(float logit, float peak, double temperature) {
  return exp((static_cast<double>(logit) - static_cast<double>(peak)) / temperature);
}

// The order of the k-th largest logit.
__device__ inline unsigned int order_of_kth(const float* logits, int vocabulary, int k) {
  return smallest(0, 0xffffffffu, [&](unsigned int order) {
    return total_of<int>(vocabulary, [&](int i) { return order_of(logits[i]) > order ? 1 : 0; }) < k;
  });
}

// The nucleus among logits of at least `lowest`: a token stays while the likelier ones weigh less than the bound;
// among equals the lower index comes first, and the likeliest always stays. `weights` is scratch.
__device__ inline Kept nucleus(const float* logits, const double* weights, int vocabulary, double top_p,
                               unsigned int lowest) {
  const double bound = top_p * total_of<double>(vocabulary, [&](int i) { return weights[i]; });
  const auto above = [&](unsigned int order) {
    return total_of<double>(vocabulary, [&](int i) { return order_of(logits[i]) > order ? weights[i] : 0.0; });
  };
  const unsigned int edge =
      smallest(lowest, ORDER_OF_INFINITY, [&](unsigned int order) { return above(order) < bound; });
  const auto on_edge = [&](int end) {
    return total_of<int>(end, [&](int i) { return order_of(logits[i]) == edge ? 1 : 0; });
  };
  const int level = on_edge(vocabulary);
  const double before = above(edge);
  // All tokens of the level weigh the same: the likeliest of them says how much.
  double weight = 0;
  each(vocabulary, [&](int i) {
    if (order_of(logits[i]) == edge) weight = weights[i];
  });
  weight = reduced(weight, Largest());
  int stay = 1;
  for (double reached = before + weight; stay < level && reached < bound; reached += weight) ++stay;
  if (stay >= level) return {edge, vocabulary};
  const unsigned int cut = smallest(0, static_cast<unsigned int>(vocabulary), [&](unsigned int end) {
    return on_edge(static_cast<int>(end)) >= stay;
  });
  return {edge, static_cast<int>(cut)};
}

// Tokens that survive top-k and top-p; `peak` is the largest logit. `scratch` [V].
__device__ inline Kept kept_of(const float* logits, int vocabulary, Sampling sampling, float peak,
                               double* scratch) {
  Kept kept{0, vocabulary};
  if (0 < sampling.top_k && sampling.top_k < vocabulary) {
    kept.edge = order_of_kth(logits, vocabulary, sampling.top_k);
  }
  if (sampling.top_p < 1) {
    each(vocabulary, [&](int i) { scratch[i] = weight_of(logits[i], peak, sampling.temperature); });
    kept = nucleus(logits, scratch, vocabulary, sampling.top_p, kept.edge);
  }
  return kept;
}

// Turns logits [V] into probabilities [V]: temperature, top-p, top-k, softmax. False if the largest logit is not
// finite. Not for temperature 0.
__device__ inline bool process(const float* logits, int vocabulary, Sampling sampling, double* probabilities) {
  const int top = likeliest(logits, vocabulary);
  if (top < 0) return false;
  const float peak = logits[top];
  const Kept kept = kept_of(logits, vocabulary, sampling, peak, probabilities);
  double sum = 0;
  each(vocabulary, [&](int i) {
    const double weight = kept.has(logits, i) ? weight_of(logits[i], peak, sampling.temperature) : 0.0;
    probabilities[i] = weight;
    sum += weight;
  });
  sum = reduced(sum, Sum());
  each(vocabulary, [&](int i) { probabilities[i] /= sum; });
  __syncthreads();
  return true;
}

// Draws a token by inverse CDF in index order: the first whose cumulative sum exceeds `uniform * sum`.
// Each thread sums a stretch of the vocabulary; one finds the stretch, then the token in it.
__device__ inline int sample(const double* probabilities, int vocabulary, double uniform) {
  __shared__ double stretches[MAX_THREADS];
  __shared__ int drawn;
  const int threads = static_cast<int>(blockDim.x);
  const int length = (vocabulary + threads - 1) / threads;
  const int start = static_cast<int>(threadIdx.x) * length;
  double sum = 0;
  for (int i = start; i < start + length && i < vocabulary; ++i) sum += probabilities[i];
  stretches[threadIdx.x] = sum;
  __syncthreads();
  if (is_first_thread()) {
    double total = 0;
    for (int i = 0; i < threads; ++i) total += stretches[i];
    const double target = uniform * total;
    double reached = 0;
    int stretch = 0;
    while (stretch < threads - 1 && reached + stretches[stretch] <= target) reached += stretches[stretch++];
    int token = stretch * length < vocabulary ? stretch * length : vocabulary;
    for (; token < vocabulary; ++token) {
      reached += probabilities[token];
      if (reached > target) break;
    }
    if (token == vocabulary) {  // uniform * sum was rounded up to the sum itself
      do --token;
      while (token > 0 && !(probabilities[token] > 0));
    }
    drawn = token;
  }
  __syncthreads();
  const int token = drawn;
  __syncthreads();
  return token;
}
