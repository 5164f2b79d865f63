// Whether a step is skipped (vvs/skipping.py), which path it then takes (vvs/selection.py), and taking it.

#include "request.cuh"

constexpr double DEPTH_DECAY = 0.9;
constexpr int SIMILARITY_STRIDE = 2;
constexpr double LEAST_SCORE = -700.0;

// Mean similarity of all pairs among every second path. The dot products of all pairs of vectors sum to
// (|sum of vectors|^2 - sum of |vector|^2) / 2, here coordinate by coordinate.
__device__ inline double path_similarity(const int* tokens, const int* paths, const double* directions,
                                         int count, int longest, int longest_path, int code_dim) {
  const int compared = (count + SIMILARITY_STRIDE - 1) / SIMILARITY_STRIDE;
  const int depths = longest - 1;
  if (compared < 2 || depths < 1) return 0.0;
  const double pairs = total_of<double>(depths * code_dim, [&](int i) {
    const int depth = i / code_dim, coordinate = i % code_dim;
    double sum = 0, squares = 0;
    for (int path = 0; path < count; path += SIMILARITY_STRIDE) {
      const int node = paths[path * longest_path + depth + 1];
      if (node == NO_NODE) continue;
      const double value = directions[static_cast<long long>(tokens[node]) * code_dim + coordinate];
      sum += value;
      squares += value * value;
    }
    return pow(DEPTH_DECAY, static_cast<double>(depth)) * (sum * sum - squares) / 2;
  });
  double weights = 0;
  for (int depth = 0; depth < depths; ++depth) weights += pow(DEPTH_DECAY, static_cast<double>(depth));
  return pairs / weights / (compared * (compared - 1.0) / 2);
}

KERNEL vvs_similarity(const int* counters, const int* choices, const int* tree_tokens, const int* paths,
                      const double* directions, double* similarity, int nodes, int longest_path,
                      int code_dim) {
  const int request = static_cast<int>(blockIdx.x);
  const int* counter = counters + request * COUNTERS;
  if (!is_active(counter) || choices[request * CHOICES + POLICY] != DYNAMIC) return;
  const long long root = static_cast<long long>(request) * nodes;
  const double value = path_similarity(tree_tokens + root, paths + root * longest_path, directions,
                                       counter[PATHS], counter[LONGEST], longest_path, code_dim);
  if (is_first_thread()) similarity[request] = value;
}

__device__ inline bool wants_to_skip(const int* counter, const int* choice, const double* real,
                                     double similarity) {
  switch (choice[POLICY]) {
    case UNIFORM:
    case SHARE:
      return plans_to_skip(counter, choice, real);
    case DYNAMIC:
      return may_skip(counter) && counter[PHASE] != SKIPPED && similarity >= real[THRESHOLD];
    default:
      return false;
  }
}

// The paths of one request's tree, and what choosing one of them looks at.
struct Paths {
  const int* nodes;  // [count, longest_path]
  int count, longest_path;
  const int* parents;
  const float* scores;
  int tree_nodes;

  __device__ int length(int path) const {
    int length = 0;
    while (length < longest_path && nodes[path * longest_path + length] != NO_NODE) ++length;
    return length;
  }
};

// A path drawn as the drafter would: at every node a child in proportion to its probability.
__device__ inline int sampled_path(const Paths& paths, double temperature, double uniform) {
  __shared__ double raw[MAX_NODES], share[MAX_NODES], probability[MAX_NODES];
  each(paths.tree_nodes, [&](int node) {
    const double score = static_cast<double>(paths.scores[node]) / temperature;
    raw[node] = exp(score > LEAST_SCORE ? score : LEAST_SCORE);
  });
  __syncthreads();
  each(paths.tree_nodes, [&](int node) {
    double siblings = 0;
    for (int other = 1; other < paths.tree_nodes; ++other) {
      if (paths.parents[other] == paths.parents[node]) siblings += raw[other];
    }
    share[node] = node ? raw[node] / siblings : raw[node];
  });
  __syncthreads();
  each(paths.count, [&](int path) {
    double product = 1;
    for (int i = 0; i < paths.length(path); ++i) product *= share[paths.nodes[path * paths.longest_path + i]];
    probability[path] = product;
  });
  __syncthreads();
  return sample(probability, paths.count, uniform);
}

// The path whose leaf has the highest score, the first of equals.
__device__ inline int most_confident_path(const Paths& paths) {
  unsigned long long best = 0;
  each(paths.count, [&](int path) {
    const int leaf = paths.nodes[path * paths.longest_path + paths.length(path) - 1];
    const unsigned long long rank = static_cast<unsigned long long>(order_of(paths.scores[leaf])) << 32;
    best = Largest()(best, rank | (0xffffffffu - static_cast<unsigned int>(path)));
  });
  best = reduced(best, Largest());
  return static_cast<int>(0xffffffffu - static_cast<unsigned int>(best));
}

__device__ inline int chosen_path(const Paths& paths, int selector, double temperature, Uniforms& stream) {
  if (selector == CONFIDENT_PATH) return most_confident_path(paths);
  const double uniform = stream.next();
  if (selector == SAMPLED_PATH) return sampled_path(paths, temperature, uniform);
  const int path = static_cast<int>(uniform * paths.count);
  return path < paths.count ? path : paths.count - 1;
}

// m: tokens of a path that a skipped step takes, with dynamic truncation min(last index, average length - 1).
__device__ inline int taken_length(const Paths& paths, int path, bool truncate) {
  const int last = paths.length(path) - 1;
  if (!truncate) return last;
  const int average = total_of<int>(paths.count, [&](int i) { return paths.length(i); }) / paths.count;
  return last < average - 1 ? last : average - 1;
}

KERNEL vvs_decide(int* counters, const int* choices, const double* reals, const double* uniforms,
                  const double* similarity, const int* tree_parents, const float* tree_scores,
                  const int* paths, int uniform_capacity, int nodes, int longest_path) {
  const int request = static_cast<int>(blockIdx.x);
  int* counter = counters + request * COUNTERS;
  const int* choice = choices + request * CHOICES;
  const long long root = static_cast<long long>(request) * nodes;
  int decision = is_active(counter) ? VERIFY : IDLE, path = 0, length = 0, fault = counter[FAULT];
  Uniforms stream = uniforms_of(uniforms, uniform_capacity, request, counter[CURSOR]);
  const double* real = reals + request * REALS;
  if (decision == VERIFY && wants_to_skip(counter, choice, real, similarity[request])) {
    const Paths drafted{paths + root * longest_path, counter[PATHS],     longest_path,
                        tree_parents + root,         tree_scores + root, counter[NODES]};
    if (choice[SELECTOR] != CONFIDENT_PATH && !stream.has_next()) {
      decision = IDLE;
      fault = FAULT_UNIFORMS;
    } else {
      path = chosen_path(drafted, choice[SELECTOR], real[PATH_TEMPERATURE], stream);
      length = taken_length(drafted, path, choice[TRUNCATE]);
      if (length > 0) decision = SKIP;
    }
  }
  __syncthreads();
  if (!is_first_thread()) return;
  counter[DECISION] = decision;
  counter[CHOSEN_PATH] = path;
  counter[CHOSEN] = length;
  counter[CURSOR] = stream.cursor;
  counter[FAULT] = fault;
  counter[KEPT] = 0;
}

KERNEL vvs_skip(int* counters, const int* tree_tokens, const int* paths, int* known, int* taken, int nodes,
                int longest_path, int known_capacity, int image_tokens) {
  const int request = static_cast<int>(blockIdx.x);
  int* counter = counters + request * COUNTERS;
  if (counter[DECISION] != SKIP) return;
  const long long root = static_cast<long long>(request) * nodes;
  const int* path = paths + (root + counter[CHOSEN_PATH]) * longest_path;
  const int length = counter[CHOSEN], before = counter[KNOWN];
  int* end = known + static_cast<long long>(request) * known_capacity + before;
  each(length + 1, [&](int i) {
    taken[static_cast<long long>(request) * longest_path + i] = path[i];
    if (i) end[i - 1] = tree_tokens[root + path[i]];
  });
  __syncthreads();
  if (!is_first_thread()) return;
  counter[KNOWN] = before + length;
  counter[EMITTED] += length;
  counter[CHAIN] += length;
  counter[STEPS] += 1;
  counter[PENDING] = length;
  counter[TAKEN] = length;
  counter[PHASE] = before + length >= image_tokens ? COMPLETE : SKIPPED;
}
