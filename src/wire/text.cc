// protobuf's text format.
#include <bit>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>

#include "base/utf8.h"
#include "onnx_light/message_ops.h"

namespace onnx_light {
namespace {

// The letter that stands for a character after a backslash, or 0.
char EscapeLetter(char c) {
  switch (c) {
    case '\n':
      return 'n';
    case '\r':
      return 'r';
    case '\t':
      return 't';
    case '"':
    case '\'':
    case '\\':
      return c;
    default:
      return 0;
  }
}

class Printer {
 public:
  void PrintMessage(const MessageInfo& info, const Message& message, int level);
  std::string TakeText() { return std::move(text_); }

 private:
  void PrintSubmessage(const FieldInfo& field, const Message& message, int level);
  void PrintList(const FieldInfo& field, const ListView& list, int level);
  void PrintLine(const FieldInfo& field, const void* value, int level);
  void PrintValue(const FieldInfo& field, const void* value);
  void PrintQuoted(std::string_view value, bool is_utf8);
  template <typename T>
  void PrintInteger(const void* value);
  template <typename T>
  void PrintFloat(const void* value, int short_digits, int long_digits);

  std::string text_;
};

template <typename T>
void Printer::PrintInteger(const void* value) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof(digits), *static_cast<const T*>(value));
  text_.append(digits, end.ptr);
}

// In few digits if these give the value back, else in enough for any value.
template <typename T>
void Printer::PrintFloat(const void* value, int short_digits, int long_digits) {
  const T number = *static_cast<const T*>(value);
  if (number != number) {
    text_ += "nan";
    return;
  }
  char digits[32];
  const auto print = [&](int precision) {
    return std::to_chars(digits, digits + sizeof(digits), number, std::chars_format::general,
                         precision)
        .ptr;
  };
  char* end = print(short_digits);
  T read{};
  // Rounding up may leave the range of T: then `read` stays 0, which `number` is not.
  std::from_chars(digits, end, read);
  if (read != number) end = print(long_digits);
  text_.append(digits, end);
}

void Printer::PrintQuoted(std::string_view value, bool is_utf8) {
  text_ += '"';
  for (size_t i = 0; i < value.size(); ++i) {
    const char c = value[i];
    const size_t sequence = is_utf8 ? Utf8SequenceSize(value.substr(i)) : 0;
    if (sequence > 1) {
      text_ += value.substr(i, sequence);
      i += sequence - 1;
    } else if (const char letter = EscapeLetter(c); letter != 0) {
      text_ += {'\\', letter};
    } else if (c >= 0x20 && c < 0x7f) {
      text_ += c;
    } else {
      const auto octal = [c](int shift) {
        return static_cast<char>('0' + (static_cast<uint8_t>(c) >> shift & 7));
      };
      text_ += {'\\', octal(6), octal(3), octal(0)};
    }
  }
  text_ += '"';
}

void Printer::PrintValue(const FieldInfo& field, const void* value) {
  switch (field.kind) {
    case Kind::kInt32:
      return PrintInteger<int32_t>(value);
    case Kind::kInt64:
      return PrintInteger<int64_t>(value);
    case Kind::kUint32:
      return PrintInteger<uint32_t>(value);
    case Kind::kUint64:
      return PrintInteger<uint64_t>(value);
    case Kind::kBool:
      text_ += *static_cast<const bool*>(value) ? "true" : "false";
      return;
    case Kind::kEnum: {
      const std::string_view name = field.enumeration->NameOf(*static_cast<const int32_t*>(value));
      if (name.empty()) return PrintInteger<int32_t>(value);
      text_ += name;
      return;
    }
    case Kind::kFloat:
      return PrintFloat<float>(value, 6, 9);
    case Kind::kDouble:
      return PrintFloat<double>(value, 15, 17);
    case Kind::kString:
    case Kind::kBytes:
      return PrintQuoted(static_cast<const String*>(value)->view(), field.kind == Kind::kString);
    case Kind::kMessage:
      return;  // has lines of its own
  }
}

void Printer::PrintLine(const FieldInfo& field, const void* value, int level) {
  text_.append(static_cast<size_t>(level) * 2, ' ').append(field.name).append(": ");
  PrintValue(field, value);
  text_ += '\n';
}

void Printer::PrintSubmessage(const FieldInfo& field, const Message& message, int level) {
  text_.append(static_cast<size_t>(level) * 2, ' ').append(field.name).append(" {\n");
  PrintMessage(*field.message, message, level + 1);
  text_.append(static_cast<size_t>(level) * 2, ' ').append("}\n");
}

void Printer::PrintList(const FieldInfo& field, const ListView& list, int level) {
  const auto* elements = static_cast<const char*>(list.data);
  const uint64_t width = ElementSize(field.kind);
  for (uint64_t i = 0; i < list.size; ++i) {
    if (field.kind == Kind::kMessage) {
      PrintSubmessage(field, *static_cast<Message* const*>(list.data)[i], level);
    } else {
      PrintLine(field, elements + i * width, level);
    }
  }
}

void Printer::PrintMessage(const MessageInfo& info, const Message& message, int level) {
  for (uint32_t bits = message.presence; bits != 0; bits &= bits - 1) {
    const FieldInfo& field = info.fields[std::countr_zero(bits)];
    if (field.repeated) {
      PrintList(field, ViewList(message, field), level);
    } else if (field.kind == Kind::kMessage) {
      PrintSubmessage(field, *Member<Message*>(message, field), level);
    } else {
      PrintLine(field, &Member<char>(message, field), level);
    }
  }
}

}  // namespace

std::string ToText(const MessageInfo& info, const Message& message) {
  CheckDepth(info, message);
  Printer printer;
  printer.PrintMessage(info, message, 0);
  return printer.TakeText();
}

}  // namespace onnx_light
