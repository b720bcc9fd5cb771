// Reads the PTX that nvcc embedded in a program ("fat binary").
#pragma once

#include <string>
#include <vector>

namespace cudart {

// PTX of one target. The suffix says how far it reaches: "compute_90" runs on 9.0 and later, "compute_90a" on 9.0 only,
// "compute_100f" on 10.x.
struct Image {
  int architecture = 0;  // 80, 90, 100
  char suffix = 0;       // 'a', 'f' or 0
  std::string ptx;
};

struct FatBinary {
  std::vector<Image> images;
  bool has_machine_code = false;    // SASS, which nothing here executes
  std::vector<std::string> errors;  // of entries that could not be read
};

// `wrapper`: what the compiler hands to __cudaRegisterFatBinary.
FatBinary read_fat_binary(const void* wrapper);

// All that stand in a file: a program, a library, an object, or the text of PTX itself. Throws std::runtime_error if
// the file cannot be read.
FatBinary read_file(const std::string& path);

// The image that a driver would compile for this compute capability (80): the newest that runs there. Null if none
// does.
const Image* choose_image(const std::vector<Image>& images, int compute_capability);

}  // namespace cudart
