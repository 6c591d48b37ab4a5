// The closed family of errors that the library throws. Nothing else leaves the public API but
// std::bad_alloc.
//
//   Error
//     ValueError     an argument or a value is wrong          Python: ValueError
//       ParseError   bytes that are no message; has offset()  Python: onnx_light.onnx.ParseError
//     TypeError      a value of the wrong kind                Python: TypeError
//     SystemError    the operating system said no             Python: OSError with errno, filename
//
// Every error has a stable code ("wire.truncated"), made for programs, and a path that says where
// ("graph.node[3].attribute[0].ints", a file's name, or empty). what() is "<path>: <message>".
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

#include "onnx_light/export.h"

namespace onnx_light {

class ONNX_LIGHT_EXPORT Error : public std::exception {
 public:
  Error(std::string code, std::string path, std::string message);
  ~Error() override;  // the key function: one type_info for all libraries of a process

  const std::string& code() const { return code_; }
  const std::string& path() const { return path_; }
  const std::string& message() const { return message_; }
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string code_, path_, message_, what_;
};

class ONNX_LIGHT_EXPORT ValueError : public Error {
 public:
  using Error::Error;
  ~ValueError() override;
};

class ONNX_LIGHT_EXPORT TypeError : public Error {
 public:
  using Error::Error;
  ~TypeError() override;
};

// what() is "<path>: byte <offset>: <message>".
class ONNX_LIGHT_EXPORT ParseError : public ValueError {
 public:
  ParseError(std::string code, std::string path, uint64_t offset, const std::string& message);
  ~ParseError() override;

  // The first byte of the input that does not belong to a well-formed message.
  uint64_t offset() const { return offset_; }

 private:
  uint64_t offset_;
};

class ONNX_LIGHT_EXPORT SystemError : public Error {
 public:
  // `filename` may be empty. `what` says which call failed ("open", "write 4096 bytes").
  SystemError(int error_number, std::string filename, const std::string& what);
  ~SystemError() override;

  int error_number() const { return error_number_; }
  const std::string& filename() const { return path(); }

 private:
  int error_number_;
};

}  // namespace onnx_light
