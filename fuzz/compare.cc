// Two messages of a class: compared, merged, copied, cleared. The first byte chooses the class, the
// next two are the size of the first message.
#include "fuzz.h"

namespace onnx_light::fuzz {
namespace {

void CheckComparison(const Tree& a, const Tree& b) {
  const bool equal = Equal(a.info, *a.message, *b.message);
  Check(equal == Equal(a.info, *b.message, *a.message), "equality is symmetric");
  const auto difference = FirstDifference(a.info, *a.message, *b.message);
  Check(equal == !difference, "messages that differ differ somewhere");
  Check(difference == FirstDifference(a.info, *b.message, *a.message), "on both sides");
  Check(!difference || !difference->empty(), "the place has a name");
}

std::unique_ptr<Tree> CopyOf(const Tree& tree) {
  auto copy = std::make_unique<Tree>(tree.info);
  Merge(copy->arena, tree.info, *copy->message, *tree.message);
  return copy;
}

void CheckCopy(const Tree& tree) {
  const std::unique_ptr<Tree> copy = CopyOf(tree);
  Check(Write(*copy) == Write(tree), "a copy is written the same");
  Check(Equal(tree.info, *tree.message, *copy->message) ==
            Equal(tree.info, *tree.message, *tree.message),
        "a copy is as equal as the message is to itself");  // NaN
  CheckComparison(tree, *copy);
}

// Three ways to the same message: to merge, to parse what was written onto the other one, and to
// parse both at once.
void CheckMerge(const Tree& a, const Tree& b) {
  const std::unique_ptr<Tree> merged = CopyOf(a);
  Merge(merged->arena, a.info, *merged->message, *b.message);
  const std::string bytes = Write(b);
  const std::unique_ptr<Tree> parsed = CopyOf(a);
  parsed->Parse({AsBytes(bytes), {}});
  const std::string together = Write(a) + bytes;
  const std::unique_ptr<Tree> joined = TryParse(a.info, {AsBytes(together), {}});
  Check(joined != nullptr, "two messages, one behind the other, are a message");
  Check(Write(*merged) == Write(*parsed), "merging is parsing onto a message");
  Check(Write(*merged) == Write(*joined), "merging is parsing one behind the other");
}

// Memory that a message gave back serves the next one.
void CheckReuse(const Tree& a, const Tree& b) {
  const std::unique_ptr<Tree> tree = CopyOf(a);
  Clear(tree->arena, tree->info, *tree->message);
  Check(Write(*tree).empty(), "a cleared message is empty");
  Merge(tree->arena, tree->info, *tree->message, *b.message);
  Check(Write(*tree) == Write(b), "a cleared message becomes a copy");
  Merge(tree->arena, tree->info, *tree->message, *tree->message);
  Clear(tree->arena, tree->info, *tree->message);
  Check(Equal(tree->info, *tree->message, *EmptyMessage()), "a cleared message is equal to none");
}

void Run(Input input) {
  const MessageInfo& info = ClassOf(input.Byte());
  const size_t low = input.Byte();
  const std::span<const std::byte> first = input.Bytes(low | size_t{input.Byte()} << 8);
  const std::unique_ptr<Tree> a = TryParse(info, {first, {}});
  if (a == nullptr) return;
  const std::unique_ptr<Tree> b = TryParse(info, {input.Rest(), {}});
  if (b == nullptr) return;
  CheckComparison(*a, *b);
  CheckCopy(*a);
  CheckMerge(*a, *b);
  CheckReuse(*a, *b);
}

}  // namespace
}  // namespace onnx_light::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  onnx_light::fuzz::Run({data, size});
  return 0;
}
