#include "model/spec/spec.h"

#include <string>

#include "core/format.h"
#include "packhorse/error.h"
#include "test.h"
#include "tiny_model.h"

using namespace packhorse;
using packhorse::test::patched;
using packhorse::test::tiny_spec;
using packhorse::test::tiny_spec_with;

namespace {

const FeedForwardSpec& feed_forward(const LayerSpec& layer) {
  return std::get<FeedForwardSpec>(layer.blocks[1].kind);
}

}  // namespace

TEST(spec_is_read) {
  const Spec spec = parse_spec(tiny_spec());
  const StackSpec& stack = spec.stack();
  CHECK(stack.hidden_size == 24);
  CHECK(stack.layers.size() == 2);
  CHECK(stack.layers[0].attention().num_kv_heads == 3);
  CHECK(stack.layers[1].attention().head_dim == 8);
  CHECK(spec.max_seqlen == 30);
  CHECK(stack.stem.position_offset == 2);
  CHECK(feed_forward(stack.layers[1]).activation == Activation::kGelu);
  CHECK(spec.heads.pooler == Activation::kTanh);
  CHECK(spec.heads.embedding.poolings == std::vector{Pooling::kMean});
  CHECK(spec.heads.embedding.normalize);
}

TEST(spec_of_a_table_of_embeddings_is_read) {
  const std::string json = tiny_spec(R"({
    "num_layers": 0, "positions": {"kind": "none", "count": null, "offset": null},
    "max_seqlen": 1048576, "text": {"special_tokens": false},
    "num_heads": null, "num_kv_heads": null, "head_dim": null, "intermediate_size": null,
    "norm": null, "attention": null, "ffn": null})");
  const Spec spec = parse_spec(json);
  CHECK(spec.stack().layers.empty());
  CHECK(!spec.stack().stem.norm);
  CHECK(spec.stack().hidden_size == 24);
  CHECK_THROWS_WITH(parse_spec(patched(json, R"({"num_layers": 1})")), "'num_heads' is missing");
}

TEST(spec_of_other_encoders_is_read) {
  const std::string json = tiny_spec(R"({
    "num_layers": 3, "layer_weights": [0, 1, 0], "embedding_size": 16,
    "positions": {"kind": "none", "count": null, "offset": null}, "max_seqlen": 77,
    "norm": {"kind": "rms", "placement": "pre", "eps": 1e-6, "embeddings": false},
    "attention": {"mask": "causal", "qkv_bias": false, "qk_norm": true,
      "rope": {"theta": 1e6, "local_theta": 1e4, "dims": 4},
      "local": {"window": 5, "layers": [2]}},
    "ffn": {"kind": "gated", "activation": "silu", "up_bias": false}})");
  const Spec spec = parse_spec(json);
  const StackSpec& stack = spec.stack();
  CHECK(stack.weight_sets().size() == 2);
  CHECK(stack.layers[2].weights == 0);
  CHECK(stack.stem.projection);
  CHECK(stack.stem.embedding_size == 16);
  CHECK(spec.max_seqlen == 77);
  CHECK(!stack.norm.bias);
  CHECK(!stack.stem.norm);
  CHECK(stack.pre_norm());
  CHECK(stack.ropes.size() == 2);
  CHECK(stack.ropes[1].dims == 4);
  CHECK(stack.ropes[1].theta == 1e4f);
  const AttentionSpec& global = stack.layers[0].attention();
  CHECK(global.causal);
  CHECK(!global.qkv_bias);
  CHECK(global.output_bias);
  CHECK(!global.window);
  CHECK(global.rope == 0);
  CHECK(stack.layers[2].attention().window == 5);
  CHECK(stack.layers[2].attention().rope == 1);
  CHECK(feed_forward(stack.layers[1]).gated);
  CHECK_THROWS_WITH(parse_spec(patched(json, R"({"max_seqlen": null})")),
                    "'max_seqlen' is missing");
}

TEST(spec_refuses_by_name) {
  CHECK_THROWS_WITH(parse_spec("{"), "not valid JSON");
  CHECK_THROWS_WITH(parse_spec("[]"), "expected an object");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/format", "3")), "reads formats 1 and 2");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/hidden_size", "-4")), "'hidden_size' is -4");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/hidden_size", "2.5")), "'hidden_size' is 2.5");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/hidden_size", "1e300")), "expected an integer");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/hidden_size", "25")),
                    "not a multiple of 'num_heads' 3");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/num_kv_heads", "2")),
                    "not a multiple of 'num_kv_heads' 2");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/rope_theta", "1")), "'rope_theta' is not known");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/norm/eps", "0")), "'norm.eps' is 0");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/norm/kind", R"("group")")),
                    "expected one of \"layer\"");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/norm/extra", "1")), "'norm.extra' is not known");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/norm/shared", "true")),
                    "'norm.shared' is not known");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/norm/gamma_offset", R"("1")")),
                    "expected a number");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/embedding_bias", "false")),
                    "'embedding_bias' is not known");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/embedding_scale", "0")), "'embedding_scale' is 0");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/positions/after_projection", "true")),
                    "'positions.after_projection' is not known");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/attention/scale", "-1")),
                    "'attention.scale' is -1");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/attention/soft_cap", "0")),
                    "'attention.soft_cap' is 0");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/heads/lm", R"({"soft_cap": 0})")),
                    "'heads.lm.soft_cap' is 0");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/heads/lm", R"({"untied": true})")),
                    "'heads.lm.untied'");
  CHECK_THROWS_WITH(
      parse_spec(tiny_spec_with("/attention/rope", R"({"theta": 1e4, "layers": [2]})")),
      "integers from 0 to 1");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/positions/kind", R"("rope")")),
                    "'positions.kind' is \"rope\"");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/positions/offset", "40")), "leaves none of the 32");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/max_seqlen", "31")), "serves at most 30");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/attention/mask", R"("prefix")")),
                    "'attention.mask'");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/layer_weights", "[0]")),
                    "for each of the 2 layers");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/layer_weights", "[1, 1]")), "without gaps");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/layer_weights", "[0, 2]")), "integers from 0 to 1");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/embedding_size", "0")), "'embedding_size' is 0");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/norm/first_attention", "false")),
                    "'norm.first_attention' is not known");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/attention/rope", R"({"theta": 1e4, "dims": 3})")),
                    "'attention.rope.dims' is 3, expected an even number");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/attention/rope", R"({"theta": 1e4, "dims": 10})")),
                    "'attention.rope.dims' is 10");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/attention/rope", R"({"frequencies": [1.0, 0.5]})")),
                    "'attention.rope.frequencies' is [1.0,0.5], expected a list of");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with(
                        "/attention/rope", R"({"frequencies": [1.0], "dims": 2, "theta": 1e4})")),
                    "'attention.rope.theta' is not known");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with(
                        "/attention/rope", R"({"theta": 1e4, "dims": 2, "attention_factor": 2})")),
                    "'attention.rope.attention_factor' is 2, but only 2 of");
  CHECK_THROWS_WITH(
      parse_spec(tiny_spec_with("/attention/rope", R"({"theta": 1e4, "scaling": 1})")),
      "'attention.rope.scaling' is not known");
  CHECK_THROWS_WITH(
      parse_spec(tiny_spec_with("/attention/local", R"({"window": 8, "layers": [2]})")),
      "'attention.local.layers' is 2");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/attention/score_term", R"({"kind": "kerple"})")),
                    "\"alibi\", \"bucketed\"");
  CHECK_THROWS_WITH(
      parse_spec(tiny_spec_with("/attention/score_term",
                                R"({"kind": "bucketed", "buckets": 32, "max_distance": 8})")),
      "'attention.score_term.max_distance' is 8");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/ffn/kind", R"("moe")")), "\"plain\", \"gated\"");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/ffn/activation", R"("selu")")), "\"gelu_tanh\"");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/heads/masked_lm", R"({"activation": "elu"})")),
                    "'heads.masked_lm.activation' is \"elu\"");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/heads/mlm", "1")), "'heads.mlm' is not known");
  CHECK_THROWS_WITH(
      parse_spec(tiny_spec_with("/heads/classifier", R"({"input": "cls", "labels": [1]})")),
      "'heads.classifier.labels' is [1]");
  CHECK_THROWS_WITH(parse_spec(tiny_spec_with("/embedding/normalize", "1")),
                    "expected true or false");
  CHECK_THROWS_WITH(parse_spec(tiny_spec(R"({"ffn": null})")), "'ffn' is missing");
}

TEST(spec_of_weights_that_stay_quantised_is_read) {
  const std::string json = tiny_spec(R"({"quantized": [
    {"bits": 4, "group": 32, "minima": true, "layers": ["layers.0.attention.output"]},
    {"bits": 8, "group": 128, "minima": false,
     "layers": ["layers.1.ffn.up", "layers.1.ffn.down", "lm.decoder"]}]})");
  const Spec spec = parse_spec(json);
  CHECK(spec.quantized.size() == 4);
  CHECK((spec.quantized.at("layers.0.attention.output") == WeightGroups{4, 32, true}));
  CHECK((spec.quantized.at("lm.decoder") == WeightGroups{8, 128, false}));
  CHECK(!spec.quantized.at("lm.decoder").ordered);
  const auto with = [](const char* entry) {
    return tiny_spec(concat(R"({"quantized": [)", entry, "]}"));
  };
  // The down projection may have an order where up has none.
  const Spec ordered = parse_spec(with(
      R"({"bits": 4, "group": 32, "minima": true, "layers": ["layers.1.ffn.up"]},
         {"bits": 4, "group": 32, "minima": true, "input_order": true,
          "layers": ["layers.1.ffn.down"]})"));
  CHECK(ordered.quantized.at("layers.1.ffn.down").ordered);
  CHECK(!ordered.quantized.at("layers.1.ffn.up").ordered);
  CHECK_THROWS_WITH(parse_spec(with(
                        R"({"bits": 4, "group": 32, "minima": true, "input_order": true,
                            "layers": ["layers.0.attention.query", "layers.0.attention.key"]},
                           {"bits": 4, "group": 32, "minima": true,
                            "layers": ["layers.0.attention.value"]})")),
                    "an input_order for one of layers.0.attention.query and "
                    "layers.0.attention.value, expected both or none");
  const auto one = [&](const char* form) {
    return with(concat("{", form, R"(, "layers": ["lm.decoder"]})").c_str());
  };
  CHECK_THROWS_WITH(parse_spec(one(R"("bits": 5, "group": 32, "minima": true)")),
                    "weights of 5 bits, expected 4 or 8");
  CHECK_THROWS_WITH(parse_spec(one(R"("bits": 4, "group": 16, "minima": true)")),
                    "groups of 16 with 4 bits, expected a power of two from 32");
  CHECK_THROWS_WITH(parse_spec(one(R"("bits": 8, "group": 48, "minima": true)")),
                    "groups of 48 with 8 bits, expected a power of two from 16");
  CHECK_THROWS_WITH(parse_spec(with(R"({"bits": 4, "group": 32, "minima": true,
                                        "layers": ["layers.0.attention.query"]})")),
                    "has one of layers.0.attention.query and layers.0.attention.key");
  CHECK_THROWS_WITH(parse_spec(with(R"({"bits": 4, "group": 32, "minima": true,
                                        "layers": ["pooler"]})")),
                    "names \"pooler\", expected a dense layer of a block");
  CHECK_THROWS_WITH(parse_spec(with(R"({"bits": 4, "group": 32, "minima": true,
                                        "layers": ["lm.decoder", "lm.decoder"]})")),
                    "names \"lm.decoder\" twice");
}

namespace {

const char* const kAttention =
    R"({"kind": "self_attention", "mask": "bidirectional", "num_heads": 3, "num_kv_heads": 3,
        "head_dim": 8)";
const char* const kPlain = R"({"kind": "feed_forward", "size": 40, "activation": "gelu"})";
const char* const kMoe =
    R"({"kind": "moe", "experts": 4, "size": 40, "activation": "silu",
        "router": {"kind": "state", "size": 16, "takes_state": false}})";

std::string layer(const std::string& attention, const std::string& feed_forward) {
  return concat(R"({"blocks": [)", attention, ", ", feed_forward, "]}");
}

std::string attention(const char* fields = "") { return concat(kAttention, fields, "}"); }

// A spec of format 2 with these layers; `changes` are fields of its stack.
std::string stack_spec(const std::string& layers, const std::string& changes = "{}") {
  const std::string stack = patched(concat(R"({"hidden_size": 24,
          "stem": {"kind": "tokens", "vocab_size": 50, "type_vocab_size": 2,
                   "positions": {"kind": "none"}},
          "norm": {"kind": "layer", "placement": "pre", "eps": 1e-5},
          "layers": [)",
                                           layers, "]}"),
                                    changes);
  return concat(R"({"format": 2, "family": "test", "max_seqlen": 77, "stacks": {"encoder": )",
                stack, R"(}, "embedding": {"pooling": "mean", "normalize": true}})");
}

}  // namespace

TEST(spec_of_layers_is_read) {
  const Spec spec = parse_spec(stack_spec(
      concat(layer(attention(R"(, "norm": false, "rope": "global")"), kPlain), ", ",
             layer(attention(R"(, "window": 5, "rope": "local", "qkv_bias": false)"),
                   R"({"kind": "feed_forward", "size": 16, "gated": true, "activation": "silu"})"),
             ", ", layer(attention(), kMoe)),
      R"({"ropes": {"local": {"theta": 10}, "global": {"theta": 100}}})"));
  const StackSpec& stack = spec.stack();
  CHECK(stack.name == "encoder");
  CHECK(spec.max_seqlen == 77);
  CHECK(stack.layers.size() == 3);
  CHECK(stack.weight_sets().size() == 3);
  CHECK(stack.layers[0].blocks[0].norm == BlockNorm::kNone);
  CHECK(stack.layers[1].blocks[0].norm == BlockNorm::kOwn);
  CHECK(stack.ropes[*stack.layers[0].attention().rope].theta == 100);
  CHECK(stack.ropes[*stack.layers[1].attention().rope].theta == 10);
  CHECK(!stack.layers[2].attention().rope);
  CHECK(stack.layers[1].attention().window == 5);
  CHECK(!stack.layers[1].attention().qkv_bias);
  CHECK(stack.layers[2].attention().qkv_bias);
  CHECK(feed_forward(stack.layers[0]).size == 40);
  CHECK(feed_forward(stack.layers[1]).gated);
  CHECK(std::get<MoeSpec>(stack.layers[2].blocks[1].kind).router.size == 16);
  CHECK(stack.has<MoeSpec>());
  CHECK(!stack.has<CcaSpec>());
}

TEST(spec_of_both_formats_is_the_same) {
  Spec first = parse_spec(tiny_spec(R"({
    "num_layers": 3, "layer_weights": [0, 1, 0],
    "positions": {"kind": "none", "count": null, "offset": null}, "max_seqlen": 77,
    "norm": {"kind": "rms", "placement": "pre", "eps": 1e-5, "embeddings": false},
    "attention": {"mask": "bidirectional", "local": {"window": 5, "layers": [2]},
      "rope": {"theta": 100, "local_theta": 10, "dims": 4, "layers": [0, 2]}},
    "ffn": {"kind": "gated", "activation": "silu"}})"));
  const std::string gated =
      R"({"kind": "feed_forward", "size": 40, "gated": true, "activation": "silu"})";
  const Spec second = parse_spec(
      stack_spec(concat(layer(attention(R"(, "rope": "global")"), gated), ", ",
                        layer(attention(), gated), R"(, {"weights": 0, "blocks": [)",
                        attention(R"(, "rope": "local", "window": 5)"), ", ", gated, "]}"),
                 R"({"stem": {"norm": false}, "norm": {"kind": "rms"},
          "ropes": {"global": {"theta": 100, "dims": 4}, "local": {"theta": 10, "dims": 4}}})"));
  first.stack().name = "encoder";
  CHECK(first.stack().layers == second.stack().layers);
  CHECK(first.stack() == second.stack());
  CHECK(first.max_seqlen == second.max_seqlen);
}

// A spec of two stacks, of which the second has three blocks in a layer, with changes.
std::string two_stacks(const std::string& changes = "{}") {
  const auto stack = [](const std::string& blocks, const char* more) {
    return concat(R"({"hidden_size": 24, "max_seqlen": 50,
          "stem": {"kind": "tokens", "vocab_size": 50, "positions": {"kind": "none"})",
                  more, R"(},
          "norm": {"kind": "rms", "placement": "pre", "eps": 1e-5},
          "score_term": {"kind": "bucketed", "buckets": 8, "max_distance": 20},
          "layers": [{"blocks": [)",
                  blocks, "]}]}");
  };
  const std::string cross = R"({"kind": "cross_attention", "stack": "reader", "num_heads": 4,
      "num_kv_heads": 2, "head_dim": 6, "scale": 1.0, "qkv_bias": false})";
  const std::string own = R"({"kind": "self_attention", "mask": "causal", "num_heads": 4,
      "num_kv_heads": 2, "head_dim": 6})";
  const std::string spec =
      concat(R"({"format": 2, "stacks": {"a writer": )",
             stack(concat(own, ", ", cross, ", ", kPlain), R"(, "words": "reader")"),
             R"(, "reader": )", stack(concat(attention(), ", ", kPlain), ""),
             R"(}, "heads": {"lm": {"tied": true}},
                "embedding": {"pooling": "mean", "normalize": true}})");
  return patched(spec, changes);
}

TEST(spec_of_two_stacks_is_read) {
  const Spec spec = parse_spec(two_stacks(R"({"stacks": {"a writer": {"max_seqlen": 40}}})"));
  CHECK(spec.stacks.size() == 2 && spec.source() == spec.stacks.data());
  CHECK(spec.source()->name == "reader" && spec.source()->prefix == "reader.");
  CHECK(spec.stack().name == "a writer" && spec.stack().prefix == "a writer.");
  CHECK(spec.source()->max_seqlen == 50 && spec.max_seqlen == 40);
  CHECK(spec.stack().stem.shared_words && spec.word_table() == "reader.embeddings.word");
  const LayerSpec& layer = spec.stack().layers[0];
  const auto& cross = std::get<CrossAttentionSpec>(layer.blocks[1].kind);
  CHECK(cross.stack == "reader" && cross.num_kv_heads == 2 && cross.scale == 1.0f);
  CHECK(!cross.qkv_bias && !cross.key_bias && cross.output_bias);
  CHECK(part_of(layer.blocks[1]) == std::string("cross_attention"));
  CHECK(part_of(layer.blocks[2]) == std::string("ffn"));
}

TEST(spec_of_two_stacks_refuses_by_name) {
  const auto refuses = [](const char* changes, const char* message) {
    CHECK_THROWS_WITH(parse_spec(two_stacks(changes)), message);
  };
  refuses(R"({"max_seqlen": 50})", "field 'max_seqlen' is not known");
  refuses(R"({"stacks": {"third": {}}})", "'stacks' has 3 stacks, expected one, or two");
  refuses(R"({"stacks": {"reader": {"stem": {"words": "a writer"}}}})",
          "'stacks.reader.stem.words' names the stack that attends to this one");
  refuses(R"({"stacks": {"a writer": {"stem": {"words": "writer"}}}})",
          "stem.words' is \"writer\", expected one of \"reader\"");
  refuses(R"({"stacks": {"a writer": {"stem": {"vocab_size": 51}}}})",
          "'stacks.a writer.stem.words' is \"reader\", whose table has another size");
  refuses(R"({"stacks": {"a writer": {"max_seqlen": null}}})",
          "'stacks.a writer.max_seqlen' is missing");
  refuses(R"({"stacks": {"a writer": {"layers": [], "score_term": null}}})",
          "none has \"cross_attention\"");
  refuses(R"({"stacks": {"a writer": {"norm": {"placement": "parallel"}}}})",
          "\"cross_attention\" with 'norm.placement' \"parallel\"");
  refuses(R"({"stacks": {"a writer": {"score_term": {"max_distance": 4}}}})",
          "score_term.max_distance' is 4, expected an integer from 5");
}

TEST(spec_of_layers_refuses_by_name) {
  const std::string plain = layer(attention(), kPlain);
  const auto refuses = [](const std::string& layers, const char* message,
                          const std::string& changes = "{}") {
    CHECK_THROWS_WITH(parse_spec(stack_spec(layers, changes)), message);
  };
  // Kinds that the types have room for and nothing runs.
  CHECK_THROWS_WITH(parse_spec(patched(stack_spec(plain), R"({"stacks": {"encoder": null}})")),
                    "'stacks' has 0 stacks");
  for (const char* kind : {"audio", "stack"}) {
    refuses(plain, "stem.kind' is \"", concat(R"({"stem": {"kind": ")", kind, "\"}}"));
  }
  refuses(plain, "stem.features' is missing", R"({"stem": {"kind": "patches"}})");
  refuses(layer(R"({"kind": "cross_attention"})", kPlain),
          "layers[0].blocks[0].kind' is \"cross_attention\", expected \"self_attention\"");
  refuses(plain, "stem.words' is not known", R"({"stem": {"words": "encoder"}})");
  for (const char* kind : {"softmax", "sigmoid"}) {
    refuses(layer(attention(), concat(R"({"kind": "moe", "experts": 4, "size": 40,
                "activation": "silu", "router": {"kind": ")",
                                      kind, "\"}}")),
            "router.kind' is \"s");
  }
  // Blocks and layers.
  refuses(layer(R"({"kind": "mamba"})", kPlain), "expected one of \"self_attention\"");
  refuses(layer(kPlain, attention()), "layers[0].blocks' expected two blocks");
  refuses(concat(R"({"blocks": [)", attention(), "]}"), "expected two blocks");
  refuses(R"({"blocks": []})", "expected two blocks");
  refuses(R"({"blocks": 1})", "blocks' is 1, expected a list of objects");
  refuses("7", "layers[0].' is 7, expected an object");
  refuses(layer(attention(R"(, "windows": 1)"), kPlain), "blocks[0].windows' is not known");
  refuses(layer(attention(R"(, "window": -1)"), kPlain), "blocks[0].window' is -1");
  refuses(layer(attention(R"(, "rope": "global")"), kPlain), "blocks[0].rope' is \"global\"");
  refuses(layer(attention(R"(, "rope": "local")"), kPlain), "expected one of \"global\"",
          R"({"ropes": {"global": {"theta": 1}}})");
  refuses(layer(attention(), R"({"kind": "feed_forward", "activation": "gelu"})"),
          "blocks[1].size' is missing");
  refuses(concat(R"({"depth": 1, "blocks": [)", attention(), ", ", kPlain, "]}"),
          "layers[0].depth' is not known");
  // Norms that only some placements let go.
  refuses(layer(attention(R"(, "norm": "shared")"), kPlain), "norm' is \"shared\"");
  refuses(layer(attention(R"(, "norm": false)"), kPlain), "norm' is false",
          R"({"norm": {"placement": "post"}})");
  refuses(layer(attention(), R"({"kind": "feed_forward", "size": 4, "activation": "gelu",
                                 "norm": false})"),
          "norm' is false, expected true");
  // Sizes that layers have in common.
  refuses(concat(plain, ", ",
                 layer(R"({"kind": "self_attention", "mask": "causal",
                                        "num_heads": 3, "head_dim": 4})",
                       kPlain)),
          "layers[1].blocks[0]' has another kind, or other heads");
  refuses(concat(plain, ", ",
                 layer(R"({"kind": "cca", "mask": "causal", "num_heads": 3,
                                        "num_kv_heads": 1, "depthwise_width": 2,
                                        "grouped_width": 2})",
                       kPlain)),
          "layers[1].blocks[0]' has another kind");
  refuses(concat(plain, R"(, {"weights": 2, "blocks": []})"), "weights' is 2");
  refuses(concat(R"({"weights": 1, "blocks": [)", attention(), ", ", kPlain, "]}, ", plain),
          "leave a gap");
  refuses(concat(plain, R"(, {"weights": 0, "blocks": [)", attention(), ", ", kMoe, "]}"),
          "layers[1]' has the weights 0 of a layer with other blocks");
  refuses(plain, "one form in a stack",
          R"({"ropes": {"a": {"theta": 1}, "b": {"theta": 1, "dims": 4}}})");
  // Mixtures.
  const auto moe = [](const char* experts, const char* size, const char* state) {
    return concat(R"({"kind": "moe", "experts": )", experts, R"(, "size": 40,
        "activation": "silu", "router": {"kind": "state", "size": )",
                  size, R"(, "takes_state": )", state, "}}");
  };
  refuses(layer(attention(), moe("4", "16", "true")), "takes_state' is true, but no layer before");
  refuses(concat(layer(attention(), kMoe), ", ", layer(attention(), moe("5", "16", "true"))),
          "layers[1].blocks[1]' has another number of experts");
  refuses(concat(layer(attention(), kMoe), ", ", layer(attention(), moe("4", "8", "true"))),
          "layers[1].blocks[1]' has another number of experts or columns");
  refuses(layer(attention(), kMoe), "needs 'norm.placement' \"pre\"",
          R"({"norm": {"placement": "post"}})");
  // A stack.
  refuses(plain, "encoder.depth' is not known", R"({"depth": 1})");
  refuses(plain, "stem.max' is not known", R"({"stem": {"max": 1}})");
  refuses(plain, "norm.shared' is not known", R"({"norm": {"shared": true}})");
  refuses("", "norm' is missing", R"({"norm": null, "layers": [{"blocks": []}]})");
}
