#include "device/cpu/available_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>

namespace eagle31rt {

namespace {

// The number in a file of one; none if there is no such file, or it says "max".
std::optional<int64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// The value behind `key` in lines of "key value"; 0 if it is not there.
int64_t read_value(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string name, line;
  while (file >> name) {
    int64_t value = 0;
    if (name == key) return file >> value ? value : 0;
    std::getline(file, line);
  }
  return 0;
}

// What the group leaves; files that nobody uses are given back when memory is short. `limit` and `usage`: file names.
std::optional<int64_t> left_in_group(const std::string& group, const char* limit, const char* usage,
                                     const char* inactive) {
  const auto most = read_number(group + limit), used = read_number(group + usage);
  if (!most || !used) return std::nullopt;
  return std::max<int64_t>(*most - *used + read_value(group + "/memory.stat", inactive), 1);
}

// Version 2 has "0::/path" and one tree, version 1 "N:memory:/path" and a tree for memory.
struct Group {
  std::string mount, path;
  bool is_version_2 = false;
};

std::optional<Group> parse_group(const std::string& root, const std::string& line) {
  const size_t first = line.find(':'), second = line.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos) return std::nullopt;
  const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",",
                    path = line.substr(second + 1);
  if (controllers == ",,") return Group{root + "/sys/fs/cgroup", path, true};
  if (controllers.find(",memory,") == std::string::npos) return std::nullopt;
  return Group{root + "/sys/fs/cgroup/memory", path, false};
}

// Every group up to the root of the tree limits it. In a container the tree may begin at the container's own group.
int64_t left_in_tree(Group group, int64_t available) {
  for (std::string path = group.path == "/" ? "" : group.path;; path.resize(path.rfind('/'))) {
    const std::string directory = group.mount + path;
    const auto left = group.is_version_2 ? left_in_group(directory, "/memory.max", "/memory.current", "inactive_file")
                                         : left_in_group(directory, "/memory.limit_in_bytes", "/memory.usage_in_bytes",
                                                         "total_inactive_file");
    if (left) available = std::min(available, *left);
    if (path.rfind('/') == std::string::npos) return available;
  }
}

}  // namespace

int64_t available_memory_bytes(const std::string& root) {
  int64_t available = 1024 * read_value(root + "/proc/meminfo", "MemAvailable:");
  if (available == 0) return 0;
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    if (const auto group = parse_group(root, line)) available = left_in_tree(*group, available);
  }
  return available;
}

}  // namespace eagle31rt
