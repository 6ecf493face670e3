// Heads of compressed convolutional attention.
#pragma once

#include <cstddef>

#include "cpu/isa/kernels.h"
#include "cpu/threads/thread_pool.h"
#include "ops/args/cca.h"

namespace packhorse::cpu {

size_t cca_workspace(const CcaArgs& args, int threads);
void cca(const CcaArgs& args, const Kernels& kernels, ThreadPool& pool);

}  // namespace packhorse::cpu
