// One request per task. A binary heap over all keys, then one removal per node: 710 candidates (top 10, depth 7) and 60
// nodes cost about 5 us. No vector instructions, so every instruction set runs the same code.
#include "device/execution_context.h"
#include "ops/build_tree/tree_rows.h"
#include "ops/for_each_row.h"

namespace eagle31rt::E31_ISA {

namespace {

// Restores the heap (least key first) below `place`.
void sift_down(uint64_t* heap, int32_t size, int32_t place) {
  const uint64_t key = heap[place];
  for (int32_t child = 2 * place + 1; child < size; child = 2 * place + 1) {
    if (child + 1 < size && heap[child + 1] < heap[child]) ++child;
    if (heap[child] >= key) break;
    heap[place] = heap[child];
    place = child;
  }
  heap[place] = key;
}

// Takes the least keys off the heap, best first; returns how many of them can be chosen.
int32_t choose(uint64_t* heap, int32_t size, int32_t wanted, int32_t* chosen) {
  for (int32_t place = size / 2 - 1; place >= 0; --place) sift_down(heap, size, place);
  int32_t num_nodes = 0;
  while (num_nodes < wanted && size > 0 && can_be_chosen(heap[0])) {
    chosen[num_nodes++] = static_cast<int32_t>(static_cast<uint32_t>(heap[0]));
    heap[0] = heap[--size];
    if (size > 0) sift_down(heap, size, 0);
  }
  return num_nodes;
}

// By insertion: `chosen` is short, and often in order already.
void sort_ascending(int32_t* chosen, int32_t size) {
  for (int32_t i = 1; i < size; ++i) {
    const int32_t candidate = chosen[i];
    int32_t place = i;
    for (; place > 0 && chosen[place - 1] > candidate; --place) chosen[place] = chosen[place - 1];
    chosen[place] = candidate;
  }
}

void build_one(const BuildTreeParams& params, int64_t request) {
  const TreeShape shape = tree_shape(params, request);
  if (shape.num_rows == 0) {
    params.num_nodes[request] = 0;
    return;
  }
  uint64_t keys[kMaxTreeCandidates];
  int32_t chosen[kMaxTreeRows];
  candidate_keys(params, request, keys);
  const int32_t num_nodes = choose(keys, shape.num_candidates, shape.num_rows - 1, chosen);
  if (params.order == TreeOrder::kByCandidate) sort_ascending(chosen, num_nodes);
  write_tree_rows(params, request, chosen, num_nodes);
}

}  // namespace

void build_tree(const BuildTreeParams& params, ExecutionContext& context) {
  constexpr int64_t kRequestCost = 16 * kMaxTreeCandidates;  // about 5 us
  for_each_row(context, params.num_requests, kRequestCost, [&](int64_t request) { build_one(params, request); });
}

}  // namespace eagle31rt::E31_ISA
