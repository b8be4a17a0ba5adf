import pytest
from transformers import (
    BartConfig,
    BertConfig,
    BloomConfig,
    DistilBertConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoConfig,
    GPTNeoXConfig,
    JambaConfig,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    ModernBertConfig,
    MptConfig,
    Qwen2Config,
    Qwen3NextConfig,
    RobertaConfig,
    RwkvConfig,
    T5Config,
    ViTConfig,
    XLMConfig,
)

from specdec.interfaces.declarations import TargetDeclaration
from specdec.targets.capability import MaskPlan, declaration, mask_plan

MAP = {"AutoModelForCausalLM": "modeling.Own"}


def declared(config, attention="sdpa", max_context=None):
    return declaration(config, attention=attention, max_context=max_context)


@pytest.mark.parametrize("config", [MambaConfig(), RwkvConfig(), JambaConfig(), Qwen3NextConfig()])
def test_recurrent_and_linear_attention_models_are_refused_with_what_would_work(config):
    reason = declared(config).no_decoding_because
    assert "cannot forget a rejected draft" in reason
    assert "Llama" in reason


@pytest.mark.parametrize("config", [T5Config(), BartConfig()])
def test_encoder_decoder_models_are_refused(config):
    assert "encoder-decoder" in declared(config).no_decoding_because


@pytest.mark.parametrize("attention", ["flash_attention_2", "flex_attention", "paged"])
def test_attention_that_takes_no_mask_is_refused_and_sdpa_named(attention):
    reason = declared(LlamaConfig(), attention=attention).no_decoding_because
    assert attention in reason
    assert "sdpa" in reason


def test_soft_capped_attention_asks_for_eager():
    config = Gemma2Config()
    assert "attention: eager would work" in declared(config).no_decoding_because
    assert declared(config, attention="eager").no_decoding_because is None


@pytest.mark.parametrize("config", [BloomConfig(), MptConfig(), FalconConfig(alibi=True)])
def test_alibi_models_declare_that_they_score_no_trees(config):
    assert "ALiBi" in declared(config).no_trees_because
    assert declared(config).no_decoding_because is None


def test_windows_that_the_model_counts_by_slot_itself_declare_that_they_score_no_trees():
    assert "by cache slot" in declared(GPTNeoConfig()).no_trees_because


def test_layers_without_a_tree_mask_declare_that_they_score_no_trees():
    assert "chunked_attention" in declared(Llama4TextConfig()).no_trees_because


def test_a_plain_decoder_declares_its_sizes():
    config = LlamaConfig(vocab_size=100, num_hidden_layers=3, max_position_embeddings=77)
    assert declared(config) == TargetDeclaration(100, 3, 77, hidden_size=config.hidden_size)
    assert declared(config, max_context=50).max_positions == 50
    assert declared(config, max_context=500).max_positions == 77
    assert declared(BloomConfig(), max_context=500).max_positions == 500


def test_a_model_with_images_declares_its_text_part():
    config = Gemma3Config(text_config=Gemma3TextConfig(vocab_size=64, num_hidden_layers=6).to_dict())
    assert declared(config).num_layers == 6


def test_masks_follow_the_layers():
    assert mask_plan(LlamaConfig()) == MaskPlan({"all": None}, False)
    assert mask_plan(MistralConfig(sliding_window=7)) == MaskPlan({"all": 7}, False)
    assert mask_plan(MistralConfig(sliding_window=None)) == MaskPlan({"all": None}, False)
    assert mask_plan(Qwen2Config(use_sliding_window=False, sliding_window=9)).longest_window is None
    hybrid = mask_plan(Gemma3TextConfig(num_hidden_layers=12, sliding_window=5))
    assert hybrid == MaskPlan({"sliding_attention": 5, "full_attention": None}, True)
    assert hybrid.longest_window == 5


@pytest.mark.parametrize(
    "config", [BertConfig(), RobertaConfig(), XLMConfig(), Gemma3TextConfig(use_bidirectional_attention=True)]
)
def test_encoders_are_refused_before_anything_is_loaded(config):
    reason = declared(config).no_decoding_because
    assert "encoder" in reason
    assert "Llama" in reason


@pytest.mark.parametrize("config", [DistilBertConfig(), ModernBertConfig(), ViTConfig()])
def test_models_without_a_causal_language_model_are_refused(config):
    assert f"no causal language model of type '{config.model_type}'" in declared(config).no_decoding_because


@pytest.mark.parametrize("config", [BertConfig(is_decoder=True), GPTNeoXConfig(), GPT2Config(), DistilBertConfig(auto_map=MAP)])
def test_what_reads_from_left_to_right_is_no_encoder(config):
    assert declared(config).no_decoding_because is None


@pytest.mark.parametrize("config", [MambaConfig(), Llama4TextConfig(is_encoder_decoder=True)])
def test_one_reason_is_enough(config):
    assert declared(config).no_decoding_because is not None
    assert declared(config).no_trees_because is None
