// Parse and write. The first byte chooses the class of the message, the rest is what is parsed.
#include "fuzz.h"
#include "onnx_light/bytes.h"

namespace onnx_light::fuzz {
namespace {

// What is in the input comes back from a second reading of what was written, and the second writing
// is byte for byte the first: the canonical form.
void CheckRoundTrip(const Tree& tree) {
  const std::string bytes = Write(tree);
  const std::unique_ptr<Tree> again = TryParse(tree.info, {AsBytes(bytes), {}});
  Check(again != nullptr, "what was written is a message");
  Check(Write(*again) == bytes, "written once more it is the same");
  if (Equal(tree.info, *tree.message, *tree.message)) {  // no NaN
    Check(Equal(tree.info, *tree.message, *again->message), "what was written is equal");
  }
}

void CheckGather(const Tree& tree) {
  const Serializer serializer(tree.info, *tree.message);
  std::string bytes(serializer.size(), '\xff');
  serializer.Gather().CopyTo(std::as_writable_bytes(std::span(bytes)).data(), 1);
  Check(bytes == Write(tree), "gathered runs are what is written at once");
}

// Borrowing reads the same as copying. The input of its own lets AddressSanitizer see every access
// behind its end; what is borrowed keeps it alive.
void CheckBorrowing(const MessageInfo& info, std::span<const std::byte> bytes, const Tree* copied) {
  ParseOptions options;
  options.no_copy = true;
  std::unique_ptr<Tree> borrowed;
  {
    const SharedBytes input = CopyBytes(bytes.data(), bytes.size());
    borrowed = TryParse(info, {input.span(), input.owner}, options);
  }
  Check((borrowed == nullptr) == (copied == nullptr), "borrowing accepts what copying does");
  if (borrowed != nullptr) Check(Write(*borrowed) == Write(*copied), "borrowing reads the same");
}

// Memory is at most a small multiple of the input: two bytes can stand for an empty message.
void CheckMemory(const Tree& tree, size_t input_size) {
  Check(tree.arena.bytes_reserved() <= kMaxMessageSize * input_size + 64 * 1024,
        "memory follows the input");
}

// Payloads left out make a message that is no longer than the whole one.
void CheckWithoutPayloads(const MessageInfo& info, std::span<const std::byte> bytes,
                          const Tree& whole) {
  ParseOptions options;
  options.skip_raw_data = true;
  options.raw_data_threshold = 0;
  const std::unique_ptr<Tree> tree = TryParse(info, {bytes, {}}, options);
  Check(tree != nullptr, "leaving payloads out is no error");
  Check(Write(*tree).size() <= Write(whole).size(), "leaving payloads out makes it shorter");
}

void Run(Input input) {
  const MessageInfo& info = ClassOf(input.Byte());
  const std::span<const std::byte> bytes = input.Rest();
  const std::unique_ptr<Tree> tree = TryParse(info, {bytes, {}});
  CheckBorrowing(info, bytes, tree.get());
  if (tree == nullptr) return;
  CheckMemory(*tree, bytes.size());
  CheckRoundTrip(*tree);
  CheckGather(*tree);
  CheckWithoutPayloads(info, bytes, *tree);
}

}  // namespace
}  // namespace onnx_light::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  onnx_light::fuzz::Run({data, size});
  return 0;
}
