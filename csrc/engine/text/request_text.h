// The text of one request: ids in, UTF-8 out as soon as it is certain.
#pragma once

#include <memory>
#include <string>

#include "eagle31rt/sampling_params.h"
#include "eagle31rt/token_table.h"
#include "engine/text/stop_matcher.h"
#include "engine/text/utf8.h"

namespace eagle31rt {

// Throws Error(kInvalidArgument) if its fields do not fit together.
void check_token_table(const TokenTable& table);

class RequestText {
 public:
  RequestText(std::shared_ptr<const TokenTable> table, const SamplingParams& params);

  // Appends what the next id completes. may_stop: a stop string may end with this id. Returns the index in params.stop
  // of the one that did; the text then ends as params.include_stop_str_in_output says.
  std::optional<size_t> add(int32_t token_id, bool may_stop, std::string& text);
  // No more ids: appends what was held back.
  void finish(std::string& text);

 private:
  std::string_view bytes_of(int32_t token_id);

  std::shared_ptr<const TokenTable> table_;
  bool skip_special_tokens_;
  int32_t num_spaces_to_drop_;  // of the beginning
  StopMatcher matcher_;
  Utf8Decoder decoder_;
  std::string bytes_;  // between matcher and decoder
};

}  // namespace eagle31rt
