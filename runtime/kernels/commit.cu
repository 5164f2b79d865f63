// Keeps the rows that survive: KV rows of all layers, and features, in one launch.

#include "block.cuh"

// What one request commits: `count` of the new rows, which land at `start` and up.
struct Survivors {
  const int* rows;  // [count], or null for the first rows in order
  int count, start;

  __device__ int row(int i) const { return rows == nullptr ? i : rows[i]; }
};

KERNEL vvs_commit(const int* counters, const int* kept, const unsigned char* new_rows, unsigned char* cache,
                  const unsigned char* features, unsigned char* feature_cache, long long new_stride,
                  long long cache_stride, int requests, int guidance, int tensors, int heads, int rows,
                  int capacity, int row_bytes, int feature_bytes, int window, int kept_capacity,
                  int end_column, int count_column) {
  const int request = static_cast<int>(blockIdx.x);
  const int* counter = counters + request * COUNTERS;
  const int count = counter[count_column];
  const Survivors keep{kept_capacity ? kept + static_cast<long long>(request) * kept_capacity : nullptr, count,
                  counter[end_column] - count};
  const int first = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const int stride = static_cast<int>(gridDim.y * blockDim.x);

  const int word = word_bytes(address_of(new_rows), address_of(cache), new_stride, cache_stride, row_bytes);
  const int words = row_bytes / word;
  const int total = tensors * guidance * heads * count * words;
  for (int i = first; i < total; i += stride) {
    const int part = i % words, line = i / words;
    const int row = line % count, head = line / count % heads;
    const int g = line / count / heads % guidance, tensor = line / count / heads / guidance;
    const long long sequence = (static_cast<long long>(g) * requests + request) * heads + head;
    copy_word(cache + tensor * cache_stride + (sequence * capacity + keep.start + row) * row_bytes,
              new_rows + tensor * new_stride + (sequence * rows + keep.row(row)) * row_bytes, part, word);
  }

  // The newest features only: older ones would be overwritten at once.
  const int pushed = count < window ? count : window;
  if (feature_bytes == 0 || pushed == 0) return;
  const int before = counter[FEATURES] - pushed;
  const int feature_word = word_bytes(address_of(features), address_of(feature_cache), feature_bytes);
  const int feature_words = feature_bytes / feature_word;
  for (int i = first; i < guidance * pushed * feature_words; i += stride) {
    const int part = i % feature_words, line = i / feature_words;
    const int number = line % pushed;
    const long long sequence = static_cast<long long>(line / pushed) * requests + request;
    const int row = keep.row(count - pushed + number);
    copy_word(feature_cache + (sequence * window + (before + number) % window) * feature_bytes,
              features + (sequence * rows + row) * feature_bytes, part, feature_word);
  }
}
