#include "model/spec.h"

#include <nlohmann/json.hpp>
#include <string>

#include "packhorse/error.h"
#include "test.h"
#include "tiny_model.h"

using namespace packhorse;
using packhorse::test::tiny_spec;
using Json = nlohmann::json;

TEST(spec_is_read) {
  const Spec spec = parse_spec(tiny_spec().dump());
  CHECK(spec.hidden_size == 24);
  CHECK(spec.num_kv_heads == 3);
  CHECK(spec.head_dim == 8);
  CHECK(spec.max_seqlen == 30);
  CHECK(spec.position_offset == 2);
  CHECK(spec.activation == Activation::kGelu);
  CHECK(spec.pooler == Activation::kTanh);
  CHECK(spec.pooling == Pooling::kMean);
  CHECK(spec.normalize);
}

TEST(spec_refuses_by_name) {
  const auto with = [](const char* pointer, Json value) {
    Json spec = tiny_spec();
    spec[Json::json_pointer(pointer)] = std::move(value);
    return spec.dump();
  };
  CHECK_THROWS_WITH(parse_spec("{"), "not valid JSON");
  CHECK_THROWS_WITH(parse_spec("[]"), "expected an object");
  CHECK_THROWS_WITH(parse_spec(with("/format", 2)), "reads format 1");
  CHECK_THROWS_WITH(parse_spec(with("/hidden_size", -4)), "'hidden_size' is -4");
  CHECK_THROWS_WITH(parse_spec(with("/hidden_size", 2.5)), "'hidden_size' is 2.5");
  CHECK_THROWS_WITH(parse_spec(with("/hidden_size", 1e300)), "expected an integer");
  CHECK_THROWS_WITH(parse_spec(with("/hidden_size", 25)), "not a multiple of 'num_heads' 3");
  CHECK_THROWS_WITH(parse_spec(with("/num_kv_heads", 2)), "not a multiple of 'num_kv_heads' 2");
  CHECK_THROWS_WITH(parse_spec(with("/rope_theta", 1)), "'rope_theta' is not known");
  CHECK_THROWS_WITH(parse_spec(with("/norm/eps", 0)), "'norm.eps' is 0");
  CHECK_THROWS_WITH(parse_spec(with("/norm/kind", "rms")), "expected one of \"layer\"");
  CHECK_THROWS_WITH(parse_spec(with("/norm/extra", 1)), "'norm.extra' is not known");
  CHECK_THROWS_WITH(parse_spec(with("/positions/kind", "rope")), "'positions.kind' is \"rope\"");
  CHECK_THROWS_WITH(parse_spec(with("/positions/offset", 40)), "leaves none of the 32");
  CHECK_THROWS_WITH(parse_spec(with("/max_seqlen", 31)), "serves at most 30");
  CHECK_THROWS_WITH(parse_spec(with("/attention/mask", "causal")), "'attention.mask'");
  CHECK_THROWS_WITH(parse_spec(with("/ffn/activation", "selu")), "\"gelu_tanh\"");
  CHECK_THROWS_WITH(parse_spec(with("/heads/mlm", 1)), "'heads.mlm' is not known");
  CHECK_THROWS_WITH(parse_spec(with("/embedding/normalize", 1)), "expected true or false");
  Json missing = tiny_spec();
  missing.erase("ffn");
  CHECK_THROWS_WITH(parse_spec(missing.dump()), "'ffn' is missing");
}
