// A service's own extension module: it embeds the C++ runtime and takes and gives NumPy arrays.
//
//   import embedder, numpy as np
//   model = embedder.Embedder("FOLDER", max_tokens=64)      # written by `packhorse convert`
//   ids = np.array([1, 2, 3, 4, 5, 6, 7], np.int32)         # the tokens of all sequences
//   cu_seqlens = np.array([0, 5, 5, 7], np.int32)           # where each sequence begins
//   embeddings = model.embed(ids, cu_seqlens)               # float32 [3, model.size]
#include <packhorse/session.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace py = pybind11;

namespace {

using Int32Array = py::array_t<int32_t, py::array::c_style>;

/// The array's own memory: nothing is copied. The array must outlive the span.
std::span<const int32_t> view(const Int32Array& array) {
  if (array.ndim() != 1) throw py::value_error("expected an array of one dimension");
  return {array.data(), static_cast<size_t>(array.size())};
}

class Embedder {
 public:
  Embedder(const std::string& folder, int64_t max_tokens, int64_t max_sequences) {
    packhorse::SessionOptions options;
    options.max_tokens = max_tokens;
    options.max_sequences = max_sequences;
    session_ = packhorse::Session::load(folder, options);
  }

  py::array_t<float> embed(const Int32Array& ids, const Int32Array& cu_seqlens) {
    const packhorse::PackedTokens batch{view(ids), view(cu_seqlens), {}, {}};
    const auto rows = std::max<int64_t>(batch.num_sequences(), 0);  // `run` refuses less than 0
    py::array_t<float> embeddings({rows, size()});
    packhorse::RunOutputs outputs;
    outputs.embedding = embeddings.mutable_data();
    {
      const py::gil_scoped_release other_threads_go_on;
      session_->run(batch, outputs);
    }
    return embeddings;
  }

  int64_t size() const { return session_->embedding_size(); }

 private:
  std::shared_ptr<packhorse::Session> session_;
};

}  // namespace

// pybind11 turns the std classes of Packhorse's errors into ValueError, RuntimeError and
// MemoryError. `noconvert`: arrays of another dtype are refused instead of being copied.
PYBIND11_MODULE(embedder, module) {
  py::class_<Embedder>(module, "Embedder")
      .def(py::init<const std::string&, int64_t, int64_t>(), py::arg("folder"),
           py::arg("max_tokens") = 8192, py::arg("max_sequences") = 256,
           py::call_guard<py::gil_scoped_release>())
      .def("embed", &Embedder::embed, py::arg("ids").noconvert(), py::arg("cu_seqlens").noconvert())
      .def_property_readonly("size", &Embedder::size);
}
