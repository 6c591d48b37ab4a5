#include "onnx_light/errors.h"

#include <cstring>
#include <utility>

namespace onnx_light {

Error::Error(std::string code, std::string path, std::string message)
    : code_(std::move(code)), path_(std::move(path)), message_(std::move(message)) {
  what_ = path_.empty() ? message_ : path_ + ": " + message_;
}
Error::~Error() = default;
ValueError::~ValueError() = default;
TypeError::~TypeError() = default;

namespace {
std::string Located(uint64_t offset, const std::string& message) {
  return "byte " + std::to_string(offset) + ": " + message;
}
}  // namespace

ParseError::ParseError(std::string code, std::string path, uint64_t offset,
                       const std::string& message)
    : ValueError(std::move(code), std::move(path), Located(offset, message)), offset_(offset) {}
ParseError::~ParseError() = default;

SystemError::SystemError(int error_number, std::string filename, const std::string& what)
    : Error("system", std::move(filename), what + ": " + std::strerror(error_number)),
      error_number_(error_number) {}
SystemError::~SystemError() = default;

}  // namespace onnx_light
