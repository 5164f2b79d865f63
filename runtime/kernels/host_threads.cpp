// Runs launches on real threads, so that ThreadSanitizer sees the races of a block. Reads launches from a file:
//
//   for each: kernel name (int64 length, bytes), grid x, grid y, threads (int64), number of arguments (int64),
//   and for each argument its bytes (int64 length, bytes) and whether they are an array (int64 0 or 1).
//
// Arrays are passed by address. What they hold after each launch is written to a second file, in order.
// `kernels.cu` and the table of launchers come before this text.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

struct Argument {
  std::vector<unsigned char> bytes;
  void* address;
};

bool read_number(std::FILE* file, long long& number) {
  return std::fread(&number, sizeof number, 1, file) == 1;
}

long long needed_number(std::FILE* file) {
  long long number = 0;
  if (!read_number(file, number)) std::exit(3);
  return number;
}

void read_bytes(std::FILE* file, void* bytes, std::size_t size) {
  if (size && std::fread(bytes, 1, size, file) != size) std::exit(3);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::FILE* in = std::fopen(argv[1], "rb");
  std::FILE* out = std::fopen(argv[2], "wb");
  if (!in || !out) return 2;
  for (long long length; read_number(in, length);) {
    std::string name(static_cast<std::size_t>(length), ' ');
    read_bytes(in, name.data(), name.size());
    const unsigned int x = static_cast<unsigned int>(needed_number(in));
    const unsigned int y = static_cast<unsigned int>(needed_number(in));
    const unsigned int threads = static_cast<unsigned int>(needed_number(in));
    std::vector<Argument> arguments(static_cast<std::size_t>(needed_number(in)));
    std::vector<void*> pointers;
    std::vector<bool> is_array;
    for (Argument& argument : arguments) {
      argument.bytes.resize(static_cast<std::size_t>(needed_number(in)));
      read_bytes(in, argument.bytes.data(), argument.bytes.size());
      argument.address = argument.bytes.data();
      is_array.push_back(needed_number(in) == 1);
      pointers.push_back(is_array.back() ? static_cast<void*>(&argument.address) : argument.address);
    }
    if (!host::launch_by_name(name.c_str(), pointers.data(), {x, y, 1}, threads)) return 4;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (is_array[i]) std::fwrite(arguments[i].bytes.data(), 1, arguments[i].bytes.size(), out);
    }
  }
  return std::fclose(out) ? 2 : 0;
}
