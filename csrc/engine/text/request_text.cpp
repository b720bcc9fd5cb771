#include "engine/text/request_text.h"

#include "base/check.h"

namespace eagle31rt {

void check_token_table(const TokenTable& table) {
  E31_CHECK(table.is_special.empty() || table.is_special.size() == table.bytes.size(), kInvalidArgument,
            "the token table has bytes for ", table.bytes.size(), " ids and is_special for ", table.is_special.size(),
            "; give one entry for each id, or no is_special");
  E31_CHECK(table.num_leading_spaces_dropped >= 0, kInvalidArgument, "num_leading_spaces_dropped is ",
            table.num_leading_spaces_dropped, "; give 0 or more");
}

RequestText::RequestText(std::shared_ptr<const TokenTable> table, const SamplingParams& params)
    : table_(std::move(table)),
      skip_special_tokens_(params.skip_special_tokens),
      num_spaces_to_drop_(table_->num_leading_spaces_dropped),
      matcher_(params.stop, params.include_stop_str_in_output) {}

std::string_view RequestText::bytes_of(int32_t token_id) {
  const auto index = static_cast<size_t>(token_id);
  if (index >= table_->bytes.size()) return {};
  if (skip_special_tokens_ && !table_->is_special.empty() && table_->is_special[index]) return {};
  std::string_view bytes = table_->bytes[index];
  while (num_spaces_to_drop_ > 0 && !bytes.empty()) {
    if (bytes.front() == ' ') {
      bytes.remove_prefix(1);
      --num_spaces_to_drop_;
    } else {
      num_spaces_to_drop_ = 0;
    }
  }
  return bytes;
}

std::optional<size_t> RequestText::add(int32_t token_id, bool may_stop, std::string& text) {
  bytes_.clear();
  const std::optional<size_t> stop = matcher_.add(bytes_of(token_id), may_stop, bytes_);
  decoder_.add(bytes_, text);
  return stop;
}

void RequestText::finish(std::string& text) {
  bytes_.clear();
  matcher_.finish(bytes_);
  decoder_.add(bytes_, text);
  decoder_.finish(text);
}

}  // namespace eagle31rt
