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

// What the code that counts weights and buffers relies on.
void require_sound(const packhorse::Spec& spec) {
  const packhorse::StemSpec& stem = spec.stem;
  require(spec.hidden_size > 0 && stem.vocab_size > 0 && stem.embedding_size > 0);
  require(spec.max_seqlen > 0 && stem.position_offset >= 0);
  require(spec.max_seqlen <= stem.num_positions - stem.position_offset);
  require(spec.embedding_columns() > 0);
  const packhorse::StackSpec& stack = spec.stack;
  require(stack.num_layers >= 0);
  require(stack.layer_weights.size() == static_cast<size_t>(stack.num_layers));
  for (const int32_t set : stack.layer_weights) {
    require(set >= 0 && set < stack.num_weight_sets());
  }
  if (stack.num_layers == 0) return;
  const packhorse::AttentionSpec& attention = stack.attention;
  require(attention.num_heads > 0 && attention.num_kv_heads > 0 && attention.head_dim > 0);
  require(attention.num_heads % attention.num_kv_heads == 0);
  require(stack.local_layers.size() == static_cast<size_t>(stack.num_layers));
  if (attention.rope) {
    require(stack.rotated_layers.size() == static_cast<size_t>(stack.num_layers));
    const int64_t dims = attention.rope->dims;
    require(dims > 0 && dims % 2 == 0 && dims <= attention.head_dim);
    const size_t frequencies = attention.rope->frequencies.size();
    require(frequencies == 0 || frequencies == static_cast<size_t>(dims / 2));
  }
  // The tensor with the most elements is counted in bytes of at most 8 each.
  int64_t bytes = 0;
  require(!__builtin_mul_overflow(stem.vocab_size, spec.hidden_size * 8, &bytes));
  require(!__builtin_mul_overflow(stack.feed_forward.size, spec.hidden_size * 16, &bytes));
  const int64_t columns = attention.num_heads * attention.head_dim;
  require(!__builtin_mul_overflow(columns * 3, spec.hidden_size * 8, &bytes));
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
