#include "check/context.h"

#include "base/quote.h"
#include "onnx_light/errors.h"

namespace onnx_light::check {

std::string Context::Place(std::string_view field) const {
  std::string place = path_.ToString();
  if (!place.empty() && !field.empty()) place += '.';
  return place.append(field);
}

bool Context::IsIn(std::string_view field, size_t levels) const {
  const FieldInfo* holder = path_.Field(levels);
  return holder != nullptr && holder->name == field;
}

void Context::Fail(const char* code, std::string_view field, const std::string& message) const {
  throw ValueError(code, Place(field), message);
}

void Context::Require(bool is_set, std::string_view field) const {
  if (!is_set) Fail("check.missing", field, "must be set");
}

void Context::RequireText(bool is_set, std::string_view text, std::string_view field) const {
  Require(is_set, field);
  if (text.empty()) Fail("check.missing", field, "must not be empty");
}

void Names::Add(std::string_view name, const char* field, size_t index) {
  const std::string place = std::string(field) + '[' + std::to_string(index) + ']';
  if (name.empty()) context_.Fail("check.missing", place, "must have a name");
  const auto [other, is_new] = places_.try_emplace(std::string(name), place);
  if (is_new) return;
  context_.Fail("check.duplicate", place,
                "'" + Escaped(name) + "' is the name of " + other->second + ", too");
}

}  // namespace onnx_light::check
