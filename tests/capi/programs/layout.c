/* Every offset and size of ABI 21 on LP64. Compiling is the test. */
#include <stddef.h>

#include <vllm.h>
#include <vllm.h>

#ifdef __cplusplus
#define AT(type, field, offset) static_assert(offsetof(type, field) == (offset), #field)
#define SIZE(type, size) static_assert(sizeof(type) == (size), #type)
#else
#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #field)
#define SIZE(type, size) _Static_assert(sizeof(type) == (size), #type)
#endif

SIZE(vllm_model_params, 128);
AT(vllm_model_params, model_path, 0);
AT(vllm_model_params, tokenizer_config_path, 8);
AT(vllm_model_params, block_size, 16);
AT(vllm_model_params, num_blocks, 20);
AT(vllm_model_params, max_model_len, 24);
AT(vllm_model_params, max_num_seqs, 28);
AT(vllm_model_params, tool_parser, 32);
AT(vllm_model_params, reasoning_parser, 40);
AT(vllm_model_params, speculative_config, 48);
AT(vllm_model_params, enable_prefix_caching, 56);
AT(vllm_model_params, max_num_batched_tokens, 60);
AT(vllm_model_params, scheduling_policy, 64);
AT(vllm_model_params, kv_transfer_config, 72);
AT(vllm_model_params, offload_config, 80);
AT(vllm_model_params, enable_jump_forward, 88);
AT(vllm_model_params, device, 92);
AT(vllm_model_params, gpu_memory_utilization, 96);
AT(vllm_model_params, kv_cache_memory_bytes, 104);
AT(vllm_model_params, language_model_only, 112);
AT(vllm_model_params, limit_mm_per_prompt, 120);

SIZE(vllm_sampling_params, 136);
AT(vllm_sampling_params, temperature, 0);
AT(vllm_sampling_params, top_p, 4);
AT(vllm_sampling_params, top_k, 8);
AT(vllm_sampling_params, min_p, 12);
AT(vllm_sampling_params, max_tokens, 16);
AT(vllm_sampling_params, seed, 24);
AT(vllm_sampling_params, has_seed, 32);
AT(vllm_sampling_params, presence_penalty, 36);
AT(vllm_sampling_params, frequency_penalty, 40);
AT(vllm_sampling_params, repetition_penalty, 44);
AT(vllm_sampling_params, min_tokens, 48);
AT(vllm_sampling_params, ignore_eos, 52);
AT(vllm_sampling_params, stop, 56);
AT(vllm_sampling_params, n_stop, 64);
AT(vllm_sampling_params, structured_json, 72);
AT(vllm_sampling_params, structured_regex, 80);
AT(vllm_sampling_params, structured_choice, 88);
AT(vllm_sampling_params, n_structured_choice, 96);
AT(vllm_sampling_params, structured_grammar, 104);
AT(vllm_sampling_params, structured_json_object, 112);
AT(vllm_sampling_params, logits_processor, 120);
AT(vllm_sampling_params, logits_processor_user_data, 128);

SIZE(vllm_completion, 24);
AT(vllm_completion, text, 0);
AT(vllm_completion, finish_reason, 8);
AT(vllm_completion, prompt_tokens, 16);
AT(vllm_completion, completion_tokens, 20);

SIZE(vllm_status, 4);

int main(void)
{
    return vllm_abi_version() == VLLM_ABI_VERSION ? 0 : 1;
}
