#include "model/checkpoint.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "model/mapped_file.h"
#include "model/safetensors.h"

namespace eagle31rt {
namespace {

constexpr size_t kMaxShards = 4096;

// A shard must lie beside its index.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

void add_tensors(std::map<std::string, TensorEntry>& tensors, std::vector<TensorEntry> entries,
                 const std::string& source) {
  for (TensorEntry& entry : entries) {
    const std::string name = entry.name;
    const bool added = tensors.emplace(name, std::move(entry)).second;
    E31_CHECK(added, kCheckpoint, source, ": tensor ", quote(name), " is also in another shard; the file is broken");
  }
}

// shard file name -> the tensors that the index expects in it
std::map<std::string, std::vector<std::string>> read_index(const std::string& path) {
  const Json index = parse_json_object(read_text_file(path), path, {.max_depth = 8, .max_values = 4'000'000});
  const auto weight_map = index.find("weight_map");
  E31_CHECK(weight_map != index.end() && weight_map->is_object() && !weight_map->empty(), kCheckpoint, path,
            " lacks \"weight_map\", an object of tensor name -> file name");
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [tensor, file] : weight_map->items()) {
    E31_CHECK(file.is_string() && is_plain_file_name(file.get_ref<const std::string&>()), kCheckpoint, path,
              " puts tensor ", quote(tensor), " into ", describe(file),
              "; it must be the name of a file in the same directory");
    shards[file.get<std::string>()].push_back(tensor);
  }
  E31_CHECK(shards.size() <= kMaxShards, kCheckpoint, path, " names ", shards.size(), " files; the limit is ",
            kMaxShards);
  return shards;
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
    add_tensors(checkpoint.tensors_, parse_safetensors(file.data(), file.size(), path), path);
  };
  const std::string single = directory + "/model.safetensors";
  if (file_exists(single)) {
    add_file(single);
    return checkpoint;
  }
  const std::string index = directory + "/model.safetensors.index.json";
  if (!file_exists(index)) {
    E31_CHECK(
        !file_exists(directory + "/pytorch_model.bin") && !file_exists(directory + "/pytorch_model.bin.index.json"),
        kUnsupported, directory,
        " holds pytorch_model.bin, which can run code when read; convert it to safetensors: eagle31rt convert --input ",
        directory, " --output DIR");
    fail(ErrorCode::kCheckpoint, directory, " has neither model.safetensors nor model.safetensors.index.json");
  }
  size_t num_listed = 0;
  for (const auto& [file, tensors] : read_index(index)) {
    const std::string path = directory + "/" + file;
    add_file(path);
    num_listed += tensors.size();
    const MappedFile& mapped = *checkpoint.files_.back();
    for (const std::string& name : tensors) {
      const TensorEntry* entry = checkpoint.find(name);
      E31_CHECK(entry != nullptr && (mapped.contains(entry->data) || entry->num_bytes == 0), kCheckpoint, path,
                " lacks tensor ", quote(name), ", which ", index, " puts there");
    }
  }
  E31_CHECK(num_listed == checkpoint.tensors_.size(), kCheckpoint, index, " lists ", num_listed,
            " tensors, but its files hold ", checkpoint.tensors_.size(), "; the checkpoint is incomplete or mixed");
  return checkpoint;
}

Checkpoint Checkpoint::from_memory(const std::byte* data, size_t num_bytes, const std::string& source) {
  Checkpoint checkpoint;
  checkpoint.directory_ = source;
  add_tensors(checkpoint.tensors_, parse_safetensors(data, num_bytes, source), source);
  return checkpoint;
}

const TensorEntry* Checkpoint::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

void Checkpoint::release_pages(const TensorEntry& tensor) const {
  if (tensor.num_bytes == 0) return;
  for (const auto& file : files_) {
    if (file->contains(tensor.data)) file->release(tensor.data, static_cast<size_t>(tensor.num_bytes));
  }
}

}  // namespace eagle31rt
