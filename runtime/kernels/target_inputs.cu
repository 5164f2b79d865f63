// Inputs of a target call: each request's chain, then its tree, then padding (vvs/rows.py, target_rows).

#include "block.cuh"

KERNEL vvs_target_inputs(const int* counters, const int* known, const int* tree_tokens,
                         const int* tree_depth, const bool* tree_ancestors, const unsigned char* embeddings,
                         unsigned char* embeds, long long* positions, bool* ancestors,
                         long long* past_length, int requests, int guidance, int rows, int nodes,
                         int known_capacity, int prompt, int embedding_bytes) {
  const int request = static_cast<int>(blockIdx.x);
  const int* counter = counters + request * COUNTERS;
  const bool verifies = counter[DECISION] == VERIFY;
  const int chain = verifies ? counter[CHAIN] : 0;
  const int end = verifies ? chain + counter[NODES] : 0;  // behind it is padding, which sees itself only
  const int root = verifies ? prompt + counter[EMITTED] : prompt;
  const long long tree = static_cast<long long>(request) * nodes;
  const int* newest = known + static_cast<long long>(request) * known_capacity + counter[KNOWN] - 1;
  for (int row = static_cast<int>(blockIdx.y); row < rows; row += static_cast<int>(gridDim.y)) {
    const int node = row - chain;
    const bool in_chain = row < chain, in_tree = !in_chain && row < end;
    const int token = in_chain ? newest[node] : in_tree ? tree_tokens[tree + node] : 0;
    const int position = in_chain ? root + node : in_tree ? root + tree_depth[tree + node] : root;
    for (int g = 0; g < guidance; ++g) {
      const long long at = (static_cast<long long>(g) * requests + request) * rows + row;
      if (is_first_thread()) positions[at] = position;
      copy_row(embeds + at * embedding_bytes, embeddings + static_cast<long long>(token) * embedding_bytes,
               embedding_bytes);
      each(rows, [&](int other) {
        const bool to_tree = other >= chain && other < end;
        ancestors[at * rows + other] = in_chain            ? other <= row
                                       : !in_tree          ? other == row
                                       : to_tree           ? tree_ancestors[(tree + node) * nodes + other - chain]
                                                           : other < chain;
      });
      if (row == 0 && is_first_thread()) {
        past_length[static_cast<long long>(g) * requests + request] = verifies ? counter[TARGET_ROWS] : 0;
      }
    }
  }
}
