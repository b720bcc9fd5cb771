#include "model/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "model/mapped_file.h"
#include "model/safetensors.h"

namespace eagle31rt {
namespace {

constexpr size_t kMaxShards = 4096;
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// A shard must lie beside its index.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

// Says what the folder has instead of the two files that it should have one of.
[[noreturn]] void fail_without_weights(const std::string& directory) {
  namespace fs = std::filesystem;
  std::vector<std::string> others;
  std::error_code error;
  for (fs::directory_iterator item(directory, error), end; !error && item != end; item.increment(error)) {
    const std::string name = item->path().filename().string();
    E31_CHECK(name != kSingle && name != kIndex, kCheckpoint, directory, "/", name,
              item->is_symlink() ? " is a link to a file that is not there; download it again" : " is not a file");
    E31_CHECK(!name.starts_with("pytorch_model") || name.find(".bin") == name.npos, kUnsupported, directory, " holds ",
              name, ", which can run code when read; convert it to safetensors: eagle31rt convert --input ", directory,
              " --output DIR");
    if (name.ends_with(".safetensors")) others.push_back(name);
  }
  std::ranges::sort(others);
  const std::string missing = concat(directory, " has neither ", kSingle, " nor ", kIndex);
  if (others.empty()) fail(ErrorCode::kCheckpoint, missing);
  fail(ErrorCode::kCheckpoint, missing, "; it has ", quote(others.front()),
       others.size() == 1 ? concat(": rename it to ", kSingle, " if it is the whole model")
                          : concat(" and ", others.size() - 1, " more: download the index of these shards, too"));
}

}  // namespace

int64_t TensorEntry::num_elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

std::string TensorEntry::shape_string() const {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

Checkpoint Checkpoint::open(const std::string& directory) {
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  const auto add_file = [&](const std::string& path) {
    checkpoint.files_.push_back(std::make_shared<MappedFile>(path));
    const MappedFile& file = *checkpoint.files_.back();
    checkpoint.add_tensors(parse_safetensors(file.data(), file.size(), path), path);
  };
  const std::string single = directory + "/" + kSingle;
  if (file_exists(single)) {
    add_file(single);
    return checkpoint;
  }
  const std::string index = directory + "/" + kIndex;
  if (!file_exists(index)) fail_without_weights(directory);
  std::map<std::string, const MappedFile*> shards;
  size_t num_listed = 0;
  const auto check = [&](const std::string& tensor, const Json& value) {
    E31_CHECK(value.is_string() && is_plain_file_name(value.get_ref<const std::string&>()), kCheckpoint, index,
              " puts tensor ", quote(tensor), " into ", describe(value),
              "; it must be the name of a file in the same directory");
    const std::string& name = value.get_ref<const std::string&>();
    const MappedFile*& file = shards[name];
    if (file == nullptr) {
      E31_CHECK(shards.size() <= kMaxShards, kCheckpoint, index, " names more than ", kMaxShards, " files");
      add_file(directory + "/" + name);
      file = checkpoint.files_.back().get();
    }
    const TensorEntry* entry = checkpoint.find(tensor);
    E31_CHECK(entry != nullptr && (file->contains(entry->data) || entry->num_bytes == 0), kCheckpoint, directory, "/",
              name, " lacks tensor ", quote(tensor), ", which ", index, " puts there");
    ++num_listed;
  };
  visit_json_members(read_text_file(index), index, {.max_depth = 8, .max_values = 4'000'000}, "weight_map", check);
  E31_CHECK(num_listed > 0, kCheckpoint, index, " lacks \"weight_map\", an object of tensor name -> file name");
  E31_CHECK(num_listed == checkpoint.tensors_.size(), kCheckpoint, index, " lists ", num_listed,
            " tensors, but its files hold ", checkpoint.tensors_.size(), "; the checkpoint is incomplete or mixed");
  return checkpoint;
}

Checkpoint Checkpoint::from_memory(const std::byte* data, size_t num_bytes, const std::string& source) {
  Checkpoint checkpoint;
  checkpoint.directory_ = source;
  checkpoint.add_tensors(parse_safetensors(data, num_bytes, source), source);
  return checkpoint;
}

void Checkpoint::add_tensors(std::vector<TensorEntry> entries, const std::string& source) {
  for (TensorEntry& entry : entries) {
    const TensorEntry& kept = tensors_.emplace_back(std::move(entry));
    const bool added = by_name_.emplace(kept.name, &kept).second;
    E31_CHECK(added, kCheckpoint, source, ": tensor ", quote(kept.name),
              " is there twice, or also in another shard; the file is broken");
  }
}

const TensorEntry* Checkpoint::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

void Checkpoint::release_pages(const TensorEntry& tensor) const {
  if (tensor.num_bytes == 0) return;
  for (const auto& file : files_) {
    if (file->contains(tensor.data)) file->release(tensor.data, static_cast<size_t>(tensor.num_bytes));
  }
}

}  // namespace eagle31rt
