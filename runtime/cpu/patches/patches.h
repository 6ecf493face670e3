// The operators that only models of images ask for.
#pragma once

#include "cpu/threads/thread_pool.h"
#include "ops/args/patches.h"

namespace packhorse::cpu {

void embed_patches(const EmbedPatchesArgs& args, ThreadPool& pool);
void probe_attention(const ProbeAttentionArgs& args, ThreadPool& pool);

}  // namespace packhorse::cpu
