// Any text as a spec: refused with InvalidArgument, or a spec whose parts fit each other.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "model/spec/spec.h"
#include "packhorse/error.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// Requires what the code that counts weights and buffers relies on.
void require_sound(const packhorse::Spec& spec) {
  require(spec.stacks.size() == 1);
  const packhorse::StackSpec& stack = spec.stack();
  const packhorse::StemSpec& stem = stack.stem;
  require(stem.kind == packhorse::StemKind::kTokens);
  require(stack.hidden_size > 0 && stem.vocab_size > 0 && stem.embedding_size > 0);
  require(spec.max_seqlen > 0 && stem.position_offset >= 0);
  require(spec.max_seqlen <= stem.num_positions - stem.position_offset);
  require(spec.embedding_columns() > 0);
  // The tensor with the most elements is counted in bytes of at most 8 each.
  int64_t bytes = 0;
  require(!__builtin_mul_overflow(stem.vocab_size, stack.hidden_size * 8, &bytes));
  for (const packhorse::LayerSpec* set : stack.weight_sets()) require(set != nullptr);
  for (const packhorse::LayerSpec& layer : stack.layers) {
    require(layer.weights >= 0 && layer.blocks.size() == 2);
    const packhorse::AttentionSpec& attention = layer.attention();
    const packhorse::AttentionSpec& first = stack.layers.front().attention();
    require(attention.num_heads > 0 && attention.num_kv_heads > 0 && attention.head_dim > 0);
    require(attention.num_heads % attention.num_kv_heads == 0);
    require(attention.num_heads == first.num_heads && attention.head_dim == first.head_dim);
    require(attention.num_kv_heads == first.num_kv_heads);
    require(!attention.rope || *attention.rope < stack.ropes.size());
    const int64_t columns = attention.num_heads * attention.head_dim;
    require(!__builtin_mul_overflow(columns * 3, stack.hidden_size * 8, &bytes));
    const packhorse::BlockSpec& last = layer.blocks.back();
    if (const auto* moe = std::get_if<packhorse::MoeSpec>(&last.kind)) {
      require(moe->router.kind == packhorse::RouterKind::kState && moe->size > 0);
      require(
          !__builtin_mul_overflow(moe->num_experts * moe->size, stack.hidden_size * 16, &bytes));
      continue;
    }
    const auto& feed_forward = std::get<packhorse::FeedForwardSpec>(last.kind);
    require(!__builtin_mul_overflow(feed_forward.size, stack.hidden_size * 16, &bytes));
  }
  for (const packhorse::RopeSpec& rope : stack.ropes) {
    require(rope.dims > 0 && rope.dims % 2 == 0 && rope.dims == stack.ropes.front().dims);
    require(stack.layers.empty() || rope.dims <= stack.layers.front().attention().head_dim);
    const size_t frequencies = rope.frequencies.size();
    require(frequencies == 0 || frequencies == static_cast<size_t>(rope.dims / 2));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    require_sound(packhorse::parse_spec(text));
  } catch (const packhorse::InvalidArgument& error) {
    require(!error.message().empty());
  }
  return 0;
}
