// Before and after the draft_tree engine: its inputs (vvs/rows.py, draft_rows), and the tree it returns with its
// paths (vvs/tree.py).

#include "block.cuh"

// Whoever does not draft this tree now gets one row of zeros, so that the engine computes something finite.
KERNEL vvs_draft_inputs(int* counters, const int* choices, const double* reals, const int* known,
                        const unsigned char* feature_cache, unsigned char* features, long long* tokens,
                        long long* root, long long* positions, long long* count, long long* past_length,
                        int requests, int guidance, int rows, int tree, int known_capacity, int prompt,
                        int window, int feature_bytes) {
  const int request = static_cast<int>(blockIdx.x);
  int* counter = counters + request * COUNTERS;
  const bool drafts = is_active(counter) && tree_of_step(counter, choices, reals, request) == tree;
  const int pending = drafts ? counter[PENDING] : 0;
  const int valid = pending > 0 ? pending : 1;
  const int past = drafts ? counter[DRAFTER_ROWS] : 0;
  const int newest = counter[FEATURES] - 1;
  const int* end = known + static_cast<long long>(request) * known_capacity + counter[KNOWN];
  // After the prefill the drafter consumes the prompt's features, paired with zeros and the root.
  const int tokens_known = counter[PHASE] == PREFILLED ? 1 : pending;
  const int total = counter[EMITTED] + prompt;
  __syncthreads();
  for (int g = 0; g < guidance; ++g) {
    const long long row = static_cast<long long>(g) * requests + request;
    each(rows, [&](int i) {
      const int back = pending - i;
      tokens[row * rows + i] = i < pending && back <= tokens_known ? end[-back] : 0;
      positions[row * rows + i] = drafts ? past + (i + 1 < valid ? i + 1 : valid) : prompt;
    });
    if (is_first_thread()) {
      count[row] = valid;
      past_length[row] = past;
    }
    if (feature_bytes == 0) continue;
    // The newest features, oldest first; after a skip they are stale, and the last one is repeated.
    const int oldest = newest + 1 > pending ? newest + 1 - pending : 0;
    for (int i = 0; i < rows; ++i) {
      const int wanted = oldest + i < newest ? oldest + i : newest;
      const unsigned char* source =
          i < pending && newest >= 0 ? feature_cache + (row * window + wanted % window) * feature_bytes : nullptr;
      copy_row(features + (row * rows + i) * feature_bytes, source, feature_bytes);
    }
  }
  if (!is_first_thread()) return;
  root[request] = drafts ? end[-1] : 0;
  counter[DRAFTED] = pending;
  if (drafts) counter[DRAFTER_ROWS] = total;
}

// Writes every path from the root to a leaf, in the order of their node indices. The tree is in shared memory.
__device__ inline void write_paths(int* counter, int* paths, const int* parents, const int* depth, int nodes,
                                   int longest_path) {
  __shared__ short ancestry[MAX_NODES][MAX_PATH];  // of a leaf the nodes from the root on, then -1
  __shared__ bool leaf[MAX_NODES];
  each(nodes, [&](int node) {
    bool childless = true;
    for (int other = node + 1; other < nodes; ++other) childless = childless && parents[other] != node;
    leaf[node] = childless;
    for (int i = depth[node] + 1; i < MAX_PATH; ++i) ancestry[node][i] = NO_NODE;
    for (int up = node; up != NO_NODE; up = parents[up]) ancestry[node][depth[up]] = static_cast<short>(up);
  });
  __syncthreads();
  each(nodes, [&](int node) {
    if (!leaf[node]) return;
    int place = 0;  // leaves that come before this one
    for (int other = 0; other < nodes; ++other) {
      if (!leaf[other] || other == node) continue;
      int level = 0;
      while (ancestry[other][level] == ancestry[node][level]) ++level;
      if (ancestry[other][level] < ancestry[node][level]) ++place;
    }
    for (int i = 0; i < longest_path; ++i) paths[place * longest_path + i] = ancestry[node][i];
  });
  const int count = total_of<int>(nodes, [&](int node) { return leaf[node] ? 1 : 0; });
  int longest = 0;
  each(nodes, [&](int node) { longest = Largest()(longest, depth[node] + 1); });
  longest = reduced(longest, Largest());
  if (!is_first_thread()) return;
  counter[NODES] = nodes;
  counter[PATHS] = count;
  counter[LONGEST] = longest;
}

// Whether a node of a drafted tree may stand where it stands.
__device__ inline bool is_sound(const long long* tokens, const long long* parents, const long long* depth,
                                int node, int longest_path, int vocabulary) {
  if (tokens[node] < 0 || tokens[node] >= vocabulary || depth[node] >= longest_path) return false;
  if (node == 0) return parents[0] == NO_NODE && depth[0] == 0;
  return 0 <= parents[node] && parents[node] < node && depth[node] == depth[parents[node]] + 1;
}

KERNEL vvs_propose(int* counters, const int* choices, const double* reals, const long long* drafted_tokens,
                   const long long* drafted_parents, const long long* drafted_depth,
                   const bool* drafted_ancestors, const float* drafted_scores, int* tree_tokens,
                   int* tree_parents, int* tree_depth, bool* tree_ancestors, float* tree_scores, int* paths,
                   int tree, int drafted_nodes, int nodes, int longest_path, int vocabulary) {
  __shared__ int parents[MAX_NODES], depth[MAX_NODES];
  const int request = static_cast<int>(blockIdx.x);
  int* counter = counters + request * COUNTERS;
  if (!is_active(counter) || tree_of_step(counter, choices, reals, request) != tree) return;
  const long long from = static_cast<long long>(request) * drafted_nodes;
  const long long to = static_cast<long long>(request) * nodes;
  const long long* tokens = drafted_tokens + from;
  const int unsound = total_of<int>(drafted_nodes, [&](int node) {
    return is_sound(tokens, drafted_parents + from, drafted_depth + from, node, longest_path, vocabulary) ? 0
                                                                                                        : 1;
  });
  if (unsound) {
    if (is_first_thread()) counter[FAULT] = FAULT_TREE;
    return;
  }
  each(drafted_nodes, [&](int node) {
    tree_tokens[to + node] = static_cast<int>(tokens[node]);
    tree_parents[to + node] = parents[node] = static_cast<int>(drafted_parents[from + node]);
    tree_depth[to + node] = depth[node] = static_cast<int>(drafted_depth[from + node]);
    tree_scores[to + node] = drafted_scores[from + node];
  });
  each(drafted_nodes * drafted_nodes, [&](int i) {
    const int node = i / drafted_nodes, other = i % drafted_nodes;
    tree_ancestors[(to + node) * nodes + other] = drafted_ancestors[from * drafted_nodes + i];
  });
#ifndef VVS_OMIT_PROPOSE_BARRIER  // defined by the test that shows that its absence is caught
  __syncthreads();
#endif
  write_paths(counter, paths + to * longest_path, parents, depth, drafted_nodes, longest_path);
}

// Plain decoding: the tree is the root alone.
KERNEL vvs_propose_root(int* counters, const int* choices, const int* known, int* tree_tokens,
                        int* tree_parents, int* tree_depth, bool* tree_ancestors, float* tree_scores,
                        int* paths, int nodes, int longest_path, int known_capacity) {
  const int request = static_cast<int>(blockIdx.x);
  int* counter = counters + request * COUNTERS;
  if (!is_active(counter) || choices[request * CHOICES + TREE] != NO_TREE || !is_first_thread()) return;
  const long long root = static_cast<long long>(request) * nodes;
  tree_tokens[root] = known[static_cast<long long>(request) * known_capacity + counter[KNOWN] - 1];
  tree_parents[root] = NO_NODE;
  tree_depth[root] = 0;
  tree_scores[root] = 0;
  tree_ancestors[root * nodes] = true;
  for (int i = 0; i < longest_path; ++i) paths[root * longest_path + i] = i ? NO_NODE : 0;
  counter[NODES] = counter[PATHS] = counter[LONGEST] = 1;
}
