#include "onnx_light/page_sequence.h"

#include <algorithm>
#include <span>
#include <utility>

namespace onnx_light {
namespace {

constexpr size_t kFanOut = 32;

using NodeRef = std::shared_ptr<const PageSequence::Node>;

struct Child {
  NodeRef node;
  int64_t count = 0;  // pages below
  int64_t start = 0;  // of the first of them
};

}  // namespace

// A leaf has pages, an inner node has children, all of one height. Neither is ever empty.
struct PageSequence::Node {
  std::vector<PlacedPage> pages;
  std::vector<Child> children;

  bool is_leaf() const { return children.empty(); }
};

namespace {

using Node = PageSequence::Node;

NodeRef Leaf(std::vector<PlacedPage> pages) {
  return std::make_shared<Node>(Node{std::move(pages), {}});
}

NodeRef Inner(std::vector<Child> children) {
  return std::make_shared<Node>(Node{{}, std::move(children)});
}

int64_t CountOf(const Node& node) {
  if (node.is_leaf()) return static_cast<int64_t>(node.pages.size());
  int64_t count = 0;
  for (const Child& child : node.children) count += child.count;
  return count;
}

Child ChildOf(NodeRef node) {
  const int64_t count = CountOf(*node);
  const int64_t start = node->is_leaf() ? node->pages.front().start : node->children.front().start;
  return {std::move(node), count, start};
}

// A node that has only one child is no better than the child.
NodeRef WithoutTrivialRoot(NodeRef node) {
  while (!node->is_leaf() && node->children.size() == 1) node = NodeRef(node->children[0].node);
  return node;
}

// The child that contains the page `index`, which becomes the index inside that child.
size_t Descend(const Node& node, int64_t& index) {
  size_t i = 0;
  while (index >= node.children[i].count) index -= node.children[i++].count;
  return i;
}

template <typename T>
std::vector<T> CopyWith(const std::vector<T>& items, T last) {
  std::vector<T> copy;
  copy.reserve(items.size() + 1);
  copy.assign(items.begin(), items.end());
  copy.push_back(std::move(last));
  return copy;
}

// As many nodes above the page as `like` has.
NodeRef Path(const Node& like, PlacedPage page) {
  if (like.is_leaf()) return Leaf({std::move(page)});
  return Inner({ChildOf(Path(*like.children.front().node, std::move(page)))});
}

// Null if the node is full down its last path.
NodeRef Push(const Node& node, const PlacedPage& page) {
  if (node.is_leaf()) {
    return node.pages.size() == kFanOut ? nullptr : Leaf(CopyWith(node.pages, page));
  }
  if (NodeRef last = Push(*node.children.back().node, page)) {
    std::vector<Child> children = node.children;
    children.back() = ChildOf(std::move(last));
    return Inner(std::move(children));
  }
  if (node.children.size() == kFanOut) return nullptr;
  return Inner(CopyWith(node.children, ChildOf(Path(*node.children.front().node, page))));
}

// REQUIRES: 0 < count <= pages of the node.
NodeRef TakeFirst(const NodeRef& node, int64_t count) {
  if (node->is_leaf()) {
    return Leaf(std::vector(node->pages.begin(), node->pages.begin() + count));
  }
  int64_t index = count - 1;
  const size_t last = Descend(*node, index);
  const auto kept = std::span(node->children).first(last + 1);
  std::vector<Child> children(kept.begin(), kept.end());
  if (index + 1 < children.back().count) {
    children.back() = ChildOf(TakeFirst(children.back().node, index + 1));
  }
  return Inner(std::move(children));
}

// REQUIRES: 0 <= count < pages of the node.
NodeRef DropFirst(const NodeRef& node, int64_t count) {
  if (node->is_leaf()) return Leaf(std::vector(node->pages.begin() + count, node->pages.end()));
  int64_t index = count;
  const size_t first = Descend(*node, index);
  const auto kept = std::span(node->children).subspan(first);
  std::vector<Child> children(kept.begin(), kept.end());
  if (index > 0) children.front() = ChildOf(DropFirst(children.front().node, index));
  return Inner(std::move(children));
}

NodeRef Replace(const Node& node, int64_t index, PlacedPage page) {
  if (node.is_leaf()) {
    std::vector<PlacedPage> pages = node.pages;
    pages[index] = std::move(page);
    return Leaf(std::move(pages));
  }
  const size_t i = Descend(node, index);
  std::vector<Child> children = node.children;
  children[i] = ChildOf(Replace(*children[i].node, index, std::move(page)));
  return Inner(std::move(children));
}

}  // namespace

PageSequence::PageSequence(std::shared_ptr<const Node> root, int64_t size)
    : root_(std::move(root)), size_(size) {}

PageSequence::PageSequence(std::span<const PlacedPage> pages)
    : size_(static_cast<int64_t>(pages.size())) {
  if (pages.empty()) return;
  std::vector<Child> level;
  for (size_t i = 0; i < pages.size(); i += kFanOut) {
    const auto part = pages.subspan(i, std::min(kFanOut, pages.size() - i));
    level.push_back(ChildOf(Leaf(std::vector(part.begin(), part.end()))));
  }
  while (level.size() > 1) {
    std::vector<Child> above;
    for (size_t i = 0; i < level.size(); i += kFanOut) {
      const auto part = std::span(level).subspan(i, std::min(kFanOut, level.size() - i));
      above.push_back(ChildOf(Inner(std::vector(part.begin(), part.end()))));
    }
    level = std::move(above);
  }
  root_ = std::move(level[0].node);
}

std::span<const PlacedPage> PageSequence::Chunk(int64_t index) const {
  const Node* node = root_.get();
  while (!node->is_leaf()) node = node->children[Descend(*node, index)].node.get();
  return std::span(node->pages).subspan(index);
}

int64_t PageSequence::Find(int64_t position) const {
  const Node* node = root_.get();
  int64_t index = 0;
  while (!node->is_leaf()) {
    size_t i = 0;
    while (i + 1 < node->children.size() && node->children[i + 1].start <= position) {
      index += node->children[i++].count;
    }
    node = node->children[i].node.get();
  }
  size_t i = 0;
  while (node->pages[i].end() <= position) ++i;
  return index + static_cast<int64_t>(i);
}

PageSequence PageSequence::PushBack(PlacedPage page) const {
  if (empty()) return PageSequence(Leaf({std::move(page)}), 1);
  if (NodeRef root = Push(*root_, page)) return PageSequence(std::move(root), size_ + 1);
  Child added = ChildOf(Path(*root_, std::move(page)));
  return PageSequence(Inner({ChildOf(root_), std::move(added)}), size_ + 1);
}

PageSequence PageSequence::First(int64_t count) const {
  if (count == size_) return *this;
  if (count == 0) return PageSequence();
  return PageSequence(WithoutTrivialRoot(TakeFirst(root_, count)), count);
}

PageSequence PageSequence::WithoutFirst(int64_t count) const {
  if (count == 0) return *this;
  if (count == size_) return PageSequence();
  return PageSequence(WithoutTrivialRoot(DropFirst(root_, count)), size_ - count);
}

PageSequence PageSequence::With(int64_t index, PlacedPage page) const {
  return PageSequence(Replace(*root_, index, std::move(page)), size_);
}

}  // namespace onnx_light
