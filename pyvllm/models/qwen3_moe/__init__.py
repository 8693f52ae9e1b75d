"""Qwen3Moe."""
