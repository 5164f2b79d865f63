// Walks the tree as far as the target accepts it and samples the next root: vvs/acceptance.py. A tree that is a
// root alone makes it plain sampling.

#include "noise.cuh"

constexpr int NEIGHBOURS_AT_ONCE = 256;

// One request's tree and what its nodes are judged by. Every thread of the block holds the same.
struct Judge {
  Settings settings;
  const float* logits;  // [nodes, V]
  int vocabulary;
  double* p;           // [V] scratch
  const int* nearest;  // [V, neighbours]
  int neighbours;
  const int* tokens;   // [nodes]
  const int* parents;  // [nodes] shared
  int nodes;

  __device__ const float* logits_of(int node) const {
    return logits + static_cast<long long>(node) * vocabulary;
  }

  // The first child of `parent` behind `node`, or `nodes`.
  __device__ int next_child(int parent, int node) const {
    do ++node;
    while (node < nodes && parents[node] != parent);
    return node;
  }

  __device__ const int* near(int token) const {
    return nearest + static_cast<long long>(token) * neighbours;
  }
};

struct Judgement {
  double probability;
  int within;  // nearest codes that the token may stand for; if any, a rejection removes them all
};

// The longest prefix of the nearest codes whose summed probability stays within the bound. Summed one by one by
// one thread, so that the sum is that of the reference.
__device__ inline Judgement relaxed(const Judge& judge, int token, double bound) {
  __shared__ double values[NEIGHBOURS_AT_ONCE];
  __shared__ double reached;
  __shared__ int within;
  __shared__ bool ended;
  const int* near = judge.near(token);
  const double own = judge.p[token];
  if (is_first_thread()) {
    reached = 0;
    within = 0;
    ended = false;
  }
  for (int start = 0; start < judge.settings.rule_k; start += NEIGHBOURS_AT_ONCE) {
    const int left = judge.settings.rule_k - start;
    const int count = left < NEIGHBOURS_AT_ONCE ? left : NEIGHBOURS_AT_ONCE;
    each(count, [&](int i) { values[i] = judge.p[near[start + i]]; });
    __syncthreads();
    if (is_first_thread()) {
      for (int i = 0; i < count && !ended; ++i) {
        ended = reached + values[i] > bound;
        if (!ended) {
          reached += values[i];
          ++within;
        }
      }
    }
    __syncthreads();
    if (ended) break;
  }
  const Judgement judgement{within ? own + reached : own, within};
  __syncthreads();  // before the shared variables are used again
  return judgement;
}

__device__ inline Judgement judged(const Judge& judge, int token) {
  switch (judge.settings.rule) {
    case LANTERN:
      return relaxed(judge, token, judge.settings.bound);
    case LANTERN_PLUS_PLUS:
      return relaxed(judge, token, (judge.settings.bound - 1) * judge.p[token]);
    default:
      return {judge.p[token], 0};
  }
}

// Takes away a rejected token's probability, and renormalises; uniform over all tokens if nothing is left.
__device__ inline void remove_from(const Judge& judge, int token, Judgement judgement) {
  double* p = judge.p;
  __syncthreads();  // everyone has read p[token]
  if (is_first_thread()) p[token] = 0;
  if (judgement.within) {
    const int* near = judge.near(token);
    each(judge.settings.rule_k + 1, [&](int i) { p[near[i]] = 0; });
  }
#ifndef VVS_OMIT_REMOVE_BARRIER  // defined by the test that shows that its absence is caught
  __syncthreads();
#endif
  const double sum = total_of<double>(judge.vocabulary, [&](int i) { return p[i]; });
  each(judge.vocabulary, [&](int i) { p[i] = sum > 0 ? p[i] / sum : 1.0 / judge.vocabulary; });
  __syncthreads();
}

// What verifying came to.
struct Verdict {
  int accepted, root, fault;
};

// Walks down as long as a child is accepted. `taken` [MAX_PATH] is shared.
__device__ inline Verdict walk(const Judge& judge, Uniforms& stream, int* taken) {
  int node = 0, accepted = 0;
  if (is_first_thread()) taken[0] = 0;
  for (bool goes_on = true; goes_on;) {
    if (!process(judge.logits_of(node), judge.vocabulary, judge.settings.sampling, judge.p)) {
      return {0, 0, FAULT_LOGITS};
    }
    goes_on = false;
    for (int child = judge.next_child(node, node); child < judge.nodes && !goes_on;
         child = judge.next_child(node, child)) {
      if (!stream.has_next()) return {0, 0, FAULT_UNIFORMS};
      const int token = judge.tokens[child];
      const Judgement judgement = judged(judge, token);
      // A token of no probability fails even the one number that equals 0.
      if (stream.next() <= judgement.probability && judgement.probability > 0) {
        if (is_first_thread()) taken[accepted + 1] = child;
        ++accepted;
        node = child;
        goes_on = true;
        break;
      }
      remove_from(judge, token, judgement);
    }
  }
  if (!stream.has_next()) return {0, 0, FAULT_UNIFORMS};
  return {accepted, sample(judge.p, judge.vocabulary, stream.next()), FAULT_NONE};
}

// Whether a drafted token may stand for the one that is drawn.
__device__ inline bool stands_for(const Judge& judge, int token, int drawn) {
  const int within = judged(judge, token).within;
  const int* near = judge.near(token);
  return total_of<int>(within, [&](int i) { return near[i] == drawn ? 1 : 0; }) > 0;
}

// The child that is the drawn token, or else the first one that may stand for it; `nodes` if there is none.
__device__ inline int child_for(const Judge& judge, int node, int drawn) {
  int child = judge.next_child(node, node);
  const int first = child;
  while (child < judge.nodes && judge.tokens[child] != drawn) child = judge.next_child(node, child);
  if (child < judge.nodes || judge.settings.rule == EXACT || first == judge.nodes) return child;
  process(judge.logits_of(node), judge.vocabulary, judge.settings.sampling, judge.p);
  for (child = first; child < judge.nodes; child = judge.next_child(node, child)) {
    if (stands_for(judge, judge.tokens[child], drawn)) break;
  }
  return child;
}

// Walks down as long as a child is, or stands for, the token that the target draws by its noise. `position` is that
// of the token behind the root.
__device__ inline Verdict walk_coupled(const Judge& judge, const Noise& noise, int position, int* taken) {
  if (is_first_thread()) taken[0] = 0;
  for (int node = 0, accepted = 0;;) {
    const int drawn = couple(judge.logits_of(node), judge.vocabulary, judge.settings.sampling, noise,
                             position + accepted, judge.p);
    if (drawn < 0) return {0, 0, FAULT_LOGITS};
    node = child_for(judge, node, drawn);
    if (node == judge.nodes) return {accepted, drawn, FAULT_NONE};
    ++accepted;
    if (is_first_thread()) taken[accepted] = node;
  }
}

__device__ inline int depth_of(const Judge& judge, int node) {
  int depth = 0;
  for (; node > 0; node = judge.parents[node]) ++depth;
  return depth;
}

// Temperature 0: the longest path of which every token wins at its node, the first of equals. A token wins when it
// is the argmax after a(x) has replaced p(x). A relaxed rule may let several siblings win, so the walk branches.
__device__ inline Verdict walk_greedily(const Judge& judge, int* taken) {
  __shared__ int queue[MAX_NODES];
  if (is_first_thread()) queue[0] = 0;
  __syncthreads();
  int deepest = 0, accepted = 0;
  for (int head = 0, tail = 1; head < tail; ++head) {
    const int node = queue[head];
    const int depth = depth_of(judge, node);
    if (depth > accepted) {
      deepest = node;
      accepted = depth;
    }
    int child = judge.next_child(node, node);
    if (child >= judge.nodes) continue;
    if (!process(judge.logits_of(node), judge.vocabulary, {1, 1, 0}, judge.p)) return {0, 0, FAULT_LOGITS};
    const int top = likeliest(judge.logits_of(node), judge.vocabulary);
    for (; child < judge.nodes; child = judge.next_child(node, child)) {
      const int token = judge.tokens[child];
      const double a = judged(judge, token).probability, best = judge.p[top];
      if (token != top && !(a > best) && !(a == best && token < top)) continue;
      if (is_first_thread()) queue[tail] = child;
      ++tail;
    }
    __syncthreads();
  }
  const int root = likeliest(judge.logits_of(deepest), judge.vocabulary);
  if (root < 0) return {0, 0, FAULT_LOGITS};
  if (is_first_thread()) {
    for (int i = accepted, node = deepest; i >= 0; --i, node = judge.parents[node]) taken[i] = node;
  }
  return {accepted, root, FAULT_NONE};
}

KERNEL vvs_accept(int* counters, const int* choices, const double* reals, const double* uniforms,
                  const float* logits, const int* tree_tokens, const int* tree_parents, const int* nearest,
                  double* probabilities, int* known, int* taken, int* kept, int uniform_capacity, int rows,
                  int vocabulary, int nodes, int longest_path, int neighbours, int known_capacity,
                  int kept_capacity, int image_tokens) {
  __shared__ int parents[MAX_NODES], path[MAX_PATH];
  const int request = static_cast<int>(blockIdx.x);
  int* counter = counters + request * COUNTERS;
  if (counter[DECISION] != VERIFY) return;
  const long long tree = static_cast<long long>(request) * nodes;
  const int tree_nodes = counter[NODES], chain = counter[CHAIN], before = counter[KNOWN];
  each(tree_nodes, [&](int node) { parents[node] = tree_parents[tree + node]; });
  __syncthreads();
  const Judge judge{settings_of(choices, reals, request),
                    logits + (static_cast<long long>(request) * rows + chain) * vocabulary,
                    vocabulary,
                    probabilities + static_cast<long long>(request) * vocabulary,
                    nearest,
                    neighbours,
                    tree_tokens + tree,
                    parents,
                    tree_nodes};
  Uniforms stream = uniforms_of(uniforms, uniform_capacity, request, counter[CURSOR]);
  const Verdict verdict = judge.settings.is_greedy() ? walk_greedily(judge, path)
                          : judge.settings.coupled
                              ? walk_coupled(judge, noise_of(stream, vocabulary), before, path)
                              : walk(judge, stream, path);
  __syncthreads();
  if (verdict.fault) {
    if (is_first_thread()) counter[FAULT] = verdict.fault;
    return;
  }
  const int emitted = verdict.accepted + 1;
  int* end = known + static_cast<long long>(request) * known_capacity + before;
  each(emitted, [&](int i) {
    taken[static_cast<long long>(request) * longest_path + i] = path[i];
    end[i] = i < verdict.accepted ? judge.tokens[path[i + 1]] : verdict.root;
  });
  each(chain + emitted, [&](int i) {
    kept[static_cast<long long>(request) * kept_capacity + i] = i < chain ? i : chain + path[i - chain];
  });
  if (!is_first_thread()) return;
  const bool completes = before + emitted >= image_tokens;
  counter[PHASE] = completes ? COMPLETE : VERIFIED;
  counter[STEPS] += 1;
  counter[EMITTED] += emitted;
  counter[CHAIN] = 0;
  counter[TARGET_ROWS] += chain + emitted;
  counter[KNOWN] = before + emitted;
  counter[PENDING] = emitted;
  counter[CURSOR] = stream.cursor;
  counter[TAKEN] = verdict.accepted;
  // The last rows of a finished image are not kept: nothing will look at them.
  counter[KEPT] = completes ? 0 : chain + emitted;
  counter[FEATURES] += completes ? 0 : chain + emitted;
}
