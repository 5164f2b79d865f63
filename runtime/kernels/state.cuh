// Columns of the state's arrays, as state.py has them; the compiler is given both and compares.
#pragma once

#ifndef __CUDACC__
#include "host_shim.hpp"
#else
// NVRTC knows its type, but declares it nowhere; the driver links it.
extern "C" __device__ __cudart_builtin__ void CUDARTAPI
cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned int value);
#endif

// Of a loop or a branch of a graph, as cudaGraphConditionalHandle.
using Condition = unsigned long long;

constexpr int MAX_THREADS = 512;

// One block per multiprocessor is enough: what is left of a register file is for not spilling.
#define KERNEL extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1)

enum Counter {
  PHASE,
  STEPS,
  EMITTED,
  CHAIN,
  TARGET_ROWS,
  DRAFTER_ROWS,
  KNOWN,
  PENDING,
  FEATURES,
  CURSOR,
  NODES,
  PATHS,
  LONGEST,
  DECISION,
  CHOSEN_PATH,
  CHOSEN,
  TAKEN,
  KEPT,
  DRAFTED,
  FAULT,
  COUNTERS
};

enum Phase { PREFILLED, VERIFIED, SKIPPED, COMPLETE };
enum Decision { IDLE, VERIFY, SKIP };
enum Fault { FAULT_NONE, FAULT_LOGITS, FAULT_UNIFORMS, FAULT_TREE };
enum Choice { RULE, RULE_K, TOP_K, POLICY, INTERVAL, SELECTOR, TRUNCATE, TREE, SKIP_TREE, COUPLED, CHOICES };
enum Real { TEMPERATURE, TOP_P, BOUND, THRESHOLD, SHARE_OF_SKIPS, PATH_TEMPERATURE, REALS };

enum StepColumn { STEP_DECISION, STEP_TAKEN, STEP_KNOWN, STEP_COLUMNS };

enum Rule { EXACT, LANTERN, LANTERN_PLUS_PLUS };
enum Policy { NEVER, UNIFORM, DYNAMIC, SHARE };
enum Selector { RANDOM_PATH, SAMPLED_PATH, CONFIDENT_PATH };

constexpr int MAX_NODES = 256;
constexpr int MAX_PATH = 16;
constexpr int NO_NODE = -1;
constexpr int NO_TREE = -1;
constexpr int EMITTED_BEFORE_FIRST_SKIP = 5;

// Whether a request still takes part in steps.
__device__ inline bool is_active(const int* counter) {
  return counter[PHASE] != COMPLETE && counter[FAULT] == FAULT_NONE;
}

__device__ inline bool may_skip(const int* counter) { return counter[EMITTED] > EMITTED_BEFORE_FIRST_SKIP; }

// Whether this step is skipped by its number alone.
__device__ inline bool plans_to_skip(const int* counter, const int* choice, const double* real) {
  if (!may_skip(counter)) return false;
  const int step = counter[STEPS], before = step > 0 ? step - 1 : 0;
  switch (choice[POLICY]) {
    case UNIFORM:
      return step % choice[INTERVAL] == 1;
    case SHARE:
      return floor(step * real[SHARE_OF_SKIPS]) > floor(before * real[SHARE_OF_SKIPS]);
    default:
      return false;
  }
}

// Number of the tree that a request drafts in this step.
__device__ inline int tree_of_step(const int* counter, const int* choices, const double* reals, int request) {
  const int* choice = choices + request * CHOICES;
  const bool wider = choice[SKIP_TREE] != NO_TREE && plans_to_skip(counter, choice, reals + request * REALS);
  return choice[wider ? SKIP_TREE : TREE];
}
